"""What TReLU costs in training, as a multiple of `nn.LeakyReLU`: time and memory.

    python benchmarks/activation.py

Both run forwards and backwards in eager mode, side by side in one process on two threads. Each step
is timed next to one with LeakyReLU, in random order. Of the ratios the median is given, then, after
a slash, the ratio of the fastest tenths: where other processes compete for the cores, a step takes
as many slices of the scheduler as it has parallel loops, and the median says little else. The
column in which LeakyReLU meets itself shows how noisy the machine is.

The aim is 1.05. Memory meets it, and so does the time of tensors that are larger than the cache.
Smaller ones take 1.1 to 1.25: the operation has no fast binding to Python, as LeakyReLU's has, and
its kernel does more arithmetic.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from skipless.tables import table
from skipless.torch import TReLU

SLOPE = 0.7
SIZES = {
    (64, 64): 2000,
    (128, 512): 1000,
    (32, 64, 16, 16): 500,
    (64, 64, 32, 32): 100,
    (64, 256, 32, 32): 30,
}


class TwoKernels(nn.Module):
    """What TReLU would be without its kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, SLOPE) * 1.16


RIVALS = {
    "LeakyReLU": partial(nn.LeakyReLU, SLOPE),
    "TReLU": partial(TReLU, SLOPE),
    "two kernels": TwoKernels,
}


def step(module: nn.Module, x: Tensor, g: Tensor) -> None:
    module(x).backward(g)
    x.grad = None


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratios(modules: Sequence[nn.Module], x: Tensor, repeats: int) -> list[str]:
    """How long a step of each module takes, as a multiple of one of the first."""
    g = torch.randn_like(modules[0](x))
    works = [partial(step, module, x, g) for module in modules]
    pairs: list[list[tuple[float, float]]] = [[] for _ in works]
    for work in 3 * works:
        work()
    for _ in range(repeats):
        for i in random.sample(range(len(works)), len(works)):
            if random.random() < 0.5:
                base, own = seconds(works[0]), seconds(works[i])
            else:
                own, base = seconds(works[i]), seconds(works[0])
            pairs[i].append((base, own))
    return [f"{median_ratio(p):.3f} / {fast_ratio(p):.3f}" for p in pairs]


def median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(own / base for base, own in pairs)


def fast_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    base, own = (statistics.quantiles(times, n=10)[0] for times in zip(*pairs, strict=True))
    return own / base


def saved_bytes(module: nn.Module, x: Tensor) -> int:
    """What hooks are given to store for the backward pass."""
    sizes: list[int] = []

    def pack(saved: Tensor) -> Tensor:
        sizes.append(saved.nbytes)
        return saved

    with saved_tensors_hooks(pack, lambda saved: saved):
        module(x)
    return sum(sizes)


def kept_bytes(module: nn.Module, x: Tensor) -> int:
    """What the last operation keeps without hooks: the storages that it holds, each once."""
    node = module(x).grad_fn
    saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved")]
    storages = [s.untyped_storage() for s in saved if isinstance(s, Tensor)]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def alone() -> None:
    rows = []
    for size, repeats in SIZES.items():
        x = torch.randn(size, requires_grad=True)
        modules = [rival() for rival in RIVALS.values()]
        times = ratios(modules, x, repeats)
        memory = [f"{f(modules[1], x) / f(modules[0], x):.2f}" for f in (saved_bytes, kept_bytes)]
        rows.append(["x".join(map(str, size)), *times, *memory])
    print("The activation alone: time of each, and bytes of TReLU, over those of LeakyReLU.\n")
    print(table(["float32 tensor", *RIVALS, "saved", "kept"], rows))


def in_networks() -> None:
    def perceptron(act: Callable[[], nn.Module]) -> nn.Module:
        return nn.Sequential(*(m for _ in range(20) for m in (nn.Linear(512, 512), act())))

    def convolutions(act: Callable[[], nn.Module]) -> nn.Module:
        layers = [(nn.Conv2d(64, 64, 3, padding=1), act()) for _ in range(6)]
        return nn.Sequential(*(m for layer in layers for m in layer))

    rows = []
    for name, network, size, repeats in (
        ("20 x Linear(512, 512)", perceptron, (128, 512), 20),
        ("6 x Conv2d(64, 64, 3)", convolutions, (16, 64, 32, 32), 10),
    ):
        x = torch.randn(size, requires_grad=True)
        found = ratios([network(rival) for rival in RIVALS.values()], x, repeats)
        rows.append([name, *found])
    print("\nA training step of a network, over one with LeakyReLU:\n")
    print(table(["network", *RIVALS], rows))


def main() -> None:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    random.seed(0)
    alone()
    in_networks()


if __name__ == "__main__":
    main()

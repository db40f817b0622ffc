"""Seconds per step of K-FAC relative to SGD, what they are spent on, and the memory.

    python benchmarks/kfac.py

Steps of SGD and K-FAC alternate, so that other load slows both down alike. K-FAC has three kinds of
steps: plain ones, those that measure the curvature, and those that also invert the factors. Each
kind is timed by itself, and a period is computed from their medians: running one of 200 steps would
take many minutes. The table breaks it down, in units of SGD's steps, into what plain steps take
beyond SGD's (preconditioning and momentum), factors and inverses; below are the calls themselves.
The loops have two threads.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipless.models import create_model
from skipless.optim import KFAC
from skipless.tables import table

ROUNDS = 8
PERIODS = ((1, 50), (10, 200))
STRIDES = (1, 8)  # of the examples that enter the factors of inputs
BATCHES = {"convnet": (128,), "mlp": (128, 512, 1024, 2048)}
THREADS = 2


def network(kind: str) -> nn.Module:
    """A convolutional network of 52 layers, of widths 16 to 64, or an MLP of 20 layers of 512."""
    torch.manual_seed(0)
    if kind == "convnet":
        model = create_model("wide_resnet52", num_classes=10, width=1.0, shortcut_weight=0.0)
        return model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    layers: list[nn.Module] = []
    for _ in range(19):
        layers += [nn.Linear(512, 512), nn.LeakyReLU(0.5)]
    return nn.Sequential(*layers, nn.Linear(512, 10))


def data(kind: str, batch: int) -> tuple[Tensor, Tensor]:
    shape = (batch, 3, 32, 32) if kind == "convnet" else (batch, 512)
    inputs = torch.randn(shape)
    if kind == "convnet":
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    return inputs, torch.randint(10, (batch,))


class Stopwatch:
    """Records seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def time(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[what].append(time.perf_counter() - start)

    def wrap(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: object, **kwargs: object) -> Any:
            with self.time(what):
                return function(*args, **kwargs)

        return timed

    def median(self, what: str) -> float:
        return float(np.median(self.seconds[what]))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> None:
    optimizer.zero_grad()
    outputs = model(batch[0])
    if isinstance(optimizer, KFAC):
        optimizer.curvature(outputs)
    F.cross_entropy(outputs, batch[1]).backward()
    optimizer.step()


def measure(kind: str, size: int, stride: int) -> Stopwatch:
    """Times steps of SGD and of K-FAC's three kinds."""
    batch, watch = data(kind, size), Stopwatch()
    plain, curved = network(kind), network(kind)
    sgd = torch.optim.SGD(plain.parameters(), 1e-6, momentum=0.9)
    # Periods of 4 and 2 go through the kinds: inverse, plain, curvature, plain.
    periods: dict[str, Any] = {"curvature_period": 2, "inverse_period": 4, "early_inverses": False}
    kfac = KFAC(curved, lr=1e-6, burn_in=0, input_stride=stride, **periods)
    own = kfac._estimate
    own.measure = watch.wrap("factors", own.measure)
    own.update = watch.wrap("means", own.update)
    own.blocks.refresh = watch.wrap("inverses", own.blocks.refresh)
    own.directions = watch.wrap("preconditioning", own.directions)
    for number in range(-4, 4 * ROUNDS):
        if number == 0:
            watch.seconds.clear()
        with watch.time(("inverse", "plain", "curvature", "plain")[number % 4]):
            step(curved, kfac, batch)
        with watch.time("sgd"):
            step(plain, sgd, batch)
    return watch


def peak_memory(kind: str, size: int, name: str) -> float:
    """Peak megabytes of a process over seven steps, minus those before the first."""
    code = f"import kfac; kfac.report_peak({kind!r}, {size}, {name!r})"
    here = Path(__file__).resolve().parent
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=here, check=True, capture_output=True, text=True
    )
    return float(found.stdout)


def report_peak(kind: str, size: int, name: str) -> None:
    torch.set_num_threads(THREADS)
    model, batch = network(kind), data(kind, size)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 1e-6, momentum=0.9)
    if name == "kfac":
        optimizer = KFAC(model, 1e-6)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory_of("VmRSS")
    for _ in range(7):
        step(model, optimizer, batch)
    print(memory_of("VmHWM") - before)


def memory_of(what: str) -> float:
    """Megabytes of this process now (VmRSS) or at its peak (VmHWM), as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def compare(kind: str, size: int) -> None:
    rows, inside, sgd = [], [], 0.0
    for stride in STRIDES:
        watch = measure(kind, size, stride)
        sgd, plain = watch.median("sgd"), watch.median("plain")
        curvature = watch.median("curvature") - plain
        inverses = watch.median("inverse") - watch.median("curvature")
        for every, inverted in PERIODS:
            parts = [sgd, plain - sgd, curvature / every, inverses / inverted]
            total = [sum(parts) / sgd, *(part / sgd for part in parts[1:])]
            rows.append([f"({every}, {inverted})", str(stride), *(f"{part:.2f}" for part in total)])
        calls = ("factors", "means", "inverses", "preconditioning")
        inside.append(", ".join(f"{call} {1000 * watch.median(call):.0f} ms" for call in calls))
    head = ["periods", "stride", "over SGD", "plain steps", "factors", "inverses"]
    memory = peak_memory(kind, size, "kfac") / peak_memory(kind, size, "sgd")
    print(f"{kind}, batches of {size}: SGD {1000 * sgd:.0f} ms a step, memory {memory:.2f} times\n")
    print(table(head, rows), *inside, sep="\n", end="\n\n", flush=True)


def main() -> None:
    torch.set_num_threads(THREADS)
    torch.set_flush_denormal(True)
    for kind, sizes in BATCHES.items():
        for size in sizes:
            compare(kind, size)


if __name__ == "__main__":
    main()

"""Trains small networks with K-FAC as one of several processes, and saves the results.

    python two_processes.py FOLDER RANK PROCESSES

One process sees whole batches, two see a half each; `test_processes.py` compares them.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from skipless.optim import KFAC
from skipless.optim.kfac import blocks

STEPS, SAVED_AT, SIZE = 12, 7, 32
PERIODS: dict[str, Any] = {"burn_in": 2, "curvature_period": 2, "inverse_period": 3}
FIXED: dict[str, Any] = {"lr": 0.1, **PERIODS}


def convolutional() -> nn.Module:
    layers = [nn.Conv2d(2, 4, 2), nn.PReLU(), nn.Flatten(), nn.Linear(16, 8), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(8, 8), nn.PReLU(8), nn.Linear(8, 3))


class Read(nn.Module):
    """Layers that are not called but read, in the order of the network on every process."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(18 + i, 19 + i) for i in range(6))
        self.last = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            x = F.linear(x, layer.weight, layer.bias).tanh()
        return self.last(x)


@dataclass(frozen=True)
class Case:
    settings: dict[str, Any] = field(default_factory=lambda: FIXED)
    model: Callable[[], nn.Module] = convolutional
    parts: int = 1
    wrapped_first: bool = False
    reloaded: bool = False
    bad_step: int | None = None


CASES = {
    "plain": Case(),
    "wrapped first": Case(wrapped_first=True),
    "spread": Case({**FIXED, "spread_inverses": True, "l2": 1e-3}),
    "eigenbasis": Case({**FIXED, "eigenbasis": True}),
    "exact": Case({**FIXED, "fisher": "exact"}),
    "accumulated": Case(parts=2),
    "adaptive": Case({**PERIODS, "lr": None, "damping_period": 1}),
    "damping": Case({**FIXED, "damping_period": 2}),
    "read": Case(model=Read),
    "reloaded": Case(reloaded=True),
    "reloaded eigenbasis": Case({**FIXED, "eigenbasis": True}, reloaded=True),
    "one bad half": Case(bad_step=5, settings={**FIXED, "curvature_period": 1}),
    "one bad half, eigenbasis": Case(
        bad_step=5, settings={**FIXED, "curvature_period": 1, "eigenbasis": True}
    ),
}


def batches(case: Case, rank: int, world: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """For each step the parts of this process."""
    chance = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        x = torch.randn(SIZE, 2, 3, 3, generator=chance, dtype=torch.float64)
        y = torch.randint(3, (SIZE,), generator=chance)
        if step == case.bad_step:
            x[-1] *= 1e200  # its square is infinite
        yield [
            (images.chunk(world)[rank], labels.chunk(world)[rank])
            for images, labels in zip(x.chunk(case.parts), y.chunk(case.parts), strict=True)
        ]


def train(case: Case, rank: int, world: int) -> dict[str, Any]:
    """Parameters and dampings after a run."""
    torch.manual_seed(0)
    model = case.model().double()
    wrapped = DistributedDataParallel(model) if world > 1 else model
    optimizer = KFAC(wrapped if case.wrapped_first else model, **case.settings)
    dampings: list[float] = []
    untouched = True

    def closure(parts: list[tuple[Tensor, Tensor]]) -> float:
        nonlocal untouched
        optimizer.zero_grad()
        total = 0.0
        for number, (x, y) in enumerate(parts):
            last = number == len(parts) - 1
            waits = isinstance(wrapped, DistributedDataParallel) and not last
            with wrapped.no_sync() if waits else nullcontext():  # pyright: ignore
                outputs = wrapped(x)
                before = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
                optimizer.curvature(outputs)
                after = [p.grad for p in model.parameters()]
                untouched &= all(_same(a, b) for a, b in zip(before, after, strict=True))
                loss = F.cross_entropy(outputs, y) / len(parts)
                loss.backward()
            total += loss.item()
        return total

    for step, parts in enumerate(batches(case, rank, world)):
        if case.reloaded and step == SAVED_AT:
            optimizer = reload(optimizer, model, case)
        optimizer.step(lambda parts=parts: closure(parts))
        dampings.append(optimizer.damping)
    values = [parameter.detach().clone() for parameter in model.parameters()]
    return {"values": values, "dampings": dampings, "untouched": untouched}


def _same(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return torch.equal(left, right)


def reload(optimizer: KFAC, model: nn.Module, case: Case) -> KFAC:
    """Another one, with the state of the first process, as after a restart."""
    optimizer.synchronize()
    state = [optimizer.state_dict()]
    if dist.is_initialized():
        dist.broadcast_object_list(state)
    fresh = KFAC(model, **case.settings)
    fresh.load_state_dict(state[0])
    return fresh


def inversions(rank: int, world: int) -> list[int]:
    """The sizes of all factors that this process inverts in a run."""
    sizes: list[int] = []
    invert = blocks.damped_inverses

    def counted(matrices: Tensor, *others: Any) -> Tensor:
        sizes.extend([matrices.shape[-1]] * len(matrices))
        return invert(matrices, *others)

    blocks.damped_inverses = counted
    try:
        train(Case(), rank, world)
    finally:
        blocks.damped_inverses = invert
    return sizes


class Detour(nn.Module):
    """Two layers, and one between them that is called, or only read, where it is open."""

    def __init__(self, read: bool) -> None:
        super().__init__()
        self.first, self.between, self.last = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.read, self.open = read, True

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        if self.open and self.read:
            x = F.linear(x, self.between.weight, self.between.bias).tanh()
        elif self.open:
            x = self.between(x).tanh()
        return self.last(x)


def train_unevenly(rank: int, read: bool, eigenbasis: bool) -> Tensor:
    """All weights after steps in which the processes do not use the same layers."""
    torch.manual_seed(0)
    model = Detour(read).double()
    network = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = KFAC(model, 0.1, burn_in=1, inverse_period=3, eigenbasis=eigenbasis)
    chance = torch.Generator().manual_seed(rank)
    for step in range(8):
        model.open = rank == 0 if read else (step + rank) % 2 == 0
        inputs = torch.randn(8, 5, dtype=torch.float64, generator=chance)
        labels = torch.randint(3, (8,), generator=chance)
        optimizer.zero_grad()
        outputs = network(inputs)
        optimizer.curvature(outputs)
        F.cross_entropy(outputs, labels).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


UNEVEN = {"called": (False, False), "axes": (False, True), "read": (True, False)}


def main() -> None:
    torch.set_num_threads(1)
    folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if world > 1:
        store = f"file://{folder / 'store'}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    found: dict[str, Any] = {name: train(case, rank, world) for name, case in CASES.items()}
    found["inversions"] = inversions(rank, world)
    if world > 1:
        found["uneven"] = {name: train_unevenly(rank, *case) for name, case in UNEVEN.items()}
    torch.save(found, folder / f"{rank}-of-{world}.pt")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Trains with layers that some processes use in some steps and others do not; saves the weights."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from skipless.optim import KFAC


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


def weights(read: bool, eigenbasis: bool) -> Tensor:
    """All weights of this process after a few steps."""
    rank = dist.get_rank()
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cases = {"called": (False, False), "axes": (False, True), "read": (True, False)}
    found = {name: weights(*case) for name, case in cases.items()}
    torch.save(found, Path(sys.argv[1]) / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()

"""Whether K-FAC survives its first stale inverse, on small data.

    python benchmarks/kfac_collapse.py

Networks without shortcuts and normalisation, shaped by TAT, with the preset "cifar10", an
inverse_period of 50 and a learning rate of 0.003 that decays along a cosine to 0. The first
inverses come from the five batches of the burn-in, of which most of these runs would keep them
until step 55. The table has the test accuracy at the end for each seed, the mean with its standard
error, the mean of the best epochs, and in how many runs K-FAC restarted velocities.
"""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import skipless as sk
from skipless.models import create_model
from skipless.optim import KFAC
from skipless.tables import table
from skipless.torch import normalize_per_sample
from skipless.train.batches import Batches
from skipless.train.data import Data, load_data

SEEDS = (0, 1, 2)
RATE = 0.003
SETTINGS: dict[str, dict[str, Any]] = {
    "fixed period": {"early_inverses": False, "restarts": False},
    "restarts alone": {"early_inverses": False},
    "default": {},
    "fixed period of 5": {"early_inverses": False, "restarts": False, "inverse_period": 5},
}


class Task(NamedTuple):
    """A network and its data."""

    model: str
    width: float
    data: str
    options: dict[str, Any]
    batch: int
    epochs: int


TASKS = {
    "ResNet-18, digits": Task("resnet18", 0.25, "digits", {}, 64, 3),
    "MLP of 50 layers, digits": Task("mlp:50", 128, "digits", {}, 128, 6),
    "ResNet-18, Fashion-MNIST": Task(
        "resnet18",
        0.125,
        "fashion-mnist",
        {"image_size": 14, "train_size": 1280, "validation_size": 1000},
        64,
        4,
    ),
}


def network(task: Task, data: Data) -> nn.Module:
    return create_model(
        task.model,
        num_classes=data.num_classes,
        in_chans=data.shape[0],
        img_size=(data.shape[1], data.shape[2]),
        width=task.width,
        shortcut_weight=None if task.model.startswith("mlp") else 0.0,
        method=sk.TAT(eta=0.9),
    )


def accuracy(model: nn.Module, batches: Batches) -> float:
    model.eval()
    with torch.no_grad():
        right = [(model(inputs).argmax(1) == labels) for inputs, labels in batches.in_order()]
    model.train()
    return 100.0 * float(torch.cat(right).float().mean())


class Warnings(logging.Handler):
    """Keeps what K-FAC says."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def train(task: Task, data: Data, seed: int, **options: Any) -> list[float]:
    """The test accuracy after each epoch."""
    torch.manual_seed(seed)
    model = network(task, data)
    optimizer = KFAC(model, RATE, preset="cifar10", **options)
    batches = Batches(data.train, task.batch, seed, normalize=normalize_per_sample)
    test = Batches(data.validation, 500, normalize=normalize_per_sample)
    total = task.epochs * batches.steps
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    found = []
    for epoch in range(task.epochs):
        for inputs, labels in batches.epoch(epoch):
            optimizer.zero_grad()
            logits: Tensor = model(inputs)
            optimizer.curvature(logits)
            F.cross_entropy(logits, labels).backward()
            optimizer.step()
            schedule.step()
        found.append(accuracy(model, test))
    return found


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    said = Warnings()
    logging.getLogger("skipless.optim").addHandler(said)
    rows = []
    for name, task in TASKS.items():
        data = load_data(task.data, **task.options)
        for label, options in SETTINGS.items():
            said.messages.clear()
            runs = [train(task, data, seed, **options) for seed in SEEDS]
            best = sum(max(run) for run in runs) / len(runs)
            ends = [run[-1] for run in runs]
            mean = sum(ends) / len(ends)
            error = math.sqrt(sum((e - mean) ** 2 for e in ends) / (len(ends) - 1) / len(ends))
            own = [name, label, ", ".join(f"{end:.1f}" for end in ends)]
            restarts = sum("restarts from zero" in message for message in said.messages)
            rows.append([*own, f"{mean:.1f} ± {error:.1f}", f"{best:.1f}", str(restarts)])
            print(*rows[-1], flush=True)
    head = ["network, data", "K-FAC", "test accuracy at the end", "mean", "best epoch", "restarts"]
    print(f"\n{table(head, rows)}")


if __name__ == "__main__":
    main()

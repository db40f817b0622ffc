"""How many epochs K-FAC and SGD need to reach a training loss.

    python benchmarks/kfac_epochs.py

A vanilla network of 50 layers and width 128, shaped by TAT, on scikit-learn's digits in batches of
128, trained for a budget of epochs: the learning rate warms up over a tenth of it, and decays along
a cosine to 0. For each optimiser and budget, the learning rate with the lowest mean loss over the
seeds counts; a note says if it is at an end of the grid. The loss is that of the whole training set
at the end. The smallest budgets that reach a loss are compared. Losses depend on nothing but
rounding; seconds are those of one thread of this machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F

from skipless.models import create_model
from skipless.optim import KFAC, KFACSettings, create_optimizer
from skipless.tables import table
from skipless.torch import normalize_per_sample
from skipless.train.batches import Batches
from skipless.train.data import Data, load_data

SEEDS = (0, 1, 2)
BATCH = 128
TARGETS = (0.1, 0.03, 0.01)
BUDGETS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40)
RATES = {"sgd": (0.001, 0.003, 0.006), "kfac": (0.001, 0.003, 0.01)}
# With 11 steps per epoch, the default inverse_period of 50 would be most of a run.
KFAC_SETTINGS = KFACSettings(inverse_period=5, early_inverses=False, restarts=False)


def train(name: str, lr: float, seed: int, epochs: int, data: Data) -> tuple[float, float]:
    """The training loss at the end of a budget, and the seconds that it took."""
    torch.manual_seed(seed)
    size = (data.shape[1], data.shape[2])
    model = create_model("mlp:50", num_classes=10, in_chans=1, img_size=size, width=128)
    optimizer = create_optimizer(name, model, lr=lr, kfac=KFAC_SETTINGS)
    batches = Batches(data.train, BATCH, seed, normalize=normalize_per_sample)
    total = epochs * batches.steps
    warmup = total // 10

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (total - warmup)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    start = time.perf_counter()
    for epoch in range(epochs):
        for inputs, labels in batches.epoch(epoch):
            optimizer.zero_grad()
            logits = model(inputs)
            if isinstance(optimizer, KFAC):
                optimizer.curvature(logits)
            F.cross_entropy(logits, labels).backward()
            optimizer.step()
            schedule.step()
    seconds = time.perf_counter() - start
    whole = Batches(data.train, len(data.train), normalize=normalize_per_sample)
    inputs, labels = next(whole.in_order())
    with torch.no_grad():
        return F.cross_entropy(model(inputs), labels).item(), seconds


def best_of_budgets(name: str, data: Data) -> Iterator[tuple[int, float, np.ndarray, float]]:
    """For each budget: epochs, the best learning rate, losses of all seeds, mean seconds."""
    for epochs in BUDGETS:
        runs = {
            lr: np.array([train(name, lr, seed, epochs, data) for seed in SEEDS])
            for lr in RATES[name]
        }
        lr = min(runs, key=lambda lr: np.nan_to_num(runs[lr][:, 0].mean(), nan=np.inf))
        yield epochs, lr, runs[lr][:, 0], float(runs[lr][:, 1].mean())


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    data = load_data("digits")
    needed: dict[tuple[str, float], tuple[int, float]] = {}
    rows = []
    for name in RATES:
        for epochs, lr, losses, seconds in best_of_budgets(name, data):
            error = losses.std(ddof=1) / math.sqrt(len(losses))
            rows.append(
                [
                    name,
                    str(epochs),
                    f"{lr:g}",
                    f"{losses.mean():.4f} ± {error:.4f}",
                    f"{seconds:.1f}",
                ]
            )
            print(*rows[-1], flush=True)
            if lr in (RATES[name][0], RATES[name][-1]):
                print("  (the best rate is at an end of the grid)")
            for target in TARGETS:
                if losses.mean() < target:
                    needed.setdefault((name, target), (epochs, seconds))
            if losses.mean() < min(TARGETS):
                break
    head = ["optimiser", "epochs", "best rate", "training loss, 3 seeds", "seconds"]
    print(f"\n{table(head, rows)}\n")
    for target in TARGETS:
        if ("sgd", target) in needed and ("kfac", target) in needed:
            slow, fast = needed["sgd", target], needed["kfac", target]
            print(
                f"loss {target:g}: SGD {slow[0]} epochs, K-FAC {fast[0]}: {slow[0] / fast[0]:.1f} "
                f"times fewer, in {fast[1] / slow[1]:.1f} times the seconds"
            )


if __name__ == "__main__":
    main()

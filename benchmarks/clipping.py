"""What clipping gradients does for SGD in networks without shortcuts and normalisation.

    python benchmarks/clipping.py [NETWORK]...

Three vanilla TReLU networks, trained by SGD with momentum 0.9, a warm-up and a cosine, without
label smoothing. For each kind of clipping, the learning rate moves in factors of about three until
both neighbours of the best one are worse, by the first seed (of the MLP, by the first two). The
best rate then gets all three seeds, which the table shows with their standard error.

| name   | network                                | data                                  | steps |
|--------|----------------------------------------|---------------------------------------|------:|
| mlp    | MLP of 50 layers of 64 units           | digits, batches of 128                |   220 |
| digits | ResNet-50, an eighth as wide           | digits, 8x8, batches of 128           |   132 |
| images | ResNet-50, an eighth as wide           | 2,560 of Fashion-MNIST, 7x7, of 64    |   200 |

"clipped" is the share of steps whose gradient is shortened; for adaptive clipping, of units. Needs
the files of Fashion-MNIST; about ten minutes on one core. The result (PyTorch 2.13, CPU):

| network | clip          | best rate | validation accuracy | training loss | clipped |
|---------|---------------|----------:|--------------------:|--------------:|--------:|
| mlp     | none          |     0.003 |          95.6 ± 0.5 |        0.0171 |     0 % |
| mlp     | 0.3           |       0.1 |          96.2 ± 0.7 |        0.0035 |    83 % |
| mlp     | 1             |      0.03 |          96.7 ± 0.3 |        0.0030 |    77 % |
| mlp     | 3             |      0.03 |          97.4 ± 0.2 |        0.0087 |    59 % |
| mlp     | adaptive:0.02 |       0.1 |          97.2 ± 0.5 |        0.0076 |    66 % |
| mlp     | adaptive:0.1  |      0.01 |          97.0 ± 0.2 |        0.0051 |    23 % |
| digits  | none          |      0.01 |          90.0 ± 0.4 |        0.1835 |     0 % |
| digits  | 0.3           |       0.3 |          95.0 ± 0.7 |        0.0617 |   100 % |
| digits  | 1             |       0.1 |          95.6 ± 0.7 |        0.0452 |    96 % |
| digits  | 3             |      0.03 |          94.0 ± 1.0 |        0.0616 |    78 % |
| digits  | adaptive:0.02 |       0.1 |          95.0 ± 0.2 |        0.0362 |    68 % |
| digits  | adaptive:0.1  |      0.03 |          95.2 ± 0.5 |        0.0338 |    25 % |
| images  | none          |     0.003 |          72.2 ± 0.8 |        0.7046 |     0 % |
| images  | 0.3           |       0.3 |          73.7 ± 0.5 |        0.6892 |   100 % |
| images  | 1             |      0.03 |          74.7 ± 0.8 |        0.6327 |   100 % |
| images  | 3             |      0.03 |          73.9 ± 0.3 |        0.6561 |    90 % |
| images  | adaptive:0.02 |       0.1 |          74.8 ± 0.6 |        0.6383 |    72 % |
| images  | adaptive:0.1  |      0.01 |          74.2 ± 0.1 |        0.6522 |    27 % |
"""

from __future__ import annotations

import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from skipless.record import Record, write_run
from skipless.runs.configuration import Configuration
from skipless.runs.training import build_run
from skipless.tables import table
from skipless.train.engine import DivergedError, Engine
from skipless.train.process import Process

RATES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
START = {"none": 0.01, "0.3": 0.1, "1": 0.1, "3": 0.1, "adaptive:0.02": 0.1, "adaptive:0.1": 0.1}
SEEDS = (0, 1, 2)
CHOOSING = {"mlp": 2, "digits": 1, "images": 1}  # seeds that choose the rate
BASE = Configuration(
    method="tat",
    eta=0.9,
    label_smoothing=0.0,
    evaluate_every=10**6,  # at the end only
    checkpoint_every=10**9,
    device="cpu",
    log_every=11,  # an epoch
)
RESNET = replace(BASE, model="resnet50", width=0.125)
TASKS = {
    "mlp": replace(BASE, model="mlp:50", width=64, epochs=20),
    "digits": replace(RESNET, epochs=12),
    "images": replace(
        RESNET,
        data="fashion-mnist",
        image_size=7,
        train_size=2560,
        validation_size=2000,
        batch_size=64,
        epochs=5,
        log_every=40,
    ),
}


class Result(NamedTuple):
    """Validation accuracy in percent, training loss in the last epoch, share of clipped steps."""

    accuracy: float
    loss: float
    clipped: float


DIVERGED = Result(0.0, math.inf, math.nan)


def share_at_bound(model: nn.Module, clip: str | float | None) -> float:
    """Whether the clipped gradient has the longest norm allowed; if adaptive, in how many units."""
    parameters = [(p, p.grad) for p in model.parameters() if p.grad is not None]
    match clip:
        case float():
            norm = torch.stack([gradient.norm() for _, gradient in parameters]).norm()
            return float(norm > clip * (1 - 1e-4))
        case str():
            ratio, found = float(clip.partition(":")[2]), list[Tensor]()
            for p, gradient in parameters[:-2]:  # without the last layer
                unit = tuple(range(1, p.dim())) or None
                norms = [torch.linalg.vector_norm(t, dim=unit) for t in (p.detach(), gradient)]
                found.append((norms[1] > ratio * norms[0].clamp(min=1e-3) * (1 - 1e-4)).flatten())
            return float(torch.cat(found).float().mean())
        case _:
            return 0.0


def train(given: Configuration) -> Result:
    run = build_run(given, Process())
    engine = Engine(run.model, run.optimizer, run.data, run.settings, Process(), run.normalize)
    shares: list[float] = []
    run.optimizer.register_step_pre_hook(
        lambda *_: shares.append(share_at_bound(run.model, given.clip))
    )
    with tempfile.TemporaryDirectory() as name:
        write_run(Path(name), {})
        try:
            engine.run(Path(name), progress=False)
        except DivergedError:
            return DIVERGED
        record = Record.read(Path(name))
    accuracy = record.series("validation", "top1")[1][-1]
    loss = record.series("train", "loss")[1][-1]
    return Result(100.0 * accuracy, loss, 100.0 * sum(shares) / len(shares))


def mean(results: list[Result]) -> Result:
    return Result(*(sum(column) / len(column) for column in zip(*results, strict=True)))


def best_rate(
    given: Configuration, start: float, seeds: int
) -> tuple[int, dict[int, list[Result]]]:
    """The place in `RATES` of a rate whose neighbours are worse, and all results by place."""
    found: dict[int, list[Result]] = {}
    best, last = RATES.index(start), -1
    while best != last:
        last = best
        for place in (best - 1, best, best + 1):
            if place not in found:
                own = replace(given, lr=RATES[place])
                found[place] = [train(replace(own, seed=seed)) for seed in SEEDS[:seeds]]
                words = ", ".join(f"{r.accuracy:.1f} ({r.loss:.3f})" for r in found[place])
                print(f"  {RATES[place]:g}: {words}", flush=True)
        best = max(found, key=lambda place: (mean(found[place]).accuracy, -mean(found[place]).loss))
    return best, found


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows: list[list[str]] = []
    for name in names or list(TASKS):
        for clip, start in START.items():
            print(name, clip, flush=True)
            task = replace(TASKS[name], clip=clip)
            best, found = best_rate(task, start, CHOOSING[name])
            rest = [replace(task, lr=RATES[best], seed=seed) for seed in SEEDS[CHOOSING[name] :]]
            found[best] += [train(own) for own in rest]
            average, ends = mean(found[best]), [r.accuracy for r in found[best]]
            spread = sum((end - average.accuracy) ** 2 for end in ends) / (len(ends) - 1)
            error = math.sqrt(spread / len(ends))
            accuracy = f"{average.accuracy:.1f} ± {error:.1f}"
            own = [f"{average.loss:.4f}", f"{average.clipped:.0f} %"]
            rows.append([name, clip, f"{RATES[best]:g}", accuracy, *own])
            print(*rows[-1], flush=True)
    head = ["network", "clip", "best rate", "validation accuracy", "training loss", "clipped"]
    print(f"\n{table(head, rows)}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Figure 3: training speed of K-FAC and SGD, with a cosine schedule, up to 360 epochs.

    skipless reproduce figure3 --scale cpu

The paper: SGD (with batches of 512) catches up with K-FAC, but needs just over twice the epochs.
"""

import math
from dataclasses import replace
from statistics import fmean

from skipless.paper.item import (
    Cell,
    Claim,
    Fit,
    Item,
    Judgement,
    Results,
    accuracy_curves,
    all_above,
    by_column,
    epochs_to_loss,
    none_below,
)
from skipless.paper.scales import TRELU, optimised, vanilla

EPOCHS = (90, 180, 360)
BATCHES = {"K-FAC": 1024, "SGD": 512}

CELLS = tuple(
    Cell(
        optimizer,
        str(epochs),
        {
            **vanilla(50),
            **TRELU,
            **optimised(optimizer),
            "epochs": epochs,
            "batch_size": batch,
            "schedule": "cosine",
        },
    )
    for optimizer, batch in BATCHES.items()
    for epochs in EPOCHS
)


def _fewer_epochs(results: Results) -> Judgement:
    """Epochs after which K-FAC has the training loss that SGD ends with, seed by seed."""
    told, fewer = [], []
    for epochs in map(str, EPOCHS):
        sgd, kfac = results.cell("SGD", epochs), results.cell("K-FAC", epochs)
        if sgd is None or kfac is None:
            continue
        goals = [outcome.train_loss for outcome in sgd.outcomes if outcome.train_loss is not None]
        if len(goals) < sgd.seeds or math.isnan(kfac.mean):
            fewer.append(False)
            told.append("diverged")
            continue
        taken = [epochs_to_loss(o, goal) for o, goal in zip(kfac.outcomes, goals, strict=True)]
        whole = [outcome.training.epochs[-1] for outcome in sgd.outcomes]
        fewer.append(all(t < w for t, w in zip(taken, whole, strict=True)))
        mean = "never" if math.isinf(sum(taken)) else f"{fmean(taken):.1f}"
        told.append(f"{mean} in place of {fmean(whole):.0f}, {sgd.seeds} seeds")
    evidence = "Epochs to the training loss that SGD ends with: " + "; ".join(told)
    return (all(fewer), evidence) if fewer else (None, "")


ITEM = Item(
    name="figure3",
    title="Figure 3: K-FAC against SGD by epochs",
    label="fig:optimizer",
    minutes={"cpu": 10},
    introduction="The vanilla TReLU network of 50 layers, trained for 90, 180 or 360 epochs with a "
    "cosine schedule. SGD has batches of 512, K-FAC of 1,024 (at the scale cpu 32 and 64).",
    claims=(
        Claim("K-FAC needs fewer epochs than SGD to the same training loss", _fewer_epochs),
        Claim(
            "K-FAC beats SGD after 90 epochs",
            lambda r: all_above(r, [(("K-FAC", "90"), ("SGD", "90"))]),
        ),
        Claim(
            "K-FAC with half of SGD's 360 epochs is not worse",
            lambda r: none_below(r, [(("K-FAC", "180"), ("SGD", "360"))]),
        ),
    ),
    cells=CELLS,
    charts=lambda r: [
        by_column(r, list(BATCHES), [str(e) for e in EPOCHS], "epochs (of the paper)"),
        accuracy_curves(
            "Validation accuracy, 180 epochs (of the paper)",
            {name: r.cell(name, "180") for name in BATCHES},
        ),
    ],
    fits={
        "cpu": Fit(
            keep=lambda cell: (cell.row, cell.column) != ("K-FAC", "360"),
            change=lambda scale: replace(
                scale,
                options={**scale.options, "evaluate_every": 1},
                rates={**scale.rates, "sgd": (0.01, 0.003), "kfac": (0.01,)},
                seeds=lambda _: 3,
            ),
        )
    },
)

"""Beyond the paper: six optimisers on vanilla TReLU networks of 50 to 200 layers.

    skipless reproduce optimizers --scale cpu

By epochs and by seconds. SGD, LARS and K-FAC are the paper's; Muon, SOAP and AdamW are of today.
Which of them trains networks without shortcuts has not been published.
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
    Summary,
    accuracy_curves,
    by_column,
    none_below,
    rank,
)
from skipless.paper.scales import TRELU, vanilla

OPTIMIZERS = {
    "SGD": "sgd",
    "LARS": "lars",
    "K-FAC": "kfac",
    "Muon": "muon",
    "SOAP": "soap",
    "AdamW": "adamw",
}
DEPTHS = (50, 101, 200)
COLUMNS = tuple(map(str, DEPTHS))

CELLS = tuple(
    Cell(name, str(depth), {**vanilla(depth), **TRELU, "optimizer": optimizer})
    for name, optimizer in OPTIMIZERS.items()
    for depth in DEPTHS
)


def _deepest(results: Results) -> dict[str, Summary | None]:
    return {name: results.cell(name, COLUMNS[-1]) for name in OPTIMIZERS}


def _first_in_time(results: Results) -> Judgement:
    """Whether K-FAC is first to the accuracy that SGD ends with, in seconds, at depth 200."""
    cells = {name: cell for name, cell in _deepest(results).items() if cell is not None}
    if "SGD" not in cells or "K-FAC" not in cells:
        return None, ""
    if math.isnan(cells["SGD"].mean):
        return None, "SGD diverged"
    goal = fmean(top1 for o in cells["SGD"].outcomes if (top1 := o.top1) is not None)
    seconds = {name: _seconds_to(cell, goal) for name, cell in cells.items()}
    told = ", ".join(
        f"{name} {'never' if math.isinf(t) else f'{t:.0f} s'}" for name, t in seconds.items()
    )
    return seconds["K-FAC"] <= min(seconds.values()) < math.inf, f"to {100 * goal:.1f} %: {told}"


def _seconds_to(cell: Summary, top1: float) -> float:
    curve = cell.outcomes[0].validation
    pairs = zip(curve.seconds, curve.top1, strict=True)
    return next((second for second, value in pairs if value >= top1), math.inf)


def _best_by_epochs(results: Results) -> Judgement:
    pairs = []
    for depth in COLUMNS:
        others = {n: c for n in OPTIMIZERS if n != "K-FAC" and (c := results.cell(n, depth))}
        if others:
            pairs.append((("K-FAC", depth), (max(others, key=lambda n: rank(others[n])), depth)))
    return none_below(results, pairs)


ITEM = Item(
    name="optimizers",
    title="Beyond the paper: six optimisers by depth",
    label=None,
    minutes={"cpu": 9},
    introduction="Vanilla TReLU networks of 50, 101 and 200 layers, each optimiser at the best of "
    "its learning rates, for the same number of epochs.",
    claims=(
        Claim("After the same epochs, no optimiser beats K-FAC at any depth", _best_by_epochs),
        Claim(
            "At depth 200, K-FAC is the first to the accuracy that SGD ends with, in seconds",
            _first_in_time,
        ),
        Claim(
            "Every optimiser is at depth 200 within 2 points of depth 50",
            lambda r: none_below(r, [((n, "200"), (n, "50")) for n in OPTIMIZERS], margin=2.0),
        ),
    ),
    cells=CELLS,
    charts=lambda r: [
        by_column(r, list(OPTIMIZERS), COLUMNS, "depth"),
        accuracy_curves("Depth 200, by epoch", _deepest(r)),
        accuracy_curves("Depth 200, by seconds", _deepest(r), seconds=True),
    ],
    fits={
        "cpu": Fit(
            keep=lambda cell: cell.column in ("50", "200"),
            change=lambda scale: replace(
                scale,
                options={**scale.options, "evaluate_every": 1},
                rates={
                    "sgd": (0.01, 0.003, 0.001),
                    "lars": (1.0, 0.3),
                    "kfac": (0.01, 0.003),
                    "muon": (0.003, 0.001),
                    "soap": (0.003, 0.001),
                    "adamw": (0.001, 0.0003),
                },
                seeds=lambda _: 1,
            ),
        )
    },
)

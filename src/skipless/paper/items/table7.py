"""Table 7: TAT against DKS, with leaky ReLU, SoftPlus and tanh, with and without dropout.

    skipless reproduce table7 --scale cpu

The paper: TAT with leaky ReLU is the best in nearly all settings, and more so without dropout.
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
    cells,
    difference,
    part,
    rank,
)
from skipless.paper.scales import (
    DKS_LRELU,
    DKS_SOFTPLUS,
    DKS_TANH,
    TAT_SOFTPLUS,
    TAT_TANH,
    TRELU,
    optimised,
    rescaled,
)

COLUMNS = {
    "TAT LReLU": TRELU,
    "TAT SoftPlus": TAT_SOFTPLUS,
    "TAT Tanh": TAT_TANH,
    "DKS LReLU": DKS_LRELU,
    "DKS SoftPlus": DKS_SOFTPLUS,
    "DKS Tanh": DKS_TANH,
}
# With dropout where it helps, and without it.
PAPER = {
    (50, "K-FAC", 0.0): (
        (74.6, 74.4, 73.1, 74.3, 74.3, 72.9),
        (74.2, 74.2, 72.9, 74.3, 73.7, 72.9),
    ),
    (50, "K-FAC", 0.8): (
        (76.4, 76.4, 74.8, 76.2, 76.3, 74.7),
        (75.9, 75.0, 74.4, 76.2, 75.1, 74.5),
    ),
    (50, "SGD", 0.0): (
        (71.1, 70.2, 69.5, 70.4, 71.8, 69.2),
        (71.1, 70.0, 69.5, 70.4, 71.4, 69.2),
    ),
    (50, "SGD", 0.8): (
        (76.0, 74.3, 72.4, 73.4, 75.2, 72.8),
        (75.8, 73.8, 72.2, 73.0, 74.1, 72.8),
    ),
    (101, "K-FAC", 0.0): (
        (74.2, 74.1, 72.8, 73.5, 73.9, 72.5),
        (74.2, 73.4, 72.5, 73.5, 73.1, 72.4),
    ),
    (101, "K-FAC", 0.8): (
        (77.8, 76.6, 75.8, 76.8, 76.8, 75.9),
        (77.0, 75.7, 75.1, 76.7, 75.6, 75.7),
    ),
    (101, "SGD", 0.0): (
        (70.0, 70.3, 69.0, 68.3, 68.3, 69.8),
        (70.0, 68.8, 67.8, 68.3, 68.3, 69.8),
    ),
    (101, "SGD", 0.8): (
        (77.3, 75.3, 73.8, 74.9, 76.3, 74.6),
        (76.0, 75.3, 73.5, 74.6, 75.1, 74.6),
    ),
}
WITHOUT = ", no dropout"

CELLS = tuple(
    Cell(
        f"{depth}, {optimizer}, w = {weight:g}{suffix}",
        column,
        {**rescaled(depth, weight), **COLUMNS[column], **optimised(optimizer), **fixed},
        accuracy,
    )
    for (depth, optimizer, weight), both in PAPER.items()
    for (suffix, fixed), accuracies in zip(
        (("", {}), (WITHOUT, {"dropout": 0.0})), both, strict=True
    )
    for column, accuracy in zip(COLUMNS, accuracies, strict=True)
)
ROWS = tuple(dict.fromkeys(cell.row for cell in CELLS))


def _best_in_most(results: Results) -> Judgement:
    """In how many rows TAT with leaky ReLU is the best, or level with it."""
    best, told = [], []
    for row in ROWS:
        cell_of = {column: results.cell(row, column) for column in COLUMNS}
        known = {column: cell for column, cell in cell_of.items() if cell is not None}
        if len(known) < len(COLUMNS):
            continue
        first = max(known, key=lambda column: rank(known[column]))
        gap = difference(known["TAT LReLU"], known[first])  # NaN if it diverged
        best.append(gap.points >= -gap.noise)
        told.append(f"{row}: TAT LReLU {known['TAT LReLU']}, best {first} {known[first]}")
    evidence = "; ".join(told) + part(len(best), len(ROWS))
    return (sum(best) >= 0.75 * len(best), evidence) if best else (None, "")


def _more_without_dropout(results: Results) -> Judgement:
    """Whether TAT with leaky ReLU is further ahead of the best other without dropout."""
    leads: dict[bool, list[float]] = {True: [], False: []}
    for row in ROWS:
        found = cells(results, [(row, column) for column in COLUMNS])
        if found is None or math.isnan(found[0].mean):
            continue
        leads[row.endswith(WITHOUT)].append(found[0].mean - max(map(rank, found[1:])))
    if not (leads[True] and leads[False]):
        return None, ""
    without, with_it = fmean(leads[True]), fmean(leads[False])
    told = f"Mean lead over the best other: {without:+.1f} without dropout, {with_it:+.1f} with it"
    return without > with_it, told + part(sum(map(len, leads.values())), len(ROWS))


ITEM = Item(
    name="table7",
    title="Table 7: TAT against DKS",
    label="table:DKS",
    minutes={"cpu": 12},
    introduction="Networks with shortcuts of weight 0 and 0.8, shaped by TAT and by DKS, with "
    "three activations, with dropout (where it helps) and without.",
    claims=(
        Claim(
            "TAT with leaky ReLU is the best, or level with it, in at least three quarters of the "
            "settings",
            _best_in_most,
        ),
        Claim("Its lead is larger without dropout", _more_without_dropout),
    ),
    cells=CELLS,
    fits={
        "smoke": Fit(keep=lambda cell: cell.row.startswith("50, K-FAC")),
        "cpu": Fit(
            keep=lambda cell: cell.row[:2] == "50",
            change=lambda scale: replace(
                scale,
                dropouts=(0.2, 0.0),
                rates={"sgd": (0.01,), "kfac": (0.01,)},
                seeds=lambda _: 1,
            ),
        ),
    },
)

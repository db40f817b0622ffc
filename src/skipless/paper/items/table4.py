"""Table 4: the main result, vanilla networks and ResNets for 90 and 180 epochs.

    skipless reproduce table4 --scale cpu

The paper: with K-FAC and 180 epochs, vanilla networks are 0.6 (depth 50) and 1.7 points (101)
behind ResNets; with w = 0.8, networks without normalisation are level with them, or ahead.
"""

from skipless.paper.item import (
    Cell,
    Claim,
    Fit,
    Item,
    Judgement,
    Results,
    all_above,
    cells,
    difference,
    none_below,
    smaller,
)
from skipless.paper.scales import TRELU, Options, optimised, rescaled, standard, vanilla

PAPER = {
    (50, "K-FAC"): (76.4, 74.6, 76.4, 76.6, 76.0, 77.0),
    (50, "SGD"): (76.3, 71.0, 76.0, 76.6, 72.3, 76.8),
    (101, "K-FAC"): (77.8, 74.2, 77.8, 77.6, 75.9, 78.4),
    (101, "SGD"): (77.9, 70.0, 77.3, 77.6, 73.8, 77.4),
}
COLUMNS = ("ResNet", "w = 0", "w = 0.8")
LENGTHS = (90, 180)
ROWS = tuple(f"{depth}, {optimizer}" for depth, optimizer in PAPER)


def _network(column: str, depth: int) -> Options:
    networks = {
        "ResNet": standard(depth),
        "w = 0": {**vanilla(depth), **TRELU},
        "w = 0.8": {**rescaled(depth, 0.8), **TRELU},
    }
    return networks[column]


def _epochs(epochs: int) -> Options:
    return {} if epochs == 90 else {"epochs": epochs}


CELLS = tuple(
    Cell(
        f"{depth}, {optimizer}",
        f"{column}, {epochs} epochs",
        {**_network(column, depth), **optimised(optimizer), **_epochs(epochs)},
        accuracy,
    )
    for (depth, optimizer), accuracies in PAPER.items()
    for (epochs, column), accuracy in zip(
        ((epochs, column) for epochs in LENGTHS for column in COLUMNS), accuracies, strict=True
    )
)


def _gap_shrinks(results: Results) -> Judgement:
    """Whether more epochs bring vanilla networks with K-FAC nearer to ResNets."""
    gaps = []
    for epochs in LENGTHS:
        pair = [("50, K-FAC", f"{c}, {epochs} epochs") for c in ("ResNet", "w = 0")]
        if (found := cells(results, pair)) is None:
            return None, ""
        gaps.append(difference(*found))
    return smaller(gaps[1], gaps[0]), f"ResNet less vanilla: {gaps[0]}, then {gaps[1]}"


ITEM = Item(
    name="table4",
    title="Table 4: vanilla networks, rescaled ResNets and standard ResNets",
    label="table:overall",
    minutes={"cpu": 19},
    introduction="The main result. TReLU without shortcuts (w = 0) and with weighted ones (w = "
    "0.8), both without normalisation, beside the standard ResNet with BatchNorm and ReLU.",
    claims=(
        Claim(
            "With w = 0.8 and TReLU, networks are not worse than standard ResNets",
            lambda r: none_below(
                r,
                [
                    ((row, f"w = 0.8, {epochs} epochs"), (row, f"ResNet, {epochs} epochs"))
                    for row in ROWS
                    for epochs in LENGTHS
                ],
            ),
        ),
        Claim(
            "Vanilla networks are better with K-FAC than with SGD",
            lambda r: all_above(
                r,
                [
                    ((f"{d}, K-FAC", f"w = 0, {e} epochs"), (f"{d}, SGD", f"w = 0, {e} epochs"))
                    for d in (50, 101)
                    for e in LENGTHS
                ],
            ),
        ),
        Claim(
            "With K-FAC, twice the epochs bring vanilla networks nearer to ResNets", _gap_shrinks
        ),
    ),
    cells=CELLS,
    # Twice the epochs at depth 101 would take most of an hour by themselves.
    fits={"cpu": Fit(keep=lambda cell: not (cell.row[:3] == "101" and "180" in cell.column))},
)

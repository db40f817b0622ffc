"""Table 9: networks of twice the width.

    skipless reproduce table9 --scale cpu

The paper: SGD, 360 epochs with batches of 512 (ResNets 90, because they overfit). Twice the width
narrows the gap between vanilla networks and ResNets.
"""

from dataclasses import replace

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
    smaller,
)
from skipless.paper.scales import RELU, TRELU, Options, standard, vanilla

PAPER = {
    (50, 1): (72.0, 76.0, 76.7),
    (50, 2): (73.5, 77.3, 77.9),
    (101, 1): (62.4, 76.5, 77.9),
    (101, 2): (66.5, 77.6, 78.6),
}
COLUMNS = ("EOC", "TAT", "ResNets")
SGD: Options = {"optimizer": "sgd", "batch_size": 512}


def _network(column: str, depth: int) -> Options:
    networks = {
        "EOC": {**vanilla(depth), **RELU, "epochs": 360},
        "TAT": {**vanilla(depth), **TRELU, "epochs": 360},
        "ResNets": standard(depth),
    }
    return networks[column]


CELLS = tuple(
    Cell(
        f"{depth}, width {width}x",
        column,
        {**_network(column, depth), **SGD, "width": float(width)},
        accuracy,
    )
    for (depth, width), accuracies in PAPER.items()
    for column, accuracy in zip(COLUMNS, accuracies, strict=True)
)


def _gap_narrows(results: Results) -> Judgement:
    gaps = []
    for width in (1, 2):
        row = f"50, width {width}x"
        if (found := cells(results, [(row, "ResNets"), (row, "TAT")])) is None:
            return None, ""
        gaps.append(difference(*found))
    return smaller(gaps[1], gaps[0]), f"ResNets less TAT: {gaps[0]}, then {gaps[1]}"


ITEM = Item(
    name="table9",
    title="Table 9: twice the width",
    label="table:width",
    minutes={"cpu": 7},
    introduction="Vanilla networks with EOC and TAT, and ResNets, with SGD and long training.",
    claims=(
        Claim("Twice the width narrows the gap between TAT and ResNets", _gap_narrows),
        Claim(
            "TAT is better with twice the width",
            lambda r: all_above(
                r, [((f"{d}, width 2x", "TAT"), (f"{d}, width 1x", "TAT")) for d in (50, 101)]
            ),
        ),
        Claim(
            "TAT beats EOC at every depth and width",
            lambda r: all_above(
                r,
                [((f"{d}, width {w}x", "TAT"), (f"{d}, width {w}x", "EOC")) for d, w in PAPER],
            ),
        ),
    ),
    cells=CELLS,
    fits={
        "cpu": Fit(
            keep=lambda cell: cell.row[:2] == "50",
            change=lambda scale: replace(scale, rates={"sgd": (0.01, 0.003)}),
        )
    },
)

"""Table 6: TReLU against PReLU.

    skipless reproduce table6 --scale cpu

The paper: TReLU beats PReLU, whose slopes are trained from 0 or from 0.25 on, by a large margin.
"""

from skipless.paper.item import Cell, Claim, Fit, Item, all_above
from skipless.paper.scales import TRELU, optimised, prelu, vanilla

PAPER = {
    (50, "K-FAC"): (74.6, 72.5, 73.6),
    (50, "SGD"): (71.0, 66.7, 67.9),
    (101, "K-FAC"): (74.2, 71.9, 72.8),
    (101, "SGD"): (70.0, 54.3, 66.3),
}
COLUMNS = {"TReLU": TRELU, "PReLU 0.0": prelu(0.0), "PReLU 0.25": prelu(0.25)}
ROWS = tuple(f"{depth}, {optimizer}" for depth, optimizer in PAPER)

CELLS = tuple(
    Cell(
        f"{depth}, {optimizer}",
        column,
        {**vanilla(depth), **COLUMNS[column], **optimised(optimizer)},
        accuracy,
    )
    for (depth, optimizer), accuracies in PAPER.items()
    for column, accuracy in zip(COLUMNS, accuracies, strict=True)
)

ITEM = Item(
    name="table6",
    title="Table 6: TReLU against PReLU",
    label="table:prelu",
    minutes={"cpu": 7},
    introduction="Vanilla networks. The slopes of PReLU are trained, from 0 or from 0.25 on.",
    claims=tuple(
        Claim(
            f"TReLU beats {rival} in every setting",
            lambda r, rival=rival: all_above(r, [((row, "TReLU"), (row, rival)) for row in ROWS]),
        )
        for rival in ("PReLU 0.0", "PReLU 0.25")
    ),
    cells=CELLS,
    fits={"cpu": Fit(keep=lambda cell: cell.row[:2] == "50" or cell.column == "TReLU")},
)

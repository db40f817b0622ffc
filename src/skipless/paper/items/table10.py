"""Table 10: TReLU against PReLU on rescaled ResNets.

    skipless reproduce table10 --scale cpu

The paper: TReLU beats PReLU, whose slopes are trained from 0 or from 0.25 on, by a large margin.
"""

from skipless.paper.item import Cell, Claim, Fit, Item, all_above
from skipless.paper.scales import TRELU, optimised, prelu, rescaled

PAPER = {
    (50, "K-FAC"): (76.4, 75.7, 73.6),
    (50, "SGD"): (76.0, 71.5, 71.5),
    (101, "K-FAC"): (77.8, 76.4, 76.8),
    (101, "SGD"): (77.3, 73.1, 73.4),
}
COLUMNS = {"TReLU": TRELU, "PReLU 0.0": prelu(0.0), "PReLU 0.25": prelu(0.25)}
ROWS = tuple(f"{depth}, {optimizer}" for depth, optimizer in PAPER)

CELLS = tuple(
    Cell(
        f"{depth}, {optimizer}",
        column,
        {**rescaled(depth, 0.8), **COLUMNS[column], **optimised(optimizer)},
        accuracy,
    )
    for (depth, optimizer), accuracies in PAPER.items()
    for column, accuracy in zip(COLUMNS, accuracies, strict=True)
)

ITEM = Item(
    name="table10",
    title="Table 10: TReLU against PReLU on rescaled ResNets",
    label="table:prelu-app",
    minutes={"cpu": 6},
    introduction="As table 6, but with shortcuts of weight 0.8.",
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

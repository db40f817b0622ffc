"""Table 3: BatchNorm or LayerNorm without shortcuts.

    skipless reproduce table3 --scale cpu

The paper: normalisation layers do not make up for shortcuts, in particular not with K-FAC.
"""

from skipless.paper.item import Cell, Claim, Item, all_above, none_below
from skipless.paper.scales import RELU, optimised, vanilla

PAPER = {
    (50, "K-FAC"): (72.6, 72.8, 72.7),
    (50, "SGD"): (63.7, 72.6, 58.1),
    (101, "K-FAC"): (71.8, 67.6, 72.0),
    (101, "SGD"): (41.6, 43.4, 28.6),
}
COLUMNS = {"vanilla": RELU, "BN": {"norm": "batch"}, "LN": {"norm": "layer"}}

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
ROWS = tuple(f"{depth}, {optimizer}" for depth, optimizer in PAPER)

ITEM = Item(
    name="table3",
    title="Table 3: normalisation layers without shortcuts",
    label="table:normalization",
    minutes={"cpu": 13},
    introduction="ReLU networks without shortcuts, with no normalisation, BatchNorm or LayerNorm.",
    claims=(
        Claim(
            "With K-FAC, neither BatchNorm nor LayerNorm is better than nothing",
            lambda r: none_below(
                r,
                [
                    ((row, "vanilla"), (row, norm))
                    for row in ("50, K-FAC", "101, K-FAC")
                    for norm in ("BN", "LN")
                ],
            ),
        ),
        Claim(
            "With SGD, all three lose from depth 50 to 101",
            lambda r: all_above(r, [(("50, SGD", c), ("101, SGD", c)) for c in COLUMNS]),
        ),
    ),
    cells=CELLS,
)

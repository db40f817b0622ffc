"""Table 5: EOC against TAT on vanilla networks, with (leaky) ReLU and tanh.

    skipless reproduce table5 --scale cpu

The paper: TAT wins in every setting, above all with SGD, and EOC loses with depth.
"""

from skipless.paper.item import Cell, Claim, Item, all_above, none_below
from skipless.paper.scales import EOC_TANH, RELU, TAT_TANH, TRELU, optimised, vanilla

PAPER = {
    (50, "K-FAC", "EOC"): (72.6, 70.6),
    (50, "K-FAC", "TAT"): (74.6, 73.1),
    (50, "SGD", "EOC"): (63.7, 55.7),
    (50, "SGD", "TAT"): (71.0, 69.5),
    (101, "K-FAC", "EOC"): (71.8, 69.2),
    (101, "K-FAC", "TAT"): (74.2, 72.8),
    (101, "SGD", "EOC"): (41.6, 54.0),
    (101, "SGD", "TAT"): (70.0, 69.0),
}
COLUMNS = ("(L)ReLU", "Tanh")
NETWORKS = {"EOC": (RELU, EOC_TANH), "TAT": (TRELU, TAT_TANH)}

CELLS = tuple(
    Cell(
        f"{depth}, {optimizer}, {method}",
        column,
        {**vanilla(depth), **shaping, **optimised(optimizer)},
        accuracy,
    )
    for (depth, optimizer, method), accuracies in PAPER.items()
    for column, shaping, accuracy in zip(COLUMNS, NETWORKS[method], accuracies, strict=True)
)
SETTINGS = tuple(dict.fromkeys((depth, optimizer) for depth, optimizer, _ in PAPER))

ITEM = Item(
    name="table5",
    title="Table 5: EOC against TAT on vanilla networks",
    label="table:eoc-aeoc",
    minutes={"cpu": 18},
    introduction="Networks without shortcuts and normalisation, shaped by EOC or by TAT.",
    claims=(
        Claim(
            "At depth 101 with SGD, TAT beats EOC with (leaky) ReLU",
            lambda r: all_above(r, [(("101, SGD, TAT", "(L)ReLU"), ("101, SGD, EOC", "(L)ReLU"))]),
        ),
        Claim(
            "TAT beats EOC in every setting",
            lambda r: all_above(
                r,
                [
                    ((f"{d}, {o}, TAT", column), (f"{d}, {o}, EOC", column))
                    for d, o in SETTINGS
                    for column in COLUMNS
                ],
            ),
        ),
        Claim(
            "With SGD and ReLU, EOC loses more than 10 points from depth 50 to 101",
            lambda r: all_above(
                r, [(("50, SGD, EOC", "(L)ReLU"), ("101, SGD, EOC", "(L)ReLU"))], margin=10.0
            ),
        ),
        Claim(
            "With SGD, TAT with leaky ReLU loses less than 2 points from depth 50 to 101",
            lambda r: none_below(
                r, [(("101, SGD, TAT", "(L)ReLU"), ("50, SGD, TAT", "(L)ReLU"))], margin=2.0
            ),
        ),
    ),
    cells=CELLS,
)

"""Figure 1: vanilla networks by depth, EOC against TAT, with K-FAC.

    skipless reproduce figure1 --scale cpu

The paper: TAT keeps its accuracy with depth, EOC loses. The figure's numbers are not printed; those
at depths 50 and 101 are also in table 5.
"""

from dataclasses import replace

from skipless.paper.item import Cell, Claim, Fit, Item, all_above, by_column, none_below
from skipless.paper.scales import RELU, TRELU, optimised, vanilla

DEPTHS = (50, 101, 152, 200)
ON_CPU = ("50", "101", "200")
PAPER = {("EOC", 50): 72.6, ("TAT", 50): 74.6, ("EOC", 101): 71.8, ("TAT", 101): 74.2}
METHODS = {"EOC": RELU, "TAT": TRELU}

CELLS = tuple(
    Cell(
        method,
        str(depth),
        {**vanilla(depth), **METHODS[method], **optimised("K-FAC")},
        PAPER.get((method, depth)),
    )
    for method in METHODS
    for depth in DEPTHS
)

ITEM = Item(
    name="figure1",
    title="Figure 1: vanilla networks by depth",
    label="fig:fig1",
    minutes={"cpu": 21},
    introduction="Networks without shortcuts and normalisation, with ReLU on the edge of chaos "
    "(EOC) and with TReLU (TAT), trained with K-FAC. The scale cpu has one learning rate for both, "
    "0.003, and 10 epochs: networks of 200 layers need that. (With 0.01 and 5 epochs, EOC stays at "
    "chance there, too, and TAT, with one seed, reaches 70.7 %.)",
    claims=(
        Claim(
            "At depth 200, TAT is within 2 points of its accuracy at depth 50",
            lambda r: none_below(r, [(("TAT", "200"), ("TAT", "50"))], margin=2.0),
        ),
        Claim(
            "EOC falls with depth: it loses more than 10 points from 50 to 200",
            lambda r: all_above(r, [(("EOC", "50"), ("EOC", "200"))], margin=10.0),
        ),
        Claim(
            "TAT beats EOC at every depth",
            lambda r: all_above(r, [(("TAT", str(d)), ("EOC", str(d))) for d in DEPTHS]),
        ),
    ),
    cells=CELLS,
    charts=lambda r: [by_column(r, list(METHODS), [str(d) for d in DEPTHS], "depth")],
    fits={
        "cpu": Fit(
            keep=lambda cell: cell.column in ON_CPU,
            # Networks of 200 layers need more than 5 epochs, and a lower rate than others.
            change=lambda scale: replace(scale, epochs=1 / 9, rates={"kfac": (0.003,)}),
        )
    },
)

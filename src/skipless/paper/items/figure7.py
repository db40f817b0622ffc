"""Figure 7: the training accuracy of figure 1's networks.

    skipless reproduce figure7 --scale cpu

The paper: on ImageNet, EOC fits the training images as well as TAT, so that TAT is better at
generalising and not at optimising. The runs are those of figure 1.
"""

import math

from skipless.paper.item import (
    USUAL_NOISE,
    Cell,
    Claim,
    Item,
    Judgement,
    Results,
    Summary,
    cells,
    over_numbers,
)

from .figure1 import DEPTHS, METHODS
from .figure1 import ITEM as FIGURE_1


def _shown(cell: Summary) -> str:
    return "diverged" if math.isnan(cell.train_accuracy) else f"{cell.train_accuracy:.1f}"


def _competitive(results: Results) -> Judgement:
    """Whether EOC's training accuracy is nowhere below TAT's."""
    told, level = [], []
    for depth in map(str, DEPTHS):
        if (found := cells(results, [("EOC", depth), ("TAT", depth)])) is None:
            continue
        eoc, tat = (cell.train_accuracy for cell in found)
        level.append(eoc >= tat - USUAL_NOISE)
        told.append(f"depth {depth}: EOC {eoc:.1f}, TAT {tat:.1f}")
    return (all(level), "; ".join(told)) if level else (None, "")


def _lines(results: Results) -> dict[str, list[tuple[float, float, float]]]:
    return {
        method: [
            (float(depth), cell.train_accuracy, math.nan)
            for depth in DEPTHS
            if (cell := results.cell(method, str(depth))) is not None
        ]
        for method in METHODS
    }


ITEM = Item(
    name="figure7",
    title="Figure 7: training accuracy by depth",
    label="fig:fig1_train",
    minutes={"cpu": 21},
    introduction="Training accuracy of the networks of figure 1, each at the learning rate with "
    "the best validation accuracy.",
    claims=(Claim("EOC reaches the training accuracy of TAT at every depth", _competitive),),
    cells=tuple(Cell(cell.row, cell.column, cell.run) for cell in FIGURE_1.cells),
    shown=_shown,
    charts=lambda r: [over_numbers("Training accuracy", "depth", _lines(r))],
    fits=FIGURE_1.fits,
)

"""Table 8: batch sizes with K-FAC, SGD and LARS.

    skipless reproduce table8 --scale cpu

The paper: K-FAC is as good with batches of 2,048 as with 128; SGD loses from 1,024 on. LARS, made
for large batches, shows a similar trend.
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
from skipless.paper.scales import TRELU, optimised, vanilla

BATCHES = (128, 256, 512, 1024, 2048, 4096)
PAPER = {
    "K-FAC": (74.5, 74.4, 74.5, 74.6, 74.2, 72.0),
    "SGD": (72.7, 72.6, 72.7, 71.0, 69.3, 62.0),
    "LARS": (72.4, 72.3, 72.6, 71.8, 71.3, 70.2),
}

CELLS = tuple(
    Cell(
        optimizer,
        str(batch),
        {**vanilla(50), **TRELU, **optimised(optimizer)}
        | ({} if batch == 1024 else {"batch_size": batch}),
        accuracy,
    )
    for optimizer, accuracies in PAPER.items()
    for batch, accuracy in zip(BATCHES, accuracies, strict=True)
)


def _loses_less(results: Results, steady: str, other: str) -> Judgement:
    """Whether one optimiser loses less than another from batches of 512 to 4,096."""
    losses = {}
    for optimizer in (steady, other):
        found = cells(results, [(optimizer, "512"), (optimizer, "4096")])
        if found is None:
            return None, ""
        losses[optimizer] = difference(*found)
    told = ", ".join(f"{name} loses {gap.points:.1f} points" for name, gap in losses.items())
    return smaller(losses[steady], losses[other]), told


ITEM = Item(
    name="table8",
    title="Table 8: batch sizes",
    label="table:bs-scaling",
    minutes={"cpu": 6},
    introduction="Vanilla TReLU networks of 50 layers, trained for the same number of epochs with "
    "batches of different sizes. At the scale cpu the sizes are a sixteenth, from 32 on; smaller "
    "ones would take an hour.",
    claims=(
        Claim(
            "K-FAC is as good with batches of 2,048 as with 512",
            lambda r: none_below(r, [(("K-FAC", "2048"), ("K-FAC", "512"))]),
        ),
        Claim(
            "SGD is worse with batches of 4,096 than with 512",
            lambda r: all_above(r, [(("SGD", "512"), ("SGD", "4096"))]),
        ),
        Claim(
            "From batches of 512 to 4,096, K-FAC loses less than SGD",
            lambda r: _loses_less(r, "K-FAC", "SGD"),
        ),
    ),
    cells=CELLS,
    fits={"cpu": Fit(keep=lambda cell: int(cell.column) >= 512)},
)

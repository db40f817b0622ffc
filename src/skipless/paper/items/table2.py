"""Table 2: shortcut weights in place of BatchNorm.

    skipless reproduce table2 --scale cpu

The paper: with w = 0.8 and TReLU, a ResNet-50 without normalisation matches the standard one.
"""

from skipless.paper.item import Cell, Claim, Item, all_above, none_below
from skipless.paper.scales import OPTIMIZERS, RELU, TRELU, optimised, rescaled, standard

STANDARD = {"K-FAC": 76.4, "SGD": 76.3}
WEIGHTS = (0.0, 0.5, 0.8, 0.9)
RESCALED = {
    ("K-FAC", "ReLU"): (72.6, 74.5, 75.6, 75.9),
    ("K-FAC", "TReLU"): (74.6, 75.5, 76.4, 75.9),
    ("SGD", "ReLU"): (63.7, 72.4, 73.9, 75.0),
    ("SGD", "TReLU"): (71.0, 72.6, 76.0, 74.8),
}
ACTIVATIONS = {"ReLU": RELU, "TReLU": {**TRELU, "eta": 0.9}}

CELLS = (
    *(
        Cell(optimizer, "standard ResNet", {**standard(50), **optimised(optimizer)}, accuracy)
        for optimizer, accuracy in STANDARD.items()
    ),
    *(
        Cell(
            f"{optimizer}, {activation}",
            f"w = {weight:g}",
            {**rescaled(50, weight), **ACTIVATIONS[activation], **optimised(optimizer)},
            accuracy,
        )
        for (optimizer, activation), accuracies in RESCALED.items()
        for weight, accuracy in zip(WEIGHTS, accuracies, strict=True)
    ),
)

ITEM = Item(
    name="table2",
    title="Table 2: rescaled ResNets with varying shortcut weights",
    label="table:shortcut",
    minutes={"cpu": 17},
    introduction="ResNet-50 without normalisation layers, by the weight of its shortcuts. Without "
    "shortcuts (w = 0) ReLU is far behind; with w = 0.8 and TReLU nothing is left of the gap.",
    claims=(
        Claim(
            "With w = 0.8 and TReLU, a ResNet without BatchNorm is not worse than the standard one",
            lambda r: none_below(
                r, [((f"{o}, TReLU", "w = 0.8"), (o, "standard ResNet")) for o in ("SGD", "K-FAC")]
            ),
        ),
        Claim(
            "Without shortcuts, TReLU beats ReLU",
            lambda r: all_above(
                r, [((f"{o}, TReLU", "w = 0"), (f"{o}, ReLU", "w = 0")) for o in OPTIMIZERS]
            ),
        ),
        Claim(
            "With ReLU, shortcuts (w = 0.9) beat none",
            lambda r: all_above(
                r, [((f"{o}, ReLU", "w = 0.9"), (f"{o}, ReLU", "w = 0")) for o in OPTIMIZERS]
            ),
        ),
    ),
    cells=CELLS,
)

"""Beyond the paper: a network without shortcuts that learns from a trained ResNet.

    skipless reproduce distillation --scale cpu

Whoever has a trained ResNet has its soft labels (Hinton, Vinyals & Dean, 2015), and a network
without shortcuts can be trained on them: `skipless train --teacher`.
"""

from dataclasses import replace

from skipless.paper.item import (
    Cell,
    Claim,
    Fit,
    Item,
    Judgement,
    Results,
    accuracy_curves,
    all_above,
    cells,
    difference,
    none_below,
)
from skipless.paper.scales import TRELU, Options, Scale, wide_vanilla
from skipless.runs.configuration import Configuration

DEPTH = 16
TEACHER, STUDENT = "ResNet, BatchNorm", "vanilla, TReLU"
ALONE = "alone"
SHARES = (0.5, 0.9, 1.0)  # of the teacher's labels in the loss
USUAL = Configuration().teacher_weight
OPTIMIZER: Options = {"optimizer": "adamw", "batch_size": 64}
RESNET: Options = {"model": f"wide_resnet{DEPTH}", "norm": "batch", **OPTIMIZER}
VANILLA: Options = {**wide_vanilla(DEPTH), **TRELU, **OPTIMIZER}
TEACHERS_RATE: Options = {"lr": 0.01}  # the better one of those below
# At the scale cpu, also a fifth of the images that the teacher saw, five times as often.
FEW: Options = {"train_size": 512, "epochs": 450, "evaluate_every": 5}
FEW_ALONE, FEW_TAUGHT = "alone, 512 images", f"taught, share {USUAL:g}, 512 images"


def _column(share: float) -> str:
    return f"taught, share {share:g}"


CELLS = (
    Cell(TEACHER, ALONE, RESNET),
    Cell(STUDENT, ALONE, VANILLA),
    *(
        Cell(
            STUDENT,
            _column(share),
            {**VANILLA, "teacher_weight": share},
            teacher={**RESNET, **TEACHERS_RATE},
        )
        for share in SHARES
    ),
    Cell(STUDENT, FEW_ALONE, {**VANILLA, **FEW}),
    Cell(STUDENT, FEW_TAUGHT, {**VANILLA, **FEW}, teacher={**RESNET, **TEACHERS_RATE}),
)
TAUGHT = (STUDENT, _column(USUAL))


def _half_of_the_gap(results: Results) -> Judgement:
    """Whether at least half of what the student is behind its teacher is made up for."""
    found = cells(results, [(TEACHER, ALONE), (STUDENT, ALONE), TAUGHT])
    if found is None:
        return None, ""
    teacher, alone, taught = found
    gap, gain = difference(teacher, alone), difference(taught, alone)
    return gain.points >= gap.points / 2 > 0.0, f"behind by {gap} alone, {gain} with the teacher"


def _on_all_images(cell: Cell) -> bool:
    return "train_size" not in cell.run


def _on_cpu(scale: Scale) -> Scale:
    scale = replace(scale, batch=1.0, width=1 / 4, seeds=lambda _: 3)
    return replace(scale, rates={**scale.rates, "adamw": (0.01, 0.003)})


ITEM = Item(
    name="distillation",
    title="Beyond the paper: a network without shortcuts taught by a ResNet",
    label=None,
    minutes={"cpu": 3},
    introduction=f"A Wide ResNet of {DEPTH} layers with BatchNorm, and one without shortcuts and "
    "normalisation: trained on labels alone, or also on the soft labels of the ResNet of the same "
    "seed, at a temperature of 4, with a share of 0.5, 0.9 or 1 in the loss. All are trained by "
    "AdamW on the same images for the same number of epochs. At the scale cpu also on 512 of the "
    "2,560 images, for as many steps, by the teacher that saw all of them.",
    claims=(
        Claim(
            f"With a teacher whose share is {USUAL:g}, the vanilla network beats itself alone",
            lambda r: all_above(r, [(TAUGHT, (STUDENT, ALONE))]),
        ),
        Claim("The teacher closes at least half of the gap to itself", _half_of_the_gap),
        Claim(
            f"No other share is above the usual one, {USUAL:g}",
            lambda r: none_below(
                r, [(TAUGHT, (STUDENT, _column(s))) for s in SHARES if s != USUAL]
            ),
        ),
        Claim(
            "On a fifth of the teacher's images, the vanilla network with it beats itself alone",
            lambda r: all_above(r, [((STUDENT, FEW_TAUGHT), (STUDENT, FEW_ALONE))]),
        ),
    ),
    cells=CELLS,
    charts=lambda r: [
        accuracy_curves(
            "Validation accuracy by epoch",
            {
                TEACHER: r.cell(TEACHER, ALONE),
                STUDENT: r.cell(STUDENT, ALONE),
                f"{STUDENT}, {_column(USUAL)}": r.cell(*TAUGHT),
            },
        )
    ],
    fits={
        "full": Fit(
            keep=_on_all_images,
            change=lambda s: replace(s, batch=1.0, options={**s.options, "data": "cifar10"}),
        ),
        "cpu": Fit(
            change=lambda s: replace(_on_cpu(s), options={**s.options, "evaluate_every": 1})
        ),
        "smoke": Fit(keep=_on_all_images, change=lambda s: replace(s, batch=1 / 4)),
    },
)

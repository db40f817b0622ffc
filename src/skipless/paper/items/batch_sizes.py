"""Beyond the paper: small batches, and batches of few classes.

    skipless reproduce batch_sizes --scale cpu

BatchNorm takes its statistics over a batch. With one image in it, or with images of one class, they
are not those of the data, by which the network is evaluated. A network without normalisation does
not know what a batch is. Where data cannot be mixed at will, as on devices and in private training,
that decides on what can be trained.
"""

import math
from dataclasses import replace

from skipless.paper.item import (
    Cell,
    Claim,
    Fit,
    Item,
    Pair,
    Results,
    all_above,
    none_below,
    over_numbers,
)
from skipless.paper.scales import TRELU, Option, Options, Scale, wide_vanilla
from skipless.report.svg import Axis, Chart

DEPTH = 16
BATCHNORM, VANILLA = "ResNet, BatchNorm", "vanilla, TReLU"
NETWORKS: dict[str, Options] = {
    BATCHNORM: {"model": f"wide_resnet{DEPTH}", "norm": "batch"},
    VANILLA: {**wide_vanilla(DEPTH), **TRELU},
}
SIZES = (1, 2, 8, 64)
MIXED, ONE_CLASS, TWO_CLASSES = "64", "8, of 1 class", "64, of 2 classes"
BATCHES: dict[str, Options] = {
    **{str(size): {"batch_size": size} for size in SIZES},
    ONE_CLASS: {"batch_size": 8, "classes_per_batch": 1},
    TWO_CLASSES: {"batch_size": 64, "classes_per_batch": 2},
}
# Learning rates at the scale cpu: lower for smaller batches, about as the square root of the size.
# The smallest have one, to save time.
RATES: dict[str, dict[str, tuple[Option, ...]]] = {
    BATCHNORM: {
        "1": (0.001,),
        "2": (0.0015,),
        "8": (0.01, 0.003),
        "64": (0.01, 0.003),
        ONE_CLASS: (0.01, 0.003),
        TWO_CLASSES: (0.01, 0.003, 0.001),
    },
    VANILLA: {
        "1": (0.0004,),
        "2": (0.0005,),
        "8": (0.003, 0.001),
        "64": (0.01, 0.003),
        ONE_CLASS: (0.003, 0.001),
        TWO_CLASSES: (0.01, 0.003, 0.001),
    },
}

CELLS = tuple(
    Cell(row, column, {**network, **batches, "optimizer": "adamw"})
    for row, network in NETWORKS.items()
    for column, batches in BATCHES.items()
)


def _literal(scale: Scale, **options: Option) -> Scale:
    """The scale with the batch sizes that the cells state."""
    return replace(scale, batch=1.0, options={**scale.options, **options})


def _on_cpu(scale: Scale) -> Scale:
    scale = _literal(scale, train_size=1024, validation_size=1000)
    return replace(scale, epochs=3 / 90, width=1 / 4, seeds=lambda _: 3)


def _over(column: str) -> list[Pair]:
    return [((VANILLA, column), (BATCHNORM, column))]


def _by_size(results: Results) -> Chart:
    """Accuracy over the logarithm of the batch size."""
    lines = {
        row: [
            (math.log2(size), cell.mean, cell.error)
            for size in SIZES
            if (cell := results.cell(row, str(size))) is not None
        ]
        for row in NETWORKS
    }
    ticks = tuple((math.log2(size), str(size)) for size in SIZES)
    chart = over_numbers("Validation accuracy", "batch size", lines)
    return replace(chart, x=Axis("batch size", ticks[0][0], ticks[-1][0], ticks))


ITEM = Item(
    name="batch_sizes",
    title="Beyond the paper: small batches, and batches of few classes",
    label=None,
    minutes={"cpu": 6},
    introduction=f"A Wide ResNet of {DEPTH} layers with BatchNorm beside one without shortcuts and "
    "normalisation, trained by AdamW for the same number of epochs with batches of 1 to 64 images; "
    "then with batches of 8 images of one class, and of 64 of two. At the scale cpu, there are 3 "
    "epochs on 1,024 images: 3,072 steps with the smallest batches, and 48 with the largest; "
    "batches of one and two images have one learning rate, the others the best of two or three.",
    claims=(
        Claim(
            "With batches of one image, TReLU beats BatchNorm", lambda r: all_above(r, _over("1"))
        ),
        Claim(
            "With batches of two images, TReLU beats BatchNorm", lambda r: all_above(r, _over("2"))
        ),
        Claim(
            "With batches of 64 images of two classes, TReLU beats BatchNorm",
            lambda r: all_above(r, _over(TWO_CLASSES)),
        ),
        Claim(
            "With batches of 8 images of one class, TReLU beats BatchNorm",
            lambda r: all_above(r, _over(ONE_CLASS)),
        ),
        Claim(
            "TReLU with batches of one image is not below TReLU with batches of 64",
            lambda r: none_below(r, [((VANILLA, "1"), (VANILLA, "64"))]),
        ),
        Claim(
            "With batches of 64 images of any class, BatchNorm is not below TReLU",
            lambda r: none_below(r, [(b, a) for a, b in _over(MIXED)]),
        ),
    ),
    cells=CELLS,
    charts=lambda r: [_by_size(r)],
    fits={
        "full": Fit(change=lambda scale: _literal(scale, data="cifar10")),
        "cpu": Fit(change=_on_cpu, grid=lambda cell: {"lr": RATES[cell.row][cell.column]}),
        "smoke": Fit(change=lambda scale: _literal(scale, train_size=None)),
    },
)

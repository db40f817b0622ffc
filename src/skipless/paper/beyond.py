"""Three items that are not in the paper: optimisers, batch sizes and teachers."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

from skipless.report.svg import Axis, Chart
from skipless.runs.configuration import Configuration

from .item import (
    Cell,
    Item,
    Judgement,
    ScaleOverride,
    accuracy_by_column,
    accuracy_curves,
    difference,
    level,
    none_below,
    wins,
)
from .results import Results, Summary
from .scales import TRELU, Option, Options, vanilla, wide_vanilla

OPTIMIZERS = {
    "SGD": "sgd",
    "LARS": "lars",
    "K-FAC": "kfac",
    "Muon": "muon",
    "SOAP": "soap",
    "AdamW": "adamw",
}
DEPTHS = ("50", "101", "200")


def optimizers() -> Item:
    """Six optimisers on vanilla TReLU networks of 50 to 200 layers, by epochs and by seconds.

    SGD, LARS and K-FAC are the paper's; Muon, SOAP and AdamW are more recent. Which of them trains
    networks without shortcuts has not been published.
    """
    return Item(
        name="optimizers",
        title="Beyond the paper: six optimisers by depth",
        label=None,
        minutes={"cpu": 9},
        introduction="Vanilla TReLU networks of 50, 101 and 200 layers, each optimiser at the best "
        "of its learning rates, for the same number of epochs.",
        claims={
            "After the same number of epochs, no optimiser beats K-FAC at any depth": _leads,
            "At depth 200, K-FAC is the first to reach SGD's final accuracy, in seconds": _is_first,
            "At depth 200, every optimiser is within 2 points of its accuracy at depth 50": level(
                ("{o}", "200"), beside=("{o}", "50"), margin=2.0, o=OPTIMIZERS
            ),
        },
        cells=tuple(
            Cell(name, depth, {**vanilla(int(depth)), **TRELU, "optimizer": optimizer})
            for name, optimizer in OPTIMIZERS.items()
            for depth in DEPTHS
        ),
        charts=lambda results: [
            accuracy_by_column(results, OPTIMIZERS, DEPTHS, "depth"),
            accuracy_curves("Depth 200, by epoch", _deepest(results)),
            accuracy_curves("Depth 200, by seconds", _deepest(results), seconds=True),
        ],
        overrides={
            "cpu": ScaleOverride(
                keep=lambda cell: cell.column in ("50", "200"),
                options={"evaluate_every": 1},
                rates={
                    "sgd": (0.01, 0.003, 0.001),
                    "lars": (1.0, 0.3),
                    "kfac": (0.01, 0.003),
                    "muon": (0.003, 0.001),
                    "soap": (0.003, 0.001),
                    "adamw": (0.001, 0.0003),
                },
                seeds=1,
            )
        },
    )


def _leads(results: Results) -> Judgement:
    pairs = []
    for depth in DEPTHS:
        others = {n: c for n in OPTIMIZERS if n != "K-FAC" and (c := results.cell(n, depth))}
        if others:
            best = max(others, key=lambda name: others[name].rank)
            pairs.append((("K-FAC", depth), (best, depth)))
    return none_below(results, pairs)


def _deepest(results: Results) -> dict[str, Summary | None]:
    return {name: results.cell(name, DEPTHS[-1]) for name in OPTIMIZERS}


def _is_first(results: Results) -> Judgement:
    cells = {name: cell for name, cell in _deepest(results).items() if cell is not None}
    if "SGD" not in cells or "K-FAC" not in cells:
        return None, ""
    if math.isnan(cells["SGD"].mean):
        return None, "SGD diverged"
    goal = fmean(top1 for o in cells["SGD"].outcomes if (top1 := o.top1) is not None)
    seconds = {name: _seconds_to(cell, goal) for name, cell in cells.items()}
    words = ", ".join(
        f"{name} {'never' if math.isinf(t) else f'{t:.0f} s'}" for name, t in seconds.items()
    )
    return seconds["K-FAC"] <= min(seconds.values()) < math.inf, f"to {100 * goal:.1f} %: {words}"


def _seconds_to(cell: Summary, top1: float) -> float:
    curve = cell.outcomes[0].validation
    pairs = zip(curve.seconds, curve.top1, strict=True)
    return next((second for second, value in pairs if value >= top1), math.inf)


RESNET, VANILLA = "ResNet, BatchNorm", "vanilla, TReLU"
NETWORKS: dict[str, Options] = {
    RESNET: {"model": "wide_resnet16", "norm": "batch"},
    VANILLA: {**wide_vanilla(16), **TRELU},
}
SIZES = (1, 2, 8, 64)
ONE_CLASS, TWO_CLASSES = "8, of 1 class", "64, of 2 classes"
# Learning rates at the scale cpu: lower for smaller batches, about as the square root of the size.
# The smallest have one, to save time.
RATES: dict[str, dict[str, tuple[Option, ...]]] = {
    RESNET: {
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


def batch_sizes() -> Item:
    """Small batches, and batches of few classes.

    BatchNorm takes its statistics over a batch. With one image in it, or with images of one class,
    they are not those of the data, by which the network is evaluated. A network without
    normalisation does not know what a batch is. Where data cannot be mixed at will, as on devices
    and in private training, that decides what can be trained.
    """
    batches: dict[str, Options] = {
        **{str(size): {"batch_size": size} for size in SIZES},
        ONE_CLASS: {"batch_size": 8, "classes_per_batch": 1},
        TWO_CLASSES: {"batch_size": 64, "classes_per_batch": 2},
    }
    beats = {
        "one image": "1",
        "two images": "2",
        "64 images of two classes": TWO_CLASSES,
        "8 images of one class": ONE_CLASS,
    }
    return Item(
        name="batch_sizes",
        title="Beyond the paper: small batches, and batches of few classes",
        label=None,
        minutes={"cpu": 6},
        introduction="A Wide ResNet of 16 layers with BatchNorm against one without shortcuts and "
        "normalisation, both trained with AdamW for the same number of epochs: first with batches "
        "of 1 to 64 images, then with batches of 8 images of one class and of 64 images of two. "
        "At the scale cpu, there are 3 epochs on 1,024 images: 3,072 steps with the smallest "
        "batches and 48 with the largest. Batches of one and two images have one learning rate, "
        "the others the best of two or three.",
        claims={
            **{
                f"With batches of {images}, TReLU beats BatchNorm": wins(
                    (VANILLA, column), over=(RESNET, column)
                )
                for images, column in beats.items()
            },
            "TReLU is no worse with batches of one image than with batches of 64": level(
                (VANILLA, "1"), beside=(VANILLA, "64")
            ),
            "With batches of 64 images of any class, BatchNorm is no worse than TReLU": level(
                (RESNET, "64"), beside=(VANILLA, "64")
            ),
        },
        cells=tuple(
            Cell(row, column, {**network, **batch, "optimizer": "adamw"})
            for row, network in NETWORKS.items()
            for column, batch in batches.items()
        ),
        charts=lambda results: [_by_size(results)],
        # The batch sizes are those that the cells state.
        overrides={
            "full": ScaleOverride(batch=1.0, options={"data": "cifar10"}),
            "cpu": ScaleOverride(
                options={"train_size": 1024, "validation_size": 1000},
                epochs=3 / 90,
                batch=1.0,
                width=1 / 4,
                seeds=3,
                grid=lambda cell: {"lr": RATES[cell.row][cell.column]},
            ),
            "smoke": ScaleOverride(batch=1.0, options={"train_size": None}),
        },
    )


def _by_size(results: Results) -> Chart:
    ticks = tuple((float(size), str(size)) for size in SIZES)
    axis = Axis("batch size", SIZES[0], SIZES[-1], ticks, logarithmic=True)
    return replace(accuracy_by_column(results, NETWORKS, SIZES, axis.name), x=axis)


ALONE = "alone"
SHARE = Configuration().teacher_weight  # the default
TAUGHT = f"taught, share {SHARE:g}"


def distillation() -> Item:
    """A network without shortcuts that learns from a trained ResNet.

    A trained ResNet gives soft labels (Hinton, Vinyals & Dean, 2015), on which a network without
    shortcuts can be trained: `skipless train --teacher`.
    """
    training: Options = {"optimizer": "adamw", "batch_size": 64}
    resnet: Options = {**NETWORKS[RESNET], **training}
    vanilla: Options = {**NETWORKS[VANILLA], **training}
    teacher: Options = {**resnet, "lr": 0.01}  # the better one of the rates below
    # At the scale cpu, also a fifth of the images that the teacher saw, five times as often.
    few: Options = {**vanilla, "train_size": 512, "epochs": 450, "evaluate_every": 5}
    few_alone, few_taught = "alone, 512 images", f"{TAUGHT}, 512 images"
    shares = (0.5, 0.9, 1.0)  # of the teacher's labels in the loss
    on_all_images = lambda cell: "train_size" not in cell.run
    return Item(
        name="distillation",
        title="Beyond the paper: a network without shortcuts taught by a ResNet",
        label=None,
        minutes={"cpu": 3},
        introduction="A Wide ResNet of 16 layers with BatchNorm, and one without shortcuts and "
        "normalisation: trained on labels alone, or also on the soft labels of the ResNet of the "
        "same seed, at a temperature of 4, with a share of 0.5, 0.9 or 1 in the loss. All are "
        "trained with AdamW on the same images for the same number of epochs. At the scale cpu, "
        "the student is also trained on only 512 of the 2,560 images, for the same number of "
        "steps, with a teacher that was trained on all of them.",
        claims={
            f"A teacher with a share of {SHARE:g} improves the vanilla network": wins(
                (VANILLA, TAUGHT), over=(VANILLA, ALONE)
            ),
            "The teacher closes at least half of the student's gap to it": _closes_half_of_the_gap,
            f"No other share beats the default, {SHARE:g}": level(
                (VANILLA, TAUGHT),
                beside=(VANILLA, "taught, share {share:g}"),
                share=[share for share in shares if share != SHARE],
            ),
            "On a fifth of the teacher's images, the teacher improves the vanilla network": wins(
                (VANILLA, few_taught), over=(VANILLA, few_alone)
            ),
        },
        cells=(
            Cell(RESNET, ALONE, resnet),
            Cell(VANILLA, ALONE, vanilla),
            *(
                Cell(
                    VANILLA,
                    f"taught, share {share:g}",
                    {**vanilla, "teacher_weight": share},
                    teacher=teacher,
                )
                for share in shares
            ),
            Cell(VANILLA, few_alone, few),
            Cell(VANILLA, few_taught, few, teacher=teacher),
        ),
        charts=lambda results: [
            accuracy_curves(
                "Validation accuracy by epoch",
                {
                    RESNET: results.cell(RESNET, ALONE),
                    VANILLA: results.cell(VANILLA, ALONE),
                    f"{VANILLA}, {TAUGHT}": results.cell(VANILLA, TAUGHT),
                },
            )
        ],
        overrides={
            "full": ScaleOverride(keep=on_all_images, batch=1.0, options={"data": "cifar10"}),
            "cpu": ScaleOverride(
                options={"evaluate_every": 1},
                rates={"adamw": (0.01, 0.003)},
                batch=1.0,
                width=1 / 4,
                seeds=3,
            ),
            "smoke": ScaleOverride(keep=on_all_images, batch=1 / 4),
        },
    )


def _closes_half_of_the_gap(results: Results) -> Judgement:
    found = results.cells((RESNET, ALONE), (VANILLA, ALONE), (VANILLA, TAUGHT))
    if found is None:
        return None, ""
    teacher, alone, taught = found
    gap, gain = difference(teacher, alone), difference(taught, alone)
    return (
        gain.points >= gap.points / 2 > 0.0,
        f"gap to the teacher {gap}, of which it closes {gain}",
    )

"""Three items that are not in the paper: optimisers, batch sizes and teachers."""

import math
from dataclasses import replace
from statistics import fmean

from skipless.report.svg import Axis
from skipless.runs.configuration import Configuration
from skipless.runs.outcome import Outcome

from .claims import (
    NOT_RUN,
    Judgement,
    all_agree,
    difference,
    level,
    none_below,
    paired,
    wins,
)
from .item import Cell, Item, accuracy_by_column, accuracy_curves, cells
from .results import Results, Summary
from .scales import BATCH_NORM, CPU, CPU_OFTEN, FULL_CIFAR, RESNETS, SMOKE, VANILLA_TRELU, Options

OPTIMIZERS: dict[str, Options] = {
    name: {"optimizer": name.lower().replace("-", "")}
    for name in ("SGD", "LARS", "K-FAC", "Muon", "SOAP", "AdamW")
}
DEPTHS = {depth: RESNETS[depth] for depth in ("50", "101", "200")}


def optimizers() -> Item:
    """Six optimisers on vanilla TReLU networks of 50 to 200 layers, by epochs and by seconds.

    SGD, LARS and K-FAC are the paper's; Muon, SOAP and AdamW are more recent. Which of them trains
    networks without shortcuts has not been published.
    """
    return Item(
        title="Beyond the paper: six optimisers by depth",
        introduction="Vanilla TReLU networks of 50, 101 and 200 layers, each optimiser at the best "
        "of its learning rates, for the same number of epochs.",
        claims={
            "After the same number of epochs, no optimiser beats K-FAC at any depth": _leads,
            "At depth 200, K-FAC is the first to reach SGD's final accuracy, in seconds": _is_first,
            "At depth 200, every optimiser is within 2 points of its accuracy at depth 50": level(
                "{o} | 200", beside="{o} | 50", margin=2.0, o=OPTIMIZERS
            ),
        },
        cells=cells(dict.fromkeys(OPTIMIZERS, ()), DEPTHS, VANILLA_TRELU, OPTIMIZERS),
        charts=lambda results: [
            accuracy_by_column(results, OPTIMIZERS, DEPTHS, "depth"),
            accuracy_curves("Depth 200, by epoch", _deepest(results)),
            accuracy_curves("Depth 200, by seconds", _deepest(results), seconds=True),
        ],
        cpu=replace(CPU_OFTEN, keep=lambda row, column: column in ("50", "200"), trials=6, seeds=3),
    )


def _leads(results: Results) -> Judgement:
    """Judged against each other that learned: the best of several is often so by chance."""
    others = [(name, depth) for depth in DEPTHS for name in OPTIMIZERS if name != "K-FAC"]
    learned = [place for place in others if (cell := results.cell(*place)) and cell.trained]
    return none_below(results, [(("K-FAC", depth), (name, depth)) for name, depth in learned])


def _deepest(results: Results) -> dict[str, Summary | None]:
    return {name: results.cell(name, "200") for name in OPTIMIZERS}


def _is_first(results: Results) -> Judgement:
    """Whether K-FAC is the first to reach SGD's mean accuracy, in each seed."""
    found = {name: cell for name, cell in _deepest(results).items() if cell is not None}
    if "SGD" not in found or "K-FAC" not in found:
        return NOT_RUN
    goal = found["SGD"].mean / 100.0
    taken = {
        name: [seconds_to_accuracy(outcome, goal) for outcome in cell.outcomes]
        for name, cell in found.items()
    }
    means = {name: fmean(own) for name, own in taken.items()}
    timed = (f"{n} {'not always' if math.isinf(t) else f'{t:.0f} s'}" for n, t in means.items())
    words = f"to {100 * goal:.1f} %: {', '.join(timed)}"
    if not found["SGD"].trained:
        return "undecided", f"{words}; SGD learned nothing"
    own, *rest = taken.pop("K-FAC"), *taken.values()
    every = zip(own, zip(*rest, strict=False), strict=False)
    return all_agree([mine <= min(others) < math.inf for mine, others in every]), words


def seconds_to_accuracy(outcome: Outcome, goal: float) -> float:
    """The seconds of training after which a run reached an accuracy; infinity if it did not."""
    pairs = zip(outcome.validation.seconds, outcome.validation.top1, strict=True)
    return next((second for second, top1 in pairs if top1 >= goal), math.inf)


RESNET, PLAIN = "ResNet, BatchNorm", "vanilla, TReLU"
NETWORKS: dict[str, Options] = {RESNET: BATCH_NORM, PLAIN: VANILLA_TRELU}
BASE: Options = {"model": "wide_resnet16", "optimizer": "adamw"}
SIZES = (1, 2, 8, 64)
ONE_CLASS, TWO_CLASSES = "8, of 1 class", "64, of 2 classes"


def batch_sizes() -> Item:
    """Small batches, and batches of few classes.

    BatchNorm takes its statistics over a batch. With one image in it, or with images of one class,
    they are not those of the data. Where data cannot be mixed at will, as on devices and in private
    training, that decides what can be trained.
    """
    batches: dict[str, Options] = {
        **{str(size): {"batch_size": size} for size in SIZES},
        ONE_CLASS: {"batch_size": 8, "classes_per_batch": 1},
        TWO_CLASSES: {"batch_size": 64, "classes_per_batch": 2},
    }
    ticks = tuple((float(size), str(size)) for size in SIZES)
    axis = Axis("batch size", SIZES[0], SIZES[-1], ticks, logarithmic=True)
    beats = {
        "one image": "1",
        "two images": "2",
        "64 images of two classes": TWO_CLASSES,
        "8 images of one class": ONE_CLASS,
    }
    return Item(
        title="Beyond the paper: small batches, and batches of few classes",
        introduction="A Wide ResNet of 16 layers with BatchNorm against one without shortcuts and "
        "normalisation, both trained with AdamW for the same number of epochs: first with batches "
        "of 1 to 64 images, then with batches of 8 images of one class and of 64 images of two. "
        "At the scale cpu, there are 3 epochs on 4,096 images: 12,288 steps with the smallest "
        "batches and 192 with the largest.",
        claims={
            **{
                f"With batches of {images}, TReLU beats BatchNorm": wins(
                    f"{PLAIN} | {column}", over=f"{RESNET} | {column}"
                )
                for images, column in beats.items()
            },
            "TReLU is no worse with batches of one image than with batches of 64": level(
                f"{PLAIN} | 1", beside=f"{PLAIN} | 64"
            ),
            "With batches of 64 images of any class, BatchNorm is no worse than TReLU": level(
                f"{RESNET} | 64", beside=f"{PLAIN} | 64"
            ),
        },
        cells=cells(dict.fromkeys(NETWORKS, ()), batches, BASE, NETWORKS),
        charts=lambda results: [
            replace(accuracy_by_column(results, NETWORKS, SIZES, axis.name), x=axis)
        ],
        # The batch sizes are those that the cells state.
        full=FULL_CIFAR,
        cpu=replace(
            CPU,
            options={**CPU.options, "train_size": 4096},
            epochs=3 / 90,
            batch=1.0,
            width=1 / 4,
            least_epochs=1,
            trials=6,
            seconds=2e-5,
        ),
        smoke=replace(SMOKE, batch=1.0, options={**SMOKE.options, "train_size": None}),
    )


ALONE = "alone"
SHARE = Configuration().teacher_weight  # the default
TAUGHT = f"taught, share {SHARE:g}"


def distillation() -> Item:
    """A network without shortcuts that learns from a trained ResNet.

    A trained ResNet gives soft labels (Hinton, Vinyals & Dean, 2015), on which a network without
    shortcuts can be trained: `skipless train --teacher`.
    """
    resnet: Options = {**BASE, **NETWORKS[RESNET], "batch_size": 64}
    vanilla: Options = {**BASE, **NETWORKS[PLAIN], "batch_size": 64}
    teacher: Options = {**resnet, "lr": 0.005}
    # At the scale cpu, also a fifth of the images that the teacher saw, five times as often.
    few: Options = {**vanilla, "train_size": 512, "epochs": 450, "evaluate_every": 5}
    few_alone, few_taught = "alone, 512 images", f"{TAUGHT}, 512 images"
    # Of the teacher's labels in the loss.
    shares = {f"taught, share {share:g}": share for share in (0.5, 0.9, 1.0)}
    others = [name for name in shares if name != TAUGHT]
    on_all_images = lambda row, column: "512 images" not in column
    return Item(
        title="Beyond the paper: a network without shortcuts taught by a ResNet",
        introduction="A Wide ResNet of 16 layers with BatchNorm, and one without shortcuts and "
        "normalisation: trained on labels alone, or also on the soft labels of the ResNet of the "
        "same seed, at a temperature of 4, with a share of 0.5, 0.9 or 1 in the loss. All are "
        "trained with AdamW on the same images for the same number of epochs. At the scale cpu, "
        "the student is also trained on only 512 of the 2,560 images, five times as often, "
        "with a teacher that was trained on all of them.",
        claims={
            f"A teacher with a share of {SHARE:g} improves the vanilla network": wins(
                f"{PLAIN} | {TAUGHT}", over=f"{PLAIN} | {ALONE}"
            ),
            "The teacher closes at least half of the student's gap to it": _closes_half_of_the_gap,
            f"No other share beats the default, {SHARE:g}": level(
                f"{PLAIN} | {TAUGHT}", beside=f"{PLAIN} | {{share}}", share=others
            ),
            "On a fifth of the teacher's images, the teacher improves the vanilla network": wins(
                f"{PLAIN} | {few_taught}", over=f"{PLAIN} | {few_alone}"
            ),
        },
        cells=(
            Cell(RESNET, ALONE, resnet),
            Cell(PLAIN, ALONE, vanilla),
            *(
                Cell(PLAIN, name, {**vanilla, "teacher_weight": share}, teacher=teacher)
                for name, share in shares.items()
            ),
            Cell(PLAIN, few_alone, few),
            Cell(PLAIN, few_taught, few, teacher=teacher),
        ),
        charts=lambda results: [
            accuracy_curves(
                "Test accuracy by epoch",
                {
                    RESNET: results.cell(RESNET, ALONE),
                    PLAIN: results.cell(PLAIN, ALONE),
                    f"{PLAIN}, {TAUGHT}": results.cell(PLAIN, TAUGHT),
                },
            )
        ],
        full=replace(FULL_CIFAR, keep=on_all_images),
        cpu=replace(
            CPU_OFTEN,
            options={**CPU_OFTEN.options, "train_size": 2560},
            batch=1.0,
            width=1 / 4,
            trials=6,
            seconds=2e-5,
        ),
        smoke=replace(SMOKE, keep=on_all_images, batch=1 / 4),
    )


def _closes_half_of_the_gap(results: Results) -> Judgement:
    found = results.cells((RESNET, ALONE), (PLAIN, ALONE), (PLAIN, TAUGHT))
    if found is None:
        return NOT_RUN
    teacher, alone, taught = found
    gap, gain = difference(teacher, alone), difference(taught, alone)
    seeds = teacher.by_seed.keys() & alone.by_seed.keys() & taught.by_seed.keys()
    if gap is None or gain is None or not seeds:
        return NOT_RUN
    words = f"gap to the teacher {gap}, of which it closes {gain}"
    if gap.exceeds(0.0) != "holds":
        return "undecided", f"{words}: there is no clear gap"
    own, before, best = taught.by_seed, alone.by_seed, teacher.by_seed
    more = paired([own[s] - (before[s] + best[s]) / 2.0 for s in sorted(seeds)])
    return more.exceeds(0.0), words

"""The paper's figures of trained networks, one function each: see `tables`."""

import math
from dataclasses import replace
from functools import partial
from statistics import fmean

from skipless.runs.outcome import Outcome

from .claims import (
    LEVEL,
    NOT_RUN,
    Judgement,
    Pair,
    all_above,
    all_agree,
    judge_all,
    level,
    none_below,
    paired,
    wins,
    word,
)
from .item import Item, accuracy_by_column, accuracy_curves, cells
from .results import Results, half_width
from .scales import CPU, CPU_OFTEN, FULL_CIFAR, NETWORKS, OPTIMIZERS, RESNETS, Options

NEARLY = 2.0  # points of training accuracy that count as the same
METHODS = {name: NETWORKS[name] for name in ("EOC", "TAT")}


def figure1() -> Item:
    """Vanilla networks by depth, EOC against TAT, with K-FAC.

    The paper: TAT keeps its accuracy with depth, EOC loses. The figure's numbers are not printed;
    those at depths 50 and 101 are also in table 5.
    """
    paper = {"EOC": (72.6, 71.8, None, None), "TAT": (74.6, 74.2, None, None)}
    return Item(
        title="Figure 1: vanilla networks by depth",
        label="fig:fig1",
        introduction="Networks without shortcuts and normalisation, with ReLU on the edge of chaos "
        "(EOC) and with TReLU (TAT), trained with K-FAC. Depths 152 and 200 are a guess: the "
        "paper's text gives only 50 and 101.",
        claims={
            "At depth 200, TAT is within 2 points of its accuracy at depth 50": level(
                "TAT | 200", beside="TAT | 50", margin=2.0
            ),
            "EOC falls with depth: it loses more than 10 points from 50 to 200": wins(
                "EOC | 50", over="EOC | 200", margin=10.0, collapse=True
            ),
            "TAT beats EOC at every depth": wins("TAT | {d}", over="EOC | {d}", d=RESNETS),
        },
        cells=cells(paper, RESNETS, OPTIMIZERS["K-FAC"], METHODS),
        charts=lambda results: [accuracy_by_column(results, METHODS, RESNETS, "depth")],
        cpu=replace(CPU, keep=lambda row, column: column != "152"),
    )


def figure3() -> Item:
    """Training speed of K-FAC and SGD, with a cosine schedule, up to 360 epochs.

    The paper: SGD catches up with K-FAC, but needs just over twice the epochs.
    """
    lengths: dict[str, Options] = {str(epochs): {"epochs": epochs} for epochs in (90, 180, 360)}
    base = {**RESNETS["50"], **NETWORKS["TAT"], "schedule": "cosine"}
    rows: dict[str, Options] = {
        "K-FAC": {**OPTIMIZERS["K-FAC"], "batch_size": 1024},
        "SGD": {**OPTIMIZERS["SGD"], "batch_size": 512},
    }
    return Item(
        title="Figure 3: K-FAC against SGD by epochs",
        label="fig:optimizer",
        introduction="The vanilla TReLU network of 50 layers, trained for 90, 180 or 360 epochs "
        "with a cosine schedule. SGD has batches of 512, K-FAC of 1,024 (at the scale cpu 64 and "
        "128).",
        claims={
            "K-FAC needs fewer epochs than SGD to reach the same training loss": _is_faster,
            "K-FAC beats SGD after 90 epochs": wins("K-FAC | 90", over="SGD | 90"),
            "With half of SGD's 360 epochs, K-FAC is no worse": level(
                "K-FAC | 180", beside="SGD | 360"
            ),
        },
        cells=cells(dict.fromkeys(rows, ()), lengths, base, rows),
        charts=lambda results: [
            accuracy_by_column(results, rows, lengths, "epochs (of the paper)"),
            accuracy_curves(
                "Test accuracy, 180 epochs (of the paper)",
                {name: results.cell(name, "180") for name in rows},
            ),
        ],
        cpu=replace(
            CPU_OFTEN,
            keep=lambda row, column: (row, column) != ("K-FAC", "360"),
            epochs=1 / 18,
        ),
    )


def _is_faster(results: Results) -> Judgement:
    """Whether K-FAC has the training loss that SGD ends with in fewer epochs, seed by seed."""
    judged = []
    runs = (results.cells(("SGD", epochs), ("K-FAC", epochs)) for epochs in ("90", "180", "360"))
    for sgd, kfac in filter(None, runs):
        if not sgd.trained:
            judged.append(("undecided", "SGD learned nothing"))
            continue
        seeds = [dict(zip(cell.seeds, cell.outcomes, strict=True)) for cell in (sgd, kfac)]
        pairs = [(own, seeds[1][seed]) for seed, own in seeds[0].items() if seed in seeds[1]]
        goals = [(own, other, own.train_loss) for own, other in pairs if own.train_loss is not None]
        if not goals:
            continue
        taken = [epochs_to_loss(other, goal) for _, other, goal in goals]
        whole = [own.training.epochs[-1] for own, _, _ in goals]
        mean = "never" if math.isinf(sum(taken)) else f"{fmean(taken):.1f}"
        words = f"{mean} instead of {fmean(whole):.0f}, {len(goals)} seeds"
        judged.append((all_agree([t < w for t, w in zip(taken, whole, strict=True)]), words))
    verdict, evidence = judge_all(judged)
    return verdict, evidence and f"Epochs to the training loss that SGD ends with: {evidence}"


def epochs_to_loss(outcome: Outcome, loss: float) -> float:
    """The first epoch whose mean training loss is that low; infinity if none is.

    The mean is over the lines of the journal in the epoch that ends there, as is `train_loss`.
    """
    curve = outcome.training
    for epoch in curve.epochs:
        own = [v for e, v in zip(curve.epochs, curve.loss, strict=True) if epoch - 1 < e <= epoch]
        if epoch >= 1 and sum(own) / len(own) <= loss:
            return epoch
    return math.inf


def figure5() -> Item:
    """Wide ResNets without shortcuts on CIFAR-10, by depth.

    The paper: from depth 100 to 304, EOC drops dramatically, and TAT stays as it is. The training
    is that of appendix E.2.
    """
    depths = {str(d): {"model": f"wide_resnet{d}"} for d in (100, 154, 202, 250, 304)}
    training = {
        "epochs": 200,
        "schedule": "step",
        "marks": "75/200,150/200",
        "kfac_preset": "cifar10",
    }
    base: Options = {**OPTIMIZERS["K-FAC"], **training}
    return Item(
        title="Figure 5: CIFAR-10, Wide ResNets without shortcuts by depth",
        label="fig:cifar",
        introduction="Wide ResNets without shortcuts and normalisation, with ReLU (EOC) and TReLU "
        "(TAT), trained with K-FAC on CIFAR-10. All depths between 100 and 304 are a guess.",
        claims={
            "TAT beats EOC at every depth": wins("TAT | {d}", over="EOC | {d}", d=depths),
            "EOC drops with depth": lambda results: all_above(
                results, _ends(results, "EOC"), collapse=True
            ),
            "TAT at the largest depth is within 2 points of its accuracy at the smallest": (
                lambda results: none_below(
                    results, [(last, first) for first, last in _ends(results, "TAT")], margin=2.0
                )
            ),
        },
        cells=cells(dict.fromkeys(METHODS, ()), depths, base, METHODS),
        charts=lambda results: [accuracy_by_column(results, METHODS, depths, "depth")],
        full=FULL_CIFAR,
        cpu=replace(
            CPU,
            keep=lambda row, column: column in ("100", "202"),
            options={**CPU.options, "data": "cifar10", "image_size": 16, "train_size": 10_000},
            epochs=1 / 20,
            width=1 / 4,
            trials=5,
            seeds=3,
            seconds=2e-5,
        ),
    )


def _ends(results: Results, method: str) -> list[Pair]:
    """A method's cells at the smallest and the largest depth that was run, if these differ."""
    depths = sorted({int(trial.column) for trial in results.trials})
    return [((method, str(depths[0])), (method, str(depths[-1])))] if len(depths) > 1 else []


def figure6() -> Item:
    """K-FAC with its curvature updated less often, by steps and by seconds.

    The paper: a step takes 2.5 times that of SGD when the curvature is updated every step and
    inverted every 50, and 1.25 times with periods of 10 and 200, at almost no loss of accuracy.
    """
    often, seldom, column = "K-FAC (1, 50)", "K-FAC (10, 200)", "accuracy"
    kfac = lambda curvature, inverse: {
        "optimizer": "kfac",
        "kfac_curvature_period": curvature,
        "kfac_inverse_period": inverse,
    }
    base = {**RESNETS["50"], **NETWORKS["TAT"]}
    rows = {"SGD": OPTIMIZERS["SGD"], often: kfac(1, 50), seldom: kfac(10, 200)}
    best = lambda results: {row: results.cell(row, column) for row in rows}
    return Item(
        title="Figure 6: K-FAC with fewer updates of the curvature",
        label="fig:K-FAC_speed",
        introduction="The vanilla TReLU network of 50 layers with K-FAC. Its curvature is updated "
        "every step and inverted every 50 steps, or every 10 and every 200.",
        claims={
            "Updating less often does not cost accuracy": level(
                f"{seldom} | {column}", beside=f"{often} | {column}"
            ),
            "Updating less often makes a step at least a quarter cheaper": partial(
                _is_cheaper, seldom=seldom, often=often
            ),
        },
        cells=cells(dict.fromkeys(rows, ()), {column: {}}, base, rows),
        charts=lambda results: [
            accuracy_curves("Test accuracy by epoch", best(results)),
            accuracy_curves("Test accuracy by seconds", best(results), seconds=True),
        ],
        # The rows differ in their periods, which they state.
        cpu=CPU_OFTEN,
    )


def _is_cheaper(results: Results, seldom: str, often: str) -> Judgement:
    """Judges by the fastest run of each row, which others disturb least."""
    fastest: dict[str, float] = {}
    for trial in results.trials:
        if not trial.outcome.diverged and (seconds := trial.outcome.seconds) is not None:
            fastest[trial.row] = min(seconds, fastest.get(trial.row, math.inf))
    if not {"SGD", often, seldom} <= fastest.keys():
        return NOT_RUN
    paper = {often: 2.5, seldom: 1.25}
    ratios = {row: fastest[row] / fastest["SGD"] for row in paper}
    words = ", ".join(f"{row} {ratio:.2f} (paper {paper[row]})" for row, ratio in ratios.items())
    return word(ratios[seldom] < 0.75 * ratios[often]), f"seconds of a step over SGD's: {words}"


def figure7() -> Item:
    """The training accuracy of figure 1's networks.

    The paper: on ImageNet, EOC fits the training images as well as TAT, so that TAT is better at
    generalising and not at optimising. At the scale cpu there are a quarter of the images, four
    times as often, as the claim is about networks that have had the time to fit them.
    """
    validated = figure1()
    return replace(
        validated,
        title="Figure 7: training accuracy by depth",
        label="fig:fig1_train",
        introduction="Training accuracy of the networks of figure 1, each with the setting of the "
        "best accuracy on held-out images. At the scale cpu, they see 5,000 images 40 times.",
        claims={"EOC reaches the training accuracy of TAT at every depth": _eoc_fits_as_well},
        cells=tuple(replace(cell, paper=None) for cell in validated.cells),
        format_cell=lambda cell: f"{fmean(cell.train_accuracies.values()):.1f}",
        charts=lambda results: [
            accuracy_by_column(
                results,
                METHODS,
                RESNETS,
                "depth",
                title="Training accuracy",
                measure=lambda cell: (
                    fmean(cell.train_accuracies.values()),
                    half_width(list(cell.train_accuracies.values())),
                ),
            )
        ],
        cpu=replace(
            CPU,
            keep=lambda row, column: column in ("50", "101"),
            options={**CPU.options, "train_size": 5000, "evaluate_every": 40},
            epochs=4 / 9,
            least_epochs=8,
            trials=5,
            seeds=3,
        ),
    )


def _eoc_fits_as_well(results: Results) -> Judgement:
    gaps = {}
    for depth in RESNETS:
        if found := results.cells(("EOC", depth), ("TAT", depth)):
            eoc, tat = (cell.train_accuracies for cell in found)
            if seeds := [seed for seed in eoc if seed in tat]:
                gap = paired([eoc[seed] - tat[seed] for seed in seeds])
                gaps[f"depth {depth}: EOC {fmean(eoc.values()):.1f} ({gap} from TAT)"] = gap
    # As for pairs of cells, one of several depths fails at a part of the level.
    return judge_all(
        [(gap.exceeds(-NEARLY, LEVEL / len(gaps)), said) for said, gap in gaps.items()]
    )

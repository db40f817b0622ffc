"""Networks trained side by side: their results as a table, and in words that follow the numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from skipless.record import Record

from .c_maps import CMapCurve
from .tables import table

HEADER = (
    "network", "shortcuts", "normalised", "parameters", "best rate", "training", "validation",
    "seconds",
)  # fmt: skip

# The best of a grid and the end of its record are one measurement, but one may have been printed.
_SAME_ACCURACY = 1e-6

# From these c values on (11 and 60 degrees), the words call two outputs almost identical, or alike.
_ALMOST_IDENTICAL = 0.98
_ALIKE = 0.5


@dataclass(frozen=True)
class Contestant:
    """One network of a comparison: what it is, its best run, and how every learning rate ended.

    `grid` gives the last validation top-1 of every run by learning rate, NaN for one that diverged;
    `record` is the record of the best of them, and `seconds` the time that this run took. All
    accuracies are fractions. `curve` is None where no C map was computed.
    """

    label: str
    description: str
    shortcuts: bool
    normalisation: bool
    parameters: int
    curve: CMapCurve | None
    record: Record
    grid: Mapping[float, float]
    seconds: float

    def __post_init__(self) -> None:
        if not self.grid or any(rate <= 0 for rate in self.grid):
            raise ValueError(
                f"{self.label!r} has the learning rates {sorted(self.grid)}. "
                "Give at least one run, and only rates above zero."
            )
        if any(not 0 <= value <= 1 for value in self.grid.values() if not math.isnan(value)):
            raise ValueError(
                f"{self.label!r} has the accuracies {sorted(self.grid.values())}. "
                "Give them as fractions, from 0 to 1."
            )
        recorded = last(self.record, "validation", "top1")
        if self.learned and not abs(recorded - self.accuracy) <= _SAME_ACCURACY:
            raise ValueError(
                f"{self.label!r} reached {self.accuracy:g} at its best learning rate, but the "
                f"record in {self.record.folder} ends at {recorded:g}. Give the best run's record."
            )

    @property
    def learned(self) -> bool:
        """Whether any run ended without diverging."""
        return not all(math.isnan(value) for value in self.grid.values())

    @property
    def best_rate(self) -> float:
        """The learning rate of the best run, the smallest of several; NaN if all diverged."""
        best = self.accuracy
        return min((r for r, value in self.grid.items() if value == best), default=math.nan)

    @property
    def accuracy(self) -> float:
        """The validation accuracy of the best run; NaN if all diverged."""
        return max((v for v in self.grid.values() if not math.isnan(v)), default=math.nan)

    @property
    def training_accuracy(self) -> float:
        """The last training accuracy of the best run; NaN if all runs diverged."""
        return last(self.record, "train", "accuracy") if self.learned else math.nan


@dataclass(frozen=True)
class Comparison:
    """Networks trained on the same images; `facts` say how, when and where."""

    title: str
    introduction: str
    contestants: Sequence[Contestant]
    validation_images: int
    facts: Mapping[str, str]

    def __post_init__(self) -> None:
        if not self.contestants or self.validation_images < 1:
            raise ValueError(
                f"A comparison was asked for of {len(self.contestants)} networks on "
                f"{self.validation_images} images. Give at least one of each."
            )


def last(record: Record, kind: str, name: str) -> float:
    """The last value of a number in a record; NaN if it was never measured."""
    return next(reversed(record.series(kind, name)[1]), math.nan)


def percent(fraction: float) -> str:
    """A fraction in percent, with one digit behind the point.

    >>> percent(0.9722), percent(float("nan"))
    ('97.2%', 'diverged')
    """
    return "diverged" if math.isnan(fraction) else f"{100 * fraction:.1f}%"


def results(comparison: Comparison) -> list[list[str]]:
    """One row of text under `HEADER` for each network."""
    return [
        [
            one.label,
            "yes" if one.shortcuts else "no",
            "yes" if one.normalisation else "no",
            f"{one.parameters:,}",
            f"{one.best_rate:g}" if one.learned else "-",
            percent(one.training_accuracy),
            percent(one.accuracy),
            f"{one.seconds:.0f}",
        ]
        for one in comparison.contestants
    ]


def results_table(comparison: Comparison) -> str:
    """The results for a terminal, as an aligned table of text."""
    return table(HEADER, results(comparison))


def conclusion(comparison: Comparison) -> str:
    """Who came first and by how much, and whether that is more than chance, in sentences."""
    ranked = sorted(
        (one for one in comparison.contestants if one.learned), key=lambda one: -one.accuracy
    )
    diverged = [one.label for one in comparison.contestants if not one.learned]
    sentences = []
    if ranked:
        sentences += _ranking(ranked, comparison.validation_images)
    if diverged:
        sentences.append(f"{_listed(diverged)} diverged at every learning rate tried.")
    return " ".join(sentences)


def _ranking(ranked: Sequence[Contestant], images: int) -> list[str]:
    """The order of the networks that learned; equal are those whose accuracies print equally."""
    best = ranked[0]
    first = [one for one in ranked if percent(one.accuracy) == percent(best.accuracy)]
    behind = ranked[len(first) :]
    right = f"{percent(best.accuracy)} of the {images:,} validation images right"
    names = _listed([one.label for one in first])
    if len(first) > 1:
        sentence = f"{names} come first together: each gets {right}"
    else:
        sentence = f"{names} {'comes first: it gets' if behind else 'gets'} {right}"
    gaps = [
        f"{_points(best, one)} {'percentage points ' if number == 0 else ''}more than {one.label} "
        f"({percent(one.accuracy)})"
        for number, one in enumerate(behind)
    ]
    sentences = [f"{sentence}{', ' if gaps else ''}{_listed(gaps)}."]
    close = [one.label for one in behind if best.accuracy - one.accuracy <= chance(best, images)]
    if close:
        sentences.append(
            f"On so few images, a gap of up to {100 * chance(best, images):.1f} points can be "
            f"chance, so {_listed([*(one.label for one in first), *close])} are about level."
        )
    return sentences


def chance(best: Contestant, images: int) -> float:
    """Two standard errors of the difference of two networks that are both as good as `best`.

    Their answers count as independent, n images with the chance p each: 2 √(2 p (1 - p) / n). An
    accuracy of exactly 1 is read as half an image less, since it does not mean that p = 1.
    """
    p = min(best.accuracy, 1 - 0.5 / images)
    return 2 * math.sqrt(2 * p * (1 - p) / images)


def _points(best: Contestant, other: Contestant) -> str:
    """The gap as the printed accuracies show it."""
    gap = round(100 * best.accuracy, 1) - round(100 * other.accuracy, 1)
    return f"{gap:.1f}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def fate_of_two_images(curve: CMapCurve) -> str:
    """What a network does to two unrelated images before training, in words, from its C map."""
    unrelated = c_of_unrelated(curve)
    farthest = float(np.min(curve.global_map))
    if unrelated >= _ALMOST_IDENTICAL:
        outcome, verdict = "almost identical", "can hardly tell one image from another"
    elif unrelated >= _ALIKE:
        outcome, verdict = "alike, but still distinct", "can still tell images apart"
    else:
        outcome, verdict = "still far from each other", "tells images apart with ease"
    return (
        f"two unrelated images enter at c = 0, {degrees(0.0)} apart; behind "
        f"{curve.layers.size - 1} layers they come out at c = {unrelated:.3f}, "
        f"{degrees(unrelated)} apart, {outcome}. Whatever two images enter, their outputs are at "
        f"most {degrees(farthest)} apart: the network {verdict}."
    )


def c_of_unrelated(curve: CMapCurve) -> float:
    """The c value with which two unrelated images leave a network, to three digits."""
    return round(float(np.interp(0.0, curve.c, curve.global_map)), 3) + 0.0  # and never -0.0


def degrees(c: float) -> str:
    """The angle between two vectors whose cosine is `c`.

    >>> degrees(0.0), degrees(-1.0)
    ('90°', '180°')
    """
    return f"{math.degrees(math.acos(min(1.0, max(-1.0, c)))):.0f}°"

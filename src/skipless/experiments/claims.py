"""Judging claims: differences of accuracies, in points, with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .outcome import Outcome
from .results import Results, Summary

Place = tuple[str, str]  # row and column of a cell
Pair = tuple[Place, Place]
Judgement = tuple[bool | None, str]

# A difference within this many standard errors is called noise. One seed has none: there, this many
# points, which is about right for K-FAC, and too little for SGD on vanilla networks.
SURE = 2.0
USUAL_NOISE = 2.0


class Difference(NamedTuple):
    """How many points one cell is above another, and the standard error of that."""

    points: float
    error: float

    @property
    def noise(self) -> float:
        """What a difference by chance may amount to."""
        return USUAL_NOISE if math.isnan(self.error) else SURE * self.error

    def __str__(self) -> str:
        spread = "" if math.isnan(self.error) else f" ± {self.error:.1f}"
        return f"{self.points:+.1f}{spread}"


def difference(better: Summary, worse: Summary) -> Difference:
    """`better` minus `worse`; NaN where one of them diverged.

    Where only one of them has a standard error, the other is taken to have no smaller one.
    """
    errors = [cell.error for cell in (better, worse) if not math.isnan(cell.error)]
    error = math.hypot(better.error, worse.error)
    if len(errors) == 1:
        error = max(math.sqrt(2.0) * errors[0], USUAL_NOISE / SURE)
    return Difference(better.mean - worse.mean, error)


def smaller(gap: Difference, other: Difference) -> bool:
    """Whether a gap is smaller than another by more than noise; one below zero is none."""
    less = max(other.points, 0.0) - max(gap.points, 0.0)
    return less > Difference(less, math.hypot(gap.error, other.error)).noise


def cells(results: Results, places: Sequence[Place]) -> list[Summary] | None:
    """The cells at all places; None if one of them was not run."""
    found = [results.cell(*place) for place in places]
    return [cell for cell in found if cell is not None] if all(found) else None


def all_above(results: Results, pairs: Sequence[Pair], margin: float = 0.0) -> Judgement:
    """Whether the first of each pair is above the second, by more than a margin and noise."""
    return _each(results, pairs, lambda gap: gap.points > max(margin, gap.noise))


def none_below(results: Results, pairs: Sequence[Pair], margin: float | None = None) -> Judgement:
    """Whether the first of no pair is below the second by more than a margin, or else noise."""

    def level(gap: Difference) -> bool:
        return gap.points >= -(gap.noise if margin is None else margin)

    return _each(results, pairs, level)


def _each(
    results: Results, pairs: Sequence[Pair], judge: Callable[[Difference], bool]
) -> Judgement:
    """The judgement on all pairs of which both cells were run, and how many these are.

    Where the first cell of a pair diverged, nothing good can be said of it; where only the second
    did, the first is better.
    """
    told, holds = [], []
    for pair in pairs:
        if (found := cells(results, pair)) is None:
            continue
        gap = difference(*found)
        if math.isnan(gap.points):
            holds.append(not math.isnan(found[0].mean))
            told.append(f"{_named(pair[0])} {found[0]}, {_named(pair[1])} {found[1]}")
        else:
            holds.append(judge(gap))
            told.append(f"{_named(pair[0])} {found[0]}, {_named(pair[1])} {found[1]} ({gap})")
    if not holds:
        return None, ""
    return all(holds), "; ".join(told) + part(len(holds), len(pairs))


def part(run: int, of: int) -> str:
    """A remark on settings that were not run.

    >>> part(4, 4), part(2, 4)
    ('', ' (2 of 4 settings were run)')
    """
    return "" if run == of else f" ({run} of {of} settings were run)"


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


def _named(place: Place) -> str:
    return ", ".join(word for word in place if word)

"""What decides whether a claim holds: paired t tests over seeds, with three answers.

The accuracies of two cells are compared seed by seed. A statement about their mean difference holds
if the one-sided 95 % confidence bound is on the right side of the margin, does not hold if the
opposite bound is on the wrong side, and is undecided otherwise. A claim about several pairs of
cells holds if it holds for each, and does not if it fails for one, at a level divided by the number
of pairs. A seed that diverged counts as an accuracy of 0.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import NamedTuple, TypeVar

from scipy import stats

from skipless.report.sections import Word, word

from .results import CellKey, Results, Summary

Pair = tuple[CellKey, CellKey]
Judgement = tuple[Word, str]  # the verdict, and the evidence
Judge = Callable[[Results], Judgement]
T = TypeVar("T")

LEVEL = 0.05  # of each test
MARGIN = 1.0  # points within which two cells count as level
NOT_RUN: Judgement = "not run", ""


class Difference(NamedTuple):
    """The mean of paired differences in points, and their standard error; NaN for one seed."""

    points: float
    error: float
    seeds: int

    def bound(self, level: float) -> float:
        """How far the mean is from the end of its one-sided confidence interval."""
        if self.seeds < 2:
            return math.inf
        return float(stats.t.ppf(1.0 - level, self.seeds - 1)) * self.error

    def exceeds(self, margin: float, level: float = LEVEL, *, above: float = LEVEL) -> Word:
        """Whether the true difference is more than `margin`, as far as the seeds can tell.

        That it is not is said at `level`, and that it is at the level `above`.
        """
        if self.points - self.bound(above) > margin:
            return "holds"
        return "does not hold" if self.points + self.bound(level) < margin else "undecided"

    def __str__(self) -> str:
        half = 0.0 if self.seeds < 2 else float(stats.t.ppf(0.975, self.seeds - 1)) * self.error
        return f"{self.points:+.1f}" + (f" ± {half:.1f}" if self.seeds > 1 else ", 1 seed")


def paired(differences: Sequence[float]) -> Difference:
    """The mean of `differences`, one for each seed.

    >>> paired([1.0, 3.0])
    Difference(points=2.0, error=1.0, seeds=2)
    """
    count = len(differences)
    error = stdev(differences) / math.sqrt(count) if count > 1 else math.nan
    return Difference(fmean(differences), error, count)


def difference(better: Summary, worse: Summary) -> Difference | None:
    """`better` minus `worse`, seed by seed; None if they have no seed in common."""
    seeds = [seed for seed in better.by_seed if seed in worse.by_seed]
    if not seeds:
        return None
    return paired([better.by_seed[seed] - worse.by_seed[seed] for seed in seeds])


def all_agree(answers: Sequence[bool]) -> Word:
    """The verdict on what was seen in each seed: that all agree is too much for chance, with five.

    >>> all_agree([True] * 5), all_agree([True] * 4), all_agree([False] * 5)
    ('holds', 'undecided', 'does not hold')
    """
    unanimous = len(set(answers)) == 1 and 0.5 ** len(answers) <= LEVEL
    return word(answers[0]) if unanimous else "undecided"


def combine(words: Sequence[Word]) -> Word:
    """The verdict on a claim that is made of several: each must hold."""
    for verdict in ("does not hold", "undecided"):
        if verdict in words:
            return verdict
    return "holds" if words else "not run"


def wins(
    better: str, *, over: str, margin: float = 0.0, collapse: bool = False, **names: Iterable
) -> Judge:
    """Judges whether one cell is above another, by more than a margin.

    Places are "row | column", in which {name} stands for each of `names` in turn; {d} are the
    depths of most tables, {o} their optimisers. If the other cell learned nothing, that is
    undecided, unless its `collapse` is what is claimed.
    """
    return partial(
        all_above, pairs=expand_pairs(better, over, **names), margin=margin, collapse=collapse
    )


def level(one: str, *, beside: str, margin: float = MARGIN, **names: Iterable) -> Judge:
    """Judges whether one cell is not below another by more than a margin."""
    return partial(none_below, pairs=expand_pairs(one, beside, **names), margin=margin)


def narrows(words: str, one: str, other: str, **names: Iterable) -> Judge:
    """Judges whether the lead of one cell over another is smaller with the second of `names`.

    In `words`, {0} and {1} stand for the two leads.
    """

    def judge(results: Results) -> Judgement:
        found = [results.cells(*pair) for pair in expand_pairs(one, other, **names)]
        if None in found:
            return NOT_RUN
        cells = [cell for both in found if both for cell in both]
        gaps = [difference(*cells[:2]), difference(*cells[2:])]
        seeds = set.intersection(*(set(cell.by_seed) for cell in cells))
        if None in gaps or not seeds:
            return NOT_RUN
        first, first_other, second, second_other = (cell.by_seed for cell in cells)
        less = paired([
            (first[s] - first_other[s]) - (second[s] - second_other[s]) for s in sorted(seeds)
        ])  # fmt: skip
        if lost := _untrained(cells):
            return "undecided", f"{words.format(*gaps)}; {lost}"
        return less.exceeds(0.0), words.format(*gaps)

    return judge


def within(one: str, other: str, margin: float, **names: Iterable) -> Judge:
    """Judges whether two cells differ by no more than a margin, in either direction."""

    def judge(results: Results) -> Judgement:
        pairs = expand_pairs(one, other, **names)
        swapped = [(other, one) for one, other in pairs]
        both = [none_below(results, own, margin) for own in (pairs, swapped)]
        return combine([verdict for verdict, _ in both if verdict != "not run"]), both[0][1]

    return judge


def expand_pairs(one: str, other: str, **names: Iterable) -> list[Pair]:
    """Both places for every combination of the `names` in them.

    >>> expand_pairs("{d}, TAT | {c}", "{d}, EOC | {c}", c=["tanh"])[1]
    (('101, TAT', 'tanh'), ('101, EOC', 'tanh'))
    """
    known = {"d": (50, 101), "o": ("K-FAC", "SGD"), **names}
    used = {name: own for name, own in known.items() if f"{{{name}}}" in one + other}
    every = itertools.product(*used.values())
    chosen = [dict(zip(used, values, strict=True)) for values in every]
    return [(_place(one, own), _place(other, own)) for own in chosen]


def _place(words: str, names: Mapping[str, object]) -> CellKey:
    row, column = words.format(**names).split(" | ")
    return row, column


def all_above(
    results: Results, pairs: Sequence[Pair], margin: float = 0.0, *, collapse: bool = False
) -> Judgement:
    """Whether the first of each pair is above the second by more than a margin."""

    def judge(gap: Difference, other: Summary, level: float) -> Word:
        found = gap.exceeds(margin, level)
        return "undecided" if found == "holds" and not (collapse or other.trained) else found

    return _judge_pairs(results, pairs, judge)


def none_below(results: Results, pairs: Sequence[Pair], margin: float = MARGIN) -> Judgement:
    """Whether the first of no pair is below the second by more than a margin."""

    def judge(gap: Difference, other: Summary, level: float) -> Word:
        found = gap.exceeds(-margin, level)
        return "undecided" if found == "holds" and not other.trained else found

    return _judge_pairs(results, pairs, judge)


def _judge_pairs(
    results: Results, pairs: Sequence[Pair], judge: Callable[[Difference, Summary, float], Word]
) -> Judgement:
    """The judgement on all pairs of which both cells were run."""
    run = [(pair, cells) for pair in pairs if (cells := results.cells(*pair)) is not None]
    compared = [(*own, gap) for own in run if (gap := difference(*own[1])) is not None]
    judged = []
    for (one, other), cells, gap in compared:
        verdict = judge(gap, cells[1], LEVEL / len(compared))
        lost = _untrained(cells)
        said = f"{', '.join(one)} {cells[0]}, {', '.join(other)} {cells[1]} ({gap})"
        judged.append((verdict, f"{said}, {lost}" if lost else said))
    verdict, evidence = judge_all(judged, len(pairs))
    if verdict == "holds" and len(judged) < len(pairs) and not results.complete:
        verdict = "undecided"  # the rest may say otherwise
    return verdict, evidence


def _untrained(cells: Iterable[Summary]) -> str:
    return "" if all(cell.trained for cell in cells) else "where one of them learned nothing"


def judge_all(judged: Sequence[Judgement], total: int | None = None) -> Judgement:
    """The judgement on a claim made of several, of which `total` could be judged."""
    if not judged:
        return NOT_RUN
    evidence = "; ".join(said for _, said in judged)
    left_out = coverage(len(judged), len(judged) if total is None else total)
    return combine([verdict for verdict, _ in judged]), evidence + left_out


def coverage(run: int, total: int) -> str:
    """A remark on settings that were not run.

    >>> coverage(4, 4), coverage(2, 4)
    ('', ' (2 of 4 settings were run)')
    """
    return "" if run == total else f" ({run} of {total} settings were run)"

"""An item of the paper, a table or a figure: its cells, its claims and its charts.

Claims are judged when results are read, from differences of accuracies and their standard errors.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from skipless.report.charts import describe_lines, format_percent
from skipless.report.sections import Verdict
from skipless.report.svg import Axis, Chart, Line, linear_axis
from skipless.runs.configuration import Configuration

from .results import CellKey, Results, Series, Summary, Value, plus_minus
from .scales import CPU, FULL, OPTIMIZERS, RESNETS, SMOKE, Option, Options, Scale, ScaleName

Pair = tuple[CellKey, CellKey]
Judgement = tuple[bool | None, str]  # whether a claim holds, None if it was not run; the evidence
Judge = Callable[[Results], Judgement]
T = TypeVar("T")

SIGNIFICANT = 2.0  # standard errors: a difference within them counts as noise
# Points, for one seed: about right for K-FAC, and too little for SGD on vanilla networks.
TYPICAL_NOISE = 2.0


@dataclass(frozen=True)
class Cell:
    """One number of a table or one point of a figure: a run, searched over a grid.

    `run` and its `teacher` are stated as in the paper, which prints an accuracy of `paper` percent.
    """

    row: str
    column: str
    run: Options
    paper: float | None = None
    teacher: Options | None = None


def cells(
    paper: Mapping[str, Sequence[float | None]],
    columns: Mapping[str, Options],
    base: Options,
    parts: Mapping[str, Options] | None = None,
) -> tuple[Cell, ...]:
    """A cell for each number that the paper prints, row by row.

    Args:
        paper: The accuracies of each row; none if they are not printed.
        columns: The options that each column stands for.
        base: The options of all cells.
        parts: The options that a row's name stands for, or, as in "50, SGD", each of its parts;
            resnets by depth and the paper's optimisers are known.
    """
    known = {**RESNETS, **OPTIMIZERS, **(parts or {})}
    found = []
    for row, numbers in paper.items():
        run = dict(base)
        for part in [row] if row in known else row.split(", "):
            run |= known[part]
        printed = zip(columns.items(), numbers or [None] * len(columns), strict=True)
        found += [Cell(row, name, {**run, **own}, number) for (name, own), number in printed]
    return tuple(found)


def wins(better: str, *, over: str, margin: float = 0.0, **names: Iterable[object]) -> Judge:
    """Judges whether one cell is above another, by more than a margin and noise.

    Places are "row | column", in which {name} stands for each of `names` in turn; {d} are the
    depths of most tables, {o} their optimisers.
    """
    return partial(all_above, pairs=expand_pairs(better, over, **names), margin=margin)


def level(
    one: str, *, beside: str, margin: float | None = None, **names: Iterable[object]
) -> Judge:
    """Judges whether one cell is not below another by more than a margin, or else noise."""
    return partial(none_below, pairs=expand_pairs(one, beside, **names), margin=margin)


def narrows(words: str, one: str, other: str, **names: Iterable[object]) -> Judge:
    """Judges whether the lead of one cell over another is smaller with the second of `names`.

    In `words`, {0} and {1} stand for the two leads.
    """

    def judge(results: Results) -> Judgement:
        found = [results.cells(*pair) for pair in expand_pairs(one, other, **names)]
        gaps = [difference(*both) for both in found if both is not None]
        if len(gaps) < len(found):
            return None, ""
        return is_smaller(gaps[1], gaps[0]), words.format(*gaps)

    return judge


def expand_pairs(one: str, other: str, **names: Iterable[object]) -> list[Pair]:
    """Both places for every combination of the `names` in them.

    >>> expand_pairs("{d}, TAT | {c}", "{d}, EOC | {c}", c=["tanh"])[1]
    (('101, TAT', 'tanh'), ('101, EOC', 'tanh'))
    """
    known = {"d": (50, 101), "o": ("K-FAC", "SGD"), **names}
    used = {name: own for name, own in known.items() if f"{{{name}}}" in one + other}
    return [(_place(one, own), _place(other, own)) for own in _combine(used)]


def _place(words: str, names: Mapping[str, object]) -> CellKey:
    row, column = words.format(**names).split(" | ")
    return row, column


def _combine(values: Mapping[str, Iterable[T]]) -> list[dict[str, T]]:
    """Every choice of one value for each name."""
    return [dict(zip(values, own, strict=True)) for own in itertools.product(*values.values())]


class Difference(NamedTuple):
    """How many points one cell is above another, and the standard error of that."""

    points: float
    error: float

    @property
    def noise(self) -> float:
        """The largest difference that counts as chance."""
        return TYPICAL_NOISE if math.isnan(self.error) else SIGNIFICANT * self.error

    def __str__(self) -> str:
        return f"{self.points:+.1f}{plus_minus(self.error)}"


def difference(better: Summary, worse: Summary) -> Difference:
    """`better` minus `worse`; NaN where one of them diverged.

    If only one of them has a standard error, the other is taken to have no smaller one.
    """
    errors = [cell.error for cell in (better, worse) if not math.isnan(cell.error)]
    error = math.hypot(better.error, worse.error)
    if len(errors) == 1:
        error = max(math.sqrt(2.0) * errors[0], TYPICAL_NOISE / SIGNIFICANT)
    return Difference(better.mean - worse.mean, error)


def is_smaller(gap: Difference, other: Difference) -> bool:
    """Whether a gap is smaller than another by more than noise; one below zero counts as zero."""
    less = max(other.points, 0.0) - max(gap.points, 0.0)
    return less > Difference(less, math.hypot(gap.error, other.error)).noise


def all_above(results: Results, pairs: Sequence[Pair], margin: float = 0.0) -> Judgement:
    """Whether the first of each pair is above the second, by more than a margin and noise."""
    return _judge_pairs(results, pairs, lambda gap: gap.points > max(margin, gap.noise))


def none_below(results: Results, pairs: Sequence[Pair], margin: float | None = None) -> Judgement:
    """Whether the first of no pair is below the second by more than a margin, or else noise."""
    allowed = lambda gap: gap.noise if margin is None else margin
    return _judge_pairs(results, pairs, lambda gap: gap.points >= -allowed(gap))


def _judge_pairs(
    results: Results, pairs: Sequence[Pair], judge: Callable[[Difference], bool]
) -> Judgement:
    """The judgement on all pairs of which both cells were run.

    A first cell that diverged is never better; where only the second did, the first is.
    """
    judged = []
    for (one, other), found in ((pair, results.cells(*pair)) for pair in pairs):
        if found is not None:
            gap = difference(*found)
            words = f"{', '.join(one)} {found[0]}, {', '.join(other)} {found[1]}"
            if math.isnan(gap.points):
                judged.append((not math.isnan(found[0].mean), words))
            else:
                judged.append((judge(gap), f"{words} ({gap})"))
    return judge_all(judged, len(pairs))


def judge_all(judged: Sequence[tuple[bool, str]], total: int | None = None) -> Judgement:
    """Whether all hold, None if there are none; of `total` settings, how many were run."""
    if not judged:
        return None, ""
    evidence = "; ".join(words for _, words in judged)
    return all(holds for holds, _ in judged), evidence + coverage(len(judged), total or len(judged))


def coverage(run: int, total: int) -> str:
    """A remark on settings that were not run.

    >>> coverage(4, 4), coverage(2, 4)
    ('', ' (2 of 4 settings were run)')
    """
    return "" if run == total else f" ({run} of {total} settings were run)"


@dataclass(frozen=True)
class PlannedRun:
    """One trial of an item before it is run."""

    cell: Cell
    chosen: dict[str, Option]
    seed: int
    configuration: Configuration
    teacher: Configuration | None = None

    @property
    def name(self) -> str:
        """Its name in the search, unique within its item."""
        chosen = ", ".join(f"{name} {value}" for name, value in self.chosen.items())
        return f"{self.cell.row} | {self.cell.column} | {chosen} | seed {self.seed}"


@dataclass(frozen=True)
class Item:
    """A table or a figure, either trained, cell by cell, or computed, by `compute`.

    `label` is that in the paper's source. `claims` are statements about the results, each with the
    function that judges it. `smoke`, `cpu` and `full` are its scales.
    """

    title: str
    introduction: str
    claims: Mapping[str, Judge]
    name: str = ""
    label: str | None = None
    cells: tuple[Cell, ...] = ()
    compute: Callable[[ScaleName], tuple[list[Value], list[Series]]] | None = None
    charts: Callable[[Results], Sequence[Chart]] = lambda _: ()
    format_cell: Callable[[Summary], str] = str
    smoke: Scale = SMOKE
    cpu: Scale = CPU
    full: Scale = FULL
    minutes: float = 0.0  # at the scale cpu, on two cores

    def verdicts(self, results: Results) -> list[Verdict]:
        """Whether each claim holds; at the scale `smoke` networks are too small to say."""
        smoke = None, "The scale smoke only shows that everything runs."
        return [
            Verdict(f"{claim}.", *(smoke if results.scale == "smoke" else judge(results)))
            for claim, judge in self.claims.items()
        ]

    def runs(
        self, name: ScaleName, seeds: int | None = None, given: Options | None = None
    ) -> list[PlannedRun]:
        """All runs of the item at a scale, with the options that a user gives for each of them."""
        planned = []
        for scale, cell, settings, count in self._searches(name):
            for chosen, seed in itertools.product(settings, range(seeds or count)):
                own = scale.configuration({**cell.run, **chosen, "seed": seed}, given)
                teacher = None
                if cell.teacher is not None:
                    teacher = scale.configuration({**cell.teacher, "seed": seed}, given)
                planned.append(PlannedRun(cell, chosen, seed, own, teacher))
        return planned

    def cost(self, name: ScaleName) -> tuple[int, int]:
        """How many runs and epochs the item has at a scale."""
        costs = [
            (len(settings) * count, scale.configuration(cell.run).epochs)
            for scale, cell, settings, count in self._searches(name)
        ]
        return sum(runs for runs, _ in costs), sum(runs * epochs for runs, epochs in costs)

    def _searches(
        self, name: ScaleName
    ) -> Iterator[tuple[Scale, Cell, list[dict[str, Option]], int]]:
        """Each cell at a scale, with the settings that it is searched over and its seeds."""
        scale = {"smoke": self.smoke, "cpu": self.cpu, "full": self.full}[name]
        for cell in self.cells:
            if scale.keep(cell.row, cell.column):
                grid = scale.grid(cell.run)
                if (rates := scale.cell_rates(cell.row, cell.column)) is not None:
                    grid["lr"] = rates
                yield scale, cell, _combine(grid), scale.seeds(cell.run)


def accuracy_by_column(
    results: Results,
    rows: Iterable[str],
    columns: Collection[object],
    axis: str,
    title: str = "Validation accuracy",
    measure: Callable[[Summary], tuple[float, float]] = lambda cell: (cell.mean, cell.error),
) -> Chart:
    """A line for each row, over columns whose names are numbers, in percent with error bars.

    `measure` gives a cell's value and standard error.
    """
    lines = []
    for style, row in enumerate(rows):
        found = [(float(str(column)), results.cell(row, str(column))) for column in columns]
        measured = [(x, *measure(cell)) for x, cell in found if cell is not None]
        points = [(x, y) for x, y, _ in measured]
        bars = [error for _, _, error in measured]
        last = format_percent(points[-1][1]) if points else ""
        lost = any(math.isnan(y) for _, y in points[-1:])
        lines.append(Line(row, last, style, points, range(len(points)), broken_off=lost, bars=bars))
    xs = sorted({x for line in lines for x, _ in line.points}) or [0.0, 1.0]
    margin = 1.0 if len(xs) == 1 else 0.0
    x = Axis(axis, xs[0] - margin, xs[-1] + margin, tuple((x, f"{x:g}") for x in xs))
    y = linear_axis("percent; higher is better", 0, 100)
    return Chart(title, f"{title} by {axis}. {describe_lines(lines)}", x, y, tuple(lines))


def accuracy_curves(
    title: str, cells: Mapping[str, Summary | None], *, seconds: bool = False
) -> Chart:
    """Validation accuracy of the best setting, its first seed, by epochs or by seconds."""
    lines = []
    for label, cell in cells.items():
        if cell is not None:
            curve, diverged = cell.outcomes[0].validation, cell.outcomes[0].diverged
            xs = curve.seconds if seconds else curve.epochs
            points = [(x, 100 * y) for x, y in zip(xs, curve.top1, strict=True)]
            last = format_percent(math.nan if diverged or not points else points[-1][1])
            lines.append(Line(label, last, len(lines), points, broken_off=diverged))
    furthest = max((x for line in lines for x, _ in line.points), default=1.0)
    x = linear_axis("seconds of training" if seconds else "epoch", 0.0, furthest)
    y = linear_axis("validation accuracy in percent", 0, 100)
    return Chart(title, f"{title}, at the end: {describe_lines(lines)}", x, y, tuple(lines))


def panel_charts(lines: Sequence[Series], x: str, y: str, low: float, high: float) -> list[Chart]:
    """One chart for each panel of computed lines."""
    charts = []
    for name in dict.fromkeys(line.panel for line in lines):
        own = [line for line in lines if line.panel == name]
        drawn = tuple(
            Line(line.label, f"{line.y[-1]:.3g}", style, line.points, bars=line.bars)
            for style, line in enumerate(own)
        )
        words = f"{name}: {y} by {x}, at the end: {describe_lines(drawn)}"
        xs = [value for line in own for value in line.x]
        across = linear_axis(x, min(xs), max(xs))
        charts.append(Chart(name, words, across, linear_axis(y, low, high), drawn))
    return charts

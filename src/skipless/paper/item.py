"""An item of the paper, a table or a figure: its cells, its claims and its charts.

A cell is one number of a table or one point of a figure. Claims are judged when results are read,
from differences of accuracies with their standard errors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from skipless.report.charts import describe_lines, format_percent
from skipless.report.sections import Verdict
from skipless.report.svg import Axis, Chart, Line, linear_axis
from skipless.runs.configuration import Configuration

from .results import CellKey, Results, Series, Summary, Value, plus_minus
from .scales import SCALES, Option, Options, Scale, ScaleName

Pair = tuple[CellKey, CellKey]
Judgement = tuple[bool | None, str]  # whether a claim holds, None if it was not run; the evidence
Judge = Callable[[Results], Judgement]

# A difference within this many standard errors counts as noise. One seed has no standard error:
# there, this many points do, which is about right for K-FAC, and too little for SGD on vanilla
# networks.
SIGNIFICANT = 2.0
TYPICAL_NOISE = 2.0


@dataclass(frozen=True)
class Cell:
    """One number of a table or one point of a figure: a run, searched over a grid.

    `run` states it as the paper does, `paper` is the accuracy printed there, in percent. A cell
    with a `teacher`, which is stated likewise, learns from that run, of the same seed.
    """

    row: str
    column: str
    run: Options
    paper: float | None = None
    teacher: Options | None = None


def cells(
    paper: Mapping[tuple[object, ...], Sequence[float | None]],
    columns: Iterable[str],
    run: Callable[..., Options],
) -> tuple[Cell, ...]:
    """A cell for each number that the paper prints, row by row.

    Args:
        paper: The accuracies of each row, by what tells it from the others. The row is named by
            that: (50, "SGD") is "50, SGD"; empty parts are left out.
        columns: Their names.
        run: Called with the parts of the row's key and the column, it states the run.
    """
    names = list(columns)
    return tuple(
        Cell(", ".join(str(part) for part in key if part != ""), column, run(*key, column), number)
        for key, numbers in paper.items()
        for column, number in zip(names, numbers, strict=True)
    )


def wins(
    better: CellKey, *, over: CellKey, margin: float = 0.0, **names: Iterable[object]
) -> Judge:
    """Judges whether one cell is above another, by more than a margin and noise.

    In the two places, {name} stands for each of `names` in turn.
    """
    pairs = expand_pairs(better, over, **names)
    return lambda results: all_above(results, pairs, margin)


def level(
    one: CellKey, *, beside: CellKey, margin: float | None = None, **names: Iterable[object]
) -> Judge:
    """Judges whether one cell is not below another by more than a margin, or else noise."""
    pairs = expand_pairs(one, beside, **names)
    return lambda results: none_below(results, pairs, margin)


def narrows(label: str, one: CellKey, other: CellKey, **names: Iterable[object]) -> Judge:
    """Judges whether the lead of one cell over another is smaller with the second of `names`."""

    def judge(results: Results) -> Judgement:
        found = [results.cells(*pair) for pair in expand_pairs(one, other, **names)]
        gaps = [difference(*both) for both in found if both is not None]
        if len(gaps) < len(found):
            return None, ""
        return is_smaller(gaps[1], gaps[0]), f"{label}: {gaps[0]}, then {gaps[1]}"

    return judge


def expand_pairs(one: CellKey, other: CellKey, **names: Iterable[object]) -> list[Pair]:
    """Both places for every combination of `names`, by which {name} in them is replaced.

    >>> expand_pairs(("{d}, TAT", "tanh"), ("{d}, EOC", "tanh"), d=(50, 101))[1]
    (('101, TAT', 'tanh'), ('101, EOC', 'tanh'))
    """
    combinations = [
        dict(zip(names, own, strict=True)) for own in itertools.product(*names.values())
    ]
    fill = lambda place, own: (place[0].format(**own), place[1].format(**own))
    return [(fill(one, own), fill(other, own)) for own in combinations]


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

    Where the first cell of a pair diverged, nothing good can be said of it; where only the second
    did, the first is better.
    """
    judged = []
    for pair in pairs:
        if (found := results.cells(*pair)) is not None:
            gap = difference(*found)
            diverged = math.isnan(gap.points)
            words = [
                f"{', '.join(word for word in place if word)} {cell}"
                for place, cell in zip(pair, found, strict=True)
            ]
            holds = not math.isnan(found[0].mean) if diverged else judge(gap)
            judged.append((holds, ", ".join(words) + ("" if diverged else f" ({gap})")))
    return judge_all(judged, len(pairs))


def judge_all(judged: Iterable[tuple[bool, str]], total: int | None = None) -> Judgement:
    """Whether all hold, None if there are none; of `total` settings, how many were run."""
    found = list(judged)
    if not found:
        return None, ""
    evidence = "; ".join(words for _, words in found)
    return all(holds for holds, _ in found), evidence + coverage(len(found), total or len(found))


def coverage(run: int, total: int) -> str:
    """A remark on settings that were not run.

    >>> coverage(4, 4), coverage(2, 4)
    ('', ' (2 of 4 settings were run)')
    """
    return "" if run == total else f" ({run} of {total} settings were run)"


@dataclass(frozen=True)
class ScaleOverride:
    """How an item differs from others at a scale: the cells it keeps, and what it changes.

    `options` and `rates` are added to those of the scale, `grid` is what a cell is searched over
    instead of what the scale says; None leaves the scale as it is.
    """

    keep: Callable[[Cell], bool] = lambda _: True
    options: Options = field(default_factory=dict)
    rates: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    epochs: float | None = None
    batch: float | None = None
    width: float | None = None
    dropouts: tuple[float, ...] | None = None
    seeds: int | None = None
    grid: Callable[[Cell], Mapping[str, tuple[Option, ...]]] = lambda _: {}

    def apply(self, scale: Scale) -> Scale:
        sizes = {name: getattr(self, name) for name in ("epochs", "batch", "width", "dropouts")}
        return replace(
            scale,
            options={**scale.options, **self.options},
            rates={**scale.rates, **self.rates},
            **{name: value for name, value in sizes.items() if value is not None},
        )


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
    """A table or a figure; `label` is the one in the paper's source, None if it is not there.

    An item is either trained, cell by cell, or computed: `compute` gives its numbers and lines. Its
    `claims` are statements about the results, each with the function that judges it.
    """

    name: str
    title: str
    label: str | None
    introduction: str
    claims: Mapping[str, Judge]
    cells: tuple[Cell, ...] = ()
    compute: Callable[[ScaleName], tuple[list[Value], list[Series]]] | None = None
    charts: Callable[[Results], Sequence[Chart]] = lambda _: ()
    format_cell: Callable[[Summary], str] = str
    overrides: Mapping[ScaleName, ScaleOverride] = field(default_factory=dict)
    minutes: Mapping[ScaleName, float] = field(default_factory=dict)  # on two cores; full: GPU

    def verdicts(self, results: Results) -> list[Verdict]:
        """Whether each claim holds; at the scale `smoke` networks are too small to say."""
        if results.scale == "smoke":
            smoke = None, "The scale smoke only shows that everything runs."
            return [Verdict(f"{claim}.", *smoke) for claim in self.claims]
        return [Verdict(f"{claim}.", *judge(results)) for claim, judge in self.claims.items()]

    def runs(
        self, name: ScaleName, seeds: int | None = None, given: Options | None = None
    ) -> list[PlannedRun]:
        """All runs of the item at a scale, with the options that a user gives for each of them."""
        return [
            _plan_run(scale, cell, chosen, seed, given or {})
            for scale, cell, settings, count in self._searches(name)
            for chosen in settings
            for seed in range(seeds or count)
        ]

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
        override = self.overrides.get(name, ScaleOverride())
        scale = override.apply(SCALES[name])
        for cell in filter(override.keep, self.cells):
            grid = {**scale.grid(cell.run), **override.grid(cell)}
            combinations = itertools.product(*grid.values())
            settings = [dict(zip(grid, values, strict=True)) for values in combinations]
            yield scale, cell, settings, override.seeds or scale.seeds(cell.run)


def _plan_run(
    scale: Scale, cell: Cell, chosen: dict[str, Option], seed: int, given: Options
) -> PlannedRun:
    def configure(options: Options) -> Configuration:
        usual = scale.configuration({**options, "seed": seed})
        return Configuration.of(usual.as_mapping(), given) if given else usual

    teacher = None if cell.teacher is None else configure(cell.teacher)
    return PlannedRun(cell, chosen, seed, configure({**cell.run, **chosen}), teacher)


def accuracy_by_column(
    results: Results,
    rows: Iterable[str],
    columns: Sequence[object],
    axis: str,
    title: str = "Validation accuracy",
    measure: Callable[[Summary], tuple[float, float]] = lambda cell: (cell.mean, cell.error),
) -> Chart:
    """A line for each row, over columns whose names are numbers, in percent with error bars.

    `measure` gives a cell's value and standard error.
    """
    lines, xs = [], set[float]()
    for style, row in enumerate(rows):
        found = [(float(str(column)), results.cell(row, str(column))) for column in columns]
        points = [(x, *measure(cell)) for x, cell in found if cell is not None]
        xs |= {x for x, _, _ in points}
        lines.append(
            Line(
                label=row,
                value=format_percent(points[-1][1]) if points else "",
                style=style,
                points=[(x, y) for x, y, _ in points],
                marked=range(len(points)),
                bars=[error for _, _, error in points],
                broken_off=bool(points) and math.isnan(points[-1][1]),
            )
        )
    ticks = sorted(xs) or [0.0, 1.0]
    low, high = (ticks[0], ticks[-1]) if len(ticks) > 1 else (ticks[0] - 1.0, ticks[0] + 1.0)
    return Chart(
        title=title,
        description=f"{title} by {axis}. " + describe_lines(lines),
        x=Axis(axis, low, high, tuple((x, f"{x:g}") for x in ticks)),
        y=linear_axis("percent; higher is better", 0, 100),
        lines=tuple(lines),
    )


def accuracy_curves(
    title: str, cells: Mapping[str, Summary | None], *, seconds: bool = False
) -> Chart:
    """Validation accuracy of the best setting, its first seed, by epochs or by seconds."""
    lines = []
    for label, cell in cells.items():
        if cell is None:
            continue
        outcome = cell.outcomes[0]
        curve = outcome.validation
        xs = curve.seconds if seconds else curve.epochs
        points = [(x, 100 * y) for x, y in zip(xs, curve.top1, strict=True)]
        last = math.nan if outcome.diverged or not points else points[-1][1]
        lines.append(
            Line(label, format_percent(last), len(lines), points, broken_off=outcome.diverged)
        )
    furthest = max((x for line in lines for x, _ in line.points), default=1.0)
    return Chart(
        title=title,
        description=f"{title}, at the end: " + describe_lines(lines),
        x=linear_axis("seconds of training" if seconds else "epoch", 0.0, furthest),
        y=linear_axis("validation accuracy in percent", 0, 100),
        lines=tuple(lines),
    )


def panel_charts(lines: Sequence[Series], x: str, y: str, low: float, high: float) -> list[Chart]:
    """One chart for each panel of computed lines."""
    charts = []
    for name in dict.fromkeys(line.panel for line in lines):
        own = [line for line in lines if line.panel == name]
        drawn = tuple(
            Line(
                line.label,
                f"{line.y[-1]:.3g}",
                style,
                list(zip(line.x, line.y, strict=True)),
                bars=line.bars,
            )
            for style, line in enumerate(own)
        )
        xs = [value for line in own for value in line.x]
        charts.append(
            Chart(
                title=name,
                description=f"{name}: {y} by {x}, at the end: " + describe_lines(drawn),
                x=linear_axis(x, min(xs), max(xs)),
                y=linear_axis(y, low, high),
                lines=drawn,
            )
        )
    return charts

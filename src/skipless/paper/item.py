"""An item of the paper, a table or a figure: its cells, its claims, and how it is shown.

What an item measured, on disk: one JSON object a line, the first of them about the item.

| `kind`  | what it is                                                                     |
|---------|--------------------------------------------------------------------------------|
| `item`  | name, scale, and where the results come from                                   |
| `trial` | one run: its place in the table, the values of the grid, the seed, the outcome |
| `value` | one number that was computed, beside what it should be                         |
| `line`  | one line of a figure that was computed                                         |

Judging claims: differences of accuracies, in points, with their standard errors.

Charts that several items share: accuracy by depth, and runs by epochs or by seconds.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple, get_args

from skipless.record import Json, write_atomically
from skipless.report.sections import Verdict
from skipless.report.svg import Axis, Chart, Line, linear_axis
from skipless.runs.configuration import Configuration
from skipless.runs.outcome import Outcome

from .scales import SCALES, Option, Options, Scale, ScaleName


@dataclass(frozen=True)
class Trial:
    """One run: where in the item's table it belongs, and what came out."""

    row: str
    column: str
    chosen: Mapping[str, Json]  # of the grid
    seed: int
    outcome: Outcome


@dataclass(frozen=True)
class Value:
    """A number that was computed; `wanted` is what it should be, where that is known."""

    row: str
    column: str
    value: float
    wanted: float | None = None


@dataclass(frozen=True)
class Series:
    """A line of a figure, with half the length of its error bars."""

    panel: str
    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    bars: tuple[float, ...] = ()


@dataclass(frozen=True)
class Summary:
    """The best setting of a cell: validation accuracy in percent, over seeds."""

    mean: float
    error: float  # standard error of the mean; NaN for one seed
    chosen: Mapping[str, Json]
    outcomes: tuple[Outcome, ...]

    @property
    def seeds(self) -> int:
        return len(self.outcomes)

    @property
    def train_accuracy(self) -> float:
        """Mean training accuracy of the last epoch in percent; NaN if a run diverged."""
        known = [o.train_accuracy for o in self.outcomes if o.train_accuracy is not None]
        return 100 * fmean(known) if len(known) == self.seeds else math.nan

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "diverged"
        spread = "" if math.isnan(self.error) else f" ± {self.error:.1f}"
        return f"{self.mean:.1f}{spread}"


@dataclass(frozen=True)
class Results:
    """All that an item measured at one scale."""

    item: str
    scale: str
    origin: Mapping[str, Json]
    trials: tuple[Trial, ...] = ()
    values: tuple[Value, ...] = ()
    lines: tuple[Series, ...] = ()

    def cell(self, row: str, column: str) -> Summary | None:
        """The setting with the highest mean accuracy over seeds, none of which may diverge.

        None if the cell was not run. Where every setting diverged, the mean is NaN.
        """
        settings: dict[str, list[Trial]] = {}
        for trial in self.trials:
            if (trial.row, trial.column) == (row, column):
                settings.setdefault(json.dumps(dict(trial.chosen)), []).append(trial)
        if not settings:
            return None
        return max((_summary(own) for own in settings.values()), key=rank)

    def value(self, row: str, column: str) -> float:
        """A computed number; NaN if there is none."""
        own = (v.value for v in self.values if (v.row, v.column) == (row, column))
        return next(own, math.nan)

    def write(self, path: Path) -> Path:
        """Write the file, in an order that does not depend on which run ended first."""
        lines: list[dict[str, object]] = [
            {"kind": "item", "item": self.item, "scale": self.scale, **self.origin}
        ]
        lines += [{"kind": "trial", **asdict(trial)} for trial in self.trials]
        lines += [{"kind": "value", **asdict(value)} for value in self.values]
        lines += [{"kind": "line", **asdict(line)} for line in self.lines]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))
        return path

    @classmethod
    def read(cls, path: Path) -> Results:
        """The results in a file that `write` wrote."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            return cls._of([json.loads(line) for line in lines if line.strip()])
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(
                f"{path} was to hold the results of an item, and cannot be read "
                f"({type(error).__name__}). Name a file that skipless reproduce wrote."
            ) from None

    @classmethod
    def _of(cls, rows: Sequence[dict[str, object]]) -> Results:
        head = dict(rows[0])
        if head.pop("kind") != "item" or head["scale"] not in get_args(ScaleName):
            raise ValueError("its first line is not about an item")
        parts: dict[str, list[dict[str, object]]] = {"trial": [], "value": [], "line": []}
        for row in rows[1:]:
            parts[str(row["kind"])].append({k: v for k, v in row.items() if k != "kind"})
        return cls(
            str(head.pop("item")),
            str(head.pop("scale")),
            head,  # pyright: ignore[reportArgumentType] - it comes from JSON
            tuple(_trial(row) for row in parts["trial"]),
            tuple(Value(**row) for row in parts["value"]),  # pyright: ignore[reportArgumentType]
            tuple(_series(row) for row in parts["line"]),
        )


def _trial(row: dict[str, object]) -> Trial:
    outcome = row.pop("outcome")
    if not isinstance(outcome, dict):
        raise TypeError("the outcome of a trial is no object")
    return Trial(**row, outcome=Outcome.of(outcome))  # pyright: ignore[reportArgumentType]


def _series(row: dict[str, object]) -> Series:
    tuples = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    return Series(**tuples)  # pyright: ignore[reportArgumentType]


def _summary(trials: Sequence[Trial]) -> Summary:
    outcomes = tuple(trial.outcome for trial in trials)
    if any(outcome.diverged or outcome.top1 is None for outcome in outcomes):
        return Summary(math.nan, math.nan, trials[0].chosen, outcomes)
    percents = [100 * outcome.top1 for outcome in outcomes if outcome.top1 is not None]
    error = stdev(percents) / math.sqrt(len(percents)) if len(percents) > 1 else math.nan
    return Summary(fmean(percents), error, trials[0].chosen, outcomes)


def rank(summary: Summary) -> float:
    """What cells are compared by: the mean, or less than any if all runs diverged."""
    return -1.0 if math.isnan(summary.mean) else summary.mean


@dataclass(frozen=True)
class Cell:
    """One number of a table or one point of a figure: a run, searched over a grid.

    `run` states it as the paper does, `paper` is what is printed there, in percent. With a
    `teacher`, which is stated likewise, it learns from that run, of the same seed.
    """

    row: str
    column: str
    run: Options
    paper: float | None = None
    teacher: Options | None = None


@dataclass(frozen=True)
class Claim:
    """A statement about the results, and the function that judges it.

    The function says whether it holds, None if what it needs was not run, and gives the evidence.
    """

    text: str
    judge: Callable[[Results], tuple[bool | None, str]]

    def verdict(self, results: Results | None) -> Verdict:
        """What became of the claim; at the scale `smoke` networks are too small to say."""
        sentence = f"{self.text}."
        if results is None:
            return Verdict(sentence, None, "There are no results.")
        if results.scale == "smoke":
            return Verdict(sentence, None, "The scale smoke only shows that everything runs.")
        return Verdict(sentence, *self.judge(results))


@dataclass(frozen=True)
class Fit:
    """How an item differs from others at a scale: which cells it keeps, and what it changes.

    `grid` is what a cell is searched over in place of what its scale says.
    """

    keep: Callable[[Cell], bool] = lambda _: True
    change: Callable[[Scale], Scale] = lambda scale: scale
    grid: Callable[[Cell], Mapping[str, tuple[Option, ...]]] = lambda _: {}


@dataclass(frozen=True)
class Computed:
    """What an item without training consists of."""

    values: tuple[Value, ...] = ()
    lines: tuple[Series, ...] = ()


@dataclass(frozen=True)
class Run:
    """One trial of an item before it is made."""

    cell: Cell
    chosen: dict[str, Option]
    seed: int
    configuration: Configuration
    teacher: Configuration | None = None

    @property
    def name(self) -> str:
        """What the search calls it: unique within its item."""
        chosen = ", ".join(f"{name} {value}" for name, value in self.chosen.items())
        return f"{self.cell.row} | {self.cell.column} | {chosen} | seed {self.seed}"


@dataclass(frozen=True)
class Item:
    """A table or a figure; `label` is the one in the paper's source, None if it is not there."""

    name: str
    title: str
    label: str | None
    introduction: str
    claims: tuple[Claim, ...]
    cells: tuple[Cell, ...] = ()
    compute: Callable[[ScaleName], Computed] | None = None
    charts: Callable[[Results], Sequence[Chart]] = lambda _: ()
    shown: Callable[[Summary], str] = str  # of a cell
    fits: Mapping[ScaleName, Fit] = field(default_factory=dict)
    minutes: Mapping[ScaleName, float] = field(default_factory=dict)  # on two cores; full: GPU

    def runs(
        self, name: ScaleName, seeds: int | None = None, given: Options | None = None
    ) -> list[Run]:
        """All runs of the item at a scale, with the options that a user gives for each of them."""
        fit = self.fits.get(name, Fit())
        scale = fit.change(SCALES[name])
        return [
            _run(scale, cell, chosen, seed, given or {})
            for cell in self.cells
            if fit.keep(cell)
            for chosen in _product({**scale.grid(cell.run), **fit.grid(cell)})
            for seed in range(seeds or scale.seeds(cell.run))
        ]


def _run(scale: Scale, cell: Cell, chosen: dict[str, Option], seed: int, given: Options) -> Run:
    def made(options: Options) -> Configuration:
        usual = scale.configuration({**options, "seed": seed})
        return Configuration.of(usual.as_mapping(), given) if given else usual

    teacher = None if cell.teacher is None else made(cell.teacher)
    return Run(cell, chosen, seed, made({**cell.run, **chosen}), teacher)


def _product(grid: Mapping[str, tuple[Option, ...]]) -> list[dict[str, Option]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


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


def by_column(results: Results, rows: Sequence[str], columns: Sequence[str], axis: str) -> Chart:
    """A line for each row: accuracy over columns whose names are numbers, with standard errors."""
    cells = {row: [results.cell(row, column) for column in columns] for row in rows}
    return over_numbers(
        "Validation accuracy",
        axis,
        {
            row: [
                (float(column), cell.mean, cell.error)
                for column, cell in zip(columns, own, strict=True)
                if cell is not None
            ]
            for row, own in cells.items()
        },
    )


def over_numbers(
    title: str, axis: str, lines: Mapping[str, Sequence[tuple[float, float, float]]]
) -> Chart:
    """A chart of (x, percent, standard error) for each line."""
    xs = sorted({x for points in lines.values() for x, _, _ in points}) or [0.0, 1.0]
    low, high = (xs[0], xs[-1]) if len(xs) > 1 else (xs[0] - 1.0, xs[0] + 1.0)
    drawn = tuple(
        Line(
            label=label,
            value=_percent(points[-1][1]) if points else "",
            style=number,
            points=[(x, y) for x, y, _ in points],
            marked=range(len(points)),
            bars=[error for _, _, error in points],
            broken_off=bool(points) and math.isnan(points[-1][1]),
        )
        for number, (label, points) in enumerate(lines.items())
    )
    return Chart(
        title=title,
        description=f"{title} by {axis}. " + _spoken(drawn),
        x=Axis(axis, low, high, tuple((x, f"{x:g}") for x in xs)),
        y=linear_axis("percent; higher is better", 0, 100),
        lines=drawn,
    )


def accuracy_curves(
    title: str, cells: Mapping[str, Summary | None], *, seconds: bool = False
) -> Chart:
    """Validation accuracy of the best setting, its first seed, by epochs or by seconds."""
    first = {label: cell.outcomes[0] for label, cell in cells.items() if cell is not None}
    lines = tuple(
        _accuracy_line(label, number, outcome, seconds)
        for number, (label, outcome) in enumerate(first.items())
    )
    furthest = max((x for line in lines for x, _ in line.points), default=1.0)
    return Chart(
        title=title,
        description=f"{title}, at the end: " + _spoken(lines),
        x=linear_axis("seconds of training" if seconds else "epoch", 0.0, furthest),
        y=linear_axis("validation accuracy in percent", 0, 100),
        lines=lines,
    )


def panels(lines: Sequence[Series], x: str, y: str, low: float, high: float) -> list[Chart]:
    """One chart for each panel of computed lines."""
    names = dict.fromkeys(line.panel for line in lines)
    return [
        _panel(name, [own for own in lines if own.panel == name], x, y, low, high) for name in names
    ]


def _panel(name: str, own: Sequence[Series], x: str, y: str, low: float, high: float) -> Chart:
    drawn = tuple(
        Line(
            line.label,
            f"{line.y[-1]:.3g}",
            number,
            list(zip(line.x, line.y, strict=True)),
            bars=line.bars,
        )
        for number, line in enumerate(own)
    )
    xs = [value for line in own for value in line.x]
    return Chart(
        title=name,
        description=f"{name}: {y} by {x}, at the end: " + _spoken(drawn),
        x=linear_axis(x, min(xs), max(xs)),
        y=linear_axis(y, low, high),
        lines=drawn,
    )


def _accuracy_line(label: str, style: int, outcome: Outcome, seconds: bool) -> Line:
    curve = outcome.validation
    xs = curve.seconds if seconds else curve.epochs
    points = [(x, 100 * y) for x, y in zip(xs, curve.top1, strict=True)]
    value = _percent(math.nan if outcome.diverged or not points else points[-1][1])
    return Line(label, value, style, points, broken_off=outcome.diverged)


def _percent(value: float) -> str:
    return "diverged" if math.isnan(value) else f"{value:.1f}%"


def _spoken(lines: Sequence[Line]) -> str:
    return " ".join(f"{line.label}, {line.value}." for line in lines)

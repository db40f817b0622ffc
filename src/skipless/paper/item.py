"""An item of the paper, a table or a figure: its cells, its claims and its charts."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from skipless.report.charts import describe_lines, format_percent
from skipless.report.sections import Verdict
from skipless.report.svg import Axis, Chart, Line, linear_axis
from skipless.runs.configuration import Configuration
from skipless.runs.place import run_key
from skipless.runs.search import Experiment, Sweep

from .claims import Judge
from .results import Results, Series, Summary, Value
from .scales import CPU, FULL, OPTIMIZERS, RESNETS, SMOKE, Option, Options, Scale, ScaleName

# Beside SGD, a step of these costs so much more, as measured at the scale cpu.
_COSTS = {"kfac": 1.9, "soap": 1.6, "muon": 1.3}
_HALVED = 0.5  # of a trial, on average: most are stopped


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


@dataclass(frozen=True)
class PlannedCell:
    """A cell at a scale: what is tuned, and what is then trained.

    The `teacher` is what the key stands for that the experiment's runs have as theirs.
    """

    cell: Cell
    experiment: Experiment
    scale: Scale
    teacher: Configuration | None = None

    @property
    def name(self) -> str:
        """Its name in the search."""
        return f"{self.cell.row} | {self.cell.column}"

    @property
    def runs(self) -> int:
        """How many runs it is, tuning included."""
        return self.experiment.sweep.trials + len(self.experiment.seeds)

    def hours(self, *, tuned: bool = True) -> float:
        """About how long all its runs take on one processor of the scale, one after the other.

        Without tuning, if that is known already.
        """
        given = self.experiment.final
        layers = int("".join(c for c in given.model if c.isdigit()) or 1)
        wide = 1.0
        if not given.model.startswith("mlp"):
            usual = 2.0 if given.model.startswith("wide") else 1.0
            wide = (given.width or usual) / (usual * self.scale.width)
        sized = (given.image_size or 1) / (_number(self.scale.options.get("image_size")) or 1)
        images = given.train_size or _IMAGES[given.data.partition(":")[0]]
        steps = given.steps or given.epochs * images / given.batch_size
        each = self.scale.seconds * wide**2 * sized**2 * given.batch_size
        seconds = layers * steps * max(each, self.scale.seconds_of_step)
        seconds *= _COSTS.get(given.optimizer, 1.0)
        trials = self.experiment.sweep.trials * _HALVED if tuned else 0.0
        return seconds * (trials + len(self.experiment.seeds)) / 3600


# Training images of whole data sets.
_IMAGES = {"imagefolder": 1_281_167, "parquet": 1_281_167, "hf": 1_281_167, "cifar10": 50_000}
_IMAGES |= {"fashion-mnist": 60_000, "digits": 1437, "synthetic": 10_000}


def _number(value: Option) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


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
    minutes: float = 0.0  # of one that is computed

    def verdicts(self, results: Results) -> list[Verdict]:
        """Whether each claim holds; at the scale `smoke` networks are too small to say."""
        smoke = "not run", "The scale smoke only shows that everything runs."
        return [
            Verdict(f"{claim}.", *(smoke if results.scale == "smoke" else judge(results)))
            for claim, judge in self.claims.items()
        ]

    def scale(self, name: ScaleName) -> Scale:
        """The item's own scale of that name."""
        return {"smoke": self.smoke, "cpu": self.cpu, "full": self.full}[name]

    def plan(
        self,
        name: ScaleName,
        seeds: int | None = None,
        given: Options | None = None,
        only: str | None = None,
    ) -> list[PlannedCell]:
        """The cells of the item at a scale, with the options that a user gives for every run.

        With `only`, those whose "row | column" matches the pattern.
        """
        return list(self._plan(self.scale(name), seeds, given or {}, only))

    def _plan(
        self, scale: Scale, seeds: int | None, given: Options, only: str | None
    ) -> Iterator[PlannedCell]:
        for cell in self.cells:
            wanted = only is None or fnmatchcase(f"{cell.row} | {cell.column}", only)
            if not (wanted and scale.keep(cell.row, cell.column)):
                continue
            space, first = scale.space({**cell.run, **given})
            fixed = {name: value for name, value in first.items() if name not in space}
            teacher = None if cell.teacher is None else scale.configuration(cell.teacher, given)
            final = scale.configuration({**cell.run, **fixed}, given)
            if teacher is not None:
                final = replace(final, teacher=run_key(teacher))
            tuned = final
            if scale.trials:
                tuned = replace(
                    final, held_out=scale.held_out, validation_size=None, evaluate_every=1
                )
            least = min(scale.least_epochs, final.epochs)
            tuning = Sweep(
                tuned,
                space,
                scale.trials if space else 0,
                {name: value for name, value in first.items() if name in space},
                least,
            )
            experiment = Experiment(tuning, final, tuple(range(seeds or scale.seeds)))
            yield PlannedCell(cell, experiment, scale, teacher)

    def cost(self, name: ScaleName) -> tuple[int, float]:
        """How many runs the item has at a scale, and about how many hours they take."""
        planned = self.plan(name)
        return sum(own.runs for own in planned), sum(own.hours() for own in planned)


def accuracy_by_column(
    results: Results,
    rows: Iterable[str],
    columns: Collection[object],
    axis: str,
    title: str = "Test accuracy",
    measure: Callable[[Summary], tuple[float, float]] = lambda cell: (cell.mean, cell.half_width),
) -> Chart:
    """A line for each row, over columns whose names are numbers, in percent with error bars.

    `measure` gives a cell's value and half of its 95 % confidence interval.
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
    """Test accuracy of the best setting, its first seed, by epochs or by seconds."""
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
    y = linear_axis("test accuracy in percent", 0, 100)
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

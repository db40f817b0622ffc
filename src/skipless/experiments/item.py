"""An item of the paper, a table or a figure: its cells, its claims, and how it is shown."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from skipless.report.sections import Verdict
from skipless.report.svg import Chart

from .configuration import Configuration
from .results import Results, Series, Summary, Value
from .scales import SCALES, Option, Options, Scale, ScaleName


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

"""What an item measured, in memory and on disk: one JSON object a line.

| `kind`  | what it is                                                                     |
|---------|--------------------------------------------------------------------------------|
| `item`  | the first line: name, scale, and where the results come from                   |
| `trial` | one run: its place in the table, the values of the grid, the seed, the outcome |
| `value` | one computed number, beside what it should be                                  |
| `line`  | one computed line of a figure                                                  |
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, get_args

from skipless.files import read_rows, typed, write_atomically
from skipless.record import Json
from skipless.runs.outcome import Outcome

from .scales import ScaleName

CellKey = tuple[str, str]  # row and column of a cell


@dataclass(frozen=True)
class Trial:
    """One run: its place in the item's table, its values of the grid, and its outcome."""

    row: str
    column: str
    chosen: Mapping[str, Json]
    seed: int
    outcome: Outcome


@dataclass(frozen=True)
class Value:
    """A computed number; `wanted` is what it should be, where that is known."""

    row: str
    column: str
    value: float
    wanted: float | None = None


@dataclass(frozen=True)
class Series:
    """A computed line of a figure, with half the length of its error bars."""

    panel: str
    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    bars: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len({len(self.x), len(self.y), len(self.bars or self.x)}) > 1:
            raise ValueError("the columns of a line differ in length")

    @property
    def points(self) -> list[tuple[float, float]]:
        return list(zip(self.x, self.y, strict=True))


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
    def rank(self) -> float:
        """What cells are compared by: the mean, or less than any mean if a run diverged."""
        return -1.0 if math.isnan(self.mean) else self.mean

    @property
    def train_accuracy(self) -> float:
        """Mean training accuracy of the last epoch in percent; NaN if a run diverged."""
        known = [o.train_accuracy for o in self.outcomes if o.train_accuracy is not None]
        return 100 * fmean(known) if len(known) == self.seeds else math.nan

    def __str__(self) -> str:
        return "diverged" if math.isnan(self.mean) else f"{self.mean:.1f}{plus_minus(self.error)}"


@dataclass(frozen=True)
class Results:
    """Everything an item measured at one scale."""

    item: str
    scale: str
    origin: Mapping[str, Json]
    trials: tuple[Trial, ...] = ()
    values: tuple[Value, ...] = ()
    lines: tuple[Series, ...] = ()

    def cell(self, row: str, column: str) -> Summary | None:
        """The setting with the highest mean accuracy over seeds, none of which may diverge.

        None if the cell was not run. If every setting diverged, the mean is NaN.
        """
        settings: dict[str, list[Trial]] = {}
        for trial in self.trials:
            if (trial.row, trial.column) == (row, column):
                settings.setdefault(json.dumps(dict(trial.chosen)), []).append(trial)
        summaries = [_summarize(trials) for trials in settings.values()]
        return max(summaries, key=lambda summary: summary.rank, default=None)

    def cells(self, *places: CellKey) -> list[Summary] | None:
        """The cells at all places; None if one of them was not run."""
        found = [self.cell(*place) for place in places]
        return [cell for cell in found if cell is not None] if all(found) else None

    def value(self, row: str, column: str) -> float:
        """A computed number; NaN if there is none."""
        own = (v.value for v in self.values if (v.row, v.column) == (row, column))
        return next(own, math.nan)

    def write(self, path: Path) -> Path:
        """Write the file, in an order that does not depend on which run ended first."""
        parts = {"trial": self.trials, "value": self.values, "line": self.lines}
        lines = [
            {"kind": "item", "item": self.item, "scale": self.scale, **self.origin},
            *({"kind": kind, **asdict(own)} for kind, part in parts.items() for own in part),
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))
        return path

    @classmethod
    def read(cls, path: Path) -> Results:
        """The results in a file that `write` wrote."""
        try:
            return cls._parse(list(read_rows(path)))
        except ValueError as error:
            raise ValueError(
                f"Cannot read {path} as results of an item: {error}. Name a file that skipless "
                "reproduce wrote."
            ) from None

    @classmethod
    def _parse(cls, rows: Sequence[dict[str, Any]]) -> Results:
        head, *others = rows or [{"kind": None}]
        item, scale = (head.pop(name, None) for name in ("item", "scale"))
        if head.pop("kind") != "item" or scale not in get_args(ScaleName):
            raise ValueError("the first line does not describe an item")
        kinds = {"trial": Trial, "value": Value, "line": Series}
        parts: dict[str, list[Any]] = {kind: [] for kind in kinds}
        for number, row in enumerate(others, start=2):
            try:
                if (kind := row.pop("kind")) not in kinds:
                    raise ValueError(f"its kind is {kind!r}")
                parts[kind].append(typed(kinds[kind], row))
            except ValueError as error:
                raise ValueError(f"row {number}: {error}") from None
        return cls(str(item), str(scale), head, *map(tuple, parts.values()))


def _summarize(trials: Sequence[Trial]) -> Summary:
    outcomes = tuple(trial.outcome for trial in trials)
    percents = [100 * o.top1 for o in outcomes if o.top1 is not None and not o.diverged]
    if len(percents) < len(outcomes):
        return Summary(math.nan, math.nan, trials[0].chosen, outcomes)
    error = stdev(percents) / math.sqrt(len(percents)) if len(percents) > 1 else math.nan
    return Summary(fmean(percents), error, trials[0].chosen, outcomes)


def plus_minus(error: float) -> str:
    """A standard error as it follows a number; nothing if it is NaN."""
    return "" if math.isnan(error) else f" ± {error:.1f}"

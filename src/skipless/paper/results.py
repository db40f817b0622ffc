"""What an item measured, in memory and on disk: one JSON object a line.

| `kind`  | what it is                                                                     |
|---------|--------------------------------------------------------------------------------|
| `item`  | the first line: name, scale, and where the results come from                   |
| `tried` | one setting of a cell that was tried, and its accuracy on held-out training images |
| `trial` | a final run: its place in the table, the chosen setting, the seed, the outcome |
| `value` | one computed number, beside what it should be                                  |
| `line`  | one computed line of a figure                                                  |
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, get_args

from scipy import stats

from skipless.files import read_rows, typed, write_atomically
from skipless.record import Json
from skipless.runs.outcome import Outcome, Tried

from .scales import ScaleName

CellKey = tuple[str, str]  # row and column of a cell


@dataclass(frozen=True)
class Trial:
    """A final run: its place in the item's table, the chosen setting, and its outcome."""

    row: str
    column: str
    chosen: Mapping[str, Json]
    seed: int
    outcome: Outcome
    key: str = ""  # of its configuration


@dataclass(frozen=True)
class TriedSetting:
    """A setting of a cell that was tried, in the tuning with that key."""

    row: str
    column: str
    key: str
    tried: Tried


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
    """A cell with its best setting: test accuracy in percent, over seeds."""

    chosen: Mapping[str, Json]
    outcomes: tuple[Outcome, ...]
    seeds: tuple[int, ...]

    @property
    def by_seed(self) -> dict[int, float]:
        """The accuracy of each seed; 0 if it diverged."""
        return {
            seed: 100.0 * (outcome.top1 or 0.0)
            for seed, outcome in zip(self.seeds, self.outcomes, strict=True)
        }

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())

    @property
    def half_width(self) -> float:
        """Half of the 95 % confidence interval of the mean; NaN for one seed."""
        return half_width(list(self.by_seed.values()))

    @property
    def trained(self) -> int:
        """How many seeds learned anything."""
        return sum(outcome.trained for outcome in self.outcomes)

    @property
    def train_accuracies(self) -> dict[int, float]:
        """Training accuracy of the last epoch in percent, by seed; 0 if it diverged."""
        return {
            seed: 100.0 * (outcome.train_accuracy or 0.0)
            for seed, outcome in zip(self.seeds, self.outcomes, strict=True)
        }

    def __str__(self) -> str:
        if all(outcome.diverged for outcome in self.outcomes):
            return "diverged"
        return f"{self.mean:.1f}{plus_minus(self.half_width)}"


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of a mean, by Student's t; NaN for one value.

    >>> round(half_width([1.0, 2.0, 3.0]), 3)  # 4.303 / sqrt(3)
    2.484
    """
    count = len(values)
    if count < 2:
        return math.nan
    return float(stats.t.ppf(0.975, count - 1)) * stdev(values) / math.sqrt(count)


@dataclass(frozen=True)
class Results:
    """Everything an item measured at one scale."""

    item: str
    scale: str
    origin: Mapping[str, Json]
    trials: tuple[Trial, ...] = ()
    values: tuple[Value, ...] = ()
    lines: tuple[Series, ...] = ()
    tried: tuple[TriedSetting, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every cell that the item has at this scale was run."""
        given = self.origin.get("given")
        return not (self.origin.get("left") or (isinstance(given, dict) and "only" in given))

    def outcome(self, trial: Trial) -> Outcome:
        """The outcome of a trial, with where it was trained if only the first line says that."""
        own = trial.outcome
        found = (self.origin.get(name) for name in ("machines", "versions", "commits"))
        machine, versions, commit = (
            given[0] if isinstance(given, list) and len(given) == 1 else None for given in found
        )
        if own.machine or not isinstance(machine, dict) or not isinstance(versions, dict):
            return own
        return replace(
            own,
            machine=machine,
            versions=versions,
            commit=commit if isinstance(commit, str) else None,
        )

    def cell(self, row: str, column: str) -> Summary | None:
        """The final runs of a cell; None if there are none."""
        own = [trial for trial in self.trials if (trial.row, trial.column) == (row, column)]
        own.sort(key=lambda trial: trial.seed)
        if not own:
            return None
        outcomes = tuple(trial.outcome for trial in own)
        return Summary(own[0].chosen, outcomes, tuple(trial.seed for trial in own))

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
        parts = {
            "tried": self.tried,
            "trial": self.trials,
            "value": self.values,
            "line": self.lines,
        }
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
        kinds = {"trial": Trial, "value": Value, "line": Series, "tried": TriedSetting}
        parts: dict[str, list[Any]] = {kind: [] for kind in kinds}
        for number, row in enumerate(others, start=2):
            try:
                if (kind := row.pop("kind")) not in kinds:
                    raise ValueError(f"its kind is {kind!r}")
                parts[kind].append(typed(kinds[kind], row))
            except ValueError as error:
                raise ValueError(f"row {number}: {error}") from None
        return cls(str(item), str(scale), head, *map(tuple, parts.values()))


def plus_minus(error: float) -> str:
    """What follows a number that is known up to `error`; nothing if that is NaN."""
    return "" if math.isnan(error) else f" ± {error:.1f}"

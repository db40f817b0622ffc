"""Runs of `skipless train` side by side: what they reached, and how they came there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from skipless.record import Json, Record, number

from .c_maps import CMapCurve
from .charts import (
    Points,
    accuracy_chart,
    c_map_chart,
    epochs,
    layers_chart,
    loss_chart,
    loss_line,
    seconds,
)
from .sections import Section
from .svg import STYLES, Chart, Line

HEADER = (
    "run", "model", "optimizer", "learning rate", "epochs", "training accuracy", "training loss",
    "validation", "best", "seconds",
)  # fmt: skip

_SAME_SPEED = 1.1  # up to this factor between seconds an epoch, charts by time show nothing new


def runs_section(
    records: Sequence[Record], curves: Mapping[Path, CMapCurve] | None = None
) -> Section:
    """All runs in a table, and up to six of them in charts; `curves` are C maps by folder.

    A record of another program, or of another version, has gaps where it lacks something.
    """
    names = _names([record.folder for record in records])
    runs = [_Run(name, _sound(record)) for name, record in zip(names, records, strict=True)]
    shown = _shown(runs)
    return Section(
        name="runs",
        title="What the runs reached",
        introduction=_introduction(len(runs), len(shown)),
        header=HEADER,
        rows=[run.row for run in runs],
        charts=[*_training_charts(shown), *_c_map_charts(shown, curves or {})],
        facts=_facts(records),
    )


@dataclass(frozen=True)
class _Run:
    """One run, by the name that tells it from the others."""

    name: str
    record: Record

    @property
    def configuration(self) -> dict[str, Json]:
        found = self.record.run.get("configuration")
        return found if isinstance(found, dict) else {}

    @cached_property
    def validation(self) -> list[float]:
        return self.values("validation", "top1")

    @property
    def best(self) -> float:
        return max((top1 for top1 in self.validation if math.isfinite(top1)), default=math.nan)

    def values(self, kind: str, name: str) -> list[float]:
        """A number of all rows of a kind that name it, NaN where it was none."""
        rows = self.record.metrics
        return [number(row, name) for row in rows if row["kind"] == kind and name in row]

    @property
    def row(self) -> list[str]:
        given = self.configuration
        losses, accuracies = (self.values("train", name) for name in ("loss", "accuracy"))
        words = [given.get("model"), given.get("method")]
        return [
            self.name,
            ", ".join(str(word) for word in words if word is not None) or "–",
            str(given.get("optimizer") or "–"),
            "default" if given.get("lr", 0) is None else _written(number(given, "lr"), "g"),
            self.progress,
            _last(accuracies, ".1%"),
            _last(losses, ".3g"),
            _last(self.validation, ".1%"),
            _written(self.best, ".1%"),
            _written(self.seconds, ".0f"),
        ]

    @property
    def progress(self) -> str:
        """Epochs that were reached, and of how many if those were not all."""
        reached = self.epochs
        if math.isnan(reached):
            return "–"
        asked = number(self.configuration, "epochs")
        whole = reached >= asked or self.configuration.get("steps") is not None
        return f"{reached:.3g}" if whole or math.isnan(asked) else f"{reached:.3g} of {asked:g}"

    @property
    def epochs(self) -> float:
        return self._largest("epoch")

    @property
    def seconds(self) -> float:
        return self._largest("seconds")

    def _largest(self, name: str) -> float:
        values = (number(row, name) for row in self.record.metrics)
        return max((value for value in values if math.isfinite(value)), default=math.nan)


def _last(values: Sequence[float], form: str) -> str:
    """The last value as text, also where it is missing or no number."""
    if not values:
        return "–"
    return format(values[-1], form) if math.isfinite(values[-1]) else "diverged"


def _written(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "–"


def _sound(record: Record) -> Record:
    """The record with those rows that say what was measured, and when."""
    rows = [
        row
        for row in record.metrics
        if isinstance(row, dict)
        and isinstance(row.get("kind"), str)
        and math.isfinite(number(row, "step"))
    ]
    return replace(record, metrics=tuple(rows))


def _names(folders: Sequence[Path]) -> list[str]:
    """The last parts of each folder's path, as few as tell it from the others."""
    paths = [folder.resolve().parts for folder in folders]
    names = []
    for own in paths:
        shared = lambda count, own=own: sum(path[-count:] == own[-count:] for path in paths) > 1
        count = next((count for count in range(1, len(own)) if not shared(count)), len(own))
        names.append("/".join(own[-count:]))
    return names


def _shown(runs: Sequence[_Run]) -> list[_Run]:
    """The runs that are drawn, in their order: all, or those with the best validation accuracy."""
    worth = [-1.0 if math.isnan(run.best) else run.best for run in runs]
    ranked = sorted(range(len(runs)), key=lambda index: -worth[index])
    return [runs[index] for index in sorted(ranked[:STYLES])]


def _introduction(count: int, shown: int) -> str:
    words = f"{count} run{'s' if count != 1 else ''}. Validation and best: the share of validation "
    words += "images classified correctly, by the last evaluation and by the best one."
    if shown < count:
        words += f" The charts show the {shown} runs with the best validation accuracy."
    return words


def _training_charts(runs: Sequence[_Run]) -> list[Chart]:
    """Training loss and validation accuracy by epoch, and by time if runs differ in speed."""
    charts = _by(runs, "epoch", epochs)
    speeds = [run.seconds / run.epochs for run in runs if run.seconds > 0 and run.epochs > 0]
    if len(speeds) > 1 and max(speeds) > _SAME_SPEED * min(speeds):
        charts += _by(runs, "seconds of training", seconds)
    return charts


def _by(runs: Sequence[_Run], x: str, series: Callable[[Record, str, str], Points]) -> list[Chart]:
    losses, accuracies = [], []
    for style, run in enumerate(runs):
        losses.append(loss_line(run.name, style, series(run.record, "train", "loss")))
        points = [(place, 100 * top1) for place, top1 in series(run.record, "validation", "top1")]
        accuracies.append(Line(run.name, _last(run.validation, ".1%"), style, points))
    drawn = ((loss_chart, losses), (accuracy_chart, accuracies))
    return [chart(lines, x) for chart, lines in drawn if any(line.finite for line in lines)]


def _c_map_charts(runs: Sequence[_Run], curves: Mapping[Path, CMapCurve]) -> list[Chart]:
    """C maps before training; runs of equal maps share a line, that of the first of them."""
    mapped = {
        n: curves[run.record.folder] for n, run in enumerate(runs) if run.record.folder in curves
    }
    first = {n: next(k for k in mapped if _same(mapped[k], mapped[n])) for n in mapped}
    named = {}
    for n in dict.fromkeys(first.values()):
        more = sum(k == n for k in first.values()) - 1
        label = f"{runs[n].name} and {more} more" if more else runs[n].name
        named[n] = replace(mapped[n], label=label)
    return [c_map_chart(named), layers_chart(named)] if named else []


def _same(one: CMapCurve, other: CMapCurve) -> bool:
    return np.array_equal(one.global_map, other.global_map) and np.array_equal(
        one.layers, other.layers
    )


def _facts(records: Sequence[Record]) -> dict[str, str]:
    """Versions, machines and dates; those of all runs where they differ."""
    dates = sorted({str(date)[:10] for record in records if (date := record.run.get("started"))})
    facts = {
        "Versions": _distinct(records, "versions", lambda name, value: f"{name} {value}"),
        "Machine": _distinct(records, "machine", _machine_part),
        "Dates": " to ".join(dates if len(dates) < 3 else [dates[0], dates[-1]]),
    }
    return {name: value for name, value in facts.items() if value}


def _machine_part(name: str, value: Json) -> str:
    if name == "gpus":
        return ", ".join(map(str, value)) if isinstance(value, list) else ""
    if name == "system":
        return str(value)
    return f"{value} {name.removesuffix('s') if value == 1 else name}"


def _distinct(records: Sequence[Record], key: str, part: Callable[[str, Json], str]) -> str:
    """Everything that `run.json` says under a key, each different saying once."""
    said = []
    for record in records:
        found = record.run.get(key)
        parts = [part(*item) for item in found.items()] if isinstance(found, dict) else []
        said.append(", ".join(part for part in parts if part))
    return "; or ".join(dict.fromkeys(words for words in said if words))

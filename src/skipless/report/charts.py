"""Charts of networks that were trained: C maps, training curves, learning rates.

Runs of `skipless train` side by side: what they reached, and how they came there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from skipless.record import Json, Record, number

from .figures import CMapCurve
from .sections import Section
from .svg import STYLES, Axis, Chart, Line, linear_axis, logarithmic_axis

Points = list[tuple[float, float]]

_MOST_POINTS = 400  # of a line: more are not seen, and make the page heavy


def c_map_chart(curves: Mapping[int, CMapCurve]) -> Chart:
    """How alike two images leave whole networks, by how alike they enter; curves by their style."""
    lines = tuple(
        Line(
            label=curve.label,
            value=f"c: 0 → {c_of_unrelated(curve):.3f}",
            style=style,
            points=[(float(c), float(y)) for c, y in zip(curve.c, curve.global_map, strict=True)],
            marked=[int(np.argmin(np.abs(curve.c)))],
        )
        for style, curve in curves.items()
    )
    words = ((-1.0, "−1\nopposite"), (0.0, "0\nunrelated"), (1.0, "1\nidentical"))
    return Chart(
        title="From input to output",
        description="Similarity of two outputs by the similarity of the two inputs. "
        + spoken(lines),
        x=Axis("c of the two images that enter", -1.0, 1.0, words),
        y=linear_axis("c of the two outputs (1: identical)", -1.0, 1.0),
        lines=lines,
        key=True,
        guide=((-1.0, -1.0), (1.0, 1.0)),
    )


def layers_chart(curves: Mapping[int, CMapCurve]) -> Chart:
    """How alike two unrelated images are behind each layer; curves by their style."""
    lines = tuple(
        Line(
            label=curve.label,
            value=f"{degrees(float(curve.layers[-1]))} apart",
            style=style,
            points=[(float(layer), float(c)) for layer, c in enumerate(curve.layers)],
        )
        for style, curve in curves.items()
    )
    depth = max(curve.layers.size - 1 for curve in curves.values())
    lowest = min(0.0, *(float(np.min(curve.layers)) for curve in curves.values()))
    return Chart(
        title="Layer by layer",
        description="c of two unrelated images behind each layer, at the end: " + spoken(lines),
        x=linear_axis("layers passed", 0, max(depth, 1)),
        y=linear_axis("c of two unrelated images (1: identical)", lowest, 1.0),
        lines=lines,
    )


def loss_line(label: str, style: int, points: Points) -> Line:
    """A run's training loss, broken off where it ends in no number."""
    broken = any(not math.isfinite(value) for _, value in points[-1:])
    value = "diverged" if broken else f"{points[-1][1]:.2g}" if points else ""
    return Line(label, value, style, points, broken_off=broken)


def loss_chart(lines: Sequence[Line], x: str = "epoch") -> Chart:
    """Training losses, by epoch or whatever `x` names."""
    values = [value for line in lines for _, value in line.points]
    return Chart(
        title="Training loss",
        description=f"Training loss by {x}, at the end: " + spoken(lines),
        x=_axis_of(lines, x),
        y=logarithmic_axis("lower is better", values),
        lines=tuple(lines),
    )


def accuracy_chart(lines: Sequence[Line], x: str = "epoch") -> Chart:
    """Validation accuracies in percent, by epoch or whatever `x` names."""
    return Chart(
        title="Validation accuracy",
        description=f"Validation accuracy by {x}, at the end: " + spoken(lines),
        x=_axis_of(lines, x),
        y=linear_axis("images classified correctly; higher is better", 0, 100, "%"),
        lines=tuple(lines),
    )


def epochs(record: Record, kind: str, name: str) -> Points:
    """Epochs and values of one number, of at most some hundred evenly chosen rows.

    Rows may say in which epoch they were written, but not when in it; their steps do.
    """
    rows = [row for row in record.metrics if math.isfinite(number(row, "epoch"))]
    if not rows:
        return []
    steps, count = (max(number(row, name) for row in rows) for name in ("step", "epoch"))
    return _thinned(
        [
            (step * count / max(steps, 1.0), value)
            for step, value in _found(record, kind, name, "step")
        ]
    )


def seconds(record: Record, kind: str, name: str) -> Points:
    """Seconds of training and values of one number, of at most some hundred rows."""
    return _thinned(_found(record, kind, name, "seconds"))


def _found(record: Record, kind: str, name: str, x: str) -> Points:
    """A number of all rows of a kind that name it, NaN where it was none, by another number."""
    rows = [row for row in record.metrics if row["kind"] == kind and name in row]
    places = [(number(row, x), number(row, name)) for row in rows]
    return [place for place in places if math.isfinite(place[0])]


def _thinned(points: Points) -> Points:
    stride = math.ceil(len(points) / _MOST_POINTS) or 1
    return points[::-1][::stride][::-1]  # always with the last


def spoken(lines: Sequence[Line]) -> str:
    """What the labels say, for the description."""
    return " ".join(f"{line.label}, {line.value}." for line in lines)


def _axis_of(lines: Sequence[Line], name: str) -> Axis:
    """An axis from zero to the last point of all lines."""
    return linear_axis(name, 0, max((x for line in lines for x, _ in line.points), default=1) or 1)


def c_of_unrelated(curve: CMapCurve) -> float:
    """The c value with which two unrelated images leave a network, to three digits."""
    return round(float(np.interp(0.0, curve.c, curve.global_map)), 3) + 0.0  # and never -0.0


def degrees(c: float) -> str:
    """The angle between two vectors whose cosine is `c`.

    >>> degrees(0.0), degrees(-1.0)
    ('90°', '180°')
    """
    return f"{math.degrees(math.acos(min(1.0, max(-1.0, c)))):.0f}°"


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

"""Charts of trained networks: C maps and training curves; runs of `skipless train` side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from skipless.record import Json, Record, number

from .figures import CMapCurve
from .sections import Section
from .svg import STYLES, Axis, Chart, Line, linear_axis, logarithmic_axis

Points = list[tuple[float, float]]

HEADER = (
    "run", "model", "optimizer", "learning rate", "epochs", "training accuracy", "training loss",
    "validation", "best", "seconds",
)  # fmt: skip

_MOST_POINTS = 400  # of a line: more cannot be seen, and make the page heavy
_SAME_SPEED = 1.1  # up to this factor between seconds per epoch, charts by time show nothing new


def c_map_chart(curves: Mapping[int, CMapCurve]) -> Chart:
    """The similarity of two outputs by that of the two inputs; curves are by style."""
    lines = []
    for style, curve in curves.items():
        points = list(zip(curve.c.tolist(), curve.global_map.tolist(), strict=True))
        value, middle = f"c: 0 → {c_of_unrelated(curve):.3f}", int(np.argmin(np.abs(curve.c)))
        lines.append(Line(curve.label, value, style, points, marked=[middle]))
    words = ((-1.0, "−1\nopposite"), (0.0, "0\nunrelated"), (1.0, "1\nidentical"))
    return Chart(
        "From input to output",
        "Similarity of two outputs by the similarity of the two inputs. " + describe_lines(lines),
        Axis("c of the two inputs", -1.0, 1.0, words),
        linear_axis("c of the two outputs (1: identical)", -1.0, 1.0),
        tuple(lines),
        key=True,
        guide=((-1.0, -1.0), (1.0, 1.0)),
    )


def layers_chart(curves: Mapping[int, CMapCurve]) -> Chart:
    """The similarity of two unrelated images after each layer; curves are by style."""
    lines = []
    for style, curve in curves.items():
        layers = curve.layers.tolist()
        points = [(float(layer), c) for layer, c in enumerate(layers)]
        lines.append(Line(curve.label, f"{degrees(layers[-1])} apart", style, points))
    lowest = min(0.0, *(c for line in lines for _, c in line.points))
    return Chart(
        "Layer by layer",
        "c of two unrelated images after each layer, at the end: " + describe_lines(lines),
        _axis_from_zero(lines, "layers passed"),
        linear_axis("c of two unrelated images (1: identical)", lowest, 1.0),
        tuple(lines),
    )


def loss_chart(lines: Sequence[Line], x: str = "epoch") -> Chart:
    """Training losses by epoch, or by what `x` names."""
    values = [value for line in lines for _, value in line.points]
    return _training_chart("Training loss", lines, x, logarithmic_axis("lower is better", values))


def _training_chart(title: str, lines: Sequence[Line], x: str, y: Axis) -> Chart:
    words = f"{title} by {x}, at the end: {describe_lines(lines)}"
    return Chart(title, words, _axis_from_zero(lines, x), y, tuple(lines))


def points_by_epoch(record: Record, kind: str, name: str) -> Points:
    """Epochs and values of one number, of at most some hundred evenly chosen rows.

    Rows may say in which epoch they were written, but not when in it; their steps do.
    """
    rows = [row for row in record.metrics if math.isfinite(number(row, "epoch"))]
    if not rows:
        return []
    steps, count = (max(number(row, name) for row in rows) for name in ("step", "epoch"))
    found = _points(record, kind, name, "step")
    return _thin([(step * count / max(steps, 1.0), value) for step, value in found])


def points_by_second(record: Record, kind: str, name: str) -> Points:
    """Seconds of training and values of one number, of at most some hundred rows."""
    return _thin(_points(record, kind, name, "seconds"))


def training_charts(
    runs: Iterable[tuple[str, Record, str, bool]],
    x: str = "epoch",
    points: Callable[[Record, str, str], Points] = points_by_epoch,
) -> list[Chart]:
    """Training loss and validation accuracy by epoch, or by what `x` names and `points` gives.

    Each run has a name, a record, its accuracy in words, and whether that ends in a cross.
    """
    losses, accuracies = [], []
    for style, (name, record, accuracy, diverged) in enumerate(runs):
        found = points(record, "train", "loss")
        broken = any(not math.isfinite(value) for _, value in found[-1:])
        last = "diverged" if broken else f"{found[-1][1]:.2g}" if found else ""
        losses.append(Line(name, last, style, found, broken_off=broken))
        percents = [(place, 100 * top1) for place, top1 in points(record, "validation", "top1")]
        accuracies.append(Line(name, accuracy, style, percents, broken_off=diverged))
    y = linear_axis("images classified correctly; higher is better", 0, 100, "%")
    return [loss_chart(losses, x), _training_chart("Validation accuracy", accuracies, x, y)]


def _points(record: Record, kind: str, name: str, x: str) -> Points:
    """A number of all rows of a kind that have it, NaN where it is none, by another number."""
    rows = [row for row in record.metrics if row["kind"] == kind and name in row]
    places = [(number(row, x), number(row, name)) for row in rows]
    return [place for place in places if math.isfinite(place[0])]


def _thin(points: Points) -> Points:
    stride = math.ceil(len(points) / _MOST_POINTS) or 1
    return points[::-1][::stride][::-1]  # always with the last


def describe_lines(lines: Sequence[Line]) -> str:
    """The labels and values of all lines, for the description of a chart."""
    return " ".join(f"{line.label}, {line.value}." for line in lines)


def format_percent(percent: float) -> str:
    """A number of percent with one decimal; NaN stands for a run that diverged.

    >>> format_percent(97.22), format_percent(float("nan"))
    ('97.2%', 'diverged')
    """
    return "diverged" if math.isnan(percent) else f"{percent:.1f}%"


def _axis_from_zero(lines: Sequence[Line], name: str) -> Axis:
    return linear_axis(name, 0, max((x for line in lines for x, _ in line.points), default=1) or 1)


def c_of_unrelated(curve: CMapCurve) -> float:
    """The c value of a network's outputs for two unrelated images, to three decimals."""
    return round(float(np.interp(0.0, curve.c, curve.global_map)), 3) + 0.0  # and never -0.0


def degrees(c: float) -> str:
    """The angle between two vectors whose cosine is `c`.

    >>> degrees(0.0), degrees(-1.0)
    ('90°', '180°')
    """
    return f"{math.degrees(math.acos(min(1.0, max(-1.0, c)))):.0f}°"


def runs_section(
    records: Sequence[Record], curves: Mapping[Path, CMapCurve] | None = None
) -> Section:
    """All runs in a table, and up to six of them in charts; `curves` are C maps by folder.

    Where a record, of another program or version, lacks something, the table has a gap.
    """
    names = _shortest_names([record.folder for record in records])
    runs = [_Run(name, record) for name, record in zip(names, records, strict=True)]
    shown = _choose_best(runs)
    introduction = (
        f"{len(runs)} run{'s' if len(runs) != 1 else ''}. Validation and best: the share of "
        "validation images classified correctly, by the last evaluation and by the best one."
    )
    if len(shown) < len(runs):
        introduction += f" The charts show the {len(shown)} runs with the best validation accuracy."
    return Section(
        name="runs",
        title="What the runs reached",
        introduction=introduction,
        header=HEADER,
        rows=[run.row for run in runs],
        charts=[*_run_charts(shown), *_c_map_charts(shown, curves or {})],
        facts=_facts(records),
    )


class _Run:
    """A run, without the rows of its record that do not say what was measured, and when."""

    def __init__(self, name: str, record: Record) -> None:
        is_whole = lambda r: isinstance(r.get("kind"), str) and math.isfinite(number(r, "step"))
        rows = tuple(row for row in record.metrics if isinstance(row, dict) and is_whole(row))
        self.name, self.record = name, replace(record, metrics=rows)
        self.validation = self.values("validation", "top1")
        self.best = _largest(self.validation)
        self.epochs = _largest([number(row, "epoch") for row in rows])
        self.seconds = _largest([number(row, "seconds") for row in rows])

    def values(self, kind: str, name: str) -> list[float]:
        return [value for _, value in _points(self.record, kind, name, "step")]

    @property
    def row(self) -> list[str]:
        found = self.record.run.get("configuration")
        given = found if isinstance(found, dict) else {}
        words = [given.get("model"), given.get("method")]
        planned, reached = number(given, "epochs"), _format(self.epochs, ".3g")
        if self.epochs < planned and given.get("steps") is None:  # not if one is NaN
            reached += f" of {planned:g}"
        return [
            self.name,
            ", ".join(str(word) for word in words if word is not None) or "–",
            str(given.get("optimizer") or "–"),
            "default" if given.get("lr", 0) is None else _format(number(given, "lr"), "g"),
            reached,
            _format_last(self.values("train", "accuracy"), ".1%"),
            _format_last(self.values("train", "loss"), ".3g"),
            _format_last(self.validation, ".1%"),
            _format(self.best, ".1%"),
            _format(self.seconds, ".0f"),
        ]


def _largest(values: Sequence[float]) -> float:
    return max((value for value in values if math.isfinite(value)), default=math.nan)


def _format(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "–"


def _format_last(values: Sequence[float], form: str) -> str:
    """The last value; "diverged" if it is not finite, a dash if there is none."""
    if not values:
        return "–"
    return format(values[-1], form) if math.isfinite(values[-1]) else "diverged"


def _shortest_names(folders: Sequence[Path]) -> list[str]:
    """The last parts of each folder's path, as few as tell it from the others."""
    paths = [folder.resolve().parts for folder in folders]
    names = []
    for own in paths:
        tails = [own[-count:] for count in range(1, len(own))]
        alone = (tail for tail in tails if sum(p[-len(tail) :] == tail for p in paths) == 1)
        names.append("/".join(next(alone, own)))
    return names


def _choose_best(runs: Sequence[_Run]) -> list[_Run]:
    """As many runs as there are styles, those with the best validation accuracy, in their order."""
    worth = [-1.0 if math.isnan(run.best) else run.best for run in runs]
    ranked = sorted(range(len(runs)), key=lambda index: -worth[index])
    return [runs[index] for index in sorted(ranked[:STYLES])]


def _run_charts(runs: Sequence[_Run]) -> list[Chart]:
    """Training loss and validation accuracy by epoch, and by time if runs differ in speed."""
    shown = [(r.name, r.record, _format_last(r.validation, ".1%"), False) for r in runs]
    charts = training_charts(shown)
    speeds = [run.seconds / run.epochs for run in runs if run.seconds > 0 and run.epochs > 0]
    if len(speeds) > 1 and max(speeds) > _SAME_SPEED * min(speeds):
        charts += training_charts(shown, "seconds of training", points_by_second)
    return [chart for chart in charts if any(line.finite for line in chart.lines)]


def _c_map_charts(runs: Sequence[_Run], curves: Mapping[Path, CMapCurve]) -> list[Chart]:
    """C maps before training; runs of equal maps share a line, that of the first of them."""
    equal: dict[tuple[bytes, bytes], list[_Run]] = {}
    for run in runs:
        if (curve := curves.get(run.record.folder)) is not None:
            equal.setdefault((curve.global_map.tobytes(), curve.layers.tobytes()), []).append(run)
    named = {}
    for first, *others in equal.values():
        label = f"{first.name} and {len(others)} more" if others else first.name
        named[runs.index(first)] = replace(curves[first.record.folder], label=label)
    return [c_map_chart(named), layers_chart(named)] if named else []


def _facts(records: Sequence[Record]) -> dict[str, str]:
    """Versions, machines and dates; those of all runs where they differ."""
    dates = sorted({str(date)[:10] for record in records if (date := record.run.get("started"))})
    facts = {
        "Versions": _join_distinct(records, "versions", lambda name, value: f"{name} {value}"),
        "Machine": _join_distinct(records, "machine", _machine_part),
        "Dates": " to ".join(dates if len(dates) < 3 else [dates[0], dates[-1]]),
    }
    return {name: value for name, value in facts.items() if value}


def _machine_part(name: str, value: Json) -> str:
    if name == "gpus":
        return ", ".join(map(str, value)) if isinstance(value, list) else ""
    if name == "system":
        return str(value)
    return f"{value} {name.removesuffix('s') if value == 1 else name}"


def _join_distinct(records: Sequence[Record], key: str, part: Callable[[str, Json], str]) -> str:
    """What the `run.json` of all records says under a key, each different value once."""
    words = []
    for record in records:
        found = record.run.get(key)
        parts = [part(*item) for item in found.items()] if isinstance(found, dict) else []
        words.append(", ".join(part for part in parts if part))
    return "; or ".join(dict.fromkeys(one for one in words if one))

"""Charts of trained networks: C maps and training curves."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from skipless.record import Record, number

from .figures import CMapCurve
from .svg import Axis, Chart, Line, linear_axis, logarithmic_axis

Points = list[tuple[float, float]]

_MOST_POINTS = 400  # of a line: more cannot be seen, and make the page heavy


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


def loss_chart(lines: Sequence[Line]) -> Chart:
    """Training losses by epoch."""
    values = [value for line in lines for _, value in line.points]
    return training_chart("Training loss", lines, logarithmic_axis("lower is better", values))


def training_chart(title: str, lines: Sequence[Line], y: Axis, x: str = "epoch") -> Chart:
    """Lines by epoch, or by what `x` names."""
    words = f"{title} by {x}, at the end: {describe_lines(lines)}"
    return Chart(title, words, _axis_from_zero(lines, x), y, tuple(lines))


def accuracy_axis() -> Axis:
    """Percents of images."""
    return linear_axis("images classified correctly; higher is better", 0, 100, "%")


def points_by_epoch(record: Record, kind: str, name: str) -> Points:
    """Epochs and values of one number, of at most some hundred evenly chosen rows.

    Rows may say in which epoch they were written, but not when in it; their steps do.
    """
    rows = [row for row in record.metrics if math.isfinite(number(row, "epoch"))]
    if not rows:
        return []
    steps, count = (max(number(row, name) for row in rows) for name in ("step", "epoch"))
    found = points_by(record, kind, name, "step")
    return _thin([(step * count / max(steps, 1.0), value) for step, value in found])


def points_by_second(record: Record, kind: str, name: str) -> Points:
    """Seconds of training and values of one number, of at most some hundred rows."""
    return _thin(points_by(record, kind, name, "seconds"))


def points_by(record: Record, kind: str, name: str, x: str) -> Points:
    """A number of all rows of a kind that have it, NaN where it is none, by another number."""
    rows = [row for row in record.metrics if row["kind"] == kind and name in row]
    places = [(number(row, x), number(row, name)) for row in rows]
    return [place for place in places if math.isfinite(place[0])]


def _thin(points: Points) -> Points:
    stride = math.ceil(len(points) / _MOST_POINTS) or 1
    return points[::-1][::stride][::-1]  # always with the last


def training_charts(runs: Iterable[tuple[str, Sequence[Record], str, bool]]) -> list[Chart]:
    """Training loss and validation accuracy by epoch.

    Each has a name, a record for each seed, the accuracy in words, and whether that ends in a
    cross. The line is the mean over seeds.
    """
    losses, accuracies = [], []
    for style, (name, records, accuracy, diverged) in enumerate(runs):
        seeds = [points_by_epoch(record, "train", "loss") for record in records]
        line = _mean_line(name, "", style, seeds)
        broken = any(not math.isfinite(value) for _, value in line.points[-1:])
        last = "diverged" if broken else f"{line.points[-1][1]:.2g}" if line.points else ""
        losses.append(replace(line, value=last, broken_off=broken))
        fractions = (points_by_epoch(record, "validation", "top1") for record in records)
        percents = [[(place, 100 * top1) for place, top1 in seed] for seed in fractions]
        line = _mean_line(name, accuracy, style, percents)
        accuracies.append(replace(line, broken_off=diverged))
    return [loss_chart(losses), training_chart("Validation accuracy", accuracies, accuracy_axis())]


def _mean_line(label: str, value: str, style: int, seeds: Sequence[Points]) -> Line:
    """The mean of runs that were measured at the same places, and a thin line for each of them."""
    mean = [(places[0][0], fmean(y for _, y in places)) for places in zip(*seeds, strict=False)]
    return Line(label, value, style, mean, thin=seeds if len(seeds) > 1 else ())


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

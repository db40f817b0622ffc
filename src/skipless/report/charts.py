"""Charts of networks that were trained: C maps, training curves, learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from skipless.record import Record, number

from .c_maps import CMapCurve
from .comparison import Contestant, c_of_unrelated, degrees
from .svg import Axis, Chart, Line, linear_axis, logarithmic_axis

Points = list[tuple[float, float]]

_MOST_POINTS = 400  # of a line: more are not seen, and make the page heavy
_DIVERGED = -12.0  # percent: the height of the crosses, below all accuracies


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
        + _spoken(lines),
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
        description="c of two unrelated images behind each layer, at the end: " + _spoken(lines),
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
        description=f"Training loss by {x}, at the end: " + _spoken(lines),
        x=_axis_of(lines, x),
        y=logarithmic_axis("lower is better", values),
        lines=tuple(lines),
    )


def accuracy_chart(lines: Sequence[Line], x: str = "epoch") -> Chart:
    """Validation accuracies in percent, by epoch or whatever `x` names."""
    return Chart(
        title="Validation accuracy",
        description=f"Validation accuracy by {x}, at the end: " + _spoken(lines),
        x=_axis_of(lines, x),
        y=linear_axis("images classified correctly; higher is better", 0, 100, "%"),
        lines=tuple(lines),
    )


def rates_chart(contestants: Sequence[Contestant]) -> Chart:
    """The last validation accuracy of every run by learning rate; crosses for diverged ones."""
    rates = sorted({rate for one in contestants for rate in one.grid})
    lines = tuple(_rates_line(style, one) for style, one in enumerate(contestants))
    x = logarithmic_axis("learning rate", rates)
    y = linear_axis("validation accuracy at the end of the run", 0, 100, "%")
    crosses = []
    for rate in rates:
        lost = [n for n, one in enumerate(contestants) if math.isnan(one.grid.get(rate, 0.0))]
        # Runs that diverged at one rate have their crosses side by side.
        step = (x.high / x.low) ** 0.045
        middle = (len(lost) - 1) / 2
        crosses += [(n, rate * step ** (i - middle), _DIVERGED) for i, n in enumerate(lost)]
    if crosses:
        y = Axis(y.name, _DIVERGED, y.high, ((_DIVERGED, "diverged"), *y.ticks))
    return Chart(
        title="Every learning rate tried",
        description="Validation accuracy by learning rate. " + _spoken(lines),
        x=Axis(x.name, x.low, x.high, tuple((r, f"{r:g}") for r in _spaced(rates)), True),
        y=y,
        lines=lines,
        crosses=tuple(crosses),
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


def _spoken(lines: Sequence[Line]) -> str:
    """What the labels say, for the description."""
    return " ".join(f"{line.label}, {line.value}." for line in lines)


def _axis_of(lines: Sequence[Line], name: str) -> Axis:
    """An axis from zero to the last point of all lines."""
    return linear_axis(name, 0, max((x for line in lines for x, _ in line.points), default=1) or 1)


def _rates_line(style: int, one: Contestant) -> Line:
    points = [(rate, 100 * one.grid[rate]) for rate in sorted(one.grid)]
    best = sorted(one.grid).index(one.best_rate) if one.learned else None
    return Line(
        label=one.label,
        value=f"best {one.best_rate:g}" if one.learned else "diverged",
        style=style,
        points=points,
        marked=range(len(points)),
        ringed=best,
    )


def _spaced(rates: Sequence[float]) -> list[float]:
    """The rates that are far enough from the last one for their numbers to stand side by side."""
    room = (rates[-1] / rates[0]) ** 0.13
    chosen = [rates[0]]
    for rate in rates[1:]:
        if rate >= chosen[-1] * room:
            chosen.append(rate)
    return chosen

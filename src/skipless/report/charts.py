"""The charts of a comparison: C maps, training curves, learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from skipless.record import Record

from .c_maps import CMapCurve
from .comparison import Contestant, c_of_unrelated, degrees, percent
from .svg import Axis, Chart, Line, linear_axis, logarithmic_axis

_MOST_POINTS = 400  # of a line: more are not seen, and make the page heavy
_DIVERGED = -12.0  # percent: the height of the crosses, below all accuracies


def c_map_chart(contestants: Sequence[Contestant]) -> Chart:
    """How alike two images leave each whole network, by how alike they enter it."""
    mapped = _mapped(contestants)
    lines = tuple(
        Line(
            label=contestants[number].label,
            value=f"c: 0 → {c_of_unrelated(curve):.3f}",
            style=number,
            points=[(float(c), float(y)) for c, y in zip(curve.c, curve.global_map, strict=True)],
            marked=[int(np.argmin(np.abs(curve.c)))],
        )
        for number, curve in mapped
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


def layers_chart(contestants: Sequence[Contestant]) -> Chart:
    """How alike two unrelated images are behind each layer."""
    mapped = _mapped(contestants)
    lines = tuple(
        Line(
            label=contestants[number].label,
            value=f"{degrees(float(curve.layers[-1]))} apart",
            style=number,
            points=[(float(layer), float(c)) for layer, c in enumerate(curve.layers)],
        )
        for number, curve in mapped
    )
    depth = max(curve.layers.size - 1 for _, curve in mapped)
    lowest = min(0.0, *(float(np.min(curve.layers)) for _, curve in mapped))
    return Chart(
        title="Layer by layer",
        description="c of two unrelated images behind each layer, at the end: " + _spoken(lines),
        x=linear_axis("layers passed", 0, max(depth, 1)),
        y=linear_axis("c of two unrelated images (1: identical)", lowest, 1.0),
        lines=lines,
    )


def loss_chart(contestants: Sequence[Contestant]) -> Chart:
    """The training loss of each best run by epoch."""
    series = [epochs(one.record, "train", "loss") for one in contestants]
    lines = tuple(
        Line(
            label=one.label,
            value="diverged" if _broken(points) else f"{points[-1][1]:.2g}" if points else "",
            style=number,
            points=points,
            broken_off=_broken(points),
        )
        for number, (one, points) in enumerate(zip(contestants, series, strict=True))
    )
    return Chart(
        title="Training loss",
        description="Training loss by epoch, at the end: " + _spoken(lines),
        x=_epoch_axis(series),
        y=logarithmic_axis("lower is better", [value for points in series for _, value in points]),
        lines=lines,
    )


def accuracy_chart(contestants: Sequence[Contestant]) -> Chart:
    """The validation accuracy of each best run by epoch."""
    series = [
        [(x, 100 * y) for x, y in epochs(one.record, "validation", "top1")] for one in contestants
    ]
    lines = tuple(
        Line(
            label=one.label,
            value=percent(one.accuracy),
            style=number,
            points=points,
            broken_off=not one.learned,
        )
        for number, (one, points) in enumerate(zip(contestants, series, strict=True))
    )
    return Chart(
        title="Validation accuracy",
        description="Validation accuracy by epoch, at the end: " + _spoken(lines),
        x=_epoch_axis(series),
        y=linear_axis("images classified correctly; higher is better", 0, 100, "%"),
        lines=lines,
    )


def rates_chart(contestants: Sequence[Contestant]) -> Chart:
    """The last validation accuracy of every run by learning rate; crosses for diverged ones."""
    rates = sorted({rate for one in contestants for rate in one.grid})
    lines = tuple(_rates_line(number, one) for number, one in enumerate(contestants))
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


def epochs(record: Record, kind: str, name: str) -> list[tuple[float, float]]:
    """Epochs and values of one number, of at most some hundred evenly chosen rows.

    Rows may say in which epoch they were written, but not when in it; their steps do.
    """
    rows = [row for row in record.metrics if "epoch" in row]
    steps = max((float(str(row["step"])) for row in rows), default=1.0)
    count = max((float(str(row["epoch"])) for row in rows), default=1.0)
    found = list(zip(*record.series(kind, name), strict=True))
    stride = math.ceil(len(found) / _MOST_POINTS) or 1
    chosen = found[::-1][::stride][::-1]  # always with the last
    return [(step * count / max(steps, 1.0), value) for step, value in chosen]


def _mapped(contestants: Sequence[Contestant]) -> list[tuple[int, CMapCurve]]:
    """Numbers and curves of the networks that have a C map: the number is the line's style."""
    return [(n, one.curve) for n, one in enumerate(contestants) if one.curve is not None]


def _spoken(lines: Sequence[Line]) -> str:
    """What the labels say, for the description."""
    return " ".join(f"{line.label}, {line.value}." for line in lines)


def _broken(points: Sequence[tuple[float, float]]) -> bool:
    return any(not math.isfinite(value) for _, value in points[-1:])


def _epoch_axis(series: Sequence[Sequence[tuple[float, float]]]) -> Axis:
    return linear_axis("epoch", 0, max((x for points in series for x, _ in points), default=1) or 1)


def _rates_line(number: int, one: Contestant) -> Line:
    points = [(rate, 100 * one.grid[rate]) for rate in sorted(one.grid)]
    best = sorted(one.grid).index(one.best_rate) if one.learned else None
    return Line(
        label=one.label,
        value=f"best {one.best_rate:g}" if one.learned else "diverged",
        style=number,
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

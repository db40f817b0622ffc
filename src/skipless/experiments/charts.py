"""Charts that several items share: accuracy by depth, and runs by epochs or by seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from skipless.report.svg import Axis, Chart, Line, linear_axis

from .results import Outcome, Results, Series, Summary


def by_column(results: Results, rows: Sequence[str], columns: Sequence[str], axis: str) -> Chart:
    """A line for each row: accuracy over columns whose names are numbers, with standard errors."""
    cells = {row: [results.cell(row, column) for column in columns] for row in rows}
    return over_numbers(
        "Validation accuracy",
        axis,
        {
            row: [
                (float(column), cell.mean, cell.error)
                for column, cell in zip(columns, own, strict=True)
                if cell is not None
            ]
            for row, own in cells.items()
        },
    )


def over_numbers(
    title: str, axis: str, lines: Mapping[str, Sequence[tuple[float, float, float]]]
) -> Chart:
    """A chart of (x, percent, standard error) for each line."""
    xs = sorted({x for points in lines.values() for x, _, _ in points}) or [0.0, 1.0]
    low, high = (xs[0], xs[-1]) if len(xs) > 1 else (xs[0] - 1.0, xs[0] + 1.0)
    drawn = tuple(
        Line(
            label=label,
            value=_percent(points[-1][1]) if points else "",
            style=number,
            points=[(x, y) for x, y, _ in points],
            marked=range(len(points)),
            bars=[error for _, _, error in points],
            broken_off=bool(points) and math.isnan(points[-1][1]),
        )
        for number, (label, points) in enumerate(lines.items())
    )
    return Chart(
        title=title,
        description=f"{title} by {axis}. " + _spoken(drawn),
        x=Axis(axis, low, high, tuple((x, f"{x:g}") for x in xs)),
        y=linear_axis("percent; higher is better", 0, 100),
        lines=drawn,
    )


def accuracy_curves(
    title: str, cells: Mapping[str, Summary | None], *, seconds: bool = False
) -> Chart:
    """Validation accuracy of the best setting, its first seed, by epochs or by seconds."""
    first = {label: cell.outcomes[0] for label, cell in cells.items() if cell is not None}
    lines = tuple(
        _accuracy_line(label, number, outcome, seconds)
        for number, (label, outcome) in enumerate(first.items())
    )
    furthest = max((x for line in lines for x, _ in line.points), default=1.0)
    return Chart(
        title=title,
        description=f"{title}, at the end: " + _spoken(lines),
        x=linear_axis("seconds of training" if seconds else "epoch", 0.0, furthest),
        y=linear_axis("validation accuracy in percent", 0, 100),
        lines=lines,
    )


def panels(lines: Sequence[Series], x: str, y: str, low: float, high: float) -> list[Chart]:
    """One chart for each panel of computed lines."""
    names = dict.fromkeys(line.panel for line in lines)
    return [
        _panel(name, [own for own in lines if own.panel == name], x, y, low, high) for name in names
    ]


def _panel(name: str, own: Sequence[Series], x: str, y: str, low: float, high: float) -> Chart:
    drawn = tuple(
        Line(
            line.label,
            f"{line.y[-1]:.3g}",
            number,
            list(zip(line.x, line.y, strict=True)),
            bars=line.bars,
        )
        for number, line in enumerate(own)
    )
    xs = [value for line in own for value in line.x]
    return Chart(
        title=name,
        description=f"{name}: {y} by {x}, at the end: " + _spoken(drawn),
        x=linear_axis(x, min(xs), max(xs)),
        y=linear_axis(y, low, high),
        lines=drawn,
    )


def _accuracy_line(label: str, style: int, outcome: Outcome, seconds: bool) -> Line:
    curve = outcome.validation
    xs = curve.seconds if seconds else curve.epochs
    points = [(x, 100 * y) for x, y in zip(xs, curve.top1, strict=True)]
    value = _percent(math.nan if outcome.diverged or not points else points[-1][1])
    return Line(label, value, style, points, broken_off=outcome.diverged)


def _percent(value: float) -> str:
    return "diverged" if math.isnan(value) else f"{value:.1f}%"


def _spoken(lines: Sequence[Line]) -> str:
    return " ".join(f"{line.label}, {line.value}." for line in lines)

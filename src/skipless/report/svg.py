"""Small line charts as SVG text: inside an HTML page whose style sheet colours them, or as a file.

Pages and charts share their colours, which are in `page.css`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap

WIDTH, HEIGHT = 400, 300
LEFT, TOP, BOTTOM = 58, 46, 50
RIGHT_OF_LABELS, RIGHT_OF_KEY = 104, 32
GAP = 5  # between labels
STYLES = 6  # colours and dashes in chart.css, marks below; a seventh line looks like the first

_LINE_HEIGHT = 14
_LABEL_WIDTH, _KEY_WIDTH = 12, 54  # characters
_MOST_IN_CORNER, _LONGEST_IN_CORNER = 3, 40  # lines, and characters of their names
_MARGIN = 12  # of a file

_PAGE, _CHART = (Path(__file__).with_name(name) for name in ("page.css", "chart.css"))


def spread_labels(
    wanted: Sequence[float], heights: Sequence[float], low: float, high: float, gap: float = GAP
) -> list[float]:
    """Centres near the wanted ones, which must be sorted, such that boxes there do not overlap.

    >>> spread_labels([10, 12, 50], [10, 10, 10], 0, 60, gap=0)
    [10, 20.0, 50]
    """
    centres = list(wanted)
    edge = low
    for i, height in enumerate(heights):
        centres[i] = max(centres[i], edge + height / 2)
        edge = centres[i] + height / 2 + gap
    edge = high
    for i in reversed(range(len(centres))):
        centres[i] = min(centres[i], edge - heights[i] / 2)
        edge = centres[i] - heights[i] / 2 - gap
    return centres


def wrap_evenly(words: str, width: int) -> list[str]:
    """Words in as few lines as `width` characters allow, of about the same length.

    >>> wrap_evenly("Vanilla, TReLU (TAT)", 14)
    ['Vanilla,', 'TReLU (TAT)']
    >>> wrap_evenly("vanilla, TReLU", 11)  # words are split only if they must be
    ['vanilla,', 'TReLU']
    """
    fewest = len(wrap(words, width))
    longest = min(width, max(map(len, words.split()), default=1))
    return next(lines for w in range(longest, width + 1) if len(lines := wrap(words, w)) == fewest)


def page_style() -> str:
    """The style sheet of a page with charts in it."""
    return _PAGE.read_text(encoding="utf-8") + _CHART.read_text(encoding="utf-8")


def light_colours() -> dict[str, str]:
    """The colours of a light page by name; they come first in its style sheet."""
    first = page_style().split("@media")[0]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", first))


@dataclass(frozen=True)
class Axis:
    """A named range with ticks, whose words may have a second line."""

    name: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """The position of a value: 0 at `low`, 1 at `high`."""
        if self.logarithmic:  # zero is put at the lowest place
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Line:
    """Points joined by a line, which breaks at NaN; `style` is the number of its colour.

    `value` is written below the label. `marked` are the numbers of the points with a mark, by
    default the last; `ringed` is the number of one with a ring around it, and `broken_off` puts a
    cross at the last point. `bars` are the half lengths of error bars, one for each point, and
    `thin` are lines that it is the mean of.
    """

    label: str
    value: str
    style: int
    points: Sequence[tuple[float, float]]
    marked: Sequence[int] = (-1,)
    ringed: int | None = None
    broken_off: bool = False
    bars: Sequence[float] = ()
    thin: Sequence[Sequence[tuple[float, float]]] = ()

    def __post_init__(self) -> None:
        if self.bars and len(self.bars) != len(self.points):
            raise ValueError(
                f"{self.label!r} needs {len(self.points)} error bars, one for each point (NaN for "
                f"none), got {len(self.bars)}"
            )

    @property
    def finite(self) -> list[tuple[float, float]]:
        """The points that can be drawn."""
        return [point for point in self.points if math.isfinite(point[1])]


@dataclass(frozen=True)
class Chart:
    """A chart of lines; `key` names them in the lower right corner instead of at their ends.

    If the names are many or long, they are listed below the chart. `guide` is a thin line for
    comparison, `crosses` are extra points (style, x, y), and `description` is for screen readers.
    """

    title: str
    description: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    key: bool = False
    guide: tuple[tuple[float, float], ...] = ()
    crosses: tuple[tuple[int, float, float], ...] = ()


def linear_axis(name: str, low: float, high: float, unit: str = "") -> Axis:
    """An axis with about five ticks at multiples of 1, 2 or 5 times a power of ten.

    >>> [words for _, words in linear_axis("epoch", 0, 50).ticks]
    ['0', '10', '20', '30', '40', '50']
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((k * power for k in (1, 2, 5, 10)), key=lambda step: abs(step - rough))
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ticks = tuple((n * step, f"{n * step:g}{unit}".replace("-", "−")) for n in numbers)
    return Axis(name, low, high, ticks)


def logarithmic_axis(name: str, values: Sequence[float]) -> Axis:
    """An axis around all positive values, with ticks at powers of ten, and more if those are few.

    >>> [words for _, words in logarithmic_axis("loss", [2.3, 0.02]).ticks]
    ['0.1', '1']
    """
    finite = [value for value in values if value > 0 and math.isfinite(value)] or [0.1, 1.0]
    low, high = min(finite) / 1.3, max(finite) * 1.3
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        ticks = [k * 10.0**n for n in powers for k in factors if low <= k * 10.0**n <= high]
        if len(ticks) > 1:
            break
    return Axis(name, low, high, tuple((t, f"{t:g}") for t in ticks), logarithmic=True)


def svg_element(chart: Chart) -> str:
    """The chart as an `<svg>` element without ids, so that a page may hold many."""
    frame = _Frame(chart)
    opening = (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {frame.height}" role="img" '
        f'aria-label="{escape(chart.description)}">'
    )
    return "\n".join([opening, *_parts(frame), "</svg>"])


def svg_file(*charts: Chart) -> str:
    """Charts side by side as an SVG file, in the light colours and on their background."""
    frames, colours = [_Frame(chart) for chart in charts], light_colours()
    # Few programs that show SVG files, other than browsers, support variables.
    rules = _CHART.read_text(encoding="utf-8")
    rules = re.sub(r"var\(--(\w+)\)", lambda used: colours[used[1]], rules)
    step = WIDTH + 2 * _MARGIN
    wide, high = step * len(charts), max(frame.height for frame in frames) + 2 * _MARGIN
    size = f'width="{wide}" height="{high}"'
    box = f'viewBox="-{_MARGIN} -{_MARGIN} {wide} {high}"'
    drawings = ("\n".join(_parts(frame)) for frame in frames)
    first, *others = drawings
    drawing = first + "".join(
        f'\n<g transform="translate({step * place})">\n{own}\n</g>'
        for place, own in enumerate(others, 1)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" class="chart" {box} {size} role="img">
<title>{escape(" · ".join(chart.title for chart in charts))}</title>
<desc>{escape(" ".join(chart.description for chart in charts))}</desc>
<style>
.chart text {{ font-family: system-ui, 'Liberation Sans', Arial, sans-serif; }}
{rules}</style>
<rect x="-{_MARGIN}" y="-{_MARGIN}" {size} fill="{colours["page"]}"/>
{drawing}
</svg>
"""


def _parts(frame: _Frame) -> list[str]:
    chart = frame.chart
    below = frame.bottom + 34 + 10 * any("\n" in words for _, words in chart.x.ticks)
    names = _key_below if frame.key_below else _key if chart.key else _end_labels
    return [
        _text(0, 14, chart.title, "title"),
        _text(0, 32, chart.y.name, "axis"),
        _text((frame.left + frame.right) / 2, below, chart.x.name, "axis", "middle"),
        *_ticks(frame),
        *([_path("guide", frame.path(chart.guide))] if chart.guide else []),
        *(part for line in chart.lines for part in _line(frame, line)),
        *(_cross(*frame.at(x, y), style) for style, x, y in chart.crosses),
        *names(frame),
    ]


def swatch(style: int) -> str:
    """A short piece of a line in its style, for a legend outside the chart."""
    return (
        '<svg class="swatch" viewBox="0 0 34 12" aria-hidden="true">'
        f"{_path('line', 'M1 6H33', style)}{_mark(17, 6, style)}</svg>"
    )


class _Frame:
    """Turns the values of a chart into places on the drawing."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.left, self.top, self.height = LEFT, TOP, HEIGHT
        self.right = WIDTH - (RIGHT_OF_KEY if chart.key else RIGHT_OF_LABELS)
        long = any(len(line.label) > _LONGEST_IN_CORNER for line in chart.lines)
        self.key_below = chart.key and (long or len(chart.lines) > _MOST_IN_CORNER)
        if not chart.key:  # as high as the labels beside it
            heights = [_label_height(line) + GAP for line in chart.lines if line.finite]
            self.height = max(HEIGHT, sum(heights) + 8)
        self.bottom = self.height - BOTTOM
        if self.key_below:
            self.height += _LINE_HEIGHT * sum(map(len, map(_key_words, chart.lines))) + 2 * GAP

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = self.left + self.chart.x.place(x) * (self.right - self.left)
        return across, self.bottom - self.chart.y.place(y) * (self.bottom - self.top)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """Path data; the pen is lifted at a point that is not finite."""
        path, pen = "", "M"
        for x, y in points:
            if math.isfinite(y):
                across, down = self.at(x, y)
                path += f"{pen}{across:.1f} {down:.1f}"
            pen = "L" if math.isfinite(y) else "M"
        return path


def _ticks(frame: _Frame) -> list[str]:
    parts = []
    for value, words in frame.chart.y.ticks:
        _, y = frame.at(frame.chart.x.low, value)
        parts.append(_path("grid", f"M{frame.left} {y:.1f}H{frame.right}"))
        parts.append(_text(frame.left - 6, y + 4, words, "tick", "end"))
    for value, words in frame.chart.x.ticks:
        x, _ = frame.at(value, frame.chart.y.low)
        parts.append(_path("grid", f"M{x:.1f} {frame.top}V{frame.bottom}"))
        for number, word in enumerate(words.split("\n")):
            parts.append(_text(x, frame.bottom + 15 + 12 * number, word, "tick", "middle"))
    return parts


def _line(frame: _Frame, line: Line) -> list[str]:
    thin = [_path("leader", frame.path(points), line.style) for points in line.thin]
    parts = [*thin, *_bars(frame, line), _path("line", frame.path(line.points), line.style)]
    if line.broken_off and (finite := line.finite):
        return [*parts, _cross(*frame.at(*finite[-1]), line.style)]
    marked = [line.points[number] for number in line.marked] if line.points else []
    parts += [_mark(*frame.at(x, y), line.style) for x, y in marked if math.isfinite(y)]
    if line.ringed is not None:
        x, y = frame.at(*line.points[line.ringed])
        kind = f"ring s{line.style % STYLES}"
        parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="8"/>')
    return parts


def _bars(frame: _Frame, line: Line) -> list[str]:
    """Error bars, cut off at the ends of the axis."""
    axis = frame.chart.y
    parts = []
    for (x, y), half in zip(line.points, line.bars, strict=False):
        if math.isfinite(y) and math.isfinite(half) and half > 0:
            across, top = frame.at(x, min(y + half, axis.high))
            _, bottom = frame.at(x, max(y - half, axis.low))
            parts.append(_path("bar", f"M{across:.1f} {top:.1f}V{bottom:.1f}", line.style))
    return parts


def _label_height(line: Line) -> int:
    return _LINE_HEIGHT * (len(wrap_evenly(line.label, _LABEL_WIDTH)) + bool(line.value))


def _end_labels(frame: _Frame) -> list[str]:
    """The lines' names to the right of their ends, moved apart where they would overlap."""
    lines = [(*frame.at(*line.finite[-1]), line) for line in frame.chart.lines if line.finite]
    ends = sorted(lines, key=lambda end: end[1])
    heights = [_label_height(line) for _, _, line in ends]
    centres = spread_labels([y for _, y, _ in ends], heights, 0, frame.height - 8)
    left = frame.right + 18
    parts = []
    for (x, y, line), height, centre in zip(ends, heights, centres, strict=True):
        leader = f"M{x + 6:.1f} {y:.1f}L{left - 3} {centre:.1f}"
        parts.append(_path("leader", leader, line.style))
        words = wrap_evenly(line.label, _LABEL_WIDTH)
        for number, text in enumerate([*words, line.value] if line.value else words):
            down = centre - height / 2 + _LINE_HEIGHT * number + 11
            kind = "label" if number < len(words) else "label value"
            parts.append(_text(left, down, text, f"{kind} t{line.style % STYLES}"))
    return parts


def _key(frame: _Frame) -> list[str]:
    """The lines' names in the lower right corner, each beside a piece of its line."""
    parts = []
    right = frame.right - 44
    y = frame.bottom - 10 - 2 * _LINE_HEIGHT * len(frame.chart.lines)
    for line in frame.chart.lines:
        style = line.style % STYLES
        parts += [
            *_sample(right + 6, y + 7, style),
            _text(right, y + 11, line.label, f"label t{style}", "end"),
            _text(right, y + 24, line.value, f"label value t{style}", "end"),
        ]
        y += 2 * _LINE_HEIGHT
    return parts


def _key_below(frame: _Frame) -> list[str]:
    """The lines' names below the chart, each after a piece of its line."""
    parts = []
    y = HEIGHT + GAP
    for line in frame.chart.lines:
        parts += _sample(0, y + 7, line.style)
        *words, last = map(escape, _key_words(line))
        for text in [*words, f'{last} <tspan class="value">{escape(line.value)}</tspan>']:
            kind = f"label t{line.style % STYLES}"
            parts.append(f'<text class="{kind}" x="40" y="{y + 11}">{text}</text>')
            y += _LINE_HEIGHT
    return parts


def _key_words(line: Line) -> list[str]:
    """A line's name, wrapped for a key below the chart, with room for its value."""
    return wrap_evenly(line.label, max(_LABEL_WIDTH, _KEY_WIDTH - len(line.value))) or [""]


def _sample(x: float, y: float, style: int) -> list[str]:
    return [_path("line", f"M{x} {y}h32", style), _mark(x + 16, y, style)]


def _mark(x: float, y: float, style: int) -> str:
    """A disc, square, triangle, diamond, triangle or star: styles differ without colour too."""
    shape = (
        "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
        "m-3.5-3.5h7v7h-7z",
        "m0-5l4.6 8h-9.2z",
        "m0-5l5 5l-5 5l-5-5z",
        "m0 5l4.6-8h-9.2z",
        "m0.0-6.0l1.6 3.8l4.1 0.3l-3.1 2.7l1.0 4.0l-3.5-2.2l-3.5 2.2l1.0-4.0l-3.1-2.7l4.1-0.3z",
    )[style % STYLES]
    return f'<path class="mark f{style % STYLES}" d="M{x:.1f} {y:.1f}{shape}"/>'


def _cross(x: float, y: float, style: int) -> str:
    return _path("cross", f"M{x:.1f} {y:.1f}m-4.5-4.5l9 9m0-9l-9 9", style)


def _path(kind: str, data: str, style: int | None = None) -> str:
    classes = kind if style is None else f"{kind} s{style % STYLES}"
    return f'<path class="{classes}" d="{data}"/>'


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'

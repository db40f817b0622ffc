"""Charts: points lie where the axes say, labels do not overlap, epochs follow from steps."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipless.record import Record
from skipless.report.charts import points_by_epoch
from skipless.report.svg import (
    STYLES,
    Axis,
    Chart,
    Line,
    linear_axis,
    logarithmic_axis,
    page_style,
    spread_labels,
    svg_element,
    svg_file,
)


def paths(svg: str, kind: str) -> list[str]:
    return re.findall(rf'<path class="{kind}[^"]*" d="([^"]*)"', svg)


def numbers(path: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?[0-9.]+", path)]


@pytest.mark.parametrize(
    "y", [linear_axis("y", -1, 1), linear_axis("y", 0, 100), logarithmic_axis("y", [0.03, 4.0])]
)
@pytest.mark.parametrize("x", [linear_axis("x", 0, 7), logarithmic_axis("x", [1e-3, 0.1])])
def test_a_line_through_the_ticks_runs_through_the_crossings_of_the_grid(x: Axis, y: Axis) -> None:
    ticks = [(a, b) for a, _ in x.ticks for b, _ in y.ticks]
    svg = svg_element(Chart("", "", x, y, (Line("", "", 0, ticks),)))
    grid = paths(svg, "grid")
    across = [numbers(path)[0] for path in grid if "V" in path]
    down = [numbers(path)[1] for path in grid if "H" in path]
    (line,) = paths(svg, "line")
    found = numbers(line)
    assert list(zip(found[::2], found[1::2], strict=True)) == [(a, b) for a in across for b in down]
    assert across == sorted(across)
    assert down == sorted(down, reverse=True)


def test_equal_factors_are_equal_steps_on_a_logarithmic_axis() -> None:
    axis = logarithmic_axis("", [0.01, 1.0])
    steps = [axis.place(value) for value in (0.01, 0.1, 1.0)]
    assert steps[1] - steps[0] == pytest.approx(steps[2] - steps[1])
    assert axis.place(0.0) == 0.0


def test_a_line_breaks_where_there_is_no_number() -> None:
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, math.nan), (3.0, 4.0), (4.0, math.inf)]
    axes = linear_axis("", 0, 5), linear_axis("", 0, 5)
    (path,) = paths(svg_element(Chart("", "", *axes, (Line("", "", 0, points),))), "line")
    assert re.sub("[^A-Z]", "", path) == "MLM"


def test_a_line_that_broke_off_ends_in_a_cross_instead_of_a_mark() -> None:
    axes = linear_axis("", 0, 5), linear_axis("", 0, 5)
    for broken_off in (False, True):
        line = Line("", "", 0, [(0.0, 1.0), (1.0, 2.0)], broken_off=broken_off)
        svg = svg_element(Chart("", "", *axes, (line,)))
        assert (len(paths(svg, "cross")), len(paths(svg, "mark"))) == (broken_off, not broken_off)


@given(st.lists(st.tuples(st.floats(0, 300), st.floats(5, 45)), max_size=5))
def test_labels_moved_apart_keep_their_order_and_stay_inside(wanted: list[tuple[float, float]]):
    wanted.sort()
    heights = [height for _, height in wanted]
    centres = spread_labels([centre for centre, _ in wanted], heights, 0, 300, gap=5)
    tops = [centre - height / 2 for centre, height in zip(centres, heights, strict=True)]
    bottoms = [centre + height / 2 for centre, height in zip(centres, heights, strict=True)]
    edges = [-5.0, *(bottom for bottom in bottoms)]
    assert all(top >= edge + 5 - 1e-9 for edge, top in zip(edges, [*tops, 305.0], strict=True))


def test_rows_within_an_epoch_are_placed_by_their_steps() -> None:
    steps = range(5, 101, 5)
    rows = [{"kind": "train", "step": s, "epoch": (s - 1) // 10, "loss": 1 / s} for s in steps]
    end = {"kind": "validation", "step": 100, "epoch": 10, "top1": 0.5}
    found = points_by_epoch(Record(Path(), {}, (*rows, end)), "train", "loss")
    assert found == [(pytest.approx(s / 10), 1 / s) for s in steps]


def test_a_long_series_is_thinned_and_keeps_its_end() -> None:
    rows = tuple(
        {"kind": "train", "step": s, "epoch": s / 10, "loss": float(s)} for s in range(1, 3001)
    )
    found = points_by_epoch(Record(Path(), {}, rows), "train", "loss")
    assert 300 <= len(found) <= 400
    assert found[-1] == (300.0, 3000.0)


def one_of_each_style(key: bool = False) -> Chart:
    points = [(0.0, 1.0), (5.0, 4.0)]
    lines = tuple(Line(f"line {n}", f"{n} < 9", n, points) for n in range(STYLES))
    return Chart("T & t", "D", linear_axis("", 0, 5), linear_axis("", 0, 5), lines, key=key)


def test_six_lines_differ_in_colour_dash_and_mark() -> None:
    svg = svg_file(one_of_each_style())
    assert STYLES == 6
    shapes = [re.sub(r"^M[\d.]+ [\d.]+", "", path) for path in paths(svg, "mark")]
    assert len(set(shapes)) == 6
    for kind in ("s", "f", "t"):
        colours = re.findall(rf"\.{kind}\d {{ (?:stroke|fill): (#\w+); }}", svg)
        assert len(colours) == len(set(colours)) == 6
    dashes = re.findall(r"\.line\.s\d { stroke-dasharray: ([\d ]+); }", svg)
    assert len(set(dashes)) == 5  # and one line is whole


def luminance(colour: str) -> float:
    """https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    levels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in levels]
    return sum(share * v for share, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_every_colour_of_words_is_legible_on_light_and_dark_pages() -> None:
    schemes = re.findall(r":root \{([^}]*--page[^}]*)\}", page_style())
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+): (#\w{6})", scheme))
        words = [*(f"c{n}" for n in range(STYLES)), "text", "quiet", "good", "bad"]
        for name in words:
            one, other = sorted(luminance(colours[which]) for which in (name, "page"))
            assert (other + 0.05) / (one + 0.05) >= 4.5, name


@pytest.mark.parametrize("key", [False, True])
def test_a_file_is_xml_with_its_colours_written_out(key: bool) -> None:
    chart = one_of_each_style(key)
    svg = svg_file(chart)
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    assert "var(" not in svg
    assert root.findtext(f"{space}title") == "T & t"
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    (paper,) = root.iter(f"{space}rect")
    assert [float(paper.attrib[name]) for name in ("x", "y", "width", "height")] == [
        left, top, width, height,
    ]  # fmt: skip
    assert paper.attrib["fill"] == "#ffffff"
    for text in root.iter(f"{space}text"):
        assert 0 <= float(text.attrib["y"]) <= top + height
    values = [text for text in root.itertext() if text.strip().endswith("< 9")]
    assert len(values) == STYLES
    assert re.findall(r"\d\.\d{2,}", svg.split("</style>")[1]) == []  # rounded


def test_a_page_shows_the_same_drawing_as_the_file() -> None:
    chart = one_of_each_style()
    inside = svg_element(chart).split("\n")[1:-1]
    assert "\n".join(inside) in svg_file(chart)


def test_error_bars_span_their_lengths_and_end_at_the_axis() -> None:
    points = [(0.0, 2.0), (1.0, math.nan), (2.0, 2.0), (3.0, 4.5), (4.0, 1.0)]
    line = Line("", "", 0, points, bars=[1.0, 1.0, math.nan, 2.0, 0.0])
    axes = linear_axis("", 0, 5), linear_axis("", 0, 5)
    svg = svg_element(Chart("", "", *axes, (line,)))
    down = [numbers(path)[1] for path in paths(svg, "grid") if "H" in path]  # of 0, 1, ... 5
    across = [numbers(path)[0] for path in paths(svg, "grid") if "V" in path]
    first, last = [numbers(path) for path in paths(svg, "bar")]
    assert first == [across[0], down[3], down[1]]
    assert last == [across[3], down[5], pytest.approx((down[2] + down[3]) / 2, abs=0.1)]


def test_error_bars_for_other_points_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'a' needs 2 error bars, one for each point .* got 1"):
        Line("a", "", 0, [(0.0, 1.0), (1.0, 1.0)], bars=[0.5])


def test_labels_of_many_lines_make_the_chart_higher_and_do_not_overlap() -> None:
    points = [(0.0, 1.0), (5.0, 4.0)]
    name = "2026-11-16T05-42-22-resnet50-digits"
    lines = tuple(Line(name, "97.2%", n, points) for n in range(STYLES))
    svg = svg_element(Chart("", "", linear_axis("", 0, 5), linear_axis("", 0, 5), lines))
    (height,) = re.findall(r'viewBox="0 0 400 (\d+)"', svg)
    rows = [float(y) for y in re.findall(r'class="label[^"]*" x="[\d.]+" y="([\d.]+)"', svg)]
    assert rows == sorted(rows)
    assert min(b - a for a, b in pairwise(rows)) >= 14
    assert rows[0] >= 10
    assert rows[-1] <= float(height)

"""Charts: points lie where the axes say, labels do not overlap, epochs follow from steps."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipless.record import Record
from skipless.report.charts import epochs
from skipless.report.svg import Axis, Chart, Line, apart, drawn, linear_axis, logarithmic_axis


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
    svg = drawn(Chart("", "", x, y, (Line("", "", 0, ticks),)))
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
    (path,) = paths(drawn(Chart("", "", *axes, (Line("", "", 0, points),))), "line")
    assert re.sub("[^A-Z]", "", path) == "MLM"


def test_a_line_that_broke_off_ends_in_a_cross_instead_of_a_mark() -> None:
    axes = linear_axis("", 0, 5), linear_axis("", 0, 5)
    for broken_off in (False, True):
        line = Line("", "", 0, [(0.0, 1.0), (1.0, 2.0)], broken_off=broken_off)
        svg = drawn(Chart("", "", *axes, (line,)))
        assert (len(paths(svg, "cross")), len(paths(svg, "mark"))) == (broken_off, not broken_off)


@given(st.lists(st.tuples(st.floats(0, 300), st.floats(5, 45)), max_size=5))
def test_labels_moved_apart_keep_their_order_and_stay_inside(wanted: list[tuple[float, float]]):
    wanted.sort()
    heights = [height for _, height in wanted]
    centres = apart([centre for centre, _ in wanted], heights, 0, 300, gap=5)
    tops = [centre - height / 2 for centre, height in zip(centres, heights, strict=True)]
    bottoms = [centre + height / 2 for centre, height in zip(centres, heights, strict=True)]
    edges = [-5.0, *(bottom for bottom in bottoms)]
    assert all(top >= edge + 5 - 1e-9 for edge, top in zip(edges, [*tops, 305.0], strict=True))


def test_rows_within_an_epoch_are_placed_by_their_steps() -> None:
    steps = range(5, 101, 5)
    rows = [{"kind": "train", "step": s, "epoch": (s - 1) // 10, "loss": 1 / s} for s in steps]
    end = {"kind": "validation", "step": 100, "epoch": 10, "top1": 0.5}
    found = epochs(Record(Path(), {}, (*rows, end)), "train", "loss")
    assert found == [(pytest.approx(s / 10), 1 / s) for s in steps]


def test_a_long_series_is_thinned_and_keeps_its_end() -> None:
    rows = tuple(
        {"kind": "train", "step": s, "epoch": s / 10, "loss": float(s)} for s in range(1, 3001)
    )
    found = epochs(Record(Path(), {}, rows), "train", "loss")
    assert 300 <= len(found) <= 400
    assert found[-1] == (300.0, 3000.0)

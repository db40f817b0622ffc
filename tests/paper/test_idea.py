"""The figures of docs/idea.md are what the code draws, and what they show is true."""

from __future__ import annotations

import math
import re
from pathlib import Path
from urllib.parse import parse_qs

import pytest

import skipless as sk
from skipless.paper import idea
from skipless.report.svg import Chart

DOCS = Path(__file__).parents[2] / "docs"


def behind_relu(layers: int) -> float:
    """The cosine of unrelated inputs behind ReLU layers (Cho and Saul, 2009)."""
    c = 0.0
    for _ in range(layers):
        c = (math.sqrt(1.0 - c * c) + (math.pi - math.acos(c)) * c) / math.pi
    return c


def at_zero(chart: Chart) -> list[float]:
    """What each line makes of c = 0."""
    return [{round(x, 12): y for x, y in line.points}[0.0] for line in chart.lines]


def test_the_committed_figures_are_what_the_code_draws(tmp_path: Path) -> None:
    written = {path.name: path.read_text("utf-8") for path in idea.write_figures(tmp_path)}
    committed = DOCS / "images" / "idea"
    assert {path.name: path.read_text("utf-8") for path in committed.iterdir()} == written


def test_relu_networks_are_pressed_against_one_as_the_closed_form_says() -> None:
    assert at_zero(idea.depth()) == pytest.approx([behind_relu(n) for n in (1, 5, 20, 100)])


def test_tat_holds_what_it_is_asked_to_at_every_depth() -> None:
    assert at_zero(idea.held()) == pytest.approx([behind_relu(100), 0.9, 0.9, 0.9])


def test_methods_do_with_unrelated_inputs_what_the_page_says() -> None:
    eoc, tat, smooth, dks = at_zero(idea.methods())
    assert (eoc, tat) == pytest.approx((behind_relu(100), 0.9))
    assert 0.0 < smooth < 0.3  # below its curvature, by theorem 2
    assert dks == pytest.approx(0.0, abs=1e-12)


def test_a_stronger_shortcut_keeps_unrelated_inputs_farther_apart() -> None:
    values = at_zero(idea.shortcuts())
    assert values == sorted(values, reverse=True)
    c = 0.0
    for _ in range(33):
        branch = c
        for _ in range(3):
            branch = (math.sqrt(1.0 - branch**2) + (math.pi - math.acos(branch)) * branch) / math.pi
        c = 0.95**2 * c + (1.0 - 0.95**2) * branch
    assert values[2] == pytest.approx(c)


def test_the_page_tells_the_angles_that_the_figures_show() -> None:
    page = (DOCS / "idea.md").read_text("utf-8")
    angles = [math.degrees(math.acos(behind_relu(n))) for n in (1, 20, 100)]
    told = [f"{angle:.0f}°" for angle in angles]
    assert re.findall(r"is (71°)|are (\d+°) apart, behind 100 layers (\d+°)", page) == [
        (told[0], "", ""),
        ("", *told[1:]),
    ]
    assert f"0.9 ({math.degrees(math.acos(0.9)):.0f}°)" in page


def test_every_figure_is_on_the_page_and_every_link_opens_a_view() -> None:
    page = (DOCS / "idea.md").read_text("utf-8")
    shown = re.findall(r"images/idea/(\w+)\.svg", page)
    assert sorted(shown) == sorted(figure.__name__ for figure in idea.FIGURES)
    views = [parse_qs(f, strict_parsing=True) for f in re.findall(r"index\.html#([^)]+)\)", page)]
    assert len(views) == 7
    known = {"method", "activation", "depth", "shortcut", "eta", "tau", "zeta", "sigma_b"}
    for view in views:
        assert view.keys() <= known
        assert view["method"][0] in ("tat", "dks", "eoc", "plain")
        assert view["activation"][0] in sk.activation_names()

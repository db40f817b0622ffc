"""The committed pages and figures are what the scripts in docs write, and they show the truth."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from urllib.parse import parse_qs

import idea_figures
import pytest
import results_page

import skipless as sk
from skipless.paper import ITEMS
from skipless.paper.results import Results, Value
from skipless.report.svg import Chart

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


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
    written = {path.name: path.read_text("utf-8") for path in idea_figures.write_figures(tmp_path)}
    committed = DOCS / "images" / "idea"
    assert {path.name: path.read_text("utf-8") for path in committed.iterdir()} == written


def test_relu_networks_approach_one_as_the_closed_form_says() -> None:
    assert at_zero(idea_figures.depth()) == pytest.approx([behind_relu(n) for n in (1, 5, 20, 100)])


def test_tat_keeps_its_target_at_every_depth() -> None:
    assert at_zero(idea_figures.held()) == pytest.approx([behind_relu(100), 0.9, 0.9, 0.9])


def test_methods_do_with_unrelated_inputs_what_the_page_says() -> None:
    eoc, tat, smooth, dks = at_zero(idea_figures.methods())
    assert (eoc, tat) == pytest.approx((behind_relu(100), 0.9))
    assert 0.0 < smooth < 0.3  # below its curvature, by theorem 2
    assert dks == pytest.approx(0.0, abs=1e-12)


def test_a_stronger_shortcut_keeps_unrelated_inputs_farther_apart() -> None:
    values = at_zero(idea_figures.shortcuts())
    assert values == sorted(values, reverse=True)
    c = 0.0
    for _ in range(33):
        branch = c
        for _ in range(3):
            branch = (math.sqrt(1.0 - branch**2) + (math.pi - math.acos(branch)) * branch) / math.pi
        c = 0.95**2 * c + (1.0 - 0.95**2) * branch
    assert values[2] == pytest.approx(c)


def test_the_page_has_the_angles_that_the_figures_show() -> None:
    page = (DOCS / "idea.md").read_text("utf-8")
    angles = [math.degrees(math.acos(behind_relu(n))) for n in (1, 20, 100)]
    printed = [f"{angle:.0f}°" for angle in angles]
    assert re.findall(r"is (71°)|are (\d+°) apart, after 100 layers (\d+°)", page) == [
        (printed[0], "", ""),
        ("", *printed[1:]),
    ]
    assert f"0.9 ({math.degrees(math.acos(0.9)):.0f}°)" in page


def test_every_figure_is_on_the_page_and_every_link_opens_a_view() -> None:
    page = (DOCS / "idea.md").read_text("utf-8")
    shown = re.findall(r"images/idea/(\w+)\.svg", page)
    assert sorted(shown) == sorted(figure.__name__ for figure in idea_figures.FIGURES)
    views = [parse_qs(f, strict_parsing=True) for f in re.findall(r"index\.html#([^)]+)\)", page)]
    assert len(views) == 7
    known = {"method", "activation", "depth", "shortcut", "eta", "tau", "zeta", "sigma_b"}
    for view in views:
        assert view.keys() <= known
        assert view["method"][0] in ("tat", "dks", "eoc", "plain")
        assert view["activation"][0] in sk.activation_names()


def test_the_page_its_charts_and_the_readme_are_written_from_the_results(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "cpu"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / results_page.RESULTS / "figure1.jsonl", folder)
    values = (Value("DKS", "Q(1)", 1.0, 1.0),)
    Results("table1", "cpu", {"seconds": 5}, values=values).write(folder / "table1.jsonl")
    images = tmp_path / "docs" / "images" / "results"
    images.mkdir(parents=True)
    (images / "gone-1.svg").touch()
    marks = results_page.START, results_page.END
    (tmp_path / "README.md").write_text(f"before\n{marks[0]}\nearlier\n{marks[1]}\nafter\n")
    text = results_page.write_page(tmp_path).read_text(encoding="utf-8")
    # Figure 1 has three that hold; of table 1, the conditions are met, and C_f(0) is not there.
    assert "Of 5 claims, 4 hold and 0 do not; 1 were not run." in text
    assert {path.name for path in images.iterdir()} == {"figure1-1.svg"}
    shown = set(re.findall(r"\]\(images/results/([^)]*)\)", text))
    assert shown == {"figure1-1.svg"}
    before, table, after = re.split("<!-- results: .* -->", (tmp_path / "README.md").read_text())
    assert (before, after) == ("before\n", "\nafter\n")
    assert [line.split(" | ")[1] for line in table.splitlines()[3:]] == ["3 of 3", "1 of 2"]
    assert "(docs/results.md#figure1)" in table
    assert "earlier" not in table
    again = (tmp_path / "README.md").read_text()
    results_page.write_page(tmp_path)
    assert (tmp_path / "README.md").read_text() == again


def test_a_readme_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"README.md lacks the marks .* Put them back"):
        results_page.replace_table("nothing", "| table |\n")


def test_the_committed_results_make_the_committed_pages_byte_for_byte() -> None:
    text, charts, table = results_page.build_page(ROOT / results_page.RESULTS)
    docs = ROOT / "docs"
    images = docs / "images" / "results"
    assert (docs / "results.md").read_bytes().decode() == text
    assert {path.name: path.read_bytes().decode() for path in images.iterdir()} == charts
    readme = (ROOT / "README.md").read_bytes().decode()
    assert results_page.replace_table(readme, table) == readme


def test_the_committed_results_are_those_of_all_items_at_the_scale_cpu() -> None:
    found = [Results.read(path) for path in sorted((ROOT / results_page.RESULTS).glob("*.jsonl"))]
    assert {(own.item, own.scale) for own in found} == {(name, "cpu") for name in ITEMS}
    for own in found:
        assert own.origin["machines"]
        assert own.origin["versions"]
        assert own.origin["started"]


@pytest.mark.parametrize(
    ("item", "claim"),
    [
        ("table5", "At depth 101 with SGD, TAT beats EOC with (leaky) ReLU"),
        ("figure1", "EOC falls with depth: it loses more than 10 points from 50 to 200"),
        ("figure1", "At depth 200, TAT is within 2 points of its accuracy at depth 50"),
        (
            "table2",
            "With w = 0.8 and TReLU, ResNets without BatchNorm are no worse than standard ones",
        ),
        ("figure3", "K-FAC needs fewer epochs than SGD to reach the same training loss"),
        ("figure4", "With Gaussian weights, TReLU's error is smaller than DKS + SoftPlus's"),
    ],
)
def test_what_the_paper_stands_on_holds_in_the_committed_results(item: str, claim: str) -> None:
    found = Results.read(ROOT / results_page.RESULTS / f"{item}.jsonl")
    words = {verdict.claim: verdict.word for verdict in ITEMS[item].verdicts(found)}
    assert words[f"{claim}."] == "holds"

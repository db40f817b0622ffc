"""The committed pages and figures are what the scripts in docs write, and they show the truth."""

from __future__ import annotations

import math
import re
from pathlib import Path
from urllib.parse import parse_qs
from xml.etree import ElementTree

import idea_figures
import pytest
import results_page

import skipless as sk
from skipless.paper import ITEMS
from skipless.paper.results import Results, Trial, Value
from skipless.report.svg import Chart
from skipless.runs.outcome import Outcome, TrainingCurve, ValidationCurve

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ENDS = ("start", "end")


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
    _figure1().write(folder / "figure1.jsonl")
    values = (Value("DKS", "Q(1)", 1.0, 1.0),)
    Results("table1", "cpu", {"seconds": 5}, values=values).write(folder / "table1.jsonl")
    images = tmp_path / "docs" / "images" / "results"
    images.mkdir(parents=True)
    (images / "gone-1.svg").touch()
    (tmp_path / results_page.DEMO).write_text("| the demo |\n")
    marks = "\n".join(f"<!-- {n}: {e} -->\nearlier" for n in ("demo", "results") for e in ENDS)
    (tmp_path / "README.md").write_text(f"before\n{marks}\nafter\n")
    text = results_page.write_page(tmp_path).read_text(encoding="utf-8")
    # Of figure 1, two hold, and the third has depths that are still to be run; of table 1, the
    # conditions are met, and C_f(0) is not there.
    count = len([claim for item in ITEMS.values() for claim in item.claims])
    verdicts = f"3 hold at this scale and 0 not; undecided: 1, still to be run: {count - 4}"
    assert f"Of {count} claims, the paper's and ours, {verdicts}." in text
    assert (
        "| [`figure1`](#figure1) | TAT beats EOC at every depth. | undecided | holds | 2.0 |"
        in text
    )
    assert "| `table5` | TAT beats EOC in every setting. | not run | does not hold |" in text
    assert "Not run yet: `figure2`, " in text
    assert "Not complete: `figure1`." in text
    assert {path.name for path in images.iterdir()} == {"figure1-1.svg"}
    shown = set(re.findall(r"\]\(images/results/([^)]*)\)", text))
    assert shown == {"figure1-1.svg"}
    readme = (tmp_path / "README.md").read_text()
    before, demo, between, table, after = re.split("<!-- (?:demo|results): .* -->", readme)
    assert (before, demo, between) == ("before\n", "\n\n| the demo |\n\n", "\nearlier\n")
    assert after == "\nearlier\nafter\n"
    assert "earlier" not in table
    # Three seeds a tenth of a point apart: Student's 4.30 times 0.1 over the root of 3.
    assert "| ReLU: **40.1** ± 0.2 | TReLU: **80.1** ± 0.2 | 3 | [`figure1`]" in table
    assert verdicts in table
    results_page.write_page(tmp_path)
    assert (tmp_path / "README.md").read_text() == readme


def _figure1() -> Results:
    """TAT stays at 80 %, EOC falls from 70 to 40 %; a cell is missing, and runs are left."""
    means = {("TAT", "50"): 0.8, ("TAT", "200"): 0.8, ("EOC", "50"): 0.7, ("EOC", "200"): 0.4}
    curves = ValidationCurve([1.0], [0.5], [1.0]), TrainingCurve([1.0], [1.0], [0.5], [1.0])
    trials = tuple(
        Trial(row, column, {}, seed, Outcome(False, top1, 1.0, 0.5, 9.0, 5, *curves, "", {}, {}))
        for (row, column), mean in means.items()
        for seed, top1 in enumerate((mean, mean + 0.001, mean + 0.002))
    )
    return Results("figure1", "cpu", {"seconds": 7200, "left": 5}, trials)


def test_the_pictures_of_the_demo_and_its_table_are_of_one_run() -> None:
    table = (ROOT / results_page.DEMO).read_text().splitlines()[2:]
    words = ElementTree.parse(DOCS / "images" / "demo.svg").getroot().itertext()
    labels = {" ".join(text.split()) for text in words}
    assert len(table) == 3
    for row in table:
        assert row.split("|")[-2].strip() in labels


def test_untrained_relu_networks_forget_the_square_and_trelu_networks_do_not() -> None:
    layers = 50
    shaped = sk.solve(sk.Graph.chain(layers), sk.TAT(eta=0.9))
    relu = sk.solve(sk.Graph.chain(layers), sk.EOC(), "relu")
    (grey, small), (colours, large) = (idea_figures.sample(s, layers, 8, 0) for s in (relu, shaped))
    # Angles of finite networks vary from one to the next, by about a seventh at this width.
    assert small == pytest.approx(math.degrees(math.acos(behind_relu(layers))), rel=0.4)
    assert large == pytest.approx(math.degrees(math.acos(0.9)), rel=0.4)
    # Small differences between outputs are in proportion to angles.
    spreads = [own.reshape(-1, 3).std(axis=0).mean() for own in (grey, colours)]
    assert spreads[1] / spreads[0] == pytest.approx(large / small, rel=0.4)


def test_a_readme_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"README.md lacks the marks .*demo.* Put them back"):
        results_page.replace_part("nothing", "demo", "| table |\n")


def test_the_committed_results_make_the_committed_pages_byte_for_byte() -> None:
    text, charts, highlights = results_page.build_page(ROOT / results_page.RESULTS)
    docs = ROOT / "docs"
    images = docs / "images" / "results"
    assert (docs / "results.md").read_bytes().decode() == text
    assert {path.name: path.read_bytes().decode() for path in images.iterdir()} == charts
    readme = (ROOT / "README.md").read_bytes().decode()
    assert results_page.replace_part(readme, "results", highlights) == readme
    demo = (ROOT / results_page.DEMO).read_text(encoding="utf-8")
    assert results_page.replace_part(readme, "demo", demo) == readme


def test_the_committed_results_are_of_items_at_the_scale_cpu_and_say_where_they_come_from() -> None:
    found = [Results.read(path) for path in sorted((ROOT / results_page.RESULTS).glob("*.jsonl"))]
    assert {own.scale for own in found} == {"cpu"}
    for own in found:
        assert own.item in ITEMS
        for name in ("machines", "versions", "started"):
            assert own.origin[name]
        if own.trials:
            assert own.origin["commits"]
            assert "and changes" not in str(own.origin["commits"])


@pytest.mark.parametrize(
    ("item", "claim"),
    [
        ("figure4", "With Gaussian weights, TReLU's error is smaller than DKS + SoftPlus's"),
    ],
)
def test_what_needs_no_training_holds_in_the_committed_results(item: str, claim: str) -> None:
    found = Results.read(ROOT / results_page.RESULTS / f"{item}.jsonl")
    words = {verdict.claim: verdict.word for verdict in ITEMS[item].verdicts(found)}
    assert words[f"{claim}."] == "holds"

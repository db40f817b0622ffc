"""The page of a comparison: well-formed, self-contained, true to its numbers, and drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from browser import Browser, chromium
from html_pages import CHARTS, CONTRAST, Reader, fetched
from skipless.record import MetricsFile, Record, write_run
from skipless.report.comparison import (
    Contestant,
    NetworkComparison,
    SeedRun,
    Tuning,
    comparison_page,
    conclusion,
    rates_chart,
    results_table,
    write_page,
)
from skipless.report.figures import CMapCurve
from skipless.report.page import sections_page

NAN = math.nan
RATES = (0.01, 0.1, 1.0)
NAMES = ("relu", "t<relu", "resnet")
LONG_NAMES = ("Vanilla, ReLU (EOC)", "Vanilla, TReLU (TAT)", "ResNet with BatchNorm")


def record(folder: Path, top1: float, losses: Sequence[float] = (2.3, 0.7, 0.25)) -> Record:
    folder.mkdir()
    write_run(folder, {})
    journal = MetricsFile(folder)
    for epoch, loss in enumerate(losses, 1):
        journal.append("train", 5 * epoch, {"epoch": epoch, "loss": loss, "accuracy": 0.875})
        value = top1 if epoch == len(losses) else 0.1 * epoch
        journal.append("validation", 5 * epoch, {"epoch": epoch, "loss": loss, "top1": value})
    return Record.read(folder)


def curve(power: int) -> CMapCurve:
    """C maps of no network, which send c = 0 to 1 - 2^-power."""
    c = np.linspace(-1.0, 1.0, 21)
    whole = 1 - (1 - c) / 2**power
    return CMapCurve("", c, whole, whole, np.array([0.0, 1 - 2.0**-power]))


def contestant(
    folder: Path, label: str, accuracies: Sequence[float], c_map: CMapCurve | None = None
) -> Contestant:
    runs = {}
    for rate, value in zip(RATES, accuracies, strict=True):
        runs[Tuning(rate)] = [run(folder, value)]
        runs[Tuning(rate, clipped=True)] = [run(folder, value - 0.01)]
    return Contestant(
        label=label,
        description=f"Says <{label}>, as a sentence for newcomers would.",
        shortcuts=c_map is None,
        normalisation=c_map is None,
        parameters=1234567,
        curve=c_map,
        runs=runs,
    )


def run(folder: Path, accuracy: float) -> SeedRun:
    diverged = math.isnan(accuracy)
    path = folder / f"run {len(list(folder.iterdir()))}"
    return SeedRun(record(path, 0.1 if diverged else accuracy), diverged)


def comparison(
    folder: Path, relu: float, trelu: float, resnet: float, names: Sequence[str] = NAMES
) -> NetworkComparison:
    return NetworkComparison(
        title="Deep <em>plain",
        introduction="What <b>is</b> compared.",
        contestants=[
            contestant(folder, names[0], [0.11, relu, NAN], curve(7)),
            contestant(folder, names[1], [0.12, trelu, NAN], curve(3)),
            contestant(folder, names[2], [0.13, 0.14, resnet], None),
        ],
        validation_images=1000,
        facts={"seed": "7 & 8"},
    )


@pytest.fixture
def example(tmp_path: Path) -> NetworkComparison:
    return comparison(tmp_path, relu=0.25, trelu=0.96, resnet=0.97)


def test_the_page_is_well_formed_and_has_every_part_once(example: NetworkComparison) -> None:
    found = Reader(comparison_page(example))
    assert found.count("h1") == found.count("title") == found.count("main") == 1
    assert found.count("figure") == found.count("figcaption") == 3
    assert found.count("table") == found.count("caption") == 3
    charts = [own for tag, own in found.elements if tag == "svg" and own.get("role") == "img"]
    assert len(charts) == 6
    assert all(own["aria-label"] for own in charts)
    assert all(own.get("scope") for tag, own in found.elements if tag == "th")
    assert [own.get("lang") for tag, own in found.elements if tag == "html"] == ["en"]
    assert not any("id" in own for _, own in found.elements)


def test_the_page_fetches_nothing(example: NetworkComparison) -> None:
    assert fetched(comparison_page(example)) == []
    assert "data:," in comparison_page(example)  # the icon that a browser would ask for otherwise


def test_every_page_forbids_browsers_to_fetch_run_or_send(example: NetworkComparison) -> None:
    for page in (comparison_page(example), sections_page("Title", [])):
        (policy,) = (own for tag, own in Reader(page).elements if "http-equiv" in own)
        assert policy["http-equiv"] == "Content-Security-Policy"
        rules = dict(rule.split(maxsplit=1) for rule in str(policy["content"]).split("; "))
        assert rules == {
            "default-src": "'none'", "style-src": "'unsafe-inline'", "img-src": "data:",
            "base-uri": "'none'", "form-action": "'none'",
        }  # fmt: skip
        assert page.index("http-equiv") < page.index("<style>")


def test_words_from_outside_are_escaped(example: NetworkComparison) -> None:
    text = comparison_page(example)
    found = Reader(text)
    assert "t<relu" not in text
    assert "<b>is</b>" not in text
    assert found.within("h1") == ["Deep <em>plain"]
    assert "What <b>is</b> compared." in found.within("p")
    assert "Says <t<relu>, as a sentence for newcomers would." in found.within("span")
    assert "7 & 8" in found.within("td")


def test_the_tables_hold_the_numbers_of_the_runs(example: NetworkComparison) -> None:
    cells = Reader(comparison_page(example)).within("td")
    one = ["no", "no", "1,234,567", "0.1", "87.5%", "25.0%"]
    two = ["no", "no", "1,234,567", "0.1", "87.5%", "96.0%"]
    three = ["yes", "yes", "1,234,567", "1", "87.5%", "97.0%"]
    first, second = ["11.0%", "12.0%", "13.0%"], ["25.0%", "96.0%", "14.0%"]
    first += ["10.0%", "11.0%", "12.0%"]  # clipped
    second += ["24.0%", "95.0%", "13.0%"]
    third = ["diverged", "diverged", "97.0%", "diverged", "diverged", "96.0%"]
    grid = [*first, *second, *third]
    assert cells == [*one, *two, *three, *grid, "7 & 8"]
    rows = [re.split("  +", line) for line in results_table(example).splitlines()[2:]]
    assert rows == [["relu", *one], ["t<relu", *two], ["resnet", *three]]
    settings = Reader(comparison_page(example)).within("th")[-7:-1]
    assert settings == [f"{rate:g}{words}" for rate in RATES for words in ("", ", clipped")]


def test_a_ring_marks_the_best_setting_on_the_chart_that_it_belongs_to(tmp_path: Path) -> None:
    plain = contestant(tmp_path, "plain", [0.5, 0.96, 0.95])
    best = Tuning(1.0, clipped=True)
    clipped = replace(plain, runs={**plain.runs, best: [run(tmp_path, 0.97)]})
    without, with_clipping = (rates_chart([plain, clipped], own) for own in (False, True))
    assert [x for x, _ in without.lines[0].points] == list(RATES)
    assert [line.ringed for line in without.lines] == [1, None]
    assert [line.ringed for line in with_clipping.lines] == [None, 2]
    assert [line.value for line in with_clipping.lines] == ["best 95.0%", "best 97.0%"]


def with_seeds(folder: Path, label: str, *others: float) -> Contestant:
    """A network whose best setting has more seeds."""
    one = contestant(folder, label, [0.5, 0.96, 0.95])
    best = Tuning(0.1)
    return replace(
        one, runs={**one.runs, best: [*one.runs[best], *(run(folder, o) for o in others)]}
    )


def test_the_result_is_the_mean_and_spread_of_the_seeds_of_the_best_setting(
    tmp_path: Path,
) -> None:
    one = with_seeds(tmp_path, "trelu", 0.97, 0.98)
    text = comparison_page(NetworkComparison("", "", [one], 1000, {}))
    # of 96, 97 and 98: mean 97, sum of squares 2, variance 2 / (3 - 1)
    assert "97.0 ± 1.0%" in Reader(text).within("td")
    assert "trelu</b> gets 97.0 ± 1.0% of the 1,000 validation images right." in text
    assert "96.0%" in Reader(text).within("td")  # of the first seed, among the settings
    # The training charts have a thin line for each seed around their mean.
    assert text.count('class="leader') == 2 * 3 + 4


def test_a_seed_that_diverged_is_counted_and_left_out_of_the_mean(tmp_path: Path) -> None:
    one = with_seeds(tmp_path, "trelu", NAN, 0.98)
    assert one.accuracy == pytest.approx(0.97)
    words = conclusion(NetworkComparison("", "", [one], 1000, {}))
    assert words == "trelu gets 97.0 ± 1.4% (1 of 3 diverged) of the 1,000 validation images right."


def test_the_maps_are_put_into_words_by_their_numbers(example: NetworkComparison) -> None:
    almost, alike = [
        text for text in Reader(comparison_page(example)).within("li") if "unrelated" in text
    ]
    # arccos(1 - 1/128) = 7.17°, arccos(1 - 2/128) = 10.14°; with 8 for 128: 28.96° and 41.41°
    assert "c = 0.992, 7° apart, almost identical." in almost
    assert "at most 10° apart: the network can hardly tell" in almost
    assert "c = 0.875, 29° apart, alike, but still distinct." in alike
    assert "at most 41° apart: the network can still tell" in alike


@pytest.mark.parametrize(
    ("relu", "trelu", "resnet", "said"),
    [
        (
            0.25, 0.9, 0.97,
            "resnet comes first: it gets 97.0% of the 1,000 validation images right, 7.0 "
            "percentage points more than t<relu (90.0%) and 72.0 more than relu (25.0%).",
        ),
        (
            0.25, 0.97, 0.9,
            "t<relu comes first: it gets 97.0% of the 1,000 validation images right, 7.0 "
            "percentage points more than resnet (90.0%) and 72.0 more than relu (25.0%).",
        ),
        (
            0.25, 0.9701, 0.9699,
            "t<relu and resnet come first together: each gets 97.0% of the 1,000 validation images "
            "right, 72.0 percentage points more than relu (25.0%).",
        ),
    ],
)  # fmt: skip
def test_the_conclusion_follows_the_numbers(
    tmp_path: Path, relu: float, trelu: float, resnet: float, said: str
) -> None:
    assert conclusion(comparison(tmp_path, relu, trelu, resnet)) == said


# Two standard errors of the difference at p = 0.97, n = 1000 are 2 sqrt(2 * 0.0291 / 1000) = 1.53 %
@pytest.mark.parametrize(("trelu", "level"), [(0.956, True), (0.953, False)])
def test_a_gap_that_may_be_chance_is_called_so(tmp_path: Path, trelu: float, level: bool) -> None:
    words = conclusion(comparison(tmp_path, 0.25, trelu, 0.97))
    chance = " a gap of up to 1.5 points can be chance, so resnet and t<relu are about level."
    assert words.endswith(chance) is level


def test_networks_that_diverged_are_reported_as_such(tmp_path: Path) -> None:
    lost = contestant(tmp_path, "relu", [NAN, NAN, NAN])
    kept = contestant(tmp_path, "trelu", [NAN, 0.5, NAN])
    both = NetworkComparison("", "", [lost, kept], 1000, {})
    assert conclusion(both) == (
        "trelu gets 50.0% of the 1,000 validation images right. "
        "relu diverged at every learning rate tried."
    )
    assert results_table(both).splitlines()[2].split()[4:7] == ["-", "diverged", "diverged"]
    assert "nan" not in comparison_page(both)
    # One for each of ten runs, and one at the end of the accuracies.
    assert comparison_page(both).count('class="cross') == 11


def test_a_loss_that_is_no_number_ends_its_line(tmp_path: Path) -> None:
    whole = contestant(tmp_path, "relu", [0.1, 0.2, 0.3])
    last = SeedRun(record(tmp_path / "broken", 0.3, [2.3, 9.0, NAN]))
    broken = replace(whole, runs={**whole.runs, Tuning(1.0): [last]})
    counts = [
        comparison_page(NetworkComparison("", "", [one], 9, {})).count("cross")
        for one in (whole, broken)
    ]
    assert counts[1] == counts[0] + 1


def test_a_page_without_a_folder_is_refused(example: NetworkComparison, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="mkdir -p"):
        write_page(tmp_path / "missing" / "page.html", example)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1200, "light")])
def test_a_browser_shows_every_chart_whole_on_any_screen(
    browser: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    example = comparison(tmp_path, 0.25, 0.96, 0.97, LONG_NAMES)
    browser.resize(width)
    browser.prefer(scheme)
    browser.go(write_page(tmp_path / "page.html", example))
    assert browser.console() == []
    charts = browser.run(CHARTS)
    # The first has a key.
    assert [len(chart["lines"]) for chart in charts] == [2 + 2, 2, 3, 3, 3, 3]
    for chart in charts:
        assert chart["width"] > 300
        assert chart["height"] > 200
        assert min(chart["lines"]) > 30
        assert chart["clipped"] == []
    assert browser.run("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_are_legible_in_light_and_dark(
    browser: Browser, example: NetworkComparison, tmp_path: Path, scheme: str
) -> None:
    browser.prefer(scheme)
    browser.go(write_page(tmp_path / "page.html", example))
    paper, contrast = browser.run(CONTRAST)
    assert (paper > 0.5) is (scheme == "light")
    assert contrast >= 4.5  # https://www.w3.org/TR/WCAG22/#contrast-minimum


def test_the_page_is_printed_light_and_within_the_paper(browser: Browser, tmp_path: Path) -> None:
    browser.resize(700)  # A4 without its margins, at 96 dots per inch
    browser.prefer("dark", "print")
    example = comparison(tmp_path, 0.25, 0.96, 0.97, LONG_NAMES)
    browser.go(write_page(tmp_path / "page.html", example))
    assert browser.run(CONTRAST)[0] == 1.0
    assert browser.run("return document.documentElement.scrollWidth") <= 700

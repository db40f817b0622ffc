"""Sections as a page, as Markdown and as text: well-formed, self-contained, true to their cells."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from browser import Browser, chromium
from html_pages import CHARTS, CONTRAST, Reader, fetched
from skipless.report.page import sections_page, write_sections_page
from skipless.report.sections import (
    Section,
    Verdict,
    chart_files,
    markdown,
    section_text,
    summary_table,
)
from skipless.report.svg import Chart, Line, linear_axis

HEADER = ["net|work", "depth", "optimizer", "accuracy"]
ROWS = [
    ["ResNet <50>", "50", "K-FAC", "76.4%"],
    ["a | b", "101", "SGD", "diverged"],
    ["\\ *bold* _it_ [x](y) `code` $x$ {#id}", "152", "", "−0.5 ± 0.1"],
]
VERDICTS = [
    Verdict("TAT <beats> EOC.", "holds", "By 9.1 | points & more."),
    Verdict("Vanilla reaches ResNet.", "does not hold", "It is 5 points below."),
    Verdict("ImageNet, too.", "not run", "It takes a week."),
]
LABELS = (
    "ResNet with BatchNorm", "TAT", "DKS, softplus", "2026-11-16T05-42-22-resnet50-digits",
    "PReLU", "a name <of> many words that goes on and on",
)  # fmt: skip


def chart(key: bool = False, lines: int = 6) -> Chart:
    x, y = linear_axis("epoch", 0, 10), linear_axis("accuracy", 0, 100, "%")
    drawn = tuple(
        Line(label, f"{90 - n}%", n, [(0.0, 10.0), (10.0, 90.0 - n)], bars=(3.0, 3.0))
        for n, label in enumerate(LABELS[:lines])
    )
    return Chart("Six <lines>", "Six lines | that rise", x, y, drawn, key=key)


def sections() -> list[Section]:
    first = Section(
        "table-1", "Table 1: <nets>", "What *it* says.", HEADER, ROWS, VERDICTS,
        [chart(), chart(key=True)], {"Seeds": "7 & 8", "Command": "skipless | reproduce"},
    )  # fmt: skip
    return [first, Section("figure-2", "Figure 2", "", ["c", "C(c)"], [["0", "0.9"]])]


def page() -> str:
    return sections_page("The <paper>", sections())


def test_the_page_is_well_formed_and_its_links_lead_to_its_sections() -> None:
    found = Reader(page())
    assert found.count("h1") == found.count("title") == found.count("main") == 1
    assert found.count("h2") == found.count("section") == 2
    links = [own["href"] for tag, own in found.elements if tag == "a"]
    assert links == ["#table-1", "#figure-2"]
    assert [own["id"] for _, own in found.elements if "id" in own] == ["table-1", "figure-2"]
    assert all(own.get("scope") for tag, own in found.elements if tag == "th")
    assert fetched(page()) == []


def test_the_page_holds_what_was_given_and_nothing_of_it_as_html() -> None:
    found = Reader(page())
    facts = ["7 & 8", "skipless | reproduce"]
    assert found.within("td") == [c for row in ROWS for c in row[1:] if c] + facts + ["0.9"]
    assert found.within("h1") == ["The <paper>"]
    assert found.within("h2") == ["Table 1: <nets>", "Figure 2"]
    assert found.within("th")[:7] == [*HEADER, *(row[0] for row in ROWS)]
    assert "What *it* says." in found.within("p")
    assert "By 9.1 | points & more." in found.within("span")
    assert not re.search("<(nets|paper|50|beats|of)>", page())


def test_the_page_sums_up_every_verdict_in_words() -> None:
    found = Reader(page())
    assert "Of 3 claims, 1 holds, 1 does not hold, 1 was not run." in found.within("p")
    # Each once in the summary, and once in its section.
    words = ["holds", "does not hold", "not run"]
    assert found.within("b") == words * 2
    assert [own["class"] for tag, own in found.elements if tag == "b"] == [
        "good",
        "bad",
        "open",
    ] * 2


def test_claims_that_agree_are_counted_together() -> None:
    two = replace(sections()[0], verdicts=[VERDICTS[1]] * 2 + [VERDICTS[2]] * 2)
    words = Reader(sections_page("", [two])).within("p")
    assert "Of 4 claims, 2 do not hold, 2 were not run." in words


def test_without_a_summary_every_verdict_is_there_once() -> None:
    found = Reader(sections_page("", sections(), summary=False))
    assert found.within("b") == ["holds", "does not hold", "not run"]
    assert found.count("a") == 0


def test_a_conclusion_comes_first_and_claims_beside_it_are_not_counted() -> None:
    own = Section("runs", "Runs", "", [], [], conclusion=["<a> is best.", "b diverged."])
    text = sections_page("", [own, *sections()])
    assert {"<a> is best.", "b diverged."} <= set(Reader(text).within("li"))
    assert "claims" not in text


PARTS = Section("t", "T", "", ["", "a"], [["latency", "4 ms"], ["  relative", "2"], ["size", "9"]])


def test_rows_that_are_part_of_the_one_above_are_indented() -> None:
    found = Reader(sections_page("", [PARTS]))
    assert [own.get("class") for tag, own in found.elements if tag == "tr"] == [
        None, None, "part", None,
    ]  # fmt: skip
    assert found.within("th")[1:] == ["latency", "relative", "size"]
    assert rendered(markdown([PARTS])).within("td")[2] == "\u2003relative"


def test_sections_of_one_name_are_refused() -> None:
    twice = [sections()[0]] * 2
    for made in (markdown, chart_files, lambda given: sections_page("", given)):
        with pytest.raises(ValueError, match="need different names, got 'table-1' more than once"):
            made(twice)


SCRIPT = """
import hashlib, test_sections as t
from skipless.report.sections import chart_files, markdown
made = [t.page(), markdown(t.sections()), *chart_files(t.sections()).values()]
print(hashlib.sha256("".join(made).encode()).hexdigest())
"""


def test_every_process_writes_the_same_bytes() -> None:
    made = [page(), markdown(sections()), *chart_files(sections()).values()]
    here = hashlib.sha256("".join(made).encode()).hexdigest()
    folder = Path(__file__).parent
    paths = [str(folder), str(folder.parent), *sys.path]
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(paths)}
    there = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment
    )
    assert there.stdout.strip() == here, there.stderr


def rendered(source: str) -> Reader:
    """Markdown as Python-Markdown, on which MkDocs stands, turns it into HTML."""
    library = pytest.importorskip("markdown")
    extensions = ["attr_list", "md_in_html", "tables", "toc"]
    html = library.markdown(source, extensions=extensions, output_format="xhtml")
    return Reader(html.replace("<br>", ""))


def test_markdown_shows_every_cell_as_it_was_given() -> None:
    # Without arithmatex, which MkDocs has, a dollar keeps its backslash.
    plain = [[cell.replace("$", "") for cell in row] for row in ROWS]
    found = rendered(markdown([replace(sections()[0], rows=plain)]))
    cells = [(tag, word) for tag, word in found.texts if tag in ("td", "th")]
    given = [("th", word) for word in HEADER]
    given += [("td", cell) for row in plain for cell in row if cell]
    assert cells == given
    assert not {"em", "code"} & {tag for tag, _ in found.elements}
    (heading,) = [own for tag, own in found.elements if tag == "h2"]
    assert heading == {"id": "table-1"}


def test_columns_of_numbers_are_aligned_to_the_right() -> None:
    cells = [own for tag, own in rendered(markdown(sections()[:1])).elements if tag in ("td", "th")]
    right, left = "text-align: right;", "text-align: left;"
    assert [own["style"] for own in cells] == [left, right, left, right] * 4


def test_markdown_tells_verdicts_charts_and_facts() -> None:
    source = markdown(sections())
    assert "- **holds** - TAT &lt;beats> EOC. By 9.1 \\| points &amp; more.\n" in source
    assert "- **not run** - ImageNet, too. It takes a week.\n" in source
    assert source.count("<small>") == 1
    shown = re.findall(r"!\[Six lines \\\| that rise\]\(images/results/([^)]+)\)", source)
    assert shown == list(chart_files(sections())) == ["table-1-1.svg", "table-1-2.svg"]


def test_the_summary_has_a_row_for_each_claim() -> None:
    found = rendered(summary_table(sections(), "docs/results.md"))
    assert found.within("strong") == [verdict.word for verdict in VERDICTS]
    assert found.within("td") == [verdict.claim for verdict in VERDICTS]
    links = [own["href"] for tag, own in found.elements if tag == "a"]
    assert links == ["docs/results.md#table-1"] * 3


def test_text_for_a_terminal_has_everything_within_a_hundred_columns() -> None:
    long = replace(VERDICTS[1], evidence="x " * 150)
    printed = section_text(replace(sections()[0], verdicts=[VERDICTS[0], long]))
    assert max(map(len, printed.splitlines())) <= 100
    assert printed.startswith("Table 1: <nets>\n===============\n\nWhat *it* says.\n\n")
    assert re.search(r"^ResNet <50> +50  K-FAC +76\.4%$", printed, re.MULTILINE)
    assert re.search(r"^a \| b +101  SGD +diverged$", printed, re.MULTILINE)
    assert "\nholds: TAT <beats> EOC. By 9.1 | points & more.\n" in printed
    assert len(re.findall(r"\bx\b", printed)) == 150 + 2  # and [x] and $x$ in the table
    assert "Seeds: 7 & 8; Command: skipless | reproduce" in printed


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


WIDE = """
return [...document.querySelectorAll(".wide")].map(part => [part.scrollWidth, part.clientWidth])
"""


@pytest.mark.parametrize("width", [360, 1200])
def test_wide_tables_scroll_and_the_page_does_not(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    many = [f"column {n}" for n in range(30)]
    wide = Section("wide", "Wide", "", many, [["0.123456"] * 30])
    browser.resize(width)
    browser.go(write_sections_page(tmp_path / "page.html", "", [wide, *sections()]))
    assert browser.console() == []
    assert browser.run("return document.documentElement.scrollWidth") <= width
    content, room = browser.run(WIDE)[0]
    assert content > room
    charts = browser.run(CHARTS)
    assert [len(one["lines"]) for one in charts] == [6, 2 * 6]  # one has a key
    assert [one["clipped"] for one in charts] == [[], []]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_are_legible_in_light_and_dark(
    browser: Browser, tmp_path: Path, scheme: str
) -> None:
    browser.prefer(scheme)
    browser.go(write_sections_page(tmp_path / "page.html", "", sections()))
    paper, contrast = browser.run(CONTRAST)
    assert (paper > 0.5) is (scheme == "light")
    assert contrast >= 4.5  # https://www.w3.org/TR/WCAG22/#contrast-minimum

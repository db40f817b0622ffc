"""Writes `results.md`, its charts and the README's table from the files in `results/cpu`.

The prose is in `results.md.template`. Run it by `make results`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

import click

from skipless.paper.reproduce import read_sections
from skipless.record import write_atomically
from skipless.report.sections import (
    IMAGES,
    Section,
    chart_files,
    escape_markdown,
    markdown,
    summary_table,
)

ROOT = Path(__file__).parents[1]
RESULTS = Path("results/cpu")
TEMPLATE = Path(__file__).with_name("results.md.template")
START, END = "<!-- results: start -->", "<!-- results: end -->"


def build_page(results: Path) -> tuple[str, dict[str, str], str]:
    """The text of the page, its charts by file name, and the README's table."""
    sections = read_sections(sorted(results.glob("*.jsonl")))
    words = [verdict.word for section in sections for verdict in section.verdicts]
    page = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        counts=f"Of {len(words)} claims, {words.count('holds')} hold and "
        f"{words.count('does not hold')} do not; {words.count('not run')} were not run.",
        summary=summary_table(sections),
        sections=markdown(sections).rstrip("\n"),
    )
    return page, chart_files(sections), _readme_table(sections)


def _readme_table(sections: Sequence[Section]) -> str:
    """A table of the items: how many of their claims hold, and the first of them."""
    rows = ["| item | claims that hold | the first of them |\n| :--- | :--- | :--- |\n"]
    for section in sections:
        words = [verdict.word for verdict in section.verdicts]
        first = section.verdicts[0]
        rows.append(
            f"| [{escape_markdown(section.title)}](docs/results.md#{section.name}) "
            f"| {words.count('holds')} of {len(words)} "
            f"| {escape_markdown(first.claim.rstrip('.'))}: **{first.word}** |\n"
        )
    return "".join(rows)


def replace_table(readme: str, table: str) -> str:
    """The README with another table between its marks."""
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"README.md lacks the marks {START} and {END}. Put them back.")
    return f"{before}{START}\n{table}{END}{after}"


def write_page(root: Path) -> Path:
    """Write page, charts and table under `root`, and return the page."""
    text, charts, table = build_page(root / RESULTS)
    readme = root / "README.md"
    with_results = replace_table(readme.read_text(encoding="utf-8"), table)
    images = root / "docs" / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    for old in images.glob("*.svg"):
        old.unlink()
    for name, drawing in charts.items():
        write_atomically(images / name, drawing)
    write_atomically(readme, with_results)
    write_atomically(root / "docs" / "results.md", text)
    return root / "docs" / "results.md"


if __name__ == "__main__":
    click.echo(write_page(ROOT))

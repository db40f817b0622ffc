"""Writes `results.md`, its charts and README's tables from the files in `results`.

The prose is in `results.md.template`. Run it by `make results`.
"""

from __future__ import annotations

import math
from pathlib import Path
from string import Template

import click

from skipless.paper.reproduce import read_sections
from skipless.paper.results import CellKey, Results, Summary
from skipless.record import number, write_atomically
from skipless.report.sections import (
    IMAGES,
    chart_files,
    markdown,
    summary_table,
)

ROOT = Path(__file__).parents[1]
RESULTS = Path("results/cpu")
TEMPLATE = Path(__file__).with_name("results.md.template")
DEMO = Path("results/demo.md")  # as `make demo` writes it
MARKS = "<!-- {}: start -->\n", "<!-- {}: end -->"

# What README shows: an item, what its runs have in common, and two of its cells.
HIGHLIGHTS: tuple[tuple[str, str, tuple[str, CellKey], tuple[str, CellKey]], ...] = (
    (
        "figure1",
        "200 layers, no shortcuts, no BatchNorm; K-FAC",
        ("ReLU", ("EOC", "200")),
        ("TReLU", ("TAT", "200")),
    ),
    (
        "table2",
        "50 layers, shortcuts; SGD",
        ("BatchNorm, ReLU", ("SGD", "standard ResNet")),
        ("weighted by 0.8, no BatchNorm, TReLU", ("SGD, TReLU", "w = 0.8")),
    ),
    (
        "batch_sizes",
        "16 layers, batches of one image",
        ("BatchNorm, shortcuts", ("ResNet, BatchNorm", "1")),
        ("neither, TReLU", ("vanilla, TReLU", "1")),
    ),
    (
        "batch_sizes",
        "the same, batches of 64, as many epochs",
        ("BatchNorm, shortcuts", ("ResNet, BatchNorm", "64")),
        ("neither, TReLU", ("vanilla, TReLU", "64")),
    ),
    (
        "figure3",
        "50 layers, no shortcuts, no BatchNorm, TReLU",
        ("SGD", ("SGD", "90")),
        ("our K-FAC", ("K-FAC", "90")),
    ),
)


def build_page(results: Path) -> tuple[str, dict[str, str], str]:
    """The text of the page, its charts by file name, and README's account of the results."""
    sections = read_sections(sorted(results.glob("*.jsonl")))
    words = [verdict.word for section in sections for verdict in section.verdicts]
    held, missed = words.count("holds"), words.count("does not hold")
    page = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        counts=f"Of {len(words)} claims, {held} hold and {missed} do not; "
        f"{words.count('not run')} were not run.",
        summary=summary_table(sections),
        sections=markdown(sections).rstrip("\n"),
    )
    claims = (
        f"Of {len(words)} claims, the paper's and ours, {held} hold at this scale and {missed} do "
        "not: [all of them, with the reasons that we know](docs/results.md).\n"
    )
    return page, chart_files(sections), f"{_highlights(results)}\n{claims}"


def _highlights(folder: Path) -> str:
    """A table of `HIGHLIGHTS`, as far as they were run."""
    rows = [
        "| experiment | usual | here | seeds | `ITEM`, minutes |\n| :-- | :-- | :-- | --: | :-- |\n"
    ]
    for item, common, *sides in HIGHLIGHTS:
        if not (path := folder / f"{item}.jsonl").exists():
            continue
        results = Results.read(path)
        cells = [(name, results.cell(*place)) for name, place in sides]
        shown = [f"{name}: {_accuracy(cell)}" for name, cell in cells if cell is not None]
        seeds = {cell.seeds for _, cell in cells if cell is not None}
        minutes = (
            f"[`{item}`](docs/results.md#{item}), {number(results.origin, 'seconds') / 60:.0f}"
        )
        row = [common, *shown, " and ".join(map(str, sorted(seeds))), minutes]
        rows.append(f"| {' | '.join(row)} |\n")
    return "".join(rows)


def _accuracy(cell: Summary) -> str:
    """Mean ± two standard errors, in percent."""
    return "diverged" if math.isnan(cell.mean) else f"**{cell.mean:.1f}** ± {2 * cell.error:.1f}"


def replace_part(readme: str, name: str, text: str) -> str:
    """The README with another text between the marks called `name`."""
    start, end = (mark.format(name) for mark in MARKS)
    before, found, rest = readme.partition(start)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise ValueError(f"README.md lacks the marks {start.strip()} and {end}. Put them back.")
    return f"{before}{start}\n{text}\n{end}{after}"


def write_page(root: Path) -> Path:
    """Write page, charts and README's tables under `root`, and return the page."""
    text, charts, highlights = build_page(root / RESULTS)
    readme = root / "README.md"
    words = replace_part(readme.read_text(encoding="utf-8"), "results", highlights)
    words = replace_part(words, "demo", (root / DEMO).read_text(encoding="utf-8"))
    images = root / "docs" / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    for old in images.glob("*.svg"):
        old.unlink()
    for name, drawing in charts.items():
        write_atomically(images / name, drawing)
    write_atomically(readme, words)
    write_atomically(root / "docs" / "results.md", text)
    return root / "docs" / "results.md"


if __name__ == "__main__":
    click.echo(write_page(ROOT))

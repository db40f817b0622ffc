"""Writes `results.md`, its charts and README's tables from the files in `results`.

The prose is in `results.md.template`. Run it by `make results`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

import click

from skipless.paper import ITEMS
from skipless.paper.item import Item
from skipless.paper.reproduce import read_sections
from skipless.paper.results import CellKey, Results, Summary
from skipless.record import number, write_atomically
from skipless.report.sections import (
    IMAGES,
    chart_files,
    escape_markdown,
    markdown,
)

ROOT = Path(__file__).parents[1]
RESULTS = Path("results/cpu")
BEFORE = Path(__file__).parents[1] / "results" / "before.json"  # verdicts of the earlier regime
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
        "table5",
        "50 layers, no shortcuts, no BatchNorm; SGD",
        ("ReLU", ("50, SGD, EOC", "(L)ReLU")),
        ("TReLU", ("50, SGD, TAT", "(L)ReLU")),
    ),
    (
        "table5",
        "101 layers, no shortcuts, no BatchNorm; SGD",
        ("ReLU", ("101, SGD, EOC", "(L)ReLU")),
        ("TReLU", ("101, SGD, TAT", "(L)ReLU")),
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
        "figure3",
        "50 layers, no shortcuts, no BatchNorm, TReLU",
        ("SGD", ("SGD", "90")),
        ("our K-FAC", ("K-FAC", "90")),
    ),
)


def build_page(results: Path) -> tuple[str, dict[str, str], str]:
    """The text of the page, its charts by file name, and README's account of the results."""
    paths = sorted(results.glob("*.jsonl"))
    sections = read_sections(paths)
    found = {own.item: own for own in map(Results.read, paths)}
    rows = [row for item in ITEMS.values() for row in _claims(item, found.get(item.name))]
    counts = Counter(row[2] for row in rows)
    words = (
        f"Of {len(rows)} claims, the paper's and ours, {counts['holds']} hold at this scale and "
        f"{counts['does not hold']} not; undecided: {counts['undecided']}, still to be run: "
        f"{counts['not run']}"
    )
    page = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        counts=f"{words}.",
        summary=_table(["item", "claim", "verdict", "before", "CPU-hours"], rows),
        left=_describe_left(found),
        sections=markdown(sections).rstrip("\n"),
    )
    more = f"{words}: [all of them](docs/results.md).\n"
    return page, chart_files(sections), f"{_highlights(results)}\n{more}".lstrip("\n")


def _claims(item: Item, results: Results | None) -> list[list[str]]:
    """A row for each claim of an item: the verdict now and in the earlier regime, and the cost."""
    verdicts = item.verdicts(results or Results(item.name, "cpu", {}))
    earlier = json.loads(BEFORE.read_text(encoding="utf-8")).get(item.name, {"claims": {}})
    hours = "" if results is None else f"{number(results.origin, 'seconds') / 3600:.1f}"
    return [
        [
            f"[`{item.name}`](#{item.name})" if results is not None else f"`{item.name}`",
            escape_markdown(verdict.claim),
            verdict.word,
            earlier["claims"].get(verdict.claim, "–"),
            hours,
        ]
        for verdict in verdicts
    ]


def _describe_left(found: Mapping[str, Results]) -> str:
    """Which items have not been run, and which are not complete."""
    missing = ", ".join(f"`{name}`" for name in ITEMS if name not in found)
    part = ", ".join(f"`{n}`" for n, own in found.items() if not own.complete)
    words = [f"Not run yet: {missing}."] if missing else []
    words += [f"Not complete: {part}."] if part else []
    return " ".join(words) or "All items are complete."


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, [":--"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _highlights(folder: Path) -> str:
    """A table of `HIGHLIGHTS`, as far as they were run; nothing if none was."""
    rows = []
    for item, common, *sides in HIGHLIGHTS:
        if not (path := folder / f"{item}.jsonl").exists():
            continue
        results = Results.read(path)
        cells = [(name, results.cell(*place)) for name, place in sides]
        shown = [f"{name}: {_accuracy(cell)}" for name, cell in cells if cell is not None]
        if len(shown) < len(cells):
            continue
        seeds = {len(cell.seeds) for _, cell in cells if cell is not None}
        link = f"[`{item}`](docs/results.md#{item})"
        rows.append([common, *shown, " and ".join(map(str, sorted(seeds))), link])
    return _table(["experiment", "usual", "here", "seeds", "item"], rows) if rows else ""


def _accuracy(cell: Summary) -> str:
    """The mean and its 95 % confidence interval, in percent."""
    mean, _, half = str(cell).partition(" ± ")
    return f"**{mean}** ± {half}" if half else f"**{mean}**"


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

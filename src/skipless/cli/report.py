"""`skipless report`: runs and results of experiments become one HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .notes import notes

if TYPE_CHECKING:
    from skipless.record import Record

_WHAT = "a folder of a run (with run.json), of several, or *.jsonl results of skipless reproduce"


@click.command()
@click.argument("records", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    default=Path("report.html"),
    help="The page, which ends in .html and needs no other file.",
)
def report(records: Sequence[Path], output: Path) -> None:
    """Show RECORDS side by side on one HTML page: tables, verdicts and charts.

    Each of RECORDS is the folder of a run of skipless train, a folder with such folders at any
    depth, or a file *.jsonl of skipless reproduce, or a folder of those.

    \b
    Examples:
      skipless report runs/first
      skipless report runs -o runs.html
      skipless report runs/first runs/second results/table-1.jsonl -o comparison.html
    """  # noqa: D301
    _demand_place(output)
    runs, results = _found(records)
    from skipless.report.sections_page import write_sections_page

    sections = []
    with notes():
        if runs:
            from skipless.experiments.run_report import reported

            sections.append(reported(runs))
        if results:
            from skipless.experiments.reproduce import pages_of

            sections += pages_of(results)
    title = "Runs and results" if runs and results else "Runs" if runs else "Results"
    click.echo(write_sections_page(output, title, "", sections))


def _demand_place(output: Path) -> None:
    asked = f"The page was to be {output}"
    if output.is_dir():
        raise IsADirectoryError(f"{asked}, which is a folder. Name a file: {output / 'runs.html'}")
    if output.suffix != ".html":
        raise ValueError(f"{asked}, which does not end in .html. Name it so.")
    if not output.parent.is_dir():
        raise FileNotFoundError(
            f"{asked}, but there is no folder {output.parent}. Make it first: mkdir -p "
            f"{output.parent}"
        )


def _found(paths: Iterable[Path]) -> tuple[list[Record], list[Path]]:
    """The runs, and the files of results, that are at or below all `paths`, each once."""
    runs: dict[Path, Record] = {}
    results: dict[Path, Path] = {}
    for path in paths:
        records, files = _at(path)
        runs |= {record.folder.resolve(): record for record in records}
        results |= {file.resolve(): file for file in files}
    return list(runs.values()), list(results.values())


def _at(path: Path) -> tuple[list[Record], list[Path]]:
    from skipless.record import METRICS, RUN, Record

    asked = f"{path} was to be reported"
    if not path.exists():
        raise FileNotFoundError(f"{asked}, which does not exist. Name {_WHAT}.")
    if (path / RUN).is_file():
        return [Record.read(path)], []
    if path.suffix == ".jsonl" and path.name != METRICS and path.is_file():
        return [], [path]
    if not path.is_dir():
        raise ValueError(f"{asked}, which is no record. Name {_WHAT}.")
    folders = {file.parent for file in path.rglob(RUN)}
    records = [record for folder in sorted(folders) if (record := _readable(folder)) is not None]
    found = sorted(file for file in path.rglob("*.jsonl") if file.name != METRICS)
    files = [file for file in found if file.parent not in folders]
    if not records and not files:
        raise FileNotFoundError(f"{asked}, but there is nothing to report in it. Name {_WHAT}.")
    return records, files


def _readable(folder: Path) -> Record | None:
    """The record of a run that was not named itself, so that others need not wait for it."""
    from skipless.record import Record

    try:
        return Record.read(folder)
    except (ValueError, OSError) as error:
        click.echo(f"note: the report is without {folder}: {error}", err=True)
        return None

"""`skipless reproduce`: the paper's tables and figures, run again at one of three scales.

`skipless report`: runs and results of experiments become one HTML page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from .notes import notes

if TYPE_CHECKING:
    from skipless.paper.item import Item
    from skipless.paper.scales import Options

_MOST = 1000  # workers, and seeds

ScaleName = Literal["smoke", "cpu", "full"]


@click.command()
@click.argument("names", metavar="[ITEM]...", nargs=-1)
@click.option(
    "--scale",
    type=click.Choice(["cpu", "full", "smoke"]),
    default="cpu",
    help="cpu: small, on a laptop. full: the paper's own. smoke: only whether it runs.",
)
@click.option("--list", "listed", is_flag=True, help="Show every item, and what it costs.")
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of results and runs; what is done there is not done again.  "
    "[default: runs/reproduce/SCALE]",
)
@click.option(
    "--storage",
    help="An RDB URL of Optuna, such as postgresql://..., when several machines work on one item.  "
    "[default: a file in --output]",
)
@click.option("--workers", type=int, help="Runs at a time on this machine.  [default: its cores]")
@click.option("--seeds", type=int, help="Seeds of every setting.  [default: as the item says]")
@click.option("--data", help="Data of every run, such as imagefolder:PATH for --scale full.")
@click.option("--data-folder", help="Where the files of the data are.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda", "mps"]), help="Of every run.")
def reproduce(
    names: tuple[str, ...],
    scale: ScaleName,
    listed: bool,
    output: Path | None,
    storage: str | None,
    workers: int | None,
    seeds: int | None,
    data: str | None,
    data_folder: str | None,
    device: str | None,
) -> None:
    """Run the ITEMs, tables and figures of the paper, and put its numbers beside ours.

    ITEM is figure1 to figure7, table1 to table11, optimizers, batch_sizes, distillation, or all.
    Each ends with a table, the verdicts on its claims, and ITEM.jsonl, ITEM.html and charts in
    --output. A search that was stopped goes on where it was; to share one, start the same command
    on several machines with the same --storage.

    \b
    Examples:
      skipless reproduce --list
      skipless reproduce table5 --scale smoke
      skipless reproduce figure1 table5
      skipless reproduce table4 --scale full --data imagefolder:/data/imagenet --storage URL
      torchrun --nproc-per-node 8 -m skipless.cli reproduce figure5 --scale full
    """  # noqa: D301
    try:
        from skipless.paper import ITEMS, reproduce
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"reproduce needs {missing.name}, which is not installed: pip install 'skipless[train]'"
        ) from None
    if listed:
        from skipless.tables import table

        click.echo(table(*reproduce.overview()))
        return
    chosen = _chosen(names, ITEMS)
    _demand_counts(workers, seeds)
    given: Options = {"data": data, "data_folder": data_folder, "device": device}
    options = {name: value for name, value in given.items() if value is not None}
    place = reproduce.Place(output or Path("runs") / "reproduce" / scale, storage, workers)
    for item in chosen:
        with notes():
            report = reproduce.report_item(item, scale, place, seeds, options)
        if report:  # by the first of several processes
            click.echo(report)


def _chosen(names: tuple[str, ...], items: dict[str, Item]) -> list[Item]:
    import difflib

    if not names:
        raise click.UsageError("Name an ITEM, or all. See them: skipless reproduce --list")
    for name in names:
        if name != "all" and name not in items:
            near = difflib.get_close_matches(name.lower().replace(" ", ""), items, n=1)
            hint = f"Is it {near[0]}?" if near else "See all: skipless reproduce --list"
            raise click.UsageError(f"There is no item {name!r}. {hint}")
    return list(items.values()) if "all" in names else [items[n] for n in dict.fromkeys(names)]


def _demand_counts(workers: int | None, seeds: int | None) -> None:
    for name, count in (("--workers", workers), ("--seeds", seeds)):
        if count is not None and not 1 <= count <= _MOST:
            raise click.UsageError(f"{name} {count} was given; give 1 to {_MOST}.")


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
    from skipless.report.page import write_sections_page

    sections = []
    with notes():
        if runs:
            from skipless.runs.kernels import reported

            sections.append(reported(runs))
        if results:
            from skipless.paper.reproduce import read_sections

            sections += read_sections(results, curves=True)
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

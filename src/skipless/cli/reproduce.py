"""`skipless reproduce`, the paper's tables and figures, and `skipless report`, an HTML page."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skipless.record import LOCK, METRICS, RUN, Record
from skipless.runs.configuration import flag
from skipless.tables import table

from . import Text, UserPath, output_option, print_warnings, requires

if TYPE_CHECKING:
    from skipless.paper.item import Item
    from skipless.paper.scales import ScaleName

_MOST = 1000  # workers, and seeds
_RECORDS = "the folder of a run (with run.json), of several, or *.jsonl of skipless reproduce"


@click.command()
@click.argument("names", metavar="[ITEM]...", nargs=-1)
@click.option(
    "--scale",
    type=click.Choice(["cpu", "full", "smoke"]),
    default="cpu",
    help="cpu: small, for a laptop; full: the paper's; smoke: only checks that it runs.",
)
@click.option("--list", "listed", is_flag=True, help="List all items and their costs.")
@output_option(
    "Folder of results and runs; finished runs in it are reused.  [default: runs/reproduce/SCALE]",
    file_okay=False,
)
@click.option(
    "--storage",
    type=Text(),
    help="Optuna's RDB URL, such as postgresql://..., to share one item among machines.  "
    "[default: a file in --output]",
)
@click.option("--workers", type=int, help="Parallel runs on this machine.  [default: its cores]")
@click.option("--seeds", type=int, help="Seeds per setting.  [default: depends on the item]")
@click.option(
    "--data", type=Text(), help="Data for every run, such as imagefolder:PATH for --scale full."
)
@click.option("--data-folder", type=Text(), help="Folder with the data files.")
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda", "mps"]), help="Device for every run."
)
@click.option("--epochs", type=int, help="Epochs of every run.  [default: depends on the scale]")
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16"]),
    help="Precision of every run.  [default: depends on the scale]",
)
@click.option(
    "--only",
    type=Text(),
    metavar="CELL",
    help="Run only some cells, as 'ROW | COLUMN', with * for anything.",
)
@click.option(
    "--records",
    type=UserPath(),
    help="Folder of earlier results (*.jsonl), whose runs are not repeated.",
)
def reproduce(
    names: tuple[str, ...],
    scale: ScaleName,
    listed: bool,
    output: Path | None,
    storage: str | None,
    workers: int | None,
    seeds: int | None,
    only: str | None,
    records: Path | None,
    **options: str | int | None,
) -> None:
    """Reproduce ITEMs, tables and figures of the paper, and compare its numbers with ours.

    ITEM is figure1 to figure7, table1 to table11, optimizers, batch_sizes, distillation, or all.
    Each is tuned on held-out training images, and its best settings are trained from several seeds.
    It prints what it costs, a table and verdicts on its claims, and leaves ITEM.jsonl, ITEM.html
    and charts in --output. Rerun the same command to resume after an interruption, or run it on
    several machines with the same --storage to share the work.

    \b
    Examples:
      skipless reproduce --list
      skipless reproduce table5 --scale smoke
      skipless reproduce figure1 table5
      skipless reproduce table5 --only "50, SGD, * | (L)ReLU"
      skipless reproduce table4 --scale full --data imagefolder:/data/imagenet --storage URL
      torchrun --nproc-per-node 8 -m skipless.cli reproduce figure5 --scale full
    """  # noqa: D301
    with requires("reproduce", "train"):
        from skipless.paper import ITEMS, reproduce
        from skipless.runs.workers import is_main
    if listed:
        for given in (*names, storage, workers, seeds, output, only, records, *options.values()):
            if given is not None:
                raise click.UsageError(f"--list lists all items: drop {given}")
        click.echo(table(*reproduce.overview()))
        return
    chosen = _select_items(names, ITEMS)
    for name, count in (
        ("--workers", workers),
        ("--seeds", seeds),
        ("--epochs", options["epochs"]),
    ):
        if isinstance(count, int) and not 1 <= count <= _MOST:
            raise click.UsageError(f"{name} must be from 1 to {_MOST}, got {count}")
    if storage is not None and "://" not in storage:
        raise click.UsageError(f"--storage must be a URL such as postgresql://..., got {storage!r}")
    given = {name: value for name, value in options.items() if value is not None}
    computed = [item.name for item in chosen if item.compute is not None]
    if computed == [item.name for item in chosen]:
        for name, value in {
            "seeds": seeds,
            "workers": workers,
            "storage": storage,
            "only": only,
            "records": records,
            **given,
        }.items():
            if value is not None:
                raise click.UsageError(
                    f"{flag(name)} does not apply to {computed[0]}: it has no runs"
                )
    place = reproduce.Place(output or Path("runs") / "reproduce" / scale, storage, workers)
    request = reproduce.Request(scale, seeds, given, only, records)
    announce = lambda text: click.echo(f"{text}\n") if is_main() else None
    for item in chosen:
        with print_warnings():
            text = reproduce.report_item(item, request, place, announce)
        if text:  # only the first of several processes has one
            click.echo(text)


def _select_items(names: tuple[str, ...], items: dict[str, Item]) -> list[Item]:
    if not names:
        raise click.UsageError("Name an ITEM, or all. List them with: skipless reproduce --list")
    for name in names:
        if name != "all" and name not in items:
            near = difflib.get_close_matches(name.lower().replace(" ", ""), items, n=1)
            hint = f"Did you mean {near[0]}?" if near else "List all: skipless reproduce --list"
            raise click.UsageError(f"There is no item {name!r}. {hint}")
    return list(items.values()) if "all" in names else [items[n] for n in dict.fromkeys(names)]


@click.command()
@click.argument("records", nargs=-1, required=True, type=UserPath())
@output_option("The page, a self-contained file ending in .html.", "report.html")
def report(records: Sequence[Path], output: Path) -> None:
    """Show RECORDS side by side on one HTML page.

    RECORDS are folders of runs of skipless train, or folders that contain some at any depth; or
    *.jsonl files of skipless reproduce, or folders of those. Runs get curves, settings, and what
    is best, diverged or unfinished; results get tables and verdicts on claims.

    \b
    Examples:
      skipless report runs/first
      skipless report runs -o runs.html
      skipless report runs/first runs/second results/table-1.jsonl -o comparison.html
    """  # noqa: D301
    if output.is_dir():
        raise IsADirectoryError(
            f"--output {output} is a folder. Name a file, such as {output / 'runs.html'}"
        )
    if output.suffix != ".html":
        raise ValueError(f"--output must end in .html, got {output}")
    if not output.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder {output.parent} for the page. Create it: mkdir -p {output.parent}"
        )
    runs, results = _find_records(records)
    from skipless.report.page import write_sections_page

    sections = []
    with print_warnings():
        if runs:
            from skipless.runs.kernels import report_runs

            sections.append(report_runs(runs))
        if results:
            with requires("A report of results", "train"):
                from skipless.paper.reproduce import read_sections
            sections += read_sections(results, curves=True)
    title = "Runs and results" if runs and results else "Runs" if runs else "Results"
    page = write_sections_page(output, title, sections)
    for sentence in (sentence for one in sections for sentence in one.conclusion):
        click.echo(sentence)
    click.echo(f"Page: {page}")


def _find_records(paths: Iterable[Path]) -> tuple[list[Record], list[Path]]:
    """The runs and the result files at or below all `paths`, each once."""
    runs: dict[Path, Record] = {}
    results: dict[Path, Path] = {}
    for path in paths:
        records, files = _find_at(path)
        runs |= {record.folder.resolve(): record for record in records}
        results |= {file.resolve(): file for file in files}
    return list(runs.values()), list(results.values())


def _find_at(path: Path) -> tuple[list[Record], list[Path]]:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. Name {_RECORDS}.")
    if (path / RUN).is_file():
        return [Record.read(path)], []
    if path.suffix == ".jsonl" and path.name != METRICS and path.is_file():
        return [], [path]
    if not path.is_dir():
        raise ValueError(f"{path} is not a record. Name {_RECORDS}.")
    folders = {file.parent for file in path.rglob(RUN) if file.is_file()}
    found = sorted(file for file in path.rglob("*.jsonl") if file.name != METRICS)
    files = [file for file in found if file.parent not in folders]
    own = {folder for folder in folders if not (folder / LOCK).exists()}
    if own and files:
        where = ", ".join(sorted({str(file.parent) for file in files}))
        click.echo(
            f"note: left out results of skipless reproduce; to see them, name {where}", err=True
        )
    # The runs of an item are in its results.
    folders, files = (own, []) if own else (set() if files else folders, files)
    records = []
    for folder in sorted(folders):
        try:
            records.append(Record.read(folder))
        except (ValueError, OSError) as error:  # the user did not name it
            click.echo(f"note: skipped {folder}: {error}", err=True)
    if not records and not files:
        raise FileNotFoundError(f"{path} contains no records. Name {_RECORDS}.")
    return records, files

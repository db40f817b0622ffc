"""`skipless deploy`: a network becomes an ONNX file, with a report on its costs."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import click

from skipless.files import filled_folder
from skipless.runs.configuration import NetworkOptions

from . import Text, output_option, print_warnings, requires
from .kernels import parse_shape
from .train import configuration_options

_STEPS = 11  # at most
_MOST_SAMPLES, _MOST_SECONDS = 2**16, 86_400
_OPTIONS = {own.name for own in fields(NetworkOptions)} - {"model"}
_OPTIONS |= {"data_folder", "image_size", "normalize", "seed"}


@click.command()
@click.argument("model", metavar="MODEL_OR_CHECKPOINT")
@output_option("Folder for the files.  [default: deployed/MODEL]")
@click.option("--average", is_flag=True, help="Use the moving average of a run's weights.")
@click.option("--input", "shape", help="Shape of a sample, such as 3,224,224, if there is no data.")
@click.option("--data", "-d", help="Data to quantise and validate with: cifar10, imagefolder:PATH.")
@click.option("--validation-size", type=int, help="Images to validate on.  [default: up to 5000]")
@click.option(
    "--int8/--no-int8", default=None, help="Also write an INT8 file.  [default: if there is data]"
)
@click.option(
    "--against",
    type=Text(),
    help="Network to compare with, in its standard form, or package.module:factory.  "
    "[default: the BatchNorm network of the same depth]",
)
@click.option("--batch-size", default=1, help="Samples per batch, for memory and latency.")
@click.option("--seconds", default=10.0, help="Time to measure latency, per number of threads.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@partial(configuration_options, only=_OPTIONS)
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
    """Write MODEL_OR_CHECKPOINT as a plain ONNX file, and report its costs on a device.

    MODEL_OR_CHECKPOINT is the folder of a run of skipless train, one of its checkpoints or a file
    of weights in one, a network of skipless models with the options of training, or
    package.module:factory of your own. Without data, samples are 3x224x224 for a resnet, 3x32x32
    for others.

    Constants and BatchNorms are folded into weights. The file takes batches of any size, and
    onnxruntime verifies that it computes what the network does. The report has parameters,
    multiply-adds, peak activation memory (computed and measured), latency, operators and size,
    before and after, and for the BatchNorm network of the same depth. With data there is also an
    INT8 file, and the accuracy of both.

    \b
    Examples:
      skipless deploy runs/first
      skipless deploy runs/first/checkpoints/step-00000500 --average
      skipless deploy resnet50 --method tat
      skipless deploy wide_resnet16 --method tat --data cifar10 --json
      skipless deploy my_package.models:resnet --input 3,32,32 --against resnet18
    """  # noqa: D301
    given = {name: value for name, value in options.items() if value is not None}
    if output is not None and output.exists() and not output.is_dir():
        raise FileExistsError(f"--output {output} is a file. Name a folder.")
    if not 1 <= batch_size <= _MOST_SAMPLES:
        raise click.UsageError(f"--batch-size must be from 1 to {_MOST_SAMPLES}, got {batch_size}")
    if not 0.0 <= seconds <= _MOST_SECONDS:
        raise click.UsageError(f"--seconds must be from 0 to {_MOST_SECONDS}, got {seconds:g}")
    with requires("deploy", "deploy,train"):
        from skipless.runs import candidates, deploy
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in model).strip("-.")
    folder = output or Path("deployed") / (name or "model")
    try:
        with print_warnings(), _progress(quiet) as on_step:
            candidates.require_peer(against)
            candidate = candidates.load_candidate(model, given, parse_shape(shape), average=average)
            with filled_folder(folder) as new:
                request = deploy.DeployRequest(new, batch_size, int8, against, seconds)
                found = deploy.deploy(candidate, request, on_step)
                answer = deploy.write_report(found, new)
    except (RuntimeError, TypeError, NotImplementedError) as error:  # of a user's own network
        raise ValueError(str(error)) from error
    answer += f"\n\nFiles: {folder}\nPage: {folder / deploy.PAGE}"
    click.echo(json.dumps(asdict(found), indent=2) if as_json else answer)
    return 0


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show a bar with the current step on stderr, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda step: None
        return
    shown = lambda step: "" if step is None else str(step)
    with click.progressbar(
        length=_STEPS, label="deploy", file=sys.stderr, item_show_func=shown
    ) as bar:
        yield lambda step: bar.update(1, step)

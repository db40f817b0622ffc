"""`skipless solve`, `plot` and `check`, about the kernel of a network, and `skipless models`."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import click

from skipless.runs.configuration import METHODS, TARGETS, MethodName, build_method, flag
from skipless.tables import table

from . import Command, Decorator, Text, output_option, print_warnings, requires

if TYPE_CHECKING:
    from skipless.core.graph import Graph

LawName = Literal["orthogonal", "gaussian"]

_MOST_UNITS, _MOST_SEEDS = 2**16, 10_000
_MOST_NUMBERS = 2**28  # of a sample: a GiB, which two layers make many of

_method_option = click.option(
    "--method",
    type=click.Choice(METHODS, case_sensitive=False),
    default="tat",
    help="How to shape the kernel.",
)
_input_option = click.option("--input", "shape", help="Shape of a sample, such as 3,32,32.")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


_FIGURE = "File for the figure, ending in .png or .svg."


def _shaping_options(command: Command) -> Command:
    """The targets, how to meet them, and the weight of the shortcuts."""
    for name, kind, help_ in (
        ("--shortcut-weight", float, "Weight of the shortcuts; 0 removes them."),
        ("--clamp", None, "If the target is out of reach, use the nearest one."),
        ("--sigma-b", float, "EOC: scale of the biases.  [default: 0]"),
        ("--spread", float, "EOC: variance of the Jacobian's squared singular values."),
        ("--zeta", float, "DKS: C_f'(1).  [default: 1.5]"),
        ("--tau", float, "TAT with smooth activations: C_f''(1).  [default: 0.3]"),
        ("--eta", float, "TAT with leaky ReLU: C_f(0).  [default: 0.9, less if shallow]"),
    ):
        if kind is None:
            command = click.option(name, is_flag=True, help=help_)(command)
        else:  # is_flag=False would let click take the option without a value
            command = click.option(name, type=kind, help=help_)(command)
    return command


def _activation_option(default: str) -> Decorator:
    return click.option(
        "--activation", type=Text(), help=f"Activation function.  [default: {default}]"
    )


@click.command()
@click.argument("model")
@_method_option
@_activation_option("leaky_relu; relu for eoc")
@click.option("--negative-slope", type=float, help="EOC with leaky_relu: slope below zero.")
@_shaping_options
@_input_option
@_json_option
def solve(
    model: str,
    method: MethodName,
    activation: str | None,
    negative_slope: float | None,
    clamp: bool,
    shortcut_weight: float | None,
    shape: str | None,
    as_json: bool,
    **targets: float | None,
) -> None:
    """Solve for the activation that shapes MODEL.

    MODEL is mlp:DEPTH, a chain of DEPTH layers; a network of `skipless models`, without shortcuts
    unless you give them a weight; or package.module:factory of your own, after conversion.

    \b
    Examples:
      skipless solve mlp:100
      skipless solve resnet50 --shortcut-weight 0.8 --clamp
      skipless solve my_package.models:unet --input 3,64,64
      skipless solve mlp:50 --method dks --activation tanh --zeta 10 --json
    """  # noqa: D301
    from skipless.core.activations import activation as look_up
    from skipless.core.solve import solve as solve_

    graph = _graph(model, shortcut_weight, shape)
    if negative_slope is not None and method != "eoc":
        raise click.UsageError(f"--negative-slope needs --method eoc; {method} solves for it")
    phi = look_up(activation or ("relu" if method == "eoc" else "leaky_relu"), negative_slope)
    with print_warnings():
        solution = solve_(graph, build_method(method, activation, targets), phi, clamp=clamp)
    if as_json:
        answer = {
            "model": model,
            "method": method,
            "activation": solution.activation,
            "depth": graph.depth,
            "note": solution.note,
            "parameters": solution.parameters,
            "targets": dict(solution.targets),
            "residuals": dict(solution.residuals),
        }
        click.echo(json.dumps(answer, indent=2))
        return
    parameters = [[k, f"{v:.10g}"] for k, v in solution.parameters.items() if v is not None]
    conditions = [
        [name, f"{target:.6g}", f"{solution.residuals[name]:.1e}"]
        for name, target in solution.targets.items()
    ]
    note = solution.note and f", {solution.note}"
    click.echo(f"{model}, {method.upper()} with {solution.activation}{note}:\n")
    click.echo(table(["parameter", "value"], parameters) + "\n")
    click.echo(table(["condition", "target", "residual"], conditions))


@click.command()
@click.argument("model")
@click.option(
    "--method",
    "methods",
    type=click.Choice(METHODS, case_sensitive=False),
    multiple=True,
    help="Method to draw; may be repeated.  [default: all three]",
)
@_activation_option("leaky_relu for tat, softplus for dks, relu for eoc")
@_shaping_options
@_input_option
@output_option(_FIGURE, "c_maps.png", dir_okay=False)
def plot(
    model: str,
    methods: tuple[MethodName, ...],
    activation: str | None,
    clamp: bool,
    shortcut_weight: float | None,
    shape: str | None,
    output: Path,
    **targets: float | None,
) -> None:
    """Draw the C maps of MODEL: of one layer, of the network, and layer by layer.

    MODEL is mlp:DEPTH, a network of `skipless models`, or package.module:factory, as in `solve`.

    \b
    Examples:
      skipless plot mlp:100
      skipless plot resnet101 --method tat --eta 0.95
      skipless plot mlp:100 --method tat --method dks --activation tanh -o tanh.svg
    """  # noqa: D301
    from skipless.core.solution import UnreachableTargetError
    from skipless.report.figures import draw_c_maps
    from skipless.runs.kernels import c_map_curve

    graph, curves = _graph(model, shortcut_weight, shape), []
    unreached: dict[str, UnreachableTargetError] = {}
    chosen = methods or METHODS
    for name, given in targets.items():
        if given is not None and not any(name in TARGETS[m] for m in chosen):
            raise click.UsageError(f"{flag(name)} is not an option of {' or '.join(chosen)}")
    for name in chosen:
        own = {k: v for k, v in targets.items() if k in TARGETS[name]}
        method = build_method(name, activation, own)
        try:
            with print_warnings():
                curves.append(c_map_curve(graph, method, activation, clamp=clamp)[1])
        except UnreachableTargetError as error:
            if methods:
                raise
            unreached[name] = error
    if not curves:
        raise next(iter(unreached.values()))
    for name, error in unreached.items():
        click.echo(f"note: {name} is left out. {error}", err=True)
    try:
        click.echo(draw_c_maps(curves, f"C maps of {model}", output))
    except ModuleNotFoundError:
        rows = zip(curves[0].c[::40], *(curve.global_map[::40] for curve in curves), strict=True)
        cells = [[f"{value:.4g}" for value in row] for row in rows]
        click.echo(table(["c", *(curve.label for curve in curves)], cells))
        raise


@click.command()
@click.argument("model")
@_method_option
@_activation_option("leaky_relu for tat, softplus for dks, relu for eoc")
@_shaping_options
@click.option(
    "--width",
    "widths",
    type=int,
    multiple=True,
    help="Width to check; may be repeated.  [default: 30, 100, 300 for mlp]",
)
@click.option("--seeds", default=20, help="Initialisations to average over.")
@click.option(
    "--distribution",
    type=click.Choice(get_args(LawName)),
    default="orthogonal",
    help="Distribution of the initial weights.",
)
@_input_option
@click.option("--tolerance", default=0.05, help="Up to here, a network counts as infinitely wide.")
@_json_option
@output_option(_FIGURE, "check.png", dir_okay=False)
def check(
    model: str,
    method: MethodName,
    activation: str | None,
    clamp: bool,
    shortcut_weight: float | None,
    widths: tuple[int, ...],
    seeds: int,
    distribution: LawName,
    shape: str | None,
    tolerance: float,
    as_json: bool,
    output: Path,
    **targets: float | None,
) -> int:
    """Compare the measured kernel of MODEL with what the theory predicts.

    MODEL is mlp:DEPTH, or package.module:factory of your own: a function that returns an nn.Module,
    or one and an example; if it takes a `width`, it is called for each one. The table has, beside
    the prediction, the range of 95 % of all networks of that width. A layer disagrees if it does
    not do with its input what the theory says, whatever its width; the exit code is 1 if one does
    at the largest width.

    \b
    Examples:
      skipless check mlp:50
      skipless check mlp:30 --method dks --distribution gaussian --width 300 --json
      skipless check my_package.models:resnet --shortcut-weight 0 --input 3,32,32
    """  # noqa: D301
    with requires("check", "torch"):
        from skipless.runs.check import ShapingOptions, build_family, check_widths, format_checks
    from skipless.report.figures import require_figure_path
    from skipless.runs.kernels import default_activation

    figure, note = output, None
    for name, least, most, given in (
        *(("width", 2, _MOST_UNITS, width) for width in widths),
        ("seeds", 2, _MOST_SEEDS, seeds),
        ("tolerance", 0, sys.float_info.max, tolerance),
    ):
        if not least <= given <= most:
            end = f"from {least} to {most}" if isinstance(most, int) else "finite and >= 0"
            raise click.UsageError(f"--{name} must be {end}, got {given}")
    try:
        require_figure_path(output)
    except ModuleNotFoundError as error:
        figure, note = None, error
    how = build_method(method, activation, targets)
    shaping = ShapingOptions(how, activation or default_activation(how), clamp, shortcut_weight)
    with print_warnings():
        family = build_family(model, shaping, widths, parse_shape(shape))
        checks = check_widths(family, seeds, distribution, tolerance, _progress)
    click.echo(format_checks(checks, model, figure, as_json))
    if note is not None:
        click.echo(f"note: there is no figure. {note}", err=True)
    return 0 if list(checks.values())[-1].agrees else 1


def _graph(model: str, shortcut_weight: float | None, shape: str | None) -> Graph:
    from skipless.runs.kernels import build_graph

    with requires(model, "torch"):
        return build_graph(model, shortcut_weight, parse_shape(shape))


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """The shape of a sample, from an option such as 3,32,32."""
    if text is None:
        return None
    sizes = [size.strip() for size in text.split(",")]
    if not all(re.fullmatch("0*[1-9][0-9]{0,9}", size) for size in sizes):
        raise click.UsageError(f"--input must be a shape such as 3,32,32, got {text!r}")
    shape = tuple(map(int, sizes))
    if math.prod(shape) > _MOST_NUMBERS:
        raise click.UsageError(f"--input must have at most 2^28 numbers in all, got {text}")
    return shape


@contextmanager
def _progress(seeds: Sequence[int], label: str) -> Iterator[Iterable[int]]:
    """Show a bar on stderr, if that is a terminal."""
    if sys.stderr.isatty():
        with click.progressbar(seeds, label=label, file=sys.stderr) as bar:
            yield bar
    else:
        yield seeds


@click.command()
@click.argument("pattern", default="*")
def models(pattern: str) -> None:
    """List the networks of `skipless train`, or those that match PATTERN.

    There are more: wide_resnet of every depth 6n + 4, and mlp of every depth.

    \b
    Examples:
      skipless models
      skipless models 'resnet*'
    """  # noqa: D301
    with requires("models", "torch"):
        from skipless.models import list_models
    found = list_models(pattern)
    if not found:
        raise click.UsageError(f"No network matches {pattern!r}. List all with: skipless models")
    click.echo("\n".join(found))

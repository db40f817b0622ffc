"""Commands about the kernel of a network: solve, plot, check.

Options that say how a network is shaped.

What `skipless solve` prints for people.

`skipless models`: the networks that have names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from skipless.runs.configuration import METHODS, TARGETS, MethodName, flag, method_of
from skipless.tables import table

from .notes import notes


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option("--eta", type=float, help="TAT, leaky ReLU: C_f(0).  [default: 0.9]"),
            click.option(
                "--tau", type=float, help="TAT, smooth activations: C_f''(1).  [default: 0.3]"
            ),
            click.option("--zeta", type=float, help="DKS: C_f'(1).  [default: 1.5]"),
            click.option("--sigma-b", type=float, help="EOC: scale of the biases.  [default: 0]"),
            click.option(
                "--clamp", is_flag=True, help="Take the nearest target within reach, and say so."
            ),
        )
    ):
        command = option(command)
    return command


def described(answer: dict[str, Any]) -> str:
    """The answer, which as JSON is for programs, as two tables."""
    head = f"{answer['model']}, {answer['method'].upper()} with {answer['activation']}:"
    parameters = [[k, f"{v:.10g}"] for k, v in answer["parameters"].items() if v is not None]
    conditions = [
        [name, f"{target:.6g}", f"{answer['residuals'][name]:.1e}"]
        for name, target in answer["targets"].items()
    ]
    return "\n\n".join(
        [
            head,
            table(["parameter", "value"], parameters),
            table(["condition", "target", "residual"], conditions),
        ]
    )


if TYPE_CHECKING:
    from skipless.core.graph import Graph

LawName = Literal["orthogonal", "gaussian"]
_LAWS: tuple[LawName, ...] = ("orthogonal", "gaussian")
_WIDTHS = "A width; give it several times.  [default: 30, 100, 300 for mlp]"

_method_option = click.option(
    "--method",
    type=click.Choice(METHODS, case_sensitive=False),
    default="tat",
    help="How to shape the kernel.",
)
_shortcut_option = click.option(
    "--shortcut-weight", type=float, help="Weight of the shortcuts; 0 removes them."
)
_input_option = click.option("--input", "shape", help="Shape of a sample, such as 3,32,32.")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


def _output_option(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--output",
        "-o",
        type=click.Path(dir_okay=False, path_type=Path),
        default=Path(name),
        help="Where to write the figure: a name that ends in .png or .svg.",
    )


@click.command()
@click.argument("model")
@_method_option
@click.option(
    "--activation",
    help="Name of the activation.  [default: leaky_relu; relu for eoc]",
)
@click.option("--negative-slope", type=float, help="EOC with leaky_relu: its slope below zero.")
@target_options
@_shortcut_option
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

    MODEL is mlp:DEPTH, a chain of DEPTH layers; a name of `skipless models`, without shortcuts
    unless you give them a weight; or package.module:factory of your own, as conversion leaves it.

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
        raise click.UsageError(
            f"--negative-slope belongs to --method eoc; {method} solves for it. Leave it out."
        )
    phi = look_up(activation or ("relu" if method == "eoc" else "leaky_relu"), negative_slope)
    with notes():
        solution = solve_(graph, method_of(method, activation, targets), phi, clamp=clamp)
    answer = {
        "model": model,
        "method": method,
        "activation": solution.activation,
        "depth": graph.depth,
        "parameters": solution.parameters,
        "targets": dict(solution.targets),
        "residuals": dict(solution.residuals),
    }
    click.echo(json.dumps(answer, indent=2) if as_json else described(answer))


@click.command()
@click.argument("model")
@click.option(
    "--method",
    "methods",
    type=click.Choice(METHODS, case_sensitive=False),
    multiple=True,
    help="A method to draw; give it several times.  [default: all three]",
)
@click.option(
    "--activation",
    help="For every method.  [default: leaky_relu for tat, softplus for dks, relu for eoc]",
)
@target_options
@_shortcut_option
@_input_option
@_output_option("c_maps.png")
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

    MODEL is mlp:DEPTH, a name of `skipless models`, or package.module:factory, as in `solve`.

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
    unreached: list[UnreachableTargetError] = []
    chosen = methods or METHODS
    for name, given in targets.items():
        if given is not None and not any(name in TARGETS[m] for m in chosen):
            raise click.UsageError(
                f"{flag(name)} belongs to none of the methods {', '.join(chosen)}."
            )
    for name in chosen:
        own = {k: v for k, v in targets.items() if k in TARGETS[name]}
        method = method_of(name, activation, own)
        try:
            with notes():
                curves.append(c_map_curve(graph, method, activation, clamp=clamp)[1])
        except UnreachableTargetError as error:
            if methods:
                raise
            unreached.append(error)
            click.echo(f"note: {name} is left out. {error}", err=True)
    if not curves:
        raise unreached[0]
    click.echo(draw_c_maps(curves, f"C maps of {model}", output))


@click.command()
@click.argument("model")
@_method_option
@click.option(
    "--activation",
    help="Name of the activation.  [default: leaky_relu for tat, softplus for dks, relu for eoc]",
)
@target_options
@_shortcut_option
@click.option("--width", "widths", type=int, multiple=True, help=_WIDTHS)
@click.option("--seeds", default=20, help="How often the weights are drawn.")
@click.option("--distribution", type=click.Choice(_LAWS), default="orthogonal", help="Of weights.")
@_input_option
@click.option("--tolerance", default=0.05, help="For what finite width adds; see above.")
@_json_option
@_output_option("check.png")
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
    """Compare the kernel of MODEL, measured, with what the theory predicts.

    MODEL is mlp:DEPTH, or package.module:factory of your own: a function that returns an nn.Module,
    or one and an example, for each width if it takes a `width`. A layer agrees if c, and q relative
    to its prediction, are off by at most the tolerance and four standard errors. If one does not at
    the largest width, the exit code is 1.

    \b
    Examples:
      skipless check mlp:50
      skipless check mlp:30 --method dks --distribution gaussian --width 300 --json
      skipless check my_package.models:resnet --shortcut-weight 0 --input 3,32,32
    """  # noqa: D301
    try:
        from skipless.runs.check import Shaping, check_widths, family_of, told
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"check needs {missing.name}, which is not installed: pip install 'skipless[torch]'"
        ) from None
    from skipless.report.figures import require_figure_path

    require_figure_path(output)
    shaping = Shaping(method_of(method, activation, targets), activation, clamp, shortcut_weight)
    with notes():
        family = family_of(model, shaping, widths, sample_shape(shape))
        checks = check_widths(family, seeds, distribution, tolerance, _progress)
    click.echo(told(checks, model, output, as_json))
    return 0 if list(checks.values())[-1].agrees else 1


def _graph(model: str, shortcut_weight: float | None, shape: str | None) -> Graph:
    """The graph of a MODEL argument."""
    from skipless.runs.kernels import graph_of

    try:
        return graph_of(model, shortcut_weight, sample_shape(shape))
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"{model} needs {missing.name}, which is not installed: pip install 'skipless[torch]'"
        ) from None


def sample_shape(text: str | None) -> tuple[int, ...] | None:
    """The shape of a sample from an option such as 3,32,32."""
    if text is None:
        return None
    sizes = [size.strip() for size in text.split(",")]
    if not all(size.isascii() and size.isdigit() and int(size) for size in sizes):
        raise click.UsageError(f"--input {text!r} was given; a shape is written as 3,32,32.")
    return tuple(map(int, sizes))


@contextmanager
def _progress(seeds: Sequence[int], label: str) -> Iterator[Iterable[int]]:
    """A bar on stderr while the seeds are used, if someone may be watching."""
    if sys.stderr.isatty():
        with click.progressbar(seeds, label=label, file=sys.stderr) as bar:
            yield bar
    else:
        yield seeds


@click.command()
@click.argument("pattern", default="*")
def models(pattern: str) -> None:
    """List the networks that `skipless train` knows, or those that match PATTERN.

    Of wide_resnet and mlp there are more: wide_resnet of every depth 6n + 4, mlp of every depth.

    \b
    Examples:
      skipless models
      skipless models 'resnet*'
    """  # noqa: D301
    try:
        from skipless.models import list_models
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"models needs {missing.name}, which is not installed: pip install 'skipless[torch]'"
        ) from None
    found = list_models(pattern)
    if not found:
        raise click.UsageError(f"No network matches {pattern!r}. See all of them: skipless models")
    click.echo("\n".join(found))

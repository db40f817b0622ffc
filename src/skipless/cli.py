"""The command line: parses, calls one function, prints."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from skipless import __version__

if TYPE_CHECKING:
    from skipless.core.graph import Graph
    from skipless.core.methods import Method
    from skipless.core.solution import Solution

MethodName = Literal["tat", "dks", "eoc"]
_METHODS: tuple[MethodName, ...] = ("tat", "dks", "eoc")
_MOST_LAYERS = 100_000


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 if all went well, 2 for bad input, told in one line on stderr."""
    try:
        skipless.main(arguments, prog_name="skipless", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as help_:
        click.echo(help_.format_message())
    except click.ClickException as error:
        return _fail(error.format_message())
    except (ValueError, ArithmeticError, OSError, ModuleNotFoundError) as error:
        return _fail(str(error))
    except click.Abort:
        return _fail("stopped")
    return 0


def _fail(message: str) -> int:
    click.echo(f"skipless: {' '.join(message.split())}", err=True)
    return 2


def _target_options(command: Callable[..., None]) -> Callable[..., None]:
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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="skipless", message="%(prog)s %(version)s")
def skipless() -> None:
    """Very deep networks that train without shortcuts and without normalisation layers."""


@skipless.command()
@click.argument("model")
@click.option(
    "--method",
    type=click.Choice(_METHODS, case_sensitive=False),
    default="tat",
    show_default=True,
    help="How to shape the kernel.",
)
@click.option(
    "--activation",
    help="Name of the activation.  [default: leaky_relu; relu for eoc]",
)
@click.option("--negative-slope", type=float, help="EOC with leaky_relu: its slope below zero.")
@_target_options
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def solve(
    model: str,
    method: MethodName,
    activation: str | None,
    negative_slope: float | None,
    clamp: bool,
    as_json: bool,
    **targets: float | None,
) -> None:
    r"""Solve for the activation that shapes MODEL.

    MODEL is mlp:DEPTH, a chain of DEPTH layers.

    \b
    Examples:
      skipless solve mlp:100
      skipless solve mlp:50 --method dks --activation tanh --zeta 10 --json
    """
    from skipless.core.activations import activation as look_up
    from skipless.core.solve import solve as solve_

    graph = _graph(model)
    if negative_slope is not None and method != "eoc":
        raise click.UsageError(
            f"--negative-slope belongs to --method eoc; {method} solves for it. Leave it out."
        )
    phi = look_up(activation or ("relu" if method == "eoc" else "leaky_relu"), negative_slope)
    with _notes():
        solution = solve_(graph, _method(method, activation, targets), phi, clamp=clamp)
    answer = {
        "model": model,
        "method": method,
        "activation": solution.activation,
        "depth": graph.depth,
        "parameters": solution.parameters,
        "targets": dict(solution.targets),
        "residuals": dict(solution.residuals),
    }
    click.echo(json.dumps(answer, indent=2) if as_json else _described(answer, solution))


@skipless.command()
@click.argument("model")
@click.option(
    "--method",
    "methods",
    type=click.Choice(_METHODS, case_sensitive=False),
    multiple=True,
    help="A method to draw; give it several times.  [default: all three]",
)
@click.option(
    "--activation",
    help="For every method.  [default: leaky_relu for tat, softplus for dks, relu for eoc]",
)
@_target_options
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("c_maps.png"),
    show_default=True,
    help="Where to write the figure: a name that ends in .png or .svg.",
)
def plot(
    model: str,
    methods: tuple[MethodName, ...],
    activation: str | None,
    clamp: bool,
    output: Path,
    **targets: float | None,
) -> None:
    r"""Draw the C maps of MODEL: of one layer, of the network, and layer by layer.

    MODEL is mlp:DEPTH, a chain of DEPTH layers.

    \b
    Examples:
      skipless plot mlp:100
      skipless plot mlp:100 --method tat --method dks --activation tanh -o tanh.svg
    """
    from skipless.core.solution import UnreachableTargetError
    from skipless.experiments.c_maps import c_map_curve
    from skipless.report.c_maps import draw_c_maps

    graph, curves = _graph(model), []
    unreached: list[UnreachableTargetError] = []
    chosen = methods or _METHODS
    for name, given in targets.items():
        if given is not None and not any(name in _TARGETS[m] for m in chosen):
            raise click.UsageError(
                f"{_flag(name)} belongs to none of the methods {', '.join(chosen)}."
            )
    for name in chosen:
        own = {k: v for k, v in targets.items() if k in _TARGETS[name]}
        method = _method(name, activation, own)
        try:
            with _notes():
                curves.append(c_map_curve(graph, method, activation, clamp=clamp)[1])
        except UnreachableTargetError as error:
            if methods:
                raise
            unreached.append(error)
            click.echo(f"note: {name} is left out. {error}", err=True)
    if not curves:
        raise unreached[0]
    click.echo(draw_c_maps(curves, f"C maps of {model}", output))


_TARGETS: dict[MethodName, tuple[str, ...]] = {
    "tat": ("eta", "tau"),
    "dks": ("zeta",),
    "eoc": ("sigma_b",),
}


def _method(name: MethodName, activation: str | None, given: dict[str, float | None]) -> Method:
    """The method with the targets that were given, which must be its own and in use."""
    from skipless.core.activations import activation as look_up
    from skipless.core.methods import DKS, EOC, TAT

    named = {key: value for key, value in given.items() if value is not None}
    for key in named:
        if key not in _TARGETS[name]:
            own = " and ".join(map(_flag, _TARGETS[name]))
            raise click.UsageError(f"{_flag(key)} does not belong to {name}, which has {own}.")
    if name == "tat":
        leaky = activation is None or look_up(activation).negative_slope is not None
        used, unused = ("eta", "tau") if leaky else ("tau", "eta")
        if unused in named:
            raise click.UsageError(
                f"{_flag(unused)} has no effect on {activation or 'leaky_relu'}, which TAT shapes "
                f"by {_flag(used)}. Use that."
            )
    return {"tat": TAT, "dks": DKS, "eoc": EOC}[name](**named)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _graph(model: str) -> Graph:
    """The graph of a MODEL argument."""
    from skipless.core.graph import Graph

    kind, _, depth = model.partition(":")
    if kind != "mlp" or not (depth.isascii() and depth.isdigit() and len(depth) < 20):
        raise click.UsageError(
            f"MODEL {model!r} was asked for; the models are mlp:DEPTH, for instance mlp:100."
        )
    if not 1 <= int(depth) <= _MOST_LAYERS:
        raise click.UsageError(f"A depth of {depth} was asked for; it must be 1 to {_MOST_LAYERS}.")
    return Graph.chain(int(depth))


@contextmanager
def _notes() -> Iterator[None]:
    """Tell what the library warns of on stderr, one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        click.echo(f"note: {warning.message}", err=True)


def _described(answer: dict[str, Any], solution: Solution) -> str:
    from skipless.report.tables import table

    head = f"{answer['model']}, {answer['method'].upper()} with {answer['activation']}:"
    parameters = [[k, f"{v:.10g}"] for k, v in answer["parameters"].items() if v is not None]
    conditions = [
        [name, f"{target:.6g}", f"{solution.residuals[name]:.1e}"]
        for name, target in solution.targets.items()
    ]
    return "\n\n".join(
        [
            head,
            table(["parameter", "value"], parameters),
            table(["condition", "target", "residual"], conditions),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())

"""A model of Flax NNX shaped in one line: convert(model, example, method) -> model, report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike

from skipless.core.activations import Activation
from skipless.core.graph import Activation as ActivationNode
from skipless.core.graph import Graph, Sum, inputs_of
from skipless.core.methods import TAT, Method
from skipless.core.network import Point
from skipless.core.predict import predict
from skipless.core.rescale import combined, in_residual_form, normalised
from skipless.core.solution import Solution
from skipless.core.solve import solve
from skipless.core.unmixed import approximations
from skipless.jax.functions import Function
from skipless.jax.trace import UnsupportedModelError, trace

from .activations import ShapedActivation
from .held import Held, Identity, is_activation, is_normalisation, replace
from .layers import draw

Model = TypeVar("Model", bound=nnx.Module)

_UNIT = 1e-3  # how far the squares of a sum's weights may add up to other than 1


@dataclass(frozen=True)
class ConversionReport:
    """What was changed, the solution, and the predicted q and c values; `print` shows it.

    `predicted` has a point for every node of `graph`, for two inputs of q value 1 that are
    orthogonal. `shaped`, `removed` and `given_biases` name places in the model; `approximate` lists
    where the theory holds only roughly, `untouched` the parameters that were not drawn anew.
    """

    method: Method
    solution: Solution
    graph: Graph
    predicted: tuple[Point, ...]
    shaped: tuple[str, ...]
    removed: tuple[str, ...]
    given_biases: tuple[str, ...]
    approximate: tuple[str, ...]
    untouched: tuple[str, ...]

    def __str__(self) -> str:
        used = {k: f"{v:.8g}" for k, v in self.solution.parameters.items() if v is not None}
        last = self.predicted[-1]
        lists = {
            "Activations shaped": self.shaped,
            "Normalisation removed": self.removed,
            "Biases added": self.given_biases,
            "The theory only approximates": self.approximate,
            "Parameters left as they were": self.untouched,
        }
        return "\n".join(
            [
                f"{self.graph!r}, shaped by {self.method}",
                f"{self.solution.activation}: {', '.join(f'{k} = {v}' for k, v in used.items())}",
                f"At the output, orthogonal inputs have q = {last.q:.4f} and c = {last.c:.4f}.",
                *(f"{what}: {', '.join(where)}" for what, where in lists.items() if where),
            ]
        )


def convert(
    model: Model,
    example: ArrayLike,
    method: Method = TAT(),  # noqa: B008 - frozen, so that sharing it is safe
    *,
    rngs: nnx.Rngs,
    activation: str | Activation = "leaky_relu",
    function: Function | None = None,
    clamp: bool = False,
) -> tuple[Model, ConversionReport]:
    """A copy of `model`, shaped by `method`, and the account of what was done.

    - Normalisation layers are replaced by `Identity`, and layers without biases are then given
      some.
    - Every activation that a module holds becomes the `ShapedActivation` that `solve` finds: a
      `TReLU` under TAT, or the shaped `activation`.
    - Weights of dense layers and convolutions are drawn anew from `rngs`.

    Sums stay as they are written, and must be normalised: `w * x + sqrt(1 - w**2) * branch(x)`,
    with the shortcut starting before an activation. A model with other sums, or with activations
    that it does not hold, is refused with advice. `clamp` is for `solve`; `function` is φ in
    arrays, where `activation` is an `Activation` of your own.
    """
    if not isinstance(model, nnx.Module):
        found = f"the class {model.__name__}" if isinstance(model, type) else repr(model)
        raise TypeError(
            f"A model is converted, an nnx.Module that has been made; found {found}. Give one, as "
            "in convert(Net(rngs=nnx.Rngs(0)), example)."
        )
    model = nnx.clone(model)
    _demand_plain_weights(model)
    removed = replace(model, is_normalisation, Identity)
    held = replace(model, is_activation, Held)
    _demand_all_held(_traced(model, example, lambda x: x), type(model).__name__)
    graph = _traced(model, example, jnp.tanh)
    _demand_normalised(graph)
    graph = normalised(graph)  # in float64, that is
    solution = solve(graph, method, activation, clamp=clamp)
    replace(
        model,
        lambda value: isinstance(value, Held),
        lambda: ShapedActivation.from_solution(solution, function),
    )
    drawn = draw(model, solution, rngs, add_biases=bool(removed))
    return model, ConversionReport(
        method,
        solution,
        graph,
        predict(graph, solution),
        tuple(held),
        tuple(removed),
        drawn.given_biases,
        tuple(approximations(graph)),
        drawn.untouched,
    )


def _demand_plain_weights(model: nnx.Module) -> None:
    for path, module in nnx.iter_modules(model):
        if isinstance(module, nnx.WeightNorm | nnx.SpectralNorm):
            raise UnsupportedModelError(
                f"{'.'.join(map(str, path))} computes weights by {type(module).__name__}, which "
                "would undo how they are drawn. Build the model with the layer inside alone."
            )


def _traced(model: nnx.Module, example: ArrayLike, function: Function) -> Graph:
    """The graph of `model` in evaluation mode, with `function` wherever it holds an activation."""
    probe = nnx.clone(model)
    probe.eval()
    for _, module in nnx.iter_modules(probe):
        if isinstance(module, Held):
            module.function = function
    return trace(probe, example)


def _demand_all_held(graph: Graph, name: str) -> None:
    """Refuse `graph`, in which all held activations are the identity, if it has others."""
    nodes = [graph.nodes[i] for i in sorted(graph.live)]
    left = [node.origin for node in nodes if isinstance(node, ActivationNode)]
    if left:
        places = ", ".join(dict.fromkeys(filter(None, left)))
        raise UnsupportedModelError(
            f"{name} was to be converted, but {len(left)} of its activations are written in "
            f"__call__ rather than held by a module{places and f' ({places})'}, and cannot be "
            "replaced. Let __init__ keep them, as in self.activation = nnx.relu, and __call__ use "
            "self.activation(x)."
        )


def _demand_normalised(graph: Graph) -> None:
    if in_residual_form(graph) != graph:
        raise UnsupportedModelError(
            "A shortcut starts behind an activation and ends before the next one, as in "
            "activation(x + branch(x)), where q values grow from block to block. Let shortcuts "
            "start before activations: w * x + sqrt(1 - w**2) * branch(activation(x))."
        )
    parts: list[dict[int, float]] = []
    for index, node in enumerate(graph.nodes):
        terms = zip((parts[i] for i in inputs_of(node)), getattr(node, "weights", ()), strict=False)
        parts.append(combined(terms) if isinstance(node, Sum) else {index: 1.0})
    live = [graph.nodes[index] for index in sorted(graph.live)]
    # A sum of sums is one, which counts where something else reads it, or where the model ends.
    read = [i for node in live if not isinstance(node, Sum) for i in inputs_of(node)]
    for i in (*read, graph.output):
        total = math.fsum(part**2 for part in parts[i].values())
        if abs(total - 1.0) > _UNIT:
            raise UnsupportedModelError(
                f"The squares of the weights of the sum at {graph.nodes[i].origin or i} add up "
                f"to {total:.4g}, and the theory asks for 1. Write shortcuts as "
                "w * x + sqrt(1 - w**2) * branch(x), and divide a sum of n terms by sqrt(n)."
            )

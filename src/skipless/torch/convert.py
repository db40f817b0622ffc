"""A model shaped in one line: convert(model, example, method) -> model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from skipless.core.activations import Activation
from skipless.core.conversion import demand_same
from skipless.core.methods import TAT, Method
from skipless.core.predict import predict
from skipless.core.rescale import in_residual_form, normalised_weights, reweighted
from skipless.core.solution import Solution
from skipless.core.solve import solve
from skipless.core.unmixed import approximations

from .activations import ShapedActivation
from .conversion import ConversionReport, ConvertedModel
from .draw import draw_
from .reader import UnsupportedModelError
from .rewrite import rewrite
from .trace import read


def convert(
    model: nn.Module,
    example: torch.Tensor,
    method: Method = TAT(),  # noqa: B008 - frozen, so that sharing it is safe
    *,
    shortcut_weight: float | None = None,
    activation: str | Activation = "leaky_relu",
    function: Callable[[torch.Tensor], torch.Tensor] | None = None,
    clamp: bool = False,
    generator: torch.Generator | None = None,
) -> ConvertedModel:
    r"""A new model like `model`, shaped by `method`; `skipless_report` of it says what was done.

    - Normalisation layers are removed, and layers next to them without biases are given some.
    - Every activation becomes the one that `solve` finds for the network as it is after conversion:
      a `TReLU` under TAT, or the shaped `activation`.
    - Every sum is normalised. With a `shortcut_weight` w, residual sums become
      $w\,x + \sqrt{1-w^2}\,\mathcal R(x)$; with 0 the shortcuts are removed, and what only they
      need. Without one, the terms of a sum keep their proportions. Where a block ends in an
      activation, as in a ResNet of the first kind, the shortcut starts before the activation of
      the block before it, as in one of the second: the theory asks for that (`core.rescale`).
    - Weights and biases are drawn anew, as `initialize_` does.

    Layers and parameters that remain keep their names. The model is written out as a
    `torch.fx.GraphModule` for the course that `model` takes on `example`, with sizes left open that
    it does not fix. `clamp` is for `solve`; `function` is φ in tensors, where `activation` is an
    `Activation` of your own.

    >>> blocks = [m for _ in range(20) for m in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    >>> deep = convert(nn.Sequential(*blocks), torch.zeros(2, 8), TAT(eta=0.9))
    >>> round(deep.skipless_report.predicted[-1].c, 6)
    0.9
    """
    original, model = model, _copied(model)
    reading = read(model, example, dynamic=True)
    form = in_residual_form(reading.graph)
    weights = normalised_weights(form, shortcut_weight)
    graph = reweighted(form, weights)
    solution = solve(graph, method, activation, clamp=clamp)

    build = partial(_activation, solution, function, example.device)
    rewritten = rewrite(model, reading, form, weights, build)
    name = type(original).__name__
    converted = ConvertedModel(rewritten.parts, rewritten.graph, name)  # pyright: ignore[reportArgumentType]
    converted.graph.eliminate_dead_code()
    converted.recompile()
    converted.train(original.training)
    demand_same(graph, read(converted, example).graph)

    untouched = draw_(
        converted, sigma_w=solution.sigma_w, sigma_b=solution.sigma_b, generator=generator
    )
    converted.skipless_report = ConversionReport(
        method,
        solution,
        graph,
        predict(graph, solution),
        tuple(rewritten.changes),
        (*reading.notes.approximate, *approximations(graph)),
        tuple(untouched),
    )
    return converted


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:  # of tensors that are computed from parameters
        raise UnsupportedModelError(
            f"{type(model).__name__} was to be copied, but cannot be: {error}. Remove weight "
            "normalisation and other reparametrisations first."
        ) from error


def _activation(
    solution: Solution,
    function: Callable[[torch.Tensor], torch.Tensor] | None,
    device: torch.device,
) -> nn.Module:
    return ShapedActivation.from_solution(solution, function).to(device)

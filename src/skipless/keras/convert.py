"""A model shaped in one line: convert(model, method) -> model."""

from __future__ import annotations

from functools import partial

import keras

from skipless.core.activations import Activation
from skipless.core.conversion import demand_same
from skipless.core.methods import TAT, Method
from skipless.core.predict import predict
from skipless.core.rescale import in_residual_form, normalised_weights, reweighted
from skipless.core.signals import UnsupportedModelError
from skipless.core.solution import Solution
from skipless.core.solve import solve
from skipless.core.unmixed import approximations

from .activations import ShapedActivation
from .conversion import ConversionReport
from .functions import Function
from .layers import Copies
from .rewrite import rewrite
from .trace import Reading, read


def convert(
    model: keras.Model,
    method: Method = TAT(),  # noqa: B008 - frozen, so that sharing it is safe
    *,
    shortcut_weight: float | None = None,
    activation: str | Activation = "leaky_relu",
    function: Function | None = None,
    clamp: bool = False,
    seed: int | None = None,
    example: object = None,
) -> keras.Model:
    r"""A new Functional model like `model`, shaped by `method`; its `skipless_report` says how.

    - Normalisation layers are removed, and layers next to them without biases are given some.
    - Every activation becomes the one that `solve` finds for the network as it is after conversion:
      a `TReLU` under TAT, or the shaped `activation`. A layer's own becomes a layer behind it. A
      softmax at the end stays.
    - Every sum is normalised, and becomes a `WeightedAdd`. With a `shortcut_weight` w, residual
      sums become $w\,x + \sqrt{1-w^2}\,\mathcal R(x)$; with 0 the shortcuts are removed, and what
      only they need. Without one, the terms of a sum keep their proportions. Where a block ends in
      an activation, as in a ResNet of the first kind, the shortcut starts before the activation of
      the block before it, as in one of the second: the theory asks for that (`core.rescale`).
    - Weights are drawn anew: `ScaledUniformOrthogonal` for dense layers, Delta initialisation for
      convolutions, biases zero (or, under EOC, normal).

    As with `keras.models.clone_model`, layers are made anew from their configurations, under their
    names, and what `compile` was given is kept; `model` is left as it is. Models inside of it are
    written out. `seed` makes the weights reproducible, `clamp` is for `solve`, `example` for a
    Sequential model that has not been built; `function` is φ in tensors, where `activation` is an
    `Activation` of your own.

    >>> block = lambda: [keras.layers.Dense(8, activation="relu") for _ in range(20)]
    >>> deep = convert(keras.Sequential([keras.Input((8,)), *block()]), TAT(eta=0.9), seed=0)
    >>> round(deep.skipless_report.predicted[-1].c, 6)
    0.9
    """
    reading = read(model, example)
    _demand_no_probability(reading)
    form = in_residual_form(reading.graph)
    weights = normalised_weights(form, shortcut_weight)
    graph = reweighted(form, weights)
    solution = solve(graph, method, activation, clamp=clamp)

    copies = Copies(solution.sigma_w, solution.sigma_b, seed)
    build = partial(_activation, solution, function)
    rewritten = rewrite(reading, form, weights, build, copies)
    converted = keras.Model(rewritten.input, rewritten.output, name=model.name)
    demand_same(graph, read(converted).graph)
    if model.compiled:
        converted.compile_from_config(model.get_compile_config())
    converted.skipless_report = ConversionReport(
        method,
        solution,
        graph,
        predict(graph, solution),
        tuple(rewritten.changes),
        (*reading.notes.approximate, *approximations(graph)),
        tuple(copies.untouched),
    )
    return converted


def _activation(
    solution: Solution, function: Function | None, name: str, dtype: str
) -> ShapedActivation:
    return ShapedActivation.from_solution(solution, function, name=name, dtype=dtype)


def _demand_no_probability(reading: Reading) -> None:
    """Refuse to replace a sigmoid that makes a probability of the output."""
    output, names = reading.record.output, list(reading.activations.values())
    if reading.activations.get(output) == "sigmoid" and names.count("sigmoid") == 1 < len(names):
        raise UnsupportedModelError(
            f"{output.call.path} ends the model with a sigmoid, which conversion would replace "
            "like any other activation. Leave it to the loss: remove it, and use "
            "keras.losses.BinaryCrossentropy(from_logits=True)."
        )

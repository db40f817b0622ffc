"""Weights of Flax's layers, drawn anew in a model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.nn.initializers import Initializer

from skipless.core.solution import Solution
from skipless.jax.init import (
    delta_orthogonal,
    scaled_uniform_orthogonal,
    transposed_delta_orthogonal,
)

_Convolution = nnx.Conv | nnx.ConvTranspose
_Layer = nnx.Linear | nnx.LinearGeneral | nnx.Einsum | _Convolution


@dataclass(frozen=True)
class Drawn:
    """Names of the parameters left as they were, and of layers that were given biases."""

    untouched: tuple[str, ...]
    given_biases: tuple[str, ...]


def draw(model: nnx.Module, solution: Solution, rngs: nnx.Rngs, *, add_biases: bool) -> Drawn:
    """What was not drawn, and what was added, after drawing all else in place.

    Dense layers get weights by `scaled_uniform_orthogonal`, convolutions by `delta_orthogonal`,
    with the gain `sigma_w` of `solution`; biases are normal with its `sigma_b`. Layers without
    biases are given some if `add_biases` says so. A parameter that several layers share is drawn
    once. Layers that were made many at once, by `nnx.vmap`, are drawn one by one.

    >>> from skipless import Graph, solve
    >>> model = nnx.Sequential(nnx.Linear(4, 3, rngs=nnx.Rngs(0)), nnx.PReLU())
    >>> draw(model, solve(Graph.chain(50)), nnx.Rngs(0), add_biases=False).untouched
    ('layers.1.negative_slope',)
    """
    done: set[int] = set()
    given: list[str] = []
    for path, layer in nnx.iter_modules(model):
        if not isinstance(layer, _Layer) or (rule := _rule(layer, solution.sigma_w)) is None:
            continue
        if id(layer.kernel) not in done:
            _draw_weights(layer.kernel, rule, rngs)
        if add_biases and layer.bias is None and not isinstance(layer, nnx.Einsum):
            layer.bias = nnx.Param(jnp.zeros(_bias_shape(layer, rule), layer.param_dtype))
            layer.use_bias = True
            given.append(_name(path))
        if layer.bias is not None and id(layer.bias) not in done:
            old, sigma = layer.bias[...], solution.sigma_b
            normal = jax.nn.initializers.normal(sigma) if sigma else jax.nn.initializers.zeros
            _put(layer.bias, normal(rngs.params(), old.shape, old.dtype))
        done.update((id(layer.kernel), id(layer.bias)))
    variables = nnx.iter_graph(model)
    untouched = [
        _name(path) for path, v in variables if isinstance(v, nnx.Param) and id(v) not in done
    ]
    return Drawn(tuple(untouched), tuple(given))


@dataclass(frozen=True)
class _Rule:
    """How a kernel is drawn: an initialiser for its last `axes` axes; those before are copies."""

    init: Initializer
    axes: int


def _rule(layer: _Layer, gain: float) -> _Rule | None:
    match layer:
        case nnx.Linear():
            return _Rule(scaled_uniform_orthogonal(gain), 2)
        case nnx.LinearGeneral():
            k, m = len(layer.in_features), len(layer.out_features)
            ins, outs = range(-k - m, -m), range(-m, 0)
            return _Rule(scaled_uniform_orthogonal(gain, tuple(ins), tuple(outs)), k + m)
        case nnx.Einsum():
            return _einsum_rule(layer, gain)
        case nnx.Conv():
            _refuse_gaps(layer, layer.mask, layer.input_dilation)
            causal = layer.padding == "CAUSAL"
            init = delta_orthogonal(
                gain,
                feature_group_count=layer.feature_group_count,
                tap=[size - 1 for size in layer.kernel_size] if causal else None,
            )
            return _Rule(init, len(layer.kernel_size) + 2)
        case _:
            _refuse_gaps(layer, layer.mask, layer.kernel_dilation)
            turned = layer.transpose_kernel
            init = transposed_delta_orthogonal(
                1 if layer.strides is None else layer.strides,
                gain,
                *((-1, -2) if turned else (-2, -1)),
                transpose_kernel=turned,
            )
            return _Rule(init, len(layer.kernel_size) + 2)


def _einsum_rule(layer: nnx.Einsum, gain: float) -> _Rule | None:
    """The rule for `inputs,kernel->outputs`; None where an axis of the kernel is in all three."""
    equation = (layer.einsum_str or "").replace(" ", "")
    sides, _, outputs = equation.partition("->")
    inputs, _, kernel = sides.partition(",")
    ins = tuple(i for i, letter in enumerate(kernel) if letter not in outputs)
    outs = tuple(i for i, letter in enumerate(kernel) if letter not in inputs)
    if not kernel.isalpha() or len(ins) + len(outs) != len(kernel) or not ins or not outs:
        return None
    from_end = [tuple(i - len(kernel) for i in axes) for axes in (ins, outs)]
    return _Rule(scaled_uniform_orthogonal(gain, *from_end), len(kernel))


def _draw_weights(kernel: nnx.Param[Array], rule: _Rule, rngs: nnx.Rngs) -> None:
    old = kernel[...]
    copies, shape = old.shape[: old.ndim - rule.axes], old.shape[old.ndim - rule.axes :]
    draw_one = lambda key: rule.init(key, shape, old.dtype)
    if not copies:  # as almost always: then JAX compiles once for all layers of this shape
        return _put(kernel, draw_one(rngs.params()))
    drawn = jax.vmap(draw_one)(jax.random.split(rngs.params(), math.prod(copies)))
    _put(kernel, drawn.reshape(old.shape))


def _put(variable: nnx.Param[Array], value: Array) -> None:
    variable[...] = jax.device_put(value, variable[...].sharding)


def _bias_shape(layer: nnx.Linear | nnx.LinearGeneral | _Convolution, rule: _Rule) -> list[int]:
    features = layer.out_features
    copies = layer.kernel[...].shape[: layer.kernel[...].ndim - rule.axes]
    return [*copies, *([features] if isinstance(features, int) else features)]


def _refuse_gaps(layer: _Convolution, mask: object, dilation: object) -> None:
    spread = [dilation] if isinstance(dilation, int) else list(dilation or ())  # pyright: ignore
    if mask is not None or any(step != 1 for step in spread):
        raise ValueError(
            f"{type(layer).__name__} with kernel {layer.kernel_size} has a mask, or holes between "
            "the locations that it reaches, where q would be 0. Build it without mask and dilation."
        )


def _name(path: tuple[object, ...]) -> str:
    return ".".join(map(str, path))

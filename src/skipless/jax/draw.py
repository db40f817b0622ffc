"""Initial weights of all layers of a recorded function, drawn as the theory asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from skipless.core.signals import UnsupportedModelError

from .init import gaussian_fan_in, scaled_uniform_orthogonal
from .operations import AFFINE, signals, unmoved, weight_of
from .record import Operation, Tensor
from .trace import Reading

_Matrix = Callable[[jax.Array, tuple[int, ...]], jax.Array]  # of a key and a shape
Distribution = Literal["orthogonal", "gaussian"]
# A layer's weights may be one of many that lie stacked in an array.
_PARTS = {"scan_slice", "slice", "dynamic_slice", "squeeze", "gather", "reshape", "transpose"}


def draw(
    reading: Reading,
    key: jax.Array,
    *,
    sigma_w: float = 1.0,
    sigma_b: float = 0.0,
    distribution: Distribution = "orthogonal",
) -> dict[Tensor, jax.Array]:
    """Weights and biases for the tensors of the record that layers read them from.

    Weights of convolutions are zero but for one tap of their kernel (Delta initialisation).
    """
    drawn: dict[Tensor, jax.Array] = {}
    first: dict[Tensor, Tensor] = {}  # of those that layers share
    layers = [op for op in reading.record.operations if op.name in AFFINE and signals(op)]
    for number, op in enumerate(layers):
        weight = weight_of(op)
        own = unmoved(weight)
        _require_parameter(own, op)
        if (before := first.setdefault(own, weight)) is not weight:
            if before.shape != weight.shape:
                raise UnsupportedModelError(
                    f"{op.location} uses the weights of another layer, transposed, so that they "
                    "cannot be drawn for both. Give it weights of its own."
                )
            drawn[weight] = drawn[before]
            continue
        fresh = jax.random.fold_in(key, 2 * number)
        drawn[weight] = _weights(op, weight, fresh, sigma_w, distribution).astype(weight.dtype)
    for number, op in enumerate(reading.biases.values()):
        bias = weight_of(op)
        fresh = jax.random.fold_in(key, 2 * number + 1)
        drawn[bias] = _bias(bias, fresh, sigma_b)
    return drawn


def _require_parameter(own: Tensor, op: Operation) -> None:
    while own.operation is not None and own.operation.name in _PARTS:
        own = own.operation.inputs[0]
    if own.operation is not None:
        raise UnsupportedModelError(
            f"{op.location} computes {op.name} with weights that are computed by "
            f"{own.operation.name} from others, so that they cannot be drawn. Remove weight "
            "normalisation and the like."
        )


def _bias(bias: Tensor, key: jax.Array, sigma_b: float) -> jax.Array:
    own = unmoved(bias)
    value: object = (sigma_b * jax.random.normal(key, own.shape)).astype(own.dtype)
    moves: list[Operation] = []
    while bias is not own:
        assert bias.operation is not None
        moves.append(bias.operation)
        bias = bias.operation.inputs[0]
    for op in reversed(moves):
        (value,) = op.run(value)
    return jnp.asarray(value)


def _weights(
    op: Operation, weight: Tensor, key: jax.Array, gain: float, distribution: Distribution
) -> jax.Array:
    if op.name == "conv_general_dilated":
        return _kernel(op.parameters, weight.shape, key, gain, distribution)
    own = op.inputs.index(weight)
    contracted, batched = op.parameters["dimension_numbers"]
    groups, inputs = tuple(batched[own]), tuple(contracted[own])
    outputs = [a for a in range(len(weight.shape)) if a not in (*groups, *inputs)]
    order = (*groups, *inputs, *outputs)
    sizes = [weight.shape[axis] for axis in order]
    many, k = len(groups), len(inputs)
    sizes = sizes if outputs else [*sizes, 1]
    matrix = _matrix(gain, range(k), range(k, len(sizes) - many), 1, distribution)
    keys = jax.random.split(key, tuple(sizes[:many])) if many else key
    for _ in range(many):
        matrix = _mapped(matrix)
    values = matrix(keys, tuple(sizes[many:])).reshape([weight.shape[axis] for axis in order])
    return jnp.transpose(values, sorted(range(len(order)), key=order.__getitem__))


def _mapped(matrix: _Matrix) -> _Matrix:
    return lambda keys, shape: jax.vmap(lambda key: matrix(key, shape))(keys)


def _matrix(
    gain: float,
    inputs: Sequence[int],
    outputs: Sequence[int],
    groups: int,
    distribution: Distribution,
) -> _Matrix:
    ins, outs = tuple(inputs), tuple(outputs)
    if distribution == "gaussian":
        return gaussian_fan_in(gain, ins, outs)
    return scaled_uniform_orthogonal(gain, ins, outs, feature_group_count=groups)


def _kernel(
    parameters: Mapping[str, Any],
    shape: Sequence[int],
    key: jax.Array,
    gain: float,
    distribution: Distribution,
) -> jax.Array:
    """A matrix at the tap that reads a location itself, and zeros elsewhere.

    Where the input is stretched by zeros, as in transposed convolutions, as many taps as the
    stretch hold it, so that every location of the output reads one of the input's.
    """
    out_axis, in_axis, *tap_axes = parameters["dimension_numbers"].rhs_spec
    groups = parameters["feature_group_count"]
    centre = [1 if axis in tap_axes else size for axis, size in enumerate(shape)]
    matrix = _matrix(gain, (in_axis,), (out_axis,), groups, distribution)(key, tuple(centre))
    padding = [(0, 0)] * len(shape)
    repeats = [1] * len(shape)
    for number, axis in enumerate(tap_axes):
        stretch = parameters["lhs_dilation"][number]
        low, high = parameters["padding"][number]
        spare = shape[axis] - stretch
        if spare < 0:
            raise UnsupportedModelError(
                f"A transposed convolution with a kernel of {shape[axis]} and a stride of "
                f"{stretch} leaves locations zero, so that it has no q and c values. Use a kernel "
                "at least as large as the stride."
            )
        tap = low // parameters["rhs_dilation"][number] - (stretch - 1)
        tap = spare // 2 if low + high <= 0 else min(max(tap, 0), spare)
        padding[axis], repeats[axis] = (tap, spare - tap), stretch
    return jnp.pad(jnp.tile(matrix, repeats), padding)

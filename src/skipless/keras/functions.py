"""Every φ of `core` as a function of Keras tensors, on whichever backend Keras runs.

They keep the type of what they are given. Half precision is widened where several operations would
each round. Where a backend's own function is less exact than float64, or is not differentiated
exactly at a kink, it is written out here.
"""

# To a type checker, operations of Keras may return None.
# pyright: reportOptionalOperand=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import keras
from keras import ops

from skipless.core import activations as core
from skipless.core.families import Member

Array = Any  # Keras has no type for the tensors of all its backends
Function = Callable[[Array], Array]

HALF = frozenset(("bfloat16", "float16"))


def is_half(x: Array) -> bool:
    return keras.backend.standardize_dtype(x.dtype) in HALF


def _in_float32(f: Callable[..., Array]) -> Callable[..., Array]:
    """`f`, computed in float32 and rounded once where its argument is of half precision."""

    @wraps(f)
    def widened(x: Array, **parameter: float) -> Array:
        if is_half(x):
            return ops.cast(f(ops.cast(x, "float32"), **parameter), x.dtype)
        return f(x, **parameter)

    return widened


def _in_full(narrowing: Function, native: str) -> Function:
    """An operation of Keras which, on JAX and PyTorch, would turn float64 into float32."""

    @wraps(narrowing)
    def exact(x: Array) -> Array:
        wide = keras.backend.standardize_dtype(x.dtype) == "float64"
        if wide and not isinstance(x, keras.KerasTensor):
            if keras.backend.backend() == "jax":
                import jax.numpy

                return getattr(jax.numpy, native)(x)
            if keras.backend.backend() == "torch":
                import torch

                return getattr(torch, native)(x)
        return narrowing(x)

    return exact


tanh = _in_full(ops.tanh, "tanh")


def identity(x: Array) -> Array:
    return x


@_in_float32
def bent_identity(x: Array) -> Array:
    square = x * x
    return x + 0.5 * square / (1.0 + ops.sqrt(1.0 + square))


@_in_float32
def celu(x: Array, alpha: float = 1.0) -> Array:
    return ops.where(x > 0.0, x, alpha * ops.expm1(_negative_part(x) / alpha))


@_in_float32
def elu(x: Array, alpha: float = 1.0) -> Array:
    return ops.where(x > 0.0, x, alpha * ops.expm1(_negative_part(x)))


@_in_float32
def gaussian(x: Array) -> Array:
    return ops.exp(-0.5 * x * x)


@_in_float32
def gelu(x: Array) -> Array:
    # TensorFlow would take √2 in float32.
    return 0.5 * x * (1.0 + ops.erf(math.sqrt(0.5) * x))


@_in_float32
def gelu_tanh(x: Array) -> Array:
    rate = 2.0 * math.sqrt(2.0 / math.pi)
    return x * ops.sigmoid(rate * x * (1.0 + 0.044715 * x * x))


@_in_float32
def hard_sigmoid(x: Array) -> Array:
    return ops.relu6(x + 3.0) / 6.0


@_in_float32
def hard_swish(x: Array) -> Array:
    return x * ops.relu6(x + 3.0) / 6.0


def hard_tanh(x: Array) -> Array:
    return ops.clip(x, -1.0, 1.0)


@_in_float32
def leaky_relu(x: Array, negative_slope: float = 0.01) -> Array:
    # TensorFlow would take the slope in float32.
    return ops.where(x > 0.0, x, negative_slope * x)


@_in_float32
def mish(x: Array) -> Array:
    return x * tanh(softplus(x))


@_in_float32
def quick_gelu(x: Array) -> Array:
    return x * ops.sigmoid(1.702 * x)


@_in_float32
def relu_squared(x: Array) -> Array:
    return ops.square(ops.relu(x))


@_in_float32
def selu(x: Array) -> Array:
    # Klambauer et al. 2017, eq. 14, as in `core`.
    return 1.0507009873554804934 * elu(x, alpha=1.6732632423543772848)


@_in_float32
def soft_shrink(x: Array, lambd: float = 0.5) -> Array:
    return x - ops.clip(x, -lambd, lambd)


@_in_float32
def softplus(x: Array, beta: float = 1.0) -> Array:
    # PyTorch's softplus is x itself above 20, where the rest is still 2e-9; this one is exact.
    return -ops.log_sigmoid(-beta * x) / beta


@_in_float32
def softsign(x: Array) -> Array:
    return x / (1.0 + ops.abs(x))


@_in_float32
def squareplus(x: Array) -> Array:
    """(x + √(x² + 4)) / 2, on the negative side as 2 / (√(x² + 4) + |x|)."""
    s = ops.sqrt(x * x + 4.0) + ops.abs(x)
    return ops.where(x > 0.0, 0.5 * s, 2.0 / s)


@_in_float32
def tanh_shrink(x: Array) -> Array:
    return x - tanh(x)


def _negative_part(x: Array) -> Array:
    return ops.where(x > 0.0, ops.zeros_like(x), x)


_TABLE: dict[str, Function] = {
    "abs": ops.abs,
    "asinh": _in_full(ops.arcsinh, "asinh"),
    "atan": _in_full(ops.arctan, "atan"),
    "bent_identity": bent_identity,
    "celu": celu,
    "cos": _in_full(ops.cos, "cos"),
    "elu": elu,
    "erf": ops.erf,
    "gaussian": gaussian,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "hard_sigmoid": hard_sigmoid,
    "hard_swish": hard_swish,
    "hard_tanh": hard_tanh,
    "identity": identity,
    "leaky_relu": leaky_relu,
    "log_sigmoid": ops.log_sigmoid,
    "mish": mish,
    "quick_gelu": quick_gelu,
    "relu": ops.relu,
    "relu6": ops.relu6,
    "relu_squared": relu_squared,
    "selu": selu,
    "sigmoid": ops.sigmoid,
    "silu": ops.silu,
    "sin": _in_full(ops.sin, "sin"),
    "soft_shrink": soft_shrink,
    "softplus": softplus,
    "softsign": softsign,
    "square": ops.square,
    "squareplus": squareplus,
    "tanh": tanh,
    "tanh_shrink": tanh_shrink,
}


def named(name: str | core.Activation) -> core.Activation:
    """The activation of `core` called `name`, which may be that of a member of a family.

    >>> named("elu(alpha=0.3)") is core.elu(0.3)
    True
    """
    member = Member.named(name) if isinstance(name, str) else None
    return core.activation(name) if member is None else member.activation


def activation(name: str | core.Activation, negative_slope: float | None = None) -> Function:
    """φ as a function of tensors, for every activation that `core` knows.

    It keeps the type of its input and can be differentiated, compiled, and given to a layer.

    >>> y = activation("hard_tanh")(ops.array([-2.0, 0.5, 2.0]))
    >>> ops.convert_to_numpy(y).tolist()
    [-1.0, 0.5, 1.0]
    """
    phi = named(name) if negative_slope is None else core.activation(name, negative_slope)
    if phi.name in _TABLE and phi == core.activation(phi.name):
        return _TABLE[phi.name]
    if (member := Member.of(phi)) is not None:
        return partial(_TABLE[member.family], **{member.label: member.number})
    raise ValueError(
        f"activation({phi.name!r}) was asked for in Keras, but only its numpy form is known. "
        "Pass a function of tensors: ShapedActivation.from_solution(solution, function), or "
        "ShapedActivation(function)."
    )

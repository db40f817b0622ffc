"""Every φ of `core` as a function of tensors.

They keep the type of what they are given. Half precision is widened where several operations would
each round.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps

import torch
import torch.nn.functional as F
from torch import Tensor

from skipless.core import activations as core
from skipless.core.families import Member

Function = Callable[[Tensor], Tensor]

HALF = frozenset((torch.bfloat16, torch.float16))


def _in_float32(f: Function) -> Function:
    """`f`, computed in float32 and rounded once where its argument is of half precision."""

    @wraps(f)
    def widened(x: Tensor) -> Tensor:
        return f(x.float()).to(x.dtype) if x.dtype in HALF else f(x)

    return widened


@_in_float32
def bent_identity(x: Tensor) -> Tensor:
    square = x * x
    return x + 0.5 * square / (1.0 + torch.sqrt(1.0 + square))


@_in_float32
def gaussian(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x)


@_in_float32
def hard_sigmoid(x: Tensor) -> Tensor:
    return F.relu6(x + 3.0) / 6.0  # F.hardsigmoid cannot be differentiated twice


@_in_float32
def quick_gelu(x: Tensor) -> Tensor:
    return F.silu(1.702 * x) / 1.702


@_in_float32
def relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


@_in_float32
def squareplus(x: Tensor) -> Tensor:
    """(x + √(x² + 4)) / 2, without the cancellation on the negative side."""
    return torch.exp(torch.asinh(0.5 * x))


@_in_float32
def tanh_shrink(x: Tensor) -> Tensor:
    return F.tanhshrink(x)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    # F.celu does the same, but rounds 1 / alpha to float32 in its gradient.
    return torch.ops.aten.elu.default(x, alpha, 1.0, 1.0 / alpha)


def softplus(x: Tensor, beta: float = 1.0) -> Tensor:
    # PyTorch returns x itself above a threshold of 20, where the rest is still 2e-9.
    return F.softplus(x, beta, threshold=40.0)


_TABLE: dict[str, Function] = {
    "abs": torch.abs,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "bent_identity": bent_identity,
    "celu": celu,
    "cos": torch.cos,
    "elu": F.elu,
    "erf": torch.erf,
    "gaussian": gaussian,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "hard_sigmoid": hard_sigmoid,
    "hard_swish": F.hardswish,
    "hard_tanh": F.hardtanh,
    "identity": torch.positive,
    "leaky_relu": F.leaky_relu,
    "log_sigmoid": F.logsigmoid,
    "mish": F.mish,
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "relu6": F.relu6,
    "relu_squared": relu_squared,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sin": torch.sin,
    "soft_shrink": F.softshrink,
    "softplus": softplus,
    "softsign": F.softsign,
    "square": torch.square,
    "squareplus": squareplus,
    "tanh": torch.tanh,
    "tanh_shrink": tanh_shrink,
}


def activation(name: str | core.Activation, negative_slope: float | None = None) -> Function:
    """φ as a function of tensors, for every activation that `core` knows.

    It keeps the type of its input, and can be differentiated, pickled, compiled and exported.

    >>> x = torch.linspace(-2.0, 2.0, 5)
    >>> torch.equal(activation("hard_tanh")(x), x.clamp(-1.0, 1.0))
    True
    """
    phi = core.activation(name, negative_slope)
    if phi.name in _TABLE and phi == core.activation(phi.name):
        return _TABLE[phi.name]
    if (member := Member.of(phi)) is not None:
        return partial(_TABLE[member.family], **{member.label: member.number})
    raise ValueError(
        f"activation({phi.name!r}) was asked for in PyTorch, but only its numpy form is known. "
        "Pass a function of tensors: ShapedActivation.from_solution(solution, function), or "
        "ShapedActivation(function)."
    )

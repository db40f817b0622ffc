"""Which activation a pointwise computation is, found by comparing values.

Whatever is computed pointwise from one tensor, by one operation or by ten, is a function of one
variable. It is evaluated on probe points and compared with the activations of `core`: so
`x * torch.sigmoid(x)` is SiLU, however it is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import fx

from skipless.core.activations import (
    Activation,
    Array,
    activation,
    activation_names,
    celu,
    elu,
    leaky_relu,
    soft_shrink,
    softplus,
)

from .operations import operation

Pointwise = Callable[[torch.Tensor], torch.Tensor]

# Both signs, both sides of every kink in the table, and far enough out to tell tails apart.
_PROBE = np.array(
    [-9.7, -6.3, -3.3, -2.4, -1.3, -0.7, -0.3, 0.0, 0.2, 0.6, 1.1, 1.9, 2.8, 3.3, 7.2]
)
_CLOSE = 1e-9


@dataclass(frozen=True)
class Recognised:
    """`scale` · φ, where φ is an activation, or the identity if it is None."""

    phi: Activation | str | None  # of `core`, or the call of a module that is an activation
    scale: float


class _NotPointwiseError(Exception):
    """A constant tensor of different numbers takes part."""


def composed(
    node: fx.Node,
    functions: Mapping[fx.Node, Pointwise | None],
    constants: Mapping[fx.Node, torch.Tensor | None],
) -> Pointwise:
    """What `node` computes, as a function of the one tensor that `functions` are functions of."""
    target, multiplies = node.target, operation(node).rstrip("_") == "mul"
    assert callable(target)

    def function(x: torch.Tensor) -> torch.Tensor:
        def argument(a: fx.Node) -> Any:  # what stands for a node is a tensor here
            if a in functions:
                f = functions[a]
                return x if f is None else f(x)
            number = _number(constants[a])
            # A branch that starts at zero, as in ReZero, is one with a factor to be removed.
            return torch.ones_like(number) if multiplies and number == 0.0 else number

        arguments = fx.map_arg(node.args, argument)
        keywords = fx.map_arg(node.kwargs, argument)
        return _functional(target)(*arguments, **keywords)

    return function


def _number(tensor: torch.Tensor | None) -> torch.Tensor:
    """The number that all entries of `tensor` are, as the slopes of a fresh PReLU."""
    if tensor is None or not tensor.numel() or (tensor != tensor.flatten()[0]).any():
        raise _NotPointwiseError
    return tensor.detach().double().flatten()[0]


def constant(
    node: fx.Node, constants: Mapping[fx.Node, torch.Tensor | None]
) -> torch.Tensor | None:
    """The single number that `node` computes from constants, or None."""
    known = [constants.get(a) for a in node.all_input_nodes]
    if any(k is None or k.numel() != 1 for k in known) or not callable(node.target):
        return None
    result = _functional(node.target)(
        *fx.map_arg(node.args, lambda a: constants[a]),
        **fx.map_arg(node.kwargs, lambda a: constants[a]),
    )
    return result if isinstance(result, torch.Tensor) else None


def _functional(target: Callable[..., object]) -> Callable[..., torch.Tensor]:
    """The operation without the side effect of writing into its first argument."""

    def run(first: object, *rest: object, **keywords: object) -> torch.Tensor:
        if isinstance(first, torch.Tensor):
            first = first.clone()
        return target(first, *rest, **keywords)  # pyright: ignore[reportReturnType]

    return run


def recognise(f: Pointwise) -> Recognised | None:
    """The multiple of a known activation, or of the identity, that `f` computes, or None."""
    try:
        values = f(torch.from_numpy(_PROBE)).detach().double().cpu().numpy()
    except _NotPointwiseError:
        return None
    if values.shape != _PROBE.shape or not np.all(np.isfinite(values)):
        return None
    if (scale := _multiple(values, _PROBE)) is not None:
        return Recognised(None, scale)
    for phi, expected in _table():
        if (scale := _multiple(values, expected)) is not None:
            return Recognised(phi, scale)
    for family in _families(values):
        if (scale := _multiple(values, family(_PROBE))) is not None:
            return Recognised(family, scale)
    return None


@cache
def _table() -> tuple[tuple[Activation, Array], ...]:
    names = [name for name in activation_names() if name not in ("identity", "celu")]  # celu = elu
    return tuple((activation(name), activation(name)(_PROBE)) for name in names)


def _families(values: Array) -> Iterator[Activation]:
    """The members of the one-parameter families that fit `values` at single points."""
    at = dict(zip(_PROBE.tolist(), values.tolist(), strict=True))
    if at[7.2] == 0.0:
        return
    slope = at[7.2] / 7.2  # of the families that are linear above zero
    yield leaky_relu(at[-9.7] / -9.7 / slope)
    if (alpha := at[-0.3] / slope / math.expm1(-0.3)) > 0.0:
        yield elu(alpha)
    if (alpha := -at[-9.7] / slope) > 0.0:
        for _ in range(30):  # α (e^(x/α) - 1), by iteration from its limit -α
            alpha = at[-9.7] / slope / math.expm1(-9.7 / alpha)
        yield celu(alpha)
    # The difference of softplus at x and -x is x; at zero it is log 2 / β.
    slope = (at[3.3] - at[-3.3]) / 3.3
    if at[0.0] * slope > 0.0:
        yield softplus(slope * math.log(2.0) / at[0.0])
    slope = (at[7.2] - at[3.3]) / 3.9
    if slope != 0.0 and 0.0 < (lambd := 7.2 - at[7.2] / slope) < 7.2:
        yield soft_shrink(lambd)


def _multiple(values: Array, expected: Array) -> float | None:
    """The s with `values` = s · `expected`, if there is one."""
    anchor = int(np.argmax(np.abs(expected)))
    if expected[anchor] == 0.0:
        return None
    scale = float(values[anchor] / expected[anchor])
    size = np.max(np.abs(values))
    fits = size > 0.0 and np.max(np.abs(values - scale * expected)) <= _CLOSE * size
    if not fits:
        return None
    return 1.0 if abs(scale - 1.0) < _CLOSE else scale

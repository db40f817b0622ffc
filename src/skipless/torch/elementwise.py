"""Recorded operations as functions of one tensor, for `core` to recognise by their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from skipless.core.recognise import PROBE, Recognised
from skipless.core.recognise import recognise as recognised_values

from .operations import operation

Pointwise = Callable[[torch.Tensor], torch.Tensor]


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
        return recognised_values(f(torch.from_numpy(PROBE)).detach().double().cpu().numpy())
    except _NotPointwiseError:
        return None

"""Dropout that is written out: products with random masks, which the theory passes over."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from .operations import signals
from .record import Operation, Tensor

_RANDOM = ("random_", "threefry", "rng_", "_bernoulli", "bernoulli", "_uniform", "uniform")


def masked(op: Operation, number: Callable[[Tensor], float | None]) -> Tensor | None:
    """The tensor that `op` multiplies by a random mask, before it is scaled for that; or None.

    A mask keeps a share p of the numbers, which are divided by p, before or after. A factor below 1
    is no such division: it is a weight of the branch. `number` tells what a constant is.
    """
    inputs = signals(op)
    if len(inputs) != 1:
        return None
    (tensor,) = inputs
    constants = [t for t in op.inputs if not t.signal]
    if op.name == "select_n" and not op.inputs[0].signal and _is_random(op.inputs[0]):
        return _unscaled(tensor, number)
    if op.name == "mul" and any(_is_random(t) for t in constants):
        return _unscaled(tensor, number)
    before = tensor.operation
    masks = before.inputs if before is not None and before.name in ("mul", "select_n") else ()
    if _divides(op, number) and any(not t.signal and _is_random(t) for t in masks):
        return tensor  # scaled afterwards
    return None


def _unscaled(tensor: Tensor, number: Callable[[Tensor], float | None]) -> Tensor:
    op = tensor.operation
    return signals(op)[0] if op is not None and _divides(op, number) else tensor


def _divides(op: Operation, number: Callable[[Tensor], float | None]) -> bool:
    """Whether `op` divides a tensor by a share p, or multiplies it by 1 / p."""
    constants = [t for t in op.inputs if not t.signal and not t.shape]
    if op.name not in ("div", "mul") or len(signals(op)) != 1 or not constants:
        return False
    factor = number(constants[0])
    if factor is None or (op.name == "div" and not op.inputs[0].signal):
        return False
    return 0.0 < factor <= 1.0 if op.name == "div" else factor >= 1.0


@cache
def _is_random(tensor: Tensor) -> bool:
    """Whether random bits were drawn to compute `tensor`."""
    seen: set[Operation] = set()
    waiting = [tensor]
    while waiting:
        op = waiting.pop().operation
        if op is None or op in seen:
            continue
        seen.add(op)
        if op.name.startswith(_RANDOM) or str(op.parameters.get("name", "")).startswith(_RANDOM):
            return True
        waiting += op.inputs
    return False

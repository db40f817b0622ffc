"""Dropout that is written out: products with random masks, which the theory passes over."""

from __future__ import annotations

from functools import cache

from .operations import signals
from .record import Operation, Tensor

_RANDOM = ("random_", "threefry", "rng_", "_bernoulli", "bernoulli", "_uniform", "uniform")


def masked(op: Operation) -> Tensor | None:
    """The tensor that `op` multiplies by a random mask, before it is scaled for that; or None.

    A mask keeps a share p of the numbers, which are divided by p, before or after.
    """
    inputs = signals(op)
    if len(inputs) != 1:
        return None
    (tensor,) = inputs
    constants = [t for t in op.inputs if not t.signal]
    if op.name == "select_n" and not op.inputs[0].signal and _is_random(op.inputs[0]):
        return _unscaled(tensor)
    if op.name == "mul" and any(_is_random(t) for t in constants):
        return _unscaled(tensor)
    before = tensor.operation
    if op.name in ("div", "mul") and before is not None and before.name == "mul":
        masks = [t for t in before.inputs if not t.signal and _is_random(t)]
        if masks and not any(t.shape for t in constants):
            return tensor  # scaled afterwards
    return None


def _unscaled(tensor: Tensor) -> Tensor:
    op = tensor.operation
    if op is None or op.name not in ("div", "mul") or len(signals(op)) != 1:
        return tensor
    numbers = [t for t in op.inputs if not t.signal and not t.shape]
    return signals(op)[0] if numbers else tensor


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

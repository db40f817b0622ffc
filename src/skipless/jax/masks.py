"""Dropout that is written out: products with random masks, which the theory passes over."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from skipless.core.signals import UnsupportedModelError

from .operations import LAYOUTS, signals
from .record import Operation, Tensor

Number = Callable[[Tensor], float | None]

_RANDOM = ("random_", "threefry", "rng_", "_bernoulli", "bernoulli", "_uniform", "uniform")


@dataclass(frozen=True)
class _Mask:
    factor: float  # by which the numbers that it keeps are multiplied
    share: float | None  # of the numbers, that it keeps; None if that is not known


def masked(op: Operation, number: Number) -> Tensor | None:
    """The tensor that `op` multiplies by a random mask, before it is scaled for that; or None.

    A mask keeps a share p of the numbers, which are divided by p, before or after, or in the mask.
    Another factor is no such division: it is a weight of the branch. If p is not known, factors
    below 1 are. `number` tells what a constant is.
    """
    inputs = signals(op)
    if len(inputs) != 1:
        return None
    (tensor,) = inputs
    if (mask := _mask_of(op, number)) is not None:
        if mask.factor == 1.0:
            return _unscaled(tensor, mask.share, number)
        if not _restores(mask.factor, mask.share):
            raise _weighs(op, mask)
        return tensor
    *between, before = _factors(tensor, number)
    mask = _mask_of(before, number) if before is not None else None
    if mask is None or mask.factor != 1.0 or not _divides(op, mask.share, number):
        return None
    if between and mask.share is not None:
        raise _weighs_in_between(op, mask.share)
    return None if between else tensor  # scaled afterwards


def _mask_of(op: Operation, number: Number) -> _Mask | None:
    """The random mask by which `op` multiplies a tensor that depends on the input."""
    if op.name == "select_n" and not op.inputs[0].signal and _is_random(op.inputs[0]):
        mask = _factored(op.inputs[0], number)
        if mask.share is not None and op.inputs[1].signal:  # it keeps what is not chosen
            return _Mask(mask.factor, 1.0 - mask.share)
        return mask
    random = [t for t in op.inputs if op.name == "mul" and not t.signal and _is_random(t)]
    return _factored(random[0], number) if random else None


def _factored(mask: Tensor, number: Number) -> _Mask:
    """A mask of zeros and ones, and by what it was multiplied since."""
    factor = 1.0
    while (op := mask.operation) is not None:
        constant = next((t for t in op.inputs if not _is_random(t)), None)
        if op.name in ("mul", "div") and constant is not None:
            by = number(constant)
            if not by or (op.name == "div" and constant is op.inputs[0]):
                break
            factor = factor * by if op.name == "mul" else factor / by
            (mask,) = (t for t in op.inputs if t is not constant)
        elif op.name in LAYOUTS | {"broadcast_in_dim"}:
            mask = op.inputs[0]
        else:
            break
    return _Mask(factor, None if op is None else _share(op, number))


def _share(op: Operation, number: Number) -> float | None:
    """The share of ones in the result of `op`, which compares uniform numbers with a constant."""
    if str(op.parameters.get("name", "")).lstrip("_") == "bernoulli":
        return number(op.inputs[-1])
    if op.name not in ("lt", "le", "gt", "ge"):
        return None
    uniform, bound = op.inputs[0].operation, number(op.inputs[1])
    if uniform is None or str(uniform.parameters.get("name", "")).lstrip("_") != "uniform":
        return None
    if [*map(number, uniform.inputs[1:])] != [0.0, 1.0]:
        return None
    return bound if bound is None or op.name in ("lt", "le") else 1.0 - bound


def _weighs(op: Operation, mask: _Mask) -> UnsupportedModelError:
    keeps = "" if mask.share is None else f", but keeps a share of {mask.share:.4g} of the numbers"
    return UnsupportedModelError(
        f"{op.location} multiplies by a random mask that is scaled by {mask.factor:.4g}{keeps}: "
        "with dropout the factor is 1 / share, and what is left of it is a weight of the branch. "
        "Write that apart from the mask, as 0.6 * (x * mask / share)."
    )


def _unscaled(tensor: Tensor, share: float | None, number: Number) -> Tensor:
    outer, *inner = _factors(tensor, number)
    if outer is None:
        return tensor
    if _divides(outer, share, number):
        return signals(outer)[0]
    if share is not None and any(op and _divides(op, share, number) for op in inner):
        raise _weighs_in_between(outer, share)
    return tensor


def _factors(tensor: Tensor, number: Number) -> list[Operation | None]:
    """The products with constants that lead to `tensor`, the last one first, and what is before."""
    found = [tensor.operation]
    while (op := found[-1]) is not None and _factor(op, number) is not None:
        found.append(signals(op)[0].operation)
    return found


def _weighs_in_between(op: Operation, share: float) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{op.location} has a weight between a random mask and the division by the share of "
        f"{share:.4g} that it keeps, so that one is not told from the other. Write the weight "
        "outside of both, as 0.6 * (x * mask / share)."
    )


def _divides(op: Operation, share: float | None, number: Number) -> bool:
    """Whether `op` divides a tensor by the share, or multiplies it by 1 / share."""
    factor = _factor(op, number)
    return factor is not None and _restores(factor, share)


def _factor(op: Operation, number: Number) -> float | None:
    """The number by which `op` multiplies a tensor that depends on the input, if it does that."""
    constants = [t for t in op.inputs if not t.signal and not t.shape]
    if op.name not in ("div", "mul") or len(signals(op)) != 1 or not constants:
        return None
    by = number(constants[0])
    if not by or (op.name == "div" and not op.inputs[0].signal):
        return None
    return 1.0 / by if op.name == "div" else by


def _restores(factor: float, share: float | None) -> bool:
    """Whether a factor makes up for the numbers that a mask of that share leaves out."""
    return factor >= 1.0 if share is None else math.isclose(factor * share, 1.0, rel_tol=1e-5)


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

"""What does not depend on the network's input: its numbers, where they are known.

Constants are computed only when they are asked for. A number that the user wrote, such as the 0.8
of `0.8 * x`, is found in a record of float32 as 0.800000012; `written` undoes that.

Dropout that is written out: products with random masks, which the theory passes over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from skipless.core.trace import UnsupportedModelError

from . import operations
from .operations import LAYOUTS, signals
from .record import Operation, Tensor

# Numbers in the definitions of activations that are no short decimals, or are taken for others.
_IN_ACTIVATIONS = (
    math.sqrt(2.0 / math.pi), math.sqrt(0.5), math.sqrt(2.0), math.log(2.0), 0.044715, 1.702,
    1.6732632423543772848, 1.0507009873554804934,
)  # fmt: skip
# They repeat, leave out or move numbers, all of which stay equal if they were.
_KEEPS_EQUAL = {
    "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "slice", "rev",
    "scan_slice", "dynamic_slice",
}  # fmt: skip


class Constants:
    """Evaluates the tensors of a record that do not depend on its input, each once."""

    def __init__(self, *, wide: bool) -> None:
        self._wide = wide  # whether the record is of float64
        self._arrays: dict[Tensor, object] = {}
        self._numbers: dict[Tensor, float | None] = {}

    def array(self, tensor: Tensor) -> object | None:
        """The array that `tensor` is, or None if it depends on something unknown."""
        if tensor not in self._arrays:
            with x64() if self._wide else nullcontext():
                for op in _in_order(tensor, self._arrays):
                    arguments = [self._given(t) for t in op.inputs]
                    known = all(a is not None for a in arguments)
                    results = op.run(*arguments) if known else [None] * len(op.outputs)
                    self._arrays.update(zip(op.outputs, results, strict=True))
        return self._given(tensor)

    def number(self, tensor: Tensor) -> float | None:
        """The number that all entries of `tensor` are, or None."""
        if tensor not in self._numbers:
            for op in _in_order(tensor, self._numbers):
                self._number_of(op)
            if tensor.operation is None:
                self._numbers[tensor] = self._leaf(tensor)
        return self._numbers[tensor]

    def _given(self, tensor: Tensor) -> object | None:
        if tensor.operation is not None:
            return self._arrays[tensor]
        if tensor.value is None or tensor.shape:
            return tensor.value
        return tensor.value if tensor.parametric else np.asarray(tensor.value, tensor.dtype)

    def _number_of(self, op: Operation) -> None:
        for output in op.outputs:
            self._numbers[output] = None
        numbers = [self._number_or_leaf(t) for t in op.inputs]
        known = [np.array(n) for n in numbers if n is not None]
        (output, *others) = op.outputs
        if op.name in _KEEPS_EQUAL and numbers[0] is not None:
            self._numbers[output] = numbers[0]
        elif op.name in operations.POINTWISE and len(known) == len(numbers) and not others:
            self._numbers[output] = float(operations.evaluate(op.name, op.parameters, known))
        elif (uniform := _uniform(self.array(output))) is not None:
            self._numbers[output] = uniform

    def _number_or_leaf(self, tensor: Tensor) -> float | None:
        if tensor.operation is None and tensor not in self._numbers:
            self._numbers[tensor] = self._leaf(tensor)
        return self._numbers[tensor]

    def _leaf(self, tensor: Tensor) -> float | None:
        if tensor.parametric or tensor.shape:
            return _uniform(tensor.value)
        return written(tensor.value, tensor.dtype)


def x64() -> AbstractContextManager[object]:
    """In its context, JAX computes in float64 where it is asked to."""
    return jax.enable_x64(True)


def written(value: object, dtype: np.dtype) -> float | None:
    """The number that a user wrote, of which `value` is the rounding to `dtype`.

    Many numbers are rounded to the same one. The shortest decimal is taken, or a square root of
    one, or a constant that activations are made of:

    >>> written(np.float32(0.8), np.dtype("float32")), float(np.float32(0.8))
    (0.8, 0.800000011920929)
    >>> written(np.float32(0.19**0.5), np.dtype("float32")) == 0.19**0.5
    True
    """
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return None
    number = float(np.asarray(value).astype(np.float64))
    if not jnp.issubdtype(dtype, np.floating) or dtype == np.float64:
        return number
    if not math.isfinite(number) or number == int(number):
        return number
    for candidate in _candidates(abs(number), dtype):
        if float(np.asarray(candidate).astype(dtype)) == abs(number):
            return math.copysign(candidate, number)
    return number


def _candidates(number: float, dtype: np.dtype) -> Iterator[float]:
    digits = 7 if jnp.finfo(dtype).bits >= 32 else 3  # that the type holds
    yield from _IN_ACTIVATIONS
    for places in range(1, digits - 1):
        yield float(f"{number:.{places}g}")
    fraction = Fraction(number).limit_denominator(100)
    yield fraction.numerator / fraction.denominator
    for places in range(1, digits - 1):
        yield math.sqrt(float(f"{number * number:.{places}g}"))
    square = Fraction(number * number).limit_denominator(1000)
    yield math.sqrt(square.numerator / square.denominator)
    for places in range(digits - 1, digits + 3):
        yield float(f"{number:.{places}g}")


def _in_order(tensor: Tensor, known: dict[Tensor, object] | dict[Tensor, float | None]):
    """The operations still to be done before `tensor` is known, in order."""
    needed: set[Operation] = set()
    waiting = [tensor]
    while waiting:
        current = waiting.pop()
        op = current.operation
        if op is not None and current not in known and op not in needed:
            needed.add(op)
            waiting += op.inputs
    return sorted(needed, key=lambda op: op.index)


def _uniform(array: object) -> float | None:
    if array is None or jnp.issubdtype(array.dtype, jax.dtypes.extended):  # pyright: ignore
        return None
    values = np.asarray(array)
    if values.size == 0 or not (values == values.flat[0]).all():
        return None
    return float(values.flat[0].astype(np.float64))


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

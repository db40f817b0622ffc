"""What does not depend on the network's input: its numbers, where they are known.

Constants are computed only when they are needed. A number such as the 0.8 of `0.8 * x` is rounded
as the record is: in float32 it is 0.800000012.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import jax
import jax.numpy as jnp
import numpy as np

from . import operations
from .record import Operation, Tensor

# They repeat, drop or move numbers, so equal numbers stay equal.
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
                for op in _pending_operations(tensor, self._arrays):
                    arguments = [self._known_array(t) for t in op.inputs]
                    known = all(a is not None for a in arguments)
                    results = op.run(*arguments) if known else [None] * len(op.outputs)
                    self._arrays.update(zip(op.outputs, results, strict=True))
        return self._known_array(tensor)

    def number(self, tensor: Tensor) -> float | None:
        """The number that all entries of `tensor` are, or None."""
        if tensor not in self._numbers:
            for op in _pending_operations(tensor, self._numbers):
                self._find_number(op)
            if tensor.operation is None:
                self._numbers[tensor] = _uniform_number(self._known_array(tensor))
        return self._numbers[tensor]

    def _known_array(self, tensor: Tensor) -> object | None:
        if tensor.operation is not None:
            return self._arrays[tensor]
        if tensor.value is None or tensor.shape:
            return tensor.value
        return tensor.value if tensor.parametric else np.asarray(tensor.value, tensor.dtype)

    def _find_number(self, op: Operation) -> None:
        for output in op.outputs:
            self._numbers[output] = None
        numbers = [self.number(t) for t in op.inputs]
        known = [np.array(n) for n in numbers if n is not None]
        (output, *others) = op.outputs
        if op.name in _KEEPS_EQUAL and numbers[0] is not None:
            self._numbers[output] = numbers[0]
        elif op.name in operations.POINTWISE and len(known) == len(numbers) and not others:
            self._numbers[output] = float(operations.evaluate(op.name, op.parameters, known))
        elif (uniform := _uniform_number(self.array(output))) is not None:
            self._numbers[output] = uniform


def x64() -> AbstractContextManager[object]:
    """A context in which JAX has float64."""
    return jax.enable_x64(True)


def _pending_operations(tensor: Tensor, known: dict[Tensor, object] | dict[Tensor, float | None]):
    """The operations that `tensor` still needs, in order."""
    needed: set[Operation] = set()
    waiting = [tensor]
    while waiting:
        current = waiting.pop()
        op = current.operation
        if op is not None and current not in known and op not in needed:
            needed.add(op)
            waiting += op.inputs
    return sorted(needed, key=lambda op: op.index)


def _uniform_number(array: object) -> float | None:
    if array is None or jnp.issubdtype(array.dtype, jax.dtypes.extended):  # pyright: ignore
        return None
    values = np.asarray(array)
    if values.size == 0 or not (values == values.flat[0]).all():
        return None
    return float(values.flat[0].astype(np.float64))

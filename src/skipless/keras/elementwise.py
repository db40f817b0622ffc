"""Recorded calls as functions of one tensor, for `core` to recognise by their values."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from keras.src.backend.common import dtypes

from skipless.core.recognise import PROBE, Recognised
from skipless.core.recognise import recognise as recognised_values

from .operations import MERGES, op_name
from .record import Call, Tensor

Pointwise = Callable[[Any], Any]  # of tensors of the backend

# Also in float64, backends round some constants to float32, as TensorFlow the √2 of GELU; and in
# float32 there may be a hundred roundings. GELU and its tanh form differ by 5e-5.
_CLOSE = 1e-7
_CLOSE_IN_FLOAT32 = 1e-5

# With Python's operators numbers keep their digits, which Keras would round to float32 on PyTorch.
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Subtract": operator.sub,
    "Multiply": operator.mul,
    "Divide": operator.truediv,
    "TrueDivide": operator.truediv,
}


class _NotPointwiseError(Exception):
    """A constant tensor of different numbers takes part."""


def composed(call: Call, functions: Mapping[Tensor, Pointwise | None]) -> Pointwise:
    """What `call` computes, as a function of the one tensor that `functions` are functions of."""
    multiplies = op_name(call.operation) == "Multiply"

    def function(x: Any) -> Any:
        def argument(a: Any) -> Any:
            if isinstance(a, Tensor):
                f = functions[a]
                return x if f is None else f(x)
            number = a if a is None or isinstance(a, str | bool | int) else _number(a)
            # A branch that starts at zero, as in ReZero, is one with a factor to be removed.
            return 1.0 if multiplies and number == 0.0 else number

        args: Any = keras.tree.map_structure(argument, call.args)
        kwargs: Any = keras.tree.map_structure(argument, dict(call.kwargs))
        return _function(call)(*args, **kwargs)

    return function


def _function(call: Call) -> Callable[..., Any]:
    """The operation on tensors of any type, which a layer would round to its own."""
    operation: Any = call.operation
    if call.part == "activation" or isinstance(operation, layers.Activation):
        return operation.activation
    if isinstance(operation, layers.PReLU):
        slope = _number(operation.alpha)
        return lambda x: ops.where(x > 0.0, x, slope * x)
    if isinstance(operation, layers.Rescaling):
        scale, offset = _number(operation.scale), _number(operation.offset)
        return lambda x: x * scale + offset
    if (exact := _ARITHMETIC.get(op_name(operation))) is not None:
        return exact
    for kind, merge in MERGES.items():
        if isinstance(operation, kind):
            return lambda terms: merge(*terms)
    return operation.call


def _number(constant: object) -> float:
    """The number that all entries of a constant are, as the slopes of a fresh PReLU."""
    array = constant.value if isinstance(constant, keras.Variable) else constant
    numbers = np.asarray(ops.convert_to_numpy(array) if ops.is_tensor(array) else array, float)
    if not numbers.size or (numbers != numbers.flat[0]).any():
        raise _NotPointwiseError
    return float(numbers.flat[0])


def recognise(f: Pointwise) -> Recognised | None:
    """The multiple of a known activation, or of the identity, that `f` computes, or None."""
    try:
        with _float64():
            y = f(ops.convert_to_tensor(PROBE, dtype="float64"))
            values = np.asarray(ops.convert_to_numpy(y), float)
            exact = keras.backend.standardize_dtype(y.dtype) == "float64"
    except Exception:  # whatever a function may raise that is not one of single numbers
        return None
    return recognised_values(values, _CLOSE if exact else _CLOSE_IN_FLOAT32)


@contextlib.contextmanager
def _float64() -> Iterator[None]:
    """Double precision, which JAX has only where it is asked for.

    But for TensorFlow, some operations of Keras would still turn float64 into float32, by a table
    of types that is not public; should it be elsewhere, float32 it is.
    """
    table = getattr(dtypes, "BIT64_TO_BIT32_DTYPE", {})
    before = dict(table)
    table["float64"] = "float64"
    try:
        with _jax_in_float64():
            yield
    finally:
        table.update(before)


def _jax_in_float64() -> contextlib.AbstractContextManager[object]:
    if keras.backend.backend() != "jax":
        return contextlib.nullcontext()
    import jax

    return jax.enable_x64(True)

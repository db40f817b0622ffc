"""JAX's elementwise primitives in numpy, in which a pointwise function is its values on `PROBE`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

Values = npt.NDArray[np.float64]
_Function = Callable[..., npt.ArrayLike]


def _integer_pow(x: Values, *, y: int, **_: object) -> Values:
    return np.power(x, float(y))


def _select(which: Values, *cases: Values, **_: object) -> Values:
    return np.choose(which.astype(int), cases)


def _clamp(low: Values, x: Values, high: Values, **_: object) -> Values:
    return np.minimum(np.maximum(x, low), high)


def _convert(x: Values, *, new_dtype: npt.DTypeLike, **_: object) -> Values:
    """`x` rounded to whole numbers, or to truth values, where the type asks for it."""
    kind = np.dtype(new_dtype).kind
    if kind == "b":
        return (x != 0.0).astype(np.float64)
    return np.trunc(x) if kind in "iu" else x


def _round(x: Values, *, rounding_method: int = 0, **_: object) -> Values:
    to_even = int(rounding_method) == 1
    return np.round(x) if to_even else np.trunc(x + np.copysign(0.5, x))


def _plain(function: _Function) -> _Function:
    return lambda *arguments, **_: function(*arguments)


# What gives back a tensor's own numbers, at their places: some of the names are of other versions.
UNCHANGED = {
    "copy", "copy_p", "reduce_precision", "sharding_constraint", "optimization_barrier", "pvary",
    "stop_gradient", "mesh_cast", "reshard", "real", "name", "convert_element_type",
    "layout_constraint", "pcast", "checkpoint_name",
}  # fmt: skip
_ARITHMETIC: dict[str, _Function] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
}  # fmt: skip
_NUMPY: dict[str, _Function] = {
    **_ARITHMETIC,
    "neg": np.negative, "max": np.maximum, "min": np.minimum, "abs": np.abs, "sign": np.sign,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "sqrt": np.sqrt, "cbrt": np.cbrt, "square": np.square, "pow": np.power, "rem": np.fmod,
    "rsqrt": lambda x: 1.0 / np.sqrt(x), "logistic": special.expit, "erf": special.erf,
    "erfc": special.erfc, "erf_inv": special.erfinv, "lgamma": special.gammaln,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "floor": np.floor,
    "ceil": np.ceil, "is_finite": np.isfinite, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "xor": np.logical_xor,
}  # fmt: skip
_FUNCTIONS: dict[str, _Function] = {
    **{name: _plain(function) for name, function in _NUMPY.items()},
    **dict.fromkeys(UNCHANGED, _plain(np.positive)),
    "convert_element_type": _convert,
    "integer_pow": _integer_pow,
    "select_n": _select,
    "clamp": _clamp,
    "round": _round,
}
ARITHMETIC = frozenset(_ARITHMETIC)
POINTWISE = frozenset(_FUNCTIONS)


def evaluate(name: str, parameters: Mapping[str, Any], arguments: Sequence[Values]) -> Values:
    """What the primitive `name` makes of its arguments, in float64.

    >>> evaluate("integer_pow", {"y": 3}, [np.array([2.0])]).tolist()
    [8.0]
    """
    with np.errstate(all="ignore"):  # what is not taken by a `select_n` may be anything
        result = _FUNCTIONS[name](*np.broadcast_arrays(*arguments), **parameters)
    return np.asarray(result, dtype=np.float64)

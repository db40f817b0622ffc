"""JAX's primitives by what they mean to the theory, by their axes, and in numpy."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from skipless.core.record import AxisMap, Layer

from .record import Operation, Tensor

LAYOUTS = {
    "reshape", "transpose", "squeeze", "expand_dims", "convert_element_type", "stop_gradient"
}  # fmt: skip
MOVES = {
    "reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "slice", "dynamic_slice",
    "pad", "rev", "gather", "split", "tile",
}  # fmt: skip
APPROXIMATE_MOVES = {"reduce_window_max", "reduce_max"}
SUMS = {"reduce_sum", "reduce_window_sum"}
AFFINE = {"dot_general", "conv_general_dilated"}
ADDITIONS = {"add", "sub", "add_any"}

# Operations without maps: a word on the kind, and what to do.
_APART = "shape the parts before and after it on their own"
UNKNOWN = ("", f"Leave it out of the traced function, or {_APART}.")
_LOOP = (" along the input", f"Leave the recurrent part out of the traced function, or {_APART}.")
PROBABILITIES = (
    " inside the network, as attention does",
    f"Leave the attention out of the traced function, or {_APART}.",
)
UNCOVERED = {
    "scan": _LOOP,
    "while": (
        " with an unknown number of iterations",
        "Write layers as a Python loop, or with jax.lax.scan over their stacked parameters.",
    ),
    "cond": (
        " by a condition that is unknown or depends on the input",
        "Pass the arrays that decide it, and not only their shapes, or leave it out.",
    ),
    "stack": (" of arrays along a new axis", "Concatenate them along channels, or add them up."),
    "scan_results": (
        " of all iterations",
        "Return what the scan carries, or write its layers as a Python loop.",
    ),
    "gather": (
        " by indices that depend on the input, as an embedding does",
        "Trace the network that reads the vectors, and not the indices.",
    ),
}


def weight_of(op: Operation) -> Tensor:
    """The input of a layer's operation that does not depend on the network's input."""
    return next(tensor for tensor in op.inputs if not tensor.signal)


def without_moves(tensor: Tensor) -> Tensor:
    """The constant that `tensor` is, before it was reshaped, transposed or converted."""
    while (op := tensor.operation) is not None and op.name in LAYOUTS | {"broadcast_in_dim"}:
        tensor = op.inputs[0]
    return tensor


def count_summed(op: Operation) -> float:
    """How many numbers a sum or a window adds up."""
    if op.name == "reduce_window_sum":
        return float(math.prod(op.parameters["window_dimensions"]))
    return float(math.prod(op.inputs[0].shape[axis] for axis in op.parameters["axes"]))


def is_padded(op: Operation) -> bool:
    """Whether some windows of a sum reach over the border, where they add zeros."""
    return any(map(any, op.parameters.get("padding", ())))


Values = npt.NDArray[np.float64]
_Function = Callable[..., npt.ArrayLike]


def _convert(x: Values, dtype: npt.DTypeLike) -> Values:
    kind = np.dtype(dtype).kind
    if kind == "b":
        return (x != 0.0).astype(np.float64)
    return np.trunc(x) if kind in "iu" else x


def _round(x: Values, method: int) -> Values:
    to_even = int(method) == 1
    return np.round(x) if to_even else np.trunc(x + np.copysign(0.5, x))


# They return their input, perhaps in another type.
UNCHANGED = {"convert_element_type", "reduce_precision", "real", "stop_gradient"}
_ARITHMETIC: dict[str, _Function] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
}  # fmt: skip
_FUNCTIONS: dict[str, _Function] = {
    **_ARITHMETIC, **dict.fromkeys(UNCHANGED, np.positive),
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
    "select_n": lambda which, *cases: np.choose(which.astype(int), cases),
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "integer_pow": lambda x, power: np.power(x, float(power)),
    "convert_element_type": _convert, "round": _round,
}  # fmt: skip
_PARAMETERS = {"convert_element_type": "new_dtype", "round": "rounding_method", "integer_pow": "y"}
ARITHMETIC = frozenset(_ARITHMETIC)
POINTWISE = frozenset(_FUNCTIONS)


def evaluate(name: str, parameters: Mapping[str, Any], arguments: Sequence[Values]) -> Values:
    """The primitive `name` on its arguments, in float64.

    >>> evaluate("integer_pow", {"y": 3}, [np.array([2.0])]).tolist()
    [8.0]
    """
    with np.errstate(all="ignore"):  # what a `select_n` does not take may be anything
        parameter = [parameters[_PARAMETERS[name]]] if name in _PARAMETERS else []
        result = _FUNCTIONS[name](*np.broadcast_arrays(*arguments), *parameter)
    return np.asarray(result, dtype=np.float64)


def axis_map(op: Operation, source: Tensor, result: Tensor) -> AxisMap:
    """What `op`, which moves numbers or sums over places, does to the axes of `source`."""
    before, after, parameters = source.shape, result.shape, op.parameters
    match op.name:
        case "transpose":
            return AxisMap(
                tuple((axis,) for axis in np.argsort(parameters["permutation"]).tolist())
            )
        case "broadcast_in_dim":
            return AxisMap(tuple((axis,) for axis in parameters["broadcast_dimensions"]))
        case "gather":
            same = range(len(after))
            return AxisMap(tuple((axis,) if axis in same else () for axis in range(len(before))))
        case "squeeze":
            dropped = parameters["dimensions"]
        case "reduce_sum" | "reduce_max":
            dropped = parameters["axes"]
        case _:
            dropped = ()
    config = parameters["padding_config"] if op.name == "pad" else ()
    # A negative number takes some away.
    padded = [axis for axis, numbers in enumerate(config) if max(numbers) > 0]
    pooled = _pooled_axes(op)
    return AxisMap.between(before, after, dropped=dropped, pooled=pooled, padded=padded)


def part(op: Operation, result: Tensor) -> tuple[int, int, int] | None:
    """The axis along which `op` cuts its input, and where the part of `result` starts and stops."""
    before, parameters = op.inputs[0].shape, op.parameters
    if op.name == "split":
        place, sizes = op.outputs.index(result), parameters["sizes"]
        return parameters["axis"], sum(sizes[:place]), sum(sizes[: place + 1])
    if op.name != "slice" or parameters["strides"]:
        return None
    ends = zip(parameters["start_indices"], parameters["limit_indices"], before, strict=True)
    cut = [(axis, a, b) for axis, (a, b, size) in enumerate(ends) if b - a < size]
    return cut[0] if len(cut) == 1 else None


def _pooled_axes(op: Operation) -> list[int]:
    if op.name not in SUMS | APPROXIMATE_MOVES:
        return []
    windows = op.parameters.get("window_dimensions", ())
    axes = op.parameters.get("axes") or [a for a, size in enumerate(windows) if size > 1]
    return [axis for axis in axes if op.inputs[0].shape[axis] > 1]


def layer(op: Operation) -> Layer[Tensor] | None:
    """A product with weights as a layer; None for any other product, such as an outer one."""
    source = op.signals[0]
    if len(op.signals) > 1:  # which is refused
        return Layer(tuple(op.signals), None, (), ())
    weight = weight_of(op)
    if op.name == "conv_general_dilated":
        convolves = op.inputs[0] is source and op.parameters["batch_group_count"] == 1
        return _convolution(op, source, weight) if convolves else None
    own = op.inputs.index(source)
    summed, batched = (axes[own] for axes in op.parameters["dimension_numbers"])
    if not summed:
        return None
    rank, groups = len(source.shape), len(batched)
    free = [axis for axis in range(rank) if axis not in (*summed, *batched)]
    # The result has the groups first, then what is left of both factors, from left to right.
    added = len(weight.shape) - groups - len(summed)
    first, other = (groups, groups + len(free)) if own == 0 else (groups + added, groups)
    to = {a: (i,) for i, a in enumerate(batched)} | {a: (first + i,) for i, a in enumerate(free)}
    return Layer(
        (source,),
        without_moves(weight),
        summed=summed,
        # Groups are channels, too, and so is all that only the weights have.
        made=[*range(groups), *range(other, other + added)],
        channels=math.prod(source.shape[a] for a in summed) if groups else None,
        axes=AxisMap(tuple(to.get(axis, ()) for axis in range(rank))),
    )


def _convolution(op: Operation, source: Tensor, weight: Tensor) -> Layer[Tensor]:
    numbers, groups = op.parameters["dimension_numbers"], op.parameters["feature_group_count"]
    channel = numbers.lhs_spec[1]
    channels = source.shape[channel] // groups
    to = {a: (b,) for a, b in zip(numbers.lhs_spec, numbers.out_spec, strict=True)} | {channel: ()}
    return Layer(
        (source,),
        without_moves(weight),
        summed=(channel,),
        made=(numbers.out_spec[1],),
        channels=channels if groups > 1 else None,
        depthwise=groups > 1 and channels == 1 and weight.shape[numbers.rhs_spec[0]] == groups,
        axes=AxisMap(tuple(to[axis] for axis in range(len(source.shape)))),
    )

"""A Keras model as the theory sees it: trace(model) -> Graph.

`record` lists the calls of a model, `Description` says what each is, `core.trace` reads that.
"""

from __future__ import annotations

import contextlib
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from keras.src.backend.common import dtypes

from skipless.core import record as rec
from skipless.core import trace as core
from skipless.core.activations import Array
from skipless.core.graph import Graph
from skipless.core.record import Recorded

from . import operations as kinds
from .activations import ShapedActivation, WeightedAdd
from .normalize import PerLocationNormalization
from .operations import channels, is_stock, op_name, unsupported
from .record import Call, Tensor, record_calls

# Also in float64, backends round some constants to float32, as TensorFlow the √2 of GELU; and in
# float32 there may be a hundred roundings. GELU and its tanh form differ by 5e-5.
_CLOSE = 1e-7
_CLOSE_IN_FLOAT32 = 1e-5

# With Python's operators numbers keep their digits, which Keras would round to float32 on PyTorch.
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": operator.add, "Subtract": operator.sub, "Multiply": operator.mul,
    **dict.fromkeys(("Divide", "TrueDivide"), operator.truediv),
}  # fmt: skip
_ELEMENTWISE = _ARITHMETIC.keys() | kinds.OP_POINTWISE
_PERMUTATIONS = {"Transpose", "Permute", "Swapaxes", "Moveaxis"}
_MEANS = {"Mean", "Average"}
_MANY = 2**6 * 3**3 * 5 * 7  # locations, which most numbers divide


def trace(model: keras.Model, example: object = None) -> Graph:
    """The graph of a Functional or Sequential `model`, each node with the name of its layer.

    Models inside it are read as if they were written out; the rest is as in `skipless.torch.trace`.
    Only a Sequential model that is not built needs an `example`, an input or its shape.

    >>> dense = lambda: keras.layers.Dense(4, activation="relu")
    >>> trace(keras.Sequential([keras.Input((3,)), dense(), dense()])) == Graph.chain(2)
    True
    """
    return read(model, example).graph


@dataclass(frozen=True)
class Reading(core.Reading[Tensor]):
    """A model's graph, and how it lies in the record of the model's calls."""

    record: Description


def read(model: keras.Model, example: object = None) -> Reading:
    """The graph of `model` in the record of its calls."""
    record = Description(*record_calls(model, example))
    return Reading(**vars(core.read(record)), record=record)


class Description(Recorded[Tensor]):
    """The recorded `tensors` of a model, the first of them its input, each call described."""

    def __init__(self, tensors: Sequence[Tensor], output: Tensor) -> None:
        self.tensors, self.input = tensors, tensors[0]
        self._output = output
        self.operations = {tensor: self._describe(tensor) for tensor in tensors[1:]}
        self._rounded: set[Tensor] = set()  # whose values are of float32

    @property
    def outputs(self) -> Sequence[Tensor]:
        return (self._output,)

    def origin(self, tensor: Tensor) -> str:
        return tensor.call.path

    def shape(self, tensor: Tensor) -> Sequence[int | None]:
        return tensor.shape

    def channel_candidates(self, rank: int) -> Sequence[int]:
        return range(rank - 1, 0, -1)

    def tolerances(self, tensor: Tensor) -> Sequence[float]:
        return (_CLOSE_IN_FLOAT32 if tensor in self._rounded else _CLOSE,)

    def values(self, tensor: Tensor, sources: Mapping[Tensor, Array]) -> Array | None:
        try:
            with _float64():
                result = _evaluate(tensor.call, sources)
                dtype = keras.backend.standardize_dtype(result.dtype)
                values = np.asarray(ops.convert_to_numpy(result), float)
        except Exception:  # whatever a function may raise that is not one of single numbers
            return None
        if dtype not in ("float64", "bool") or not self._rounded.isdisjoint(sources):
            self._rounded.add(tensor)
        return values

    def _describe(self, tensor: Tensor) -> rec.Operation[Tensor]:
        called, name = tensor.call.operation, op_name(tensor.call.operation)
        inputs = tuple(tensor.inputs)
        if is_stock(called, (PerLocationNormalization,)):
            return rec.Preparation(inputs)
        if _is_softmax(tensor):
            return unsupported(tensor, "Softmax")
        activates = is_stock(called, (ShapedActivation, *kinds.ACTIVATIONS))
        if activates or tensor.call.part == "activation":
            if _function(tensor.call) is keras.activations.glu:
                return unsupported(tensor, "Glu")
            if isinstance(_function(tensor.call), ShapedActivation):
                return rec.ShapedCall((inputs[0],))
            return rec.Pointwise(inputs, type(called).__name__)
        if is_stock(called, kinds.AFFINE) or name in kinds.OP_AFFINE:
            return _layer(tensor)
        if is_stock(called, kinds.NORMS) or name in kinds.OP_NORMS:
            return rec.Norm((inputs[0],))
        if is_stock(called, (layers.Concatenate,)) or name == "Concatenate":
            return _concatenation(tensor)
        if isinstance(called, WeightedAdd) and is_stock(called, (WeightedAdd,)):
            return rec.WeightedSum(inputs, called.sum_weights)
        if is_stock(called, (*kinds.MERGES, *kinds.RESCALINGS)) or name in _ELEMENTWISE:
            affine = is_stock(called, kinds.RESCALINGS) or name in _ARITHMETIC
            weights = _weights(called, len(inputs))
            product = is_stock(called, (layers.Multiply,)) or name == "Multiply"
            return rec.Pointwise(inputs, type(called).__name__, weights, affine, product)
        if ".image_preprocessing." in type(called).__module__:  # augmentation
            return rec.Preparation(inputs, unsupported(tensor).message)
        if is_stock(called, kinds.APPROXIMATE_MOVES) or name in kinds.OP_APPROXIMATE_MOVES:
            return _move(tensor, type(called).__name__)
        if is_stock(called, kinds.MOVES) or name in kinds.OP_MOVES or _returns_its_input(called):
            smooth = getattr(called, "interpolation", "nearest")
            return _move(tensor, "" if smooth == "nearest" else str(smooth))
        return unsupported(tensor)


def _move(tensor: Tensor, approximate: str = "") -> rec.Move[Tensor]:
    source = tensor.inputs[0]
    name = type(tensor.call.operation).__name__
    return rec.Move(
        (source,), name, _axis_map(tensor, source), approximate, part=_part(tensor, source)
    )


def _part(tensor: Tensor, source: Tensor) -> tuple[int, int, int] | None:
    """The axis along which a split cuts its source, and where the part starts and stops."""
    operation: Any = tensor.call.operation
    if op_name(operation) != "Split":
        return None
    axis, cuts = operation.axis % len(source.shape), operation.indices_or_sections
    size = source.shape[axis]
    if size is None:
        return None
    if isinstance(cuts, int):
        cuts = range(size // cuts, size, size // cuts)
    ends = [0, *cuts, size]
    return axis, ends[tensor.index], ends[tensor.index + 1]


def _layer(tensor: Tensor) -> rec.Layer[Tensor]:
    layer: Any = tensor.call.operation
    inputs, part = tuple(tensor.inputs), tensor.call.part
    number, depthwise = channels(layer, part)
    if (letters := _einsum(tensor, inputs[0])) is not None:
        before, after = letters
        summed = [axis for axis, letter in enumerate(before) if letter not in after]
        made = [axis for axis, letter in enumerate(after) if letter not in before]
    else:
        first = getattr(layer, "data_format", None) == "channels_first"
        summed, made = ([1 if first else len(t.shape) - 1] for t in (inputs[0], tensor))
    weights = None if op_name(layer) else (id(layer), part)
    return rec.Layer(inputs, weights, summed, made, number, depthwise)


def _concatenation(tensor: Tensor) -> rec.Concatenation[Tensor]:
    axis: int = tensor.call.operation.axis  # pyright: ignore
    flat = keras.tree.flatten(tensor.call.args)
    return rec.Concatenation(
        tuple(part if isinstance(part, Tensor) else None for part in flat),
        widths=[float(part.shape[axis] or 1) for part in tensor.inputs],
        axis=axis % len(tensor.shape),
    )


def _evaluate(call: Call, sources: Mapping[Tensor, Array]) -> Any:
    """What `call` makes of the values of its sources; raises if it is not the same everywhere."""
    name = op_name(call.operation)

    def argument(a: Any) -> Any:
        if isinstance(a, Tensor):
            return ops.convert_to_tensor(sources[a], dtype="float64")
        number = a if a is None or isinstance(a, str | bool | int) else _uniform_number(a)
        if isinstance(number, float) and isinstance(a, keras.Variable) and name == "Multiply":
            return rec.initial_factor(number)
        return number

    args: Any = keras.tree.map_structure(argument, call.args)
    kwargs: Any = keras.tree.map_structure(argument, dict(call.kwargs))
    if name == "Where":
        args = (ops.not_equal(args[0], 0.0), *args[1:])
    return _called_function(call)(*args, **kwargs)


def _called_function(call: Call) -> Callable[..., Any]:
    """The operation on tensors of any type, which a layer would round to its own."""
    operation = _function(call)
    if operation is not call.operation:
        return operation
    if isinstance(operation, layers.PReLU):
        slope = _uniform_number(operation.alpha)
        return lambda x: ops.where(x > 0.0, x, slope * x)
    if isinstance(operation, layers.Rescaling):
        scale, offset = _uniform_number(operation.scale), _uniform_number(operation.offset)
        return lambda x: x * scale + offset
    if (exact := _ARITHMETIC.get(op_name(operation))) is not None:
        return exact
    merges = (merge for kind, merge in kinds.MERGES.items() if isinstance(operation, kind))
    merge = next(merges, None)
    return operation.call if merge is None else lambda terms: merge(*terms)


def _uniform_number(constant: object) -> float:
    """The number that all entries of a constant are, as the slopes of a fresh PReLU."""
    array = constant.value if isinstance(constant, keras.Variable) else constant
    numbers = np.asarray(ops.convert_to_numpy(array) if ops.is_tensor(array) else array, float)
    if not numbers.size or (numbers != numbers.flat[0]).any():
        raise ValueError("a constant tensor of different numbers takes part")
    return float(numbers.flat[0])


@contextlib.contextmanager
def _float64() -> Iterator[None]:
    """Double precision, which JAX has only on demand.

    Some operations of Keras would still narrow it, by a table of types that is not public.
    """
    table = getattr(dtypes, "BIT64_TO_BIT32_DTYPE", {})
    before = dict(table)
    table["float64"] = "float64"
    of_jax = keras.backend.backend() == "jax"
    try:
        with sys.modules["jax"].enable_x64(True) if of_jax else contextlib.nullcontext():
            yield
    finally:
        table.update(before)


def _function(call: Call) -> Any:
    operation: Any = call.operation
    if call.part == "activation" or isinstance(operation, layers.Activation):
        return operation.activation
    return operation


def _is_softmax(tensor: Tensor) -> bool:
    function = _function(tensor.call)
    known = isinstance(function, layers.Softmax) or function in kinds.SOFTMAX_FUNCTIONS
    return known or op_name(tensor.call.operation) in kinds.OP_SOFTMAX


def _weights(operation: object, number: int) -> list[float] | None:
    name = op_name(operation)
    if isinstance(operation, layers.Add) or name == "Add":
        return [1.0] * number
    if isinstance(operation, layers.Subtract) or name == "Subtract":
        return [1.0, -1.0]
    return [1.0 / number] * number if isinstance(operation, layers.Average) else None


def _returns_its_input(operation: object) -> bool:
    """Whether this is a layer of the user's own that was seen to return what it is given."""
    return isinstance(operation, layers.Layer) and not type(operation).__module__.startswith(
        "keras.src.layers"
    )


def _axis_map(tensor: Tensor, source: Tensor) -> rec.AxisMap:
    operation: Any = tensor.call.operation
    name, rank = type(operation).__name__, len(source.shape)
    if name in _PERMUTATIONS:
        distinct = keras.KerasTensor(tuple(range(2, 2 + rank)))
        shape = tuple(operation.compute_output_spec(distinct).shape)
        return rec.AxisMap(tuple((shape.index(axis + 2),) for axis in range(rank)))
    if name == "GetItem":
        sizes, key = [size or 1 for size in source.shape], tensor.call.args[1]
        return rec.AxisMap(tuple(_kept(sizes, key, axis) for axis in range(rank)))
    pooled, padded = _pooled(tensor, source), _padded(operation, rank)
    dropped = [operation.axis % rank] if name in ("Take", "Unstack") else pooled
    before, after = _sizes(source.shape, tensor.shape)
    if len(after) >= rank:
        dropped = ()
    return rec.AxisMap.between(before, after, dropped=dropped, pooled=pooled, padded=padded)


def _pooled(tensor: Tensor, source: Tensor) -> list[int]:
    operation: Any = tensor.call.operation
    name, rank = type(operation).__name__, len(source.shape)
    if op_name(operation) in _MEANS:
        every = range(rank) if operation.axis is None else np.atleast_1d(operation.axis)
        return [axis for axis in (int(a) % rank for a in every) if source.shape[axis] != 1]
    if "Pool" not in name:
        return []
    locations = _locations(operation, rank)
    windows = np.broadcast_to(getattr(operation, "pool_size", 0), len(locations))
    return [axis for axis, size in zip(locations, windows, strict=True) if size != 1]


def _padded(operation: Any, rank: int) -> Sequence[int]:
    if op_name(operation) == "Pad" and operation.mode == "constant":
        amounts = np.broadcast_to(operation.pad_width, (rank, 2))
        return np.flatnonzero(amounts.any(axis=1)).tolist()
    pads = type(operation).__name__.startswith(("ZeroPadding", "PadImages"))
    return _locations(operation, rank) if pads else ()


def _locations(operation: object, rank: int) -> Sequence[int]:
    first = getattr(operation, "data_format", None) == "channels_first"
    return range(2, rank) if first else range(1, rank - 1)


def _einsum(layer: Tensor, source: Tensor) -> tuple[str, str] | None:
    """The letters of the axes of `source` and of the result, if the layer has such."""
    operation: Any = layer.call.operation
    if isinstance(operation, layers.EinsumDense):
        equation, place = operation.equation, 0
    elif op_name(operation) == "Einsum":
        flat = keras.tree.flatten(layer.call.args)
        equation, place = operation.subscripts, flat.index(source)
    else:
        return None
    given, _, result = equation.replace(" ", "").partition("->")
    letters = given.split(",")[place]
    if "..." in equation:  # as many axes of no name as the tensors have in front
        more = "".join(map(chr, range(256, 256 + len(source.shape) - len(letters) + 3)))
        letters, result = letters.replace("...", more), result.replace("...", more)
    return letters, result


def _kept(before: Sequence[int], key: Any, axis: int) -> tuple[int, ...]:
    """Where an axis is after `x[key]`: that along which numbers that tell its index differ."""
    index = np.arange(before[axis]).reshape([-1 if a == axis else 1 for a in range(len(before))])
    kept = np.broadcast_to(index, before)[key]
    return tuple(a for a in range(kept.ndim) if (kept != kept.take([0], axis=a)).any())


def _sizes(
    before: Sequence[int | None], after: Sequence[int | None]
) -> tuple[list[int], list[int]]:
    """Sizes before and after a move, of one sample; those that are left open are many.

    A single open one after it is such that there are as many numbers as before.
    """
    one, many = [1, *(size or _MANY for size in before[1:])], [size or 0 for size in after[1:]]
    if many.count(0) == 1:
        many[many.index(0)] = max(1, math.prod(one) // math.prod(filter(None, many)))
    return one, [1, *(size or _MANY for size in many)]

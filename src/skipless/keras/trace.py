"""A Keras model as the theory sees it: trace(model) -> Graph.

Recorded calls as functions of one tensor, for `core` to recognise by their values.

A recorded model, read call by call into a graph.

Which axes of a Keras model's tensors run over channels.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from keras.src.backend.common import dtypes

from skipless.core import signals as core
from skipless.core.activations import Activation
from skipless.core.graph import Graph
from skipless.core.recognise import PROBE, Recognised
from skipless.core.recognise import recognise as recognised_values
from skipless.core.signals import Signals, demand_channels_apart
from skipless.core.trace import FEW, Notes, UnsupportedModelError

from .activations import ShapedActivation, WeightedAdd
from .normalize import PerLocationNormalization
from .operations import (
    ACTIVATIONS,
    AFFINE,
    APPROXIMATE_MOVES,
    MERGES,
    MOVES,
    NORMS,
    OP_AFFINE,
    OP_APPROXIMATE_MOVES,
    OP_ARITHMETIC,
    OP_MOVES,
    OP_NORMS,
    OP_POINTWISE,
    OP_SOFTMAX,
    RESCALINGS,
    SOFTMAX_FUNCTIONS,
    channels,
    op_name,
    stock,
    uncovered,
)
from .record import Call, Record, Tensor, record

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
        return _called_function(call)(*args, **kwargs)

    return function


def _called_function(call: Call) -> Callable[..., Any]:
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


_ELEMENTWISE = OP_ARITHMETIC | OP_POINTWISE
Step = core.Step[Tensor]
Value = core.Value[Tensor, Pointwise]


class Reader(Signals[Tensor, Pointwise]):
    """Reads a record into a graph, and keeps the steps."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record
        self._readers = record.readers()
        self.activations: dict[Tensor, str] = {}  # those that were recognised, by name
        self._used: set[tuple[int, str]] = set()  # layers, by part

    def read(self) -> Graph:
        first, *rest = self.record.tensors
        self.input(first, first.call.path)
        for tensor in rest:
            self._read(tensor, tensor.inputs)
        self.output(self.record.output, self.record.output)
        return self.builder.build()

    def origin(self, tensor: Tensor) -> str:
        return tensor.call.path

    def sources(self, tensor: Tensor) -> Sequence[Tensor]:
        return tensor.inputs

    def composed(self, tensor: Tensor) -> Value:
        values = {a: self.values[a] for a in tensor.inputs}
        source = next(iter(values.values()))
        functions = {a: value.function for a, value in values.items()}
        return Value(source.node, source.place, composed(tensor.call, functions))

    def recognised(self, tensor: Tensor, function: Pointwise) -> Recognised | None:
        if isinstance(_function(tensor), ShapedActivation):
            return Recognised(f"shaped {id(tensor)}", 1.0)
        found = recognise(function)
        if found is not None and isinstance(found.phi, Activation):
            self.activations[tensor] = found.phi.name
        return found

    def _read(self, tensor: Tensor, inputs: list[Tensor]) -> None:
        operation, name = tensor.call.operation, op_name(tensor.call.operation)
        if stock(operation, (PerLocationNormalization,)):
            self.normalised_input(tensor, inputs)
        elif _is_softmax(tensor):
            self._softmax(tensor, inputs[0])
        elif tensor.call.part == "activation" or stock(operation, (ShapedActivation, *ACTIVATIONS)):
            self._activation_of(tensor, inputs)
        elif stock(operation, AFFINE):
            self._layer(tensor, inputs)
        elif name in OP_AFFINE:
            self.affine(tensor, inputs, FEW, depthwise=False)
        elif stock(operation, NORMS) or name in OP_NORMS:
            self.norm(tensor, inputs[0])
        elif stock(operation, (layers.Concatenate,)) or name == "Concatenate":
            self._concatenation(tensor, inputs)
        elif stock(operation, (WeightedAdd, *MERGES, *RESCALINGS)) or name in _ELEMENTWISE:
            self._arithmetic(tensor, inputs)
        else:
            self._move(tensor, inputs)

    def _move(self, tensor: Tensor, inputs: list[Tensor]) -> None:
        operation, name = tensor.call.operation, op_name(tensor.call.operation)
        augments = ".image_preprocessing." in type(operation).__module__
        if augments and self.values[inputs[0]] == Value(0, inputs[0]):
            self.set(tensor, "input", 0, inputs)
        elif stock(operation, APPROXIMATE_MOVES) or name in OP_APPROXIMATE_MOVES:
            self.move(tensor, inputs[0], approximate=type(operation).__name__)
        elif stock(operation, MOVES) or name in OP_MOVES or _unchanged(operation):
            smooth = getattr(operation, "interpolation", "nearest")
            self.move(tensor, inputs[0], approximate="" if smooth == "nearest" else str(smooth))
        else:
            raise uncovered(self.origin(tensor), operation)

    def _layer(self, tensor: Tensor, inputs: list[Tensor]) -> None:
        layer: Any = tensor.call.operation
        number, depthwise = channels(layer)
        if tensor.call.part == "depthwise":
            number, depthwise = 1, layer.depth_multiplier == 1
        self.affine(tensor, inputs, FEW if number is None else number, depthwise)
        key = (id(layer), tensor.call.part)
        if key in self._used:
            self.notes.approximate.append(f"weights used again at {self.origin(tensor)}")
        self._used.add(key)

    def _concatenation(self, tensor: Tensor, inputs: list[Tensor]) -> None:
        operation: Any = tensor.call.operation
        widths = [float(part.shape[operation.axis] or 1) for part in inputs]
        flat = keras.tree.flatten(tensor.call.args)
        # A constant stands for no tensor that has a value, and is refused.
        parts = [part if isinstance(part, Tensor) else tensor for part in flat]
        self.concat(tensor, parts, widths)

    def _activation_of(self, tensor: Tensor, inputs: list[Tensor]) -> None:
        if _function(tensor) is keras.activations.glu:
            raise uncovered(self.origin(tensor), tensor.call.operation, "Glu")
        if isinstance(_function(tensor), ShapedActivation):
            # It is one activation, whatever is computed before and after it.
            self.at(inputs[0], tensor)
            self.pointwise(tensor)
            self.at(tensor, tensor)
        else:
            self.pointwise(tensor)

    def _softmax(self, tensor: Tensor, source: Tensor) -> None:
        """At the end it only names the output, for the loss to read; inside there is no map."""
        if tensor is not self.record.output:
            raise uncovered(self.origin(tensor), tensor.call.operation, "Softmax")
        self.move(tensor, source)

    def _arithmetic(self, tensor: Tensor, inputs: list[Tensor]) -> None:
        """A function of one tensor stays one; different tensors may be added, and no more."""
        operation, name = tensor.call.operation, op_name(tensor.call.operation)
        scales = stock(operation, RESCALINGS) or name in OP_ARITHMETIC
        weights = _weights(tensor, len(inputs))
        if scales and self._is_input(tensor, inputs):
            self.set(tensor, "input", 0, inputs)
        elif len({self.values[i].place for i in inputs}) == 1 and not _is_weighted(operation):
            self.pointwise(tensor)
        elif weights is not None:
            total: dict[Tensor, float] = {}
            for i, weight in zip(inputs, weights, strict=True):
                total[i] = total.get(i, 0.0) + weight
            self.sum(tensor, list(total), list(total.values()))
        else:
            raise self.product_of_branches(tensor, type(operation).__name__)

    def _is_input(self, tensor: Tensor, inputs: Sequence[Tensor]) -> bool:
        """Whether constants only standardise the input here.

        A factor of what is read elsewhere too, or of a term of a sum, is the weight of a branch.
        """
        if len(inputs) != 1 or len(self._readers[inputs[0]]) > 1:
            return False
        summed = any(len(set(reader.inputs)) > 1 for reader in self._readers[tensor])
        return not summed and self.values[inputs[0]] == Value(0, inputs[0])


def _function(tensor: Tensor) -> object:
    """The activation of a layer, which may be a layer, or the layer itself."""
    operation: Any = tensor.call.operation
    if tensor.call.part == "activation" or isinstance(operation, layers.Activation):
        return operation.activation
    return operation


def _is_softmax(tensor: Tensor) -> bool:
    operation = tensor.call.operation
    return (
        stock(operation, (layers.Softmax,))
        or op_name(operation) in OP_SOFTMAX
        or any(_function(tensor) is function for function in SOFTMAX_FUNCTIONS)
        or isinstance(_function(tensor), layers.Softmax)
    )


def _is_weighted(operation: object) -> bool:
    return isinstance(operation, WeightedAdd)


def _weights(tensor: Tensor, number: int) -> list[float] | None:
    """The weights of the terms, if this is a sum."""
    operation, name = tensor.call.operation, op_name(tensor.call.operation)
    if isinstance(operation, WeightedAdd):
        return list(operation.sum_weights)
    if isinstance(operation, layers.Add) or name == "Add":
        return [1.0] * number
    if isinstance(operation, layers.Subtract) or name == "Subtract":
        return [1.0, -1.0]
    if isinstance(operation, layers.Average):
        return [1.0 / number] * number
    return None


def _unchanged(operation: object) -> bool:
    """Whether this is a layer of the user's own that was seen to return what it is given."""
    return isinstance(operation, layers.Layer) and not type(operation).__module__.startswith(
        "keras.src.layers"
    )


_PERMUTATIONS = {"Transpose", "Permute", "Swapaxes", "Moveaxis"}
_MEANS = {"Mean", "Average"}
_MANY = 2**6 * 3**3 * 5 * 7  # locations, which most numbers divide


class Layout(core.Layout[Tensor]):
    """Reads axes off the configuration of layers and operations."""

    def rank(self, tensor: Tensor) -> int:
        return len(tensor.shape)

    def input_axes(self, rank: int) -> Sequence[int]:
        return range(rank - 1, 0, -1)

    def added_up(self, layer: Tensor, source: Tensor) -> Collection[int]:
        if (letters := _einsum(layer, source)) is not None:
            return [axis for axis, letter in enumerate(letters[0]) if letter not in letters[1]]
        return (_channel_axis(layer, len(source.shape)),)

    def made(self, layer: Tensor, source: Tensor) -> Collection[int]:
        if (letters := _einsum(layer, source)) is not None:
            return [axis for axis, letter in enumerate(letters[1]) if letter not in letters[0]]
        return (_channel_axis(layer, len(layer.shape)),)

    def joined(self, tensor: Tensor) -> int:
        operation: Any = tensor.call.operation
        return operation.axis % len(tensor.shape)

    def moved(self, tensor: Tensor, source: Tensor, axis: int) -> Collection[int]:
        operation: Any = tensor.call.operation
        name, rank = type(operation).__name__, len(source.shape)
        before, after = _sizes(source.shape, tensor.shape)
        if name in _PERMUTATIONS:
            distinct = keras.KerasTensor(tuple(range(2, 2 + rank)))
            return (tuple(operation.compute_output_spec(distinct).shape).index(axis + 2),)
        if name == "GetItem":
            return _kept([size or 1 for size in source.shape], tensor.call.args[1], axis)
        if name in ("Take", "Unstack") and len(after) < rank:
            return core.moved(before, after, axis, (operation.axis % rank,))
        if len(after) < rank and (dropped := self.pooled(tensor, source)):
            return core.moved(before, after, axis, dropped)
        return core.moved(before, after, axis)

    def pooled(self, tensor: Tensor, source: Tensor) -> Collection[int]:
        operation: Any = tensor.call.operation
        name, rank = type(operation).__name__, len(source.shape)
        if op_name(operation) in _MEANS:
            every = range(rank) if operation.axis is None else np.atleast_1d(operation.axis)
            return [axis for axis in (int(a) % rank for a in every) if source.shape[axis] != 1]
        if "Pool" not in name:
            return ()
        locations = _locations(operation, rank)
        windows = np.broadcast_to(getattr(operation, "pool_size", 0), len(locations))
        return [axis for axis, size in zip(locations, windows, strict=True) if size != 1]

    def padded(self, tensor: Tensor, source: Tensor) -> Collection[int]:
        operation: Any = tensor.call.operation
        name, rank = type(operation).__name__, len(source.shape)
        if op_name(operation) == "Pad" and operation.mode == "constant":
            amounts = np.broadcast_to(operation.pad_width, (rank, 2))
            return [axis for axis, amount in enumerate(amounts) if amount.any()]
        return _locations(operation, rank) if name.startswith(("ZeroPadding", "PadImages")) else ()

    def named(self, tensor: Tensor) -> tuple[str, str]:
        return tensor.call.path, type(tensor.call.operation).__name__


def _channel_axis(tensor: Tensor, rank: int) -> int:
    """Where a layer has its channels in a tensor, its input or its output, of that `rank`."""
    first = getattr(tensor.call.operation, "data_format", None) == "channels_first"
    return 1 if first else rank - 1


def _locations(operation: object, rank: int) -> list[int]:
    """The axes that are neither of samples nor of channels."""
    first = getattr(operation, "data_format", None) == "channels_first"
    return list(range(2, rank) if first else range(1, rank - 1))


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


def _kept(before: Sequence[int], key: Any, axis: int) -> list[int]:
    """Where an axis is after `x[key]`: that along which numbers that tell its index differ."""
    index = np.arange(before[axis]).reshape([-1 if a == axis else 1 for a in range(len(before))])
    kept = np.broadcast_to(index, before)[key]
    return [a for a in range(kept.ndim) if (kept != kept.take([0], axis=a)).any()]


def _sizes(
    before: Sequence[int | None], after: Sequence[int | None]
) -> tuple[list[int], list[int]]:
    """Sizes before and after a move. Those that are left open are many, of one sample.

    If one is left open after it, it is such that there are as many numbers as before.
    """
    one, many = [1, *(size or _MANY for size in before[1:])], [size or 0 for size in after[1:]]
    if many.count(0) == 1:
        many[many.index(0)] = max(1, math.prod(one) // math.prod(filter(None, many)))
    return one, [1, *(size or _MANY for size in many)]


__all__ = ["Reading", "UnsupportedModelError", "read", "trace"]


def trace(model: keras.Model, example: object = None) -> Graph:
    """The graph of a Functional or Sequential `model`, each node with the name of its layer.

    Models inside of it are read as if they were written out. Normalisation layers are passed over:
    the theory has no use for them. A softmax at the end belongs to the loss. What the theory does
    not cover, such as attention or products of branches, raises `UnsupportedModelError`.

    A Sequential model that has not been built needs an `example` of its input, or its shape.

    >>> dense = lambda: keras.layers.Dense(4, activation="relu")
    >>> trace(keras.Sequential([keras.Input((3,)), dense(), dense()])) == Graph.chain(2)
    True
    """
    return read(model, example).graph


@dataclass(frozen=True)
class Reading:
    """A model's graph, and how it lies in the record of the model's calls."""

    graph: Graph
    notes: Notes
    record: Record
    steps: Mapping[Tensor, Step]
    activations: Mapping[Tensor, str]

    @property
    def output(self) -> Tensor:
        return self.record.output


def read(model: keras.Model, example: object = None) -> Reading:
    """The graph of `model` in the record of its calls."""
    recorded = record(model, example)
    reader = Reader(recorded)
    graph = reader.read()
    demand_channels_apart(reader.steps, Layout())
    return Reading(graph, reader.notes, recorded, reader.steps, reader.activations)

"""A recorded model, read call by call into a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers

from skipless.core import signals
from skipless.core.activations import Activation
from skipless.core.graph import Graph
from skipless.core.recognise import Recognised
from skipless.core.signals import FEW, Signals

from .activations import ShapedActivation, WeightedAdd
from .elementwise import Pointwise, composed, recognise
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
from .record import Record, Tensor

_ELEMENTWISE = OP_ARITHMETIC | OP_POINTWISE
Step = signals.Step[Tensor]
Value = signals.Value[Tensor, Pointwise]


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

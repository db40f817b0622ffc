"""A Keras model as the list of its calls, from input to output, with models inside it written out.

Keras keeps, for every symbolic tensor, the call that made it. Calls are listed in the order in
which the output needs them, first arguments first, which survives saving and loading. A layer with
an activation is two calls, and a separable convolution is two layers. A layer that Keras does not
know, as `Lambda`, is called on symbolic tensors to see which operations it is made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import keras
from keras import layers

from skipless.core.record import UnsupportedModelError

from .activations import ShapedActivation, WeightedAdd
from .normalize import PerLocationNormalization
from .operations import AFFINE, SEPARABLE, is_stock

Part = Literal["whole", "depthwise", "pointwise", "activation"]
_OURS = (ShapedActivation, WeightedAdd, PerLocationNormalization)
_WRITE_IT_OUT = (
    "Write it as a Functional model, keras.Model(inputs, outputs), of layers that Keras has."
)


@dataclass(frozen=True, eq=False)
class Call:
    """One use of an operation, or of a part of a layer, with `Tensor`s among its arguments."""

    operation: keras.Operation | None  # None for the input
    path: str  # its name, behind those of the models that it is in
    part: Part = "whole"
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, eq=False)
class Tensor:
    """A result of a call."""

    call: Call
    shape: tuple[int | None, ...]
    dtype: str
    index: int = 0

    @cached_property
    def inputs(self) -> list[Tensor]:
        """The tensors that the call reads."""
        flat = keras.tree.flatten((self.call.args, dict(self.call.kwargs)))
        return [a for a in flat if isinstance(a, Tensor)]


def record_calls(model: keras.Model, example: object = None) -> tuple[list[Tensor], Tensor]:
    """The tensors of `model` in an order of evaluation, its input first, and its output."""
    _require_functional(model, example)
    inputs, outputs = model.inputs, model.outputs
    if len(inputs) != 1 or len(outputs) != 1:
        raise UnsupportedModelError(
            f"{model.name} has {len(inputs)} inputs and {len(outputs)} outputs, but only networks "
            "with one of each can be read. Trace keras.Model(input, output) for the part that "
            "leads from one to the other, or split one input: keras.Model(x, "
            "model(keras.ops.split(x, 2, 1)))."
        )
    (start,), recorder = inputs, _Recorder()
    first = recorder.add(Call(None, start.name), start)
    (last,) = recorder.walk(outputs, {id(start): first}, "")
    return recorder.tensors, last


def _require_functional(model: object, example: object) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"Expected a Sequential or Functional keras.Model, got {type(model).__name__}."
        )
    if not _is_functional(model):
        raise UnsupportedModelError(
            f"{model.name} ({type(model).__name__}) is a subclassed model; only Sequential and "
            f"Functional ones can be traced. {_WRITE_IT_OUT}"
        )
    if isinstance(model, keras.Sequential) and not model.built:
        if example is None:
            raise UnsupportedModelError(
                f"{model.name} does not know the shape of its input. Begin it with keras.Input, "
                "build it, or pass an example of its input."
            )
        shape = getattr(example, "shape", example)
        model.build((None, *tuple(shape)[1:]))  # pyright: ignore[reportArgumentType]


def _is_functional(model: object) -> bool:
    """Whether a model is what its graph of layers says."""
    functional = isinstance(model, keras.Sequential) or hasattr(model, "operations")
    return functional and type(model).call.__module__.startswith("keras.")  # pyright: ignore


class _Recorder:
    def __init__(self) -> None:
        self.tensors: list[Tensor] = []

    def walk(
        self, outputs: Sequence[keras.KerasTensor], known: dict[int, Tensor], path: str
    ) -> list[Tensor]:
        """The tensors that stand for `outputs`, all that they need having been recorded."""
        stand_in = lambda a: known.get(id(a), a)
        todo = list(reversed(outputs))
        while todo:  # and not by recursion, for networks are deep
            tensor = todo[-1]
            if id(tensor) in known:
                todo.pop()
                continue
            operation, at, _ = tensor._keras_history  # pyright: ignore[reportAttributeAccessIssue]
            node = operation._inbound_nodes[at]
            missing = [t for t in node.input_tensors if id(t) not in known]
            if missing:
                todo.extend(reversed(missing))
            elif node.is_input:
                raise UnsupportedModelError(
                    f"{path}{operation.name} is a second input; only networks with one can be read."
                )
            else:
                args, kwargs = node.arguments.convert(stand_in)
                results = self._call(operation, args, kwargs, node.outputs, path)
                known.update(zip(map(id, node.outputs), results, strict=True))
        return [known[id(tensor)] for tensor in outputs]

    def _call(
        self, operation: Any, args: Any, kwargs: Any, outputs: Sequence[Any], path: str
    ) -> list[Tensor]:
        if isinstance(operation, keras.Model) and _is_functional(operation):
            given = [a for a in keras.tree.flatten((args, kwargs)) if isinstance(a, Tensor)]
            inner = {id(t): g for t, g in zip(operation.inputs, given, strict=True)}
            return self.walk(operation.outputs, inner, f"{path}{operation.name}/")
        if isinstance(operation, layers.Layer) and not _is_known(operation):
            return self._trace_custom_layer(operation, args, kwargs, outputs, path)
        name = f"{path}{operation.name}"
        if not is_stock(operation, AFFINE):
            call = Call(operation, name, "whole", args, kwargs)
            return [self.add(call, t, i) for i, t in enumerate(outputs)]
        return [self._layer(operation, name, args, kwargs, outputs[0])]

    def _layer(self, layer: Any, name: str, args: Any, kwargs: Any, output: Any) -> Tensor:
        """A layer with weights, in parts."""
        part: Part = "whole"
        if is_stock(layer, SEPARABLE):
            first = self.add(Call(layer, name, "depthwise", args, kwargs), output)
            args, part = (first, *args[1:]), "pointwise"
        result = self.add(Call(layer, name, part, args, kwargs), output)
        if layer.activation is None or layer.activation is keras.activations.linear:
            return result
        return self.add(Call(layer, name, "activation", (result,)), output)

    def _trace_custom_layer(
        self, layer: Any, args: Any, kwargs: Any, outputs: Sequence[Any], path: str
    ) -> list[Tensor]:
        """The operations of a layer that is not Keras' own."""
        name = f"{path}{layer.name}"
        if list(layer._flatten_layers(include_self=False)):
            raise UnsupportedModelError(
                f"{name} ({type(layer).__name__}) is a custom layer or subclassed model that holds "
                f"layers, and Keras does not record what it calls. {_WRITE_IT_OUT}"
            )
        symbols: dict[int, Tensor] = {}

        def symbol(a: object) -> object:
            if not isinstance(a, Tensor):
                return a
            made = keras.KerasTensor(a.shape, a.dtype)
            symbols[id(made)] = a
            return made

        symbolic_args: Any = keras.tree.map_structure(symbol, args)
        named: Any = keras.tree.map_structure(symbol, kwargs)
        try:
            inner = keras.tree.flatten(layer.call(*symbolic_args, **named))
            if not all(isinstance(t, keras.KerasTensor) for t in inner):
                raise TypeError("it computes arrays")
        except Exception as error:  # whatever a user's code may raise on symbolic tensors
            raise UnsupportedModelError(
                f"{name} ({type(layer).__name__}) is not made of keras.ops, so it cannot be read. "
                "Write it with keras.ops, or as layers that Keras has."
            ) from error
        if all(
            id(t) in symbols for t in inner
        ):  # outside of training, as stochastic depth: then it stays as it is
            call = Call(layer, name, "whole", args, kwargs)
            return [self.add(call, t, i) for i, t in enumerate(outputs)]
        return self.walk(inner, symbols, f"{name}/")

    def add(self, call: Call, like: keras.KerasTensor, index: int = 0) -> Tensor:
        dtype = keras.backend.standardize_dtype(like.dtype)
        tensor = Tensor(call, tuple(like.shape), dtype, index)
        self.tensors.append(tensor)
        return tensor


def _is_known(layer: layers.Layer) -> bool:
    """Whether a layer is Keras' own, or ours, and computes what its class does."""
    if isinstance(layer, layers.Lambda):
        return False
    home = str(getattr(type(layer).call, "__module__", ""))
    return home.startswith("keras.src.layers") or is_stock(layer, _OURS)

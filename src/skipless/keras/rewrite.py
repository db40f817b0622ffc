"""A recorded model written out again, with other activations and sums and no normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import layers, ops

from skipless.core.conversion import Change, Sums, Term, layers_at_norms
from skipless.core.graph import Graph
from skipless.core.signals import UnsupportedModelError

from .activations import ShapedActivation, WeightedAdd
from .layers import Copies
from .reader import Step
from .record import Call, Tensor, flat_numbers
from .trace import Reading

BuildActivation = Callable[[str, str], ShapedActivation]  # of a name and a dtype


@dataclass(frozen=True)
class Rewritten:
    """The new model's tensors, and what is different."""

    input: keras.KerasTensor
    output: keras.KerasTensor
    changes: list[Change] = field(default_factory=list[Change])


def rewrite(
    reading: Reading,
    form: Graph,
    weights: Mapping[int, Sequence[float]],
    activation: BuildActivation,
    copies: Copies,
) -> Rewritten:
    """The calls that lead to the output, with the sums of `form` and new activations.

    `form` is the graph of `reading`, but for terms of sums that are taken from before an
    activation; `weights` are those of its sums.
    """
    writer = _Writer(reading, form, weights, activation, copies)
    first, needed = reading.record.tensors[0], writer.needed()
    writer.give_biases(needed)
    for tensor in reading.record.tensors:
        if tensor in needed:
            writer.write(tensor)
    writer.list_the_dropped(needed)
    return Rewritten(writer.use(first), writer.use(reading.record.output), writer.changes)


class _Writer:
    def __init__(
        self,
        reading: Reading,
        form: Graph,
        weights: Mapping[int, Sequence[float]],
        activation: BuildActivation,
        copies: Copies,
    ) -> None:
        self.reading, self.activation, self.copies = reading, activation, copies
        self._sums = Sums(reading.steps, reading.graph, form, weights)
        self.changes: list[Change] = []
        self._written: dict[Tensor, Any] = {}
        self._results: dict[Call, list[Any]] = {}  # a call may have several
        self._activated: dict[int, Any] = {}
        self._activations: dict[tuple[int, str], ShapedActivation] = {}
        self._with_bias: set[int] = set()

    def needed(self) -> set[Tensor]:
        """The recorded tensors that the new model is made of."""
        needed, todo = {self.reading.record.output}, [self.reading.record.output]
        while todo:
            for before in self._reads(todo.pop()):
                if before not in needed:
                    needed.add(before)
                    todo.append(before)
        return needed | {self.reading.record.tensors[0]}

    def _reads(self, tensor: Tensor) -> Sequence[Tensor]:
        step = self.reading.steps[tensor]
        if step.kind == "sum":
            return [term.source for term in self._sums.terms(step)]
        if step.kind in ("norm", "activation", "scale"):
            return step.inputs
        return tensor.inputs

    def give_biases(self, needed: set[Tensor]) -> None:
        """A shift that normalisation had is left to the layers around it, which may lack one."""
        for tensor in layers_at_norms(self.reading.steps, needed):
            layer = tensor.call.operation
            if not getattr(layer, "use_bias", True) and id(layer) not in self._with_bias:
                self._with_bias.add(id(layer))
                self._changed("bias added", tensor)

    def write(self, tensor: Tensor) -> None:
        step = self.reading.steps[tensor]
        match step.kind:
            case "input" if tensor.call.operation is None:
                name = self.copies.free(tensor.call.path, "input")
                new = keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=name)
                self._written[tensor] = new
            case "norm" | "scale":
                self._pass_on(tensor, step)
            case "activation":
                self._activate(tensor, step)
            case "sum":
                self._sum(tensor, step)
            case _:
                self._written[tensor] = self._copy(tensor)

    def use(self, tensor: Tensor) -> Any:
        """What stands for a recorded tensor in the new model; of a factor, the sign is left."""
        if self.reading.steps[tensor].scale < 0.0:
            return ops.negative(self._written[tensor])
        return self._written[tensor]

    def _pass_on(self, tensor: Tensor, step: Step) -> None:
        self._written[tensor] = self.use(step.inputs[0])
        if step.kind == "norm":
            self._changed("normalisation removed", tensor)
        else:
            self._changed(f"factor {step.scale:.4g} removed", tensor)

    def _activate(self, tensor: Tensor, step: Step) -> None:
        if step.node not in self._activated:  # which a multiple of it may have written before
            layer = self._activation_layer(tensor)
            self._activated[step.node] = layer(self.use(step.inputs[0]))
            self._changed(f"activation replaced by {layer!r}", tensor)
        self._written[tensor] = self._activated[step.node]

    def _activation_layer(self, tensor: Tensor) -> ShapedActivation:
        """A layer under the name of the one that it replaces, or beside the layer it was part of.

        A layer that the model used several times is used as often.
        """
        operation, part = tensor.call.operation, tensor.call.part
        assert operation is not None
        key = (id(operation), part)
        if key not in self._activations:
            own = part == "activation"
            name = f"{operation.name}_activation" if own else operation.name
            path = f"{tensor.call.path}_activation" if own else tensor.call.path
            self._activations[key] = self.activation(self.copies.free(name, path), tensor.dtype)
        return self._activations[key]

    def _sum(self, tensor: Tensor, step: Step) -> None:
        terms = self._sums.terms(step)
        values, new = [self._value(term) for term in terms], [term.weight for term in terms]
        for term in terms:
            if term.moved:
                self._changed("shortcut taken from before the activation", tensor)
        if new == [1.0]:
            self._written[tensor] = values[0]
        else:
            assert tensor.call.operation is not None
            name = self.copies.free(tensor.call.operation.name, tensor.call.path)
            self._written[tensor] = WeightedAdd(new, name=name, dtype=tensor.dtype)(values)
        if (change := self._sums.reweighted(step)) is not None:
            self._changed(change, tensor)

    def _value(self, term: Term[Tensor]) -> Any:
        if not term.moved:
            # The weight of a factor times an activation is for the activation alone.
            bare = term.node == self.reading.steps[term.tensor].node
            return self._written[term.tensor] if bare else self.use(term.tensor)
        value = self.use(term.source)
        for move in term.moves:
            value = self._called(move.call, {self.reading.steps[move].inputs[0]: value})[move.index]
        return value

    def _copy(self, tensor: Tensor) -> Any:
        call = tensor.call
        if call.part == "depthwise":  # the layer is called as a whole, at its second part
            return self.use(tensor.inputs[0])
        if call.part == "activation":  # the softmax at the end
            activation: Any = getattr(call.operation, "activation", None)
            name = self.copies.free(f"{call.path.split('/')[-1]}_activation", call.path)
            return layers.Activation(activation, name=name, dtype=tensor.dtype)(
                self.use(tensor.inputs[0])
            )
        if call not in self._results:
            self._results[call] = self._called(call, {})
        return self._results[call][tensor.index]

    def _called(self, call: Call, known: Mapping[Tensor, Any]) -> list[Any]:
        """The results of the same call in the new model, with what is `known` in it."""
        if any(isinstance(a, keras.Variable) for a in flat_numbers(call)):
            raise UnsupportedModelError(
                f"{call.path} ({type(call.operation).__name__}) computes with a variable of a "
                "layer of your own, which cannot be drawn anew. Write it as a Dense or convolution "
                "layer."
            )

        def argument(a: Any) -> Any:
            if isinstance(a, Tensor):
                return known[a] if a in known else self.use(a)
            return a

        copied = self.copies.of(call.operation, call.path, id(call.operation) in self._with_bias)
        args: Any = keras.tree.map_structure(argument, call.args)
        kwargs: Any = keras.tree.map_structure(argument, dict(call.kwargs))
        return keras.tree.flatten(copied(*args, **kwargs))

    def list_the_dropped(self, needed: set[Tensor]) -> None:
        for tensor, step in self.reading.steps.items():
            if step.kind == "affine" and tensor not in needed:
                self._changed("layer of a shortcut removed", tensor)

    def _changed(self, what: str, tensor: Tensor) -> None:
        self.changes.append(Change(what, tensor.call.path))

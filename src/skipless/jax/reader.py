"""A record, read operation by operation into a graph.

Products with weights become affine nodes, pointwise functions activations, additions sums, and
operations that only move numbers about vanish. For those who measure the network, every tensor
keeps its `Step`: what it is to the theory, and which tensors it is made of.

Pointwise operations put together: of which tensor they are a function, and of what kind.

A pointwise function is known by its values on `PROBE`. Activations in a row are taken apart at a
tensor that all of the later one is computed from.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from skipless.core import trace as core
from skipless.core.graph import Graph
from skipless.core.recognise import PROBE, Recognised, recognise
from skipless.core.signals import Signals
from skipless.core.signals import Value as BaseValue
from skipless.core.trace import FEW, UnsupportedModelError

from .constants import Constants
from .operations import (
    ADDITIONS,
    AFFINE,
    APPROXIMATE_MOVES,
    ARITHMETIC,
    CONCATENATIONS,
    LAYOUTS,
    MOVES,
    POINTWISE,
    PROBABILITIES,
    SUMS,
    UNCHANGED,
    UNCOVERED,
    UNKNOWN,
    Region,
    Values,
    evaluate,
    fan_in,
    reduced,
    regions,
    signals,
    unmoved,
)
from .record import Operation, Record, Tensor

# How close a function must be to an activation, by the bits of the numbers in its definition.
_CLOSE = {64: 1e-9, 32: 1e-6, 16: 4e-3}


@dataclass(frozen=True, eq=False)
class Pointwise:
    """A function of one tensor by its values on `PROBE`; None if it is not the same at all places.

    It `standardises` if it only adds and multiplies constants, as inputs are standardised. A
    `call` of a shaped activation is known without its values.
    """

    values: Values | None
    standardises: bool = False
    call: Region | None = None


Step = core.Step[Tensor]
Value = BaseValue[Tensor, Pointwise]


class Composer(Signals[Tensor, Pointwise]):
    """The tensors of a record as functions of those at which the graph has a node."""

    def __init__(
        self, constants: Constants, regions: Mapping[Operation, Region], close: float
    ) -> None:
        super().__init__()
        self.constants = constants
        self._regions = regions
        self._close = close

    def origin(self, tensor: Tensor) -> str:
        return tensor.name if tensor.operation is None else str(tensor.operation.location)

    def sources(self, tensor: Tensor) -> Sequence[Tensor]:
        assert tensor.operation is not None
        region = self._regions.get(tensor.operation)
        return signals(tensor.operation) if region is None else region.sources

    def composed(self, tensor: Tensor) -> Value:
        assert tensor.operation is not None
        op = tensor.operation
        if op in self._regions:
            before = self.sources(tensor)[0]
            return Value(self.values[before].node, before, Pointwise(None, call=self._regions[op]))
        source = self.values[signals(op)[0]]
        values = self._evaluated(op, [self._argument(t, op) for t in op.inputs])
        before = [self.values[t].function for t in signals(op)]
        simple = op.name in ARITHMETIC | UNCHANGED and len(before) == 1
        return Value(
            source.node,
            source.place,
            Pointwise(values, simple and (before[0] is None or before[0].standardises)),
        )

    def recognised(self, tensor: Tensor, function: Pointwise) -> Recognised | None:
        if function.call is not None:
            return Recognised(f"call {id(function.call)}", 1.0)
        return None if function.values is None else self._known(function.values)

    def scaled(self, tensor: Tensor, user: Tensor) -> tuple[int, float]:
        if self._standardises_input(tensor) and not self._adds_branches(user):
            self._standardise(tensor)
        return super().scaled(tensor, user)

    def _standardise(self, tensor: Tensor) -> None:
        """Take `tensor` for the input, or the last one before it that others read as it is.

        What is computed from that is no standardisation: a factor of it weights a shortcut.
        """
        place = self.values[tensor].place
        shared = next(filter(self._is_shared, self._bottlenecks(tensor)), None)
        if shared is not None:
            self.set(shared, "input", 0, (place,))
            for between in self._pending(tensor, shared):
                self.values[between] = self.composed(between)
        elif not self._is_shared(place):
            self.set(tensor, "input", 0, (place,))

    @abstractmethod
    def _is_shared(self, place: Tensor) -> bool:
        """Whether several operations read the tensor."""

    def _step_back(self, tensor: Tensor) -> bool:
        """Whether `tensor` became a function of a later node: a tensor that all of it goes through.

        Two activations in a row are no known activation; the first one then becomes a node.
        """
        before = self._cut(tensor)
        if before is None:
            return False
        self.at(before, tensor)
        for between in self._pending(tensor, before):
            self.values[between] = self.composed(between)
        return True

    def _cut(self, tensor: Tensor) -> Tensor | None:
        """The last tensor of which `tensor` is a known function, and which is known itself."""
        for before in self._bottlenecks(tensor):
            values = self._relative(tensor, before)
            if values is not None and self._known(values) is not None and self._is_known(before):
                return before
        return None

    def _is_known(self, tensor: Tensor) -> bool:
        function = self.values[tensor].function
        if function is None or tensor in self.steps or self._standardises_input(tensor):
            return True
        return self.recognised(tensor, function) is not None or self._cut(tensor) is not None

    def _relative(self, tensor: Tensor, before: Tensor) -> Values | None:
        """The values of `tensor` as a function of the tensor `before`."""
        values: dict[Tensor, Values | None] = {before: PROBE}
        for t in self._pending(tensor, before):
            assert t.operation is not None
            known = [
                values[i] if i.signal else self._argument(i, t.operation)
                for i in t.operation.inputs
            ]
            values[t] = self._evaluated(t.operation, known)
        return values[tensor]

    def _pending(self, tensor: Tensor, before: Tensor) -> list[Tensor]:
        """The tensors between the two, `tensor` included, in order."""
        found: set[Tensor] = set()
        waiting = [tensor]
        while waiting:
            current = waiting.pop()
            if current not in found and current is not before:
                found.add(current)
                waiting += self.sources(current)
        return sorted(found, key=_index)

    def _bottlenecks(self, tensor: Tensor) -> Iterator[Tensor]:
        """The tensors that all of `tensor` is computed from, last first, up to its place."""
        place = self.values[tensor].place
        frontier = {tensor}
        while True:
            last = max(frontier, key=_index)
            if last is place:
                return
            frontier = (frontier - {last}) | set(self.sources(last))
            if len(frontier) == 1 and place not in frontier:
                yield next(iter(frontier))

    def _standardises_input(self, tensor: Tensor) -> bool:
        function, place = self.values[tensor].function, self.values[tensor].place
        simple = function is not None and function.standardises and tensor not in self.steps
        return simple and self.steps[place].kind == "input"

    def _known(self, values: Values) -> Recognised | None:
        return recognise(values, self._close)

    def _evaluated(self, op: Operation, arguments: Sequence[Values | None]) -> Values | None:
        known = [a for a in arguments if a is not None]
        return evaluate(op.name, op.parameters, known) if len(known) == len(arguments) else None

    def _argument(self, tensor: Tensor, op: Operation) -> Values | None:
        """What stands for `tensor` where `op` is evaluated on `PROBE`."""
        if tensor.signal:
            function = self.values[tensor].function
            return PROBE if function is None else function.values
        number = self.constants.number(tensor)
        if number is None:
            return None
        # A branch that starts at zero, as in ReZero, is one with a factor to be removed.
        removed = number == 0.0 and tensor.parametric and op.name == "mul"
        return np.array(1.0 if removed else number)

    def _adds_branches(self, tensor: Tensor) -> bool:
        op = tensor.operation
        return op is not None and op.name in ADDITIONS and len(set(signals(op))) > 1


def _index(tensor: Tensor) -> int:
    return -1 if tensor.operation is None else tensor.operation.index


class Reader(Composer):
    """Reads a record into a graph, and keeps the steps."""

    def __init__(self, record: Record, constants: Constants) -> None:
        super().__init__(constants, regions(record), _closeness(record))
        self.record = record
        self.biases: dict[Tensor, Operation] = {}  # of layers, with the addition that applies them
        self.last: Tensor | None = None
        self._entered: set[Region] = set()
        self._statistics: set[Tensor] = set()
        self._totals: dict[Tensor, float] = {}  # sums over places, with their number
        self._used: set[Tensor] = set()  # weights

    def read(self) -> Graph:
        self.input(self.record.input, self.record.input.name)
        for op in self.record.operations:
            if op.name == "gather" and not op.inputs[0].signal and op.inputs[1].signal:
                raise self._uncovered(op, op.name, UNCOVERED[op.name])
        for op in self.record.operations:
            inputs = signals(op)
            if not inputs:
                continue
            if op in self._regions:
                self._within(op, self._regions[op])
            elif all(tensor in self._statistics for tensor in inputs):
                self._statistics.update(op.outputs)
            elif any(tensor in self._statistics for tensor in inputs):
                raise self.product_of_branches(op.outputs[0], op.name)
            else:
                self._read(op, inputs)
        self._finish()
        return self.builder.build()

    def _within(self, op: Operation, region: Region) -> None:
        """An operation of a known call: the call as a whole is read where its result appears."""
        first = op.outputs[0]
        if region.kind == "probabilities":
            raise self._uncovered(op, "softmax", PROBABILITIES)
        if region not in self._entered:
            self._entered.add(region)
            for source in region.sources:
                self.at(source, first)
            if len(region.sources) > 1 and region.kind != "normalised input":
                raise self.product_of_branches(first, f"a layer ({op.name})")
        for tensor in op.outputs:
            if tensor is not region.result:
                self._statistics.add(tensor)
            elif region.kind == "norm":
                self.norm(tensor, region.sources[0])
            elif region.kind in ("dropout", "resize"):
                rough = region.kind if region.kind == "resize" else ""
                self.move(tensor, region.sources[0], approximate=rough)
            elif region.kind == "shaped":
                self.pointwise(tensor)
            else:
                self.normalised_input(tensor, region.sources)

    def _read(self, op: Operation, inputs: Sequence[Tensor]) -> None:
        (tensor, *others) = op.outputs
        if op.name in AFFINE:
            self._layer(op, inputs)
        elif op.name in SUMS:
            self._total(tensor, inputs[0], reduced(op) * self._totals.get(inputs[0], 1.0))
        elif op.name in MOVES and inputs[0] in self._totals:
            for output in op.outputs:  # it is divided by their number afterwards
                self._total(output, inputs[0], self._totals[inputs[0]])
        elif (op.name in MOVES and op.inputs[0].signal) or op.name in APPROXIMATE_MOVES:
            if len(inputs) > 1:
                raise self._uncovered(op, op.name, UNCOVERED["gather"])
            for output in op.outputs:
                rough = op.name if op.name in APPROXIMATE_MOVES else ""
                self.move(output, inputs[0], approximate=rough)
        elif op.name in CONCATENATIONS:
            axis = op.parameters["dimension"]
            self.concat(tensor, op.inputs, [float(t.shape[axis]) for t in op.inputs])
        elif op.name in POINTWISE and op.name in UNCHANGED and others:
            for before, after in zip(op.inputs, op.outputs, strict=True):
                if before.signal:
                    self.move(after, before)
        elif op.name in POINTWISE:
            self._pointwise(op, tensor, inputs)
        else:
            raise self._uncovered(op, op.name, UNCOVERED.get(op.name, UNKNOWN))

    def _is_shared(self, place: Tensor) -> bool:
        return len(self.record.users.get(place, ())) > 1

    def _uncovered(self, op: Operation, name: str, about: tuple[str, str]) -> UnsupportedModelError:
        kind, advice = about
        return UnsupportedModelError(
            f"{op.location} computes {name}{kind}, for which there are no Q and C maps. {advice}"
        )

    def _layer(self, op: Operation, inputs: Sequence[Tensor]) -> None:
        tensor = op.outputs[0]
        weights = [t for t in op.inputs if not t.signal]
        if not weights:
            self.affine(tensor, op.inputs, FEW, depthwise=False)  # which refuses two tensors
        weight, source = weights[0], inputs[0]
        groups = op.parameters.get("batch_group_count", 1)
        contracted = op.parameters["dimension_numbers"][0][0] if op.name == "dot_general" else [0]
        if (
            groups != 1
            or not len(contracted)
            or (op.name != "dot_general" and not op.inputs[0].signal)
        ):
            raise self._uncovered(op, op.name, (" of a kind of its own", UNKNOWN[1]))
        channels, depthwise = fan_in(op, source, weight)
        self.affine(tensor, inputs, channels or FEW, depthwise)
        if (own := unmoved(weight)) in self._used:
            self.notes.approximate.append(f"weights used again at {self.origin(tensor)}")
        self._used.add(own)

    def _total(self, tensor: Tensor, source: Tensor, count: float) -> None:
        """A sum over places is their mean, which is a move, times their number."""
        if count == 1.0:
            self.move(tensor, source)
            return
        known = source in self._totals
        node = self.values[source].node if known else self.at(source, tensor)
        self._totals[tensor] = count
        self.steps[tensor] = core.Step("move", node, (source,), count)
        self.values[tensor] = Value(node, tensor, Pointwise(count * PROBE))

    def _pointwise(self, op: Operation, tensor: Tensor, inputs: Sequence[Tensor]) -> None:
        """A function of one tensor stays one; different tensors may be added, and no more."""
        for i in inputs:  # a shaped activation is one, whatever is computed after it
            function = self.values[i].function
            if function is not None and function.call is not None:
                self.at(i, tensor)
        if self._is_bias(op, inputs):
            self.biases[tensor] = op
            self.set(tensor, "affine", self.values[inputs[0]].node, inputs)
        elif op.name not in ADDITIONS and any(t.random for t in op.inputs if not t.signal):
            raise UnsupportedModelError(
                f"{op.location} computes {op.name} with random numbers, as dropout does. Trace the "
                "model in evaluation mode, or use the dropout of Flax, Haiku or Equinox."
            )
        elif self._divides_by_counts(op):
            self.set(tensor, "move", self.values[inputs[0]].node, inputs)
        elif (chosen := self._chosen(op)) is not None:
            self.move(tensor, chosen)
        elif len({self.values[i].place for i in inputs}) == 1:
            self.pointwise(tensor)
        elif op.name in ADDITIONS:
            self.sum(tensor, inputs, [1.0, -1.0 if op.name == "sub" else 1.0])
        else:
            raise self.product_of_branches(tensor, op.name)

    def _is_bias(self, op: Operation, inputs: Sequence[Tensor]) -> bool:
        """Whether `op` adds an array to what a layer computes, reshaped at most in between.

        It does not depend on the input, so that it is the layer's bias. A number is not: it may
        belong to the activation that follows.
        """
        if op.name not in ADDITIONS or len(op.inputs) != 2 or len(inputs) != 1:
            return False
        (added,) = (t for t in op.inputs if not t.signal)
        if not added.parametric and self.constants.number(added) is not None:
            return False
        if op.name == "sub" and added is op.inputs[0]:
            return False
        tensor = inputs[0]
        while self.values[tensor].function is None and self.steps[tensor].kind == "move":
            if tensor.operation is None or tensor.operation.name not in LAYOUTS:
                return False
            (tensor,) = self.steps[tensor].inputs
        return self.values[tensor].function is None and self.steps[tensor].kind == "affine"

    def _divides_by_counts(self, op: Operation) -> bool:
        """Whether a window's sum is divided by how many places it has, fewer at the border."""
        if op.name != "div" or op.inputs[1].signal or op.inputs[1].parametric:
            return False
        return op.inputs[0] in self._totals and self.constants.number(op.inputs[1]) is None

    def _chosen(self, op: Operation) -> Tensor | None:
        """Which of two tensors a constant chooses everywhere, if it does."""
        if op.name != "select_n" or op.inputs[0].signal:
            return None
        which = self.constants.number(op.inputs[0])
        chosen = None if which is None else op.inputs[1 + int(which)]
        return chosen if chosen is not None and chosen.signal else None

    def _finish(self) -> None:
        outputs = list(dict.fromkeys(t for t in self.record.outputs if t.signal))
        tensors = [t for t in outputs if t not in self._statistics]
        if len(tensors) != 1:
            raise UnsupportedModelError(
                f"The function returns {len(tensors)} arrays that depend on its input, but the "
                "theory knows networks with one output. Wrap it in a function that returns one."
            )
        self.last = tensors[0]
        self.output(self.last, self.last)


def _closeness(record: Record) -> float:
    tensors = [t for op in record.operations for t in op.outputs if t.signal]
    types = [t.dtype for t in tensors if jnp.issubdtype(t.dtype, jnp.floating)]
    bits = min((jnp.finfo(dtype).bits for dtype in types), default=64)
    return _CLOSE.get(bits, _CLOSE[16])

"""Pointwise operations put together: of which tensor they are a function, and of what kind.

A pointwise function is known by its values on `PROBE`. Activations in a row are taken apart at a
tensor that all of the later one is computed from.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from skipless.core import signals as core
from skipless.core.recognise import PROBE, Recognised, recognise
from skipless.core.signals import Signals

from .constants import Constants
from .elementwise import ARITHMETIC, UNCHANGED, Values, evaluate
from .operations import ADDITIONS, signals
from .record import Operation, Tensor
from .regions import Region

# Of numbers that were rounded when the network was written in single precision.
SINGLE = 1e-6


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
Value = core.Value[Tensor, Pointwise]


class Composer(Signals[Tensor, Pointwise]):
    """The tensors of a record as functions of those at which the graph has a node."""

    def __init__(self, constants: Constants, regions: Mapping[Operation, Region]) -> None:
        super().__init__()
        self.constants = constants
        self._regions = regions

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
        return recognise(values) or recognise(values, close=SINGLE)

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

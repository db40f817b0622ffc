"""The parts of a recorded network that no formula covers: each from one tensor to one.

An operation without Q and C maps may read several tensors, and several operations may read what it
makes. The part that is measured in its place is the smallest stretch of operations around it that
reads one tensor, and of which one is read. Dominators find it: a tensor that everything before the
operation is computed through, and one that everything behind it goes through.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Generic, Protocol, TypeVar

from . import record as rec
from .activations import Array
from .axes import Axes
from .graph import Graph, Measured
from .measured import NoSignalError, PartMap
from .record import NotDerivedError, Recorded, UnsupportedModelError

T = TypeVar("T", bound=Hashable)  # a framework's own name for a tensor


class Shortened(Recorded[T]):
    """A record in which some stretches are single operations."""

    def __init__(self, record: Recorded[T], failures: Iterable[NotDerivedError]) -> None:
        self._record, self.input, self.more = record, record.input, record.more
        self.operations = _Flow(record).shorten(failures)

    @property
    def outputs(self) -> Sequence[T]:
        return self._record.outputs

    def origin(self, tensor: T) -> str:
        return self._record.origin(tensor)

    def shape(self, tensor: T) -> Sequence[int | None]:
        return self._record.shape(tensor)

    def channel_candidates(self, rank: int) -> Sequence[int]:
        return self._record.channel_candidates(rank)

    def values(self, tensor: T, sources: Mapping[T, Array]) -> Array | None:
        return self._record.values(tensor, sources)

    def tolerances(self, tensor: T) -> Sequence[float]:
        return self._record.tolerances(tensor)


class _Flow(Generic[T]):
    """Which tensors everything before, or behind, each tensor passes through."""

    def __init__(self, record: Recorded[T]) -> None:
        self.record, self.operations = record, record.operations
        everything = (record.input, *record.more, *record.operations)
        self.order = {t: place for place, t in enumerate(everything)}
        self.tensors = list(self.order)
        self.end = len(self.tensors)  # stands for all outputs
        sources = [self._sources(t) for t in self.tensors]
        self.readers: list[list[int]] = [[] for _ in self.tensors]
        outputs = {self.order[t] for t in record.outputs if t in self.order}
        for place in reversed(range(self.end)):
            if place in outputs:
                self.readers[place].append(self.end)
            if self.readers[place]:  # it leads to an output
                for source in sources[place]:
                    self.readers[source].append(place)
        self.sources = sources
        self.before = [0] * self.end  # of immediate dominators
        for place in range(1, self.end):
            if sources[place]:
                self.before[place] = reduce(self._common_before, sources[place])
        self.behind = [self.end] * (self.end + 1)
        for place in reversed(range(self.end)):
            if self.readers[place]:
                self.behind[place] = reduce(self._common_behind, self.readers[place])

    def _sources(self, tensor: T) -> list[int]:
        operation = self.operations.get(tensor)
        if tensor in self.record.more:  # as if all inputs were parts of one
            return [0]
        found = () if operation is None else operation.sources
        return list(dict.fromkeys(self.order[t] for t in found if t is not None))

    def _common_before(self, a: int, b: int) -> int:
        while a != b:
            a, b = (self.before[a], b) if a > b else (a, self.before[b])
        return a

    def _common_behind(self, a: int, b: int) -> int:
        while a != b:
            a, b = (self.behind[a], b) if a < b else (a, self.behind[b])
        return a

    def shorten(self, failures: Iterable[NotDerivedError]) -> dict[T, rec.Operation[T]]:
        """The operations that lead to outputs, with a stretch in place of those at each failure."""
        parts: list[_Region] = []
        for failure in failures:
            inside = {self.order[t] for t in failure.tensors}
            inside = {place for place in inside if self.readers[place]}
            if not inside:
                continue
            part = self._part(inside, str(failure))
            while alike := [other for other in parts if other.touches(part)]:
                parts = [other for other in parts if other not in alike]
                part = self._part(part.inside.union(*(o.inside for o in alike)), alike[0].reason)
            parts.append(part)
        inner = frozenset[int]().union(*(part.inside for part in parts))
        ends = {part.stop: part for part in parts}
        found: dict[T, rec.Operation[T]] = {}
        for tensor, operation in self.operations.items():
            place = self.order[tensor]
            if place in ends:
                found[tensor] = self._stretch(ends[place])
            elif place not in inner and self.readers[place]:
                found[tensor] = operation
        return found

    def _stretch(self, part: _Region) -> rec.Part[T]:
        inside = tuple(self.tensors[place] for place in sorted(part.inside))
        return rec.Part((self.tensors[part.start],), inside, part.reason)

    def _part(self, inside: Iterable[int], reason: str) -> _Region:
        """The smallest part around the operations `inside` that reads one tensor and makes one."""
        inside, before = frozenset(inside), frozenset[int]()
        start = stop = 0
        while inside != before:
            before = inside
            stop = reduce(self._common_behind, inside)
            if stop == self.end:
                raise UnsupportedModelError(
                    f"{reason} Several outputs depend on it, so that it cannot be measured on its "
                    "own, either."
                )
            start = reduce(self._common_before, (s for p in inside for s in self.sources[p]))
            inside = self._between(start, stop)
        # Where numbers only change places, they are those of a layer in another order.
        while self._moves(start) and inside.issuperset(self.readers[start]):
            inside, start = inside | {start}, self.sources[start][0]
        while len(after := self.readers[stop]) == 1 and self._moves(after[0]):
            stop = after[0]
            inside = inside | {stop}
        return _Region(start, stop, inside, reason)

    def _between(self, start: int, stop: int) -> frozenset[int]:
        found, new = {stop}, {stop}
        while new:
            new = {s for place in new for s in self.sources[place]} - found - {start}
            found |= new
        return frozenset(found)

    def _moves(self, place: int) -> bool:
        operation = self.operations.get(self.tensors[place]) if 0 < place < self.end else None
        return (
            isinstance(operation, rec.Move)
            and not operation.approximate
            and not operation.axes.pooled
            and operation.factor == 1.0
        )


@dataclass(frozen=True)
class _Region:
    """Operations by their places in the record: those `inside` read what `start` makes."""

    start: int
    stop: int
    inside: frozenset[int]
    reason: str

    def touches(self, other: _Region) -> bool:
        ends = {self.start, other.start}
        return not self.inside.isdisjoint(other.inside | ends) or not other.inside.isdisjoint(ends)


@dataclass(frozen=True)
class Measurable(Generic[T]):
    """A part of a record, and the axes of the tensors that it reads and makes."""

    part: rec.Part[T]
    result: T
    before: Axes
    after: Axes


class Measure(Protocol[T]):
    """Measures parts, one after another: the maps of each, and whether it has weights."""

    def begin(self) -> None: ...
    def __call__(self, part: Measurable[T], /) -> tuple[PartMap, bool]: ...


def measure_parts(
    graph: Graph,
    record: Recorded[T],
    nodes: Mapping[T, int],
    axes: Mapping[T, Axes],
    measure: Measure[T],
) -> Graph:
    """`graph` with the maps of its parts, whose results are at `nodes`.

    A part that is silent, such as a branch that starts at zero, needs what reads it.
    """
    found = list(graph.nodes)
    measure.begin()
    for tensor, index in nodes.items():
        part, node = record.operations[tensor], found[index]
        if not isinstance(part, rec.Part) or not isinstance(node, Measured):
            continue
        try:
            maps, mixes = measure(Measurable(part, tensor, axes[part.sources[0]], axes[tensor]))
        except NoSignalError as silence:
            readers = [t for t, o in record.operations.items() if tensor in o.sources]
            if not readers:
                raise UnsupportedModelError(
                    f"{record.origin(tensor)} {silence} on random inputs, so that it has no C map. "
                    f"{part.reason} If it starts silent, initialise it otherwise."
                ) from None
            raise NotDerivedError(part.reason, [tensor, *readers]) from None
        found[index] = replace(node, curve=maps, mixes=mixes)
    return Graph(found)

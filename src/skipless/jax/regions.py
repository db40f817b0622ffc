"""Calls of known layers, each of which is many operations in the record and one to the theory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .operations import signals
from .record import Operation, Record, Tensor
from .source import CallKind


@dataclass(eq=False)
class Region:
    """The operations of one call, the tensors that it reads, and what is read of it outside."""

    kind: CallKind
    sources: list[Tensor] = field(default_factory=list[Tensor])
    operations: list[Operation] = field(default_factory=list[Operation])
    exits: list[Tensor] = field(default_factory=list[Tensor])

    @property
    def result(self) -> Tensor | None:
        """What the call is about: all else, such as a running mean, are its statistics.

        It has the shape of what the call reads, but a normalised input may have a channel more.
        """
        rank = len(self.sources[0].shape)
        shapes = [tensor for tensor in self.exits if tensor.shape == self.sources[0].shape]
        ranks = [tensor for tensor in self.exits if len(tensor.shape) == rank]
        return next(reversed(shapes or ranks or self.exits), None)


def regions(record: Record) -> Mapping[Operation, Region]:
    """The region of every operation that belongs to one.

    Operations are of the same call if they were recorded under the same frames and are joined by
    each other's results: a loop may call several layers from one line, even on the same tensor.
    """
    found: dict[Operation, Region] = {}
    calls: dict[Operation, object] = {}
    for op in record.operations:
        sources = signals(op)
        if not sources or (call := op.location.library_call) is None:
            continue
        kind, calls[op] = call
        own = [t for t in sources if t.operation and calls.get(t.operation) == calls[op]]
        others = [t for t in sources if t not in own]
        same = [found[t.operation] for t in own if t.operation]
        region = same[0] if same else Region(kind)
        for other in same[1:]:
            _merge(other, region, found)
        for source in others:
            if source not in region.sources:
                region.sources.append(source)
        region.operations.append(op)
        found[op] = region
    for region in dict.fromkeys(found.values()):
        region.exits = _exits(region, record)
    return found


def _merge(other: Region, into: Region, found: dict[Operation, Region]) -> None:
    if other is into:
        return
    into.operations += other.operations
    into.sources += [source for source in other.sources if source not in into.sources]
    found.update(dict.fromkeys(other.operations, into))
    other.operations, other.sources = into.operations, into.sources


def _exits(region: Region, record: Record) -> list[Tensor]:
    inside = set(region.operations)
    outputs: Sequence[Tensor] = [t for op in region.operations for t in op.outputs]
    return [
        tensor
        for tensor in outputs
        if tensor in record.outputs or any(op not in inside for op in record.users.get(tensor, ()))
    ]

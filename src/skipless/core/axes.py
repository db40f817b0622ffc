"""Which axes of a recorded tensor hold samples, and which channels.

Axes are followed from the input on, because channels must stay apart. Locations may be pooled and
padded, since each is as good as another. The mean of channels, however, has another q value than
they have, and so have channels padded with zeros, or branches that are pooled as one array.
"""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from . import record as rec
from .record import NotDerivedError, Recorded

T = TypeVar("T", bound=Hashable)  # a framework's own name for a tensor


@dataclass(frozen=True)
class Axes:
    """The axes of a tensor: the one of `samples`, and those over which channels run."""

    samples: int
    channels: tuple[int, ...]


class Roles(NamedTuple):
    """The axes of a tensor over which samples run, and channels, and branches side by side."""

    samples: frozenset[int] = frozenset()
    channels: frozenset[int] = frozenset()
    branches: frozenset[int] = frozenset()


def unreadable_moves(
    record: Recorded[T], roles: Mapping[T, Roles], beyond: Collection[T]
) -> list[NotDerivedError]:
    """The moves that pool channels or branches, or pad channels."""
    found: list[NotDerivedError] = []
    for tensor, operation in record.operations.items():
        if isinstance(operation, rec.Move) and tensor not in beyond:
            flaw = _flaw(record.origin(tensor), operation, roles[operation.sources[0]])
            found += [NotDerivedError(flaw, [tensor])] if flaw else []
    return found


def find_axes(record: Recorded[T], roles: Mapping[T, Roles]) -> dict[T, Axes]:
    """The axes of every tensor."""
    axes: dict[T, Axes] = {}
    for tensor, known in roles.items():
        usual = next(iter(record.channel_candidates(record.rank(tensor))), 0)
        channels = tuple(sorted(known.channels)) or (usual,)
        axes[tensor] = Axes(min(known.samples, default=0), channels)
    return axes


def _flaw(where: str, move: rec.Move[T], roles: Roles) -> str:
    if move.axes.pooled & (roles.channels | roles.branches):
        return (
            f"{where} computes {move.name} over channels or branches, as maxout does; "
            "only locations can be pooled. Use a pointwise activation instead, and add branches "
            "one by one (a + b), not as an array of them."
        )
    # Where an image is made of features, channels lie along several axes. One of them is that of
    # the next layer's channels; the others are locations, which may be padded.
    if roles.channels and roles.channels <= move.axes.padded:
        return (
            f"{where} fills up channels by {move.name}, as shortcuts without weights do "
            "where a network widens. The new channels carry no signal, so q falls, and that has no "
            "Q and C maps. Widen the network by a layer with weights, such as a 1x1 convolution."
        )
    return ""


def follow_axes(record: Recorded[T]) -> dict[T, Roles]:
    """The roles of the axes of every tensor."""
    inputs = (record.input, *record.more)
    channels = {tensor: _input_channels(record, tensor) for tensor in inputs}
    return _follow(record, record.operations, channels)


def _input_channels(record: Recorded[T], start: T) -> frozenset[int]:
    """An input's axis of channels: the one that the first layer behind it sums over."""
    before: dict[T, rec.Operation[T]] = {}
    behind = {start}
    for tensor, operation in record.operations.items():
        if not behind.isdisjoint(operation.sources):
            behind.add(tensor)
        if isinstance(operation, rec.Layer) and operation.sources[0] in behind:
            for axis in record.channel_candidates(record.rank(start)):
                channels = frozenset({axis})
                known = _follow(record, before, {start: channels})[operation.sources[0]]
                if not known.channels.isdisjoint(operation.summed):
                    return channels
            break
        before[tensor] = operation
    return frozenset()  # as in a series of numbers, of which a layer makes one channel


def _follow(
    record: Recorded[T],
    operations: Mapping[T, rec.Operation[T]],
    of_inputs: Mapping[T, frozenset[int]],
) -> dict[T, Roles]:
    """The roles of all axes, where channels run over the axes `of_inputs`."""
    found = {
        tensor: Roles(frozenset({0}) - (axes := of_inputs.get(tensor, frozenset())), axes)
        for tensor in (record.input, *record.more)
    }
    for tensor, operation in operations.items():
        match operation:
            case rec.Preparation(sources=(source, *_)):
                found[tensor] = found[source]
            case rec.Layer(sources=(source, *_), made=made, axes=axes):
                new, samples = frozenset(made), found[source].samples
                samples = samples - new if axes is None else axes.carry(samples)
                found[tensor] = Roles(samples, new - samples or new)
            case rec.Move(sources=(source,), axes=axes):
                found[tensor] = Roles(*map(axes.carry, found[source]))
            case rec.Unsupported():
                found[tensor] = Roles()
            case rec.Part():
                found[tensor] = _behind_stretch(record, tensor, operation, found)
            case _:
                found[tensor] = _side_by_side(record, tensor, operation, found)
    return found


def _behind_stretch(
    record: Recorded[T], tensor: T, part: rec.Part[T], found: Mapping[T, Roles]
) -> Roles:
    """Channels are where a layer reads them, or where there are as many as before."""
    (source,) = part.sources
    before, after, roles = record.shape(source), record.shape(tensor), found[source]
    if before == after:
        return Roles(roles.samples, roles.channels)
    for operation in record.operations.values():
        if isinstance(operation, rec.Layer) and operation.sources[0] == tensor:
            channels = frozenset(operation.summed)
            return Roles(frozenset({0}) - channels, channels)
    usual = record.channel_candidates(len(after))
    sizes = {before[axis] for axis in roles.channels}
    alike = [axis for axis in range(1, len(after)) if after[axis] in sizes]
    channels = frozenset(alike[-1:] or usual[:1])
    return Roles(frozenset({0}) - channels, channels)


def _side_by_side(
    record: Recorded[T], tensor: T, operation: rec.Operation[T], found: Mapping[T, Roles]
) -> Roles:
    """The roles of axes after what is computed number by number, or concatenated."""
    sources = [source for source in operation.sources if source is not None]
    shifted: list[Roles] = []
    for source in sources:
        more = record.rank(tensor) - record.rank(source)
        shifted.append(Roles(*(frozenset(axis + more for axis in a) for a in found[source])))
    samples, channels, branches = zip(*shifted, strict=True)
    together = frozenset[int]().union(*branches)
    if isinstance(operation, rec.Concatenation) and len(set(sources)) > 1:
        together |= {operation.axis}
    # Where sources do not agree on their channels, these are not known.
    return Roles(samples[0], channels[0].intersection(*channels[1:]), together)

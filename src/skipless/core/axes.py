"""Which axes of recorded tensors run over channels, and what must not be done along these.

Locations may be pooled and padded: each of them is as good as another. Channels may not: their mean
has another q value than they have, and so have they beside others that are zero. Nor may branches
be pooled that lie side by side in one tensor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from .signals import Step, T, UnsupportedModelError


class Layout(ABC, Generic[T]):
    """What a framework knows of the axes of the tensors that it recorded."""

    @abstractmethod
    def rank(self, tensor: T) -> int:
        """How many axes `tensor` has."""

    @abstractmethod
    def input_axes(self, rank: int) -> Sequence[int]:
        """The axes that an input may have for channels, the most usual one first."""

    @abstractmethod
    def added_up(self, layer: T, source: T) -> Collection[int]:
        """The axes of its input `source` that a layer with weights adds up."""

    @abstractmethod
    def made(self, layer: T, source: T) -> Collection[int]:
        """The axes of channels of what a layer with weights makes of `source`."""

    @abstractmethod
    def joined(self, tensor: T) -> int:
        """The axis along which tensors were concatenated."""

    @abstractmethod
    def moved(self, tensor: T, source: T, axis: int) -> Collection[int]:
        """Where the numbers along `axis` of `source` are after the move that made `tensor`."""

    @abstractmethod
    def pooled(self, tensor: T, source: T) -> Collection[int]:
        """The axes of `source` along which the move that made `tensor` takes means or maxima.

        One of a single number is none: it is its own mean.
        """

    @abstractmethod
    def padded(self, tensor: T, source: T) -> Collection[int]:
        """The axes along which the move that made `tensor` puts constants beside `source`."""

    @abstractmethod
    def named(self, tensor: T) -> tuple[str, str]:
        """Where in the user's model `tensor` is computed, and the name of the operation."""


@dataclass(frozen=True)
class _Roles:
    """The axes of a tensor that run over channels, and those along which branches were joined."""

    channels: frozenset[int] = frozenset()
    branches: frozenset[int] = frozenset()


def demand_channels_apart(steps: Mapping[T, Step[T]], layout: Layout[T]) -> None:
    """Refuse a network that pools channels or branches, or pads channels."""
    roles = _followed(steps, layout, _input_channels(steps, layout))
    for tensor, step in steps.items():
        if step.kind == "move":
            (source,) = step.inputs
            apart = roles[source].channels | roles[source].branches
            if not apart.isdisjoint(layout.pooled(tensor, source)):
                raise pools_channels(*layout.named(tensor))
            if fills_up(roles[source].channels, layout.padded(tensor, source)):
                raise pads_channels(*layout.named(tensor))


def fills_up(channels: Collection[int], padded: Collection[int]) -> bool:
    """Whether padding adds channels.

    Of several axes that channels were laid along, as where an image is made of features, one is
    that of the channels of the next layer, and the others are of locations.
    """
    return len(channels) > 0 and set(channels) <= set(padded)


def pools_channels(where: str, name: str) -> UnsupportedModelError:
    """The refusal of a mean, a sum or a maximum over channels."""
    return UnsupportedModelError(
        f"{where} computes {name} over channels or branches, as maxout does, for which there are "
        "no Q and C maps. Take an activation of single numbers in its place, and add branches up "
        "by themselves (a + b), not as an array of them."
    )


def pads_channels(where: str, name: str) -> UnsupportedModelError:
    """The refusal of channels that are filled up by constants."""
    return UnsupportedModelError(
        f"{where} fills up channels by {name}, as shortcuts without weights do where a network "
        "widens. The new ones carry no signal, so that the q value falls, and there are no Q and C "
        "maps for that. Widen it by a layer with weights, such as a 1x1 convolution."
    )


def reshaped(before: Sequence[int], after: Sequence[int], axis: int) -> list[int]:
    """The new axes along which a number's index changes if it does along the old `axis`.

    >>> reshaped((2, 8, 4, 4), (2, 8, 16), axis=3), reshaped((2, 8, 16), (2, 4, 2, 16), axis=1)
    ([2], [1, 2])
    """
    near = math.prod(before[axis + 1 :])
    far = near * before[axis]
    strides = [(math.prod(after[b + 1 :]), after[b]) for b in range(len(after))]
    return [
        b for b, (stride, size) in enumerate(strides) if max(stride, near) < min(stride * size, far)
    ]


def moved(
    before: Sequence[int], after: Sequence[int], axis: int, dropped: Collection[int] = ()
) -> list[int]:
    """The same after a move that permutes nothing, and of whose axes some may be `dropped`.

    >>> moved((2, 8, 4, 4), (2, 8), 1, dropped=(2, 3)), moved((8, 4), (2, 8, 4), 0)
    ([1], [1])
    """
    if dropped:
        return [] if axis in dropped else [axis - sum(d < axis for d in dropped)]
    if math.prod(before) == math.prod(after):
        return reshaped(before, after, axis)
    if len(after) >= len(before):
        return [axis + len(after) - len(before)]
    return list(range(1, len(after)))  # of unknown sizes: they may be anywhere


def _input_channels(steps: Mapping[T, Step[T]], layout: Layout[T]) -> frozenset[int]:
    """The input's axis of channels: that which the first layer to read it adds up."""
    first = next((tensor for tensor, step in steps.items() if step.kind == "affine"), None)
    if first is None:
        return frozenset()
    (source,) = steps[first].inputs
    before: dict[T, Step[T]] = {}
    for tensor, step in steps.items():
        if tensor == first:
            break
        before[tensor] = step
    rank = layout.rank(next(iter(steps)))
    for axis in layout.input_axes(rank):
        channels = _followed(before, layout, frozenset({axis}))[source].channels
        if not channels.isdisjoint(layout.added_up(first, source)):
            return frozenset({axis})
    return frozenset()  # as of a series of numbers, of which a layer makes a tensor of one channel


def _followed(
    steps: Mapping[T, Step[T]], layout: Layout[T], of_input: frozenset[int]
) -> dict[T, _Roles]:
    found: dict[T, _Roles] = {}
    for tensor, step in steps.items():
        match step.kind:
            case "input":
                found[tensor] = _Roles(of_input)
            case "affine":
                found[tensor] = _Roles(frozenset(layout.made(tensor, step.inputs[0])))
            case "move":
                (source,) = step.inputs
                roles = found[source]
                found[tensor] = _Roles(
                    _carried(roles.channels, tensor, source, layout),
                    _carried(roles.branches, tensor, source, layout),
                )
            case _:
                found[tensor] = _side_by_side(tensor, step, layout, found)
    return found


def _carried(axes: frozenset[int], tensor: T, source: T, layout: Layout[T]) -> frozenset[int]:
    return frozenset(p for axis in axes for p in layout.moved(tensor, source, axis))


def _side_by_side(tensor: T, step: Step[T], layout: Layout[T], found: Mapping[T, _Roles]) -> _Roles:
    """The axes of what is computed number by number, or concatenated, from several tensors.

    Where these do not agree on their channels, it is not known which axes are.
    """
    rank = layout.rank(tensor)
    channels, branches = list[frozenset[int]](), set[int]()
    for source in step.inputs:
        more = rank - layout.rank(source)  # axes are added in front
        channels.append(frozenset(axis + more for axis in found[source].channels))
        branches |= {axis + more for axis in found[source].branches}
    if step.kind == "concat" and len(set(step.inputs)) > 1:
        branches.add(layout.joined(tensor))
    return _Roles(channels[0].intersection(*channels[1:]), frozenset(branches))

"""What a framework says of a network that it recorded, for `trace.read` to turn into a graph.

An adapter is a `Recorded`: it lists the tensors that depend on the network's input, in order of
evaluation, each with an `Operation` that says how it is made. All decisions are made in `trace`: an
adapter states facts about single operations, and never asks what the tensors are to the theory.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .activations import Array
from .recognise import CLOSE

T = TypeVar("T", bound=Hashable)  # a framework's own name for a tensor

ONE_INPUT = (
    "Several inputs are not supported yet: wrap the model in one that splits a single input, as in "
    "self.model(*x.split(sizes, 1)), or convert its parts one by one"
)
SEVERAL = "Pass several inputs as one tuple, (x, y), or by name, {'x': x, 'y': y}"  # in PyTorch


class UnsupportedModelError(ValueError):
    """The model computes something that has no Q and C maps."""


class NotDerivedError(UnsupportedModelError):
    """What makes these tensors has no Q and C maps, so that it can only be measured."""

    def __init__(self, message: str, tensors: Sequence[Hashable]) -> None:
        super().__init__(message)
        self.tensors: tuple[Any, ...] = tuple(tensors)


def explain_failure(error: BaseException, advice: str, several: str = ONE_INPUT) -> str:
    """Why a framework could not record a model, and what to do."""
    reason = (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
    if isinstance(error, LookupError | SystemExit):  # whose texts are only a key, or a number
        reason = repr(error)
    wants_more = "missing" in reason and "required" in reason  # arguments of the model
    return f"{reason}. {several if wants_more else advice}."


@dataclass(frozen=True)
class AxisMap:
    """What a move does to the axes of its source.

    `to` has, for each axis of the source, the axes of the result along which its index changes.
    Means or maxima are taken along the axes in `pooled`, and constants are added along those in
    `padded`; both are axes of the source. An axis of size one is never pooled.
    """

    to: tuple[tuple[int, ...], ...]
    pooled: frozenset[int] = frozenset()
    padded: frozenset[int] = frozenset()

    @staticmethod
    def between(
        before: Sequence[int],
        after: Sequence[int],
        *,
        dropped: Collection[int] = (),
        pooled: Iterable[int] = (),
        padded: Iterable[int] = (),
    ) -> AxisMap:
        """The map of a move from shape `before` to shape `after` that permutes nothing.

        It reshapes, removes the axes in `dropped`, adds axes in front, or changes sizes.

        >>> AxisMap.between((2, 8, 4, 4), (2, 8), dropped=(2, 3)).to
        ((0,), (1,), (), ())
        >>> AxisMap.between((8, 4), (2, 8, 4)).to
        ((1,), (2,))
        """
        rank, more = range(len(before)), len(after) - len(before)
        to: list[Sequence[int]]
        if tuple(before) == tuple(after):
            to = [[axis] for axis in rank]
        elif dropped:
            to = [[] if i in dropped else [i - sum(d < i for d in dropped)] for i in rank]
        elif math.prod(before) == math.prod(after):
            to = [axes_after_reshape(before, after, axis) for axis in rank]
        elif more >= 0:
            to = [[axis + more] for axis in rank]
        else:
            to = [range(1, len(after)) for _ in rank]  # of unknown sizes: they may be anywhere
        return AxisMap(tuple(map(tuple, to)), frozenset(pooled), frozenset(padded))

    @staticmethod
    def identity(rank: int) -> AxisMap:
        """Every axis stays where it is."""
        return AxisMap(tuple((axis,) for axis in range(rank)))

    def carry(self, axes: Iterable[int]) -> frozenset[int]:
        """The axes of the result along which the numbers along `axes` of the source lie."""
        return frozenset(after for axis in axes for after in self.to[axis])


@dataclass(frozen=True)
class Layer(Generic[T]):
    """A product with weights, such as a dense or convolutional layer, with its bias if it has one.

    It sums over the axes `summed` of its source and makes the axes `made` of its result. Layers of
    equal `weights` share them. Where the axis of samples may move, `axes` says where the others go.
    """

    sources: tuple[T, ...]
    weights: Hashable
    summed: Collection[int]
    made: Collection[int]
    channels: int | None = None  # that each output reads, if there are groups
    depthwise: bool = False  # each output reads one channel, its own
    axes: AxisMap | None = None


@dataclass(frozen=True)
class _OfOne(Generic[T]):
    sources: tuple[T]


class Bias(_OfOne[T]):
    """The result of a layer plus a bias, where that is an operation of its own."""


class Norm(_OfOne[T]):
    """A normalisation layer, which the graph leaves out."""


class ShapedCall(_OfOne[T]):
    """A shaped activation of ours: one activation, whatever is computed before and after it."""


@dataclass(frozen=True)
class Move(Generic[T]):
    """Numbers change places, or are averaged over places; `name` is for errors.

    `approximate` names what keeps q and c only roughly, such as a maximum. A sum over n places is
    a mean with `factor` n: the factor waits for a division that cancels it. Of a tensor that is cut
    along an axis, `part` has the axis, and where the part starts and stops.
    """

    sources: tuple[T]
    name: str
    axes: AxisMap
    approximate: str = ""
    factor: float = 1.0
    part: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Concatenation(Generic[T]):
    """Tensors side by side along `axis`, with their `widths`; None stands for a constant."""

    sources: tuple[T | None, ...]
    widths: Sequence[float]
    axis: int


@dataclass(frozen=True)
class WeightedSum(Generic[T]):
    """A weighted sum of tensors, also where all of them are functions of one."""

    sources: tuple[T, ...]
    weights: Sequence[float]


@dataclass(frozen=True)
class Pointwise(Generic[T]):
    """A function of numbers at the same place; a tensor that is read twice is listed twice.

    If the sources are functions of one tensor, so is the result, and `Recorded.values` evaluates
    it. Otherwise it must be a `product`, or a sum: `weights` are those of its terms.
    It is `affine` if it only adds or multiplies constants, as standardising an input does.
    """

    sources: tuple[T, ...]
    name: str
    weights: Sequence[float] | None = None
    affine: bool = False
    product: bool = False


@dataclass(frozen=True)
class Preparation(Generic[T]):
    """Prepares the input, by per-location normalisation or augmentation; the graph begins after it.

    Inside the network it is refused, by the message `elsewhere` if it is not a normalisation.
    """

    sources: tuple[T, ...]
    elsewhere: str = ""


@dataclass(frozen=True)
class Unsupported(Generic[T]):
    """An operation without Q and C maps; `message` says which, and what to do.

    With `sources` it can be measured and, if it is not `inner`, computed after the network, from
    its results.
    """

    message: str
    sources: tuple[T, ...] = ()
    inner: bool = False


@dataclass(frozen=True)
class Part(Generic[T]):
    """The operations `inside`, the last of which makes the result, measured for this `reason`."""

    sources: tuple[T]
    inside: tuple[T, ...]
    reason: str


Operation = (
    Layer[T]
    | Bias[T]
    | Norm[T]
    | Move[T]
    | Concatenation[T]
    | WeightedSum[T]
    | Pointwise[T]
    | ShapedCall[T]
    | Preparation[T]
    | Unsupported[T]
    | Part[T]
)


def combines_branches(where: str, name: str) -> str:
    """The message for a function of several branches that is not a sum, such as a product."""
    return (
        f"{where} combines two branches by {name}; only weighted sums, concatenations and products "
        "with weights of their own have C maps. Leave that part out of the traced model."
    )


def initial_factor(number: float) -> float:
    """What a factor that is trained counts as: one if it starts near zero to silence its branch.

    In ReZero such factors start at zero, in LayerScale at 1e-6 to 1e-2.

    >>> [initial_factor(number) for number in (0.0, 1e-6, 0.5)]
    [1.0, 1.0, 0.5]
    """
    return 1.0 if abs(number) <= 0.01 else number


class Recorded(ABC, Generic[T]):
    """A network as a framework recorded it.

    Constants, and the running means of a normalisation, are never sources and have no operation.
    """

    input: T
    more: Sequence[T] = ()  # further inputs, signals of their own
    operations: dict[T, Operation[T]]  # what makes each other tensor, in order of evaluation

    @property
    @abstractmethod
    def outputs(self) -> Sequence[T]:
        """What the network returns, of the tensors that depend on its input."""

    @abstractmethod
    def origin(self, tensor: T) -> str:
        """Where in the user's model `tensor` is computed."""

    @abstractmethod
    def shape(self, tensor: T) -> Sequence[int | None]:
        """The sizes of the axes of `tensor`; None for one that is left open."""

    @abstractmethod
    def channel_candidates(self, rank: int) -> Sequence[int]:
        """The axes that an input of this rank may have its channels on, most usual first."""

    @abstractmethod
    def values(self, tensor: T, sources: Mapping[T, Array]) -> Array | None:
        """What the `Pointwise` operation of `tensor` makes of its sources' values, in float64.

        None if it is not the same function at all places, as where it adds unequal constants. Of a
        parameter that multiplies, `initial_factor` counts: conversion removes it.
        """

    def rank(self, tensor: T) -> int:
        """How many axes `tensor` has."""
        return len(self.shape(tensor))

    def tolerances(self, tensor: T) -> Sequence[float]:
        """How close the values of `tensor` must be to those of an activation, tried in order."""
        return (CLOSE,)


def axes_after_reshape(before: Sequence[int], after: Sequence[int], axis: int) -> list[int]:
    """The new axes along which a number's index changes if it does along the old `axis`.

    >>> axes_after_reshape((2, 8, 4, 4), (2, 8, 16), axis=3)
    [2]
    >>> axes_after_reshape((2, 8, 16), (2, 4, 2, 16), axis=1)
    [1, 2]
    """
    near = math.prod(before[axis + 1 :])
    far = near * before[axis]
    strides = [(math.prod(after[b + 1 :]), after[b]) for b in range(len(after))]
    return [
        b for b, (stride, size) in enumerate(strides) if max(stride, near) < min(stride * size, far)
    ]

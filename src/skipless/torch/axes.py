"""Which axes of an exported program's tensors run over channels."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from skipless.core import axes as core

from .operations import operation, origin

_PRODUCTS = {"linear": 0, "matmul": 0, "mm": 0, "addmm": 1}  # and the place of the left factor
PERMUTATIONS = {"permute", "transpose", "t", "movedim", "swapaxes", "numpy_T"}
_POOL = re.compile(r"(adaptive_)?(?:avg|max)_pool([123])d")


class Layout(core.Layout[fx.Node]):
    """Reads axes off the arguments of recorded operations.

    `inputs` says which tensor each argument was at the time.
    """

    def __init__(self, inputs: Mapping[fx.Node, Mapping[fx.Node, fx.Node]]) -> None:
        self._inputs = inputs

    def rank(self, tensor: fx.Node) -> int:
        return len(sizes(tensor))

    def input_axes(self, rank: int) -> Sequence[int]:
        return range(1, rank)

    def added_up(self, layer: fx.Node, source: fx.Node) -> Collection[int]:
        return (self._channel_axis(layer, source, self.rank(source)),)

    def made(self, layer: fx.Node, source: fx.Node) -> Collection[int]:
        return (self._channel_axis(layer, source, self.rank(layer)),)

    def joined(self, tensor: fx.Node) -> int:
        return _argument(tensor, 1, "dim", 0) % self.rank(tensor)

    def moved(self, tensor: fx.Node, source: fx.Node, axis: int) -> Collection[int]:
        before, after, name = sizes(source), sizes(tensor), operation(tensor)
        if name in PERMUTATIONS:
            return (permuted(tensor, len(before), axis),)
        if name == "pixel_shuffle":  # channels become locations, along both axes
            return range(len(after) - 3, len(after))
        shrinks = len(after) < len(before)
        if name == "mean":
            return core.moved(before, after, axis, _means(tensor, before) if shrinks else ())
        if name == "select":
            return core.moved(before, after, axis, (_argument(tensor, 1, "dim", 0) % len(before),))
        return core.moved(before, after, axis)

    def pooled(self, tensor: fx.Node, source: fx.Node) -> Collection[int]:
        before, name = sizes(source), operation(tensor)
        if name == "mean":
            return [axis for axis in _means(tensor, before) if before[axis] != 1]
        if (pool := _POOL.fullmatch(name)) is None:
            return ()
        locations = range(len(before) - int(pool[2]), len(before))
        if pool[1]:
            return [axis for axis in locations if sizes(tensor)[axis] != before[axis]]
        windows = [_number(size) for size in _argument(tensor, 1, "kernel_size", [1])]
        every = windows * len(locations) if len(windows) == 1 else windows
        return [axis for axis, size in zip(locations, every, strict=True) if size != 1]

    def padded(self, tensor: fx.Node, source: fx.Node) -> Collection[int]:
        if operation(tensor) not in ("pad", "constant_pad_nd"):
            return ()
        if operation(tensor) == "pad" and _argument(tensor, 2, "mode", "constant") != "constant":
            return ()
        amounts, last = _argument(tensor, 1, "pad", []), self.rank(source) - 1  # from the last axis
        return [last - place // 2 for place, amount in enumerate(amounts) if _number(amount) > 0]

    def named(self, tensor: fx.Node) -> tuple[str, str]:
        return origin(tensor), operation(tensor)

    def _channel_axis(self, layer: fx.Node, source: fx.Node, rank: int) -> int:
        """Where a layer has its channels in a tensor, its input or its output, of that `rank`."""
        name = operation(layer)
        if name not in _PRODUCTS:  # convolutions, whose weights have two axes of channels
            kernel = layer.args[1]
            assert isinstance(kernel, fx.Node)
            return rank - (len(sizes(kernel)) - 2) - 1
        left = layer.args[_PRODUCTS[name]]
        assert isinstance(left, fx.Node)
        from_the_left = self._inputs[layer][left] is not source  # weights @ x
        return max(rank - 2, 0) if from_the_left else rank - 1


def sizes(tensor: fx.Node) -> tuple[int, ...]:
    """The shape of a recorded tensor, or of the first one of several."""
    value = tensor.meta["val"]
    shape = (value[0] if isinstance(value, list | tuple) else value).shape
    return tuple(map(_number, shape))


def _number(value: Any) -> int:
    """A size, which may be computed or left open, as it was in the example."""
    known = value.meta["val"] if isinstance(value, fx.Node) else value
    return known if isinstance(known, int) else known.node.hint


def permuted(tensor: fx.Node, rank: int, axis: int) -> int:
    """Where the permutation that made `tensor` puts an axis of its input."""
    distinct = torch.empty(*range(2, 2 + rank), device="meta")
    assert callable(tensor.target)
    return tensor.target(distinct, *tensor.args[1:], **tensor.kwargs).shape.index(axis + 2)


def _means(tensor: fx.Node, before: Sequence[int]) -> list[int]:
    axes = _argument(tensor, 1, "dim", None)
    named = range(len(before)) if axes is None or axes == [] else axes
    return [axis % len(before) for axis in named]


def _argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)

"""Which axes of a Keras model's tensors run over channels."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers

from skipless.core import axes as core

from .operations import op_name
from .record import Tensor

_PERMUTATIONS = {"Transpose", "Permute", "Swapaxes", "Moveaxis"}
_MEANS = {"Mean", "Average"}
_MANY = 2**6 * 3**3 * 5 * 7  # locations, which most numbers divide


class Layout(core.Layout[Tensor]):
    """Reads axes off the configuration of layers and operations."""

    def rank(self, tensor: Tensor) -> int:
        return len(tensor.shape)

    def input_axes(self, rank: int) -> Sequence[int]:
        return range(rank - 1, 0, -1)

    def added_up(self, layer: Tensor, source: Tensor) -> Collection[int]:
        if (letters := _einsum(layer, source)) is not None:
            return [axis for axis, letter in enumerate(letters[0]) if letter not in letters[1]]
        return (_channel_axis(layer, len(source.shape)),)

    def made(self, layer: Tensor, source: Tensor) -> Collection[int]:
        if (letters := _einsum(layer, source)) is not None:
            return [axis for axis, letter in enumerate(letters[1]) if letter not in letters[0]]
        return (_channel_axis(layer, len(layer.shape)),)

    def joined(self, tensor: Tensor) -> int:
        operation: Any = tensor.call.operation
        return operation.axis % len(tensor.shape)

    def moved(self, tensor: Tensor, source: Tensor, axis: int) -> Collection[int]:
        operation: Any = tensor.call.operation
        name, rank = type(operation).__name__, len(source.shape)
        before, after = _sizes(source.shape, tensor.shape)
        if name in _PERMUTATIONS:
            distinct = keras.KerasTensor(tuple(range(2, 2 + rank)))
            return (tuple(operation.compute_output_spec(distinct).shape).index(axis + 2),)
        if name == "GetItem":
            return _kept([size or 1 for size in source.shape], tensor.call.args[1], axis)
        if name in ("Take", "Unstack") and len(after) < rank:
            return core.moved(before, after, axis, (operation.axis % rank,))
        if len(after) < rank and (dropped := self.pooled(tensor, source)):
            return core.moved(before, after, axis, dropped)
        return core.moved(before, after, axis)

    def pooled(self, tensor: Tensor, source: Tensor) -> Collection[int]:
        operation: Any = tensor.call.operation
        name, rank = type(operation).__name__, len(source.shape)
        if op_name(operation) in _MEANS:
            every = range(rank) if operation.axis is None else np.atleast_1d(operation.axis)
            return [axis for axis in (int(a) % rank for a in every) if source.shape[axis] != 1]
        if "Pool" not in name:
            return ()
        locations = _locations(operation, rank)
        windows = np.broadcast_to(getattr(operation, "pool_size", 0), len(locations))
        return [axis for axis, size in zip(locations, windows, strict=True) if size != 1]

    def padded(self, tensor: Tensor, source: Tensor) -> Collection[int]:
        operation: Any = tensor.call.operation
        name, rank = type(operation).__name__, len(source.shape)
        if op_name(operation) == "Pad" and operation.mode == "constant":
            amounts = np.broadcast_to(operation.pad_width, (rank, 2))
            return [axis for axis, amount in enumerate(amounts) if amount.any()]
        return _locations(operation, rank) if name.startswith(("ZeroPadding", "PadImages")) else ()

    def named(self, tensor: Tensor) -> tuple[str, str]:
        return tensor.call.path, type(tensor.call.operation).__name__


def _channel_axis(tensor: Tensor, rank: int) -> int:
    """Where a layer has its channels in a tensor, its input or its output, of that `rank`."""
    first = getattr(tensor.call.operation, "data_format", None) == "channels_first"
    return 1 if first else rank - 1


def _locations(operation: object, rank: int) -> list[int]:
    """The axes that are neither of samples nor of channels."""
    first = getattr(operation, "data_format", None) == "channels_first"
    return list(range(2, rank) if first else range(1, rank - 1))


def _einsum(layer: Tensor, source: Tensor) -> tuple[str, str] | None:
    """The letters of the axes of `source` and of the result, if the layer has such."""
    operation: Any = layer.call.operation
    if isinstance(operation, layers.EinsumDense):
        equation, place = operation.equation, 0
    elif op_name(operation) == "Einsum":
        flat = keras.tree.flatten(layer.call.args)
        equation, place = operation.subscripts, flat.index(source)
    else:
        return None
    given, _, result = equation.replace(" ", "").partition("->")
    letters = given.split(",")[place]
    if "..." in equation:  # as many axes of no name as the tensors have in front
        more = "".join(map(chr, range(256, 256 + len(source.shape) - len(letters) + 3)))
        letters, result = letters.replace("...", more), result.replace("...", more)
    return letters, result


def _kept(before: Sequence[int], key: Any, axis: int) -> list[int]:
    """Where an axis is after `x[key]`: that along which numbers that tell its index differ."""
    index = np.arange(before[axis]).reshape([-1 if a == axis else 1 for a in range(len(before))])
    kept = np.broadcast_to(index, before)[key]
    return [a for a in range(kept.ndim) if (kept != kept.take([0], axis=a)).any()]


def _sizes(
    before: Sequence[int | None], after: Sequence[int | None]
) -> tuple[list[int], list[int]]:
    """Sizes before and after a move. Those that are left open are many, of one sample.

    If one is left open after it, it is such that there are as many numbers as before.
    """
    one, many = [1, *(size or _MANY for size in before[1:])], [size or 0 for size in after[1:]]
    if many.count(0) == 1:
        many[many.index(0)] = max(1, math.prod(one) // math.prod(filter(None, many)))
    return one, [1, *(size or _MANY for size in many)]

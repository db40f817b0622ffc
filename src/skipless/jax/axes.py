"""Which axes of recorded tensors run over samples, and which over channels."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skipless.core.axes import fills_up, pads_channels, pools_channels, reshaped

from .operations import AFFINE, APPROXIMATE_MOVES, CONCATENATIONS, SUMS, signals
from .record import Operation, Record, Tensor

if TYPE_CHECKING:
    from .trace import Reading

_DROPS_AXES = {"reduce_sum", "reduce_max", "reduce_min", "argmax", "squeeze"}


@dataclass(frozen=True)
class Axes:
    """The axis of samples, in which locations may have been made samples, and those of channels."""

    batch: int
    channels: tuple[int, ...]
    single: bool = False  # there was one channel, whose axis is gone, and locations stand for it


def first_layer(record: Record) -> tuple[Operation, Tensor] | None:
    """The first layer that reads what depends on the input, and what it reads."""
    for op in record.operations:
        if op.name in AFFINE and len(signals(op)) == 1:
            return op, signals(op)[0]
    return None


def input_axes(reading: Reading) -> Axes:
    """Those of the input: channels are what the first layer to read it adds up."""
    record = reading.record
    rank = len(record.input.shape)
    layer = first_layer(record)
    for channel in range(rank - 1, 0, -1) if layer is not None else ():
        assert layer is not None
        first, source = layer
        found = _followed(record.input, Axes(0, (channel,)), record.operations[: first.index + 1])
        if source in found and set(found[source].channels) & set(added_up(first, source)):
            return Axes(0, (channel,))
    return Axes(0, (max(rank - 1, 1),))


def all_axes(reading: Reading, of_input: Axes, start: Tensor) -> Mapping[Tensor, Axes]:
    """Those of all tensors that depend on the input, from the graph's beginning `start` on."""
    found = _followed(reading.record.input, of_input, reading.record.operations, reading)
    return {**found, start: found.get(start, of_input)}


def demand_channels_apart(reading: Reading) -> None:
    """Refuse a network that pools channels, or what was concatenated, or pads channels."""
    pools = SUMS | APPROXIMATE_MOVES
    found = [
        op
        for op in reading.record.operations
        if op.name in pools | {"pad"} and op.outputs[0] in reading.steps
    ]
    if not found:
        return
    axes = all_axes(reading, input_axes(reading), reading.record.input)
    joined = _joined(reading.record.operations)
    for op in found:
        known = axes.get(op.inputs[0])
        channels = set(known.channels) if known is not None and not known.single else set[int]()
        if op.name in pools and _pooled(op) & (channels | joined[op.inputs[0]]):
            raise pools_channels(str(op.location), op.name)
        if op.name == "pad" and fills_up(channels, _padded(op)):
            raise pads_channels(str(op.location), op.name)


def _pooled(op: Operation) -> set[int]:
    """Where `op` combines several numbers."""
    windows = op.parameters.get("window_dimensions", ())
    axes = op.parameters.get("axes") or [a for a, size in enumerate(windows) if size > 1]
    return {a for a in axes if op.inputs[0].shape[a] > 1}


def _padded(op: Operation) -> set[int]:
    """Where `op` adds constants: before, behind or between; a negative number takes some away."""
    return {a for a, more in enumerate(op.parameters["padding_config"]) if max(more) > 0}


def _joined(operations: Sequence[Operation]) -> dict[Tensor, set[int]]:
    """The axes along which tensors that depend on the input were concatenated."""
    found: dict[Tensor, set[int]] = defaultdict(set)
    for op in operations:
        for source, tensor in itertools.product(signals(op), op.outputs):
            if op.name not in AFFINE:
                for axis in found[source]:
                    found[tensor].update(positions(op, source.shape, tensor.shape, axis))
        if op.name in CONCATENATIONS and len(set(signals(op))) > 1:
            found[op.outputs[0]].add(op.parameters["dimension"])
    return found


def _followed(
    start: Tensor, axes: Axes, operations: Sequence[Operation], reading: Reading | None = None
) -> dict[Tensor, Axes]:
    found = {start: axes}
    for op in operations:
        known = [t for t in signals(op) if t in found]
        for tensor in op.outputs:
            step = reading.steps.get(tensor) if reading is not None else None
            if step is not None and step.kind == "norm":
                found[tensor] = found[step.inputs[0]]
            elif known:
                widest = max(known, key=lambda t: len(t.shape))
                found[tensor] = _after(op, widest, tensor, found[widest])
    return found


def _after(op: Operation, source: Tensor, tensor: Tensor, axes: Axes) -> Axes:
    """The axes of what `op` makes of a tensor with these `axes`."""
    if op.name == "conv_general_dilated":
        batch, channels, *_ = op.parameters["dimension_numbers"].out_spec
        return Axes(batch, (channels,))
    if op.name == "dot_general":
        return _after_product(op, source, axes)
    batch = next(iter(positions(op, source.shape, tensor.shape, axes.batch)), 0)
    channels = {
        position
        for axis in axes.channels
        for position in positions(op, source.shape, tensor.shape, axis)
        if position != batch
    }
    rest = [axis for axis in range(len(tensor.shape)) if axis != batch]
    single = axes.single or (not channels and all(source.shape[a] == 1 for a in axes.channels))
    return Axes(batch, tuple(sorted(channels)) or tuple(rest[-1:]), single)


def positions(
    op: Operation, before: Sequence[int], after: Sequence[int], axis: int
) -> Sequence[int]:
    """Where the numbers along `axis` are after a move."""
    match op.name:
        case "transpose":
            return (list(op.parameters["permutation"]).index(axis),)
        case "broadcast_in_dim":
            return (op.parameters["broadcast_dimensions"][axis],)
        case "reshape":
            return reshaped(before, after, axis)
        case name if name in _DROPS_AXES:
            dropped = op.parameters["dimensions" if name == "squeeze" else "axes"]
            return () if axis in dropped else (axis - sum(d < axis for d in dropped),)
        case _:
            return (axis,) if axis < len(after) else ()


def _after_product(op: Operation, source: Tensor, axes: Axes) -> Axes:
    """Behind a product with weights, channels are what only the weights have."""
    contracted, batched = op.parameters["dimension_numbers"]
    own = op.inputs.index(source)
    free = [
        [a for a in range(len(t.shape)) if a not in contracted[k] and a not in batched[k]]
        for k, t in enumerate(op.inputs)
    ]
    starts = (len(batched[0]), len(batched[0]) + len(free[0]))
    weights = [starts[1 - own] + i for i in range(len(free[1 - own]))]
    channels = [*range(len(batched[0])), *weights]
    batch = starts[own] + free[own].index(axes.batch) if axes.batch in free[own] else 0
    return Axes(batch, tuple(c for c in channels if c != batch) or (starts[1],))


def added_up(op: Operation, source: Tensor) -> Sequence[int]:
    """The axes of its input `source` that a layer adds up."""
    numbers = op.parameters["dimension_numbers"]
    if op.name == "conv_general_dilated":
        return (numbers.lhs_spec[1],)
    return numbers[0][op.inputs.index(source)]

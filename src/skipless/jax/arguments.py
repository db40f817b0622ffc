"""Which argument of a function is the network's input.

Parameters come before it, usually in a tree, and so do keys and states. More cannot be told from
what a function is given, so its record has to agree: layers read the input, and keep its samples,
and what else it is given is read as parameters are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from skipless.core.graph import Affine
from skipless.core.signals import UnsupportedModelError

from .axes import added_up, all_axes, first_layer, input_axes, positions
from .elementwise import POINTWISE
from .operations import AFFINE, LAYOUTS, MOVES, multiplies, signals, weight_of
from .record import Operation, Record, Tensor

if TYPE_CHECKING:
    from .trace import Reading

_WRAP = (
    "Give parameters before the input, in a tree such as a list, and wrap a function that takes "
    "more: trace(lambda x: fn(parameters, x, mask), x)."
)
_TAKEN = LAYOUTS | MOVES | {"scan_slice"}  # what takes weights out of an array of them


def is_array(leaf: object) -> bool:
    """Whether `leaf` is an array, or stands for one."""
    return isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def input_place(arguments: Sequence[object]) -> int:
    """Which of the arguments of a function is the network's input: the last that is an array.

    Random keys and single numbers may follow it.
    """
    for place in range(len(arguments) - 1, -1, -1):
        if not any(map(_is_input, jax.tree.leaves(arguments[place]))):
            continue
        if is_array(arguments[place]):
            return place
        break  # the last arrays are in a tree, such as a dictionary of inputs
    raise UnsupportedModelError(
        "A function is traced with an example of its input as the last argument, an array or a "
        f"jax.ShapeDtypeStruct; found {[type(a).__name__ for a in arguments]}."
    )


def demand_one_input(record: Record, arguments: Sequence[Any]) -> None:
    """Refuse arrays of as many samples as the last one, which may be a mask, and they the input."""
    given = {t.name: t for op in record.operations for t in op.inputs if t.operation is None}
    place = input_place(arguments)
    for other, argument in enumerate(arguments[:place]):
        tensor = given.get(f"[{other}]")
        if tensor is None or not _may_be_input(argument, arguments[place]):
            continue
        if _has_samples(record, tensor):
            shapes = (tensor.shape, record.input.shape)
            size = f", both of batch size {shapes[0][0]}" if len(shapes[1]) > 1 else ""
            raise UnsupportedModelError(
                "A function is traced with its input as the last array, but which one that is, is "
                f"not certain: arguments {other} and {place} are arrays of shapes {shapes[0]} and "
                f"{shapes[1]}{size}. {_WRAP}"
            )


def demand_read_as_input(reading: Reading, arguments: Sequence[object]) -> None:
    """Refuse a function that does to its last array what is done to parameters."""
    record, found = reading.record, None
    if not any(isinstance(node, Affine) for node in reading.graph.nodes):
        layer = next((op for op in record.operations if op.name in AFFINE), None)
        found = layer and f"the layer at {layer.location} reads another array"
    elif sum(map(_is_direct, arguments)) > 1 and len(record.input.shape) > 1:
        layer = first_layer(record)
        assert layer is not None
        first, source = layer
        samples = all_axes(reading, input_axes(reading), record.input)[source].batch
        if samples in added_up(first, source) and _is_computed(weight_of(first)):
            found = f"{first.location} adds up its first axis, as if they were weights"
    if found:
        raise UnsupportedModelError(
            f"The last array that the function is given, of shape {record.input.shape}, was taken "
            f"for the network's input, but {found}. {_WRAP}"
        )


def _is_computed(tensor: Tensor) -> bool:
    """Whether what a layer multiplies by is the result of others, and no array that was given."""
    while (op := tensor.operation) is not None and op.name in _TAKEN:
        tensor = op.inputs[0]
    return op is not None


def _may_be_input(other: Any, array: Any) -> bool:
    """Whether the shape of `other` is one of an input too; a mask may be one of whole numbers."""
    if not _is_direct(other) or other.shape[0] != array.shape[0]:
        return False
    return jnp.issubdtype(other.dtype, np.floating) or not jnp.issubdtype(array.dtype, np.floating)


def _has_samples(record: Record, given: Tensor) -> bool:
    """Whether the array `given`, of as many samples as the input, is not read as parameters are.

    Parameters are weights of layers, or lie along the channels of what depends on the input.
    """
    samples = _sample_axes(record)
    waiting: list[_Followed] = [_Followed(given, 0, by_layers=False)]
    seen = set(waiting)
    while waiting:
        followed = waiting.pop()
        for op in record.users.get(followed.tensor, ()):
            if signals(op):
                if _meets_as_samples(op, followed, samples, given.shape):
                    return True
                continue
            layers = followed.by_layers or multiplies(op)
            for result in op.outputs:
                for axis in _places(op, followed.tensor, result, followed.axis) or (None,):
                    after = _Followed(result, axis, layers)
                    if after not in seen:
                        seen.add(after)
                        waiting.append(after)
    return False


@dataclass(frozen=True)
class _Followed:
    """What is computed of an array, and the axis along which that array's samples would lie."""

    tensor: Tensor
    axis: int | None
    by_layers: bool  # whether products with others led to it


def _meets_as_samples(
    op: Operation,
    followed: _Followed,
    samples: Mapping[Tensor, int | None],
    shape: tuple[int, ...],
) -> bool:
    """Whether `op` combines samples of the input with what would be those of an array of `shape`.

    In a batch of one, biases look like samples, but are not computed by layers.
    """
    tensor = signals(op)[0]
    own = samples[tensor]
    if op.name in AFFINE:  # it is a weight, unless the input was taken for the weights of a layer
        contracts = len(signals(op)) == 1 and own in added_up(op, tensor)
        return followed.by_layers and contracts and len(tensor.shape) > 1
    if op.name in _TAKEN and followed.tensor is op.inputs[0]:
        return False
    if op.name not in POINTWISE:
        return followed.axis is not None and own in (None, followed.axis)
    if own is None:  # a single sample, or samples at another axis than the first
        return followed.by_layers and len(shape) == len(tensor.shape) == 1
    return followed.axis == own and (followed.by_layers or shape[0] > 1)


def _sample_axes(record: Record) -> dict[Tensor, int | None]:
    """Along which axis of tensors that depend on the input samples lie; None if layers add it up.

    Then the input was a single sample, or its samples lie side by side.
    """
    found: dict[Tensor, int | None] = {record.input: 0}
    for op in record.operations:
        if known := signals(op):
            source = max(known, key=lambda t: len(t.shape))
            for result in op.outputs:
                found[result] = next(iter(_places(op, source, result, found[source])), None)
    return found


def _places(op: Operation, source: Tensor, result: Tensor, axis: int | None) -> Sequence[int]:
    """At which axes of a result the numbers along an axis of an input are, if they are."""
    if axis is None:
        return ()
    match op.name:
        case "dot_general":
            contracted, batched = op.parameters["dimension_numbers"]
            own = op.inputs.index(source)
            if axis in contracted[own]:
                return ()
            if axis in batched[own]:
                return (list(batched[own]).index(axis),)
            free = [
                [a for a in range(len(t.shape)) if a not in (*contracted[k], *batched[k])]
                for k, t in enumerate(op.inputs)
            ]
            return (len(batched[0]) + own * len(free[0]) + free[own].index(axis),)
        case "conv_general_dilated":
            numbers, own = op.parameters["dimension_numbers"], op.inputs.index(source)
            kept = (numbers.lhs_spec, numbers.rhs_spec)[own][0]
            return (numbers.out_spec[own],) if axis == kept else ()
        case "scan_slice":
            return (axis - 1,) if axis else ()
        case "reshape" if axis == 0 and source.shape[0] == 1:
            return (0,) if result.shape else ()
        case name:
            found = positions(op, source.shape, result.shape, axis)
            size = source.shape[axis]
            return [a for a in found if name in _TAKEN or result.shape[a] == size]


def _is_direct(argument: object) -> bool:
    return is_array(argument) and _is_input(argument)


def _is_input(leaf: Any) -> bool:
    return is_array(leaf) and leaf.ndim > 0 and not _is_key(leaf)


def _is_key(array: Any) -> bool:
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return True
    return array.dtype == np.uint32 and array.shape[-1:] == (2,)  # as keys were before

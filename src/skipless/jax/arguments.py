"""Which argument of a function is the network's input.

Parameters come before it, usually in a tree, and so do keys and states. More cannot be told from
what a function is given, so its record has to agree: layers read the input, and keep its samples,
and what else it is given is read as parameters are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from skipless.core.graph import Affine
from skipless.core.signals import UnsupportedModelError

from .axes import added_up, all_axes, first_layer, input_axes, positions
from .operations import AFFINE, LAYOUTS, MOVES, signals, weight_of
from .record import Record, Tensor

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
        if _has_samples(record, tensor, 0):
            shapes = (tensor.shape, record.input.shape)
            raise UnsupportedModelError(
                "A function is traced with its input as the last array, but which one that is, is "
                f"not certain: arguments {other} and {place} are arrays of shapes {shapes[0]} and "
                f"{shapes[1]}, both of batch size {shapes[0][0]}. {_WRAP}"
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


def _has_samples(record: Record, tensor: Tensor, axis: int) -> bool:
    """Whether `tensor`, whose numbers may be samples along `axis`, is not read as parameters are.

    Weights are multiplied with what depends on the input, and biases lie along its channels.
    """
    for op in record.users.get(tensor, ()):
        if op.name in _TAKEN and tensor is op.inputs[0]:
            for result in op.outputs:
                for position in positions(op, tensor.shape, result.shape, axis):
                    if _has_samples(record, result, position):
                        return True
        elif axis == 0 and not (op.name in AFFINE and signals(op)):
            return True
    return False


def _is_direct(argument: object) -> bool:
    return is_array(argument) and _is_input(argument)


def _is_input(leaf: Any) -> bool:
    return is_array(leaf) and leaf.ndim > 0 and not _is_key(leaf)


def _is_key(array: Any) -> bool:
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return True
    return array.dtype == np.uint32 and array.shape[-1:] == (2,)  # as keys were before

"""A JAX function as the theory sees it: trace(fn, *example_args) -> Graph.

`jax.make_jaxpr` records the function on the shapes of its arguments, whatever library it is made
with; `reader` reads that record from input to output.

Which argument of a function is the network's input.

Parameters come before it, usually in a tree, and so do keys and states. More cannot be told from
what a function is given, so its record has to agree: layers read the input, and keep its samples,
and what else it is given is read as parameters are.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from skipless.core.graph import Affine, Graph
from skipless.core.trace import Notes, UnsupportedModelError

from .constants import Constants, x64
from .operations import (
    AFFINE,
    LAYOUTS,
    MOVES,
    POINTWISE,
    added_up,
    all_axes,
    demand_channels_apart,
    first_layer,
    input_axes,
    multiplies,
    positions,
    signals,
    weight_of,
)
from .reader import Reader, Step
from .record import Operation, Record, Tensor, record

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


def trace(fn: Callable[..., object], *example_args: object) -> Graph:
    """The graph of `fn(*example_args)`, each node with its module path and source line.

    The network's input is the last argument that is an array, but for random keys; what comes
    before it, and what `fn` holds, are parameters, keys and states, in trees as they are.
    Arrays may be given as `jax.ShapeDtypeStruct`, then no number that depends on them is known.
    Anything else, such as a flag, is passed on as it is. Where another array could be the input, as
    in `fn(params, x, mask)`, or the last one is read as weights are, that is refused. So these are
    calls:

    | library    | call                                                     |
    |------------|----------------------------------------------------------|
    | Flax Linen | `trace(model.apply, variables, x)`                       |
    | Flax NNX   | `trace(model, x)`                                        |
    | Haiku      | `trace(net.apply, params, rng, x)`                       |
    | Equinox    | `trace(jax.vmap(model), x)`                              |
    | plain JAX  | `trace(fn, params, x)`                                   |

    Normalisation layers are passed over: the theory has no use for them. What it does not cover,
    such as attention or products of branches, raises `UnsupportedModelError`.

    >>> import jax.numpy as jnp
    >>> mlp = lambda params, x: jax.nn.relu(jax.nn.relu(x @ params[0]) @ params[1])
    >>> trace(mlp, [jnp.ones((3, 4)), jnp.ones((4, 4))], jnp.ones((1, 3))) == Graph.chain(2)
    True
    """
    with suppress(_RecordingError):
        # In float64 a factor such as 0.6 is recorded as it was written, but not all functions take
        # it: layers may hold weights in float32 and ask for inputs of the same type.
        return read(fn, *example_args, wide=True).graph
    return read(fn, *example_args).graph


@dataclass(frozen=True)
class Reading:
    """A function's graph, and how it lies in the record of the function's operations."""

    graph: Graph
    notes: Notes
    record: Record
    steps: Mapping[Tensor, Step]
    biases: Mapping[Tensor, Operation]
    output: Tensor
    constants: Constants

    def tensors(self) -> dict[int, tuple[Tensor, float]]:
        """For nodes of the graph, a recorded tensor and the factor by which it is larger."""
        found: dict[int, tuple[Tensor, float]] = {}
        for tensor, step in self.steps.items():
            if step.kind in ("input", "affine"):  # the last one: normalised, or with its bias
                found[step.node] = (tensor, 1.0)
            elif step.kind != "move":
                found.setdefault(step.node, (tensor, step.scale))
        return found


class _RecordingError(UnsupportedModelError):
    """JAX cannot record the function."""


def read(fn: Callable[..., object], *example_args: object, wide: bool = False) -> Reading:
    """The graph of `fn` in the record of its operations.

    With `wide`, all arguments of floating-point numbers are taken as float64.
    """
    call = Call.of(fn, example_args)
    constants = Constants(wide=wide)
    with x64() if wide else nullcontext():
        closed = _recorded(call, wide)
        arguments = [(n, _as_recorded(a, wide)) for n, a in call.arrays]
    recorded = record(closed, arguments, call.input, constants.array)
    demand_one_input(recorded, example_args)
    reader = Reader(recorded, constants)
    graph = reader.read()
    assert reader.last is not None
    reading = Reading(
        graph, reader.notes, reader.record, reader.steps, reader.biases, reader.last, constants
    )
    demand_read_as_input(reading, example_args)
    demand_channels_apart(reading)
    return reading


@dataclass(frozen=True)
class Call:
    """A function and its arguments, apart from the arrays in them, with their names."""

    fn: Callable[[Sequence[object]], list[object]]  # arrays to the arrays in the result
    arrays: list[tuple[str, object]]
    input: int  # the place of the network's input among them

    @classmethod
    def of(cls, fn: Callable[..., object], arguments: Sequence[object]) -> Call:
        """The call of `fn`, the parameters of which may be its own."""
        if not callable(fn):
            raise TypeError(
                f"trace takes a function and its arguments; found {type(fn).__name__}. Of a Flax "
                "model, give model.apply; of a Haiku one, net.apply."
            )
        function, held = _functional(fn)
        place = input_place(arguments)
        leaves, tree = jax.tree_util.tree_flatten_with_path((held, tuple(arguments)))
        names = [jax.tree_util.keystr(path) for path, _ in leaves]
        values = [leaf for _, leaf in leaves]
        where = [index for index, value in enumerate(values) if is_array(value)]
        input_name = jax.tree_util.keystr(
            (jax.tree_util.SequenceKey(1), jax.tree_util.SequenceKey(place))
        )

        def call(arrays: Sequence[object]) -> list[object]:
            all_leaves = list(values)
            for index, array in zip(where, arrays, strict=True):
                all_leaves[index] = array
            mine, theirs = jax.tree_util.tree_unflatten(tree, all_leaves)
            return [leaf for leaf in jax.tree.leaves(function(mine, *theirs)) if is_array(leaf)]

        arrays = [(_readable(names[index]), values[index]) for index in where]
        return cls(call, arrays, [names[index] for index in where].index(input_name))


def _functional(fn: Callable[..., object]) -> tuple[Callable[..., object], object]:
    """`fn` as a function of the arrays that it holds, if it is a module, and these."""
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(fn, nnx.Module):
        definition, state = nnx.split(fn)
        return lambda state, *arguments: nnx.merge(definition, state)(*arguments), state
    if any(is_array(leaf) for leaf in jax.tree.leaves(fn)):  # an Equinox module is a tree
        return lambda module, *arguments: module(*arguments), fn
    return lambda _, *arguments: fn(*arguments), None


def _readable(name: str) -> str:
    return name.removeprefix("[0]").removeprefix("[1]")


def _as_recorded(array: object, wide: bool) -> object | None:
    """The value of an argument in the type that it is recorded in, or None if it has none."""
    if isinstance(array, jax.ShapeDtypeStruct):
        return None
    assert isinstance(array, jax.Array | np.ndarray)
    if wide and jnp.issubdtype(array.dtype, np.floating):
        return np.asarray(array).astype(np.float64)
    return array


def _abstract(array: Any, wide: bool) -> jax.ShapeDtypeStruct:
    floating = jnp.issubdtype(array.dtype, np.floating)
    dtype = np.dtype(np.float64) if wide and floating else array.dtype
    return jax.ShapeDtypeStruct(array.shape, dtype)


def _recorded(call: Call, wide: bool) -> Any:
    """The function's jaxpr."""
    shapes = [_abstract(array, wide) for _, array in call.arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return jax.make_jaxpr(call.fn)(shapes)
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise _RecordingError(
                "The function was to be read on an input of shape "
                f"{tuple(call.arrays[call.input][1].shape)}, but JAX cannot record it: {reason} "  # pyright: ignore
                "Check that it runs under jax.jit with these arguments."
            ) from error

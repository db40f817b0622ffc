"""A JAX function as the theory sees it: trace(fn, *example_args) -> Graph.

`jax.make_jaxpr` records the function on the shapes of its arguments, whatever library it is made
with; `reader` reads that record from input to output.
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

from skipless.core.graph import Graph
from skipless.core.trace import Notes, UnsupportedModelError

from .constants import Constants, x64
from .operations import demand_channels_apart
from .reader import Reader, Step
from .record import Operation, Record, Tensor, record


def is_array(leaf: object) -> bool:
    """Whether `leaf` is an array, or stands for one."""
    return isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def input_index(arguments: Sequence[object], argnum: int) -> int:
    """The index of the argument that `argnum` names as the network's input, an array."""
    if not -len(arguments) <= argnum < len(arguments):
        raise TypeError(f"argnum={argnum} names none of the {len(arguments)} arguments.")
    given: Any = arguments[argnum]
    if not is_array(given):
        found = type(given).__name__
    elif jnp.issubdtype(given.dtype, jax.dtypes.prng_key):
        found = "a random key"
    elif not given.shape:
        found = "a single number"
    else:
        return argnum % len(arguments)
    raise TypeError(
        f"The network's input, argument {argnum}, must be an array or a jax.ShapeDtypeStruct, got "
        f"{found}. Pass the input last, or name it: trace(fn, params, x, key, argnum=1)."
    )


def trace(fn: Callable[..., object], *args: object, argnum: int = -1) -> Graph:
    """The graph of `fn(*args)`, each node with its module path and source line.

    Args:
        fn: A function or a module; arrays that it holds are parameters.
        *args: Its arguments. Arrays, in trees or alone, may be `jax.ShapeDtypeStruct`s; then no
            number that depends on them is known. Other values, such as flags, are passed on.
        argnum: Which argument is the network's input, an array; the last one by default. All other
            arrays are parameters, states or keys.

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
        return read(fn, *args, argnum=argnum, wide=True).graph
    return read(fn, *args, argnum=argnum).graph


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


def read(fn: Callable[..., object], *args: object, argnum: int = -1, wide: bool = False) -> Reading:
    """The graph of `fn` in the record of its operations.

    With `wide`, all arguments of floating-point numbers are taken as float64.
    """
    call = Call.of(fn, args, argnum)
    constants = Constants(wide=wide)
    with x64() if wide else nullcontext():
        closed = _recorded(call, wide)
        arguments = [(n, _as_recorded(a, wide)) for n, a in call.arrays]
    recorded = record(closed, arguments, call.input, constants.array)
    reader = Reader(recorded, constants)
    graph = reader.read()
    assert reader.last is not None
    reading = Reading(
        graph, reader.notes, reader.record, reader.steps, reader.biases, reader.last, constants
    )
    demand_channels_apart(reading)
    return reading


@dataclass(frozen=True)
class Call:
    """A function and its arguments, apart from the arrays in them, with their names."""

    fn: Callable[[Sequence[object]], list[object]]  # arrays to the arrays in the result
    arrays: list[tuple[str, object]]
    input: int  # the place of the network's input among them

    @classmethod
    def of(cls, fn: Callable[..., object], arguments: Sequence[object], argnum: int) -> Call:
        """The call of `fn`, the parameters of which may be its own."""
        if not callable(fn):
            raise TypeError(
                f"trace takes a function and its arguments; found {type(fn).__name__}. Of a Flax "
                "model, give model.apply; of a Haiku one, net.apply."
            )
        function, held = _functional(fn)
        index = input_index(arguments, argnum)
        leaves, tree = jax.tree_util.tree_flatten_with_path((held, tuple(arguments)))
        names = [jax.tree_util.keystr(path) for path, _ in leaves]
        values = [leaf for _, leaf in leaves]
        where = [i for i, value in enumerate(values) if is_array(value)]
        input_name = jax.tree_util.keystr(
            (jax.tree_util.SequenceKey(1), jax.tree_util.SequenceKey(index))
        )

        def call(arrays: Sequence[object]) -> list[object]:
            all_leaves = list(values)
            for i, array in zip(where, arrays, strict=True):
                all_leaves[i] = array
            mine, theirs = jax.tree_util.tree_unflatten(tree, all_leaves)
            return [leaf for leaf in jax.tree.leaves(function(mine, *theirs)) if is_array(leaf)]

        arrays = [(_readable(names[i]), values[i]) for i in where]
        return cls(call, arrays, [names[i] for i in where].index(input_name))


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

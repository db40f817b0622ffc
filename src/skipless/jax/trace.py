"""A JAX function as the theory sees it: trace(fn, *args) -> Graph.

`jax.make_jaxpr` records the function, whatever library it is made with. `Description` says what
each recorded operation is; `core.trace` reads that.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from skipless.core import record as rec
from skipless.core import trace as core
from skipless.core.activations import Array
from skipless.core.graph import Graph
from skipless.core.record import Recorded, UnsupportedModelError

from . import operations as kinds
from .operations import axis_map, count_summed, evaluate, layer, weight_of, without_moves
from .record import FlatProgram, Operation, Region, Tensor, ancestors, find_regions, record

# How close a function must be to an activation, by the bits of the numbers in its definition.
_CLOSE = {64: 1e-9, 32: 1e-6, 16: 4e-3}


def is_array(leaf: object) -> bool:
    """Whether `leaf` is an array, or stands for one."""
    return isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def input_index(arguments: Sequence[object], argnum: int) -> int:
    """The index of the argument that `argnum` names, an array."""
    if not isinstance(argnum, int) or not -len(arguments) <= argnum < len(arguments):
        raise TypeError(f"argnum={argnum!r} names none of the {len(arguments)} arguments.")
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
        + f" {rec.ONE_INPUT}."
        * isinstance(given, tuple | list)
    )


def trace(fn: Callable[..., object], *args: object, argnum: int = -1) -> Graph:
    """The graph of `fn(*args)`, as `skipless.torch.trace` reads it.

    Args:
        fn: A function or a module; arrays that it holds are parameters.
        *args: Its arguments. Arrays in them may be `jax.ShapeDtypeStruct`s, if no number that
            depends on them is needed. Other values, such as flags, are passed on.
        argnum: Which argument is the network's input, an array. All other arrays are parameters,
            states or keys.

    | library    | call                                                     |
    |------------|----------------------------------------------------------|
    | Flax Linen | `trace(model.apply, variables, x)`                       |
    | Flax NNX   | `trace(model, x)`                                        |
    | Haiku      | `trace(net.apply, params, rng, x)`                       |
    | Equinox    | `trace(jax.vmap(model), x)`                              |
    | plain JAX  | `trace(fn, params, x)`                                   |

    >>> mlp = lambda params, x: jax.nn.relu(jax.nn.relu(x @ params[0]) @ params[1])
    >>> trace(mlp, [jnp.ones((3, 4)), jnp.ones((4, 4))], jnp.ones((1, 3))) == Graph.chain(2)
    True
    """
    return read_exactly(fn, *args, argnum=argnum).graph


@dataclass(frozen=True)
class Reading(core.Reading[Tensor]):
    """A function's graph, and how it lies in the record of the function's operations."""

    record: FlatProgram
    description: Description
    constants: Constants

    @property
    def biases(self) -> Sequence[Operation]:
        """The additions by which layers get theirs."""
        return self.description.biases


class _RecordingError(UnsupportedModelError):
    """JAX cannot record the function."""


def read_exactly(fn: Callable[..., object], *args: object, argnum: int = -1) -> Reading:
    """The record of `fn` in float64, where a factor such as 0.6 is exact, if `fn` allows it.

    Layers that hold weights in float32 may need inputs of the same type.
    """
    with suppress(_RecordingError):
        return read(fn, *args, argnum=argnum, wide=True)
    return read(fn, *args, argnum=argnum)


def read(fn: Callable[..., object], *args: object, argnum: int = -1, wide: bool = False) -> Reading:
    """The graph of `fn` in the record of its operations; if `wide`, all numbers are of float64."""
    own = getattr(fn, "__skipless_reading__", None)  # of a function that has a record already
    if own is not None:
        return own(args, argnum, wide)
    return read_program(*record_call(Call.of(fn, args, argnum), wide=wide)[:2])


def read_program(program: FlatProgram, constants: Constants) -> Reading:
    """The graph of a record, of whose arrays `constants` are known."""
    description = Description(program, constants)
    found = core.read(description)
    return Reading(**vars(found), record=program, description=description, constants=constants)


def record_call(call: Call, *, wide: bool = False) -> tuple[FlatProgram, Constants, Form]:
    """The record of a call, its constants, and the form of what it returns."""
    constants = Constants(wide=wide)
    arrays = [_widened(array) if wide else array for array in call.arrays]
    with jax.enable_x64(True) if wide else nullcontext():
        closed, form = _make_jaxpr(call, arrays)
    known = [a if isinstance(a, jax.Array | np.ndarray) else None for a in arrays]
    arguments = [
        (name, None if isinstance(array, Tracer) else array)
        for name, array in zip(call.names, known, strict=True)
    ]
    return record(closed, arguments, call.of_input, constants.array), constants, form


# They repeat, drop or move numbers, so equal numbers stay equal.
_KEEPS_EQUAL = kinds.LAYOUTS - {"convert_element_type"} | {
    "broadcast_in_dim", "slice", "rev", "scan_slice", "dynamic_slice",
}  # fmt: skip


class Constants:
    """Evaluates the tensors of a record that do not depend on its input, each once, when needed.

    Numbers are rounded as the record is: the 0.8 of `0.8 * x` is 0.800000012 in float32.
    """

    def __init__(self, *, wide: bool) -> None:
        self._wide = wide  # whether the record is of float64
        self._arrays: dict[Tensor, object] = {}
        self._numbers: dict[Tensor, float | None] = {}
        self.arguments: dict[str, object] = {}  # those that were read, by their names

    def array(self, tensor: Tensor) -> object | None:
        """The array that `tensor` is, or None if it depends on something unknown."""
        if tensor not in self._arrays:
            with jax.enable_x64(True) if self._wide else nullcontext():
                for op in sorted(ancestors([tensor], self._arrays), key=lambda op: op.index):
                    arguments = [self._known_array(t) for t in op.inputs]
                    known = all(a is not None for a in arguments)
                    results = op.run(*arguments) if known else [None] * len(op.outputs)
                    self._arrays.update(zip(op.outputs, results, strict=True))
        return self._known_array(tensor)

    def number(self, tensor: Tensor) -> float | None:
        """The number that all entries of `tensor` are, or None."""
        if tensor not in self._numbers:
            op, number = tensor.operation, None
            if op is not None and op.name in _KEEPS_EQUAL:
                number = self.number(op.inputs[0])
            self._numbers[tensor] = self._uniform_number(tensor) if number is None else number
        return self._numbers[tensor]

    def _known_array(self, tensor: Tensor) -> object | None:
        if tensor.operation is not None:
            return self._arrays[tensor]
        if tensor.name and tensor.value is not None:
            self.arguments[tensor.name] = tensor.value
        return tensor.known_value

    def _uniform_number(self, tensor: Tensor) -> float | None:
        array: Any = self.array(tensor)
        if array is None or isinstance(array, Tracer):
            return None
        if jnp.issubdtype(array.dtype, jax.dtypes.extended):
            return None
        values = np.asarray(array)
        if values.size == 0 or not (values == values.flat[0]).all():
            return None
        return float(values.flat[0].astype(np.float64))


class Description(Recorded[Tensor]):
    """A record with what each operation is to the theory.

    A call of a known layer, a `Region`, is one operation. Its statistics are left out.
    """

    def __init__(self, record: FlatProgram, constants: Constants) -> None:
        self.input = record.input
        self.biases: list[Operation] = []
        self._record, self._constants = record, constants
        self.operations = {}
        self.regions = find_regions(record)
        self._statistics: set[Tensor] = set()
        self._counts: dict[Tensor, float] = {}  # of the numbers in a sum that is not divided yet
        self._close = _closeness(record)
        for op in record.operations:
            if op.name == "gather" and not op.inputs[0].signal and op.inputs[1].signal:
                message = _uncovered(op, op.name, kinds.UNCOVERED[op.name]).message
                raise UnsupportedModelError(message)
        for op in record.operations:
            if op.signals:
                self._add(op)

    @property
    def outputs(self) -> Sequence[Tensor]:
        outputs = dict.fromkeys(t for t in self._record.outputs if t.signal)
        tensors = [t for t in outputs if t not in self._statistics]
        if not tensors:
            raise UnsupportedModelError("The function returns no array that depends on its input.")
        return tensors

    def origin(self, tensor: Tensor) -> str:
        op = tensor.operation
        if op is None:
            return tensor.name
        if op.name in kinds.AFFINE and not op.location.scope and not op.location.line:
            # As in nnx.Sequential: "['layers'][0]['kernel'].value" is a weight of layers.0.
            words = re.findall(r"\w+", without_moves(weight_of(op)).name.removesuffix(".value"))
            return ".".join(words[:-1]) or str(op.location)
        return str(op.location)

    def shape(self, tensor: Tensor) -> Sequence[int | None]:
        return tensor.shape

    def channel_candidates(self, rank: int) -> Sequence[int]:
        return range(rank - 1, 0, -1)

    def tolerances(self, tensor: Tensor) -> Sequence[float]:
        return (self._close,)

    def values(self, tensor: Tensor, sources: Mapping[Tensor, Array]) -> Array | None:
        op = tensor.operation
        assert op is not None
        known = [sources[t] if t in sources else self._number(t, op) for t in op.inputs]
        if any(number is None for number in known):
            return None
        return evaluate(op.name, op.parameters, [np.asarray(number) for number in known])

    def _number(self, tensor: Tensor, op: Operation) -> float | None:
        number = self._constants.number(tensor)
        if number is None or not tensor.parametric or op.name != "mul":
            return number
        return rec.initial_factor(number)

    def _add(self, op: Operation) -> None:
        statistics = [tensor in self._statistics for tensor in op.signals]
        if op in self.regions:
            self._add_region(op, self.regions[op])
        elif all(statistics):
            self._statistics.update(op.outputs)
        elif any(statistics):
            self.operations[op.outputs[0]] = _combination(op, op.name)
        else:
            self.operations |= {tensor: self._describe(op, tensor) for tensor in op.outputs}

    def _add_region(self, op: Operation, region: Region) -> None:
        source, *others = region.sources
        for tensor in op.outputs:
            if region.kind == "probabilities":
                found = _uncovered(op, "softmax", kinds.PROBABILITIES)
            elif others and region.kind != "normalised input":
                found = _combination(op, f"a layer ({op.name})")
            elif tensor is not region.result:
                self._statistics.add(tensor)
                continue
            elif region.kind in ("norm", "shaped"):
                found = rec.Norm((source,)) if region.kind == "norm" else rec.ShapedCall((source,))
            elif region.kind == "normalised input":
                found = rec.Preparation(tuple(region.sources))
            else:
                rough = "resize" if region.kind == "resize" else ""
                found = _identity_move(source, region.kind, rough)
            self.operations[tensor] = found

    def _describe(self, op: Operation, tensor: Tensor) -> rec.Operation[Tensor]:
        source, *others = op.signals
        if op.name in kinds.AFFINE:
            about = (" of a kind of its own", kinds.UNKNOWN[1])
            return layer(op) or _uncovered(op, op.name, about)
        if op.name in kinds.SUMS:
            count = count_summed(op)
            self._counts[tensor] = count * self._counts.get(source, 1.0)
            users = self._record.users.get(tensor, ())
            zeros = kinds.is_padded(op) and not any(map(self._divides_by_counts, users))
            rough = "averages of padded zeros" if zeros else ""
            return rec.Move((source,), op.name, axis_map(op, source, tensor), rough, count)
        if (op.name in kinds.MOVES and op.inputs[0].signal) or op.name in kinds.APPROXIMATE_MOVES:
            if others:
                return _uncovered(op, op.name, kinds.UNCOVERED["gather"])
            if source in self._counts:
                self._counts[tensor] = self._counts[source]
            rough = op.name if op.name in kinds.APPROXIMATE_MOVES else ""
            axes, part = axis_map(op, source, tensor), kinds.part(op, tensor)
            return rec.Move((source,), op.name, axes, rough, part=part)
        if op.name == "stop_gradient" and not self._is_combined(tensor):
            return _identity_move(source, op.name)
        if op.name == "concatenate":
            axis = op.parameters["dimension"]
            widths = [float(t.shape[axis]) for t in op.inputs]
            parts = tuple(t if t.signal else None for t in op.inputs)
            return rec.Concatenation(parts, widths, axis)
        if op.name not in kinds.POINTWISE:
            return _uncovered(op, op.name, kinds.UNCOVERED.get(op.name, kinds.UNKNOWN))
        return self._pointwise(op)

    def _pointwise(self, op: Operation) -> rec.Operation[Tensor]:
        source, *others = op.signals
        if self._is_bias(op):
            self.biases.append(op)
            return rec.Bias((source,))
        if op.name not in kinds.ADDITIONS and any(t.random for t in op.inputs if not t.signal):
            return rec.Unsupported(
                f"{op.location} computes {op.name} with random numbers, as dropout does. Trace the "
                "model in evaluation mode, or use the dropout of Flax, Haiku or Equinox."
            )
        if self._divides_by_counts(op):
            return _identity_move(source, op.name, factor=1.0 / self._counts[source])
        if (chosen := self._constant_choice(op)) is not None:
            return _identity_move(chosen, op.name)
        weights = (1.0, -1.0 if op.name == "sub" else 1.0) if op.name in kinds.ADDITIONS else None
        affine = op.name in kinds.ARITHMETIC | kinds.UNCHANGED and not others
        return rec.Pointwise(
            tuple(op.signals), op.name, weights if others else None, affine, op.name == "mul"
        )

    def _is_bias(self, op: Operation) -> bool:
        """Whether `op` adds an array, not a number, to what a layer computes, reshaped at most.

        A number may belong to the activation that follows.
        """
        if op.name not in kinds.ADDITIONS or len(op.signals) != 1:
            return False
        added = weight_of(op)
        if not added.parametric and self._constants.number(added) is not None:
            return False
        if op.name == "sub" and added is op.inputs[0]:
            return False
        tensor = op.signals[0]
        while tensor.operation is not None and tensor.operation.name in kinds.LAYOUTS:
            tensor = tensor.operation.inputs[0]
        return isinstance(self.operations.get(tensor), rec.Layer | rec.Bias)

    def _is_combined(self, tensor: Tensor) -> bool:
        """Whether a pointwise operation reads it with others, as in a straight-through estimator.

        There it is inside an activation, and nothing but a function of numbers.
        """
        users = self._record.users.get(tensor, ())
        return any(op.name in kinds.POINTWISE and len(op.signals) > 1 for op in users)

    def _divides_by_counts(self, op: Operation) -> bool:
        """Whether a window's sum is divided by how many places it has, fewer at the border."""
        if op.name != "div" or op.inputs[1].signal or op.inputs[1].parametric:
            return False
        return op.inputs[0] in self._counts and self._constants.number(op.inputs[1]) is None

    def _constant_choice(self, op: Operation) -> Tensor | None:
        """Which of two tensors a constant chooses everywhere, if it does."""
        if op.name != "select_n" or op.inputs[0].signal:
            return None
        which = self._constants.number(op.inputs[0])
        chosen = None if which is None else op.inputs[1 + int(which)]
        return chosen if chosen is not None and chosen.signal else None


def _identity_move(
    source: Tensor, name: str, rough: str = "", factor: float = 1.0
) -> rec.Move[Tensor]:
    return rec.Move((source,), name, rec.AxisMap.identity(len(source.shape)), rough, factor)


def _combination(op: Operation, name: str) -> rec.Unsupported[Tensor]:
    return rec.Unsupported(rec.combines_branches(str(op.location), name))


def _uncovered(op: Operation, name: str, about: tuple[str, str]) -> rec.Unsupported[Tensor]:
    kind, advice = about
    after = about in (kinds.UNKNOWN, kinds.PROBABILITIES)
    return rec.Unsupported(
        f"{op.location} computes {name}{kind}, which has no Q and C maps. {advice}",
        tuple(op.signals) if after else (),
    )


def _closeness(record: FlatProgram) -> float:
    tensors = [t for op in record.operations for t in op.outputs if t.signal]
    types = [t.dtype for t in tensors if jnp.issubdtype(t.dtype, jnp.floating)]
    bits = min((jnp.finfo(dtype).bits for dtype in types), default=64)
    return _CLOSE.get(bits, _CLOSE[16])


@dataclass(frozen=True)
class Form:
    """A tree whose arrays are taken out."""

    tree: Any  # a PyTreeDef
    leaves: tuple[object, ...]  # None in place of arrays
    where: tuple[int, ...]  # the places of the arrays

    @staticmethod
    def of(tree: object) -> tuple[Form, list[Any]]:
        """The form of `tree`, and its arrays."""
        leaves, definition = jax.tree.flatten(tree)
        where = tuple(i for i, leaf in enumerate(leaves) if is_array(leaf))
        others = tuple(None if is_array(leaf) else leaf for leaf in leaves)
        return Form(definition, others, where), [leaves[i] for i in where]

    @property
    def key(self) -> tuple[object, ...]:
        """What is equal, and has a hash, for equal forms."""
        return self.tree, self.where, *((type(leaf), leaf) for leaf in self.leaves)

    def fill(self, arrays: Sequence[object]) -> Any:
        """The tree with these arrays."""
        leaves = list(self.leaves)
        for i, array in zip(self.where, arrays, strict=True):
            leaves[i] = array
        return jax.tree.unflatten(self.tree, leaves)


@dataclass(frozen=True)
class Call:
    """A call as a function of all its arrays, also of those in the function itself."""

    function: Callable[..., object]
    form: Form  # of what the function holds, of its arguments, and of those by name
    arrays: Sequence[Any]
    names: Sequence[str]  # of the arrays
    of_input: int

    @staticmethod
    def of(
        fn: Callable[..., object],
        args: Sequence[object],
        argnum: int,
        keywords: Mapping[str, object] | None = None,
    ) -> Call:
        """`fn(*args, **keywords)`, of which the argument `argnum` is the network's input."""
        if not callable(fn):
            raise TypeError(
                f"Expected a function and its arguments, got {type(fn).__name__}. Of a Flax Linen "
                "or Haiku model, pass model.apply."
            )
        function, held = _split_module(fn)
        given = (held, tuple(args), dict(keywords or {}))
        form, arrays = Form.of(given)
        paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(given)]
        names = [paths[i] for i in form.where]
        of_input = names.index(f"[1][{input_index(args, argnum)}]")
        readable = [re.sub(r"^\[[012]\]", "", name) for name in names]
        return Call(function, form, arrays, readable, of_input)

    def __call__(self, arrays: Sequence[object]) -> object:
        held, args, keywords = self.form.fill(arrays)
        return self.function(held, *args, **keywords)


def _split_module(fn: Callable[..., object]) -> tuple[Callable[..., object], object]:
    """`fn` as a function of the arrays that it holds, if it is a module, and these."""
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(fn, nnx.Module):
        definition, state = nnx.split(fn)
        merged = lambda state: nnx.merge(definition, state)
        return lambda state, *args, **keywords: merged(state)(*args, **keywords), state
    if any(is_array(leaf) for leaf in jax.tree.leaves(fn)):  # an Equinox module is a tree
        return lambda module, *args, **keywords: module(*args, **keywords), fn
    return lambda _, *args, **keywords: fn(*args, **keywords), None


def _widened(array: Any) -> Any:
    """An argument, in float64 if it has floating-point numbers."""
    if not jnp.issubdtype(array.dtype, np.floating):
        return array
    if isinstance(array, jax.ShapeDtypeStruct | Tracer):
        return jax.ShapeDtypeStruct(array.shape, np.float64)
    return np.asarray(array).astype(np.float64)


def _make_jaxpr(call: Call, arrays: Sequence[Any]) -> tuple[Any, Form]:
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    forms: list[Form] = []

    def returned(arrays: Sequence[object]) -> list[object]:
        form, found = Form.of(call(arrays))
        forms.append(form)
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return jax.make_jaxpr(returned)(shapes), forms[-1]
        except (Exception, SystemExit) as error:
            advice = "Check that it runs under jax.jit with these arguments"
            raise _RecordingError(
                f"JAX cannot record the function on an input of shape "
                f"{shapes[call.of_input].shape}: {rec.explain_failure(error, advice)}"
            ) from error

"""A function as one flat list of operations: calls, branches and loops over layers written out.

In a jaxpr, compiled functions, custom derivatives, checkpoints and scans are nested. Here each is
replaced by what it does, so every array is an argument, or the output of one primitive operation.

JAX keeps the Python frames under which an operation was recorded. The innermost one outside of
libraries is the user's line. A frame of a known layer, such as `BatchNorm.__call__`, makes the
operation a part of that layer: a `Region` is one such call, one operation to the theory.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import CodeType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

try:
    from jax._src.source_info_util import user_context as _user_context
except ImportError:  # no public interface: then operations are named by their scopes alone
    _user_context = None

CallKind = Literal["norm", "dropout", "resize", "shaped", "normalised input", "probabilities"]

# Their lines are not the user's.
_LIBRARIES = (
    "jax", "flax", "haiku", "equinox", "keras", "jaxtyping", "beartype", "jmp", "optax", "chex",
    "skipless", "numpy", "jaxlib", "tensorflow",
)  # fmt: skip
# Whole calls of libraries by file and function: what they compute is known, however they do it.
_LIBRARY_CALLS: tuple[tuple[CallKind, str, str], ...] = (
    ("norm", r"flax/(linen|nnx/nn)/normalization\.py", r"(?!Spectral|Weight)\w*Norm\.__call__"),
    ("norm", r"haiku/_src/(batch|layer|group|rms)_norm\.py", r"\w+\.__call__"),
    ("norm", r"equinox/nn/_(normalisation|batch_norm)\.py", r"\w+\.__call__"),
    ("norm", r"keras/src/layers/normalization/\w+\.py", r"(?!Spectral)\w+\.call"),
    ("norm", r"jax/_src/nn/functions\.py", r"standardize"),
    ("dropout", r"flax/(linen|nnx/nn)/stochastic\.py", r"Dropout\.__call__"),
    ("dropout", r"haiku/_src/basic\.py", r"dropout"),
    ("dropout", r"equinox/nn/_dropout\.py", r"Dropout\.__call__"),
    ("dropout", r"keras/src/layers/regularization/\w*dropout\.py", r"\w+\.call"),
    ("resize", r"jax/_src/image/scale\.py", r"_?resize|_?scale_and_translate"),
    ("shaped", r"skipless/jax/(activations|modules)\.py", r"Shaped(Activation)?\.__call__"),
    ("normalised input", r"skipless/jax/normalize\.py", r"normalize_per_(location|sample)"),
    ("probabilities", r"jax/_src/nn/functions\.py", r"(log_)?softmax|_softmax\w*"),
)
# What JAX itself compiles is recorded once, with the frames of its first use.
_JAX_FUNCTIONS = re.compile(r"/jax/_src/(nn|numpy|scipy|random|image|lax/(?!control_flow))")


@dataclass(frozen=True)
class Location:
    """Where an operation was recorded: its frames, the named scopes around it, its call."""

    traceback: Any = None  # of JAX
    scope: str = ""
    call: int = 0  # another one each time a compiled function or a loop's body is written out
    outer: Location | None = None
    kind: CallKind | None = None  # of the call, if known without the frames

    def __str__(self) -> str:
        """The path of modules, if their library records it, with the user's line."""
        line = self.line
        if self.scope and line:
            return f"{self.scope} ({line})"
        return self.scope or line or "the model itself"

    @property
    def frames(self) -> Sequence[tuple[CodeType, int]]:
        """Its Python frames, innermost first, each with its place in the bytecode."""
        columns = () if self.traceback is None else self.traceback.raw_frames()
        return tuple(zip(*columns, strict=True))

    @property
    def line(self) -> str:
        """The user's file and line, here or where the function was called that this is part of."""
        for code, instruction in self.frames:
            if not _is_library_file(code.co_filename):
                line = self.traceback.code_addr2line(code, instruction)
                return f"{Path(code.co_filename).name}:{line}"
        return self.outer.line if self.outer is not None else ""

    @property
    def library_call(self) -> tuple[CallKind, object] | None:
        """The kind of library call that this is part of, and an identity of that call."""
        found = None if self.kind is None else (self.kind, (self.kind, self.call))
        own = self.frames
        for depth, (code, _) in enumerate(own):
            # The outermost one includes the others.
            if (kind := _kind(code.co_filename, code.co_qualname)) is not None:
                found = (kind, (kind, self.call, own[depth + 1 :]))
        above = self.outer.library_call if self.outer is not None else None
        return above or found

    def inside(self, called: str, call: int) -> tuple[Location, bool]:
        """The location of a function that is `called` here, and whether it is this very one."""
        name, _, place = called.partition(" at ")
        file = place.rpartition(":")[0].replace("\\", "/")
        if not _JAX_FUNCTIONS.search(file):
            return Location(None, self.scope, call, self), False
        kind = _kind(file, name)
        return self if kind is None else replace(self, call=call, kind=kind), True

    @contextmanager
    def again(self) -> Iterator[None]:
        """What is computed in this context is recorded as being here."""
        frames = nullcontext()
        if _user_context is not None and self.traceback is not None and self.kind is None:
            frames = _user_context(self.traceback)
        with frames, jax.named_scope(self.scope) if self.scope else nullcontext():
            yield

    def at(self, traceback: object, scope: str) -> Location:
        """An operation in the function that this is the inside of."""
        path = "/".join(part for part in (self.scope, _plain_scope(scope)) if part)
        return Location(traceback, path, self.call, self.outer)


def _plain_scope(scope: str) -> str:
    """The names of scopes, without the transformations around them: vmap(a/b) is a/b."""
    while (inner := re.sub(r"\b\w+\(([^()]*)\)", r"\1", scope)) != scope:
        scope = inner
    return "/".join(part for part in scope.split("/") if part)


@cache
def _kind(file: str, function: str) -> CallKind | None:
    for kind, path, name in _LIBRARY_CALLS:
        if re.search(f"/{path}$", file.replace("\\", "/")) and re.fullmatch(name, function):
            return kind
    return None


def _is_library_file(file: str) -> bool:
    installed = "site-packages" in file or "dist-packages" in file
    standard = file.startswith((sysconfig.get_path("stdlib"), "<frozen"))
    homes = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    folders = tuple(f"{home.rpartition('/')[0]}/" for home in homes if home)
    return (standard and not installed) or file.startswith(folders)


# They return their inputs; some of the names are those of other versions of JAX.
_IDENTITIES = {
    "copy", "copy_p", "sharding_constraint", "optimization_barrier", "pvary",
    "mesh_cast", "reshard", "name", "layout_constraint", "pcast", "checkpoint_name",
}  # fmt: skip
# Primitives that call one jaxpr, and the names of the parameter that holds it.
_CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_CALLS = {
    "jit", "pjit", "closed_call", "core_call", "call", "remat", "remat2", "checkpoint",
    "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_jvp_call_jaxpr",
    "custom_lin", "xla_call", "named_call",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Tensor:
    """An array of the record, known by its identity."""

    shape: tuple[int, ...]
    dtype: np.dtype
    operation: Operation | None = field(default=None, repr=False)  # that computes it
    signal: bool = False  # whether it depends on the network's input
    parametric: bool = False  # whether it depends on an array that the function was given
    random: bool = False  # whether it depends on a random key
    value: object = field(default=None, repr=False)  # of an argument or a literal, if known
    name: str = ""  # "[0]['w']" of an argument, ".w" of an attribute of the function

    @property
    def known_value(self) -> object | None:
        """The array that it is, if that is known without computing it."""
        if self.value is None or self.shape or self.parametric:
            return self.value
        return np.asarray(self.value, self.dtype)


@dataclass(frozen=True, eq=False)
class Operation:
    """One primitive operation, on arrays of the record."""

    name: str
    inputs: tuple[Tensor, ...]
    parameters: Mapping[str, Any]  # as JAX calls them, of any type
    run: Callable[..., Sequence[object]] = field(repr=False)  # on arrays
    location: Location = field(repr=False)
    index: int
    outputs: list[Tensor] = field(default_factory=list, repr=False)

    @property
    def signals(self) -> list[Tensor]:
        """The inputs that depend on the network's input."""
        return [tensor for tensor in self.inputs if tensor.signal]


@dataclass(frozen=True)
class FlatProgram:
    """The operations that lead to the outputs, in order."""

    operations: list[Operation]
    arguments: list[Tensor]
    input: Tensor
    outputs: list[Tensor]
    users: Mapping[Tensor, list[Operation]]

    @staticmethod
    def of(
        operations: Sequence[Operation],
        arguments: list[Tensor],
        input_: Tensor,
        outputs: list[Tensor],
    ) -> FlatProgram:
        """Those of `operations` that `outputs` need."""
        needed = ancestors(outputs)
        used = [op for op in operations if op in needed]
        users: dict[Tensor, list[Operation]] = {}
        for op in used:
            for tensor in dict.fromkeys(op.inputs):
                users.setdefault(tensor, []).append(op)
        return FlatProgram(used, arguments, input_, outputs, users)

    def run(self, arrays: Sequence[object]) -> list[object]:
        """The outputs for these arguments, which may be those of a transformation of JAX."""
        values: dict[Tensor, object] = dict(zip(self.arguments, arrays, strict=True))
        read = lambda tensor: values.get(tensor, tensor.known_value)
        for op in self.operations:
            with op.location.again():
                results = op.run(*map(read, op.inputs))
            values.update(zip(op.outputs, results, strict=True))
        return [read(tensor) for tensor in self.outputs]


def record(
    closed: Any,  # a ClosedJaxpr
    arguments: Sequence[tuple[str, object]],  # a name and, if known, a value
    input_index: int,
    known: Callable[[Tensor], object | None],
) -> FlatProgram:
    """The record of a jaxpr; `known` evaluates constants, such as the index of a branch."""
    recorder, tensors = _Recorder(known), list[Tensor]()
    for variable, (name, value) in zip(closed.jaxpr.invars, arguments, strict=True):
        shape, dtype = tuple(variable.aval.shape), variable.aval.dtype
        signal = len(tensors) == input_index
        given = None if signal else value
        tensors.append(Tensor(shape, dtype, None, signal, not signal, _is_key(dtype), given, name))
    outputs = recorder.inline(closed, tensors, Location())
    return FlatProgram.of(recorder.operations, tensors, tensors[input_index], outputs)


def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def ancestors(tensors: Sequence[Tensor], known: Container[Tensor] = ()) -> set[Operation]:
    """The operations from which `tensors` are computed, back to those tensors that are `known`."""
    needed: set[Operation] = set()
    waiting = list(tensors)
    while waiting:
        tensor = waiting.pop()
        op = tensor.operation
        if op is not None and tensor not in known and op not in needed:
            needed.add(op)
            waiting += op.inputs
    return needed


class _Recorder:
    def __init__(self, known: Callable[[Tensor], object | None]) -> None:
        self.operations: list[Operation] = []
        self._known = known
        self._calls = 0
        self._constants: dict[int, Tensor] = {}  # one for each array, however often it is read

    def inline(
        self, closed: Any, inputs: Sequence[Tensor], inside: Location, *, here: bool = False
    ) -> list[Tensor]:
        """Append a jaxpr to the record, if `here` at the location of its call; returns outputs."""
        jaxpr = getattr(closed, "jaxpr", closed)
        values = getattr(closed, "consts", ())
        environment = dict(zip(jaxpr.invars, inputs, strict=True))
        environment.update(zip(jaxpr.constvars, map(self._constant, values), strict=True))

        def read(atom: Any) -> Tensor:
            return self._literal(atom) if hasattr(atom, "val") else environment[atom]

        for equation in jaxpr.eqns:
            info = equation.source_info
            location = inside if here else inside.at(info.traceback, str(info.name_stack))
            results = self._equation(equation, [read(v) for v in equation.invars], location)
            environment.update(zip(equation.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _equation(
        self, equation: Any, inputs: Sequence[Tensor], location: Location
    ) -> Sequence[Tensor]:
        name, parameters = equation.primitive.name, equation.params
        if name in _IDENTITIES:
            return inputs
        if any(tensor.signal for tensor in inputs):
            if name in _CALLS:
                called = next(parameters[key] for key in _CALLED if key in parameters)
                return self._call(called, inputs, location)
            if name == "scan" and not any(t.signal for t in _scanned_inputs(parameters, inputs)):
                return self._scan(parameters, inputs, location)
            index: Any = self._known(inputs[0]) if name == "cond" and not inputs[0].signal else None
            if index is not None and not np.ndim(index):
                branches = parameters["branches"]
                chosen = branches[min(max(int(index), 0), len(branches) - 1)]
                return self._call(chosen, inputs[1:], location)
        run = partial(_bind, equation.primitive, parameters)
        avals = [variable.aval for variable in equation.outvars]
        return self._append(name, inputs, parameters, run, location, avals)

    def _call(self, called: Any, inputs: Sequence[Tensor], location: Location) -> list[Tensor]:
        self._calls += 1
        function = getattr(called, "jaxpr", called).debug_info.func_src_info or ""
        inside, here = location.inside(function, self._calls)
        return self.inline(called, inputs, inside, here=here)

    def _scan(
        self, parameters: Mapping[str, Any], inputs: Sequence[Tensor], location: Location
    ) -> list[Tensor]:
        """A loop over layers, whose parameters are stacked in arrays, written out."""
        constants = list(inputs[: parameters["num_consts"]])
        stacked = _scanned_inputs(parameters, inputs)
        carried = list(inputs[len(constants) : len(inputs) - len(stacked)])
        steps = range(parameters["length"])
        collected: list[list[Tensor]] = []
        for step in reversed(steps) if parameters["reverse"] else steps:
            slices = [self._slice(tensor, step, location) for tensor in stacked]
            results = self._call(parameters["jaxpr"], [*constants, *carried, *slices], location)
            carried = results[: len(carried)]
            collected.append(results[len(carried) :])
        if parameters["reverse"]:
            collected.reverse()
        return carried + [self._stack(parts, location) for parts in zip(*collected, strict=True)]

    def _slice(self, stacked: Tensor, step: int, location: Location) -> Tensor:
        aval = jax.ShapeDtypeStruct(stacked.shape[1:], stacked.dtype)
        run = lambda array: [array[step]]
        return self._append("scan_slice", [stacked], {"step": step}, run, location, [aval])[0]

    def _stack(self, parts: Sequence[Tensor], location: Location) -> Tensor:
        aval = jax.ShapeDtypeStruct((len(parts), *parts[0].shape), parts[0].dtype)
        run = lambda *arrays: [jnp.stack(arrays)]
        return self._append("scan_results", parts, {}, run, location, [aval])[0]

    def _append(
        self,
        name: str,
        inputs: Sequence[Tensor],
        parameters: Mapping[str, Any],
        run: Callable[..., Sequence[object]],
        location: Location,
        avals: Sequence[Any],
    ) -> list[Tensor]:
        op = Operation(name, tuple(inputs), parameters, run, location, len(self.operations))
        signal = any(tensor.signal for tensor in inputs)
        parametric = any(tensor.parametric for tensor in inputs)
        random = any(tensor.random for tensor in inputs)
        for aval in avals:
            shape, dtype = tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", None)
            drawn = random or (dtype is not None and _is_key(dtype))
            op.outputs.append(Tensor(shape, dtype, op, signal, parametric, drawn))  # pyright: ignore
        self.operations.append(op)
        return op.outputs

    def _constant(self, array: object) -> Tensor:
        if id(array) not in self._constants:
            shape, dtype = np.shape(array), getattr(array, "dtype", np.dtype(float))  # pyright: ignore
            constant = Tensor(shape, dtype, None, False, True, _is_key(dtype), array)
            self._constants[id(array)] = constant
        return self._constants[id(array)]

    def _literal(self, atom: Any) -> Tensor:
        if np.shape(atom.val):  # small arrays that the function holds may be literals
            return self._constant(atom.val)
        return Tensor((), atom.aval.dtype, value=atom.val)


def _scanned_inputs(parameters: Mapping[str, Any], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    return inputs[parameters["num_consts"] + parameters["num_carry"] :]


def _bind(primitive: Any, parameters: Mapping[str, Any], *arrays: object) -> Sequence[object]:
    bound = primitive.get_bind_params(dict(parameters))
    functions, bound = bound if isinstance(bound, tuple) else ((), bound)  # before JAX 0.10
    result = primitive.bind(*functions, *arrays, **bound)
    return result if primitive.multiple_results else [result]


@dataclass(eq=False)
class Region:
    """The operations of one library call, what it reads, and the tensor that it computes."""

    kind: CallKind
    sources: list[Tensor] = field(default_factory=list[Tensor])
    operations: list[Operation] = field(default_factory=list[Operation])
    result: Tensor | None = None


def find_regions(record: FlatProgram) -> Mapping[Operation, Region]:
    """The region of every operation that belongs to one.

    Its operations have the same frames and read each other's results, as loops call many layers.
    """
    found: dict[Operation, Region] = {}
    calls: dict[Operation, object] = {}
    for op in record.operations:
        sources = op.signals
        if not sources or (call := op.location.library_call) is None:
            continue
        kind, calls[op] = call
        own = [t for t in sources if t.operation and calls.get(t.operation) == calls[op]]
        others = [t for t in sources if t not in own]
        same = list(dict.fromkeys(found[t.operation] for t in own if t.operation)) or [Region(kind)]
        region = same[0]
        for other in same[1:]:
            region.operations += other.operations
            region.sources += other.sources
            found.update(dict.fromkeys(other.operations, region))
        region.operations.append(op)
        region.sources += others
        found[op] = region
    for region in dict.fromkeys(found.values()):
        region.sources = list(dict.fromkeys(region.sources))
        inside = set(region.operations)
        exits = [
            tensor
            for op in reversed(region.operations)
            for tensor in reversed(op.outputs)
            if tensor in record.outputs or not inside.issuperset(record.users.get(tensor, ()))
        ]
        # It has the shape of what is read, but a normalised input may have one channel more.
        shape = region.sources[0].shape
        likeness = [(t.shape == shape) + (len(t.shape) == len(shape)) for t in exits]
        region.result = exits[np.argmax(likeness)] if exits else None
    return found

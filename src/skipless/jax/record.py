"""A function as one flat list of operations: calls, branches and loops over layers written out.

JAX records a function as a jaxpr, in which compiled functions, custom derivatives, checkpoints and
scans are nested ones. Here each of them is replaced by what it does, so that every array is the
output of one primitive operation, or an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .source import Location

# Primitives that call one jaxpr, and how their parameter is called.
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
    value: object = field(default=None, repr=False)  # of an argument or a literal, if known
    name: str = ""


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


@dataclass(frozen=True)
class Record:
    """The operations that lead to the outputs, in order."""

    operations: list[Operation]
    input: Tensor
    outputs: list[Tensor]
    users: Mapping[Tensor, list[Operation]]


def record(
    closed: Any,  # a ClosedJaxpr
    arguments: Sequence[tuple[str, object]],  # a name and, if known, a value
    input_index: int,
    known: Callable[[Tensor], object | None],
) -> Record:
    """The record of a `closed` jaxpr of `arguments`, one of which is the network's input.

    `known` evaluates a tensor that does not depend on it, as the index of a branch must not.
    """
    recorder = _Recorder(known)
    tensors = [
        _argument(variable, name, value, signal=index == input_index)
        for index, (variable, (name, value)) in enumerate(
            zip(closed.jaxpr.invars, arguments, strict=True)
        )
    ]
    outputs = recorder.inline(closed, tensors, Location())
    needed = _leading_to(outputs)
    operations = [op for op in recorder.operations if op in needed]
    users: dict[Tensor, list[Operation]] = {}
    for op in operations:
        for tensor in dict.fromkeys(op.inputs):
            users.setdefault(tensor, []).append(op)
    return Record(operations, tensors[input_index], outputs, users)


def _argument(variable: Any, name: str, value: object, *, signal: bool) -> Tensor:
    aval = variable.aval
    given = None if signal else value
    return Tensor(tuple(aval.shape), aval.dtype, None, signal, not signal, given, name)


def _leading_to(outputs: Sequence[Tensor]) -> set[Operation]:
    needed: set[Operation] = set()
    waiting = [tensor.operation for tensor in outputs]
    while waiting:
        op = waiting.pop()
        if op is not None and op not in needed:
            needed.add(op)
            waiting += [tensor.operation for tensor in op.inputs]
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
        """The outputs of a jaxpr on `inputs`, with its operations appended to the record.

        With `here`, they all belong to the place of the call.
        """
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
        if any(tensor.signal for tensor in inputs):
            if name in _CALLS:
                called = next(parameters[key] for key in _CALLED if key in parameters)
                return self._call(called, inputs, location)
            if name == "scan" and not any(t.signal for t in _scanned(parameters, inputs)):
                return self._scan(parameters, inputs, location)
            if name == "cond" and (index := self._branch(inputs[0])) is not None:
                branches = parameters["branches"]
                chosen = branches[min(max(index, 0), len(branches) - 1)]
                return self._call(chosen, inputs[1:], location)
        run = partial(_bind, equation.primitive, parameters)
        avals = [variable.aval for variable in equation.outvars]
        return self._append(name, inputs, parameters, run, location, avals)

    def _branch(self, index: Tensor) -> int | None:
        value = None if index.signal else self._known(index)
        return None if value is None or np.ndim(value) else int(value)  # pyright: ignore

    def _call(self, called: Any, inputs: Sequence[Tensor], location: Location) -> list[Tensor]:
        self._calls += 1
        jaxpr = getattr(called, "jaxpr", called)
        function = getattr(getattr(jaxpr, "debug_info", None), "func_src_info", None) or ""
        inside, here = location.inside(function, self._calls)
        return self.inline(called, inputs, inside, here=here)

    def _scan(
        self, parameters: Mapping[str, Any], inputs: Sequence[Tensor], location: Location
    ) -> list[Tensor]:
        """A loop over layers, whose parameters lie stacked in arrays, turn by turn."""
        constants = list(inputs[: parameters["num_consts"]])
        stacked = _scanned(parameters, inputs)
        carried = list(inputs[len(constants) : len(inputs) - len(stacked)])
        turns = range(parameters["length"])
        collected: list[list[Tensor]] = []
        for turn in reversed(turns) if parameters["reverse"] else turns:
            slices = [self._slice(tensor, turn, location) for tensor in stacked]
            results = self._call(parameters["jaxpr"], [*constants, *carried, *slices], location)
            carried = results[: len(carried)]
            collected.append(results[len(carried) :])
        if parameters["reverse"]:
            collected.reverse()
        return carried + [self._stack(parts, location) for parts in zip(*collected, strict=True)]

    def _slice(self, stacked: Tensor, turn: int, location: Location) -> Tensor:
        aval = jax.ShapeDtypeStruct(stacked.shape[1:], stacked.dtype)
        run = lambda array: [array[turn]]
        return self._append("scan_slice", [stacked], {"turn": turn}, run, location, [aval])[0]

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
        for aval in avals:
            shape, dtype = tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", None)
            op.outputs.append(Tensor(shape, dtype, op, signal, parametric))  # pyright: ignore
        self.operations.append(op)
        return op.outputs

    def _constant(self, array: object) -> Tensor:
        if id(array) not in self._constants:
            shape, dtype = np.shape(array), getattr(array, "dtype", np.dtype(float))  # pyright: ignore
            self._constants[id(array)] = Tensor(shape, dtype, None, False, True, array)
        return self._constants[id(array)]

    def _literal(self, atom: Any) -> Tensor:
        if np.shape(atom.val):  # small arrays that the function holds may be written as literals
            return self._constant(atom.val)
        return Tensor((), atom.aval.dtype, None, False, False, atom.val)


def _scanned(parameters: Mapping[str, Any], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    return inputs[parameters["num_consts"] + parameters["num_carry"] :]


def _bind(primitive: Any, parameters: Mapping[str, Any], *arrays: object) -> Sequence[object]:
    bound = primitive.get_bind_params(dict(parameters))
    functions, bound = bound if isinstance(bound, tuple) else ((), bound)  # before JAX 0.10
    result = primitive.bind(*functions, *arrays, **bound)
    return result if primitive.multiple_results else [result]

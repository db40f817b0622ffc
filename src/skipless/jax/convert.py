"""A JAX function shaped in one line: convert(fn, *args) -> a function of the same arguments.

Like `jax.vmap`, it transforms the function, whatever library it is written with: for each shape of
its arguments, the function is recorded, and its record is written again, shaped. That runs in its
place. The weights are the user's own. A Flax NNX module comes back as a module (`modules`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np

from skipless.core.activations import Activation
from skipless.core.arguments import require_function
from skipless.core.convert import ConversionReport, Writer, plan, write
from skipless.core.solution import DKS, EOC, TAT, Method

from .activations import Function, Shaped, shaped
from .operations import AFFINE, LAYOUTS, weight_of
from .record import FlatProgram, Location, Operation, Region, Tensor, ancestors
from .trace import Call, Form, Reading, read_program, record_call

if TYPE_CHECKING:
    from flax import nnx

    Model = TypeVar("Model", bound=nnx.Module)

R = TypeVar("R")

_KEPT = 32  # programs of one function, for as many shapes
_FORM = "A function: sk.jax.initialize(converted, *args, key=key) draws its weights."


@overload
def convert(
    fn: Model,
    *args: Any,
    method: Method = ...,
    activation: str | Activation = ...,
    shortcut_weight: float | None = ...,
    function: Function | None = ...,
    clamp: bool = ...,
    rngs: nnx.Rngs | None = ...,
) -> Model: ...
@overload
def convert(
    fn: Callable[..., R],
    *args: Any,
    method: Method = ...,
    activation: str | Activation = ...,
    shortcut_weight: float | None = ...,
    function: Function | None = ...,
    clamp: bool = ...,
    argnum: int = ...,
) -> ConvertedFunction[R]: ...
def convert(
    fn: Callable[..., Any],
    *args: Any,
    method: Method | None = None,
    activation: str | Activation = "leaky_relu",
    shortcut_weight: float | None = None,
    function: Function | None = None,
    clamp: bool = False,
    argnum: int = -1,
    rngs: nnx.Rngs | None = None,
) -> Any:
    """A function like `fn`, shaped by `method`; its `skipless_report` says what was changed.

    `fn`, its arguments and `argnum` are as for `trace`. `method`, by default `TAT()`, may also be
    the last argument. All others are those of `skipless.torch.convert`, which says what is changed.

    The result takes what `fn` takes, at any shape and type, and works under `jax.jit`, `jax.grad`
    and `jax.vmap`. Its weights are in the arguments, as before, and `initialize` draws them.

    Layers get no new biases, but a normalisation right behind a layer without one leaves its own
    shift to it. Running statistics come back as they were.

    An `nnx.Module` comes back as one, with activations that it holds replaced and weights drawn by
    `rngs`, by default `nnx.Rngs(0)`. Sums are in its code, and must be normalised there. To have
    them rewritten, convert the function `lambda state, x: nnx.merge(definition, state)(x)`.

    >>> def network(weights, x):
    ...     for w in weights:
    ...         x = x + jax.nn.relu(x) @ w
    ...     return x
    >>> weights, x = [jnp.eye(8)] * 20, jnp.ones((1, 8))
    >>> deep = convert(network, weights, x, TAT(eta=0.8), shortcut_weight=0.6)
    >>> phi, y = shaped(deep.skipless_report.solution), x
    >>> for w in weights:
    ...     y = 0.6 * y + 0.8 * phi(y) @ w
    >>> bool(jnp.allclose(deep(weights, x), y))
    True
    """
    if args and isinstance(args[-1], TAT | DKS | EOC) and method is None:
        args, method = args[:-1], args[-1]
    require_function("function", function)
    if isinstance(fn, type):
        raise TypeError(
            f"Expected a function or an nnx.Module, got the class {fn.__name__}. Make one first: "
            "convert(Net(rngs=nnx.Rngs(0)), example)."
        )
    wanted = Conversion(method or TAT(), activation, shortcut_weight, function, clamp)
    flax: Any = sys.modules.get("flax.nnx")
    if flax is not None and isinstance(fn, flax.Module):
        return _convert_module(fn, args, argnum, rngs, wanted)
    if rngs is not None:
        raise TypeError(
            "rngs is for an nnx.Module; the weights of a function are drawn by "
            "sk.jax.initialize(converted, *args, key=key)."
        )
    return ConvertedFunction(fn, args, argnum, wanted)


def _convert_module(
    module: Any, args: Sequence[Any], argnum: int, rngs: Any, wanted: Conversion
) -> Any:
    from .modules import convert_module  # which needs Flax

    example: Any = args[0] if args else None
    others = list(args[1:])
    if len(others) == 1:  # no method, which `plan` will say
        wanted = replace(wanted, method=others.pop())
    if others or argnum not in (-1, 0):
        raise TypeError(
            f"An nnx.Module takes one input here, got {len(args)} arguments and argnum={argnum}. "
            "Convert the function lambda state, x, y: nnx.merge(definition, state)(x, y) instead."
        )
    return convert_module(module, example, rngs=rngs, **vars(wanted))


@dataclass(frozen=True)
class Conversion:
    """What `convert` is told, except the function and its arguments."""

    method: Method
    activation: str | Activation
    shortcut_weight: float | None
    function: Function | None
    clamp: bool


@dataclass(frozen=True)
class _Program:
    """A converted function for arguments of certain shapes, and what it was made of."""

    reading: Reading
    form: Form  # of what it returns
    report: ConversionReport

    def __call__(self, arrays: Sequence[object]) -> Any:
        return self.form.fill(self.reading.record.run(arrays))


class ConvertedFunction(Generic[R]):
    """A function in whose place its shaped record runs; `convert` returns it.

    `skipless_report` is for the arguments that `convert` was given. Other shapes are recorded and
    solved for when they come. Arrays that the function finds elsewhere than in its arguments are
    looked up in each call, or once for all under `jax.jit`, as JAX does.
    """

    def __init__(
        self, fn: Callable[..., R], args: Sequence[Any], argnum: int, conversion: Conversion
    ) -> None:
        self._fn, self._argnum, self._conversion = fn, argnum, conversion
        self._programs: dict[object, _Program] = {}
        self._known: dict[tuple[object, ...], Any] = {}  # arrays that decide what is written
        program = self._write(Call.of(fn, args, argnum))
        for name, value in program.reading.constants.arguments.items():
            self._known[_kind(name, value)] = np.asarray(value)
        self.skipless_report = program.report

    def __repr__(self) -> str:
        return f"<{self._fn!r}, shaped by {self._conversion.method}>"

    def __call__(self, *args: Any, **keywords: Any) -> R:
        """What the shaped function returns for these arguments."""
        call = Call.of(self._fn, args, self._argnum, keywords)
        arrays = [a if isinstance(a, jax.Array) else jnp.asarray(a) for a in call.arrays]
        try:
            key = (call.form.key, *map(_kind, call.names, arrays), jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
            program = self._programs.get(key)
        except TypeError:  # an argument that has no hash
            key = program = None
        if program is None:
            # Its numbers may be unknown here, as under `jax.jit`: those of the example decide.
            program = self._write(
                replace(call, arrays=list(map(self._example, call.names, arrays)))
            )
            if key is not None and not _holds_arrays(program.reading.record):
                if len(self._programs) >= _KEPT:
                    del self._programs[next(iter(self._programs))]
                self._programs[key] = program
        return program(arrays)

    def __skipless_reading__(self, args: Sequence[Any], argnum: int, wide: bool) -> Reading:
        """What `trace`, `check`, `measure` and `initialize` read of the function."""
        call = Call.of(self._fn, args, argnum)
        known = [
            self._example(name, array) if isinstance(array, jax.ShapeDtypeStruct) else array
            for name, array in zip(call.names, call.arrays, strict=True)
        ]
        return self._write(replace(call, arrays=known), wide=wide).reading

    def _example(self, name: str, array: Any) -> Any:
        unknown = jax.ShapeDtypeStruct(array.shape, array.dtype)
        return self._known.get(_kind(name, array), unknown)

    def _write(self, call: Call, *, wide: bool = False) -> _Program:
        wanted = self._conversion
        program, constants, form = record_call(call, wide=wide)
        reading = read_program(program, constants)
        planned = plan(
            reading, wanted.method, wanted.activation, wanted.shortcut_weight, wanted.clamp
        )
        writer = _ProgramWriter(reading, shaped(planned.solution, wanted.function))
        outputs, changes = write(planned, writer)
        found = read_program(writer.program(outputs), constants)
        planned.require_same_maps(found.graph)
        report = replace(planned.report(changes, ()), form=_FORM)
        return _Program(found, form, report)


def _kind(name: str, array: Any) -> tuple[object, ...]:
    return name, tuple(array.shape), array.dtype


def _holds_arrays(program: FlatProgram) -> bool:
    """Whether arrays of JAX are in a record that are no arguments, and may be others next time."""
    return any(
        isinstance(tensor.value, jax.Array) and tensor not in program.arguments
        for op in program.operations
        for tensor in op.inputs
    )


class _ProgramWriter(Writer[Tensor, Tensor]):
    """Writes a record: operations of the old one on new tensors, and shaped activations.

    Each stays where it was in the user's code. Calls of known layers are copied as a whole.
    """

    def __init__(self, reading: Reading, phi: Shaped) -> None:
        self.reading, self.phi = reading, phi
        self.old = reading.record
        self.operations = [op for op in self.old.operations if not op.signals]
        self._shifts: dict[Tensor, tuple[Tensor, Location]] = {}  # of layers, from normalisations

    def program(self, outputs: Sequence[Tensor]) -> FlatProgram:
        """The new record, which returns `outputs` in place of the old ones."""
        new = dict(zip(self.reading.outputs, outputs, strict=True))
        returned = [new[t] if t in new else self._unchanged(t) for t in self.old.outputs]
        return FlatProgram.of(self.operations, self.old.arguments, self.old.input, returned)

    def tensors(self) -> Iterator[Tensor]:
        yield self.old.input
        for op in self.old.operations:
            if op.signals:
                yield from op.outputs

    def reads(self, tensor: Tensor) -> Sequence[Tensor]:
        if tensor.operation is None:
            return ()
        region = self._region(tensor)
        return tensor.operation.signals if region is None else region.sources

    def origin(self, tensor: Tensor) -> str:
        return self.reading.description.origin(tensor)

    def input(self, tensor: Tensor) -> Tensor:
        return tensor

    def copy(self, tensor: Tensor, use: Callable[[Tensor], Tensor]) -> Tensor:
        assert tensor.operation is not None
        region = self._region(tensor)
        if region is None:
            new = self._run_on({t: use(t) for t in tensor.operation.signals}, tensor.operation)
            result = new[tensor]
        else:
            values = {source: use(source) for source in region.sources}
            for op in sorted(region.operations, key=lambda op: op.index):
                values |= self._run_on(values, op)
            result = values[tensor]
        if tensor not in self._shifts:
            return result
        shift, where = self._shifts[tensor]
        add = lambda x, b: [x + b.astype(x.dtype)]
        return self._append("add", [result, shift], {}, add, where, [result])[0]

    def activation(self, tensor: Tensor, x: Tensor) -> Tensor:
        assert tensor.operation is not None
        # A call of its own, which `trace` knows by its kind.
        where = replace(tensor.operation.location, kind="shaped", call=-len(self.operations))
        run = lambda x: [self.phi(x).astype(tensor.dtype)]
        return self._append("shaped", [x], {}, run, where, [tensor])[0]

    def add(self, tensor: Tensor, terms: Sequence[tuple[float, Tensor]]) -> Tensor:
        assert tensor.operation is not None
        where = tensor.operation.location
        scaled = [self._times(x, weight, where) for weight, x in terms]
        total = scaled[0]
        for term in scaled[1:]:
            total = self._append("add", [total, term], {}, lambda a, b: [a + b], where, [tensor])[0]
        return total

    def negative(self, x: Tensor) -> Tensor:
        where = x.operation.location if x.operation is not None else Location()
        return self._append("neg", [x], {}, lambda x: [-x], where, [x])[0]

    def give_bias(self, tensor: Tensor) -> bool:
        """Whether a normalisation right behind the layer has a shift, which is its bias now."""
        if tensor.operation is None or tensor.operation.name not in AFFINE:
            return False
        if tensor in self._shifts:
            return False
        for op in self.old.users.get(tensor, ()):
            region = self.reading.description.regions.get(op)
            if region is None or region.kind != "norm" or region.sources != [tensor]:
                continue
            if region.result is not None and (shift := _shift_of(region.result)) is not None:
                self._shifts[tensor] = shift, op.location
                return True
        return False

    def _region(self, tensor: Tensor) -> Region | None:
        """The call of a known layer that `tensor` is the result of."""
        assert tensor.operation is not None
        region = self.reading.description.regions.get(tensor.operation)
        if region is None or region.kind == "probabilities" or region.result is not tensor:
            return None
        return region

    def _run_on(self, values: Mapping[Tensor, Tensor], op: Operation) -> dict[Tensor, Tensor]:
        """The operation again, on `values` in place of its inputs."""
        inputs = [values.get(t, t) for t in op.inputs]
        new = self._append(op.name, inputs, op.parameters, op.run, op.location, op.outputs)
        return dict(zip(op.outputs, new, strict=True))

    def _times(self, x: Tensor, weight: float, where: Location) -> Tensor:
        if weight == 1.0:
            return x
        number = Tensor((), np.dtype(np.float64), value=weight)
        return self._append("mul", [x, number], {}, lambda x, _: [weight * x], where, [x])[0]

    def _append(
        self,
        name: str,
        inputs: Sequence[Tensor],
        parameters: Mapping[str, Any],
        run: Callable[..., Sequence[object]],
        location: Location,
        like: Sequence[Tensor],  # what it makes has these shapes and types
    ) -> list[Tensor]:
        index = len(self.old.operations) + len(self.operations)
        op = Operation(name, tuple(inputs), parameters, run, location, index)
        parametric, random = any(t.parametric for t in inputs), any(t.random for t in inputs)
        op.outputs.extend(Tensor(t.shape, t.dtype, op, True, parametric, random) for t in like)
        self.operations.append(op)
        return op.outputs

    def _unchanged(self, tensor: Tensor) -> Tensor:
        """What is returned in place of a statistic of the signal: the one that was passed."""
        if not tensor.signal:
            return tensor
        for op in sorted(ancestors([tensor]), key=lambda op: -op.index):
            for source in op.inputs:
                given = source in self.old.arguments and not source.signal
                if given and (source.shape, source.dtype) == (tensor.shape, tensor.dtype):
                    return source
        zeros = np.zeros(tensor.shape, tensor.dtype)
        return Tensor(tensor.shape, tensor.dtype, parametric=True, value=zeros)


def _shift_of(tensor: Tensor) -> Tensor | None:
    """The array that was added last, if one was."""
    op = tensor.operation
    while op is not None and op.name in LAYOUTS and op.inputs[0].signal:
        op = op.inputs[0].operation
    if (
        op is None
        or op.name != "add"
        or len(op.signals) != 1
        or op.outputs[0].shape != tensor.shape
    ):
        return None
    added = weight_of(op)
    return added if added.parametric else None

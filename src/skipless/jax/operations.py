"""JAX's primitives by what they mean to the theory.

JAX's elementwise primitives in numpy, in which a pointwise function is its values on `PROBE`.

Which axes of recorded tensors run over samples, and which over channels.

Calls of known layers, each of which is many operations in the record and one to the theory.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy import special

from skipless.core.trace import fills_up, pads_channels, pools_channels, reshaped

from .record import CallKind, Operation, Record, Tensor

LAYOUTS = {"reshape", "transpose", "squeeze", "expand_dims", "copy", "convert_element_type"}
MOVES = {
    "reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "slice", "dynamic_slice",
    "pad", "rev", "gather", "split", "tile",
}  # fmt: skip
APPROXIMATE_MOVES = {"reduce_window_max", "reduce_max"}
SUMS = {"reduce_sum", "reduce_window_sum"}
AFFINE = {"dot_general", "conv_general_dilated"}
ADDITIONS = {"add", "sub", "add_any"}
CONCATENATIONS = {"concatenate"}

# What has no maps: of what kind it is, and what can be done.
_APART = "shape the parts before and after it on their own"
UNKNOWN = ("", f"Leave it out of the traced function, or {_APART}.")
_LOOP = (" along the input", f"Leave the recurrent part out of the traced function, or {_APART}.")
PROBABILITIES = (
    " for probabilities or attention",
    "If it ends the network, let the loss compute it (softmax_cross_entropy of the logits); if it "
    f"is part of attention, leave that out of the traced function, or {_APART}.",
)
UNCOVERED = {
    "scan": _LOOP,
    "while": (
        " whose number of turns is not known",
        "Write layers as a Python loop, or with jax.lax.scan over their stacked parameters.",
    ),
    "cond": (
        " by a condition that depends on the input or is not known",
        "Give the arrays that decide it, and not their shapes only, or leave it out.",
    ),
    "stack": (" of arrays along a new axis", "Concatenate them along channels, or add them up."),
    "scan_results": (
        " of all its turns",
        "Return what the scan carries, or write its layers as a Python loop.",
    ),
    "gather": (
        " by indices that depend on the input, as an embedding does",
        "Trace the network that reads the vectors, and not the indices.",
    ),
}


def signals(op: Operation) -> list[Tensor]:
    """The inputs of `op` that depend on the network's input."""
    return [tensor for tensor in op.inputs if tensor.signal]


def weight_of(op: Operation) -> Tensor:
    """The input of a layer's operation that does not depend on the network's input."""
    return next(tensor for tensor in op.inputs if not tensor.signal)


def unmoved(tensor: Tensor) -> Tensor:
    """The constant that `tensor` is, before it was reshaped, transposed or converted."""
    while (op := tensor.operation) is not None and op.name in LAYOUTS | {"broadcast_in_dim"}:
        tensor = op.inputs[0]
    return tensor


def fan_in(op: Operation, source: Tensor, weight: Tensor) -> tuple[int, bool]:
    """How many channels an output of a layer reads if there are groups, and if it reads its own.

    The number is 0 for a layer without groups, which reads all of them.
    """
    if op.name == "conv_general_dilated":
        groups = op.parameters["feature_group_count"]
        specification = op.parameters["dimension_numbers"]
        channels = source.shape[specification.lhs_spec[1]] // groups
        outputs = weight.shape[specification.rhs_spec[0]]
        return (channels, channels == 1 and outputs == groups) if groups > 1 else (0, False)
    (contracted, _), (batched, _) = op.parameters["dimension_numbers"]
    groups = bool(batched)
    channels = 1
    for axis in contracted:
        channels *= op.inputs[0].shape[axis]
    return (channels, False) if groups else (0, False)


def reduced(op: Operation) -> float:
    """How many numbers a sum or a window adds up."""
    if op.name == "reduce_window_sum":
        sizes = op.parameters["window_dimensions"]
    else:
        sizes = [op.inputs[0].shape[axis] for axis in op.parameters["axes"]]
    count = 1
    for size in sizes:
        count *= size
    return float(count)


Values = npt.NDArray[np.float64]
_Function = Callable[..., npt.ArrayLike]


def _integer_pow(x: Values, *, y: int, **_: object) -> Values:
    return np.power(x, float(y))


def _select(which: Values, *cases: Values, **_: object) -> Values:
    return np.choose(which.astype(int), cases)


def _clamp(low: Values, x: Values, high: Values, **_: object) -> Values:
    return np.minimum(np.maximum(x, low), high)


def _convert(x: Values, *, new_dtype: npt.DTypeLike, **_: object) -> Values:
    """`x` rounded to whole numbers, or to truth values, where the type asks for it."""
    kind = np.dtype(new_dtype).kind
    if kind == "b":
        return (x != 0.0).astype(np.float64)
    return np.trunc(x) if kind in "iu" else x


def _round(x: Values, *, rounding_method: int = 0, **_: object) -> Values:
    to_even = int(rounding_method) == 1
    return np.round(x) if to_even else np.trunc(x + np.copysign(0.5, x))


def _plain(function: _Function) -> _Function:
    return lambda *arguments, **_: function(*arguments)


# What gives back a tensor's own numbers, at their places: some of the names are of other versions.
UNCHANGED = {
    "copy", "copy_p", "reduce_precision", "sharding_constraint", "optimization_barrier", "pvary",
    "stop_gradient", "mesh_cast", "reshard", "real", "name", "convert_element_type",
    "layout_constraint", "pcast", "checkpoint_name",
}  # fmt: skip
_ARITHMETIC: dict[str, _Function] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
}  # fmt: skip
_NUMPY: dict[str, _Function] = {
    **_ARITHMETIC,
    "neg": np.negative, "max": np.maximum, "min": np.minimum, "abs": np.abs, "sign": np.sign,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "sqrt": np.sqrt, "cbrt": np.cbrt, "square": np.square, "pow": np.power, "rem": np.fmod,
    "rsqrt": lambda x: 1.0 / np.sqrt(x), "logistic": special.expit, "erf": special.erf,
    "erfc": special.erfc, "erf_inv": special.erfinv, "lgamma": special.gammaln,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "floor": np.floor,
    "ceil": np.ceil, "is_finite": np.isfinite, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "xor": np.logical_xor,
}  # fmt: skip
_FUNCTIONS: dict[str, _Function] = {
    **{name: _plain(function) for name, function in _NUMPY.items()},
    **dict.fromkeys(UNCHANGED, _plain(np.positive)),
    "convert_element_type": _convert,
    "integer_pow": _integer_pow,
    "select_n": _select,
    "clamp": _clamp,
    "round": _round,
}
ARITHMETIC = frozenset(_ARITHMETIC)
POINTWISE = frozenset(_FUNCTIONS)


def evaluate(name: str, parameters: Mapping[str, Any], arguments: Sequence[Values]) -> Values:
    """What the primitive `name` makes of its arguments, in float64.

    >>> evaluate("integer_pow", {"y": 3}, [np.array([2.0])]).tolist()
    [8.0]
    """
    with np.errstate(all="ignore"):  # what is not taken by a `select_n` may be anything
        result = _FUNCTIONS[name](*np.broadcast_arrays(*arguments), **parameters)
    return np.asarray(result, dtype=np.float64)


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


@dataclass(eq=False)
class Region:
    """The operations of one call, the tensors that it reads, and what is read of it outside."""

    kind: CallKind
    sources: list[Tensor] = field(default_factory=list[Tensor])
    operations: list[Operation] = field(default_factory=list[Operation])
    exits: list[Tensor] = field(default_factory=list[Tensor])

    @property
    def result(self) -> Tensor | None:
        """What the call is about: all else, such as a running mean, are its statistics.

        It has the shape of what the call reads, but a normalised input may have a channel more.
        """
        rank = len(self.sources[0].shape)
        shapes = [tensor for tensor in self.exits if tensor.shape == self.sources[0].shape]
        ranks = [tensor for tensor in self.exits if len(tensor.shape) == rank]
        return next(reversed(shapes or ranks or self.exits), None)


def regions(record: Record) -> Mapping[Operation, Region]:
    """The region of every operation that belongs to one.

    Operations are of the same call if they were recorded under the same frames and are joined by
    each other's results: a loop may call several layers from one line, even on the same tensor.
    """
    found: dict[Operation, Region] = {}
    calls: dict[Operation, object] = {}
    for op in record.operations:
        sources = signals(op)
        if not sources or (call := op.location.library_call) is None:
            continue
        kind, calls[op] = call
        own = [t for t in sources if t.operation and calls.get(t.operation) == calls[op]]
        others = [t for t in sources if t not in own]
        same = [found[t.operation] for t in own if t.operation]
        region = same[0] if same else Region(kind)
        for other in same[1:]:
            _merge(other, region, found)
        for source in others:
            if source not in region.sources:
                region.sources.append(source)
        region.operations.append(op)
        found[op] = region
    for region in dict.fromkeys(found.values()):
        region.exits = _exits(region, record)
    return found


def _merge(other: Region, into: Region, found: dict[Operation, Region]) -> None:
    if other is into:
        return
    into.operations += other.operations
    into.sources += [source for source in other.sources if source not in into.sources]
    found.update(dict.fromkeys(other.operations, into))
    other.operations, other.sources = into.operations, into.sources


def _exits(region: Region, record: Record) -> list[Tensor]:
    inside = set(region.operations)
    outputs: Sequence[Tensor] = [t for op in region.operations for t in op.outputs]
    return [
        tensor
        for tensor in outputs
        if tensor in record.outputs or any(op not in inside for op in record.users.get(tensor, ()))
    ]

r"""Where the constants of a shaped network can go: gauges of tensors, and their equations.

A network may store a tensor $x$ as another one, $p$, with

$$x = \text{scale} \cdot p + \text{shift},$$

if its readers know. The pair is the tensor's *gauge*. An affine layer can read any gauge and write
any other, by a change of its weights. A shaped activation, $s_o\,(\varphi(s_i x + b_i) + b_o)$, is
the plain φ if its input has the gauge $(1 / s_i, -b_i / s_i)$ and its output $(s_o, s_o b_o)$; a
rectifier is homogeneous and leaves one scale free. Other operations have a *role*: a reshape passes
both on, zero-padding and rectifiers only scales, a sum adds shifts, and an unknown operation needs
the numbers themselves.

So which constants fold into which weights is a system of linear equations, in the logarithms of the
scales and in the shifts. What an operation requires of its own gauges can always be met. Where it
contradicts that a tensor is read as it is written, a multiplication or an addition remains.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor, fx, nn

from . import operations as ops
from .activations import ShapedActivation


@dataclass(frozen=True)
class _GaugeReader:
    inputs: tuple[fx.Node, ...]

    @property
    def input(self) -> fx.Node:
        return self.inputs[0]


class Opaque(_GaugeReader):
    """Needs and returns the numbers themselves."""


class ShapeOnly(_GaugeReader):
    """Reads a shape, or computes with one; the numbers do not matter."""


@dataclass(frozen=True)
class PassThrough(_GaugeReader):
    """Passes a scale on, and with `shift` a shift, too."""

    shift: bool = True


@dataclass(frozen=True)
class GaugedSum(_GaugeReader):
    weights: tuple[float, ...]


@dataclass(frozen=True)
class ScaleBy(_GaugeReader):
    factor: float


@dataclass(frozen=True)
class ShiftBy(_GaugeReader):
    number: float


@dataclass(frozen=True)
class AffineLayer(_GaugeReader):
    """A layer by the names of its weight and bias, of which the bias may not exist yet.

    With `shift`, a shift of the input reaches all outputs alike. Transposed convolutions have their
    channels in other places.
    """

    weight: str
    bias: str
    shift: bool
    transposed_groups: int | None = None


@dataclass(frozen=True)
class ShapedLayer(_GaugeReader):
    activation: ShapedActivation


Role = Opaque | ShapeOnly | PassThrough | GaugedSum | ScaleBy | ShiftBy | AffineLayer | ShapedLayer

_HOMOGENEOUS = {nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d}
_IN_EVERY_DIMENSION = (
    *("MaxPool", "AdaptiveMaxPool", "AdaptiveAvgPool", "Dropout"),
    *("ReflectionPad", "ReplicationPad", "CircularPad"),
)
# Dropout, because `fold` returns a network in evaluation mode.
_PASSING_MODULES = {
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
    *(nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d),
    *(nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(getattr(nn, f"{name}{size}d") for name in _IN_EVERY_DIMENSION for size in (1, 2, 3)),
}

_LAYERS = ops.AFFINE - {"convolution", "addmm", "mm", "matmul"}
_DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d"}
_POOLS = {"avg_pool1d", "avg_pool2d", "avg_pool3d"}
_PADS = {"pad", "constant_pad_nd"}
_PARTS = {"chunk", "split", "split_with_sizes", "unbind"}  # return tuples
# A cast may round to integers; an adaptive maximum may return a tuple.
_PASSING = (
    ops.MOVES - _DROPOUTS - _POOLS - _PADS - {"to", "_to_copy"}
    | {name for name in ops.APPROXIMATE_MOVES if not name.startswith("adaptive")}
    | {"interpolate", "swapdims", "moveaxis", "tile"}
)  # fmt: skip
_SCALE_ONLY = {"relu", "leaky_relu", "prelu", "sum"}
_SHAPES = {"size", "dim", "numel", "sym_size", "sym_numel", "ndimension", "_assert_tensor_metadata"}
_SHAPE_ATTRIBUTES = {"shape", "ndim", "dtype", "device"}


def read_roles(model: fx.GraphModule) -> dict[fx.Node, Role]:
    """The role of every node of the graph of `model`, in its order."""
    roles: dict[fx.Node, Role] = {}
    for node in model.graph.nodes:
        tensors = tuple(x for x in node.all_input_nodes if not isinstance(roles[x], ShapeOnly))
        role = _role(model, node, tensors)
        # A stored weight, index or factor is not an activation.
        activations = {x for x in tensors if x.op != "get_attr"}
        understood = activations <= {*role.inputs} <= {*tensors}
        roles[node] = role if understood or isinstance(role, ShapeOnly) else Opaque(tensors)
    shared = _shared_parameters(model, roles)
    for node, role in roles.items():
        if isinstance(role, AffineLayer) and shared & _ids(model, role.weight, role.bias):
            roles[node] = Opaque(tuple(node.all_input_nodes))
    return roles


def parameter(model: nn.Module, path: str) -> Tensor | None:
    """The tensor at a dotted `path`, or None if there is none."""
    owner, _, name = path.rpartition(".")
    return getattr(model.get_submodule(owner), name, None)


def module(model: nn.Module, node: fx.Node) -> nn.Module | None:
    """The module that a node calls, if any."""
    return model.get_submodule(str(node.target)) if node.op == "call_module" else None


def _role(model: fx.GraphModule, node: fx.Node, tensors: tuple[fx.Node, ...]) -> Role:
    """The role of `node`; `Opaque` of nothing if it is unknown."""
    called = module(model, node)
    if called is not None and node.args and isinstance(node.args[0], fx.Node):
        return _role_of_module(called, str(node.target), node.args[0])
    if node.op not in ("call_function", "call_method"):
        return Opaque(())
    name = ops.plain_operation(node)
    reads_shape = name == "getattr" and node.args[1] in _SHAPE_ATTRIBUTES
    if name in _SHAPES or reads_shape or (node.all_input_nodes and not tensors):
        return ShapeOnly(())
    if name in ("cat", "concat", "stack") and isinstance(node.args[0], list | tuple):
        return PassThrough(tuple(x for x in node.args[0] if isinstance(x, fx.Node)))
    if name in ("add", "sub", "mul", "div", "truediv"):
        return _arithmetic(model, node, name)
    first = ops.argument(node, 0, "input")
    return _role_of_function(node, name, first) if isinstance(first, fx.Node) else Opaque(())


def is_plain_layer(layer: nn.Module | None) -> bool:
    """Whether this is a layer of PyTorch's own with a weight that can be changed."""
    # A subclass may compute anything; a weight under `parametrize` is computed.
    return layer is not None and type(layer) in ops.STOCK_LAYERS and "weight" in layer._parameters


def _role_of_module(called: nn.Module, path: str, x: fx.Node) -> Role:
    if isinstance(called, ShapedActivation):
        # A negative scale would turn a maximum into a minimum; 0 / 0 is no scale at all.
        scales = [called.constants.get(name, 1.0) for name in ("input_scale", "output_scale")]
        return ShapedLayer((x,), called) if min(scales) > 0.0 else Opaque(())
    if is_plain_layer(called):
        return _layer(called, path, x)
    kind = type(called)
    if kind in (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d):
        padded = _nonzero(called.padding) and called.count_include_pad
        return PassThrough((x,), not padded and getattr(called, "divisor_override", None) is None)
    if kind in _HOMOGENEOUS:
        return PassThrough((x,), shift=False)
    passes = kind in _PASSING_MODULES and not getattr(called, "return_indices", False)
    return PassThrough((x,)) if passes else Opaque(())


def _layer(layer: nn.Module, path: str, x: fx.Node) -> AffineLayer:
    names = (f"{path}.weight", f"{path}.bias")
    if isinstance(layer, ops.TRANSPOSED):
        # Each input pixel stamps the kernel onto the output, so a shift shows the stamp, unless the
        # padding crops all outputs but those that see the whole kernel.
        sizes = (layer.stride, layer.output_padding, layer.padding, layer.dilation)
        whole = all(
            s == 1 and o == 0 and p == d * (k - 1)
            for s, o, p, d, k in zip(*sizes, layer.kernel_size, strict=True)
        )
        return AffineLayer((x,), *names, whole, layer.groups)
    # Zeros around the input stay zeros when the input is shifted; copies of the input do not.
    zeros = isinstance(layer, ops.CONVOLUTIONS) and layer.padding_mode == "zeros"
    return AffineLayer((x,), *names, not (zeros and _nonzero(layer.padding)))


def _role_of_function(node: fx.Node, name: str, x: fx.Node) -> Role:
    if name in _LAYERS:
        return _functional_layer(node, name, x)
    if name == "neg":
        return ScaleBy((x,), -1.0)
    if name in _DROPOUTS:
        random = ops.argument(node, 2, "train", node.kwargs.get("training", True))
        return PassThrough((x,), shift=not random)
    if name in _POOLS:
        padded = _nonzero(ops.argument(node, 3, "padding", 0))
        return PassThrough((x,), not padded and ops.argument(node, 6, "divisor_override") is None)
    if name in _PADS:
        mode = ops.argument(node, 2, "mode", "constant") if name == "pad" else "constant"
        zero = not ops.argument(node, 3 if name == "pad" else 2, "value")
        return PassThrough((x,), mode != "constant") if zero else Opaque(())
    if name in _PARTS and all(ops.plain_operation(user) == "getitem" for user in node.users):
        return PassThrough((x,))
    passes = name in _PASSING | _SCALE_ONLY and not node.kwargs.get("return_indices", False)
    return PassThrough((x,), shift=name in _PASSING) if passes else Opaque(())


def _functional_layer(node: fx.Node, name: str, x: fx.Node) -> Role:
    weight, bias = ops.argument(node, 1, "weight"), ops.argument(node, 2, "bias")
    if not all(isinstance(p, fx.Node) and p.op == "get_attr" for p in (weight, bias or weight)):
        return Opaque(())
    # A call without a bias may get one next to its weight.
    names = (str(weight.target), str(bias.target if bias else f"{weight.target}_bias"))
    if name.startswith("conv_transpose"):
        groups = ops.argument(node, 6, "groups", 1)
        return AffineLayer((x,), *names, shift=False, transposed_groups=groups)
    padded = name != "linear" and _nonzero(ops.argument(node, 4, "padding", 0))
    return AffineLayer((x,), *names, shift=not padded)


def _arithmetic(model: nn.Module, node: fx.Node, name: str) -> Role:
    left, right = ops.argument(node, 0, "input"), ops.argument(node, 1, "other")
    alpha = node.kwargs.get("alpha", 1.0)
    if set(node.kwargs) - {"input", "other", "alpha"} or not isinstance(alpha, int | float):
        return Opaque(())
    commutes = name == "mul" or (name, alpha) == ("add", 1.0)
    if commutes and isinstance(right, fx.Node) and _number(model, left) is not None:
        left, right = right, left
    if not isinstance(left, fx.Node):
        return Opaque(())
    number, weight = _number(model, right), -alpha if name == "sub" else alpha
    match name:
        case "add" | "sub" if number is not None:
            return ShiftBy((left,), weight * number)
        case "add" | "sub" if isinstance(right, fx.Node):
            return GaugedSum((left, right), (1.0, weight))
        case "mul" if number is not None:
            return ScaleBy((left,), number)
        case "div" | "truediv" if number:
            return ScaleBy((left,), 1.0 / number)
        case _:
            return Opaque(())


def _number(model: nn.Module, value: object) -> float | None:
    """A literal number, or one stored in a tensor of one element."""
    if isinstance(value, fx.Node) and value.op == "get_attr":
        value = parameter(model, str(value.target))
        value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else None
    return float(value) if isinstance(value, int | float) else None


def _nonzero(padding: object) -> bool:
    sizes = padding if isinstance(padding, list | tuple) else (padding,)
    return any(size not in (0, "valid") for size in sizes)


def _ids(model: nn.Module, *paths: str) -> set[int]:
    found = (parameter(model, path) for path in paths)
    return {id(p) for p in found if p is not None}


def _shared_parameters(model: fx.GraphModule, roles: Mapping[fx.Node, Role]) -> set[int]:
    """The ids of parameters that more than one layer uses."""
    owners: dict[int, set[object]] = defaultdict(set)
    for node, role in roles.items():
        owner: object = node
        if isinstance(role, AffineLayer):
            owner, used = (role.weight, role.bias), _ids(model, role.weight, role.bias)
        elif (called := module(model, node)) is not None:
            used = {id(p) for p in called.parameters()}
        else:
            used = _ids(model, *(str(x.target) for x in node.all_input_nodes if x.op == "get_attr"))
        for key in used:
            owners[key].add(owner)
    return {key for key, who in owners.items() if len(who) > 1}


Unknown = Hashable  # a node for its output, or a slot
# Far above the rounding of a few hundred additions, far below the resolution of float32.
TOLERANCE = 1e-12
_PROBE = torch.linspace(-12.0, 12.0, 49, dtype=torch.float64)


@dataclass(frozen=True)
class Gauge:
    """A tensor x is stored as (x - `shift`) / `scale`."""

    scale: float
    shift: float


class Equations:
    """Linear equations in named unknowns, each added unless it contradicts earlier ones.

    >>> equations = Equations()
    >>> equations.add(3.0, (1.0, "x"), (1.0, "y")), equations.add(1.0, (1.0, "x"))
    (True, True)
    >>> equations.add(5.0, (1.0, "y"))
    False
    >>> equations.values()
    {'x': 1.0, 'y': 2.0}
    """

    def __init__(self) -> None:
        self._order: dict[Unknown, int] = {}
        self._solved: dict[int, tuple[dict[int, float], float]] = {}

    def add(self, value: float, *terms: tuple[float, Unknown]) -> bool:
        """Require Σ coefficient · unknown = `value`; returns whether that is possible."""
        row: dict[int, float] = defaultdict(float)
        for coefficient, unknown in terms:
            row[self._order.setdefault(unknown, len(self._order))] += coefficient
        row, value = self._reduce(row, value)
        if not row:
            return abs(value) <= TOLERANCE
        # The newest unknown follows from older ones, as in the network itself: the other way round,
        # a long weighted sum would be divided by its weights again and again.
        newest = max(row)
        lead = row.pop(newest)
        self._solved[newest] = ({i: -c / lead for i, c in row.items()}, value / lead)
        return True

    def equate(self, unknown: Unknown, *others: Unknown) -> None:
        """Require that `unknown` is each of the `others`, as far as that is possible."""
        for other in others:
            self.add(0.0, (-1.0, other), (1.0, unknown))

    def _reduce(self, row: dict[int, float], value: float) -> tuple[dict[int, float], float]:
        """The same equation in unknowns that no other equation determines."""
        left: dict[int, float] = {}
        while row:
            newest = max(row)
            coefficient = row.pop(newest)
            if abs(coefficient) <= TOLERANCE:
                continue
            if newest not in self._solved:
                left[newest] = coefficient
                continue
            older, constant = self._solved[newest]
            value -= coefficient * constant
            for i, c in older.items():
                row[i] += coefficient * c
        return left, value

    def values(self) -> dict[Unknown, float]:
        """Every unknown, in order of first mention; zero if it is free."""
        numbers: dict[int, float] = {}
        for i in self._order.values():
            older, constant = self._solved.get(i, ({}, 0.0))
            numbers[i] = constant + sum(c * numbers[j] for j, c in older.items())
        return {unknown: numbers[i] for unknown, i in self._order.items()}


def solve_gauges(roles: Mapping[fx.Node, Role]) -> dict[Unknown, Gauge]:
    """A gauge for each tensor, by its node, and for each reading of it, by its `slot`.

    Requirements of operations come first; then, from input to output, that tensors are read as they
    are written; then preferences: that activations and sums keep their values, so that scales do
    not accumulate along sums, and that the network's own factors and added numbers vanish.
    """
    scales, shifts = Equations(), Equations()
    for node, role in roles.items():
        _relate(scales, shifts, node, role)
    for node, role in roles.items():
        for source in dict.fromkeys(role.inputs):
            scales.equate(slot(node, role, source), source)
            shifts.equate(slot(node, role, source), source)
    for kind in (ShapedLayer, GaugedSum):
        for node in (node for node, role in roles.items() if isinstance(role, kind)):
            scales.add(0.0, (1.0, node))
    for node, role in roles.items():
        if isinstance(role, ScaleBy) and role.factor > 0.0:
            scales.add(math.log(role.factor), (1.0, node), (-1.0, role.input))
        elif isinstance(role, ShiftBy):
            shifts.add(role.number, (1.0, node), (-1.0, role.input))
    scale, shift = scales.values(), shifts.values()
    unknowns = dict.fromkeys([*scale, *shift])
    return {u: Gauge(math.exp(scale.get(u, 0.0)), shift.get(u, 0.0)) for u in unknowns}


def _relate(scales: Equations, shifts: Equations, node: fx.Node, role: Role) -> None:
    """Add the equations of the operation at `node`, in shifts and in the logarithms of scales."""
    slots = [slot(node, role, source) for source in dict.fromkeys(role.inputs)]
    match role:
        case ShapeOnly():
            pass
        case Opaque():
            for unknown in (*slots, node):
                scales.add(0.0, (1.0, unknown))
                shifts.add(0.0, (1.0, unknown))
        case PassThrough():
            scales.equate(node, *slots)
            if role.shift:
                shifts.equate(node, *slots)
            for unknown in () if role.shift else (*slots, node):
                shifts.add(0.0, (1.0, unknown))
        case GaugedSum():
            scales.equate(node, *slots)
            terms = zip(role.weights, role.inputs, strict=True)
            shifts.add(0.0, *((-w, slot(node, role, x)) for w, x in terms), (1.0, node))
        case ScaleBy():
            shifts.add(0.0, (-role.factor, role.input), (1.0, node))
        case ShiftBy():
            scales.equate(node, role.input)
        case AffineLayer():
            scales.equate(node, (role.weight, "output"))
            shifts.equate(node, (role.weight, "output"))
            if not role.shift:
                shifts.add(0.0, (1.0, slots[0]))
        case ShapedLayer():
            given = {"input_scale": 1.0, "input_shift": 0.0, "output_shift": 0.0}
            given |= role.activation.constants
            if _is_homogeneous(role.activation.function):
                both = math.log(given["input_scale"]) + math.log(given["output_scale"])
                scales.add(both, (-1.0, slots[0]), (1.0, node))
            else:
                scales.add(-math.log(given["input_scale"]), (1.0, slots[0]))
                scales.add(math.log(given["output_scale"]), (1.0, node))
            shifts.add(-given["input_shift"] / given["input_scale"], (1.0, slots[0]))
            shifts.add(given["output_scale"] * given["output_shift"], (1.0, node))
        case _:
            assert_never(role)


def slot(node: fx.Node, role: Role, source: fx.Node) -> Unknown:
    """The unknown for the gauge in which `node` reads `source`.

    All calls of a layer share it, because they share the weights. A factor or an added number reads
    any gauge, because it can change itself.
    """
    match role:
        case AffineLayer():
            return (role.weight, "input")
        case ScaleBy() | ShiftBy():
            return source
        case _:
            return (node, source)


def _is_homogeneous(phi: Callable[[Tensor], Tensor]) -> bool:
    """Whether φ(k x) = k φ(x) for positive k, on a probe."""
    return torch.equal(phi(4.0 * _PROBE), 4.0 * phi(_PROBE))  # powers of two do not round

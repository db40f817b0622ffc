"""What each operation of a network does to a multiple, and to a shift, of its input.

`fold` moves constants through a network. Whether it may depends on no more than this: a reshape
hands both on, zero-padding and rectifiers only multiples, a sum adds up shifts, an affine layer
takes in whatever it is given, and what is not known here needs its numbers as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from torch import Tensor, fx, nn

from .activations import ShapedActivation
from .layers import CONVOLUTIONS, TRANSPOSED
from .operations import APPROXIMATE_MOVES, MOVES, operation


@dataclass(frozen=True)
class Opaque:
    """Takes and gives the numbers themselves."""

    inputs: tuple[fx.Node, ...] = ()


@dataclass(frozen=True)
class Blind:
    """Asks for a shape, or computes with one; the numbers do not matter."""


@dataclass(frozen=True)
class Passes:
    """Hands on a multiple, and a shift too if `shift`."""

    inputs: tuple[fx.Node, ...]
    shift: bool = True


@dataclass(frozen=True)
class Sum:
    terms: tuple[tuple[float, fx.Node], ...]


@dataclass(frozen=True)
class Times:
    factor: float
    input: fx.Node


@dataclass(frozen=True)
class Plus:
    number: float
    input: fx.Node


@dataclass(frozen=True)
class Affine:
    """A layer by the names of its weight and bias; with `shift`, a shift reaches all its outputs.

    The bias need not be there yet. Transposed convolutions have their channels in other places.
    """

    input: fx.Node
    weight: str
    bias: str
    shift: bool
    transposed_groups: int | None = None


@dataclass(frozen=True)
class Shaped:
    input: fx.Node
    activation: ShapedActivation


Role = Opaque | Blind | Passes | Sum | Times | Plus | Affine | Shaped

_AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_RECTIFIERS = (nn.ReLU, nn.LeakyReLU, nn.PReLU)
_ZERO_PADS = (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d)
_IN_EVERY_DIMENSION = (
    *("MaxPool", "AdaptiveMaxPool", "AdaptiveAvgPool", "Dropout"),
    *("ReflectionPad", "ReplicationPad", "CircularPad"),
)
# Dropout, since what `fold` returns is in evaluation mode.
_PASSING_MODULES = {
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
    *(nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d),
    *(nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(getattr(nn, f"{name}{size}d") for name in _IN_EVERY_DIMENSION for size in (1, 2, 3)),
}

_LAYERS = {
    "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d",
}  # fmt: skip
_DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d"}
_POOLS = {"avg_pool1d", "avg_pool2d", "avg_pool3d"}
_PADS = {"pad", "constant_pad_nd"}
_PARTS = {"chunk", "split", "split_with_sizes", "unbind"}  # which give tuples
# A cast may round to integers; an adaptive maximum may give a tuple.
_PASSING = (
    MOVES - _DROPOUTS - _POOLS - _PADS - {"to", "_to_copy"}
    | {name for name in APPROXIMATE_MOVES if not name.startswith("adaptive")}
    | {"interpolate", "swapdims", "moveaxis", "tile"}
)  # fmt: skip
_SCALE_ONLY = {"relu", "leaky_relu", "prelu", "sum"}
_SHAPES = {"size", "dim", "numel", "sym_size", "sym_numel", "ndimension", "_assert_tensor_metadata"}
_SHAPE_ATTRIBUTES = {"shape", "ndim", "dtype", "device"}


def read_roles(model: fx.GraphModule) -> dict[fx.Node, Role]:
    """The role of every node of the graph of `model`, in its order."""
    roles: dict[fx.Node, Role] = {}
    for node in model.graph.nodes:
        tensors = tuple(x for x in node.all_input_nodes if not isinstance(roles[x], Blind))
        role = _role(model, node, tensors)
        # A weight, an index or a factor that is stored is not a tensor on its way.
        on_their_way = {x for x in tensors if x.op != "get_attr"}
        understood = on_their_way <= {*inputs(role)} <= {*tensors}
        roles[node] = role if understood or isinstance(role, Blind) else Opaque(tensors)
    tied = _tied(model, roles)
    for node, role in roles.items():
        if isinstance(role, Affine) and tied & {id(p) for p in _parameters(model, role)}:
            roles[node] = Opaque(tuple(node.all_input_nodes))
    return roles


def inputs(role: Role) -> tuple[fx.Node, ...]:
    """The tensors that an operation of this role reads."""
    match role:
        case Blind():
            return ()
        case Opaque(nodes) | Passes(nodes):
            return nodes
        case Sum(terms):
            return tuple(node for _, node in terms)
        case Times() | Plus() | Affine() | Shaped():
            return (role.input,)
        case _:
            assert_never(role)


def parameter(model: nn.Module, path: str) -> Tensor | None:
    """The tensor at a dotted `path`, or None if there is none."""
    owner, _, name = path.rpartition(".")
    return getattr(model.get_submodule(owner), name, None)


def module(model: nn.Module, node: fx.Node) -> nn.Module | None:
    """The module that a node calls, if it does."""
    return model.get_submodule(str(node.target)) if node.op == "call_module" else None


def argument(node: fx.Node, position: int, name: str, default: object = None) -> Any:
    """An argument of a call, given by position or by name."""
    return node.args[position] if position < len(node.args) else node.kwargs.get(name, default)


def plain_operation(node: fx.Node) -> str:
    """The name of what a node computes, be it out of place, in place, or a method: `add`."""
    return operation(node).rstrip("_")


def _role(model: fx.GraphModule, node: fx.Node, tensors: tuple[fx.Node, ...]) -> Role:
    """The role of `node`; `Opaque()` stands for all that is not known."""
    called = module(model, node)
    if called is not None and node.args and isinstance(node.args[0], fx.Node):
        return _role_of_module(called, str(node.target), node.args[0])
    if node.op not in ("call_function", "call_method"):
        return Opaque()
    name = plain_operation(node)
    asks_for_shape = name == "getattr" and node.args[1] in _SHAPE_ATTRIBUTES
    if name in _SHAPES or asks_for_shape or (node.all_input_nodes and not tensors):
        return Blind()
    if name in ("cat", "concat", "stack") and isinstance(node.args[0], list | tuple):
        return Passes(tuple(x for x in node.args[0] if isinstance(x, fx.Node)))
    if name in ("add", "sub", "mul", "div", "truediv"):
        return _arithmetic(model, node, name)
    first = argument(node, 0, "input")
    return _role_of_function(node, name, first) if isinstance(first, fx.Node) else Opaque()


def _role_of_module(called: nn.Module, path: str, x: fx.Node) -> Role:
    if isinstance(called, ShapedActivation):
        # A negative scale would turn a maximum into a minimum on its way; 0 / 0 is no scale at all.
        scales = [called.constants.get(name, 1.0) for name in ("input_scale", "output_scale")]
        return Shaped(x, called) if min(scales) > 0.0 else Opaque()
    kind = type(called)  # for a subclass may compute anything
    if kind is nn.Linear or kind in CONVOLUTIONS or kind in TRANSPOSED:
        # A weight that is itself computed, as under `parametrize`, is not there to be changed.
        return _layer(called, path, x) if "weight" in called._parameters else Opaque()
    if kind in _AVERAGES:
        padded = _nonzero(called.padding) and called.count_include_pad
        return Passes((x,), not padded and getattr(called, "divisor_override", None) is None)
    if kind in _RECTIFIERS or kind in _ZERO_PADS:
        return Passes((x,), shift=False)
    passes = kind in _PASSING_MODULES and not getattr(called, "return_indices", False)
    return Passes((x,)) if passes else Opaque()


def _layer(layer: nn.Module, path: str, x: fx.Node) -> Affine:
    names = (f"{path}.weight", f"{path}.bias")
    if isinstance(layer, TRANSPOSED):
        # Where each input pixel is stamped onto the output, the shift shows the stamp, unless the
        # padding crops all but those outputs that see the whole kernel.
        sizes = (layer.stride, layer.output_padding, layer.padding, layer.dilation)
        whole = all(
            s == 1 and o == 0 and p == d * (k - 1)
            for s, o, p, d, k in zip(*sizes, layer.kernel_size, strict=True)
        )
        return Affine(x, *names, whole, layer.groups)
    # Zeros around the input stay zeros when the input is shifted; copies of the input do not.
    zeros = isinstance(layer, CONVOLUTIONS) and layer.padding_mode == "zeros"
    return Affine(x, *names, not (zeros and _nonzero(layer.padding)))


def _role_of_function(node: fx.Node, name: str, x: fx.Node) -> Role:
    if name in _LAYERS:
        return _functional_layer(node, name, x)
    if name == "neg":
        return Times(-1.0, x)
    if name in _DROPOUTS:
        random = argument(node, 2, "train", node.kwargs.get("training", True))
        return Passes((x,), shift=not random)
    if name in _POOLS:
        divisor = argument(node, 6, "divisor_override")
        return Passes((x,), not _nonzero(argument(node, 3, "padding", 0)) and divisor is None)
    if name in _PADS:
        position, mode = (
            (3, argument(node, 2, "mode", "constant")) if name == "pad" else (2, "constant")
        )
        zero = not argument(node, position, "value")
        return Passes((x,), mode != "constant") if zero else Opaque()
    if name in _PARTS and all(plain_operation(user) == "getitem" for user in node.users):
        return Passes((x,))
    passes = name in _PASSING | _SCALE_ONLY and not node.kwargs.get("return_indices", False)
    return Passes((x,), shift=name in _PASSING) if passes else Opaque()


def _functional_layer(node: fx.Node, name: str, x: fx.Node) -> Role:
    weight, bias = argument(node, 1, "weight"), argument(node, 2, "bias")
    if not all(isinstance(p, fx.Node) and p.op == "get_attr" for p in (weight, bias or weight)):
        return Opaque()
    # What is called without a bias is given one beside its weight, if need be.
    names = (str(weight.target), str(bias.target if bias else f"{weight.target}_bias"))
    if name.startswith("conv_transpose"):
        groups = argument(node, 6, "groups", 1)
        return Affine(x, *names, shift=False, transposed_groups=groups)
    padded = name != "linear" and _nonzero(argument(node, 4, "padding", 0))
    return Affine(x, *names, shift=not padded)


def _arithmetic(model: nn.Module, node: fx.Node, name: str) -> Role:
    left, right = argument(node, 0, "input"), argument(node, 1, "other")
    alpha = node.kwargs.get("alpha", 1.0)
    if set(node.kwargs) - {"input", "other", "alpha"} or not isinstance(alpha, int | float):
        return Opaque()
    number = _number(model, left)
    if number is not None and isinstance(right, fx.Node) and (name, alpha) == ("add", 1.0):
        return Plus(number, right)
    if number is not None and isinstance(right, fx.Node) and name == "mul":
        return Times(number, right)
    if not isinstance(left, fx.Node):
        return Opaque()
    number, weight = _number(model, right), -alpha if name == "sub" else alpha
    match name:
        case "add" | "sub" if number is not None:
            return Plus(weight * number, left)
        case "add" | "sub" if isinstance(right, fx.Node):
            return Sum(((1.0, left), (weight, right)))
        case "mul" if number is not None:
            return Times(number, left)
        case "div" | "truediv" if number:
            return Times(1.0 / number, left)
        case _:
            return Opaque()


def _number(model: nn.Module, value: object) -> float | None:
    """A number that is written out, or stored in a tensor by itself."""
    if isinstance(value, fx.Node) and value.op == "get_attr":
        value = parameter(model, str(value.target))
        value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else None
    return float(value) if isinstance(value, int | float) else None


def _nonzero(padding: object) -> bool:
    sizes = padding if isinstance(padding, list | tuple) else (padding,)
    return any(size not in (0, "valid") for size in sizes)


def _parameters(model: nn.Module, layer: Affine) -> list[Tensor]:
    found = (parameter(model, path) for path in (layer.weight, layer.bias))
    return [p for p in found if p is not None]


def _tied(model: fx.GraphModule, roles: Mapping[fx.Node, Role]) -> set[int]:
    """The identities of parameters that more than one layer uses."""
    owners: dict[int, set[object]] = defaultdict(set)
    for node, role in roles.items():
        if isinstance(role, Affine):
            used = _parameters(model, role)
        elif (called := module(model, node)) is not None:
            used = list(called.parameters())
        else:
            names = [x.target for x in node.all_input_nodes if x.op == "get_attr"]
            used = [p for name in names if (p := parameter(model, str(name))) is not None]
        owner = (role.weight, role.bias) if isinstance(role, Affine) else node
        for p in used:
            owners[id(p)].add(owner)
    return {key for key, who in owners.items() if len(who) > 1}

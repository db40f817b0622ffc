"""PyTorch's operations by what they mean to the theory: their names, axes, memory and modules."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from skipless.core.record import AxisMap

# Which tensor each argument of an operation was at the time: later ones may overwrite it.
Inputs = Mapping[fx.Node, Mapping[fx.Node, fx.Node]]

AFFINE = {
    "linear", "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "addmm", "mm", "matmul",
}  # fmt: skip
MOVES = {
    "flatten", "view", "reshape", "permute", "transpose", "t", "squeeze", "unsqueeze", "contiguous",
    "clone", "detach", "dropout", "feature_dropout", "alpha_dropout", "pad", "constant_pad_nd",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "mean", "to", "_to_copy", "upsample_nearest1d", "upsample_nearest2d",
    "upsample_nearest3d", "slice", "expand", "alias", "movedim", "unflatten", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle", "select", "narrow", "getitem", "chunk", "split",
    "split_with_sizes", "flip", "roll", "repeat", "swapaxes", "numpy_T", "unsafe_chunk",
    "expand_as", "reshape_as", "view_as", "swapdims", "unbind", "im2col", "tile", "nan_to_num",
    "type_as", "lift_fresh_copy", "positive", "rot90", "unsafe_split",
}  # fmt: skip
APPROXIMATE_MOVES = {
    "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "upsample_bilinear2d", "upsample_linear1d", "upsample_bicubic2d",
    "upsample_trilinear3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "max", "amax",
}  # fmt: skip
DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
# What only takes its shape from a tensor; and what draws random numbers.
BLANKS = {"new_empty", "new_zeros", "new_ones", "new_full", "empty_like", "rand_like", "randn_like"}
RANDOM = {"bernoulli", "rand", "rand_like", "uniform"}
CONCATENATIONS = {"cat", "concat", "concatenate"}
NORMS = {"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"}
POINTWISE = {
    "relu", "relu6", "leaky_relu", "tanh", "sigmoid", "softplus", "gelu", "silu", "elu", "selu",
    "celu", "mish", "log_sigmoid", "hardtanh", "hardswish", "hardsigmoid", "erf", "sin", "cos",
    "atan", "asinh", "arctan", "arcsinh", "abs", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt",
    "pow", "square", "neg", "reciprocal", "clamp", "clamp_min", "clamp_max", "softshrink",
    "maximum", "minimum", "where", "gt", "ge", "lt", "le", "sign", "special_erf", "threshold",
    "tanhshrink", "softsign", "logaddexp", "zeros_like", "ones_like", "full_like", "prelu",
    "_prelu_kernel",
}  # fmt: skip
WITHOUT_SIZES = {
    *AFFINE, *NORMS, *POINTWISE, *CONCATENATIONS, "add", "sub", "mul", "div", "flatten", "dropout",
    "feature_dropout", "mean", "transpose", "permute", "t", "squeeze", "unsqueeze", "contiguous",
    "clone", "detach", "to", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "chunk", "getitem",
}  # fmt: skip
# What takes a part of an axis, and the place of the argument that says which one.
CUTS = {"split": 2, "split_with_sizes": 2, "slice": 1, "select": 1, "narrow": 1}
# What has no maps: of what kind it is, and what can be done.
_APART = "convert the modules around it, by parts=[...]"
UNKNOWN = ("", f"Leave it out of the traced module, or {_APART}.")
_ATTENTION = (" for attention", f"Leave the attention out of the traced module, or {_APART}.")
_RECURRENT = (" in a recurrent cell", f"Leave the cell out of the traced module, or {_APART}.")
PROBABILITIES = (
    " inside the network, as attention does",
    f"Leave the attention out of the traced module, or {_APART}.",
)
UNCOVERED = {
    "scaled_dot_product_attention": _ATTENTION,
    "multi_head_attention_forward": _ATTENTION,
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax"), PROBABILITIES),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"), _RECURRENT),
    **dict.fromkeys(("rnn_tanh_cell", "rnn_relu_cell"), _RECURRENT),
    "sum": ("", "Sum over places by their mean, which keeps q: x.mean(1) instead of x.sum(1)."),
    "embedding": (" of indices", "Trace the network that reads the vectors, and not the indices."),
}


# What is left of a composite operation where a record has none.
_DECOMPOSED = {
    "max_pool2d_with_indices": "max_pool2d", "max_pool3d_with_indices": "max_pool3d",
    "_adaptive_avg_pool2d": "adaptive_avg_pool2d", "_adaptive_avg_pool3d": "adaptive_avg_pool3d",
    "native_dropout": "dropout", "_unsafe_view": "view",
}  # fmt: skip


def operation(node: fx.Node) -> str:
    """The plain name of what a node computes: `relu_`, `conv2d`."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        name = target._schema.name.split("::")[-1]
        return _DECOMPOSED.get(name, name)
    return getattr(target, "__name__", str(target))


def plain_operation(node: fx.Node) -> str:
    """The name without the underscore of in-place variants: `relu`, `conv2d`."""
    return operation(node).rstrip("_")


def writes_in_place(node: fx.Node) -> bool:
    """Whether a node writes into its first argument."""
    name = operation(node)
    return name.endswith("_") and not name.startswith("_")


def out_of_place(node: fx.Node) -> Any:
    """What a node calls, without the effect of writing into its first argument."""
    target, name = node.target, operation(node)
    if not isinstance(target, torch._ops.OpOverload) or name[0] == "_" or name[-1] != "_":
        return target
    return getattr(getattr(torch.ops.aten, name.rstrip("_")), target._overloadname)


def called_module(node: fx.Node) -> tuple[str, str]:
    """The path of the innermost module that `node` belongs to, and a name for this call of it."""
    stack = node.meta.get("nn_module_stack") or {}
    call = next(reversed(stack), "")
    return (stack[call][0], call) if call else ("", "")


def origin(node: fx.Node) -> str:
    """The module path of a node, or "Linear 0" in a Sequential, with the user's line."""
    path, call = called_module(node)
    if path.replace(".", "").isdigit():
        kind = str(node.meta["nn_module_stack"][call][1]).rpartition(".")[2]
        path = f"{kind} {path}"
    libraries = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    calls = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    hidden = (*libraries, "<eval_with_key>")  # the code of graph modules
    lines = [f" ({Path(f).name}:{line})" for f, line in calls if not f.startswith(hidden)]
    return (path or "the model itself") + "".join(lines[-1:])


_PRODUCTS = {"linear": 0, "matmul": 0, "mm": 0, "addmm": 1}  # and the place of the left factor
_PERMUTATIONS = {"permute", "transpose", "t", "movedim", "swapaxes", "swapdims", "numpy_T"}
_REDUCTIONS = {"mean", "max", "amax"}
_CUTS = {"chunk", "unsafe_chunk", "split", "split_with_sizes", "unbind"}
_POOL = re.compile(r"(adaptive_)?(?:avg|max)_pool([123])d")


def channel_axis(layer: fx.Node, source: fx.Node, tensor: fx.Node) -> int:
    """Where a layer of `source` has its channels in `tensor`, its input or output."""
    rank, name = len(sizes(tensor)), operation(layer)
    if name in _PRODUCTS:
        return rank - 1 if layer.args[_PRODUCTS[name]] is source else max(rank - 2, 0)
    kernel = layer.args[1]  # which has two axes of channels, and the others for locations
    assert isinstance(kernel, fx.Node)
    return rank - (len(sizes(kernel)) - 2) - 1


def axis_map(move: fx.Node, source: fx.Node) -> AxisMap:
    """What a recorded move does to the axes of `source`."""
    before, after, name = sizes(source), sizes(move), operation(move)
    if name in _PERMUTATIONS:
        distinct = torch.empty(*range(2, 2 + len(before)), device="meta")
        assert callable(move.target)
        shape = move.target(distinct, *move.args[1:], **move.kwargs).shape
        return AxisMap(tuple((shape.index(size),) for size in distinct.shape))
    if name == "im2col":  # patches become channels
        samples, channels, *_ = range(len(before)) if len(before) == 4 else (-1, 0)
        places = (((channels + 1),) for _ in before[channels + 1 :])
        return AxisMap((*(((samples),),) * (samples == 0), (channels,), *places))
    if name == "pixel_shuffle":  # channels become locations, along both axes
        *others, channels, height, width = range(len(before))
        spread = (channels, height, width)
        return AxisMap((*((axis,) for axis in others), spread, spread, spread))
    dropped: Sequence[int] = ()
    if name == "select":
        dropped = [argument(move, 1, "dim", 0) % len(before)]
    elif name in _REDUCTIONS and len(after) < len(before):
        dropped = _reduced(move, before)
    pooled, padded = _pooled(move, before), _padded(move, len(before))
    return AxisMap.between(before, after, dropped=dropped, pooled=pooled, padded=padded)


def part(move: fx.Node, source: fx.Node) -> tuple[int, int, int] | None:
    """The axis along which `move` cuts its source, and where its part starts and stops."""
    name, shape = operation(move), sizes(source)
    if name == "getitem" and operation(source) in _CUTS:
        axis = argument(source, 2, "dim", 0) % len(shape)
        widths = [number(piece.shape[axis]) for piece in source.meta["val"]]
        place = move.args[1]
        assert isinstance(place, int)
        place %= len(widths)
        return axis, sum(widths[:place]), sum(widths[: place + 1])
    if name == "select":
        axis = argument(move, 1, "dim", 0) % len(shape)
        start = number(argument(move, 2, "index", 0)) % shape[axis]
        return axis, start, start + 1
    if name not in ("slice", "narrow") or argument(move, 4, "step", 1) != 1:
        return None
    axis = argument(move, 1, "dim", 0) % len(shape)
    start = number(argument(move, 2, "start") or 0) % shape[axis]
    return axis, start, start + sizes(move)[axis]


def _pooled(move: fx.Node, before: Sequence[int]) -> list[int]:
    name = operation(move)
    if name in _REDUCTIONS:
        return [axis for axis in _reduced(move, before) if before[axis] != 1]
    if (pool := _POOL.fullmatch(name)) is None:
        return []
    locations = range(len(before) - int(pool[2]), len(before))
    if pool[1]:
        return [axis for axis in locations if sizes(move)[axis] != before[axis]]
    windows = [number(size) for size in argument(move, 1, "kernel_size", [1])]
    every = windows * len(locations) if len(windows) == 1 else windows
    return [axis for axis, size in zip(locations, every, strict=True) if size != 1]


def averages_zeros(move: fx.Node) -> bool:
    """Whether a move is a pooling whose windows at the border count zeros: q is less there."""
    if not operation(move).startswith("avg_pool") or not argument(
        move, 5, "count_include_pad", True
    ):
        return False
    return any(number(size) for size in argument(move, 3, "padding") or ())


def _padded(move: fx.Node, rank: int) -> list[int]:
    name = operation(move)
    if name not in ("pad", "constant_pad_nd"):
        return []
    if name == "pad" and argument(move, 2, "mode", "constant") != "constant":
        return []
    amounts = argument(move, 1, "pad", [])  # from the last axis on, two for each
    return [rank - 1 - place // 2 for place, more in enumerate(amounts) if number(more) > 0]


def _reduced(move: fx.Node, before: Sequence[int]) -> list[int]:
    given = argument(move, 1, "dim")
    axes = (
        range(len(before)) if given in (None, []) else [given] if isinstance(given, int) else given
    )
    return [axis % len(before) for axis in axes]


def sizes(tensor: fx.Node) -> tuple[int, ...]:
    """The shape of a recorded tensor, or of the first one of several, as in the example."""
    value = tensor.meta["val"]
    shape = (value[0] if isinstance(value, list | tuple) else value).shape
    return tuple(map(number, shape))


def number(value: Any) -> Any:
    """A size, or another number, which may be computed or left open, as in the example."""
    known = value.meta["val"] if isinstance(value, fx.Node) else value
    return known.node.hint if isinstance(known, torch.SymInt | torch.SymFloat) else known


def is_tensor(node: fx.Node) -> bool:
    """Whether a node is a tensor, and not several, or a size."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def argument(node: fx.Node, place: int, name: str, default: object = None) -> Any:
    """An argument of a call, given by its place or its name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def kept_share(random: fx.Node) -> float | None:
    """The probability that a random factor of `random` keeps a number, as far as it is recorded."""
    waiting = [random]
    while waiting:
        node = waiting.pop()
        numbers = [a for a in node.args if isinstance(a, float) and 0.0 < a <= 1.0]
        if plain_operation(node) in ("bernoulli", "add") and numbers:
            return numbers[0]
        waiting += [a for a in node.all_input_nodes if plain_operation(node) not in BLANKS]
    return None


VIEWS = {
    "flatten", "view", "reshape", "permute", "transpose", "t", "squeeze", "unsqueeze", "contiguous",
    "detach", "slice", "expand", "alias", "movedim", "unflatten", "select", "narrow", "getitem",
    "chunk", "split", "split_with_sizes", "swapaxes", "numpy_T", "to", "dropout",
}  # fmt: skip


class Memory:
    """Which tensors share memory, so that a write into one is seen in the others."""

    def __init__(self) -> None:
        self._first: dict[fx.Node, fx.Node] = {}  # the tensor that first held the numbers of each
        self._overwritten: dict[fx.Node, fx.Node] = {}  # by an operation in place

    def latest(self, node: fx.Node) -> fx.Node:
        """What a recorded tensor is now, after all operations in place so far."""
        while node in self._overwritten:
            node = self._overwritten[node]
        return node

    def follow(self, node: fx.Node, source: fx.Node) -> fx.Node | None:
        """Note what an operation does to the memory of `source`, the first tensor that it reads.

        If it writes there, and an alias of what it changes is read later, that reader is returned.
        """
        name = operation(node)
        writes = name.endswith("_")
        shares = name in VIEWS or writes
        self._first[node] = self._first.get(source, source) if shares else node
        written = node.args[0]
        if not writes or not isinstance(written, fx.Node) or self.latest(written) is not source:
            return None
        self._overwritten[source] = node
        memory = self._first[node]
        aliases = [other for other, first in self._first.items() if first is memory]
        others = {*aliases, memory} - {source, node, written}
        return next((user for other in others for user in other.users if user > node), None)


# PyTorch's own modules that make tensors of the size of the batch, or view them in that size.
WITH_SIZES = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
STOCK_LAYERS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)


def layer_width(layer: nn.Module) -> int:
    """The number of units or channels that `layer` computes."""
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels  # pyright: ignore

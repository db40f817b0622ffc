"""The operations of PyTorch by what they mean to the theory, and where a recorded one came from.

Which axes of an exported program's tensors run over channels.

Which recorded tensors share their memory, so that a write into one is seen in the others.

The layers of a recorded model: which modules they are, and which of them lack a bias.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from skipless.core import trace as core

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
}  # fmt: skip
APPROXIMATE_MOVES = {
    "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "upsample_bilinear2d", "upsample_linear1d", "upsample_bicubic2d",
}  # fmt: skip
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
# What has no maps: of what kind it is, and what can be done.
_APART = "shape the parts before and after it on their own"
UNKNOWN = ("", f"Leave it out of the traced module, or {_APART}.")
_ATTENTION = (" for attention", f"Leave the attention out of the traced module, or {_APART}.")
_RECURRENT = (" in a recurrent cell", f"Leave the cell out of the traced module, or {_APART}.")
_PROBABILITIES = (
    " for probabilities or attention",
    "If it ends the network, let the loss compute it (nn.CrossEntropyLoss); if it is part of "
    f"attention, leave that out of the traced module, or {_APART}.",
)
UNCOVERED = {
    "scaled_dot_product_attention": _ATTENTION,
    "multi_head_attention_forward": _ATTENTION,
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax"), _PROBABILITIES),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"), _RECURRENT),
    **dict.fromkeys(("rnn_tanh_cell", "rnn_relu_cell"), _RECURRENT),
    "glu": (" with a gate", "Replace the product of its halves by a sum, or leave it out."),
    "embedding": (" of indices", "Trace the network that reads the vectors, and not the indices."),
}


def operation(node: fx.Node) -> str:
    """The plain name of what a node computes: `relu_`, `conv2d`."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.split("::")[-1]
    return getattr(target, "__name__", str(target))


def out_of_place(target: Any) -> Any:
    """The same operator without the effect of writing into its first argument."""
    if not isinstance(target, torch._ops.OpOverload):
        return target
    name = target._schema.name.split("::")[-1]
    if not name.endswith("_") or name.startswith("_"):
        return target
    return getattr(getattr(torch.ops.aten, name.rstrip("_")), target._overloadname)


def called_module(node: fx.Node) -> tuple[str, str]:
    """The path of the innermost module that `node` belongs to, and a name for this call of it."""
    stack = node.meta.get("nn_module_stack") or {}
    call = next(reversed(stack), "")
    return (stack[call][0], call) if call else ("", "")


def origin(node: fx.Node) -> str:
    """The module path of a node, with the user's line that called it."""
    path, _ = called_module(node)
    where = list(_user_lines(node.meta.get("stack_trace") or ""))
    line = f" ({where[-1]})" if where else ""
    return f"{path or 'the model itself'}{line}"


def _user_lines(stack_trace: str) -> Iterator[str]:
    libraries = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    for file, line in re.findall(r'File "([^"]+)", line (\d+)', stack_trace):
        if not file.startswith(libraries):
            yield f"{Path(file).name}:{line}"


def size(node: fx.Node, dim: int) -> int:
    """The size of a recorded tensor, on the example if it was left open."""
    number = node.meta["val"].shape[dim]
    return number if isinstance(number, int) else number.node.hint


_PRODUCTS = {"linear": 0, "matmul": 0, "mm": 0, "addmm": 1}  # and the place of the left factor
PERMUTATIONS = {"permute", "transpose", "t", "movedim", "swapaxes", "numpy_T"}
_POOL = re.compile(r"(adaptive_)?(?:avg|max)_pool([123])d")


class Layout(core.Layout[fx.Node]):
    """Reads axes off the arguments of recorded operations.

    `inputs` says which tensor each argument was at the time.
    """

    def __init__(self, inputs: Mapping[fx.Node, Mapping[fx.Node, fx.Node]]) -> None:
        self._inputs = inputs

    def rank(self, tensor: fx.Node) -> int:
        return len(sizes(tensor))

    def input_axes(self, rank: int) -> Sequence[int]:
        return range(1, rank)

    def added_up(self, layer: fx.Node, source: fx.Node) -> Collection[int]:
        return (self._channel_axis(layer, source, self.rank(source)),)

    def made(self, layer: fx.Node, source: fx.Node) -> Collection[int]:
        return (self._channel_axis(layer, source, self.rank(layer)),)

    def joined(self, tensor: fx.Node) -> int:
        return _argument(tensor, 1, "dim", 0) % self.rank(tensor)

    def moved(self, tensor: fx.Node, source: fx.Node, axis: int) -> Collection[int]:
        before, after, name = sizes(source), sizes(tensor), operation(tensor)
        if name in PERMUTATIONS:
            return (permuted(tensor, len(before), axis),)
        if name == "pixel_shuffle":  # channels become locations, along both axes
            return range(len(after) - 3, len(after))
        shrinks = len(after) < len(before)
        if name == "mean":
            return core.moved(before, after, axis, _means(tensor, before) if shrinks else ())
        if name == "select":
            return core.moved(before, after, axis, (_argument(tensor, 1, "dim", 0) % len(before),))
        return core.moved(before, after, axis)

    def pooled(self, tensor: fx.Node, source: fx.Node) -> Collection[int]:
        before, name = sizes(source), operation(tensor)
        if name == "mean":
            return [axis for axis in _means(tensor, before) if before[axis] != 1]
        if (pool := _POOL.fullmatch(name)) is None:
            return ()
        locations = range(len(before) - int(pool[2]), len(before))
        if pool[1]:
            return [axis for axis in locations if sizes(tensor)[axis] != before[axis]]
        windows = [_number(size) for size in _argument(tensor, 1, "kernel_size", [1])]
        every = windows * len(locations) if len(windows) == 1 else windows
        return [axis for axis, size in zip(locations, every, strict=True) if size != 1]

    def padded(self, tensor: fx.Node, source: fx.Node) -> Collection[int]:
        if operation(tensor) not in ("pad", "constant_pad_nd"):
            return ()
        if operation(tensor) == "pad" and _argument(tensor, 2, "mode", "constant") != "constant":
            return ()
        amounts, last = _argument(tensor, 1, "pad", []), self.rank(source) - 1  # from the last axis
        return [last - place // 2 for place, amount in enumerate(amounts) if _number(amount) > 0]

    def named(self, tensor: fx.Node) -> tuple[str, str]:
        return origin(tensor), operation(tensor)

    def _channel_axis(self, layer: fx.Node, source: fx.Node, rank: int) -> int:
        """Where a layer has its channels in a tensor, its input or its output, of that `rank`."""
        name = operation(layer)
        if name not in _PRODUCTS:  # convolutions, whose weights have two axes of channels
            kernel = layer.args[1]
            assert isinstance(kernel, fx.Node)
            return rank - (len(sizes(kernel)) - 2) - 1
        left = layer.args[_PRODUCTS[name]]
        assert isinstance(left, fx.Node)
        from_the_left = self._inputs[layer][left] is not source  # weights @ x
        return max(rank - 2, 0) if from_the_left else rank - 1


def sizes(tensor: fx.Node) -> tuple[int, ...]:
    """The shape of a recorded tensor, or of the first one of several."""
    value = tensor.meta["val"]
    shape = (value[0] if isinstance(value, list | tuple) else value).shape
    return tuple(map(_number, shape))


def _number(value: Any) -> int:
    """A size, which may be computed or left open, as it was in the example."""
    known = value.meta["val"] if isinstance(value, fx.Node) else value
    return known if isinstance(known, int) else known.node.hint


def permuted(tensor: fx.Node, rank: int, axis: int) -> int:
    """Where the permutation that made `tensor` puts an axis of its input."""
    distinct = torch.empty(*range(2, 2 + rank), device="meta")
    assert callable(tensor.target)
    return tensor.target(distinct, *tensor.args[1:], **tensor.kwargs).shape.index(axis + 2)


def _means(tensor: fx.Node, before: Sequence[int]) -> list[int]:
    axes = _argument(tensor, 1, "dim", None)
    named = range(len(before)) if axes is None or axes == [] else axes
    return [axis % len(before) for axis in named]


def _argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


_VIEWS = {
    "flatten", "view", "reshape", "permute", "transpose", "t", "squeeze", "unsqueeze", "contiguous",
    "detach", "slice", "expand", "alias", "movedim", "unflatten", "select", "narrow", "getitem",
    "chunk", "split", "split_with_sizes", "swapaxes", "numpy_T", "to", "dropout",
}  # fmt: skip


class Memory:
    """Follows views of tensors and operations in place."""

    def __init__(self) -> None:
        self._first: dict[fx.Node, fx.Node] = {}  # the tensor that first held the numbers of each

    def follow(self, node: fx.Node, source: fx.Node, name: str) -> None:
        """Note whether the result of the operation `name` on `source` may lie where that does."""
        shares = name in _VIEWS or name.endswith("_")
        self._first[node] = self._first.get(source, source) if shares else node

    def read_later(self, node: fx.Node, written: fx.Node) -> fx.Node | None:
        """A reader of what `node` changes by writing into `written`, under another name."""
        memory = self._first[node]
        for other, first in [*self._first.items(), (memory, memory)]:
            if first is memory and other not in (written, node, node.args[0]):
                for user in other.users:
                    if user > node:
                        return user
        return None


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_STOCK_LAYERS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)
_STOCK_FORWARDS = {cls.forward for cls in _STOCK_LAYERS}


def module_of_layer(
    node: fx.Node, modules: Mapping[str, nn.Module], parameters: Mapping[str, str | None]
) -> str | None:
    """The path of the module, left as PyTorch made it, whose whole work is this operation.

    `parameters` has the names of recorded parameters.
    """
    path, _ = called_module(node)
    module = modules.get(path)
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return path
    if not isinstance(module, _STOCK_LAYERS) or type(module).forward not in _STOCK_FORWARDS:
        return None
    if isinstance(module, (*CONVOLUTIONS, *TRANSPOSED)) and module.padding_mode != "zeros":
        return None  # which is an operation before the convolution
    weight = node.args[1] if len(node.args) > 1 else None
    own = isinstance(weight, fx.Node) and parameters.get(weight.name) == f"{path}.weight"
    return path if own else None


def give_bias_(layer: nn.Module) -> bool:
    """Whether `layer` had no bias, and has one of zeros now."""
    assert isinstance(layer, _STOCK_LAYERS)
    if layer.bias is not None:
        return False
    width = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    layer.bias = nn.Parameter(layer.weight.new_zeros(width))
    return True

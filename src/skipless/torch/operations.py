"""The operations of PyTorch by what they mean to the theory, and where a recorded one came from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx

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

"""The layers and operations of Keras by what they mean to the theory."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import keras
from keras import layers, ops

from skipless.core.record import Unsupported

from .activations import Array

if TYPE_CHECKING:
    from .record import Tensor


def _in_1d_to_3d(*names: str) -> tuple[type[Any], ...]:
    return tuple(getattr(layers, f"{name}{n}D") for name in names for n in (1, 2, 3))


CONVOLUTIONS = _in_1d_to_3d("Conv")
TRANSPOSED = (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose)
DEPTHWISE = (layers.DepthwiseConv1D, layers.DepthwiseConv2D)
SEPARABLE = (layers.SeparableConv1D, layers.SeparableConv2D)
AFFINE = (layers.Dense, layers.EinsumDense, *CONVOLUTIONS, *TRANSPOSED, *DEPTHWISE, *SEPARABLE)
NORMS = (
    layers.BatchNormalization, layers.LayerNormalization, layers.GroupNormalization,
    layers.RMSNormalization,
)  # fmt: skip
MOVES = (
    layers.Flatten, layers.Reshape, layers.Permute, layers.RepeatVector, layers.Identity,
    layers.Dropout, layers.AlphaDropout, layers.GaussianDropout, layers.GaussianNoise,
    layers.ActivityRegularization,
    *_in_1d_to_3d("ZeroPadding", "Cropping", "UpSampling", "SpatialDropout"),
    *_in_1d_to_3d("AveragePooling", "GlobalAveragePooling", "AdaptiveAveragePooling"),
)  # fmt: skip
APPROXIMATE_MOVES = _in_1d_to_3d("MaxPooling", "GlobalMaxPooling", "AdaptiveMaxPooling")
ACTIVATIONS = (layers.Activation, layers.ReLU, layers.LeakyReLU, layers.ELU, layers.PReLU)
RESCALINGS = (layers.Rescaling, layers.Normalization)
# Merging layers as functions of several tensors, of use where these are all made from one.
MERGES: dict[type[keras.layers.Layer], Callable[..., Array]] = {
    layers.Add: lambda *terms: reduce(ops.add, terms),
    layers.Subtract: ops.subtract,
    layers.Average: lambda *terms: reduce(ops.add, terms) / len(terms),
    layers.Multiply: lambda *factors: reduce(ops.multiply, factors),
    layers.Maximum: lambda *terms: reduce(ops.maximum, terms),
    layers.Minimum: lambda *terms: reduce(ops.minimum, terms),
}

# The operations of `keras.ops`, by the names of their classes.
OP_AFFINE = {"Matmul", "Dot", "Tensordot", "Einsum", "Conv", "DepthwiseConv", "ConvTranspose"}
OP_NORMS = {"LayerNorm", "RMSNorm", "BatchNorm"}
OP_MOVES = {
    "Reshape", "Transpose", "ExpandDims", "Squeeze", "Mean", "Average", "Pad", "GetItem", "Slice",
    "Split", "ArraySplit", "Flip", "Roll", "Repeat", "Tile", "Swapaxes", "Moveaxis", "BroadcastTo",
    "Ravel", "Copy", "Cast", "StopGradient", "AveragePool", "AdaptiveAveragePool", "DepthToSpace",
    "SpaceToDepth", "Unstack", "Take", "Rot90", "PadImages", "CropImages", "View", "SaturateCast",
}  # fmt: skip
OP_APPROXIMATE_MOVES = {"MaxPool", "AdaptiveMaxPool", "Resize"}
OP_POINTWISE = {
    "Relu", "Relu6", "Sigmoid", "SparseSigmoid", "Softplus", "Softsign", "SoftShrink", "SparsePlus",
    "Silu", "Squareplus", "LogSigmoid", "LeakyRelu", "HardSigmoid", "HardSilu", "Elu", "Selu",
    "Gelu", "Celu", "TanhShrink", "HardTanh", "HardShrink", "Threshold", "Absolute", "Fabs", "Exp",
    "Exp2", "Expm1", "Log", "Log1p", "Log2", "Log10", "Sqrt", "Rsqrt", "Square", "Power",
    "Negative", "Reciprocal", "Clip", "Maximum", "Minimum", "Fmax", "Fmin", "Where", "Greater",
    "GreaterEqual", "Less", "LessEqual", "Sign", "Sin", "Cos", "Tan", "Sinh", "Cosh", "Tanh",
    "Arctan", "Arcsinh", "Erf", "Erfc", "Logaddexp", "ZerosLike", "OnesLike", "FullLike",
    "DivideNoNan", "NanToNum",
}  # fmt: skip
OP_SOFTMAX = {"Softmax", "LogSoftmax", "Sparsemax"}
SOFTMAX_FUNCTIONS = (
    keras.activations.softmax, keras.activations.log_softmax, keras.activations.sparsemax,
)  # fmt: skip

_APART = "shape the parts before and after it on their own"
_LEAVE_OUT = f"Leave it out of the traced model, or {_APART}."
_ATTENTION = ("computes attention,", f"Leave that out of the traced model, or {_APART}.")
_RECURRENT = ("is a recurrent layer,", _LEAVE_OUT)
_INDICES = (
    "makes vectors of indices,",
    "Trace the network that reads the vectors, and not the indices.",
)
_PROBABILITIES = (
    "computes a softmax inside the network,",
    f"If it is part of attention, leave that out, or {_APART}.",
)
_GATE = (
    "multiplies one half of its input by a gate,",
    "Replace the product of its halves by a sum, or leave it out.",
)
_UNCOVERED = {
    "MultiHeadAttention": _ATTENTION, "GroupQueryAttention": _ATTENTION, "Attention": _ATTENTION,
    "AdditiveAttention": _ATTENTION, "DotProductAttention": _ATTENTION, "LSTM": _RECURRENT,
    "GRU": _RECURRENT, "SimpleRNN": _RECURRENT, "RNN": _RECURRENT, "Bidirectional": _RECURRENT,
    "Embedding": _INDICES, "ReversibleEmbedding": _INDICES, "CategoryEncoding": _INDICES,
    "Glu": _GATE, **dict.fromkeys(OP_SOFTMAX, _PROBABILITIES),
}  # fmt: skip


def is_stock(operation: object, classes: tuple[type, ...]) -> bool:
    """Whether `operation` is one of these layers and computes what they do."""
    home = getattr(getattr(type(operation), "call", None), "__module__", "")
    return isinstance(operation, classes) and home.startswith(("keras.", "skipless."))


def op_name(operation: object) -> str:
    """The name of an operation of `keras.ops`; empty for a layer."""
    return "" if isinstance(operation, layers.Layer) else type(operation).__name__


def unsupported(tensor: Tensor, kind: str = "") -> Unsupported[Tensor]:
    """An operation without maps: what `kind` of operation it is, and what to do."""
    operation = tensor.call.operation
    name, of_ops = type(operation).__name__, bool(op_name(operation))
    unknown = (f"is an unknown {'operation' if of_ops else 'layer'},", _LEAVE_OUT)
    about = does, advice = _UNCOVERED.get(kind or name, unknown)
    message = f"{tensor.call.path} ({name}) {does} which has no Q and C maps. {advice}"
    after = about is _PROBABILITIES or (about is unknown and of_ops)
    return Unsupported(message, tuple(tensor.inputs) if after else ())


def channels(layer: Any, part: str) -> tuple[int | None, bool]:
    """How many channels each output reads, None if it is all, and whether it only scales one."""
    if part == "depthwise" or isinstance(layer, DEPTHWISE):
        return 1, layer.depth_multiplier == 1
    if isinstance(layer, CONVOLUTIONS) and layer.groups > 1:
        inputs = int(layer.kernel.shape[-2])
        return inputs, inputs == 1 and layer.filters == layer.groups
    return None, False

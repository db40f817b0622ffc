"""PyTorch: read a model, shape it, draw its weights, prove its kernel."""

try:
    import torch as _torch  # noqa: F401 - to say what is missing, and not where
except ModuleNotFoundError as error:
    from skipless._install import not_installed

    raise ImportError(not_installed("skipless.torch", error.name, "torch")) from None

from skipless._deprecated import renamed_names
from skipless.core.convert import ConversionReport
from skipless.core.measure import Check, Measurement

from .activations import ShapedActivation, TrainableTReLU, TReLU, function
from .convert import ConvertedModel, convert
from .fold import fold
from .init import (
    delta_,
    gaussian_fan_in_,
    initialize_,
    looks_linear_,
    scaled_uniform_orthogonal_,
    transposed_delta_,
)
from .measure import check, measure, pair_inputs
from .normalize import PerLocationNormalization, normalize_per_location, normalize_per_sample
from .saved import load, save
from .trace import UnsupportedModelError, trace

__all__ = [
    "Check", "ConversionReport", "ConvertedModel", "Measurement", "PerLocationNormalization",
    "ShapedActivation", "TReLU", "TrainableTReLU", "UnsupportedModelError", "check", "convert",
    "delta_", "fold", "function", "gaussian_fan_in_", "initialize_", "load", "looks_linear_",
    "measure", "normalize_per_location", "normalize_per_sample", "pair_inputs", "save",
    "scaled_uniform_orthogonal_", "trace", "transposed_delta_",
]  # fmt: skip

__getattr__ = renamed_names(
    __name__, {"activation": "skipless.torch.function", "export_onnx": "skipless.onnx.export"}
)

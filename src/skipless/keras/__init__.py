"""Keras 3 on any backend: read a model, shape it, draw its weights."""

try:
    import keras as _keras  # noqa: F401 - to see whether it can be
except ModuleNotFoundError as error:
    if error.name == "keras":
        raise ImportError(
            "skipless.keras needs keras, which is not installed: pip install 'skipless[keras]'"
        ) from None
    raise ImportError(
        f"Keras needs its backend {error.name}, which is not installed: pip install {error.name}, "
        "or set KERAS_BACKEND to tensorflow, jax or torch"
    ) from None

from .activations import ShapedActivation, TReLU, WeightedAdd, activation
from .convert import ConversionReport, convert
from .init import (
    DeltaOrthogonal,
    DepthwiseDelta,
    GaussianFanIn,
    ScaledUniformOrthogonal,
    TransposedDelta,
)
from .normalize import PerLocationNormalization, normalize_per_location, normalize_per_sample
from .trace import UnsupportedModelError, trace

__all__ = [
    "ConversionReport",
    "DeltaOrthogonal",
    "DepthwiseDelta",
    "GaussianFanIn",
    "PerLocationNormalization",
    "ScaledUniformOrthogonal",
    "ShapedActivation",
    "TReLU",
    "TransposedDelta",
    "UnsupportedModelError",
    "WeightedAdd",
    "activation",
    "convert",
    "normalize_per_location",
    "normalize_per_sample",
    "trace",
]

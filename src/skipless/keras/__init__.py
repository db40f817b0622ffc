"""Keras 3 on any backend: read a model, shape it, draw its weights."""

try:
    import keras as _keras  # noqa: F401 - to see whether it can be
except ModuleNotFoundError as error:
    if error.name == "keras":
        from skipless._install import not_installed

        raise ImportError(not_installed("skipless.keras", "keras", "keras")) from None
    raise ImportError(
        f"Keras needs its backend {error.name}, which is not installed: pip install {error.name}, "
        "or set KERAS_BACKEND to tensorflow, jax or torch"
    ) from None

from skipless._deprecated import renamed_names
from skipless.core.convert import ConversionReport
from skipless.core.measure import Check, Measurement
from skipless.core.trace import UnsupportedModelError

from .activations import ShapedActivation, TReLU, WeightedAdd, function
from .convert import convert
from .init import (
    DeltaOrthogonal,
    DepthwiseDelta,
    GaussianFanIn,
    ScaledUniformOrthogonal,
    TransposedDelta,
    initialize_,
)
from .measure import check, measure, pair_inputs
from .normalize import PerLocationNormalization, normalize_per_location, normalize_per_sample
from .trace import trace

__all__ = [
    "Check", "ConversionReport", "DeltaOrthogonal", "DepthwiseDelta", "GaussianFanIn",
    "Measurement", "PerLocationNormalization", "ScaledUniformOrthogonal", "ShapedActivation",
    "TReLU", "TransposedDelta", "UnsupportedModelError", "WeightedAdd", "check", "convert",
    "function", "initialize_", "measure", "normalize_per_location", "normalize_per_sample",
    "pair_inputs", "trace",
]  # fmt: skip

__getattr__ = renamed_names(__name__, {"activation": "skipless.keras.function"})

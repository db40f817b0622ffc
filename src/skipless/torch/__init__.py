"""PyTorch: read a model, initial weights, input normalisation."""

from .init import (
    delta_,
    gaussian_fan_in_,
    initialize_,
    scaled_uniform_orthogonal_,
    transposed_delta_,
)
from .normalize import PerLocationNormalization, normalize_per_location, normalize_per_sample
from .trace import UnsupportedModelError, trace

__all__ = [
    "PerLocationNormalization",
    "UnsupportedModelError",
    "delta_",
    "gaussian_fan_in_",
    "initialize_",
    "normalize_per_location",
    "normalize_per_sample",
    "scaled_uniform_orthogonal_",
    "trace",
    "transposed_delta_",
]

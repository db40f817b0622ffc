"""JAX: read a function, shape it, draw its weights, prove its kernel."""

try:
    import jax as _jax  # noqa: F401 - to say what is missing, and not where
except ModuleNotFoundError as error:
    raise ImportError(
        f"skipless.jax needs {error.name}, which is not installed: pip install 'skipless[jax]'"
    ) from None

from skipless.core.measure import Check, Measurement
from skipless.core.trace import UnsupportedModelError

from .activations import Shaped, activation, shaped
from .init import (
    delta_orthogonal,
    gaussian_fan_in,
    scaled_uniform_orthogonal,
    transposed_delta_orthogonal,
)
from .measure import check, measure, pair_inputs
from .normalize import normalize_per_location, normalize_per_sample
from .trace import trace

__all__ = [
    "Check",
    "Measurement",
    "Shaped",
    "UnsupportedModelError",
    "activation",
    "check",
    "delta_orthogonal",
    "gaussian_fan_in",
    "measure",
    "normalize_per_location",
    "normalize_per_sample",
    "pair_inputs",
    "scaled_uniform_orthogonal",
    "shaped",
    "trace",
    "transposed_delta_orthogonal",
]

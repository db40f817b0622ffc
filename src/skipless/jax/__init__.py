"""JAX: read a function, shape it, initialise its weights, check its kernel."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

try:
    import jax as _jax  # noqa: F401 - to say what is missing, and not where
except ModuleNotFoundError as error:
    from skipless._install import not_installed

    raise ImportError(not_installed("skipless.jax", error.name, "jax")) from error

from skipless._deprecated import renamed_names
from skipless.core.measure import Check, Measurement
from skipless.core.trace import UnsupportedModelError

from .activations import Shaped, function, shaped
from .convert import ConversionReport, ConvertedFunction, convert
from .init import delta, gaussian_fan_in, initialize, scaled_uniform_orthogonal, transposed_delta
from .measure import check, measure, pair_inputs
from .normalize import normalize_per_location, normalize_per_sample
from .trace import trace

if TYPE_CHECKING:
    from .modules import Constant, Identity, ShapedActivation, TReLU

__all__ = [
    "Check", "Constant", "ConversionReport", "ConvertedFunction", "Identity", "Measurement",
    "Shaped", "ShapedActivation", "TReLU", "UnsupportedModelError", "check", "convert", "delta",
    "function", "gaussian_fan_in", "initialize", "measure", "normalize_per_location",
    "normalize_per_sample", "pair_inputs", "scaled_uniform_orthogonal", "shaped", "trace",
    "transposed_delta",
]  # fmt: skip

# Imported on first use, and Flax only then.
_OF_FLAX = ("Constant", "Identity", "ShapedActivation", "TReLU")
_find_renamed = renamed_names(
    __name__,
    {
        "activation": "skipless.jax.function",
        "delta_orthogonal": "skipless.jax.delta",
        "transposed_delta_orthogonal": "skipless.jax.transposed_delta",
    },
)


class _Package(ModuleType):
    """Keeps `convert` the function: importing the module of that name would replace it."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "convert" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # or a type checker would accept any name

    def __getattr__(name):
        if name not in _OF_FLAX:
            return _find_renamed(name)
        found = getattr(import_module("skipless.jax.modules"), name)
        globals()[name] = found
        return found

"""Flax NNX: shaped activations as modules, and a model shaped in one line.

`convert` works on models whose modules hold their activations, as attributes or in `nnx.Sequential`
and lists. What is written out in `__call__` cannot be replaced from outside; it is refused.
"""

try:
    import flax as _flax  # noqa: F401 - to say what is missing, and not where
except ModuleNotFoundError as error:
    raise ImportError(
        f"skipless.jax.nnx needs {error.name}, which is not installed: pip install 'skipless[jax]'"
    ) from error

from skipless.jax.convert import (
    Constant,
    ConversionReport,
    Identity,
    ShapedActivation,
    TReLU,
    convert,
)

__all__ = ["Constant", "ConversionReport", "Identity", "ShapedActivation", "TReLU", "convert"]

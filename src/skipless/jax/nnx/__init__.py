"""Flax NNX: shaped activations as modules, and a model shaped in one line.

`convert` works on models whose modules hold their activations, as attributes or in `nnx.Sequential`
and lists. What is written out in `__call__` cannot be replaced from outside; it is refused.
"""

from .activations import Constant, ShapedActivation, TReLU
from .convert import ConversionReport, convert
from .held import Identity

__all__ = ["Constant", "ConversionReport", "Identity", "ShapedActivation", "TReLU", "convert"]

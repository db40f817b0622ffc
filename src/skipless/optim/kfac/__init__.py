"""K-FAC: natural gradients by Kronecker-factored curvature."""

from .optimizer import KFAC
from .presets import PRESETS, Preset, PresetName

__all__ = ["KFAC", "PRESETS", "Preset", "PresetName"]

"""K-FAC: natural gradients by Kronecker-factored curvature."""

from .optimizer import KFAC, PRESETS, Preset, PresetName

__all__ = ["KFAC", "PRESETS", "Preset", "PresetName"]

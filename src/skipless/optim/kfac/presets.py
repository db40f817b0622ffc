"""How much damping, and how long steps: the settings of the paper's K-FAC runs."""

from __future__ import annotations

from typing import Literal, TypedDict

PresetName = Literal["cifar10", "imagenet"]


class Preset(TypedDict):
    """Settings of K-FAC that go together."""

    damping: float
    norm_constraint: float


PRESETS: dict[PresetName, Preset] = {
    # Appendix E.2. Also the one for small data and small batches: ImageNet's lets vanilla networks
    # of 50 layers diverge on them, at all but tiny learning rates.
    "cifar10": {"damping": 1e-2, "norm_constraint": 1e-4},
    # Appendix D: batches of 1,024, learning rates from 0.00003 to 0.003, 5 epochs of warm-up.
    "imagenet": {"damping": 1e-3, "norm_constraint": 1e-3},
}

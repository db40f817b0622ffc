"""What turns gradients into steps: torch optimisers that know nothing of this project."""

from .choices import KFACSettings, create_optimizer, optimizer_names
from .kfac import KFAC, PRESETS
from .lars import LARS
from .muon import MuonAdamW

__all__ = [
    "KFAC",
    "LARS",
    "PRESETS",
    "KFACSettings",
    "MuonAdamW",
    "create_optimizer",
    "optimizer_names",
]

"""What turns gradients into steps: torch optimisers that know nothing of this project."""

from .choices import create_optimizer, optimizer_names
from .lars import LARS
from .muon import MuonAdamW

__all__ = ["LARS", "MuonAdamW", "create_optimizer", "optimizer_names"]

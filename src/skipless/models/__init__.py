"""Networks of the paper, plain PyTorch modules by names that users of timm know."""

from .create import create_model, list_models
from .networks import MLP, ResNet, Shaping

__all__ = ["MLP", "ResNet", "Shaping", "create_model", "list_models"]

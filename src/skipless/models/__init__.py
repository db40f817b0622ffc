"""Networks of the paper, plain PyTorch modules by names that users of timm know."""

from .create import create_model
from .mlp import MLP
from .names import list_models
from .resnet import ResNet
from .shaping import Shaping

__all__ = ["MLP", "ResNet", "Shaping", "create_model", "list_models"]

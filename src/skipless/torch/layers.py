"""The layers of a recorded model: which modules they are, and which of them lack a bias."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx, nn

from .operations import called_module

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_STOCK_LAYERS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)
_STOCK_FORWARDS = {cls.forward for cls in _STOCK_LAYERS}


def module_of_layer(
    node: fx.Node, modules: Mapping[str, nn.Module], parameters: Mapping[str, str | None]
) -> str | None:
    """The path of the module, left as PyTorch made it, whose whole work is this operation.

    `parameters` has the names of recorded parameters.
    """
    path, _ = called_module(node)
    module = modules.get(path)
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return path
    if not isinstance(module, _STOCK_LAYERS) or type(module).forward not in _STOCK_FORWARDS:
        return None
    if isinstance(module, (*CONVOLUTIONS, *TRANSPOSED)) and module.padding_mode != "zeros":
        return None  # which is an operation before the convolution
    weight = node.args[1] if len(node.args) > 1 else None
    own = isinstance(weight, fx.Node) and parameters.get(weight.name) == f"{path}.weight"
    return path if own else None


def give_bias_(layer: nn.Module) -> bool:
    """Whether `layer` had no bias, and has one of zeros now."""
    assert isinstance(layer, _STOCK_LAYERS)
    if layer.bias is not None:
        return False
    width = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    layer.bias = nn.Parameter(layer.weight.new_zeros(width))
    return True

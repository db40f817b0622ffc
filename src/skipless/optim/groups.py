"""Which parameters are weights, and which are biases, slopes, and scales of normalisation."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import UninitializedParameter

# The base of batch and instance normalisation, which has no public name.
_Normalisation = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def weights_and_others(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The trainable parameters of `model`, each once, as "weights" and "others"; none is empty.

    Weights have two or more dimensions and do not belong to a normalisation layer.
    """
    normalisation = {
        parameter
        for module in model.modules()
        if isinstance(module, _Normalisation)
        for parameter in module.parameters(recurse=False)
    }
    if any(isinstance(parameter, UninitializedParameter) for parameter in model.parameters()):
        raise ValueError(
            f"{type(model).__name__} has uninitialised lazy layers. Call the model once before "
            "creating an optimiser."
        )
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError(
            f"{type(model).__name__} has no trainable parameters. Set requires_grad on some."
        )
    weights = [p for p in trainable if p.ndim >= 2 and p not in normalisation]
    known = set(weights)
    groups = {"weights": weights, "others": [p for p in trainable if p not in known]}
    return {name: parameters for name, parameters in groups.items() if parameters}

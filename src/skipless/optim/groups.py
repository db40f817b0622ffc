"""What the optimisers share: groups of parameters, their gradients, and steps with a closure."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim.optimizer import Optimizer

# The base of batch and instance normalisation, which has no public name.
_Normalisation = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


class GroupwiseOptimizer(Optimizer):
    """An optimiser whose step goes through the groups, each by itself."""

    @abstractmethod
    def _step_group(self, group: dict[str, Any]) -> None: ...

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Performs one step and returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss


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
    groups: dict[str, list[nn.Parameter]] = {"weights": [], "others": []}
    for p in model.parameters():
        if p.requires_grad:
            groups["weights" if p.ndim >= 2 and p not in normalisation else "others"].append(p)
    if not any(groups.values()):
        raise ValueError(
            f"{type(model).__name__} has no trainable parameters. Set requires_grad on some."
        )
    return {name: parameters for name, parameters in groups.items() if parameters}


def with_gradients(group: Mapping[str, Any], optimizer: str) -> tuple[list[Any], list[Tensor]]:
    """The parameters of a group that have gradients, and these; sparse ones raise an error."""
    params = [p for p in group["params"] if p.grad is not None]
    for p in params:
        if p.grad.is_sparse:
            raise ValueError(
                f"{optimizer} got a sparse gradient for a parameter of shape {tuple(p.shape)}. Use "
                "nn.Embedding(..., sparse=False), or torch.optim.SparseAdam for it."
            )
    return params, [p.grad for p in params]


def by_dtype_and_device(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """The tensors, those of one dtype and device together."""
    groups: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())

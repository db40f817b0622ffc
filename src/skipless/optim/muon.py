r"""Muon for whole networks: weights as matrices by Muon, everything else by AdamW.

Muon (Jordan et al., 2024) replaces the momentum of a weight matrix by the nearest orthogonal one,
so that its step is equally long in every direction. PyTorch's own `torch.optim.Muon` takes matrices
only. Here the weight of a convolution is flattened to the matrix (out, in · height · width), and
everything else is trained by `torch.optim.AdamW`, with one list of groups and one state for both.

Orthogonal steps are scaled by $0.2 \sqrt{\max\{m, k\}}$ for $m$ outputs and $k$ inputs
(`adjust_lr_fn="match_rms_adamw"`; Liu et al., 2025). Their entries then have AdamW's size, so
one learning rate, on AdamW's scale, serves both.
"""

from typing import Any

from torch import Tensor
from torch.optim import AdamW, Muon
from torch.optim.optimizer import ParamsT

from .groups import GroupwiseOptimizer, with_gradients
from .settings import require_bool, require_number


class MuonAdamW(GroupwiseOptimizer):
    """Muon on groups of weights with `orthogonalize=True`, AdamW on the others.

    `momentum` and `nesterov` are Muon's, `betas` and `eps` AdamW's; `lr` and the decoupled
    `weight_decay` are for both. Every setting may differ between groups.

    >>> import torch
    >>> conv = torch.nn.Conv2d(3, 8, 3)
    >>> optimizer = MuonAdamW(
    ...     [{"params": [conv.weight]}, {"params": [conv.bias], "orthogonalize": False}], lr=1e-3
    ... )
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        orthogonalize: bool = True,
    ) -> None:
        defaults: dict[str, object] = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "betas": betas,
            "eps": eps,
            "orthogonalize": orthogonalize,
        }
        for name, value in (("lr", lr), ("weight_decay", weight_decay), ("eps", eps)):
            require_number(name, value)
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise ValueError(f"betas must be two numbers in [0, 1), got {betas!r}")
        for name, value in (("momentum", momentum), *(("betas", beta) for beta in betas)):
            require_number(name, value, below=1.0)
        require_bool("nesterov", nesterov)
        require_bool("orthogonalize", orthogonalize)
        super().__init__(params, defaults)
        for group in self.param_groups:  # torch's optimisers check the ranges of settings
            self._adamw(group)
            self._muon(group, [])

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Adds a group; with `orthogonalize`, all its parameters need two or more dimensions."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        vectors = [tuple(p.shape) for p in group["params"] if p.ndim < 2]
        if group["orthogonalize"] and vectors:
            del self.param_groups[-1]
            raise ValueError(
                f"Muon needs parameters of 2 or more dimensions, got shape {vectors[0]}. Put it "
                "into a group with orthogonalize=False."
            )

    def _step_group(self, group: dict[str, Any]) -> None:
        if not group["orthogonalize"]:
            self._adamw(group).step()
            return
        params, gradients = with_gradients(group, "Muon")
        # This copies other layouts, such as channels_last, which costs little next to the
        # Newton-Schulz iteration and keeps steps and checkpoints the same for every layout.
        matrices = [p.detach().flatten(1) for p in params]
        muon = self._muon(group, matrices)
        for param, gradient, matrix in zip(params, gradients, matrices, strict=True):
            matrix.grad = gradient.flatten(1)
            muon.state[matrix] = self.state[param]
        muon.step()
        for param, matrix in zip(params, matrices, strict=True):
            if matrix.data_ptr() != param.data_ptr():
                param.copy_(matrix.view(param.shape))

    # torch's optimisers live for one step. All they keep is in our groups and our state, the single
    # source for checkpoints, copies, schedules and moves of the model.

    def _muon(self, group: dict[str, Any], matrices: list[Tensor]) -> Muon:
        own = {name: group[name] for name in ("lr", "weight_decay", "momentum", "nesterov")}
        return Muon([{"params": matrices}], adjust_lr_fn="match_rms_adamw", **own)

    def _adamw(self, group: dict[str, Any]) -> AdamW:
        own = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        adamw = AdamW([{"params": group["params"]}], **own)
        adamw.state = self.state
        return adamw

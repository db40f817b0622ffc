"""Distillation: learning from a trained network's predictions (Hinton, Vinyals & Dean, 2015)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Teacher:
    """A trained network on its device, its weight in the loss, and its temperature.

    The network is put into evaluation mode, and its parameters no longer require gradients.
    """

    network: nn.Module
    weight: float = 0.9
    temperature: float = 4.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.weight <= 1.0:
            raise ValueError(f"teacher_weight must be in [0, 1], got {self.weight}")
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(f"teacher_temperature must be finite and > 0, got {self.temperature}")
        self.network.eval().requires_grad_(False)

    def logits(self, images: Tensor, forward: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
        """The teacher's logits for a batch."""
        with torch.no_grad():
            return forward(self.network, images).float()

    def loss(self, hard: Tensor, logits: Tensor, teacher_logits: Tensor) -> Tensor:
        """The weighted mean of `hard`, the loss on labels, and the loss on the teacher's logits."""
        soft = soft_label_loss(logits, teacher_logits, self.temperature)
        return (1.0 - self.weight) * hard + self.weight * soft


def soft_label_loss(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    r"""Divergence of predictions from the teacher's, both softened by a temperature $T$.

    $$T^2\,\mathrm{KL}\bigl(\mathrm{softmax}(v / T)\,\|\,\mathrm{softmax}(z / T)\bigr)$$

    for logits $z$ and the teacher's, $v$, as a mean over samples. $T^2$ keeps gradients as large as
    those of hard labels at any $T$. For large $T$ it is half the mean square of $z - v$, less its
    mean over classes:

    >>> z, v = torch.tensor([[[1.0, 2.0, 6.0]], [[2.0, 0.0, 4.0]]], dtype=torch.float64)
    >>> difference = (z - v) - (z - v).mean()
    >>> half = difference.square().mean() / 2
    >>> torch.allclose(soft_label_loss(z, v, 1000.0), half, rtol=0.01)
    True
    """
    student, teacher = (F.log_softmax(x / temperature, dim=1) for x in (logits, teacher_logits))
    return temperature**2 * F.kl_div(student, teacher, reduction="batchmean", log_target=True)

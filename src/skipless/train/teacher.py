"""Soft labels: what a trained network says of an image, for another one to learn from.

Hinton, Vinyals & Dean, *Distilling the knowledge in a neural network* (2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Teacher:
    """A trained network on its device, the share that it has in the loss, and its temperature.

    The network is set to evaluation, and none of its weights asks for a gradient.
    """

    network: nn.Module
    weight: float = 0.9
    temperature: float = 4.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.weight <= 1.0:
            raise ValueError(f"teacher_weight = {self.weight} was asked for; give one from 0 to 1.")
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(
                f"teacher_temperature = {self.temperature} was asked for; give more than 0."
            )
        self.network.eval().requires_grad_(False)

    def outputs(self, images: Tensor, forward: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
        """The logits of its own for a batch."""
        with torch.no_grad():
            return forward(self.network, images).float()

    def loss(self, hard: Tensor, logits: Tensor, taught: Tensor) -> Tensor:
        """The loss on the data's labels, `hard`, and that on the teacher's, each with its share."""
        soft = soft_label_loss(logits, taught, self.temperature)
        return (1.0 - self.weight) * hard + self.weight * soft


def soft_label_loss(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    r"""How far predictions are from those taught, both softened by a temperature $T$.

    $$T^2\,\mathrm{KL}\bigl(\mathrm{softmax}(v / T)\,\|\,\mathrm{softmax}(z / T)\bigr)$$

    for logits $z$ and those taught, $v$, as a mean over samples. $T^2$ keeps gradients as large as
    those of hard labels, whatever $T$ is. Where that is large, it is half the mean square of
    $z - v$, less its mean over classes:

    >>> z, v = torch.tensor([[[1.0, 2.0, 6.0]], [[2.0, 0.0, 4.0]]], dtype=torch.float64)
    >>> difference = (z - v) - (z - v).mean()
    >>> half = difference.square().mean() / 2
    >>> torch.allclose(soft_label_loss(z, v, 1000.0), half, rtol=0.01)
    True
    """
    found, wanted = (F.log_softmax(own / temperature, dim=1) for own in (logits, taught))
    return temperature**2 * F.kl_div(found, wanted, reduction="batchmean", log_target=True)

r"""Scores: derivatives of the negative log likelihood of labels, by the network's outputs.

The Fisher matrix is the second moment of the scores of labels that the network itself predicts,
carried back to the parameters. For the three losses it is also their Gauss-Newton matrix:

| loss                   | the outputs are                | a label is                           |
|------------------------|--------------------------------|--------------------------------------|
| `cross_entropy`        | logits, classes in dimension 1 | one of the classes                   |
| `binary_cross_entropy` | logits                         | 0 or 1, for each output by itself    |
| `mse`                  | means                          | normal, of variance 1/2              |

They are PyTorch's functions of these names (`binary_cross_entropy_with_logits`, `mse_loss`); the
square of an error is the likelihood's exponent for a variance of 1/2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Literal, get_args

import torch
from torch import Tensor

Loss = Literal["cross_entropy", "binary_cross_entropy", "mse"]
Fisher = Literal["sampled", "exact", "empirical"]

LOSSES: tuple[str, ...] = get_args(Loss)
FISHERS: tuple[str, ...] = get_args(Fisher)


def terms(outputs: Tensor, loss: Loss) -> int:
    """How many losses PyTorch's reduction="mean" takes the mean of."""
    if loss == "cross_entropy":
        return outputs.numel() // max(outputs.shape[1], 1)
    return outputs.numel()


@dataclass(frozen=True)
class Chance:
    """Random numbers for the examples of one process out of `world`.

    Each process draws for the examples of all, and keeps those of its own: so what is drawn does
    not depend on how many processes share a batch.
    """

    seed: int
    rank: int = 0
    world: int = 1

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers from 0 to 1, shaped like a tensor with examples first."""
        return self._drawn(torch.rand, like)

    def normal(self, like: Tensor) -> Tensor:
        """Numbers of mean 0 and variance 1."""
        return self._drawn(torch.randn, like)

    def signs(self, like: Tensor) -> Tensor:
        """Either 1 or -1."""
        return torch.where(self.uniform(like) < 0.5, 1.0, -1.0).to(like.dtype)

    def _drawn(self, draw: Callable[..., Tensor], like: Tensor) -> Tensor:
        generator = torch.Generator(like.device).manual_seed(self.seed)
        n, *rest = like.shape
        everyones = (self.world * n, *rest)
        drawn = draw(everyones, generator=generator, device=like.device, dtype=like.dtype)
        return drawn[self.rank * n : (self.rank + 1) * n]


def sampled_scores(outputs: Tensor, loss: Loss, chance: Chance) -> Tensor:
    """Scores of labels drawn from what the network predicts."""
    if loss == "mse":
        return chance.normal(outputs) * sqrt(2.0)
    if loss == "binary_cross_entropy":
        likely = outputs.sigmoid()
        return likely - (chance.uniform(outputs) < likely).to(outputs.dtype)
    likely = outputs.softmax(dim=1)
    reached = likely.cumsum(dim=1)
    drawn = chance.uniform(outputs[:, 0]).unsqueeze(1) * reached[:, -1:]
    passed = (reached <= drawn).sum(dim=1, keepdim=True)
    return _less_one(likely, passed.clamp(max=outputs.shape[1] - 1))


# The scores of labels that are drawn have mean zero, so that in products of sums over a batch only
# the squares remain on average. Scores that are not drawn get signs that are, to the same end.


def exact_scores(outputs: Tensor, loss: Loss, chance: Chance) -> Iterator[Tensor]:
    """Vectors whose outer products have the mean over all labels as their sum."""
    if outputs.ndim == 1:
        outputs = outputs.unsqueeze(1)
        yield from (score.squeeze(1) for score in exact_scores(outputs, loss, chance))
        return
    signs = chance.signs(outputs[:, 0])
    if loss == "cross_entropy":
        likely = outputs.softmax(dim=1)
        for label in range(outputs.shape[1]):
            of_label = torch.full_like(outputs[:, :1], label, dtype=torch.int64)
            root = likely[:, label].sqrt() * signs
            yield _less_one(likely, of_label) * root.unsqueeze(1)
        return
    likely = outputs.sigmoid()
    deviation = (likely * (1.0 - likely)).sqrt()
    if loss == "mse":
        deviation = torch.full_like(outputs, sqrt(2.0))
    for index in range(outputs.shape[1]):
        alone = torch.zeros_like(outputs)
        alone[:, index] = deviation[:, index] * signs
        yield alone


def empirical_scores(outputs: Tensor, targets: Tensor, loss: Loss, chance: Chance) -> Tensor:
    """Scores of the labels of the data."""
    if loss == "mse":
        return 2.0 * (outputs - targets) * chance.signs(outputs)
    if loss == "binary_cross_entropy":
        return (outputs.sigmoid() - targets) * chance.signs(outputs)
    scores = _less_one(outputs.softmax(dim=1), targets.unsqueeze(1))
    return scores * chance.signs(outputs[:, 0]).unsqueeze(1)


def times_hessian(outputs: Tensor, vector: Tensor, loss: Loss) -> Tensor:
    """The second derivative of the summed loss by the outputs, times `vector`."""
    if loss == "mse":
        return 2.0 * vector
    if loss == "binary_cross_entropy":
        likely = outputs.sigmoid()
        return likely * (1.0 - likely) * vector
    likely = outputs.softmax(dim=1)
    weighted = likely * vector
    return weighted - likely * weighted.sum(dim=1, keepdim=True)


def _less_one(likely: Tensor, labels: Tensor) -> Tensor:
    """Probabilities, less 1 at the labels."""
    return likely.scatter_add(1, labels, torch.full_like(likely[:, :1], -1.0).expand_as(labels))

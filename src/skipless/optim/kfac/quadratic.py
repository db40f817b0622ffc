r"""The quadratic model of the loss around the weights, on the batch of a step.

$$M(v) = g^T v + \tfrac12 v^T (F + \ell) v$$

with the exact Fisher matrix $F$ and L2 penalty $\ell$. Over the plane of the natural gradient and
the last step, with damping, its minimum gives the learning rate and the momentum of a step (Martens
and Grosse, 2015, section 7). How much of the change that it promises comes about tells whether the
damping is right (section 6.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

import torch
from torch import Tensor, nn

from .processes import average_
from .scores import Loss, times_hessian

# As in kfac-jax.
_DECAY = 0.9  # for each step
_LEAST_DAMPING = 1e-8

_PARALLEL = 1e-7  # what single precision leaves of the angle between parallel vectors


class Linearisation:
    """What outputs do to first order when parameters change."""

    def __init__(
        self, outputs: Tensor, parameters: Sequence[nn.Parameter], loss: Loss, losses: int
    ) -> None:
        self.outputs, self.losses = outputs.detach(), losses
        self.loss: Loss = loss
        # Back-propagation is linear in the vector that it starts from, so that its own derivative
        # by that vector carries changes of parameters forward.
        self._probe = torch.zeros_like(self.outputs, requires_grad=True)
        moving = [p for p in parameters if p.requires_grad]  # some may be frozen by now
        with torch.enable_grad():
            found = torch.autograd.grad(
                [outputs], moving, [self._probe], create_graph=True, allow_unused=True
            )
        back = dict(zip(moving, found, strict=True))
        self._back = [back.get(parameter) for parameter in parameters]

    def push(self, vectors: Sequence[Tensor]) -> Tensor:
        """The change of the outputs for changes of the parameters."""
        reached = [(b, v) for b, v in zip(self._back, vectors, strict=True) if b is not None]
        (forward,) = torch.autograd.grad(
            [back for back, _ in reached],
            [self._probe],
            [vector for _, vector in reached],
            retain_graph=True,
            materialize_grads=True,
        )
        return forward


def fisher_products(
    linearisations: Sequence[Linearisation], vectors: Sequence[Sequence[Tensor]]
) -> Tensor:
    """The matrix of v^T F w for all pairs of vectors, over the batches of all processes."""
    total = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    losses = sum(own.losses for own in linearisations)
    for own in linearisations:
        pushed = [own.push(vector) for vector in vectors]
        curved = [times_hessian(own.outputs, change, own.loss) for change in pushed]
        for i, change in enumerate(pushed):
            for j, product in enumerate(curved):
                total[i, j] += float((change * product).sum()) / losses
    total = total.to(linearisations[0].outputs.device)
    average_([total])
    return total.cpu()


def inner_products(left: Sequence[Sequence[Tensor]], right: Sequence[Sequence[Tensor]]) -> Tensor:
    """The matrix of inner products of vectors that are lists of tensors."""
    return torch.tensor(
        [
            [sum(float((a * b).sum()) for a, b in zip(v, w, strict=True)) for w in right]
            for v in left
        ],
        dtype=torch.float64,
    )


def best_coefficients(matrix: Tensor, slopes: Tensor) -> Tensor:
    """Where the quadratic with that matrix and those slopes is least, in the plane or on a line.

    The plane is a line where there was no step before, or where it went along the gradient.
    """
    lengths = matrix.diagonal().clamp(min=0.0).sqrt()
    scales = torch.where(lengths > 0.0, 1.0 / lengths, 0.0)
    angles = scales[:, None] * matrix * scales
    inverse = torch.linalg.pinv(angles, rtol=_PARALLEL, hermitian=True)
    return -scales * (inverse @ (scales * slopes))


def adapted_damping(damping: float, change: float, promised: float, steps: int) -> float:
    """The damping for the next steps, by the rule of Levenberg and Marquardt.

    It falls where the loss changed by three quarters or more of what the model promised, and rises
    where by less than a quarter, for so many steps at a time.
    """
    ratio = change / promised if isfinite(change) and promised < 0.0 else -inf
    factor = _DECAY**steps
    if ratio > 0.75:
        damping *= factor
    elif ratio < 0.25:
        damping /= factor
    return max(damping, _LEAST_DAMPING)

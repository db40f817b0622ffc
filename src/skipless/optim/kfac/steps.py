r"""Velocities, by which parameters change, from gradients and directions.

They follow the learning rates and momenta of the groups, or the quadratic model of the loss around
the weights, on the batch of a step:

$$M(v) = g^T v + \tfrac12 v^T (F + \ell) v$$

with the exact Fisher matrix $F$ and L2 penalty $\ell$. Over the plane of the natural gradient and
the last step, with damping, its minimum gives the learning rate and the momentum of a step (Martens
and Grosse, 2015, section 7). How much of the predicted change is achieved tells whether the damping
is right (section 6.5).
"""

# pyright: reportPrivateImportUsage=false
# torch._foreach_* are what torch's own optimisers are made of, but have no public names.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from skipless.optim.groups import with_gradients
from skipless.optim.settings import Loss

from .estimate import CurvatureEstimate
from .inverse import Values
from .moments import at_least_float32
from .processes import average_
from .scores import times_hessian

Groups = Sequence[Mapping[str, Any]]

# As in kfac-jax.
_DECAY = 0.9  # for each step
_LEAST_DAMPING = 1e-8

_PARALLEL = 1e-7  # what single precision leaves of the angle between parallel vectors


class Linearisation:
    """How outputs change to first order when parameters change."""

    def __init__(
        self, outputs: Tensor, parameters: Sequence[nn.Parameter], loss: Loss, losses: int
    ) -> None:
        self.outputs, self.losses = outputs.detach(), losses
        self.loss: Loss = loss
        # Back-propagation is linear in the vector that it starts from, so its own derivative by
        # that vector propagates changes of parameters forward.
        self._probe = torch.zeros_like(self.outputs, requires_grad=True)
        trainable = [p for p in parameters if p.requires_grad]  # some may be frozen by now
        with torch.enable_grad():
            found = torch.autograd.grad(
                [outputs], trainable, [self._probe], create_graph=True, allow_unused=True
            )
        pairs = zip(trainable, found, strict=True)
        self._back = {p: back for p, back in pairs if back is not None}

    def push(self, vector: Values) -> Tensor:
        """The change of the outputs for changes of parameters."""
        reached = [p for p in self._back if p in vector]
        (forward,) = torch.autograd.grad(
            [self._back[p] for p in reached],
            [self._probe],
            [vector[p] for p in reached],
            retain_graph=True,
            materialize_grads=True,
        )
        return forward


def fisher_products(linearisations: Sequence[Linearisation], vectors: Sequence[Values]) -> Tensor:
    """The matrix of v^T F w for all pairs of vectors, over the batches of all processes."""
    total = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    losses = sum(own.losses for own in linearisations)
    for own in linearisations:
        pushed = [own.push(vector) for vector in vectors]
        curved = [times_hessian(own.outputs, change, own.loss) for change in pushed]
        products = [[float((v * w).sum()) for w in curved] for v in pushed]
        total += torch.tensor(products, dtype=torch.float64) / losses
    total = total.to(linearisations[0].outputs.device)
    average_([total])
    return total.cpu()


def inner_products(left: Sequence[Values], right: Sequence[Values]) -> Tensor:
    """The matrix of inner products, over the parameters that the left ones have."""
    products = [[sum(float((t * w[p]).sum()) for p, t in v.items()) for w in right] for v in left]
    return torch.tensor(products, dtype=torch.float64)


def best_coefficients(matrix: Tensor, slopes: Tensor) -> Tensor:
    """The minimum of the quadratic with that matrix and those slopes, in the plane or on a line.

    The plane is a line if there was no step before, or if it went along the gradient.
    """
    lengths = matrix.diagonal().clamp(min=0.0).sqrt()
    scales = torch.where(lengths > 0.0, 1.0 / lengths, 0.0)
    angles = scales[:, None] * matrix * scales
    inverse = torch.linalg.pinv(angles, rtol=_PARALLEL, hermitian=True)
    return -scales * (inverse @ (scales * slopes))


def adapt_damping(damping: float, change: float, predicted: float, steps: int) -> float:
    """The damping for the next steps, by the rule of Levenberg and Marquardt.

    It falls if the loss changed by three quarters or more of the prediction, and rises if it
    changed by less than a quarter, for that many steps at once.
    """
    ratio = change / predicted if isfinite(change) and predicted < 0.0 else -inf
    factor = _DECAY**steps
    if ratio > 0.75:
        damping *= factor
    elif ratio < 0.25:
        damping /= factor
    return max(damping, _LEAST_DAMPING)


@dataclass(eq=False)
class ProposedStep:
    """The parts of a step; it changes the velocities in place."""

    groups: Groups
    gradients: Values
    directions: Values  # of the parameters that will move
    velocities: Values

    @cached_property
    def slopes(self) -> list[float]:
        """The inner product of gradients and directions in each moving group."""
        found = self._slopes(self.gradients)
        if all(map(isfinite, found)):
            return found
        # Products of large numbers may overflow single precision, though the numbers do not.
        return self._slopes({p: gradient.double() for p, gradient in self.gradients.items()})

    def _slopes(self, gradients: Values) -> list[float]:
        own = [{p: self.directions[p] for p in parameters} for _, parameters in self._moving]
        found = [inner(gradients, directions) for directions in own]
        return torch.stack([f.to(found[0]) for f in found]).tolist() if found else []

    @cached_property
    def _moving(self) -> list[tuple[Mapping[str, Any], list[nn.Parameter]]]:
        """The groups with parameters that will move, and these."""
        own = [[p for p in group["params"] if p in self.directions] for group in self.groups]
        return [(group, found) for group, found in zip(self.groups, own, strict=True) if found]

    @property
    def length(self) -> float:
        """The squared length of a step by the rates, in the metric of the curvature."""
        pairs = zip(self._moving, self.slopes, strict=True)
        return sum(group["lr"] ** 2 * slope for (group, _), slope in pairs)

    def set_by_rates(self, norm_constraint: float | None) -> None:
        """Sets velocities by the learning rates and momenta of the groups."""
        factor = 1.0
        if norm_constraint is not None and self.length > norm_constraint:
            factor = sqrt(norm_constraint / self.length)
        for group, own in self._moving:
            velocities = [self.velocities[p] for p in own]
            steps = [self.directions[p].to(self.velocities[p].dtype) for p in own]
            torch._foreach_mul_(velocities, group["momentum"])
            torch._foreach_add_(velocities, steps, alpha=-group["lr"] * factor)

    def set_by_model(
        self, linearisations: Sequence[Linearisation], damping: float
    ) -> tuple[float, float, float]:
        """Sets velocities by the quadratic model: learning rate, momentum, predicted change."""
        plane = [self.directions, self.velocities]
        penalties = {p: group["l2"] for group in self.groups for p in group["params"]}
        penalised = [{p: penalties[p] * t for p, t in v.items()} for v in plane]
        curved = fisher_products(linearisations, plane) + inner_products(plane, penalised)
        slopes = inner_products(plane, [self.gradients])[:, 0]
        best = best_coefficients(curved + damping * inner_products(plane, plane), slopes)
        rate, momentum = -float(best[0]), float(best[1])
        for p, direction in self.directions.items():
            self.velocities[p].mul_(momentum).add_(direction.to(p.dtype), alpha=-rate)
        return rate, momentum, float(0.5 * best @ curved @ best + slopes @ best)

    def predicted_change(self, estimate: CurvatureEstimate) -> float:
        """The change of the loss by the velocities, by the Kronecker-factored curvature."""
        moved = {p: v.to(self.gradients[p].dtype) for p, v in self.velocities.items()}
        total = inner(moved, self.gradients) + 0.5 * inner(moved, estimate.products(moved))
        return float(total) + penalty(self.groups, moved)


def full_gradients(groups: Groups) -> dict[nn.Parameter, Tensor]:
    """Gradients of the loss and of the penalty, in full precision."""
    found: dict[nn.Parameter, Tensor] = {}
    for group in groups:
        own, grads = with_gradients(group, "K-FAC")
        if group["l2"] and own:
            grads = torch._foreach_add(grads, own, alpha=group["l2"])
        found |= zip(own, grads, strict=True)
    return {p: gradient.to(at_least_float32(gradient)) for p, gradient in found.items()}


def penalty(groups: Groups, values: Values | None = None) -> float:
    """The L2 penalty on all weights, or on `values` that stand for some of them."""
    total = 0.0
    for group in groups:
        for p in group["params"] if group["l2"] else ():
            if values is None or p in values:
                value = p.detach() if values is None else values[p]
                total += group["l2"] * float(value.square().sum())
    return 0.5 * total


def inner(left: Values, right: Values) -> Tensor:
    """The inner product over the parameters that both have, on their device."""
    products = [
        torch.dot(left[p].reshape(-1), r.to(left[p].dtype).reshape(-1))
        for p, r in right.items()
        if p in left
    ]
    return torch.stack(products).sum() if products else torch.zeros(())

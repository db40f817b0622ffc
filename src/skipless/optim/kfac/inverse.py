r"""Damped inverses of Kronecker factors, many at a time.

The inverse of $A \otimes G + \lambda I$ is not a Kronecker product. Factored Tikhonov damping takes
$(A + \pi\sqrt\lambda I) \otimes (G + \sqrt\lambda/\pi\, I)$ instead, where $\pi^2$ is the ratio of
the mean diagonal of $A$ to that of $G$ (Martens and Grosse, 2015, section 6.3). Here it is written
$(A/\pi + \sqrt\lambda I) \otimes (\pi G + \sqrt\lambda I)$, of which no inverse is larger than
$1/\sqrt\lambda$. Where one factor is a single number the product is exact without it.

The diagonal of the Fisher matrix, for parameters that are no matrices of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_ATTEMPTS = 8  # with ten times the damping each


@dataclass(frozen=True)
class Damping:
    """What becomes of a factor before it is inverted: `scale` times it, plus `shift`."""

    scale: Tensor
    shift: Tensor


def factored_damping(inputs: Tensor, outputs: Tensor, damping: float) -> tuple[Damping, Damping]:
    """How to damp the factors of inputs, (n, d, d) or diagonal (n, d), and of outputs."""
    mean_in, mean_out = (_diagonal(factor).mean(dim=1) for factor in (inputs, outputs))
    one, zero = torch.ones_like(mean_in), torch.zeros_like(mean_in)
    if outputs.shape[1] == 1:
        return Damping(mean_out, damping * one), Damping(zero, one)
    if inputs.shape[1] == 1:
        return Damping(zero, one), Damping(mean_in, damping * one)
    ratio, inverse = mean_in.sqrt() / mean_out.sqrt(), mean_out.sqrt() / mean_in.sqrt()
    # Where nothing goes in or comes back there is no ratio, and nothing but the damping.
    something = ratio.isfinite() & inverse.isfinite()
    shift = damping**0.5 * one
    return (
        Damping(torch.where(something, inverse, zero), shift),
        Damping(torch.where(something, ratio, zero), shift),
    )


def damped_inverses(
    matrices: Tensor, damping: Damping, previous: Tensor, tell: Callable[[str], None]
) -> Tensor:
    """The inverses of (n, d, d) matrices; `previous` ones where that fails.

    Rounding can make a matrix indefinite. Then its inverse is taken in double precision, with more
    damping if need be. That goes to `tell`.
    """
    inverses, failed = _inverses(_damped(matrices, damping))
    for index in failed.nonzero().flatten().tolist():
        one = slice(index, index + 1)
        again = _more_damped(matrices[one], Damping(damping.scale[one], damping.shift[one]), tell)
        inverses[one] = previous[one] if again is None else again
    return inverses


def eigenbases(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (n, d), none below zero, and eigenvectors, in columns, of (n, d, d) matrices."""
    values, vectors = torch.linalg.eigh(matrices)
    return values.clamp(min=0.0), vectors


def _inverses(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Inverses by Cholesky's decomposition, and where it failed."""
    triangles, info = torch.linalg.cholesky_ex(matrices)
    failed = info != 0
    # One triangle that cannot be inverted would be an error for all of them.
    one = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    inverses = torch.cholesky_inverse(torch.where(failed[:, None, None], one, triangles))
    return inverses, failed | ~inverses.isfinite().flatten(1).all(dim=1)


def _more_damped(matrix: Tensor, damping: Damping, tell: Callable[[str], None]) -> Tensor | None:
    what = f"A Kronecker factor of size {matrix.shape[-1]}"
    wide = matrix.double()
    scale, shift = damping.scale.double(), damping.shift.double()
    for attempt in range(_ATTEMPTS if wide.isfinite().all() else 0):
        inverse, failed = _inverses(_damped(wide, Damping(scale, shift * 10.0**attempt)))
        if not failed.any():
            tell(
                f"{what} could not be inverted in its own precision, but in double precision, with "
                f"{10**attempt} times the damping. If the loss rises, raise the damping."
            )
            return inverse.to(matrix.dtype)
    tell(f"{what} could not be inverted; its last inverse is kept. Raise the damping.")
    return None


def _damped(matrices: Tensor, damping: Damping) -> Tensor:
    damped = matrices * damping.scale[:, None, None]
    damped.diagonal(dim1=1, dim2=2).add_(damping.shift[:, None])
    return damped


def _diagonal(factor: Tensor) -> Tensor:
    return factor if factor.ndim == 2 else factor.diagonal(dim1=1, dim2=2)


class Diagonal:
    """Running means of squared gradients of sampled losses.

    Scores that are drawn have mean zero, so the square of a sum over a batch is on average the sum
    of the squares: no gradients of single examples are needed.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._given = set(parameters)
        self.weights: dict[nn.Parameter, float] = {}
        self.means: dict[nn.Parameter, Tensor] = {}
        self.add(parameters)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that have a diagonal."""
        return list(self.means)

    def add(self, parameters: Sequence[nn.Parameter]) -> None:
        """Keep a diagonal for more of them."""
        for parameter in parameters:
            self.weights[parameter], self.means[parameter] = 0.0, _zeros(parameter)

    def update(self, squares: Mapping[nn.Parameter, Tensor], losses: int, ema: float) -> None:
        """Let the squares of gradients in that were summed over that many losses.

        Parameters that were not used rest, as layers do.
        """
        used = torch.stack([s.any().cpu() for s in squares.values()]).tolist() if squares else []
        for (parameter, square), moved in zip(squares.items(), used, strict=True):
            if not moved:
                continue
            self.weights[parameter] = weight = ema * self.weights[parameter] + 1.0
            self.means[parameter].lerp_(square / losses, 1.0 / weight)

    def apply(
        self, gradients: Mapping[nn.Parameter, Tensor], damping: float
    ) -> dict[nn.Parameter, Tensor]:
        """Gradients over the curvature, of those for which it is known."""
        return {
            parameter: gradient / (self.means[parameter] + damping)
            for parameter, gradient in gradients.items()
            if self.weights.get(parameter)
        }

    def products(self, vectors: Mapping[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
        """The curvature times vectors."""
        return {p: self.means[p] * vector for p, vector in vectors.items() if p in self.means}

    def state(self, names: Mapping[nn.Parameter, str]) -> dict[str, Any]:
        """Everything that is kept, by the parameters' names."""
        return {
            names[p]: {"weight": self.weights[p], "mean": mean} for p, mean in self.means.items()
        }

    def check(self, state: Mapping[str, Any], named: Mapping[str, nn.Parameter]) -> None:
        """Raise an error if `state` is not one of these parameters."""
        shapes = {name: tuple(own["mean"].shape) for name, own in state.items()}
        known = {name: tuple(parameter.shape) for name, parameter in named.items()}
        odd = [name for name in shapes if shapes[name] != known.get(name)]
        odd += [name for name in known if named[name] in self._given and name not in shapes]
        if odd:
            found, own = shapes.get(odd[0], "nothing"), known.get(odd[0], "nothing")
            raise ValueError(
                f"A state of K-FAC was to be loaded that has {found} for the parameter {odd[0]}, "
                f"where the network has {own}. Load it into the network that it was saved with."
            )

    def load(self, state: Mapping[str, Any], named: Mapping[str, nn.Parameter]) -> None:
        """Take over what `state` told."""
        self.weights, self.means = {}, {}
        self.add([named[name] for name in state])
        for name, own in state.items():
            self.weights[named[name]] = own["weight"]
            self.means[named[name]].copy_(own["mean"])


def _zeros(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter, dtype=torch.promote_types(parameter.dtype, torch.float32))

r"""Damped inverses of Kronecker factors, many at a time.

The inverse of $A \otimes G + \lambda I$ is not a Kronecker product. Factored Tikhonov damping takes
$(A + \pi\sqrt\lambda I) \otimes (G + \sqrt\lambda/\pi\, I)$ instead, where $\pi^2$ is the ratio of
the mean diagonal of $A$ to that of $G$ (Martens and Grosse, 2015, section 6.3). Here it is written
$(A/\pi + \sqrt\lambda I) \otimes (\pi G + \sqrt\lambda I)$, of which no inverse is larger than
$1/\sqrt\lambda$. Where one factor is a single number the product is exact without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

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

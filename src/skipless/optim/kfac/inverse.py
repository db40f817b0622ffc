r"""Damped inverses of Kronecker factors, many at a time, and diagonals for all other parameters.

The inverse of $A \otimes G + \lambda I$ is not a Kronecker product. Factored Tikhonov damping uses
$(A + \pi\sqrt\lambda I) \otimes (G + \sqrt\lambda/\pi\, I)$ instead, where $\pi^2$ is the ratio of
the mean diagonal of $A$ to that of $G$ (Martens and Grosse, 2015, section 6.3). Here it is written
$(A/\pi + \sqrt\lambda I) \otimes (\pi G + \sqrt\lambda I)$, of which no inverse is larger than
$1/\sqrt\lambda$. Where one factor is a single number the product is exact without it.

Axes: n = matrices of one size, d = their rows and columns.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .moments import at_least_float32

Values = Mapping[nn.Parameter, Tensor]  # such as gradients

_ATTEMPTS = 8  # each with ten times the damping of the one before


class Damping(NamedTuple):
    """A factor is damped to `scale` times it, plus `shift` times the identity; both are (n,)."""

    scale: Tensor
    shift: Tensor


def factored_damping(outputs: Tensor, inputs: Tensor, damping: float) -> tuple[Damping, Damping]:
    """How to damp the factors of outputs and of inputs, (n, d, d) or diagonal (n, d)."""
    mean_out, mean_in = (
        (f if f.ndim == 2 else f.diagonal(dim1=1, dim2=2)).mean(dim=1) for f in (outputs, inputs)
    )
    one, zero = torch.ones_like(mean_in), torch.zeros_like(mean_in)
    if outputs.shape[1] == 1:
        return Damping(zero, one), Damping(mean_out, damping * one)
    if inputs.shape[1] == 1:
        return Damping(mean_in, damping * one), Damping(zero, one)
    ratio, inverse = mean_in.sqrt() / mean_out.sqrt(), mean_out.sqrt() / mean_in.sqrt()
    # Where nothing goes in or comes back there is no ratio, and nothing but the damping.
    is_defined = ratio.isfinite() & inverse.isfinite()
    shift = damping**0.5 * one
    of_outputs, of_inputs = (torch.where(is_defined, own, zero) for own in (ratio, inverse))
    return Damping(of_outputs, shift), Damping(of_inputs, shift)


def damped_inverses(
    matrices: Tensor, damping: Damping, previous: Tensor, warn: Callable[[str], None]
) -> Tensor:
    """The inverses of damped `matrices`, (n, d, d) or diagonal; those of `previous` if that fails.

    Rounding can make a matrix indefinite. Then it is inverted in double precision, with more
    damping if necessary, and `warn` gets a message.
    """
    if matrices.ndim == 2:
        return (matrices * damping.scale[:, None] + damping.shift[:, None]).reciprocal()
    inverses, failed = _invert(_damp(matrices, damping))
    for index in failed.nonzero().flatten().tolist():
        one = slice(index, index + 1)
        retried = _retry(matrices[one], Damping(damping.scale[one], damping.shift[one]), warn)
        inverses[one] = previous[one] if retried is None else retried
    return inverses


def eigenbases(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvectors, in columns, and eigenvalues, none below 0; diagonals have diagonal ones."""
    if matrices.ndim == 2:
        return torch.ones_like(matrices), matrices
    values, vectors = torch.linalg.eigh(matrices)
    return vectors, values.clamp(min=0.0)


def _invert(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Inverses by Cholesky decomposition, and for which matrices it failed."""
    triangles, info = torch.linalg.cholesky_ex(matrices)
    failed = info != 0
    # One singular triangle would raise an error for all of them.
    one = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    inverses = torch.cholesky_inverse(torch.where(failed[:, None, None], one, triangles))
    return inverses, failed | ~inverses.isfinite().flatten(1).all(dim=1)


def _retry(matrix: Tensor, damping: Damping, warn: Callable[[str], None]) -> Tensor | None:
    """The inverse in double precision, with as much damping as it takes."""
    name = f"A Kronecker factor of size {matrix.shape[-1]}"
    wide = matrix.double()
    scale, shift = damping.scale.double(), damping.shift.double()
    for attempt in range(_ATTEMPTS if wide.isfinite().all() else 0):
        inverse, failed = _invert(_damp(wide, Damping(scale, shift * 10.0**attempt)))
        if not failed.any():
            warn(
                f"{name} could only be inverted in double precision, with {10**attempt} times the "
                "damping. If the loss rises, raise the damping."
            )
            return inverse.to(matrix.dtype)
    warn(f"{name} could not be inverted; its last inverse is kept. Raise the damping.")
    return None


def _damp(matrices: Tensor, damping: Damping) -> Tensor:
    damped = matrices * damping.scale[:, None, None]
    damped.diagonal(dim1=1, dim2=2).add_(damping.shift[:, None])
    return damped


class Diagonal:
    """The diagonal of the Fisher matrix: running means of squared gradients of sampled losses.

    Sampled scores have mean zero, so the square of a sum over a batch is on average the sum of the
    squares: per-example gradients are not needed.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._required = set(parameters)
        self.weights: dict[nn.Parameter, float] = {}
        self.means: dict[nn.Parameter, Tensor] = {}
        self.add(parameters)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that have a diagonal."""
        return list(self.means)

    def add(self, parameters: Sequence[nn.Parameter]) -> None:
        """Keeps a diagonal for more parameters."""
        for p in parameters:
            self.weights[p], self.means[p] = 0.0, torch.zeros_like(p, dtype=at_least_float32(p))

    def update(self, squares: Values, losses: int, ema: float) -> None:
        """Adds squares of gradients that are summed over that many losses.

        Parameters that the batch did not use keep their means, as layers do.
        """
        used = torch.stack([s.any().cpu() for s in squares.values()]).tolist() if squares else []
        for (parameter, square), is_used in zip(squares.items(), used, strict=True):
            if is_used:
                self.weights[parameter] = weight = ema * self.weights[parameter] + 1.0
                self.means[parameter].lerp_(square / losses, 1.0 / weight)

    def apply(self, gradients: Values, damping: float) -> dict[nn.Parameter, Tensor]:
        """Gradients over the curvature, where it is known."""
        known = (p for p in gradients if self.weights.get(p))
        return {p: gradients[p] / (self.means[p] + damping) for p in known}

    def products(self, vectors: Values) -> dict[nn.Parameter, Tensor]:
        """The curvature times vectors."""
        return {p: self.means[p] * vector for p, vector in vectors.items() if p in self.means}

    def state(self, names: Mapping[nn.Parameter, str]) -> dict[str, Any]:
        """The state to save, by the parameters' names."""
        return {
            names[p]: {"weight": self.weights[p], "mean": mean} for p, mean in self.means.items()
        }

    def check(self, state: Mapping[str, Any], named: Mapping[str, nn.Parameter]) -> None:
        """Raises an error unless `state` fits these parameters."""
        shapes = {name: tuple(own["mean"].shape) for name, own in state.items()}
        known = {name: tuple(parameter.shape) for name, parameter in named.items()}
        odd = [name for name in shapes if shapes[name] != known.get(name)]
        odd += [name for name in known if named[name] in self._required and name not in shapes]
        if odd:
            found, own = shapes.get(odd[0], "nothing"), known.get(odd[0], "nothing")
            raise ValueError(
                f"K-FAC's state has {found} for the parameter {odd[0]}, the network has {own}. "
                "Load it into the network that it was saved with."
            )

    def load(self, state: Mapping[str, Any], named: Mapping[str, nn.Parameter]) -> None:
        """Restores a saved state."""
        self.weights, self.means = {}, {}
        self.add([named[name] for name in state])
        for name, own in state.items():
            self.weights[named[name]] = own["weight"]
            self.means[named[name]].copy_(own["mean"])

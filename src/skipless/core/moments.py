r"""The moments of ψ(z) = φ(αz + β) that decide every condition of DKS and TAT.

For a deep network ψ is nearly linear, and the conditions compare numbers that differ by a part in a
million. So ψ is split as $\psi(z) = m + a z + u(z)$ and $\psi'(z) = a + v(z)$, with
$E[u] = E[uz] = E[v] = 0$, and each small difference is computed from the small parts $u$ and $v$,
where nothing cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .activations import Activation, Array
from .gaussian import blurred, density, rule

# Nodes beyond |z| = 9 weigh less than rounding error for any φ that grows like a polynomial.
_EDGES = np.arange(-9.0, 9.1, 1.5)
_OUTWARD = 0.75 * 2.5 ** np.arange(20)
_ORIGIN = np.concatenate([-_OUTWARD[::-1], [0.0], _OUTWARD])


@dataclass(frozen=True)
class Moments:
    r"""Moments of ψ, and what they say of γ(ψ + δ); arrays over the pairs (α, β) asked for.

    | field       | moment                       | condition                           |
    |-------------|------------------------------|-------------------------------------|
    | `mean`      | $m = E[\psi]$                | $C(0) = 0$ where $\delta = -m$      |
    | `variance`  | $V = E[\psi^2] - m^2$        | $Q(1) = \gamma^2 (V+(m+\delta)^2)$  |
    | `excess`    | $G = E[\psi'^2] - V \ge 0$   | $C'(1) = \gamma^2 (V+G)$            |
    | `imbalance` | $P = E[(\psi-m)\psi'z] - V$  | $Q'(1) = \gamma^2 (V+P+(m+\delta)T)$ |
    | `tilt`      | $T = E[\psi' z]$             |                                     |
    | `bending`   | $B = E[\psi''^2]$            | $C''(1) = \gamma^2 B$               |
    """

    mean: Array
    variance: Array
    excess: Array
    imbalance: Array
    tilt: Array
    bending: Array

    def conditions(self, gamma: float, delta: float) -> dict[str, float]:
        """What γ(ψ + δ) makes of every condition, for moments of a single pair (α, β).

        C maps are normalised by Q(1), which keeps C'(1) - 1 accurate: a deep network raises C'(1)
        to the power of its depth.
        """
        mean = float(self.mean) + delta
        square = float(self.variance) + mean**2
        return {
            "Q(1)": gamma**2 * square,
            "Q'(1)": gamma**2 * float(self.variance + self.imbalance + mean * self.tilt),
            "C(0)": mean**2 / square,
            "C'(1)": 1.0 + (float(self.excess) - mean**2) / square,
            "C''(1)": float(self.bending) / square,
        }


def moments(activation: Activation, alpha: Array, beta: Array) -> Moments:
    """The moments of φ(αz + β), for α > 0 and β of one shape."""
    z, w = shifted_rule(activation, alpha, beta)
    return _from_nodes(activation, alpha, beta, z, w)


def confirmed_moments(activation: Activation, alpha: float, beta: float) -> Moments:
    """The same moments by tanh-sinh quadrature, which shares no node with `moments`."""
    ends = np.sort((np.asarray([0.0, *activation.kinks]) - beta) / alpha)
    bounds = np.concatenate([[-12.0], ends[np.abs(ends) < 12.0], [12.0]])
    t = np.arange(-3.2, 3.2, 2.0**-6)
    inner = 0.5 * math.pi * np.sinh(t)
    x, weight = np.tanh(inner), 2.0**-6 * 0.5 * math.pi * np.cosh(t) / np.cosh(inner) ** 2
    half, middle = 0.5 * np.diff(bounds), 0.5 * (bounds[1:] + bounds[:-1])
    z = (middle[:, None] + half[:, None] * x).ravel()
    w = (half[:, None] * weight).ravel() * density(z)
    return _from_nodes(activation, np.asarray(alpha), np.asarray(beta), z, w)


def shifted_rule(activation: Activation, alpha: Array, beta: Array) -> tuple[Array, Array]:
    """Quadrature nodes and weights for φ(αz + β), a row for each pair (α, β)."""
    marks = np.concatenate([_ORIGIN, np.asarray(activation.kinks, float)])
    if activation.period is not None:
        step = 0.5 * activation.period
        span = 9.0 * min(float(np.max(alpha)), blurred(activation.period))
        count = math.ceil((span + float(np.max(np.abs(beta)))) / step)
        marks = np.concatenate([marks, step * np.arange(-count, count + 1)])
    ends = (marks - beta[..., None]) / alpha[..., None]
    near = np.any(np.abs(ends) < 9.0, axis=tuple(range(ends.ndim - 1)))
    return rule(ends[..., near], _EDGES)


def _from_nodes(activation: Activation, alpha: Array, beta: Array, z: Array, w: Array) -> Moments:
    alpha, beta = alpha[..., None], beta[..., None]
    x = alpha * z + beta
    with np.errstate(all="ignore"):  # far from the origin φ″ may underflow, or a user's φ overflow
        psi, slope = activation.value(x), alpha * activation.slope(x)
        curvature = alpha * alpha * activation.curvature(x)
    mean, a = _dot(w, psi), _dot(w, slope)
    psi = psi - mean[..., None]
    along = _dot(w * z, psi)
    u = psi - along[..., None] * z
    v = slope - a[..., None]
    uu, wvz = _dot(w, u * u), w * v * z
    return Moments(
        mean=mean,
        variance=along * along + uu,
        # E[ψ′²] - V: by Stein's lemma E[ψ′] = E[ψz], so the large parts a² are the same number.
        excess=_dot(w * v, v) - uu,
        # E[v] = 0, so E[v z²] may be taken as E[v (z² - 1)].
        imbalance=a * _dot(w * v, z * z - 1.0) + _dot(wvz, u) - uu,
        tilt=np.sum(wvz, axis=-1),
        bending=_dot(w, curvature * curvature),
    )


def _dot(a: Array, b: Array) -> Array:
    return np.einsum("...i,...i->...", a, b)


def shaped_q_map(
    activation: Activation, parameters: tuple[float, float, float, float]
) -> Callable[[Array], Array]:
    """Q map of φ̂(x) = γ(φ(αx + β) + δ), vectorised over q > 0; parameters are (α, β, γ, δ)."""
    alpha, beta, gamma, delta = parameters

    def q_map(q: Array) -> Array:
        scale = alpha * np.sqrt(q)
        if activation.period is not None:
            scale = np.minimum(scale, blurred(activation.period))
        z, w = shifted_rule(activation, scale, np.full_like(scale, beta))
        shaped = gamma * (activation.value(scale[:, None] * z + beta) + delta)
        return _dot(w, shaped * shaped)

    return q_map


def distortion(activation: Activation, parameters: tuple[float, float, float, float]) -> float:
    r"""How far the Q map of φ̂ bends away from the identity above q = 1.

    $$\int_1^\infty \left|\log\frac{Q(q)}{q}\right| q^{-3/2}\, dq$$

    $Q(1) = Q'(1) = 1$ holds for all solutions, and those with α going to 0 in deep networks even
    share $Q''(1)$ there; what sets them apart is how far q may grow before Q stops following it.
    The weight $q^{-3/2}$ is one for which that shows at every depth.
    """
    u = np.arange(0.0, 30.0, 0.5)
    q = np.exp(u)
    bend = np.abs(np.log(np.maximum(shaped_q_map(activation, parameters)(q), 1e-300)) - u)
    return float(np.sum(bend * np.exp(-0.5 * u)) * 0.5)

r"""All φ̂(x) = γ(φ(αx + β) + δ) that satisfy the conditions of DKS or TAT, as curves.

Each method has four conditions on (α, β, γ, δ), in terms of the moments of ψ(z) = φ(αz + β). Two
give γ and δ in closed form (`output`). The third, which does not depend on the network, is an
equation `balance(α, β) = 0`: its solutions are a few curves in the half plane α > 0. The network
only determines how far along a curve to go, by the `reading` that the fourth condition prescribes:
$C'(1) - 1$ for DKS, $C''(1)$ for TAT.

So the curves are traced once for each φ and cached; a solve interpolates its starting point on one
and polishes it with a few Newton steps. Unlike a root finder, this finds every solution, and stays
on one branch as the depth changes. Where a curve turns back, or its reading has an extremum, it is
traced more finely.

Of several curves, the one with the most stable Q map is used for all targets that it reaches: the
one with the least `distortion` at a reading of 1e-5, as in a network of ten thousand layers. Of
mirror images such as φ̂(-x) and -φ̂(-x), α and γ are positive and |β| is smallest. Where that curve
ends, as for DKS with GELU near C'(1) = 1.47, the value of ReLU, another one takes over, and the
parameters jump as the depth changes; before that they vary smoothly.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .activations import Activation, Array
from .gaussian import Moments, distortion, moments, uniform_phase_scale


@dataclass(frozen=True)
class Conditions:
    """A method's third condition, `balance` = 0, the log of its `reading`, and (γ, δ)."""

    name: str
    balance: Callable[[Moments], Array]
    reading: Callable[[Moments], Array]
    output: Callable[[Moments], tuple[Array, Array]]


def _tat_angle(m: Moments) -> Array:
    # D = m + δ must satisfy both D² = G and D T = G - P; the angle of (√G |T|, G - P) is then ±45°.
    return np.arctan2(m.excess - m.imbalance, np.sqrt(np.maximum(m.excess, 0.0)) * np.abs(m.tilt))


def _log(x: Array) -> Array:
    return np.log(np.maximum(x, 1e-300))


DKS_CONDITIONS = Conditions(
    "DKS",
    balance=lambda m: m.imbalance / m.excess,
    reading=lambda m: _log(m.excess / m.variance),
    output=lambda m: (m.variance**-0.5, -m.mean),
)
# As α → 0, Q″(1) → (3/2 - √2) C″(1) on the first family and (3/2 + √2) C″(1), 34 times more, on
# the second. The first is used wherever it has a solution.
TAT_CONDITIONS = tuple(
    Conditions(
        name,
        balance=lambda m, angle=angle: _tat_angle(m) - angle,
        reading=lambda m: _log(m.bending / (m.variance + m.excess)),
        output=lambda m: (
            (m.variance + m.excess) ** -0.5,
            (m.excess - m.imbalance) / m.tilt - m.mean,
        ),
    )
    for name, angle in (("TAT", math.pi / 4), ("TAT, steep Q", -math.pi / 4))
)


_ALPHAS = np.geomspace(1e-4, 1e6, 81)
_SHIFTS = np.sinh(np.linspace(-math.asinh(30.0), math.asinh(30.0), 101))
_NEWTON_STEPS = 10
# Below these the moments are rounding error: φ is flat or exactly linear there.
_LEAST_EXCESS, _LEAST_SPREAD = 1e-10, 1e-9
_DEEP = 1e-5


@dataclass(frozen=True)
class Transformation:
    """A solution (α, β, γ, δ) of the first three conditions, and its reading."""

    alpha: float
    beta: float
    gamma: float
    delta: float
    reading: float


@dataclass(frozen=True)
class Curve:
    """Points (α, β) with `balance` = 0 in order of α, and the log of the reading at each."""

    alpha: Array
    beta: Array
    reading: Array


def transformations(
    activation: Activation, conditions: Conditions, target: float
) -> Iterator[Transformation]:
    """The transformations of φ that satisfy `conditions` with reading `target`, best first."""
    tracer = _CurveTracer(activation, conditions)
    for curve in trace_curves(activation, conditions):
        yield from tracer.on_curve(curve, target)


def reachable_range(activation: Activation, conditions: Conditions) -> tuple[float, float] | None:
    """The least and the greatest reading on the curves, or None if there is no curve."""
    readings = [c.reading for c in trace_curves(activation, conditions)]
    if not readings:
        return None
    every = np.exp(np.concatenate(readings))
    return float(np.min(every)), float(np.max(every))


def nearest_transformation(
    activation: Activation, conditions: Conditions, target: float
) -> Transformation | None:
    """The traced point whose reading is nearest to a `target` that the curves do not reach.

    Towards the ends of a curve the reading may level off; of the points within a part in ten
    thousand of the nearest, it is the one with α nearest to 1.
    """
    curves = trace_curves(activation, conditions)
    if not curves:
        return None
    columns = zip(*((c.alpha, c.beta, c.reading) for c in curves), strict=True)
    alpha, beta, reading = map(np.concatenate, columns)
    gap = np.abs(reading - math.log(target))
    level = np.flatnonzero(gap < np.min(gap) + 1e-4)
    best = level[[np.argmin(np.abs(np.log(alpha[level])))]]
    width = 1e-2 * (np.abs(beta[best]) + alpha[best])
    tracer = _CurveTracer(activation, conditions)
    shift = tracer.zeros(alpha[best], beta[best] - width, beta[best] + width, halvings=60)
    return tracer.at(alpha[best], shift)[0]


@lru_cache(maxsize=256)
def trace_curves(activation: Activation, conditions: Conditions) -> tuple[Curve, ...]:
    """The curves on which `balance` vanishes, traced over α from 1e-4 to 1e6, best first."""
    tracer = _CurveTracer(activation, conditions)
    return tuple(sorted(tracer.curves(), key=tracer.rank))


@lru_cache(maxsize=64)
def _survey(activation: Activation) -> tuple[tuple[Array, Moments], ...]:
    """Values of β and their moments for each α of the trace, shared by all methods."""
    rows: list[tuple[Array, Moments]] = []
    for a in _ALPHAS:
        if activation.period is not None and a > uniform_phase_scale(activation.period):
            break
        betas = _shifts(activation, a)
        m = moments(activation, np.full_like(betas, a), betas, bending=False)
        rows.append((betas, m))
    return tuple(rows)


def _shifts(activation: Activation, alpha: float) -> Array:
    """Values of β to try: fine on the scale of φ, and on the scale of α around each kink."""
    if activation.period is not None:
        return np.linspace(-0.5, 0.5, _SHIFTS.size) * activation.period
    around = [np.asarray([k]) + alpha * _SHIFTS for k in activation.kinks]
    return np.unique(np.concatenate([(0.2 + alpha) * _SHIFTS, *around]))


@dataclass(frozen=True)
class _CurveTracer:
    """Traces the curves of one φ under the conditions of one method."""

    phi: Activation
    conditions: Conditions

    def rank(self, curve: Curve) -> tuple[float, float, float, bool]:
        """A sort key for curves: the distortion in a deep network, then the canonical form."""
        deep = next(self.on_curve(curve, _DEEP), None)
        if deep is None:
            bend, span, beta = math.inf, float(np.ptp(curve.reading)), float(curve.beta[0])
        else:
            bend = distortion(self.phi, (deep.alpha, deep.beta, deep.gamma, deep.delta))
            span, beta = 0.0, deep.beta
        # Mirror images agree to rounding error; five digits make them equal.
        return float(f"{bend:.4e}"), -float(f"{span:.4e}"), float(f"{abs(beta):.4e}"), beta < 0.0

    def curves(self) -> tuple[Curve, ...]:
        rows: list[int] = []
        brackets: list[tuple[float, float]] = []
        for i, (betas, m) in enumerate(_survey(self.phi)):
            f = self._balance(m)
            for j in np.flatnonzero(f[:-1] * f[1:] < 0.0):
                rows.append(i)
                brackets.append((betas[j], betas[j + 1]))
        if not rows:
            return ()
        index = np.array(rows, np.intp)
        alpha, (low, high) = _ALPHAS[index], np.array(brackets).T
        beta = self.zeros(alpha, low, high)
        sound, reading = self._sound(alpha, beta, close=1e-2)
        curves = _link(index[sound], beta[sound], reading[sound])
        return (*curves, *self._arcs(curves), *self._crests(curves))

    def on_curve(self, curve: Curve, target: float) -> Iterator[Transformation]:
        """The points of one curve with reading `target`, those nearest to its deep end first."""
        starts = _starts(curve, math.log(target))
        if not starts:
            return
        alpha, beta = self._polish(np.array(starts).T, math.log(target))
        if not alpha.size:
            return
        found = self.at(alpha, beta)
        if curve.reading[-1] < curve.reading[0]:
            found.reverse()
        seen: list[float] = []
        for point in found:
            if not any(abs(math.log(alpha / point.alpha)) < 1e-6 for alpha in seen):
                seen.append(point.alpha)
                yield point

    def at(self, alpha: Array, beta: Array) -> list[Transformation]:
        m = moments(self.phi, alpha, beta)
        gamma, delta = self.conditions.output(m)
        rows = np.stack([alpha, beta, gamma, delta, np.exp(self.conditions.reading(m))], axis=1)
        return [Transformation(*row) for row in rows.tolist()]

    def zeros(
        self, alpha: Array, low: Array, high: Array, halvings: int = 10, secants: int = 0
    ) -> Array:
        """Zeros of `balance` in β between `low` and `high`, by bisection, then by the secant."""
        f_low, f_high = self._balance_at(alpha, low), np.full_like(low, np.nan)
        for step in range(halvings + secants):
            middle = 0.5 * (low + high)
            if step >= halvings:
                with np.errstate(all="ignore"):
                    secant = low - f_low * (high - low) / (f_high - f_low)
                middle = np.where((low <= secant) & (secant <= high), secant, middle)
            f = self._balance_at(alpha, middle)
            left = f * f_low > 0.0
            low, high = np.where(left, middle, low), np.where(left, high, middle)
            f_low, f_high = np.where(left, f, f_low), np.where(left, f_high, f)
        nearer = np.where(np.abs(f_low) < np.abs(f_high), low, high)
        return nearer if secants else 0.5 * (low + high)

    def _balance(self, m: Moments) -> Array:
        with np.errstate(all="ignore"):
            f = self.conditions.balance(m)
            flat = m.variance < (_LEAST_SPREAD * m.mean) ** 2
            linear = m.excess < _LEAST_EXCESS * m.variance
        return np.where(linear | flat, np.nan, f)

    def _balance_at(self, alpha: Array, beta: Array) -> Array:
        return self._balance(moments(self.phi, alpha, beta, bending=False))

    def _sound(
        self, alpha: Array, beta: Array, close: float
    ) -> tuple[npt.NDArray[np.bool_], Array]:
        """Where `balance` is zero up to `close`, and does not just jump; and the reading there."""
        m = moments(self.phi, alpha, beta)
        with np.errstate(all="ignore"):
            return np.abs(self._balance(m)) < close, self.conditions.reading(m)

    def _arcs(self, curves: tuple[Curve, ...]) -> Iterator[Curve]:
        """The arcs that join curves that end between the same two rows.

        There α has an extremum and β does not: the arc is traced over β, with α by bisection.
        """
        for end, beyond in ((-1, 1), (0, -1)):
            ends = sorted((float(c.alpha[end]), float(c.beta[end])) for c in curves)
            for (alpha, low), (same, high) in pairwise(ends):
                row = int(np.searchsorted(_ALPHAS, alpha * 0.999))
                if alpha != same or not 0 <= row + beyond < _ALPHAS.size:
                    continue
                beta = np.linspace(low, high, 35)[1:-1]
                near, far = np.full_like(beta, alpha), np.full_like(beta, _ALPHAS[row + beyond])
                at_near = self._balance_at(near, beta)
                across = at_near * self._balance_at(far, beta) < 0.0
                if np.sum(across) < 3:
                    continue
                beta, near, far, at_near = (x[across] for x in (beta, near, far, at_near))
                for _ in range(40):
                    middle = np.sqrt(near * far)
                    same_side = self._balance_at(middle, beta) * at_near > 0.0
                    near, far = np.where(same_side, middle, near), np.where(same_side, far, middle)
                yield Curve(near, beta, self.conditions.reading(moments(self.phi, near, beta)))

    def _crests(self, curves: tuple[Curve, ...]) -> Iterator[Curve]:
        """The pieces of the curves around an extremum of their reading, traced more finely."""
        for curve in curves:
            turns: list[int] = np.flatnonzero(np.diff(np.sign(np.diff(curve.reading)))).tolist()
            last = curve.reading.size - 3  # in the first and last interval it would not show
            for start in sorted({*turns, 0, last} if last >= 0 else set()):
                rows = slice(start, start + 3)
                log_alpha, shift = np.log(curve.alpha[rows]), curve.beta[rows]
                finer = np.linspace(float(log_alpha[0]), float(log_alpha[-1]), 33)
                alpha = np.exp(finer)
                middle = np.asarray(np.interp(finer, log_alpha, shift), np.float64)
                width = 0.3 * float(np.ptp(shift)) + 1e-2 * (0.2 + alpha)
                beta = self.zeros(alpha, middle - width, middle + width, halvings=16, secants=3)
                sound, reading = self._sound(alpha, beta, close=1e-6)
                if np.sum(sound) > 2:
                    yield Curve(alpha[sound], beta[sound], reading[sound])

    def _polish(self, start: Array, target: float) -> tuple[Array, Array]:
        """Newton's method from every start at once; returns (α, β) where it converged."""

        def equations(log_alpha: Array, beta: Array) -> tuple[Array, Array]:
            m = moments(self.phi, np.exp(log_alpha), beta)
            return self.conditions.reading(m) - target, self.conditions.balance(m)

        log_alpha, beta = start
        e = 3e-3
        with np.errstate(all="ignore"):
            for _ in range(_NEWTON_STEPS):
                d = e * np.exp(log_alpha)
                moved_a = np.stack([log_alpha, log_alpha + e, log_alpha - e, log_alpha, log_alpha])
                moved_b = np.stack([beta, beta, beta, beta + d, beta - d])
                f, g = equations(moved_a, moved_b)
                f_a, g_a = (f[1] - f[2]) / (2.0 * e), (g[1] - g[2]) / (2.0 * e)
                f_b, g_b = (f[3] - f[4]) / (2.0 * d), (g[3] - g[4]) / (2.0 * d)
                det = f_a * g_b - f_b * g_a
                step_a = (f_b * g[0] - g_b * f[0]) / det
                step_b = (g_a * f[0] - f_a * g[0]) / det
                size = np.maximum(np.abs(step_a), np.abs(step_b) / (0.2 + np.exp(log_alpha)))
                damp = np.minimum(1.0, 0.5 / size)
                log_alpha, beta = log_alpha + damp * step_a, beta + damp * step_b
                if np.nanmax(size, initial=0.0) < 1e-9:
                    break
            last_f, last_g = equations(log_alpha, beta)
            noise = 1e-15 * np.exp(-2.0 * log_alpha)  # of moments that are differences of order α²
            good = (np.abs(last_f) < 1e-9 + noise) & (np.abs(last_g) < 1e-6 + noise)
        return np.exp(log_alpha[good]), beta[good]


def _link(index: npt.NDArray[np.intp], beta: Array, reading: Array) -> tuple[Curve, ...]:
    """Joins the points of neighbouring rows into curves, each to the nearest one left."""
    open_: list[list[int]] = []
    closed: list[list[int]] = []

    def distance(j: int, k: int) -> float:
        scale = 0.2 + _ALPHAS[index[k]]
        return float(abs(beta[j] - beta[k]) / scale + abs(reading[j] - reading[k]))

    for i in range(_ALPHAS.size):
        free: list[int] = np.flatnonzero(index == i).tolist()
        pairs = sorted((distance(c[-1], k), n, k) for n, c in enumerate(open_) for k in free)
        taken: dict[int, int] = {}
        for _, n, k in pairs:
            if n not in taken and k not in taken.values():
                taken[n] = k
        closed += [c for n, c in enumerate(open_) if n not in taken]
        grown = [[*open_[n], k] for n, k in taken.items()]
        open_ = grown + [[k] for k in free if k not in taken.values()]
    chains = map(np.array, closed + open_)
    return tuple(Curve(_ALPHAS[index[c]], beta[c], reading[c]) for c in chains)


def _starts(curve: Curve, target: float) -> list[tuple[float, float]]:
    """Points (log α, β) near those of the curve with reading `target`, in order of α."""
    gap, log_alpha = curve.reading - target, np.log(curve.alpha)
    starts: list[tuple[float, float]] = []
    for i in np.flatnonzero(gap[:-1] * gap[1:] <= 0.0):
        t = gap[i] / (gap[i] - gap[i + 1]) if gap[i] != gap[i + 1] else 0.0
        between = [x[i] + t * (x[i + 1] - x[i]) for x in (log_alpha, curve.beta)]
        starts.append((float(between[0]), float(between[1])))
    if not starts:
        # The curve may turn just beyond its ends or between two points: try from there.
        turns = {0, gap.size - 1, *(1 + np.flatnonzero(np.diff(np.sign(np.diff(gap))))).tolist()}
        near = sorted(i for i in turns if abs(gap[i]) < 0.3)
        starts = [(float(log_alpha[i]), float(curve.beta[i])) for i in near]
    return starts

r"""All φ̂(x) = γ(φ(αx + β) + δ) that satisfy the conditions of DKS or TAT, as curves.

Each method has four conditions on (α, β, γ, δ), in terms of the moments of ψ(z) = φ(αz + β). Two
give γ and δ in closed form (`output`). The third, which does not depend on the network, is an
equation `balance(α, β) = 0`: its solutions are a few curves in the half plane α > 0. The network
only determines how far along a curve to go, by the `reading` that the fourth condition prescribes:
$C'(1) - 1$ for DKS, $C''(1)$ for TAT.

So the curves are traced once for each φ and cached; a solve interpolates its starting points on
them and polishes these with a few Newton steps. Where a curve turns back, or its reading has an
extremum, it is traced more finely. A curve that closes between two values of α of the trace, a
third apart, would be missed; scans of the plane that are ten times as fine found none for any
activation by name.

Of several solutions, the one with the most stable Q map is used: the one with the least
`distortion` at the target itself. Only the first solution on each curve that leads to infinitely
deep networks competes, as long as there is one. A later one may hide its curvature in a step that
few inputs see, as x - tanh(x) does at great α, and is otherwise a linear function. Of mirror images
such as φ̂(-x) and -φ̂(-x), α and γ are positive and |β| is smallest. Where a curve ends, as for DKS
with GELU near C'(1) = 1.47, the value of ReLU, or gets more distorted than another one, that one
takes over, and the parameters jump as the depth changes; elsewhere they vary smoothly.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from .activations import Activation, Array
from .gaussian import Moments, distortion, far_share, moments, uniform_phase_scale


@dataclass(frozen=True)
class Conditions:
    """A method's third condition, `balance` = 0, the log of its `reading`, and (γ, δ)."""

    name: str
    balance: Callable[[Moments], Array]
    reading: Callable[[Moments], Array]
    output: Callable[[Moments], tuple[Array, Array]]


def _tat_balance(sign: float) -> Callable[[Moments], Array]:
    # D = m + δ must satisfy both D² = G and D T = G - P. Divided by G the equation neither cancels
    # in deep networks nor gets steep where G vanishes, as the angle of (√G |T|, G - P) would.
    return lambda m: (
        1.0 - (m.imbalance + sign * np.sqrt(np.maximum(m.excess, 0.0)) * np.abs(m.tilt)) / m.excess
    )


FloatOrArray = TypeVar("FloatOrArray", float, Array)


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
        balance=_tat_balance(sign),
        reading=lambda m: _log(m.bending / (m.variance + m.excess)),
        output=lambda m: (
            (m.variance + m.excess) ** -0.5,
            (m.excess - m.imbalance) / m.tilt - m.mean,
        ),
    )
    for name, sign in (("TAT", 1.0), ("TAT, steep Q", -1.0))
)


_ALPHAS = np.geomspace(1e-4, 1e6, 81)
_SHIFTS = np.sinh(np.linspace(-math.asinh(30.0), math.asinh(30.0), 101))
_NEWTON_STEPS = 10
# Below these the moments are rounding error: φ is flat or exactly linear there.
_LEAST_EXCESS, _LEAST_SPREAD = 1e-10, 1e-9
# Nor are they moments where φ bends for rarer inputs than the quadrature knows.
_FAR = 1e-4
_SAME = 1e-6
_DEEP = math.log(1e-5)


@dataclass(frozen=True)
class Transformation:
    """A solution (α, β, γ, δ) of the first three conditions, and its reading."""

    alpha: float
    beta: float
    gamma: float
    delta: float
    reading: float

    @property
    def constants(self) -> tuple[float, float, float, float]:
        return self.alpha, self.beta, self.gamma, self.delta

    def is_mirrored(self, other: Self) -> bool:
        """Whether it is `other`, or a mirror image."""
        near = partial(math.isclose, rel_tol=_SAME)
        return near(self.alpha, other.alpha) and near(self.gamma, other.gamma)

    def is_near(self, other: Self) -> bool:
        """Whether both were polished to one solution."""
        shift = abs(self.beta - other.beta)
        return self.is_mirrored(other) and shift < _SAME * _scale(self.alpha)


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
    yield from _ranked(activation, conditions, target)


@lru_cache(maxsize=256)
def _ranked(
    activation: Activation, conditions: Conditions, target: float
) -> tuple[Transformation, ...]:
    tracer = _CurveTracer(activation, conditions)
    curves = trace_curves(activation, conditions)
    firsts: list[Transformation] = []
    others: list[Transformation] = []
    for curve, points in zip(curves, tracer.on_curves(curves, target), strict=True):
        first = 1 if float(np.min(curve.reading)) < _DEEP else 0
        firsts += points[:first]
        others += points[first:]
    found: list[Transformation] = []
    for group in (firsts, others):
        found += _by_stability(activation, [p for p in group if not any(map(p.is_near, found))])
    return tuple(found)


def _by_stability(activation: Activation, points: list[Transformation]) -> list[Transformation]:
    """The `points`, each once, those with the least distortion first."""
    mirrored: list[list[Transformation]] = []
    for point in points:
        for images in mirrored:
            if point.is_mirrored(images[0]):
                if not any(map(point.is_near, images)):
                    images.append(point)
                break
        else:
            mirrored.append([point])
    if len(mirrored) > 1:
        mirrored.sort(key=lambda images: distortion(activation, images[0].constants))
    return [point for images in mirrored for point in sorted(images, key=_shift_order)]


def _shift_order(point: Transformation) -> float:
    """|β|; of equal ones, which rounding may order otherwise, β > 0 is first."""
    return abs(point.beta) - (_SAME * (1.0 + point.beta) if point.beta > 0.0 else 0.0)


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
    """The curves on which `balance` vanishes, traced over α from 1e-4 to 1e6."""
    return _CurveTracer(activation, conditions).curves()


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
    return np.unique(np.concatenate([_scale(alpha) * _SHIFTS, *around]))


def _scale(alpha: FloatOrArray) -> FloatOrArray:
    """On which β matters at this α."""
    return 0.2 + alpha


@dataclass(frozen=True)
class _CurveTracer:
    """Traces the curves of one φ under the conditions of one method."""

    phi: Activation
    conditions: Conditions

    def curves(self) -> tuple[Curve, ...]:
        rows: list[int] = []
        brackets: list[tuple[float, float]] = []
        rises: list[bool] = []
        for i, (betas, m) in enumerate(_survey(self.phi)):
            f = self._balance(m)
            for j in np.flatnonzero(f[:-1] * f[1:] < 0.0):
                rows.append(i)
                brackets.append((betas[j], betas[j + 1]))
                rises.append(bool(f[j] < 0.0))
        if not rows:
            return ()
        index = np.array(rows, np.intp)
        alpha, (low, high) = _ALPHAS[index], np.array(brackets).T
        beta = self.zeros(alpha, low, high)
        sound, reading = self._sound(alpha, beta, close=1e-2)
        curves = _link(index[sound], beta[sound], reading[sound], np.array(rises)[sound])
        return (*curves, *self._arcs(curves), *self._crests(curves))

    def on_curves(self, curves: Sequence[Curve], target: float) -> list[list[Transformation]]:
        """The points of each curve with reading `target`, those nearest to its deep end first."""
        starts = [_starts(curve, math.log(target)) for curve in curves]
        found: list[list[Transformation]] = [[] for _ in curves]
        if not any(starts):
            return found
        owners = np.repeat(np.arange(len(curves)), list(map(len, starts)))
        stacked = np.array([start for own in starts for start in own]).T
        alpha, beta, good = self._polish(stacked, math.log(target))
        points = self.at(alpha[good], beta[good]) if good.any() else []
        for owner, point in zip(owners[good], points, strict=True):
            found[int(owner)].append(point)
        for curve, own in zip(curves, found, strict=True):
            if curve.reading[-1] < curve.reading[0]:
                own.reverse()
        return found

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
        """Where `balance` is zero up to `close`, and no rounding error; and the reading there."""
        m = moments(self.phi, alpha, beta)
        with np.errstate(all="ignore"):
            zero = np.abs(self._balance(m)) < close
            return zero & (far_share(self.phi, alpha, beta) < _FAR), self.conditions.reading(m)

    def _arcs(self, curves: tuple[Curve, ...]) -> Iterator[Curve]:
        """The arcs that join curves that end between the same two rows.

        There α has an extremum and β, on the scale of its row, does not: the arc is traced over
        that, with α by bisection.
        """
        scale = _scale if self.phi.period is None else np.ones_like
        for end, beyond in ((-1, 1), (0, -1)):
            ends = sorted((float(c.alpha[end]), float(c.beta[end])) for c in curves)
            for (alpha, low), (same, high) in pairwise(ends):
                row = int(np.searchsorted(_ALPHAS, alpha * 0.999))
                if alpha != same or not 0 <= row + beyond < _ALPHAS.size:
                    continue
                shift = np.linspace(low, high, 35)[1:-1] / scale(alpha)
                near, far = np.full_like(shift, alpha), np.full_like(shift, _ALPHAS[row + beyond])
                at_near = self._balance_at(near, shift * scale(near))
                across = at_near * self._balance_at(far, shift * scale(far)) < 0.0
                if np.sum(across) < 3:
                    continue
                shift, near, far, at_near = (x[across] for x in (shift, near, far, at_near))
                for _ in range(40):
                    middle = np.sqrt(near * far)
                    same_side = self._balance_at(middle, shift * scale(middle)) * at_near > 0.0
                    near, far = np.where(same_side, middle, near), np.where(same_side, far, middle)
                beta = shift * scale(near)
                sound, reading = self._sound(near, beta, close=1e-6)
                if np.sum(sound) > 2:
                    yield Curve(near[sound], beta[sound], reading[sound])

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
                width = 0.3 * float(np.ptp(shift)) + 1e-2 * _scale(alpha)
                beta = self.zeros(alpha, middle - width, middle + width, halvings=16, secants=3)
                sound, reading = self._sound(alpha, beta, close=1e-6)
                if np.sum(sound) > 2:
                    yield Curve(alpha[sound], beta[sound], reading[sound])

    def _polish(self, start: Array, target: float) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
        """Newton's method from every start at once; returns α, β, and where it converged."""

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
                size = np.maximum(np.abs(step_a), np.abs(step_b) / _scale(np.exp(log_alpha)))
                damp = np.minimum(1.0, 0.5 / size)
                log_alpha, beta = log_alpha + damp * step_a, beta + damp * step_b
                if np.nanmax(size, initial=0.0) < 1e-9:
                    break
            last_f, last_g = equations(log_alpha, beta)
            noise = 1e-15 * np.exp(-2.0 * log_alpha)  # of moments that are differences of order α²
            good = (np.abs(last_f) < 1e-9 + noise) & (np.abs(last_g) < 1e-6 + noise)
        return np.exp(log_alpha), beta, good


def _link(
    index: npt.NDArray[np.intp], beta: Array, reading: Array, rises: npt.NDArray[np.bool_]
) -> tuple[Curve, ...]:
    """Joins the points of neighbouring rows into curves, each to the nearest one left.

    Curves do not cross, and `balance` rises with β on every second one, so that neighbours which
    run close together are not mistaken for each other.
    """
    open_: list[list[int]] = []
    closed: list[list[int]] = []

    def distance(j: int, k: int) -> float:
        scale = _scale(float(_ALPHAS[index[k]]))
        return float(abs(beta[j] - beta[k]) / scale + abs(reading[j] - reading[k]))

    for i in range(_ALPHAS.size):
        free: list[int] = np.flatnonzero(index == i).tolist()
        pairs = sorted(
            (distance(c[-1], k), n, k)
            for n, c in enumerate(open_)
            for k in free
            if rises[c[-1]] == rises[k]
        )
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
    shift = curve.beta / _scale(curve.alpha)
    starts: list[tuple[float, float]] = []
    for i in np.flatnonzero(gap[:-1] * gap[1:] <= 0.0):
        t = gap[i] / (gap[i] - gap[i + 1]) if gap[i] != gap[i + 1] else 0.0
        at, scaled = (float(x[i] + t * (x[i + 1] - x[i])) for x in (log_alpha, shift))
        starts.append((at, scaled * _scale(math.exp(at))))
    if not starts:
        # The curve may turn just beyond its ends or between two points: try from there.
        turns = {0, gap.size - 1, *(1 + np.flatnonzero(np.diff(np.sign(np.diff(gap))))).tolist()}
        near = sorted(i for i in turns if abs(gap[i]) < 0.3)
        starts = [(float(log_alpha[i]), float(curve.beta[i])) for i in near]
    return starts

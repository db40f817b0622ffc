"""Whether each node of a measured network makes of its inputs what the theory says.

Errors of a narrow network add up along its depth: after fifty layers of width 64, q may be a tenth
of its prediction, or ten times as large, though nothing is wrong. So each node is judged by the
kernel that was *measured* before it. What is left is the fluctuation of one layer, whose size is
known (`fluctuation`), so that few samples cannot widen it, and a fault shows where it is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.interpolate import RectBivariateSpline
from scipy.special import gammainc, gammaincc, ndtri

from .activations import Activation, Array
from .bands import FiniteWidth, Transition
from .fluctuation import Noise, activation_response
from .graph import Measured, Nonlinearity, Product
from .measured import PartMap
from .network import Point, Size
from .rules import ChannelGroup, GroupRule

# What neither rounding nor the theory's next order, 1 / n², should be blamed for.
_LEAST_Q = 3e-3
_LEAST_C = 2e-3
VECTORS = 256  # of random numbers that measure the gain of a layer, at least
_MOST = 37.0  # standard deviations that a p value can express
_ALIKE = 1e-4  # 1 - c² below which c itself is compared
_FAR = 0.9999  # of a typical cosine: where the median pair is alike, others need not be
_TINY = 1e-300
_MOST_ERRORS = 4.0  # of a measured curve
_FEW = 4  # channels that a cosine needs to have a variance of 1 / n


class Surprise(NamedTuple):
    """How far q and c of a node are off, in standard deviations of a normal distribution."""

    q: float
    c: float


def surprises(
    finite: FiniteWidth,
    q: Array,
    c: Array,
    gains: Mapping[int, Array],
    begin: int,
    rounding: float,
) -> list[Surprise]:
    """For live nodes, from their q and c values.

    Args:
        finite: The network with its widths.
        q: Measured q values of shape (seeds, live nodes, pairs, 2).
        c: Measured c values of shape (seeds, live nodes, pairs); nan where a sample is zero.
        gains: By how much layers multiply q values of random numbers, for every seed.
        begin: The node at which the pairs were chosen; those before it are not judged.
        rounding: The relative error of the numbers that were measured.
    """
    live = sorted(finite.graph.live)
    values = {index: (q[:, row], c[:, row]) for row, index in enumerate(live)}
    typical = {
        index: Point(median(own_q), float(np.clip(np.nan_to_num(median(own_c)), -_FAR, _FAR)))
        for index, (own_q, own_c) in values.items()
    }
    maps = _ArrayMaps(finite, values)
    least = max(_LEAST_Q, 8.0 * rounding), max(_LEAST_C, 8.0 * rounding)
    found: list[Surprise] = []
    for index in live:
        sources, surprise = finite.sources(index), Surprise(0.0, 0.0)
        known = all(i in values and i >= begin for i in sources)
        if index > begin and known and not finite.is_approximate(index):
            surprise = Surprise(math.nan, math.nan)
            if all(0.0 < typical[i].q < math.inf for i in sources):
                expected = maps.expected(index, finite.step(index, typical), typical)
                surprise = _surprise(expected, values[index], least)
            if finite.sizes.get(index, Size(_FEW)).channels < _FEW:
                surprise = Surprise(surprise.q, 0.0)
        if index >= begin and index in gains:
            mean, variance = gains[index] / finite.gain, finite.gain_variance(index, VECTORS)
            own = _gamma_surprise(float(np.mean(mean)), variance / mean.size, least[0])
            surprise = Surprise(max(surprise.q, own, key=abs), surprise.c)
        found.append(surprise)
    return found


def median(values: Array) -> float:
    """The median of those that are not nan, as the cosine of a zero is; nan if all are.

    >>> median(np.array([1.0, np.nan, 4.0, 2.0]))
    2.0
    """
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else math.nan


class _Expected(NamedTuple):
    """What a node makes of the kernels before it: q and c to lowest order, and what width adds.

    The next four are variance and shift of log q, for each sample, and of artanh c, for each pair.
    `c_error` is how far c may be off because a pair has different q values.
    """

    q: Array
    c: Array
    q_variance: Array
    q_shift: Array
    c_variance: Array
    c_shift: Array
    c_error: float = 0.0

    @classmethod
    def of(cls, q: Array, c: Array, noise: Noise) -> _Expected:
        q_variance, q_shift = (np.full(q.shape, each) for each in (noise.single, noise.q_shift))
        variance = noise.artanh_c + float(_second_order(np.asarray(noise.c), noise.asymmetry))
        c_variance, c_shift = (np.full(c.shape, each) for each in (variance, noise.artanh_c_shift))
        return cls(q, c, q_variance, q_shift, c_variance, c_shift)


class _ArrayMaps:
    """What the nodes of a network make of the kernels that were measured before them."""

    def __init__(self, finite: FiniteWidth, values: Mapping[int, tuple[Array, Array]]) -> None:
        self.finite, self.values = finite, values
        nodes = [(i, finite.graph.nodes[i]) for i in values if i not in finite.rules]
        read = {node.input for _, node in nodes if isinstance(node, Nonlinearity)}
        self._tables = _activation_tables(finite.phi, [values[i][0] for i in read if i in values])

    def expected(self, index: int, step: Transition, typical: Mapping[int, Point]) -> _Expected:
        finite = self.finite
        node, rule = finite.graph.nodes[index], finite.rules.get(index)
        n = finite.sizes[index].channels if index in finite.sizes else math.inf
        if isinstance(rule, GroupRule):
            if any(group.function is not finite.phi for group in rule.groups):
                return self._near(step, typical)
            return self._behind_parts(rule.groups, step, n)
        if isinstance(node, Nonlinearity):
            return self._behind_activation(*self.values[node.input], n)
        if isinstance(node, Measured):
            return self._behind_part(node.curve, *self.values[node.input], step.noise)
        if isinstance(node, Product):
            q, c = zip(*(self.values[i] for i in node.inputs), strict=True)
            return _Expected.of(np.prod(q, axis=0), np.prod(c, axis=0), step.noise)
        one, terms = np.ones(2), finite.terms(index)
        parts = [scale * (self.values[i][0] if i is not None else one) for i, scale in terms]
        cosines = [self.values[i][1] if i is not None else 1.0 for i, _ in terms]
        return _Expected.of(*_mean_kernel(parts, cosines), step.noise)

    def _behind_activation(self, q: Array, c: Array, n: float) -> _Expected:
        gain, cosine, *noise = self._tables
        log_q, angle = np.log(np.maximum(q, _TINY)), np.arccos(np.clip(c, -1.0, 1.0))
        middle = np.mean(log_q, axis=-1)
        new_q = q * np.exp(gain(log_q, np.zeros(()))) * (q > 0.0)
        new_c = np.clip(cosine(middle, angle), -1.0, 1.0)
        q_variance, q_shift = (each(log_q, np.zeros(())) / n for each in noise[:2])
        variance, shift, asymmetry = (each(middle, angle) / n for each in noise[2:])
        # Where a variance falls to zero, its spline may fall below.
        q_variance, variance = np.maximum(q_variance, 0.0), np.maximum(variance, 0.0)
        variance = variance + _second_order(new_c, asymmetry)
        # The table is for pairs of equal q, which only the cosines of rectifiers do not depend on.
        known = np.all((q > 0.0) & np.isfinite(q), axis=-1) & (self.finite.phi.degree != 1.0)
        error = float(np.mean(np.diff(log_q[known]) ** 2)) / 4.0 if known.any() else 0.0
        return _Expected(new_q, new_c, q_variance, q_shift, variance, shift, error)

    def _behind_parts(
        self, groups: Sequence[ChannelGroup], step: Transition, n: float
    ) -> _Expected:
        """Behind an activation of channels side by side that come from several nodes."""
        shares = [group.share for group in groups]
        found = [
            self._behind_activation(*self.values[group.source], n * group.share) for group in groups
        ]
        parts = [share * each.q for share, each in zip(shares, found, strict=True)]
        q, c = _mean_kernel(parts, [each.c for each in found])
        amounts = [part / q for part in parts]
        variance = sum(a * a * each.q_variance for a, each in zip(amounts, found, strict=True))
        shift = sum(a * each.q_shift for a, each in zip(amounts, found, strict=True))
        error = max(each.c_error for each in found)
        return _Expected.of(q, c, step.noise)._replace(
            q_variance=variance, q_shift=shift, c_error=error
        )

    def _behind_part(self, curve: PartMap, q: Array, c: Array, noise: Noise) -> _Expected:
        """Behind a measured part, whose curve has errors, too, that more draws do not average."""
        new_q, _ = curve.kernel(q, np.zeros(()))
        _, new_c = curve.kernel(np.sqrt(np.prod(q, axis=-1)), c)
        found = _Expected.of(new_q, new_c, noise)
        gain_error = len(q) * (curve.gain_error / curve.gain) ** 2
        error = _MOST_ERRORS * curve.error_at(float(np.nanmean(c)))
        return found._replace(q_variance=found.q_variance + gain_error, c_error=error)

    def _near(self, step: Transition, typical: Mapping[int, Point]) -> _Expected:
        """To first order around the typical kernel."""
        log_q, c = np.log(step.point.q), np.asarray(step.point.c)
        for source, jacobian in step.jacobians.items():
            q_in, c_in = self.values[source]
            change = np.log(np.maximum(q_in, _TINY) / typical[source].q)
            log_q = log_q + jacobian[0, 0] * change
            c = c + change @ jacobian[2, :2] + jacobian[2, 2] * (c_in - typical[source].c)
        return _Expected.of(np.exp(log_q), np.clip(c, -1.0, 1.0), step.noise)


def _second_order(c: Array, asymmetry: Array | float) -> Array:
    r"""What is left of the variance of artanh c where opposite samples have none to first order.

    Where $q_{1,2} \propto 1 \pm x$ for x of variance v, $c \propto 1 / \sqrt{q_1 q_2}$ has the
    variance $c^2 v^2 / 2$. Twice the deviation covers what higher orders add in narrow layers.
    """
    rest = 1.0 - c**2
    return np.where(rest < _ALIKE, 0.0, 2.0 * (c * asymmetry / np.maximum(rest, _ALIKE)) ** 2)


def _mean_kernel(parts: Sequence[Array], cosines: Sequence[Array | float]) -> tuple[Array, Array]:
    """The q and c values of what has these q values in all, with these cosines."""
    q = np.asarray(sum(parts))
    pairs = zip(parts, cosines, strict=True)
    products = sum(c * np.sqrt(np.prod(part, axis=-1)) for part, c in pairs)
    with np.errstate(invalid="ignore"):
        return q, products / np.sqrt(np.prod(q, axis=-1))


_Table = Callable[[Array, Array], Array]


def _activation_tables(phi: Activation, measured: Sequence[Array]) -> list[_Table]:
    """Log (Q(q) / q), C and the noise of one channel as functions of log q and arccos c."""
    angles: Array = np.linspace(0.0, math.pi, 25)
    rows: Array = np.array([0.0, 1.0])
    known = np.concatenate([np.ravel(q) for q in (*measured, np.ones(1))])
    if phi.degree != 1.0:
        logs = np.log(known[(known > 0.0) & np.isfinite(known)])
        low, high = (float(np.quantile(logs, share)) for share in (0.001, 0.999))
        rows = 0.5 * np.arange(math.floor(2.0 * low) - 2.0, math.ceil(2.0 * high) + 3.0)
    distinct = rows[:1] if phi.degree == 1.0 else rows
    grid: Array = np.array([[_at(phi, float(r), float(t)) for t in angles] for r in distinct])
    grid = np.broadcast_to(grid, (rows.size, *grid.shape[1:])).copy()
    for end, beside in ((0, 1), (-1, -2)):
        if np.all(1.0 - grid[:, end, 1] ** 2 < _ALIKE):  # alike samples have no artanh c
            grid[:, end, 4:6] = grid[:, beside, 4:6]
    return [_interpolate(rows, angles, grid[:, :, column]) for column in range(grid.shape[2])]


@lru_cache(maxsize=4096)
def _at(phi: Activation, log_q: float, angle: float) -> list[float]:
    q = math.exp(log_q)
    found = activation_response(phi, Point(q, math.cos(angle)))
    noise = Noise.of(found.covariance, found.shift, found.c)
    gain = math.log(max(found.q, _TINY) / q)
    of_q, of_c = [noise.single, noise.q_shift], [noise.artanh_c, noise.artanh_c_shift]
    return [gain, found.c, *of_q, *of_c, noise.asymmetry]


def _interpolate(rows: Array, angles: Array, values: Array) -> _Table:
    spline = RectBivariateSpline(rows, angles, values, kx=min(3, rows.size - 1))
    return lambda x, y: spline(np.clip(x, rows[0], rows[-1]), y, grid=False)


def _surprise(
    expected: _Expected, measured: tuple[Array, Array], least: tuple[float, float]
) -> Surprise:
    with np.errstate(invalid="ignore", divide="ignore"):
        samples = expected.q * np.exp(expected.q_shift)
        means = np.sum(samples, axis=(1, 2))
        ratios: Array = np.sum(measured[0], axis=(1, 2)) / means
        # At most: where all samples of a draw fluctuate together.
        deviations: Array = np.sum(samples * np.sqrt(expected.q_variance), axis=(1, 2)) / means
    known = np.isfinite(ratios)
    if not known.any():
        return Surprise(math.nan, math.nan)
    variance = float(np.mean(deviations[known] ** 2)) / int(known.sum())
    q = _gamma_surprise(float(np.mean(ratios[known])), variance, least[0])
    return Surprise(q, _cosine_surprise(expected, measured[1], least[1]))


def _gamma_surprise(mean: float, variance: float, least: float) -> float:
    """A mean of ratios with expectation 1, as a normal deviation with the same tail."""
    off = mean - 1.0
    mean -= math.copysign(min(abs(off), least), off)
    if mean == 1.0:
        return 0.0
    if variance < 1e-9:
        return math.copysign(_MOST, off)
    # Of linear layers with Gaussian weights, the ratio is a Gamma variable.
    tail = (gammaincc if off > 0.0 else gammainc)(1.0 / variance, mean / variance)
    return math.copysign(min(max(-float(ndtri(tail)), 0.0), _MOST), off)


def _cosine_surprise(expected: _Expected, measured: Array, least: float) -> float:
    known = ~np.isnan(measured) & ~np.isnan(expected.c)
    if not known.any():
        return 0.0
    seeds = known.any(axis=1)
    means: list[Array] = [
        np.mean(each[seeds], axis=1, where=known[seeds])
        for each in (expected.c, measured, expected.c_variance, expected.c_shift)
    ]
    before, after, variances, shifts = means
    least += expected.c_error
    if 1.0 - float(np.mean(before)) ** 2 < _ALIKE:
        off = float(np.mean(after - before))
        return 0.0 if abs(off) <= least else math.copysign(_MOST, off)
    far = 1.0 - 1e-7
    z, expected_z = (np.arctanh(np.clip(mean, -far, far)) for mean in (after, before))
    off = float((z - expected_z - shifts).mean())
    error = math.sqrt(float(np.sum(variances))) / after.size
    size = max(abs(off) - float(np.mean(least / np.maximum(1.0 - before**2, 1.0 - far))), 0.0)
    return math.copysign(min(size / error if error > 1e-9 else _MOST * (size > 0.0), _MOST), off)

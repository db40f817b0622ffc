r"""The median and the 95 % band of q and c at every node of a network with given widths.

The fluctuations of all layers (`fluctuation`) add up along the network. The median takes the usual
path through Q and C maps, with the drift of every node on top; around it, deviations are carried
on by the derivatives of the maps, with the covariance between the branches that meet again.

The noise of an activation belongs to the vector that it reads. Where shortcuts carry that vector
on, the activations of later blocks have some of the same noise: see `_SharedNoise`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, NamedTuple, assert_never, get_args

import numpy as np

from .activations import Array
from .arguments import whole_number
from .fluctuation import (
    Noise,
    Response,
    activation_response,
    log_mean,
    log_variance,
    normal_covariance,
    persistence,
    to_logarithms,
)
from .graph import (
    Affine,
    Concat,
    Fixed,
    Graph,
    Input,
    Measured,
    Nonlinearity,
    Product,
    Sum,
    inputs_of,
)
from .network import Point, Size
from .rescale import combine
from .rules import GroupRule, PartRule, find_rules
from .solution import Solution, require_solution
from .summary import number_range

Distribution = Literal["orthogonal", "gaussian"]
Widths = Mapping[int, Size] | int  # of every node, or of all

_NORMAL_95 = 1.959963984540054
_ALIKE = 1e-7
_SMALL_GROUP = 32


class Interval(NamedTuple):
    """The median over draws of the weights, and the ends between which 95 % of them lie."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def band_range(bands: Sequence[Interval]) -> str:
    """From the lowest to the highest end of all `bands`, for tables.

    >>> band_range([Interval(1.0, 0.5, 2.0), Interval(1.0, 0.25, 1.5)])
    '0.250…2.000'
    """
    return number_range([min(band.low for band in bands), max(band.high for band in bands)])


@dataclass(frozen=True)
class Prediction(Point):
    """The point of an infinitely wide network, and the bands at the width that it has."""

    q_band: Interval
    c_band: Interval


@dataclass(frozen=True)
class _Term:
    """A part of a node's kernel: its q value there, its cosine, and the node that it comes from."""

    q: float
    c: float
    source: int | None  # None: a bias


@dataclass(frozen=True)
class Transition:
    """What a node makes of the kernels of earlier ones.

    `jacobians` has, for each node that it depends on, the derivative of (log q₁, log q₂, c), and
    `noises`, for each node whose vector an activation reads, what that adds to `noise`.
    """

    point: Point
    jacobians: Mapping[int, Array]
    noise: Noise
    noises: Mapping[int, _VectorNoise] = field(default_factory=dict[int, "_VectorNoise"])


@dataclass(frozen=True)
class _VectorNoise:
    """Noise of relative size `amount` and, for an amount of 1, of this covariance."""

    amount: float
    covariance: Array


class FiniteWidth:
    """A graph with the widths of its nodes; those that `sizes` lacks count as infinitely wide."""

    def __init__(
        self,
        graph: Graph,
        solution: Solution,
        sizes: Widths,
        distribution: Distribution = "orthogonal",
    ) -> None:
        require_solution(solution)
        if distribution not in get_args(Distribution):
            raise ValueError(
                f"distribution must be 'orthogonal' or 'gaussian', got {distribution!r}"
            )
        if not isinstance(sizes, Mapping):
            width = whole_number("widths", sizes, 1)
            sizes = dict.fromkeys(range(len(graph.nodes)), Size(width, width))
        self.graph, self.sizes, self.distribution = graph, sizes, distribution
        self.rules = find_rules(graph, solution)
        self.phi = solution.shaped
        self._sigma_w, self._sigma_b = solution.sigma_w, solution.sigma_b
        self._respond = cache(activation_response)

    def sources(self, index: int) -> tuple[int, ...]:
        """The nodes that the point of a node is computed from."""
        match self.rules.get(index):
            case GroupRule(groups):
                return tuple(dict.fromkeys(group.source for group in groups))
            case PartRule(parts):
                return tuple(parts)
            case None:
                return inputs_of(self.graph.nodes[index])

    def is_approximate(self, index: int) -> bool:
        """Whether the maps of an activation hold only roughly.

        In small groups, channels are not normal. Gaussian weights that do not mix channels are not
        signs, as the rules suppose.
        """
        node = self.graph.nodes[index]
        read = self.sizes.get(node.input) if isinstance(node, Nonlinearity) else None
        rule = self.rules.get(index)
        least = 1 if rule is None else 2  # a rule knows what single channels become
        if read is not None and read.groups > 1 and least <= read.fan_in < _SMALL_GROUP:
            return True
        alone = node.function if isinstance(node, Fixed) else self.phi
        composed = isinstance(rule, GroupRule) and any(
            group.function is not alone for group in rule.groups
        )
        return composed and self.distribution == "gaussian"

    @property
    def gain(self) -> float:
        """By how much layers multiply q, without their biases."""
        return self._sigma_w**2

    def gain_variance(self, index: int, vectors: int) -> float:
        """Its relative variance for a layer, measured with as many random `vectors`."""
        size = self.sizes[index]
        reads = size.fan_in * size.groups
        of_weights = 2.0 / (size.channels * size.fan_in) if self.distribution == "gaussian" else 0.0
        return of_weights + 2.0 / (min(reads, size.channels) * vectors)

    def terms(self, index: int) -> list[tuple[int | None, float]]:
        """What a node adds or joins (None: a bias), each with a factor of its q value."""
        node, rule = self.graph.nodes[index], self.rules.get(index)
        if isinstance(rule, PartRule):
            return [(i, weight**2) for i, weight in rule.parts.items()]
        match node:
            case Affine(i):
                bias = [(None, self._sigma_b**2)] if self._sigma_b else []
                return [(i, self._sigma_w**2), *bias]
            case Sum(inputs, weights):
                return [(i, weight**2) for i, weight in zip(inputs, weights, strict=True)]
            case Concat(inputs, widths):
                channels = sum(widths)
                return [(i, width / channels) for i, width in zip(inputs, widths, strict=True)]
            case Input() | Nonlinearity() | Measured() | Product() | Fixed():
                raise AssertionError("it has no terms")
            case _:
                assert_never(node)

    def step(self, index: int, points: Mapping[int, Point]) -> Transition:
        """The point of a node, from those of its `sources`, and what its width does to it."""
        node, rule = self.graph.nodes[index], self.rules.get(index)
        n = self.sizes[index].channels if index in self.sizes else math.inf
        if isinstance(rule, GroupRule):
            return self._groups(rule, points, n)
        if isinstance(node, Nonlinearity):
            at = points[node.input]
            return _activate([(1.0, node.input, at, self._response(at))], n)
        if isinstance(node, Measured):
            return _through(node, points[node.input], n)
        if isinstance(node, Product):
            return _multiply([(i, points[i], self._second(i, points)) for i in node.inputs], n)
        if isinstance(node, Concat) and len(node.inputs) == 1:
            (i,) = node.inputs
            return self._part(i, points, n)
        terms = [
            _Term(scale, 1.0, None)
            if source is None
            else _Term(scale * points[source].q, points[source].c, source)
            for source, scale in self.terms(index)
        ]
        if isinstance(node, Affine):
            return _mix(terms, n, self._own(index, node, points, n))
        return _mix(terms, math.inf if isinstance(node, Concat) else n)

    def _response(self, at: Point) -> Response:
        return self._respond(self.phi, Point(float(f"{at.q:.7g}"), round(at.c, 7)))

    def _groups(self, rule: GroupRule, points: Mapping[int, Point], n: float) -> Transition:
        parts: list[tuple[float, int, Point, Response]] = []
        for group in rule.groups:
            function, at = group.function, points[group.source]
            if function and rule.maps.point(function, at).q:  # plain ReLUs may be dead
                parts.append((group.share, group.source, at, self._respond(function, at)))
        return _activate(parts, n)

    def _own(self, index: int, node: Affine, points: Mapping[int, Point], n: float) -> list[Array]:
        """The covariance of what weights make of a kernel, and that of biases."""
        covariance = normal_covariance(points[node.input].c) / n
        if not node.mixes:  # each channel times a number of its own
            covariance = 2.0 / n * self._second(node.input, points)
        if self.distribution == "orthogonal":
            size = self.sizes.get(index, Size(1))
            fan_in, fan_out = size.fan_in, size.channels / size.groups
            covariance = covariance * max(0.0, (fan_in - fan_out) / (fan_in + 2.0))
        return [covariance, 2.0 / n * np.ones((3, 3))]

    def _part(self, source: int, points: Mapping[int, Point], n: float) -> Transition:
        """Some of the channels of a node, of whose kernel they have a share."""
        at = points[source]
        size, mean = self.sizes.get(source), np.array([1.0, 1.0, at.c])
        fewer = max(0.0, 1.0 / n - 1.0 / size.channels) if size else 0.0
        covariance = fewer * (self._second(source, points) - np.outer(mean, mean))
        noise = Noise.of(covariance, np.zeros(3), at.c)
        return Transition(at, {source: np.eye(3)}, noise)

    def _second(self, source: int, points: Mapping[int, Point]) -> Array:
        """E[f fᵀ] of one channel at `source`."""
        node, at = self.graph.nodes[source], points[source]
        match node:
            case Nonlinearity(i) if i in points:
                return self._response(points[i]).second
            case Fixed(i) if i in points:
                return self._respond(node.function, points[i]).second
            case Product(inputs):
                return np.prod([self._second(i, points) for i in inputs], axis=0)
            case Concat((i,)):
                return self._second(i, points)
            case _:
                mean = np.array([1.0, 1.0, at.c])
                return normal_covariance(at.c) + np.outer(mean, mean)

    def predict(self, points: Sequence[Point], begin: int = 0) -> dict[int, Prediction]:
        """The `points` of live nodes from `begin` on, with their bands.

        Args:
            points: What `core.predict` returns.
            begin: The node at which both inputs are chosen, by default the graph's input.
        """
        live = [i for i in sorted(self.graph.live) if i >= begin]
        last: dict[int, int] = {}
        for index in live:
            last.update(dict.fromkeys(self.sources(index), index))
        found: dict[int, Prediction] = {}
        medians: dict[int, Point] = {}
        shared = _SharedNoise(self)
        covariances: dict[tuple[int, int], Array] = {}  # between the nodes that are still needed
        needed: set[int] = set()
        for index in live:
            if index == begin:
                median, own = points[index], np.zeros((3, 3))
            else:
                step = self.step(index, medians)
                median = _drift(step)
                across = {
                    other: _sum(j @ covariances[i, other] for i, j in step.jacobians.items())
                    for other in needed
                }
                own = _sum(across[i] @ j.T for i, j in step.jacobians.items())
                own = own + shared.add(index, step, medians)
                for other, block in across.items():
                    covariances[index, other], covariances[other, index] = block, block.T
            covariances[index, index] = own
            medians[index] = median
            bands = _bands(median, covariances[index, index] + shared.covariance(index))
            known = points[index]
            found[index] = Prediction(known.q, known.c, *bands, basis=known.basis)
            needed.add(index)
            for done in [i for i in needed if last.get(i, -1) <= index]:
                needed.discard(done)
                shared.forget(done)
                for other in (*needed, done):
                    covariances.pop((done, other), None)
                    covariances.pop((other, done), None)
        return found


def _activate(parts: Sequence[tuple[float, int, Point, Response]], n: float) -> Transition:
    """Channels that are functions of normal numbers: shares, sources, their points, responses."""
    q = sum(share * response.q for share, _, _, response in parts)
    amounts = [share * response.q / q for share, _, _, response in parts]
    c = sum(a * part[3].c for a, part in zip(amounts, parts, strict=True))
    jacobians: dict[int, Array] = {}
    covariance, shift = np.zeros((3, 3)), np.zeros(3)
    noises: dict[int, _VectorNoise] = {}
    for amount, (share, source, at, response) in zip(amounts, parts, strict=True):
        noises[source] = _VectorNoise(amount, response.covariance / (share * n))
        covariance += amount**2 * noises[source].covariance
        shift += amount / share / n * response.shift
        turned = (
            to_logarithms(c) @ (amount * response.jacobian) @ np.linalg.inv(to_logarithms(at.c))
        )
        jacobians[source] = jacobians.get(source, 0.0) + turned
    return Transition(Point(q, c), jacobians, Noise.of(covariance, shift, c), noises)


class _SharedNoise:
    """The noise of vectors that several activations read, or of which shortcuts keep a part.

    The state of a node is `sensitivity` @ noise + what `predict` treats as independent, with three
    columns for each vector. Two vectors with correlation ρ share the part `persistence` of theirs.
    """

    def __init__(self, network: FiniteWidth) -> None:
        self._network = network
        self._parts: list[dict[int, float]] = []  # each node as a sum of independent vectors
        readers: dict[int, set[int]] = {}
        for index, node in enumerate(network.graph.nodes):
            total = {index: 1.0}
            if isinstance(node, Sum):
                pairs = zip(node.inputs, node.weights, strict=True)
                total = combine((self._parts[i], weight) for i, weight in pairs)
            self._parts.append(total)
            if isinstance(node, Nonlinearity) and index in network.graph.live:
                for source in network.sources(index):
                    for part in self._parts[source]:
                        readers.setdefault(part, set()).add(index)
        self._repeated = {part for part, nodes in readers.items() if len(nodes) > 1}
        self._vectors: list[int] = []
        self._noise = np.zeros((0, 0))  # the covariance between vectors
        self._unit: list[_VectorNoise] = []
        self._sensitivity: dict[int, Array] = {}
        self._coefficients = persistence(network.phi, 1.0) if self._repeated else np.zeros(1)

    def add(self, index: int, step: Transition, points: Mapping[int, Point]) -> Array:
        """The covariance that is the node's own, once the shared noise is taken from it."""
        factor = np.diag([_log_factor(step), _log_factor(step), 1.0])
        own, rows = step.noise.covariance, np.zeros((3, 3 * len(self._vectors)))
        for source, jacobian in step.jacobians.items():
            before = self._sensitivity.get(source, np.zeros((3, 0)))
            rows[:, : before.shape[1]] += jacobian @ before
        turn = to_logarithms(step.point.c)
        for source, noise in step.noises.items():
            if not self._repeated.isdisjoint(self._parts[source]):
                own = own - turn @ (noise.amount**2 * noise.covariance) @ turn.T
                place = self._place(source, noise, points)
                rows = np.pad(rows, ((0, 0), (0, 3 * len(self._vectors) - rows.shape[1])))
                rows[:, 3 * place : 3 * place + 3] += noise.amount * factor @ turn
        self._sensitivity[index] = rows
        return factor @ own @ factor

    def _place(self, source: int, noise: _VectorNoise, points: Mapping[int, Point]) -> int:
        """The number of the vector at `source`, which is added if it is new."""
        if source in self._vectors:
            return self._vectors.index(source)
        self._vectors.append(source)
        self._unit.append(noise)
        grown = np.pad(self._noise, (0, 3))
        for place, (other, unit) in enumerate(zip(self._vectors, self._unit, strict=True)):
            alike = self._persistence(source, other, points)
            block = alike * 0.5 * (noise.covariance + unit.covariance)
            grown[-3:, 3 * place : 3 * place + 3] = block
            grown[3 * place : 3 * place + 3, -3:] = block.T
        self._noise = grown
        return len(self._vectors) - 1

    def _persistence(self, one: int, other: int, points: Mapping[int, Point]) -> float:
        mine, its = self._parts[one], self._parts[other]
        powers = [
            sum(a[s] * b[s] * points[s].q for s in a if s in b)
            for a, b in ((mine, its), (mine, mine), (its, its))
        ]
        correlation = min(1.0, powers[0] / math.sqrt(powers[1] * powers[2]))
        return float(np.polynomial.polynomial.polyval(correlation, self._coefficients))

    def covariance(self, index: int) -> Array:
        rows = self._sensitivity.get(index, np.zeros((3, 0)))
        return rows @ self._noise[: rows.shape[1], : rows.shape[1]] @ rows.T

    def forget(self, index: int) -> None:
        self._sensitivity.pop(index, None)


def _through(part: Measured, at: Point, n: float) -> Transition:
    """What a part makes of a kernel, with the fluctuation of its own q values, or of channels'."""
    curve = part.curve
    q, c = curve.kernel(at.q, at.c)
    covariance = 0.5 * curve.spread * normal_covariance(c)
    if (k := curve.constant) is not None:  # times the mean of all channels
        one, both = 4.0 * at.c, 2.0 * (1.0 + at.c)
        means = np.array([[4.0, one, both], [one, 4.0, both], [both, both, both]])
        covariance = k * (1.0 - k) / n * means
    jacobian = np.diag([curve.degree, curve.degree, curve.slope_at(at.c)])
    return Transition(Point(q, c), {part.input: jacobian}, Noise.of(covariance, np.zeros(3), c))


def _mix(terms: Sequence[_Term], n: float, own: Sequence[Array] = ()) -> Transition:
    """A sum of terms whose inner products are zero on average, each with its `own` covariance."""
    q = sum(term.q for term in terms)
    shares = [term.q / q for term in terms]
    c = sum(share * term.c for share, term in zip(shares, terms, strict=True))
    covariance = np.zeros((3, 3))
    for place, (a, one) in enumerate(zip(shares, terms, strict=True)):
        if own:
            covariance += a * a * own[place]
        for b, other in zip(shares[:place], terms[:place], strict=True):
            both, mean = 4.0 * one.c * other.c, 2.0 * (one.c + other.c)
            products = np.array(
                [[4.0, both, mean], [both, 4.0, mean], [mean, mean, 2.0 + both / 2.0]]
            )
            covariance += a * b / n * products
    jacobians: dict[int, Array] = {}
    for share, term in zip(shares, terms, strict=True):
        if term.source is not None:
            turned = share * np.eye(3)
            turned[2, :2] = 0.5 * share * (term.c - c)
            jacobians[term.source] = jacobians.get(term.source, 0.0) + turned
    return Transition(Point(q, c), jacobians, Noise.of(covariance, np.zeros(3), c))


def _multiply(factors: Sequence[tuple[int, Point, Array]], n: float) -> Transition:
    """A product of independent factors: their sources, their points, E[f fᵀ] of one channel.

    Given the kernels of two factors, that of their product has Cov(f_a) ∘ Cov(f_b) / n.
    """
    means = [np.array([1.0, 1.0, at.c]) for _, at, _ in factors]
    mean, covariance = np.prod(means, axis=0), np.prod([m for *_, m in factors], axis=0)
    covariance = covariance - np.outer(mean, mean)
    jacobians: dict[int, Array] = {}
    for place, (source, _, second) in enumerate(factors):
        others = np.prod([np.ones(3), *means[:place], *means[place + 1 :]], axis=0)
        own = second - np.outer(means[place], means[place])
        covariance -= np.outer(others, others) * own
        jacobians[source] = jacobians.get(source, 0.0) + np.diag(others)
    c = float(mean[2])
    point = Point(math.prod(at.q for _, at, _ in factors), c)
    return Transition(point, jacobians, Noise.of(covariance / n, np.zeros(3), c))


def _sum(matrices: Iterable[Array]) -> Array:
    return np.sum([np.zeros((3, 3)), *matrices], axis=0)


def _drift(step: Transition) -> Point:
    """The median of a node whose sources are at their medians."""
    noise, point = step.noise, step.point
    q = point.q * math.exp(noise.q_shift + log_mean(noise.single))
    if 1.0 - abs(point.c) < _ALIKE:
        return Point(q, point.c)
    return Point(q, math.tanh(math.atanh(point.c) + noise.artanh_c_shift))


def _log_factor(step: Transition) -> float:
    """How much larger deviations of log q are than those of q, relative to its mean."""
    variance = step.noise.single
    return math.sqrt(log_variance(variance) / variance) if variance > 0.0 else 1.0


def _bands(median: Point, covariance: Array) -> tuple[Interval, Interval]:
    s = _NORMAL_95 * math.sqrt(max(covariance[0, 0], 0.0))
    q = Interval(median.q, median.q * math.exp(-s), median.q * math.exp(s))
    rest = 1.0 - median.c**2
    if rest < _ALIKE:
        return q, Interval(median.c, median.c, median.c)
    z, s = math.atanh(median.c), _NORMAL_95 * math.sqrt(max(covariance[2, 2], 0.0)) / rest
    return q, Interval(median.c, math.tanh(z - s), math.tanh(z + s))

"""Predicted against measured: q and c at every node of a network, and whether the two agree.

Nothing here knows a framework. An adapter replays a recorded network and returns the q and c values
of pairs of samples. This module makes the pairs, turns the values into estimates, and compares them
with the theory.
"""

# pyright: reportUnnecessaryIsInstance=false

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from skipless.tables import table

from .activations import Array
from .arguments import finite_number, whole_number
from .bands import Distribution, FiniteWidth, Prediction, band_range
from .graph import Affine, Concat, Graph, Sum
from .network import Point, Size
from .predict import predict
from .solution import Solution, require_solution
from .summary import abbreviate, kind_of, layer_rows, number_range, row_name
from .surprise import VECTORS, Surprise, median, surprises
from .trace import Reading, Step

TOLERANCE = 0.05  # up to here, a network is as good as infinitely wide
_ROUNDING = 1e-5  # of a deep network in float32
_FALSE_ALARM = 0.01  # the probability that a sound network disagrees, over all of its nodes
_MOST_FUNCTION_ERROR = 3e-3  # what single precision makes of steep activations
_MOST_DRAWS = 10**6  # of weights, or of pairs for each cosine

T = TypeVar("T", bound=Hashable)  # a framework's own name for a tensor
W = TypeVar("W", contravariant=True)  # a framework's own form of freshly drawn weights


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, its standard error, and the standard deviation between single samples."""

    mean: float
    error: float
    spread: float

    @classmethod
    def of(cls, samples: Array) -> Self:
        """The estimate from `samples` of shape (seeds, pairs).

        Pairs that went through the same weights are not independent, so the standard error is that
        of the means of the seeds. With one seed it is that of the pairs, for these weights. A pair
        without a cosine, because one of its samples is zero, is nan and is left out.

        >>> Estimate.of(np.array([[1.0, 3.0], [2.0, 6.0]]))  # means 2 and 4: 3 ± √2 / √2
        Estimate(mean=3.0, error=1.0, spread=2.160246899469287)
        """
        known = samples[~np.isnan(samples)]
        groups = [row[~np.isnan(row)] for row in samples]
        means = np.array([row.mean() for row in groups if row.size])
        independent = means if len(samples) > 1 else known
        error = _deviation(independent) / math.sqrt(max(independent.size, 1))
        mean = float(independent.mean()) if independent.size else math.nan
        return cls(mean, error, _deviation(known))


def _deviation(samples: Array) -> float:
    return float(samples.std(ddof=1)) if samples.size > 1 else math.nan


@dataclass(frozen=True, slots=True)
class NodeMeasurement:
    """What was measured at one node of a graph: q of the samples, and c of their pairs."""

    node: int
    kind: str
    origin: str
    q: Estimate
    c: Estimate


@dataclass(frozen=True)
class Measurement:
    """The q and c values of a network, node by node; nodes that lead nowhere are left out."""

    nodes: tuple[NodeMeasurement, ...]
    seeds: int
    pairs: int

    @classmethod
    def of(cls, graph: Graph, q: Array, c: Array) -> Self:
        """From `Kernels`, with an axis of seeds in front; of the live nodes of `graph`."""
        measured: list[NodeMeasurement] = []
        for row, index in enumerate(sorted(graph.live)):
            node, pairs = graph.nodes[index], np.mean(q[:, row], axis=-1)
            estimates = Estimate.of(pairs), Estimate.of(c[:, row])
            measured.append(NodeMeasurement(index, kind_of(node), node.origin, *estimates))
        return cls(tuple(measured), seeds=q.shape[0], pairs=q.shape[2])

    def __str__(self) -> str:
        rows: list[list[str]] = []
        for name, places in _rows(self.nodes):
            nodes = [self.nodes[place] for place in places]
            rows.append([name])
            for estimates in ([m.q for m in nodes], [m.c for m in nodes]):
                error = max(estimate.error for estimate in estimates)
                rows[-1] += [number_range([e.mean for e in estimates]), f"{error:.4f}"]
        head = f"{self.pairs} pairs, {_count_draws(self.seeds)}; se: the largest standard error"
        return f"{head}\n\n{table(['layers', 'q', 'se', 'c', 'se'], abbreviate(rows))}"


@dataclass(frozen=True)
class Comparison:
    """One node: what the theory predicts there, and what was measured.

    `median` is that of the draws. `surprise` is how far the node is from what its measured inputs
    let expect, in standard deviations, of which `limit` are allowed. Of an activation,
    `function_error` is the relative difference from the one that was solved for.
    """

    predicted: Prediction
    measured: NodeMeasurement
    median: Point
    surprise: Surprise
    function_error: float
    limit: float
    tolerance: float
    cosine: float  # of the inputs

    @property
    def q_difference(self) -> float:
        """Measured minus predicted q, relative to the predicted one."""
        return self.median.q / self.predicted.q - 1.0

    @property
    def c_difference(self) -> float:
        """Measured minus predicted c."""
        return self.median.c - self.predicted.c

    @property
    def largest_difference(self) -> float:
        return max(abs(self.q_difference), abs(self.c_difference))

    @property
    def is_close(self) -> bool:
        """Whether q, relative to its prediction, and c are within the tolerance."""
        return self.largest_difference <= self.tolerance + _ROUNDING

    @property
    def error_ratio(self) -> float:
        """The largest surprise over what is allowed; infinite for a wrong function or nan."""
        ratio = max(abs(self.surprise.q), abs(self.surprise.c)) / self.limit
        known = not math.isnan(self.surprise.q + self.surprise.c)
        return ratio if known and self.function_error <= _MOST_FUNCTION_ERROR else math.inf

    @property
    def agrees(self) -> bool:
        """Whether the node does with its inputs what the theory says, as far as its width lets."""
        return self.error_ratio <= 1.0


@dataclass(frozen=True)
class Check:
    """Predicted against measured at every node, for every cosine; `print` shows it by layers.

    `wanted_width` is the width from which on 95 % of all draws are close to the predictions: q
    within a factor of 1.5, c within 0.1. None if it is not known.
    """

    comparisons: tuple[Comparison, ...]
    tolerance: float
    seeds: int
    pairs: int
    wanted_width: int | None = None

    @property
    def agrees(self) -> bool:
        """Whether every node does with its inputs what the theory says."""
        return not self.disagreements

    @property
    def is_close(self) -> bool:
        """Whether the network is as good as infinitely wide: all medians are within `tolerance`."""
        return all(row.is_close for row in self.comparisons)

    @property
    def disagreements(self) -> tuple[Comparison, ...]:
        return tuple(row for row in self.comparisons if not row.agrees)

    @property
    def worst(self) -> Comparison:
        """The node with the largest `error_ratio`; if all agree, with the largest difference."""
        worst = max(self.comparisons, key=lambda row: row.error_ratio)
        if worst.agrees:
            return max(self.comparisons, key=lambda row: row.largest_difference)
        return worst

    def assert_ok(self) -> None:
        """Raise an AssertionError with the whole table if a node disagrees, for use in tests."""
        if not self.agrees:
            raise AssertionError(str(self))

    @property
    def verdict(self) -> str:
        """Whether the network has the kernel that was predicted, and if not, where not."""
        wrong, total, worst = self.disagreements, len(self.comparisons), self.worst
        name = ", ".join(filter(None, (worst.measured.kind, worst.measured.origin)))
        off = f"Δq/q = {worst.q_difference:+.4f}, Δc = {worst.c_difference:+.4f}"
        largest = f"Largest difference: node {worst.measured.node} ({name}), {off}."
        if wrong:
            return f"{len(wrong)} of {total} nodes DISAGREE.\n{_describe(worst, name)}"
        if self.is_close:
            return (
                f"All {total} nodes agree with the prediction within {self.tolerance:g}.\n{largest}"
            )
        advice = (
            f"\n95 % of draws have q within a factor of 1.5 and c within 0.1 from a width of about "
            f"{self.wanted_width:,} on."
        )
        advice = advice if self.wanted_width else ""
        return f"All {total} nodes agree, within the fluctuation of this width.\n{largest}{advice}"

    def __str__(self) -> str:
        parts = [f"{self.pairs} pairs, {_count_draws(self.seeds)}"]
        head = ["layers", "q", "95 %", "measured", "c", "95 %", "measured", "disagree"]
        for cosine in dict.fromkeys(row.cosine for row in self.comparisons):
            rows = [row for row in self.comparisons if row.cosine == cosine]
            lines = [
                _table_row(name, [rows[place] for place in places])
                for name, places in _rows([row.measured for row in rows])
            ]
            width = len(head) if any(line[-1] for line in lines) else len(head) - 1
            shown = table(head[:width], [line[:width] for line in abbreviate(lines)])
            parts.append(f"inputs with c = {cosine:g}\n{shown}")
        return "\n\n".join([*parts, self.verdict])


def _describe(row: Comparison, name: str) -> str:
    """What is wrong with a node that disagrees."""
    where = f"Worst: node {row.measured.node} ({name})"
    if row.function_error > _MOST_FUNCTION_ERROR:
        return (
            f"{where} computes another function than the activation that was solved for: they "
            f"differ by {100.0 * row.function_error:.3g} %."
        )
    surprise = row.surprise
    if math.isnan(surprise.q + surprise.c):
        return f"{where} has no q or c: the signal before it is zero or not finite."
    name, size = ("q", surprise.q) if abs(surprise.q) >= abs(surprise.c) else ("c", surprise.c)
    much = "far" if abs(size) > 30.0 else f"{abs(size):.1f} standard deviations"
    return (
        f"{where}: for what it reads, {name} is {much} too {'high' if size > 0.0 else 'low'} "
        f"({row.limit:.1f} are allowed); Δq/q = {row.q_difference:+.4f}, "
        f"Δc = {row.c_difference:+.4f}."
    )


def _table_row(name: str, rows: Sequence[Comparison]) -> list[str]:
    """One line for all `rows`: their ranges."""
    wrong = sum(not row.agrees for row in rows)
    cells = [name]
    for letter in ("q", "c"):
        bands = [getattr(row.predicted, f"{letter}_band") for row in rows]
        predicted, medians = (
            [getattr(point, letter) for point in points]
            for points in ([row.predicted for row in rows], [row.median for row in rows])
        )
        cells += [number_range(predicted), band_range(bands), number_range(medians)]
    return [*cells, f"✗ {wrong} of {len(rows)}" if wrong else ""]


def _rows(nodes: Sequence[NodeMeasurement]) -> Iterator[tuple[str, list[int]]]:
    """The rows of a table, each with its name and the places of its nodes."""
    for places in layer_rows([m.kind for m in nodes]):
        yield row_name([(nodes[place].kind, nodes[place].origin) for place in places]), places


def _count_draws(seeds: int) -> str:
    return f"{seeds} draws of the weights" if seeds > 1 else "one draw of the weights"


class Kernels(NamedTuple):
    """What one run of a network gives: q of both samples of all pairs, and their c.

    Their shapes are (live nodes, pairs, 2) and (live nodes, pairs).

    `errors` has the relative difference of activations from φ̂, `gains` what layers multiply q by;
    both may be empty.
    """

    q: Array
    c: Array
    errors: Mapping[int, float]
    gains: Mapping[int, Array]


class Replay(Protocol[W]):
    """A recorded network that runs again, from a start and with weights that it is given.

    The start is the tensor of the node `begin`: what normalisation makes of the model's input, or
    what the first layer does.
    """

    @property
    def graph(self) -> Graph: ...
    @property
    def sizes(self) -> Mapping[int, Size]: ...
    @property
    def begin(self) -> int: ...
    @property
    def start_shape(self) -> tuple[int, ...]: ...  # of one sample
    @property
    def channel_axis(self) -> int: ...
    @property
    def rounding(self) -> float: ...  # of the numbers that the network computes with
    def __call__(self, start: npt.NDArray[np.float32], weights: W, /) -> Kernels: ...


def first_node_of_pairs(graph: Graph, sizes: Mapping[int, Size]) -> int:
    """Where pairs of any cosine can be chosen.

    That is the input, unless it has a single channel: two numbers are alike or opposite. If only
    one layer reads it, pairs are chosen behind that layer.
    """
    if sizes.get(0, Size(2)).channels > 1 or len(graph.readers[0]) != 1:
        return 0
    (first,) = graph.readers[0]
    node = graph.nodes[first]
    mixes = isinstance(node, Affine) and node.mixes
    return first if mixes and first in sizes and sizes[first].channels > 1 else 0


class Probe(Generic[T]):
    """Looks at single operations of a record while it runs: does each do what it should?

    Of an activation, what it computes is compared with φ̂, number by number; that need be done once.
    Of a layer, the gain is measured: by how much it multiplies q, of random numbers. What runs
    through the network is no measure of it: deep inside, all samples have nearly one direction.
    """

    def __init__(self, reading: Reading[T], solution: Solution | None) -> None:
        self.errors: dict[int, float] = {}
        self.gains: dict[int, float] = {}
        self._solution, self._expected = solution, dict[T, Array]()
        known: Mapping[T, Step[T]] = {} if solution is None else reading.steps
        self._activations = {t: step for t, step in known.items() if step.kind == "activation"}
        self._sources = {step.inputs[0] for step in self._activations.values()}
        layers: dict[int, T] = {}
        for tensor, step in known.items():
            if step.kind == "affine" and step.node in reading.sizes:
                layers.setdefault(step.node, tensor)  # a bias that is added comes later
        self.layers = {tensor: known[tensor].inputs[0] for tensor in layers.values()}
        self._nodes = {
            tensor: (node, reading.sizes[node].channels, reading.axes[self.layers[tensor]].samples)
            for node, tensor in layers.items()
        }

    def see(self, tensor: T, numbers: Callable[[], npt.ArrayLike]) -> None:
        """Look at the `numbers` of a recorded tensor, in order of evaluation."""
        if (step := self._activations.get(tensor)) and step.node not in self.errors:
            expected = self._expected.pop(step.inputs[0])
            difference = _sample(numbers()) / step.scale - expected
            size = float(np.linalg.norm(expected)) or 1.0
            self.errors[step.node] = float(np.linalg.norm(difference)) / size
        if tensor in self._sources and self._solution is not None:
            self._expected[tensor] = self._solution(_sample(numbers()))

    def feed(
        self, tensor: T, shape: Sequence[int], apply: Callable[[Array], npt.ArrayLike]
    ) -> None:
        """Measure the gain of the layer that makes `tensor`, by `apply` to inputs of `shape`."""
        bias = np.asarray(apply(np.zeros(shape)), np.float64)
        node, channels, axis = self._nodes[tensor]
        more = list(shape)
        more[axis] *= math.ceil(VECTORS * channels / bias.size)
        x = np.random.default_rng(len(self.gains)).standard_normal(more)
        y = np.asarray(apply(x), np.float64)
        power = float(np.mean(y**2) - np.mean(bias**2))
        self.gains[node] = power / float(np.mean(x**2))


def _sample(numbers: npt.ArrayLike) -> Array:
    """Up to some thousand of them."""
    flat = np.ravel(np.asarray(numbers, np.float64))
    return flat[:: max(1, flat.size // 4096)]


def check(
    replay: Replay[W],
    solution: Solution,
    draws: Iterable[W],
    cosines: Sequence[float] | None,
    pairs: int,
    tolerance: float,
    distribution: Distribution,
) -> Check:
    """What `solution` predicts for a network, beside what is measured.

    Args:
        replay: The network, recorded for a batch of `batch_size(cosines, pairs)` samples.
        solution: The solution that shaped it.
        draws: Weights for `replay`, once for every seed.
        cosines: Those of the pairs of inputs; None for 0, or -1 where there is no other.
        pairs: How many there are for each cosine.
        tolerance: The difference up to which a network counts as infinitely wide.
        distribution: What the weights are drawn from.
    """
    finite_number("tolerance", tolerance, 0.0)
    graph, begin = replay.graph, replay.begin
    if cosines is None:
        cosines = (0.0,) if replay.start_shape[replay.channel_axis] > 1 else (-1.0,)
    points = [predict(graph, solution, Point(1.0, cosine)) for cosine in cosines]
    rng, shape, axis = np.random.default_rng(0), replay.start_shape, replay.channel_axis
    starts = [
        math.sqrt(known[begin].q) * pair_inputs(rng, shape, pairs, known[begin].c, axis)
        for known in points
    ]
    start = np.concatenate(starts).astype(np.float32)
    finite = FiniteWidth(graph, solution, replay.sizes, distribution)
    q, c, errors, gains = stack([replay(start, weights) for weights in draws])
    judged = sum(index > begin for index in graph.live)
    # Two sides each of q, c and, of layers, the gain.
    limit = -float(ndtri(_FALSE_ALARM / (6.0 * max(judged, 1) * len(cosines))))
    comparisons: list[Comparison] = []
    parts = (np.split(values, len(cosines), axis=2) for values in (q, c))
    for cosine, known, q_part, c_part in zip(cosines, points, *parts, strict=True):
        predicted = finite.predict(known, begin)
        found = surprises(finite, q_part, c_part, gains, begin, replay.rounding)
        measured = Measurement.of(graph, q_part, c_part).nodes
        for row, (node, surprise) in enumerate(zip(measured, found, strict=True)):
            if node.node >= begin:
                medians = median(np.mean(q_part[:, row], axis=(1, 2))), median(c_part[:, row])
                error = errors.get(node.node, 0.0)
                comparisons.append(
                    Comparison(
                        predicted[node.node],
                        node,
                        Point(*medians),
                        surprise,
                        error,
                        limit,
                        tolerance,
                        cosine,
                    )
                )
    return Check(tuple(comparisons), tolerance, len(q), pairs, _wanted_width(comparisons, replay))


def _wanted_width(rows: Sequence[Comparison], replay: Replay[W]) -> int | None:
    """The width from which on bands are narrow, if all bands shrink as they do to first order."""
    widths = [
        replay.sizes[i].channels
        for i, n in enumerate(replay.graph.nodes)
        if isinstance(n, Affine) and i in replay.sizes
    ]
    if not widths:
        return None
    typical, factor = float(np.median(widths)), 0.0
    for row in rows:
        size = replay.sizes.get(row.measured.node)
        if size is None or 2 * size.channels < typical:  # a head is as wide as its task wants
            continue
        q, c = row.predicted.q_band, row.predicted.c_band
        needed = math.log(q.high / q.median) / math.log(1.5), (c.high - c.low) / 0.2
        factor = max(factor, *(number**2 for number in needed))
    width = typical * factor
    digits = 10.0 ** max(0, math.floor(math.log10(max(width, 1.0))) - 1)
    return int(math.ceil(width / digits) * digits)


def batch_size(cosines: Sequence[float] | None, pairs: int) -> int:
    """How many samples a check with these `cosines` and `pairs` takes."""
    if cosines is None:
        cosines = (0.0,)
    if isinstance(cosines, str) or not isinstance(cosines, Sequence) or not cosines:
        raise TypeError(
            f"cosines must be a sequence of numbers, such as (0.0, 0.5), got {cosines!r}"
        )
    for cosine in cosines:
        finite_number("cosines", cosine, -1.0, 1.0)
    return 2 * whole_number("pairs", pairs, 1, _MOST_DRAWS) * len(cosines)


def pair_inputs(
    rng: np.random.Generator, shape: Sequence[int], pairs: int, cosine: float, channel_axis: int
) -> npt.NDArray[np.float32]:
    """A batch of pairs of samples of `shape`, with the same channels at all locations."""
    sizes = [1] * len(shape)
    sizes[channel_axis] = shape[channel_axis]
    vectors = pair_vectors(rng, pairs, shape[channel_axis], cosine)
    return vectors.astype(np.float32).reshape(2 * pairs, *sizes) * np.ones(shape, np.float32)


def pair_vectors(rng: np.random.Generator, pairs: int, channels: int, cosine: float) -> Array:
    """Random vectors of q value 1, of which 0 and 1, 2 and 3, … have that `cosine`.

    >>> x = pair_vectors(np.random.default_rng(0), 2, 8, -0.5)
    >>> x.shape, bool(np.allclose((x[0::2] * x[1::2]).mean(axis=1), -0.5))
    ((4, 8), True)
    """
    if not -1.0 <= cosine <= 1.0:
        raise ValueError(f"cosine must be in [-1, 1], got {cosine:g}")
    if channels < 2 and abs(cosine) < 1.0:
        raise ValueError(
            f"Two samples of {channels} channel are alike or opposite, got cosine={cosine:g}. Use "
            "1 or -1, or normalize_per_location, which makes two channels of one."
        )
    u, v = rng.standard_normal((2, pairs, channels))
    u = u / np.linalg.norm(u, axis=1, keepdims=True)
    v = v - np.sum(u * v, axis=1, keepdims=True) * u
    v = v / np.linalg.norm(v, axis=1, keepdims=True) if channels > 1 else np.zeros_like(v)
    second = cosine * u + math.sqrt(1.0 - cosine**2) * v
    return math.sqrt(channels) * np.stack([u, second], axis=1).reshape(2 * pairs, channels)


def require_batch_of_pairs(shape: tuple[int, ...]) -> None:
    """Raise unless samples 0 and 1, 2 and 3, … of inputs of that shape are pairs."""
    if len(shape) < 2 or shape[0] < 2 or shape[0] % 2:
        raise ValueError(
            "inputs must be a batch of pairs: an even number of samples with one axis or more, got "
            f"shape {shape}. Use pair_inputs, or drop a sample."
        )


def values_at_nodes(
    graph: Graph,
    tensors: Mapping[int, tuple[T, float]],
    seen: Mapping[T, tuple[npt.ArrayLike, npt.ArrayLike]],
    probe: Probe[T],
) -> Kernels:
    """The q and c values at live nodes, from those `seen` at recorded tensors.

    For nodes of `graph`, `tensors` has a recorded one and the factor by which it is larger.
    """
    found: dict[int, tuple[Array, Array]] = {}
    for index in sorted(graph.live):
        if index in tensors:
            tensor, scale = tensors[index]
            q, c = (np.asarray(values, np.float64) for values in seen[tensor])
            found[index] = (q / scale**2, c)
        elif isinstance(node := graph.nodes[index], Concat):  # of outputs, which no tensor holds
            q, c = (np.stack(values) for values in zip(*map(found.get, node.inputs), strict=True))
            product = np.mean(c * np.sqrt(np.prod(q, axis=-1)), axis=0)  # of the two of a pair
            q = np.mean(q, axis=0)
            found[index] = (q, product / np.sqrt(np.prod(q, axis=-1)))
        else:  # a factor that the record applies together with what precedes it
            assert isinstance(node, Sum)
            q, c = found[node.inputs[0]]
            found[index] = (q * node.weights[0] ** 2, c)
    q, c = zip(*found.values(), strict=True)
    gains = {node: np.array([gain]) for node, gain in probe.gains.items()}
    return Kernels(np.stack(q), np.stack(c), probe.errors, gains)


def stack(samples: Sequence[Kernels]) -> Kernels:
    """All q and c values, with an axis of draws in front."""
    if not samples:
        raise ValueError("seeds must name at least one seed, got none (typically seeds=10)")
    q, c, errors, gains = zip(*samples, strict=True)
    together = {node: np.concatenate([each[node] for each in gains]) for node in gains[0]}
    return Kernels(np.stack(q), np.stack(c), errors[0], together)


def seed_numbers(seeds: int | Iterable[int]) -> Iterable[int]:
    """The first `seeds` numbers, or the seeds themselves."""
    if isinstance(seeds, Iterable) and not isinstance(seeds, str | bytes):
        return (whole_number("every seed", seed, 0) for seed in seeds)
    return range(whole_number("seeds", seeds, 1, _MOST_DRAWS))


def known_solution(model: object) -> Solution | None:
    """The solution that shaped `model`, if the model carries it."""
    # What `convert` returns has a report; the networks of `skipless.models` say what shaped them.
    accounts = (getattr(model, name, None) for name in ("skipless_report", "shaping"))
    return next((account.solution for account in accounts if account is not None), None)


def find_solution(model: object, given: Solution | None) -> Solution:
    """The `given` solution, or the one that shaped `model`."""
    solution = known_solution(model) if given is None else given
    if solution is None:
        raise ValueError(
            f"{type(model).__name__} does not carry the solution that shaped it. Pass solution=, "
            "or a model that `convert` or `create_model` returned."
        )
    require_solution(solution)
    return solution


def sigmas(solution: Solution | None) -> dict[str, float]:
    """The standard deviations of weights and biases, as arguments of `initialize_`."""
    return {} if solution is None else {"sigma_w": solution.sigma_w, "sigma_b": solution.sigma_b}

"""Predicted against measured: q and c at every node of a network, and whether the two agree.

Nothing here knows a framework. An adapter replays a recorded network and returns the q and c values
of pairs of samples. This module makes the pairs, turns the values into estimates, and compares them
with the theory.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from skipless.tables import table

from .activations import Array
from .graph import Graph, Sum
from .network import Point
from .predict import predict
from .solution import Solution, require_solution
from .summary import abbreviate, kind_of, layer_rows, number_range, row_name

TOLERANCE = 0.05  # the check of skipless.torch says why
STANDARD_ERRORS = 4.0  # what chance may add to the tolerance
_ROUNDING = 1e-5  # of a deep network in float32

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
        """From samples of shape (seeds, nodes, pairs), of those nodes of `graph` that are live."""
        measured: list[NodeMeasurement] = []
        for row, index in enumerate(sorted(graph.live)):
            node, estimates = graph.nodes[index], (Estimate.of(q[:, row]), Estimate.of(c[:, row]))
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
    """One node: the point that the theory predicts there, and what was measured."""

    predicted: Point
    measured: NodeMeasurement
    tolerance: float
    cosine: float  # of the inputs

    @property
    def q_difference(self) -> float:
        """Measured minus predicted q, relative to the predicted one."""
        return self.measured.q.mean / self.predicted.q - 1.0

    @property
    def c_difference(self) -> float:
        """Measured minus predicted c."""
        return self.measured.c.mean - self.predicted.c

    @property
    def c_deviation(self) -> float:
        """The difference in c, in standard errors; 0 where it is only rounding."""
        if abs(self.c_difference) < _ROUNDING:
            return 0.0
        return self.c_difference / max(self.measured.c.error, _ROUNDING)

    @property
    def error_ratio(self) -> float:
        """The difference over what is allowed, in q or c, whichever is larger; infinite if nan."""
        errors = np.nan_to_num([self.measured.q.error / self.predicted.q, self.measured.c.error])
        differences = np.abs([self.q_difference, self.c_difference])
        ratio = np.max(differences / (self.tolerance + STANDARD_ERRORS * errors + _ROUNDING))
        return math.inf if np.isnan(ratio) else float(ratio)

    @property
    def agrees(self) -> bool:
        """Whether q and c are within the tolerance and four standard errors."""
        return self.error_ratio <= 1.0


@dataclass(frozen=True)
class Check:
    """Predicted against measured at every node, for every cosine; `print` shows it by layers."""

    comparisons: tuple[Comparison, ...]
    tolerance: float
    seeds: int
    pairs: int

    @property
    def agrees(self) -> bool:
        """Whether every node does, within `tolerance` + 4 standard errors in c and relative q."""
        return not self.disagreements

    @property
    def disagreements(self) -> tuple[Comparison, ...]:
        return tuple(row for row in self.comparisons if not row.agrees)

    @property
    def worst(self) -> Comparison:
        """The node with the largest `error_ratio`."""
        return max(self.comparisons, key=lambda row: row.error_ratio)

    @property
    def verdict(self) -> str:
        """Whether all nodes agree, how many do not, and which is the worst."""
        wrong, total, worst = len(self.disagreements), len(self.comparisons), self.worst
        allowed = f"{self.tolerance:g} + {STANDARD_ERRORS:g} standard errors"
        count = f"All {total} nodes agree within {allowed}."
        if wrong:
            count = f"{wrong} of {total} nodes DISAGREE by more than {allowed}."
        name = ", ".join(filter(None, (worst.measured.kind, worst.measured.origin)))
        return (
            f"{count}\nWorst: node {worst.measured.node} ({name}), "
            f"Δc = {worst.c_difference:+.4f}, Δq/q = {worst.q_difference:+.4f}."
        )

    def __str__(self) -> str:
        parts = [f"{self.pairs} pairs, {_count_draws(self.seeds)}"]
        head = ["layers", "q", "measured", "c", "measured", "Δc", "Δc/se", "disagree"]
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


def _table_row(name: str, rows: Sequence[Comparison]) -> list[str]:
    """One line for all `rows`: their ranges, and the differences of the worst."""
    worst = max(rows, key=lambda row: row.error_ratio)
    wrong = sum(not row.agrees for row in rows)
    points = [(p.q, m.q.mean, p.c, m.c.mean) for p, m in ((r.predicted, r.measured) for r in rows)]
    return [
        name,
        *map(number_range, zip(*points, strict=True)),
        f"{round(worst.c_difference, 4) + 0.0:+.4f}",
        f"{round(worst.c_deviation, 1) + 0.0:+.1f}",
        f"✗ {wrong} of {len(rows)}" if wrong else "",
    ]


def _rows(nodes: Sequence[NodeMeasurement]) -> Iterator[tuple[str, list[int]]]:
    """The rows of a table, each with its name and the places of its nodes."""
    for places in layer_rows([m.kind for m in nodes]):
        yield row_name([(nodes[place].kind, nodes[place].origin) for place in places]), places


def _count_draws(seeds: int) -> str:
    return f"{seeds} draws of the weights" if seeds > 1 else "one draw of the weights"


class Replay(Protocol[W]):
    """A recorded network that runs again, from a start and with weights that it is given.

    The start is what the graph begins with: the model's input, or what normalisation makes of it.
    """

    @property
    def graph(self) -> Graph: ...
    @property
    def start_shape(self) -> tuple[int, ...]: ...  # of one sample
    @property
    def channel_axis(self) -> int: ...
    def __call__(self, start: npt.NDArray[np.float32], weights: W, /) -> tuple[Array, Array]:
        """The q and c values of shape (live nodes, pairs)."""
        ...


def check(
    replay: Replay[W],
    solution: Solution,
    draws: Iterable[W],
    cosines: Sequence[float],
    pairs: int,
    tolerance: float,
) -> Check:
    """What `solution` predicts for a network, beside what is measured.

    Args:
        replay: The network, recorded for a batch of `batch_size(cosines, pairs)` samples.
        solution: The solution that shaped it.
        draws: Weights for `replay`, once for every seed.
        cosines: Those of the pairs of inputs.
        pairs: How many there are for each cosine.
        tolerance: What finite widths may add to a difference.
    """
    if not tolerance >= 0.0:
        raise ValueError(f"tolerance must be 0 or more, got {tolerance:g} (typically 0.05)")
    rng = np.random.default_rng(0)
    shape, axis = replay.start_shape, replay.channel_axis
    start = np.concatenate([pair_inputs(rng, shape, pairs, cosine, axis) for cosine in cosines])
    q, c = stack([replay(start, weights) for weights in draws])
    comparisons: list[Comparison] = []
    parts = (np.split(values, len(cosines), axis=2) for values in (q, c))
    for cosine, q_part, c_part in zip(cosines, *parts, strict=True):
        points = predict(replay.graph, solution, Point(1.0, cosine))
        measured = Measurement.of(replay.graph, q_part, c_part)
        comparisons += compare(points, measured, tolerance, cosine)
    return Check(tuple(comparisons), tolerance, len(q), pairs)


def compare(
    predicted: Sequence[Point], measured: Measurement, tolerance: float, cosine: float
) -> tuple[Comparison, ...]:
    """Measured nodes beside the points predicted for all nodes of the same graph."""
    return tuple(Comparison(predicted[m.node], m, tolerance, cosine) for m in measured.nodes)


def batch_size(cosines: Sequence[float], pairs: int) -> int:
    """How many samples a check with these `cosines` and `pairs` takes."""
    if not cosines or pairs < 1:
        raise ValueError(
            "A check needs at least one cosine and one pair, got "
            f"cosines={tuple(cosines)}, pairs={pairs}"
        )
    return 2 * pairs * len(cosines)


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
) -> tuple[Array, Array]:
    """The q and c values of shape (live nodes, pairs), from those `seen` at recorded tensors.

    For nodes of `graph`, `tensors` has a recorded one and the factor by which it is larger.
    """
    found: dict[int, tuple[Array, Array]] = {}
    for index in sorted(graph.live):
        if index in tensors:
            tensor, scale = tensors[index]
            q, c = (np.asarray(values, np.float64) for values in seen[tensor])
            found[index] = (q / scale**2, c)
        else:  # a factor that the record applies together with what precedes it
            node = graph.nodes[index]
            assert isinstance(node, Sum)
            q, c = found[node.inputs[0]]
            found[index] = (q * node.weights[0] ** 2, c)
    return stack(list(found.values()))


def stack(samples: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """All q and all c values, with another axis in front: of draws, or of nodes."""
    if not samples:
        raise ValueError("seeds must name at least one seed, got none (typically seeds=10)")
    q, c = zip(*samples, strict=True)
    return np.stack(q), np.stack(c)


def seed_numbers(seeds: int | Iterable[int]) -> Iterable[int]:
    """The first `seeds` numbers, or the seeds themselves."""
    return range(seeds) if isinstance(seeds, int) else seeds


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

"""Predicted against measured: q and c at every node of a network, and whether the two agree.

Nothing here knows a framework: `skipless.torch.measure` takes the numbers from a real network.

The q and c values of pairs of samples, as a framework takes them from a network.

`agreement` makes estimates of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from .activations import Array
from .graph import Graph, Sum
from .network import Point
from .predict import predict
from .solution import Solution

TOLERANCE = 0.05  # the check of skipless.torch says why
STANDARD_ERRORS = 4.0  # what chance may add to the tolerance
_ROUNDING = 1e-5  # of a deep network in float32


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
        without a cosine, for one of its samples is zero, is nan and is left out.

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
        measured = [
            NodeMeasurement(
                node,
                type(graph.nodes[node]).__name__,
                graph.nodes[node].origin,
                Estimate.of(q[:, row]),
                Estimate.of(c[:, row]),
            )
            for row, node in enumerate(sorted(graph.live))
        ]
        return cls(tuple(measured), seeds=q.shape[0], pairs=q.shape[2])

    def __str__(self) -> str:
        head = f"Measured on {self.pairs} pairs, {_weights(self.seeds)}; ± one standard error"
        rows = [
            f"{m.node:5}  {m.kind:<10}  {_number(m.q):>17}  {_number(m.c):>17}  {m.origin}".rstrip()
            for m in self.nodes
        ]
        columns = f"{'node':>5}  {'':<10}  {'q':>17}  {'c':>17}"
        return "\n".join([head, columns.rstrip(), *abbreviated(rows)])


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
        """The difference in c, in standard errors; 0 where it is but rounding."""
        if abs(self.c_difference) < _ROUNDING:
            return 0.0
        return self.c_difference / max(self.measured.c.error, _ROUNDING)

    @property
    def error_ratio(self) -> float:
        """The difference over what is allowed, in q or c, whichever is larger; infinite if nan."""
        errors = (self.measured.q.error / self.predicted.q, self.measured.c.error)
        strains = [
            abs(difference) / (self.tolerance + STANDARD_ERRORS * _known(error) + _ROUNDING)
            for difference, error in zip(
                (self.q_difference, self.c_difference), errors, strict=True
            )
        ]
        return math.inf if any(map(math.isnan, strains)) else max(strains)

    @property
    def agrees(self) -> bool:
        """Whether q and c are within the tolerance and four standard errors."""
        return self.error_ratio <= 1.0

    def __str__(self) -> str:
        m, p = self.measured, self.predicted
        difference = round(self.c_difference, 4) + 0.0  # no -0.0000
        return (
            f"{m.node:5}  {m.kind:<10}  {p.q:8.4f}  {_number(m.q):>17}  {p.c:8.4f}  "
            f"{_number(m.c):>17}  {difference:+8.4f}  {self.c_deviation:+6.1f}  "
            f"{'' if self.agrees else '✗':1}  {m.origin}"
        ).rstrip()


_COLUMNS = (
    f"{'node':>5}  {'':<10}  {'q pred.':>8}  {'q measured':>17}  {'c pred.':>8}  "
    f"{'c measured':>17}  {'Δc':>8}  {'Δc/se':>6}"
)


@dataclass(frozen=True)
class Check:
    """Predicted against measured at every node, from every cosine that the inputs started with."""

    comparisons: tuple[Comparison, ...]
    tolerance: float
    seeds: int
    pairs: int

    @classmethod
    def of(
        cls,
        graph: Graph,
        solution: Solution,
        samples: tuple[Array, Array],
        cosines: Sequence[float],
        tolerance: float,
    ) -> Self:
        """From q and c values of shape (seeds, nodes, pairs), the pairs of each cosine in turn."""
        comparisons: list[Comparison] = []
        parts = (np.split(values, len(cosines), axis=2) for values in samples)
        for cosine, q, c in zip(cosines, *parts, strict=True):
            points = predict(graph, solution, Point(1.0, cosine))
            comparisons += compare(points, Measurement.of(graph, q, c), tolerance, cosine)
        seeds, _, pairs = samples[0].shape
        return cls(tuple(comparisons), tolerance, seeds, pairs // len(cosines))

    @property
    def agrees(self) -> bool:
        """Whether every node agrees: within `tolerance` + 4 standard errors, in c and relative q.

        The tolerance is for what finite widths add, the standard errors for chance.
        """
        return not self.disagreements

    @property
    def disagreements(self) -> tuple[Comparison, ...]:
        return tuple(row for row in self.comparisons if not row.agrees)

    @property
    def worst(self) -> Comparison:
        """The node that strains what is allowed most."""
        return max(self.comparisons, key=lambda row: row.error_ratio)

    @property
    def verdict(self) -> str:
        """Whether all nodes agree, which do not, and which is the worst."""
        wrong, all_ = self.disagreements, len(self.comparisons)
        allowed = f"{self.tolerance:g} + {STANDARD_ERRORS:g} standard errors"
        count = f"{all_} nodes agree within {allowed}"
        if wrong:
            count = (
                f"{len(wrong)} of {all_} nodes DISAGREE by more than {allowed}: {_listed(wrong)}"
            )
        m = self.worst.measured
        where = f", {m.origin}" if m.origin else ""
        return (
            f"{count}; worst is node {m.node} ({m.kind}{where}) with "
            f"Δc = {self.worst.c_difference:+.4f} and Δq/q = {self.worst.q_difference:+.4f}"
        )

    def __str__(self) -> str:
        lines = [f"{self.pairs} pairs, {_weights(self.seeds)}; ± one standard error"]
        for cosine in dict.fromkeys(row.cosine for row in self.comparisons):
            rows = [str(row) for row in self.comparisons if row.cosine == cosine]
            lines += ["", f"from inputs of c = {cosine:g}", _COLUMNS, *abbreviated(rows)]
        return "\n".join([*lines, "", self.verdict])


def demand_something_to_check(cosines: Sequence[float], pairs: int, tolerance: float) -> None:
    if not cosines or pairs < 1 or not tolerance >= 0.0:
        raise ValueError(
            f"cosines={tuple(cosines)}, pairs={pairs} and tolerance={tolerance:g} were asked for; "
            "a check takes at least one cosine, one pair, and a tolerance of 0 or more."
        )


def compare(
    predicted: Sequence[Point], measured: Measurement, tolerance: float, cosine: float
) -> tuple[Comparison, ...]:
    """Measured nodes beside the points predicted for all nodes of the same graph."""
    return tuple(Comparison(predicted[m.node], m, tolerance, cosine) for m in measured.nodes)


def abbreviated(rows: Sequence[str], first: int = 12, last: int = 8) -> Iterator[str]:
    """`rows`, or of a long list those at both ends."""
    shown = range(len(rows))
    if len(rows) > first + last + 1:
        shown = [*range(first), *range(len(rows) - last, len(rows))]
    yield rows[shown[0]]
    for before, index in pairwise(shown):
        if index != before + 1:
            yield f"    … {index - before - 1} more …"
        yield rows[index]


def _listed(rows: Sequence[Comparison], most: int = 12) -> str:
    """The numbers of the nodes, each once."""
    nodes = [str(node) for node in sorted({row.measured.node for row in rows})]
    rest = f" and {len(nodes) - most} more" if len(nodes) > most else ""
    return ", ".join(nodes[:most]) + rest


def _known(error: float) -> float:
    return 0.0 if math.isnan(error) else error


def _number(estimate: Estimate) -> str:
    return f"{round(estimate.mean, 4) + 0.0:.4f} ± {estimate.error:.4f}"


def _weights(seeds: int) -> str:
    return f"{seeds} draws of the weights" if seeds > 1 else "one draw of the weights"


T = TypeVar("T", bound=Hashable)  # a framework's own name for a tensor


def demand_batch_of_pairs(shape: tuple[int, ...]) -> None:
    """Refuse inputs of a shape in which samples 0 and 1, 2 and 3, … are no pairs."""
    if len(shape) < 2 or shape[0] < 2 or shape[0] % 2:
        raise ValueError(
            f"inputs of shape {shape} were given, but a batch of pairs has an even number of "
            "samples of one dimension or more. Use pair_inputs, or drop a sample."
        )


def demand_possible_pairs(cosine: float, channels: int, normalisation: str) -> None:
    """Refuse a cosine that no samples have, or none of so few channels."""
    if not -1.0 <= cosine <= 1.0:
        raise ValueError(f"A pair with a cosine of {cosine:g} was asked for; it is -1 to 1.")
    if channels < 2 and abs(cosine) < 1.0:
        raise ValueError(
            f"Pairs with a cosine of {cosine:g} were asked for, but two samples of {channels} "
            f"channel are alike or opposite. Use a cosine of 1 or -1, or {normalisation} to make "
            "two channels of one."
        )


def at_nodes(
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
            assert len(node.inputs) == 1
            q, c = found[node.inputs[0]]
            found[index] = (q * node.weights[0] ** 2, c)
    return stacked(list(found.values()))


def stacked(samples: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """All q and all c values, with another dimension in front: of draws, or of nodes."""
    if not samples:
        raise ValueError("No seed was given. Ask for one or more, such as seeds=10.")
    q, c = zip(*samples, strict=True)
    return np.stack(q), np.stack(c)

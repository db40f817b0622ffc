r"""Global maps of a network: one fold over its graph, and the maximum over its subnetworks.

A *subnetwork* of f (appendix B.1) lies between a node v, its input, and a node b, its output: it
consists of all nodes on paths from v to b, with b and without v, if they read only v and each
other, and other nodes read only b among them (and perhaps v). A residual branch is a subnetwork.
The blocks before it followed by the branch are not, for the shortcut reads a node inside ("a
residual branch … won't compose with any subnetwork to form a larger one", appendix B.2). Nodes that
do not lead to the output are ignored.

A graph is compiled into a straight-line program on one value, in which affine layers cost nothing
and an expression that occurs twice is evaluated once.

A product of independent factors has $c = c_a c_b$. So its slope at c = 1 is $s_a + s_b$ and its
curvature $k_a + k_b + 2 s_a s_b$: with products, slopes are no longer 1, and what is composed has

$$(C_2 \circ C_1)'(1) = s_2 s_1, \qquad (C_2 \circ C_1)''(1) = k_2 s_1^2 + s_2 k_1.$$

All these grow with c, s and k, so the best subnetwork that ends at a node is found as before. A
subnetwork that ends in a fixed function does not count: nothing that is solved for changes it, and
the gate that it mostly is may well be constant, which is harmless in a product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heapify, heappop, heappush
from operator import mul
from typing import Literal, TypeVar, assert_never, cast

import numpy as np
import numpy.typing as npt

from . import maps
from .activations import Activation
from .formulas import Array
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
from .measured import PartMap

Value = TypeVar("Value", float, Array)


def mean_of(weights: Sequence[float], values: Sequence[Value]) -> Value:
    # Without the clamp to the range of the terms, rounding carries c = 1 out of the domain of C.
    if isinstance(values[0], np.ndarray):
        stack = np.stack(cast(Sequence[Array], values))
        mean = np.tensordot(np.asarray(weights, float), stack, axes=1)
        return np.clip(mean, stack.min(axis=0), stack.max(axis=0))
    numbers = cast(Sequence[float], values)
    return min(max(sum(map(mul, weights, numbers)), min(numbers)), max(numbers))


@dataclass(frozen=True, eq=False)
class FunctionMap:
    """The C map of a fixed function, with its slope and curvature at c = 1."""

    c_map: Callable[[npt.ArrayLike], Array]
    slope: float
    curvature: float

    def __call__(self, c: Value) -> Value:
        found = self.c_map(c)
        return found if isinstance(c, np.ndarray) else float(found)  # pyright: ignore[reportReturnType]


@lru_cache(maxsize=256)
def function_map(function: Activation, q: float) -> FunctionMap:
    """The map of a fixed function of normal numbers of this `q`; one object for equal ones."""
    at_one = (float(each(function, 1.0, q)) for each in (maps.c_map_slope, maps.c_map_curvature))
    return FunctionMap(maps.tabulated_c_map(function, q), *at_one)


def _multiply(factors: Sequence[Value]) -> Value:
    product, *rest = factors
    for factor in rest:
        product = product * factor
    return product


# A program starts from value 0, which is x; its step k makes value k + 1 from earlier values.
_Step = (
    tuple[Literal["r"], int]  # r(value)
    | tuple[Literal["max"], int]  # max(x, value)
    | tuple[Literal["mean"], tuple[float, ...], tuple[int, ...]]
    | tuple[Literal["part"], PartMap | FunctionMap, int]  # what a part makes of a value
    | tuple[Literal["product"], tuple[int, ...]]
)


@dataclass(frozen=True, slots=True)
class Program:
    steps: tuple[_Step, ...]
    results: tuple[int, ...]


def evaluate(
    program: Program,
    r: Callable[[Value], Value],
    x: Value,
    part: Callable[[PartMap | FunctionMap, Value], Value] = lambda curve, c: curve(c),
    product: Callable[[Sequence[Value]], Value] = _multiply,
) -> Value:
    """The largest result of `program`; on an array, of a program with a single result."""
    values = [x]
    append = values.append  # in deep networks this loop is all that a solve does
    for step in program.steps:
        if step[0] == "r":
            append(r(values[step[1]]))
        elif step[0] == "max":
            value = values[step[1]]
            append(value if value > x else x)  # arrays have no such step
        elif step[0] == "part":
            append(part(step[1], values[step[2]]))
        elif step[0] == "mean":
            append(mean_of(step[1], [values[i] for i in step[2]]))
        else:
            append(product([values[i] for i in step[1]]))
    return max([values[i] for i in program.results])


@lru_cache(maxsize=64)
def fold_program(graph: Graph) -> Program:
    compiler = _Compiler(graph)
    values = compiler.compile(sorted(graph.live), {})
    return Program(tuple(compiler.numbers), (values[graph.output],))


@lru_cache(maxsize=64)
def maximum_program(graph: Graph) -> Program:
    """The best subnetwork ending at each node, from the best ending at its immediate dominator.

    Let d be the last node on every path to b. A subnetwork that ends at b starts at d or before it.
    If before, it is a subnetwork that ends at d followed by the nodes between d and b, and nothing
    else reads d. As r does not decrease, the best start is the largest value at d.

    If the network has several outputs, it is the best of all networks that end in one of them.
    """
    compiler, last = _Compiler(graph), graph.nodes[-1]
    networks = [graph]
    if isinstance(last, Concat) and last.outputs:
        networks = [Graph(graph.nodes[: end + 1]) for end in dict.fromkeys(last.inputs)]
    results = set[int]().union(*(_best_endings(network, compiler) for network in networks))
    return Program(tuple(compiler.numbers), tuple(sorted(results)) or (0,))


def _best_endings(graph: Graph, compiler: _Compiler) -> set[int]:
    """The values of the best subnetworks that end at each node."""
    starts = {0: 0}
    results: set[int] = set()
    for b in sorted(graph.live)[1:]:
        region = _region(graph, b)
        if region is None:
            continue
        d, inside = region
        start = starts[d] if d in starts and inside.issuperset(graph.readers[d]) else 0
        best = compiler.compile(sorted(inside), {d: start})[b]
        if not isinstance(graph.nodes[b], Fixed):
            results.add(best)
        starts[b] = compiler.at_least_x(best)
    return results


def _region(graph: Graph, b: int) -> tuple[int, set[int]] | None:
    """The immediate dominator of `b` and the nodes from it to `b`; None if any has other readers.

    Walks back from `b`, latest node first; when one node is left, all paths pass through it.
    """
    inside = {b}
    seen = set(inputs_of(graph.nodes[b]))
    frontier = [-i for i in seen]
    heapify(frontier)
    while len(frontier) > 1:
        node = -heappop(frontier)
        if not inside.issuperset(graph.readers[node]):
            return None
        inside.add(node)
        for i in inputs_of(graph.nodes[node]):
            if i not in seen:
                seen.add(i)
                heappush(frontier, -i)
    return -frontier[0], inside


class _Compiler:
    """Collects the steps of a program, each distinct one once (value numbering)."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes
        self.shares, self.qs = _shares(graph)
        self.numbers: dict[_Step, int] = {}
        self.known_at_least_x = {0}

    def number(self, step: _Step) -> int:
        return self.numbers.setdefault(step, len(self.numbers) + 1)

    def at_least_x(self, value: int) -> int:
        if value not in self.known_at_least_x:
            value = self.number(("max", value))
            self.known_at_least_x.add(value)
        return value

    def compile(self, nodes: Iterable[int], values: dict[int, int]) -> dict[int, int]:
        """Extend `values`, which holds the program's value at some nodes, to all of `nodes`."""
        for index in nodes:
            match node := self.nodes[index]:
                case Input():
                    values[index] = 0
                case Affine():
                    values[index] = values[node.input]
                case Nonlinearity():
                    values[index] = self.number(("r", values[node.input]))
                case Measured(i, curve):
                    values[index] = self.number(("part", replace(curve, gain=1.0), values[i]))
                case Sum() | Concat():
                    values[index] = self.mean(self.shares[index], [values[i] for i in node.inputs])
                case Product(inputs):
                    values[index] = self.number(("product", tuple(values[i] for i in inputs)))
                case Fixed(i):
                    curve = function_map(node.function, self.qs[i])
                    values[index] = self.number(("part", curve, values[i]))
                case _:
                    assert_never(node)
        return values

    def mean(self, shares: Sequence[float], values: Sequence[int]) -> int:
        total: dict[int, float] = {}
        for share, value in zip(shares, values, strict=True):
            if share:
                total[value] = total.get(value, 0.0) + share
        if len(total) == 1:
            return next(iter(total))
        return self.number(("mean", tuple(total.values()), tuple(total)))


def _shares(graph: Graph) -> tuple[dict[int, list[float]], dict[int, float]]:
    """The share of its q value that each sum and concatenation gets from each input.

    With it, the q values that fixed functions read. All are those for Q(q) = q. Unnormalised sums
    double q at every block, so q is kept as mantissa and exponent: a thousand blocks would overflow
    a float.
    """
    shares: dict[int, list[float]] = {}
    read: dict[int, float] = {}
    qs: list[tuple[float, int]] = []
    for index, node in enumerate(graph.nodes):
        match node:
            case Input():
                qs.append((1.0, 0))
                continue
            case Affine() | Nonlinearity():
                qs.append(qs[node.input])
                continue
            case Measured(i, curve):
                qs.append(_scale(curve.gain, qs[i]))
                continue
            case Fixed(i):
                mantissa, exponent = qs[i]
                read[i] = math.ldexp(mantissa, min(exponent, 1000))
                qs.append((maps.q_map(node.function, read[i]), 0))
                continue
            case Product(inputs):
                total = (1.0, 0)
                for i in inputs:
                    mantissa, exponent = _scale(total[0], qs[i])
                    total = _scale(mantissa, (1.0, exponent + total[1]))
                qs.append(total)
                continue
            case Sum(inputs, weights):
                parts = [_scale(w, _scale(w, qs[i])) for w, i in zip(weights, inputs, strict=True)]
            case Concat(inputs, widths):
                channels = sum(widths)
                parts = [_scale(n / channels, qs[i]) for n, i in zip(widths, inputs, strict=True)]
            case _:
                assert_never(node)
        top = max(exponent for mantissa, exponent in parts if mantissa)
        terms = [math.ldexp(mantissa, exponent - top) for mantissa, exponent in parts]
        total = sum(terms)
        shares[index] = [term / total for term in terms]
        qs.append(_scale(total, (1.0, top)))
    return shares, read


def _scale(factor: float, number: tuple[float, int]) -> tuple[float, int]:
    mantissa, exponent = math.frexp(factor)
    return mantissa * number[0], exponent + number[1]


ScalarMap = Callable[[float], float]


def fold(
    graph: Graph,
    r: Callable[[Value], Value],
    x: Value,
    part: Callable[[PartMap | FunctionMap, Value], Value] = lambda curve, c: curve(c),
    product: Callable[[Sequence[Value]], Value] = _multiply,
) -> Value:
    r"""Carries `x` from input to output with `r` at every activation: U_{f,r}(x), appendix B.4.

    Affine layers pass their input on. Sums and concatenations average their inputs with weights
    `w_i² q_i / Σ w_j² q_j` and `width_i q_i / Σ width_j q_j`, where the q values are those for
    Q(q) = q; for normalised sums these are the paper's `w_i²`. Products multiply.

    One fold, three readings:

    | reading              | `x` | `r`               |                     |
    |----------------------|-----|-------------------|---------------------|
    | value `C_f(c)`       | `c` | `C`               |                     |
    | slope `C_f'(1)`      | `1` | `s -> C'(1) * s`  |                     |
    | curvature `C_f''(1)` | `0` | `k -> C''(1) + k` | where `C'(1) = 1`   |

    `part` says what measured parts and fixed functions make of a value, and `product` what products
    do; by default, it is a c value. `x` may also be an array, if `r` takes arrays. The curvature of
    ten blocks is `L (1 - w²) C''(1)` with L = 30 activations (appendix B.5):

    >>> round(fold(Graph.residual(10, shortcut_weight=0.8), lambda k: 1.0 + k, 0.0), 12)
    10.8
    """
    return evaluate(fold_program(graph), r, x, part, product)


def maximum(
    graph: Graph,
    r: ScalarMap,
    x: float,
    part: Callable[[PartMap | FunctionMap, float], float] = lambda curve, c: curve(c),
    product: Callable[[Sequence[float]], float] = math.prod,
) -> float:
    r"""Largest U_{g,r}(x) over all subnetworks g of `graph`, for a non-decreasing `r`.

    $$M_{f,r}(x) = \max_{g \subseteq f} U_{g,r}(x)$$

    of appendix B.2, with subnetworks as defined at the top of this module. Unlike the proof there,
    it does not need `r(x) >= x`. The cost is about one call of `r` per activation; blocks nested k
    deep multiply it by up to k.

    In a nearly linear residual network the maximum is a branch, of three activations:

    >>> maximum(Graph.residual(10, shortcut_weight=0.99), lambda k: 1.0 + k, 0.0)
    3.0
    """
    return evaluate(maximum_program(graph), r, x, part, product)


def max_c_value(graph: Graph, c_map: ScalarMap) -> float:
    """Maximal c value μ⁰ = M_{f,C}(0) of appendix B.1, for a C map that does not decrease.

    >>> max_c_value(Graph.chain(3), lambda c: (1.0 + c) / 2.0)
    0.875
    """
    return maximum(graph, c_map, 0.0)


def max_slope(graph: Graph, slope: float) -> float:
    """Maximal slope μ¹ of appendix B.1, where every activation has C'(1) = `slope` >= 0.

    >>> max_slope(Graph.chain(3), 2.0)
    8.0

    The slopes of the factors of a product add up:

    >>> max_slope(Graph([Input(), Affine(0), Affine(0), Product((1, 2))]), 2.0)
    2.0
    """
    return maximum(graph, lambda s: slope * s, 1.0, lambda curve, s: curve.slope * s, sum)


def max_curvature(graph: Graph, curvature: float) -> float:
    """Maximal curvature μ² of appendix B.1, where C'(1) = 1 and C''(1) = `curvature`.

    A part of slope s and curvature κ makes κ t² + s k of the slope t and the curvature k before it.
    With slopes below 1 it is an upper bound: the start that is best for the slope then need not be
    best for the curvature.

    >>> max_curvature(Graph.chain(4), 0.25)
    1.0
    """
    program = maximum_program(graph)
    if any(step[0] in ("product", "part") for step in program.steps):
        found = _curvatures(program, curvature)
        return max([found[i] for i in program.results])
    return evaluate(program, lambda k: curvature + k, 0.0)


def _curvatures(program: Program, curvature: float) -> list[float]:
    """The curvatures of `program`, in which slopes need not be 1."""
    slopes, found = [1.0], [0.0]
    for step in program.steps:
        match step:
            case ("r", i):
                s, k = slopes[i], curvature * slopes[i] ** 2 + found[i]
            case ("max", i):
                s, k = max(slopes[i], 1.0), max(found[i], 0.0)
            case ("mean", shares, read):
                s, k = (mean_of(shares, [each[i] for i in read]) for each in (slopes, found))
            case ("product", read):
                s = sum(slopes[i] for i in read)
                k = sum(found[i] - slopes[i] ** 2 for i in read) + s**2
            case ("part", curve, i):
                s, k = curve.slope * slopes[i], curve.curvature * slopes[i] ** 2
                k += curve.slope * found[i]
        slopes.append(s)
        found.append(k)
    return found


Basis = Literal["derived", "approximate", "measured"]


@dataclass(frozen=True, slots=True)
class Point:
    """The q value of either input, and the c value of the pair, at one node.

    `basis` says how what the node does is known.
    """

    q: float
    c: float
    basis: Basis = field(default="derived", repr=False, compare=False, kw_only=True)


ORTHOGONAL = Point(q=1.0, c=0.0)


@dataclass(frozen=True, slots=True)
class Size:
    """How many channels a node has, and, of a layer, how many numbers each of them reads.

    In `groups`, the numbers that one group reads are read by no other.
    """

    channels: int
    fan_in: int = 1
    groups: int = 1


def propagate(
    graph: Graph,
    q_map: ScalarMap,
    c_map: Callable[[float, float], float],
    start: Point = ORTHOGONAL,
    sigma_w: float = 1.0,
    sigma_b: float = 0.0,
    rules: Mapping[int, Callable[[Sequence[Point]], Point]] | None = None,
) -> tuple[Point, ...]:
    r"""The q and c value at every node, for two inputs of equal q (section 2.3).

    | node         | q                   | c                                       |
    |--------------|---------------------|-----------------------------------------|
    | Affine       | `σ_w² q + σ_b²`     | `(σ_w² q c + σ_b²) / (σ_w² q + σ_b²)`   |
    | Nonlinearity | `q_map(q)`          | `c_map(c, q)`                           |
    | Measured     | gain · q^degree     | its curve at c                          |
    | Sum          | `Σ w_i² q_i`        | `Σ w_i² q_i c_i / Σ w_i² q_i`           |
    | Concat       | `Σ n_i q_i / Σ n_i` | `Σ n_i q_i c_i / Σ n_i q_i`             |
    | Product      | `Π q_i`             | `Π c_i`                                 |

    where the `n_i` are widths. A `Fixed` function has its own maps.

    Args:
        graph: the network.
        q_map: Q of the activation.
        c_map: C of the activation, of c and q.
        start: the point at the input.
        sigma_w: the weights have standard deviation `sigma_w` / √fan-in.
        sigma_b: standard deviation of the biases.
        rules: for nodes to which the table does not apply, their point from all earlier points.

    >>> g = Graph.chain(1)
    >>> propagate(g, q_map=lambda q: q / 2, c_map=lambda c, q: c, start=Point(1.0, 0.5))[-1]
    Point(q=0.5, c=0.5)
    """
    points: list[Point] = []
    for index, node in enumerate(graph.nodes):
        match node:
            case _ if rules and index in rules:
                point = rules[index](points)
            case Input():
                point = start
            case Affine(i):
                q = sigma_w**2 * points[i].q
                point = _mixture([q, sigma_b**2], [points[i].c, 1.0])
            case Nonlinearity(i):
                q = q_map(points[i].q)
                point = Point(q, c_map(points[i].c, points[i].q) if q else math.nan)
            case Measured(i, curve):
                point = Point(*curve.kernel(points[i].q, points[i].c))
            case Sum(inputs, weights):
                parts = [w * w * points[i].q for w, i in zip(weights, inputs, strict=True)]
                point = _mixture(parts, [points[i].c for i in inputs])
            case Concat(inputs, widths):
                channels = sum(widths)
                parts = [n / channels * points[i].q for n, i in zip(widths, inputs, strict=True)]
                point = _mixture(parts, [points[i].c for i in inputs])
            case Product(inputs):
                read = [points[i] for i in inputs]
                point = Point(math.prod(p.q for p in read), math.prod(p.c for p in read))
            case Fixed(i):
                at, function = points[i], node.function
                q = maps.q_map(function, at.q)
                point = Point(q, float(maps.c_map(function, at.c, at.q)))
            case _:
                assert_never(node)
        if not 0.0 < point.q < math.inf:
            raise ValueError(
                f"q must be in (0, inf), got q = {point.q:g} at node {index} "
                f"({type(node).__name__}{', ' if node.origin else ''}{node.origin}). "
                "Scale φ so that Q(1) = 1, and normalise the sums."
            )
        points.append(point)
    return tuple(points)


def _mixture(parts: Sequence[float], cs: Sequence[float]) -> Point:
    """The point of a sum of uncorrelated terms whose q values are `parts`."""
    q = sum(parts)
    return Point(q, mean_of([part / q for part in parts], cs) if q else math.nan)

"""A graph compiled into a straight-line program on one value, in which affine layers cost nothing.

An expression that occurs twice is evaluated once. `network` says what the programs mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from operator import mul
from typing import Literal, TypeVar, assert_never, cast

import numpy as np

from .formulas import Array
from .graph import Activation, Affine, Concat, Graph, Input, Sum, inputs_of

Value = TypeVar("Value", float, Array)


def mean_of(weights: Sequence[float], values: Sequence[Value]) -> Value:
    # A mean lies among its terms; without the clamp, rounding carries c = 1 beyond the domain of C.
    if isinstance(values[0], np.ndarray):
        stack = np.stack(cast(Sequence[Array], values))
        mean = np.tensordot(np.asarray(weights, float), stack, axes=1)
        return np.clip(mean, stack.min(axis=0), stack.max(axis=0))
    numbers = cast(Sequence[float], values)
    return min(max(sum(map(mul, weights, numbers)), min(numbers)), max(numbers))


# A program starts from value 0, which is x; its step k makes value k + 1 from earlier values.
_Step = (
    tuple[Literal["r"], int]  # r(value)
    | tuple[Literal["max"], int]  # max(x, value)
    | tuple[Literal["mean"], tuple[float, ...], tuple[int, ...]]
)


@dataclass(frozen=True, slots=True)
class Program:
    steps: tuple[_Step, ...]
    results: tuple[int, ...]


def evaluate(program: Program, r: Callable[[Value], Value], x: Value) -> Value:
    """The largest result of `program`; on an array, of a program with a single result."""
    values = [x]
    append = values.append
    for step in program.steps:
        if step[0] == "r":
            append(r(values[step[1]]))
        elif step[0] == "max":
            value = values[step[1]]
            append(value if value > x else x)  # never met on an array
        else:
            append(mean_of(step[1], [values[i] for i in step[2]]))
    return max([values[i] for i in program.results])


@lru_cache(maxsize=64)
def fold_program(graph: Graph) -> Program:
    compiler = _Compiler(graph)
    values = compiler.trace(sorted(graph.live), {})
    return Program(tuple(compiler.numbers), (values[graph.output],))


@lru_cache(maxsize=64)
def maximum_program(graph: Graph) -> Program:
    """Best subnetwork ending at each node, from the best ending at its immediate dominator.

    Let d be the last node that every path to b passes. A subnetwork that ends at b starts at d,
    or before it; then it is one that ends at d, followed by what lies between d and b, and nothing
    else reads d. As r does not decrease, the best start is the largest value at d.
    """
    live = sorted(graph.live)
    readers: dict[int, set[int]] = {index: set() for index in live}
    for index in live:
        for i in inputs_of(graph.nodes[index]):
            readers[i].add(index)
    compiler = _Compiler(graph)
    starts = {0: 0}
    results: set[int] = set()
    for b in live[1:]:
        region = _region(graph, readers, b)
        if region is None:
            continue
        d, inside = region
        start = starts[d] if d in starts and readers[d] <= inside else 0
        best = compiler.trace(sorted(inside), {d: start})[b]
        results.add(best)
        starts[b] = compiler.at_least_x(best)
    return Program(tuple(compiler.numbers), tuple(sorted(results)) or (0,))


def _region(graph: Graph, readers: Mapping[int, set[int]], b: int) -> tuple[int, set[int]] | None:
    """Immediate dominator of `b` and the nodes behind it up to `b`; None if any has other readers.

    Walks back from `b`, latest node first; when a single node is left, all paths pass through it.
    """
    inside = {b}
    seen = set(inputs_of(graph.nodes[b]))
    frontier = [-i for i in seen]
    heapify(frontier)
    while len(frontier) > 1:
        node = -heappop(frontier)
        if not readers[node] <= inside:
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
        self.shares = _shares(graph)
        self.numbers: dict[_Step, int] = {}
        self.raised = {0}  # the values that are at least x

    def number(self, step: _Step) -> int:
        return self.numbers.setdefault(step, len(self.numbers) + 1)

    def at_least_x(self, value: int) -> int:
        if value not in self.raised:
            value = self.number(("max", value))
            self.raised.add(value)
        return value

    def trace(self, nodes: Iterable[int], values: dict[int, int]) -> dict[int, int]:
        """Extend `values`, which holds the program's value at some nodes, to all of `nodes`."""
        for index in nodes:
            match node := self.nodes[index]:
                case Input():
                    values[index] = 0
                case Affine():
                    values[index] = values[node.input]
                case Activation():
                    values[index] = self.number(("r", values[node.input]))
                case Sum() | Concat():
                    values[index] = self.mean(self.shares[index], [values[i] for i in node.inputs])
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


def _shares(graph: Graph) -> dict[int, list[float]]:
    """The part of its q value that each sum and concatenation has from each input.

    The q values are those under Q(q) = q. Unnormalised sums double q at every block, so they are
    kept as mantissa and exponent: a thousand blocks would overflow a float.
    """
    shares: dict[int, list[float]] = {}
    qs: list[tuple[float, int]] = []
    for index, node in enumerate(graph.nodes):
        match node:
            case Input():
                qs.append((1.0, 0))
                continue
            case Affine() | Activation():
                qs.append(qs[node.input])
                continue
            case Sum(inputs, weights):
                parts = [
                    _scaled(w, _scaled(w, qs[i])) for w, i in zip(weights, inputs, strict=True)
                ]
            case Concat(inputs, widths):
                channels = sum(widths)
                parts = [_scaled(n / channels, qs[i]) for n, i in zip(widths, inputs, strict=True)]
            case _:
                assert_never(node)
        top = max(exponent for mantissa, exponent in parts if mantissa)
        terms = [math.ldexp(mantissa, exponent - top) for mantissa, exponent in parts]
        total = sum(terms)
        shares[index] = [term / total for term in terms]
        qs.append(_scaled(total, (1.0, top)))
    return shares


def _scaled(factor: float, number: tuple[float, int]) -> tuple[float, int]:
    mantissa, exponent = math.frexp(factor)
    return mantissa * number[0], exponent + number[1]

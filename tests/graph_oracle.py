"""Fold and subnetworks by brute force, from the definitions; and small random graphs to try."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain, combinations

import numpy as np
from hypothesis import strategies as st

from skipless.core.graph import (
    Affine,
    Concat,
    Fixed,
    Graph,
    GraphBuilder,
    Input,
    Measured,
    Nonlinearity,
    Product,
    Sum,
    inputs_of,
)
from skipless.core.maps import c_map

Function = Callable[[float], float]
Subnetwork = tuple[int, int]  # the node that it reads, the node that it ends with


def layers(graph: Graph) -> frozenset[int]:
    """All nodes but the input that the output depends on."""
    found: frozenset[int] = frozenset()
    ahead = {len(graph.nodes) - 1}
    while ahead:
        found |= ahead
        ahead = set(chain.from_iterable(inputs_of(graph.nodes[i]) for i in ahead))
    return found - {0}


def subnetworks(graph: Graph) -> Iterator[Subnetwork]:
    """Every subset of the layers that is a network with a single input and a single output.

    Of all that a subset reads, one node lies outside it; of all its members, one is read outside
    it or is the output of the whole network.
    """
    network = layers(graph)
    read = {i: inputs_of(graph.nodes[i]) for i in network}
    output = len(graph.nodes) - 1
    for size in range(1, len(network) + 1):
        for members in map(frozenset, combinations(sorted(network), size)):
            entries = frozenset(chain.from_iterable(read[i] for i in members)) - members
            outside = chain.from_iterable(read[i] for i in network - members)
            exits = (frozenset(outside) | {output}) & members
            if len(entries) == len(exits) == 1:
                yield next(iter(entries)), next(iter(exits))


def q_value(graph: Graph, index: int) -> Fraction:
    """The q value of a node where Q(q) = q and the input has q = 1."""
    match node := graph.nodes[index]:
        case Input():
            return Fraction(1)
        case Affine() | Nonlinearity():
            return q_value(graph, node.input)
        case Sum() | Concat():
            parts = q_parts(graph, node)
            channels = 1 if isinstance(node, Sum) else sum(map(Fraction, node.widths))
            return sum(parts, Fraction(0)) / channels
        case Product():
            return math.prod((q_value(graph, i) for i in node.inputs), start=Fraction(1))
        case Fixed():
            raise AssertionError("the q value of a fixed function is not rational")
        case Measured():
            raise AssertionError("measured parts have tests of their own")


def q_parts(graph: Graph, node: Sum | Concat) -> list[Fraction]:
    factors = (
        [Fraction(w) ** 2 for w in node.weights]
        if isinstance(node, Sum)
        else [Fraction(width) for width in node.widths]
    )
    return [factor * q_value(graph, i) for factor, i in zip(factors, node.inputs, strict=True)]


def value(graph: Graph, subnetwork: Subnetwork, r: Function, x: float) -> float:
    """U_{g,r}(x), by recursion from the subnetwork's last node (appendix B.4)."""
    start, index = subnetwork
    if index == start:
        return x
    match node := graph.nodes[index]:
        case Input():
            raise AssertionError("a subnetwork reads its input only")
        case Affine():
            return value(graph, (start, node.input), r, x)
        case Nonlinearity():
            return r(value(graph, (start, node.input), r, x))
        case Sum() | Concat():
            parts = q_parts(graph, node)
            terms = [value(graph, (start, i), r, x) for i in node.inputs]
            return math.fsum(
                float(part / sum(parts)) * term for part, term in zip(parts, terms, strict=True)
            )
        case Product():
            return math.prod(value(graph, (start, i), r, x) for i in node.inputs)
        case Fixed():
            return float(c_map(node.function, value(graph, (start, node.input), r, x)))
        case Measured():
            raise AssertionError("measured parts have tests of their own")


def series(graph: Graph, subnetwork: Subnetwork, curvature: float) -> tuple[float, ...]:
    """C_g(1), C_g'(1) and C_g''(1)/2 of a subnetwork, by arithmetic with truncated power series."""
    start, index = subnetwork
    if index == start:
        return (1.0, 1.0, 0.0)
    node = graph.nodes[index]
    terms = [series(graph, (start, i), curvature) for i in inputs_of(node)]
    match node:
        case Affine():
            return terms[0]
        case Nonlinearity():
            _, s, k = terms[0]  # C(c) = c + ½ κ (c - 1)²
            return (1.0, s, k + 0.5 * curvature * s * s)
        case Product():
            total = np.ones(1)
            for term in terms:
                total = np.convolve(total, term)[:3]
            return tuple(total.tolist())
        case Sum() | Concat():
            parts = q_parts(graph, node)
            shares = [float(part / sum(parts)) for part in parts]
            return tuple(np.average(terms, axis=0, weights=shares).tolist())
        case _:
            raise AssertionError("only what has a power series here")


WEIGHTS = st.sampled_from([-2.0, -1.0, -0.6, 0.0, 0.3, 0.8, 1.0])
WIDTHS = st.sampled_from([1.0, 2.0, 5.0])


@st.composite
def merges(draw: st.DrawFn, inputs: list[int]) -> Sum | Concat:
    count = len(inputs)
    if draw(st.booleans()):
        weights = draw(st.lists(WEIGHTS, min_size=count, max_size=count).filter(any))
        return Sum(tuple(inputs), tuple(weights))
    widths = draw(st.just([]) | st.lists(WIDTHS, min_size=count, max_size=count))
    return Concat(tuple(inputs), tuple(widths))


@st.composite
def tangled_graphs(draw: st.DrawFn, *, products: bool = False) -> Graph:
    """Nodes that read any earlier nodes, some twice; nodes that nothing reads."""
    builder = GraphBuilder()
    builder.input()
    kinds = ["activation", "merge", "affine", *(["product"] * products)]
    for size in range(1, draw(st.integers(1, 8)) + 1):
        earlier = st.integers(max(0, size - 4), size - 1)
        match draw(st.sampled_from(kinds)):
            case "product":
                builder.product(draw(st.lists(earlier, min_size=1, max_size=3)))
            case "affine":
                builder.affine(draw(earlier))
            case "activation":
                builder.activation(draw(earlier))
            case _:
                inputs = draw(st.lists(earlier, min_size=1, max_size=3))
                builder.add(draw(merges(inputs)))
    if draw(st.booleans()):
        last = len(builder.nodes)
        read = chain.from_iterable(inputs_of(node) for node in builder.nodes)
        builder.add(draw(merges(sorted(set(range(last)) - set(read)))))
    return builder.build()


@st.composite
def nested_graphs(draw: st.DrawFn) -> Graph:
    """Residual blocks behind and inside one another."""
    builder = GraphBuilder()

    def block(x: int, nesting: int) -> int:
        for _ in range(draw(st.integers(1, 2))):
            if nesting and len(builder.nodes) < 9 and draw(st.booleans()):
                ends = [block(x, nesting - 1) for _ in range(draw(st.integers(1, 2)))]
                x = builder.add(draw(merges([x, *ends])))
            else:
                x = builder.activation(x) if draw(st.booleans()) else builder.affine(x)
        return x

    x = builder.input()
    while len(builder.nodes) < 6:
        x = block(x, nesting=2)
    return builder.build()


def graphs() -> st.SearchStrategy[Graph]:
    """Small graphs: with sums and concatenations, dead ends, repeated inputs, nested blocks."""
    return tangled_graphs() | nested_graphs()

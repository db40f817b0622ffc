"""Residual networks brought into the form for which the theory holds (section 2.4).

Sums are normalised. A sum of sums, x + f(x) + g(x), is one sum of three terms, unless something
else reads the inner one. And where a shortcut starts behind an activation and ends before the next
one, it is made to start before the first: what an activation reads must be a sum of many weighted
numbers to be normally distributed, as its maps assume.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from numbers import Real

from .graph import Affine, Graph, GraphError, Nonlinearity, Sum, inputs_of

Weights = dict[int, tuple[float, ...]]  # of every sum of a graph, by its index


def normalise_sums(graph: Graph, shortcut_weight: float | None = None) -> Graph:
    r"""`graph` with normalised sums; see `normalised_weights`. Nodes keep their indices.

    Residual blocks as most people write them become the paper's:

    >>> from .graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> x = g.affine(g.input())
    >>> y = g.affine(g.activation(x))
    >>> block = g.sum([x, y])
    >>> normalise_sums(g.build(), 0.8) == Graph.residual(1, branch_depth=1, shortcut_weight=0.8)
    True
    """
    return reweight(graph, normalised_weights(graph, shortcut_weight))


def normalised_weights(graph: Graph, shortcut_weight: float | None = None) -> Weights:
    r"""Weights for every sum, with squares that add up to 1.

    Without a `shortcut_weight`, terms keep their proportions. With one, each sum with a shortcut
    becomes

    $$w\,x + \sqrt{1-w^2}\,\mathcal R(x)$$

    A shortcut is a term that another one is computed from; or, where there is none, the one with
    the fewest activations behind it (or, if these are equal, layers), such as a projection. Several
    shortcuts, and several branches, share their weight in their proportions.
    """
    _require_weight(shortcut_weight)
    inner = _inner_sums(graph)
    leaves: dict[int, list[tuple[int, float]]] = {}  # the terms of a sum, seen through inner sums
    parts: dict[int, dict[int, float]] = {}  # how much of independent nodes a sum has in it
    found: Weights = {}
    for index, node in enumerate(graph.nodes):
        if not isinstance(node, Sum):
            parts[index] = {index: 1.0}
            continue
        leaves[index] = [
            (leaf, weight * factor)
            for i, weight in zip(node.inputs, node.weights, strict=True)
            for leaf, factor in (leaves[i] if i in inner else [(i, 1.0)])
        ]
        if index not in inner:
            wanted = _wanted(graph, leaves[index], shortcut_weight)
            terms = zip((parts[leaf] for leaf, _ in leaves[index]), wanted, strict=True)
            parts[index] = combine(terms)
            # Terms that have a part in common, as x + (x + R(x)), do not add up like others.
            norm = math.hypot(*parts[index].values()) or 1.0
            parts[index] = {source: part / norm for source, part in parts[index].items()}
            _distribute(graph, index, [w / norm for w in wanted], inner, leaves, found)
    return found


def combine(terms: Iterable[tuple[Mapping[int, float], float]]) -> dict[int, float]:
    """The sum of weighted combinations of nodes, as one combination.

    >>> combine([({0: 1.0, 1: 2.0}, 3.0), ({1: 1.0}, 0.5)])
    {0: 3.0, 1: 6.5}
    """
    total: dict[int, float] = {}
    for parts, weight in terms:
        for source, part in parts.items():
            total[source] = total.get(source, 0.0) + weight * part
    return total


def to_residual_form(graph: Graph) -> Graph:
    r"""`graph` with shortcuts that start before an activation, if they end before another one.

    Blocks $x^{l+1} = \phi(x^l + \mathcal R(x^l))$ become $u^{l+1} = u^l + \mathcal R(\phi(u^l))$,
    the blocks of the paper (eq. 6), with $x^l = \phi(u^l)$. Every activation is still read.

    >>> from .graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> x = g.activation(g.affine(g.input()))
    >>> y = g.activation(g.sum([g.affine(x), x]))
    >>> inputs_of(to_residual_form(g.build()).nodes[-2])
    (3, 1)
    """
    readers, activated = _readers(graph), _activated(graph)
    nodes = list(graph.nodes)
    for index, node in enumerate(graph.nodes):
        if isinstance(node, Sum) and index in activated:
            inputs = tuple(_before_activation(graph, readers, i) for i in node.inputs)
            nodes[index] = replace(node, inputs=inputs)
    return Graph(nodes)


def _before_activation(graph: Graph, readers: Mapping[int, Sequence[int]], term: int) -> int:
    """What the activation at `term`, perhaps times a factor, reads, if others read it too."""
    index, shared = term, len(set(readers[term])) > 1
    node = graph.nodes[index]
    while isinstance(node, Sum) and len(node.inputs) == 1 and node.weights[0] > 0.0:
        index = node.inputs[0]
        node, shared = graph.nodes[index], shared or len(set(readers[index])) > 1
    return node.input if isinstance(node, Nonlinearity) and shared else term


def _activated(graph: Graph) -> set[int]:
    """The nodes that an activation reads, directly or through sums and concatenations."""
    found: set[int] = set()
    for index in range(graph.output, 0, -1):
        node = graph.nodes[index]
        if isinstance(node, Nonlinearity) or (index in found and not isinstance(node, Affine)):
            found.update(inputs_of(node))
    return found


def reweight(graph: Graph, weights: Mapping[int, Sequence[float]]) -> Graph:
    """`graph` with other weights in its sums; terms of weight zero are gone."""
    nodes = list(graph.nodes)
    for index, new in weights.items():
        node = nodes[index]
        assert isinstance(node, Sum)
        kept = [(i, w) for i, w in zip(node.inputs, new, strict=True) if w]
        # A sum of which nothing is left is read by no one.
        kept = kept or [(node.inputs[0], 1.0)]
        nodes[index] = replace(
            node, inputs=tuple(i for i, _ in kept), weights=tuple(w for _, w in kept)
        )
    return Graph(nodes)


def _require_weight(weight: object) -> None:
    if weight is None:
        return
    if not isinstance(weight, Real):
        raise TypeError(f"a shortcut_weight is a number; found {weight!r}. Ask for 0.8, say.")
    if not 0.0 <= float(weight) < 1.0:
        raise GraphError(
            f"a shortcut_weight of {weight} was asked for, but w x + sqrt(1 - w^2) R(x) needs "
            "0 <= w < 1. Take 0 to remove the shortcuts, or 0.8, say, to keep them."
        )


def _readers(graph: Graph) -> dict[int, list[int]]:
    readers: dict[int, list[int]] = {}
    for index in sorted(graph.live):
        for i in inputs_of(graph.nodes[index]):
            readers.setdefault(i, []).append(index)
    return readers


def _inner_sums(graph: Graph) -> set[int]:
    """The sums that another sum reads once, and nothing else does."""
    readers = _readers(graph)
    return {
        index
        for index, node in enumerate(graph.nodes)
        if isinstance(node, Sum)
        and len(readers.get(index, [])) == 1
        and isinstance(graph.nodes[readers[index][0]], Sum)
    }


@lru_cache(maxsize=4)
def _depths(graph: Graph) -> list[tuple[int, int]]:
    """The most activations, and the most affine layers, between the input and each node."""
    depths: list[tuple[int, int]] = []
    for node in graph.nodes:
        before = [depths[i] for i in inputs_of(node)]
        activations = max((a for a, _ in before), default=0)
        layers = max((b for _, b in before), default=0)
        depths.append(
            (activations + isinstance(node, Nonlinearity), layers + isinstance(node, Affine))
        )
    return depths


@lru_cache(maxsize=4)
def ancestors(graph: Graph) -> list[int]:
    """The nodes that each one is computed from, itself included, as bits of a number."""
    before: list[int] = []
    for index, node in enumerate(graph.nodes):
        own = 1 << index
        for i in inputs_of(node):
            own |= before[i]
        before.append(own)
    return before


def _wanted(
    graph: Graph, leaves: Sequence[tuple[int, float]], shortcut_weight: float | None
) -> list[float]:
    """Weights for the terms of a sum; a term that occurs again has all its weight at the first."""
    total = combine(({leaf: 1.0}, weight) for leaf, weight in leaves)
    once = [total.pop(leaf, 0.0) for leaf, _ in leaves]
    nodes = [leaf for (leaf, _), weight in zip(leaves, once, strict=True) if weight]
    shortcuts = _shortcuts(graph, nodes)
    if shortcut_weight is None or not shortcuts:
        return _unit(once)
    short = [leaf in shortcuts for leaf, _ in leaves]
    bypass = _unit([w if s else 0.0 for w, s in zip(once, short, strict=True)])
    branch = _unit([0.0 if s else w for w, s in zip(once, short, strict=True)])
    rest = math.sqrt(1.0 - shortcut_weight**2)
    return [shortcut_weight * a + rest * b for a, b in zip(bypass, branch, strict=True)]


def _shortcuts(graph: Graph, terms: Sequence[int]) -> set[int]:
    """The terms that others are computed from; else the one with the least behind it, if any."""
    before = ancestors(graph)
    found = {a for a in terms for b in terms if a != b and before[b] >> a & 1}
    if found or len(terms) < 2:
        return found
    depths = [_depths(graph)[term] for term in terms]
    return set() if depths.count(min(depths)) > 1 else {terms[depths.index(min(depths))]}


def _unit(weights: Sequence[float]) -> list[float]:
    norm = math.hypot(*weights)
    return [w / norm for w in weights] if norm else list(weights)


def _distribute(
    graph: Graph,
    index: int,
    wanted: Sequence[float],
    inner: set[int],
    leaves: Mapping[int, Sequence[object]],
    found: Weights,
) -> None:
    """Give the sum at `index`, and those inside, the weights that make `wanted` of its leaves."""
    todo = [(index, list(wanted))]
    while todo:
        index, values = todo.pop()
        own: list[float] = []
        for i in inputs_of(graph.nodes[index]):
            if i in inner:
                part, values = values[: len(leaves[i])], values[len(leaves[i]) :]
                own.append(math.hypot(*part))
                todo.append((i, _unit(part)))
            else:
                own.append(values.pop(0))
        found[index] = tuple(own)

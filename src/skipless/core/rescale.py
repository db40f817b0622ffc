"""Residual networks brought into the form for which the theory holds (section 2.4).

Sums are normalised. A sum of sums, x + f(x) + g(x), is one sum of three terms, unless something
else reads the inner one. And where a shortcut starts behind an activation and ends before the next
one, it is made to start before the first: what an activation reads must be a sum of many weighted
numbers to be normally distributed, as its maps assume.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real

from .graph import Activation, Affine, Graph, GraphError, Sum, inputs_of

Weights = dict[int, tuple[float, ...]]  # of every sum of a graph, by its index


def normalised(graph: Graph, shortcut_weight: float | None = None) -> Graph:
    r"""`graph` with normalised sums; see `normalised_weights`. Nodes keep their indices.

    Residual blocks as most people write them become the paper's:

    >>> from .graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> x = g.affine(g.input())
    >>> y = g.affine(g.activation(x))
    >>> block = g.sum([x, y])
    >>> normalised(g.build(), 0.8) == Graph.residual(1, branch_depth=1, shortcut_weight=0.8)
    True
    """
    return reweighted(graph, normalised_weights(graph, shortcut_weight))


def normalised_weights(graph: Graph, shortcut_weight: float | None = None) -> Weights:
    r"""Weights for every sum, with squares that add up to 1.

    Without a `shortcut_weight`, terms keep their proportions. With one, each sum with a shortcut,
    which is the one term with the fewest activations behind it (or, if these are equal, layers),
    becomes

    $$w\,x + \sqrt{1-w^2}\,\mathcal R(x)$$

    where the other terms, if there are several, share what is left in their proportions.
    """
    _demand_weight(shortcut_weight)
    inner = _inner_sums(graph)
    depths = _depths(graph)
    leaves: dict[int, list[tuple[int, float]]] = {}  # the terms of a sum, seen through inner sums
    found: Weights = {}
    for index, node in enumerate(graph.nodes):
        if not isinstance(node, Sum):
            continue
        leaves[index] = [
            (leaf, weight * factor)
            for i, weight in zip(node.inputs, node.weights, strict=True)
            for leaf, factor in (leaves[i] if i in inner else [(i, 1.0)])
        ]
        if index not in inner:
            weights = [weight for _, weight in leaves[index]]
            places = [depths[leaf] for leaf, _ in leaves[index]]
            wanted = _wanted(weights, places, shortcut_weight)
            _distribute(graph, index, wanted, inner, leaves, found)
    return found


def in_residual_form(graph: Graph) -> Graph:
    r"""`graph` with shortcuts that start before an activation, if they end before another one.

    Blocks $x^{l+1} = \phi(x^l + \mathcal R(x^l))$ become $u^{l+1} = u^l + \mathcal R(\phi(u^l))$,
    the blocks of the paper (eq. 6), with $x^l = \phi(u^l)$. Every activation is still read.

    >>> from .graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> x = g.activation(g.affine(g.input()))
    >>> y = g.activation(g.sum([g.affine(x), x]))
    >>> inputs_of(in_residual_form(g.build()).nodes[-2])
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
    return node.input if isinstance(node, Activation) and shared else term


def _activated(graph: Graph) -> set[int]:
    """The nodes that an activation reads, directly or through sums and concatenations."""
    found: set[int] = set()
    for index in range(graph.output, 0, -1):
        node = graph.nodes[index]
        if isinstance(node, Activation) or (index in found and not isinstance(node, Affine)):
            found.update(inputs_of(node))
    return found


def reweighted(graph: Graph, weights: Mapping[int, Sequence[float]]) -> Graph:
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


def _demand_weight(weight: object) -> None:
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


def _depths(graph: Graph) -> list[tuple[int, int]]:
    """The most activations, and the most affine layers, between the input and each node."""
    depths: list[tuple[int, int]] = []
    for node in graph.nodes:
        before = [depths[i] for i in inputs_of(node)]
        activations = max((a for a, _ in before), default=0)
        layers = max((b for _, b in before), default=0)
        depths.append(
            (activations + isinstance(node, Activation), layers + isinstance(node, Affine))
        )
    return depths


def _wanted(
    weights: Sequence[float], depths: Sequence[tuple[int, int]], shortcut_weight: float | None
) -> list[float]:
    if shortcut_weight is None or depths.count(min(depths)) > 1 or len(weights) == 1:
        return _unit(weights)
    shortcut = depths.index(min(depths))
    others = _unit([0.0 if k == shortcut else w for k, w in enumerate(weights)])
    rest = math.sqrt(1.0 - shortcut_weight**2)
    wanted = [rest * w for w in others]
    wanted[shortcut] = math.copysign(shortcut_weight, weights[shortcut])
    return wanted


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

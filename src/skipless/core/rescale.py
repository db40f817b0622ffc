"""Brings residual networks into the form for which the theory holds (section 2.4).

Sums are normalised. A sum of sums, x + f(x) + g(x), counts as one sum of three terms unless another
node reads the inner sum. A shortcut from behind one activation to before the next is moved to start
before the first: the maps of an activation assume normal inputs, which take a sum of many weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from .graph import Affine, Graph, GraphError, Nonlinearity, Sum, inputs_of, require_number

Weights = dict[int, tuple[float, ...]]  # of every sum in a graph, by its index


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

    A shortcut is a term from which another one is computed. If there is none, it is the term with
    the fewest activations before it (then, the fewest layers), such as a projection.

    Args:
        graph: the network.
        shortcut_weight: w of $w\,x + \sqrt{1-w^2}\,\mathcal R(x)$ for each sum with a shortcut.
            Several shortcuts, or several branches, share it in their old proportions. If None,
            all terms keep their proportions.
    """
    _require_weight(shortcut_weight)
    inner = _inner_sums(graph)
    leaves: dict[int, list[tuple[int, float]]] = {}  # the terms of a sum, inner sums resolved
    parts: dict[int, dict[int, float]] = {}  # a sum as a combination of independent nodes
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
            weights = _leaf_weights(graph, leaves[index], shortcut_weight)
            terms = zip((parts[leaf] for leaf, _ in leaves[index]), weights, strict=True)
            parts[index] = combine(terms)
            # The squares of terms with a common part, as in x + (x + R(x)), do not just add up.
            norm = math.hypot(*parts[index].values()) or 1.0
            parts[index] = {source: part / norm for source, part in parts[index].items()}
            _distribute(graph, index, [w / norm for w in weights], inner, leaves, found)
    return found


def combine(terms: Iterable[tuple[Mapping[int, float], float]]) -> dict[int, float]:
    """A weighted sum of combinations of nodes, as one combination.

    >>> combine([({0: 1.0, 1: 2.0}, 3.0), ({1: 1.0}, 0.5)])
    {0: 3.0, 1: 6.5}
    """
    total: dict[int, float] = {}
    for parts, weight in terms:
        for source, part in parts.items():
            total[source] = total.get(source, 0.0) + weight * part
    return total


def to_residual_form(graph: Graph) -> Graph:
    r"""`graph` with the shortcuts that end before an activation starting before one, too.

    Blocks $x^{l+1} = \phi(x^l + \mathcal R(x^l))$ become $u^{l+1} = u^l + \mathcal R(\phi(u^l))$,
    the blocks of the paper (eq. 6), with $x^l = \phi(u^l)$. Every activation is still read.

    >>> from .graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> x = g.activation(g.affine(g.input()))
    >>> y = g.activation(g.sum([g.affine(x), x]))
    >>> inputs_of(to_residual_form(g.build()).nodes[-2])
    (3, 1)
    """
    readers, before = _readers(graph), _before_nonlinearities(graph)
    nodes = list(graph.nodes)
    for index, node in enumerate(graph.nodes):
        if isinstance(node, Sum) and index in before:
            inputs = tuple(_before_activation(graph, readers, i) for i in node.inputs)
            nodes[index] = replace(node, inputs=inputs)
    return Graph(nodes)


def _before_activation(graph: Graph, readers: Mapping[int, Sequence[int]], term: int) -> int:
    """The input of the activation at `term` (perhaps times a factor) if it has other readers."""
    index, shared = term, len(set(readers[term])) > 1
    node = graph.nodes[index]
    while isinstance(node, Sum) and len(node.inputs) == 1 and node.weights[0] > 0.0:
        index = node.inputs[0]
        node, shared = graph.nodes[index], shared or len(set(readers[index])) > 1
    return node.input if isinstance(node, Nonlinearity) and shared else term


def _before_nonlinearities(graph: Graph) -> set[int]:
    """The nodes that an activation reads, directly or through sums and concatenations."""
    found: set[int] = set()
    for index in range(graph.output, 0, -1):
        node = graph.nodes[index]
        if isinstance(node, Nonlinearity) or (index in found and not isinstance(node, Affine)):
            found.update(inputs_of(node))
    return found


def reweight(graph: Graph, weights: Mapping[int, Sequence[float]]) -> Graph:
    """`graph` with new weights in its sums, without the terms of weight zero."""
    nodes = list(graph.nodes)
    for index, new in weights.items():
        node = nodes[index]
        assert isinstance(node, Sum)
        kept = [(i, w) for i, w in zip(node.inputs, new, strict=True) if w]
        # No live node reads a sum without terms.
        kept = kept or [(node.inputs[0], 1.0)]
        nodes[index] = replace(
            node, inputs=tuple(i for i, _ in kept), weights=tuple(w for _, w in kept)
        )
    return Graph(nodes)


def _require_weight(weight: float | None) -> None:
    if weight is None:
        return
    require_number("shortcut_weight", weight)
    if not 0.0 <= weight < 1.0:
        raise GraphError(
            f"shortcut_weight must be in [0, 1), got {weight} (0 removes the shortcuts, 0.8 keeps "
            "them)"
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
    """The largest numbers of activations and of affine layers from the input to each node."""
    depths: list[tuple[int, int]] = []
    for node in graph.nodes:
        before = [depths[i] for i in inputs_of(node)]
        activations, layers = (max((pair[k] for pair in before), default=0) for k in (0, 1))
        depths.append(
            (activations + isinstance(node, Nonlinearity), layers + isinstance(node, Affine))
        )
    return depths


@lru_cache(maxsize=4)
def ancestors(graph: Graph) -> list[int]:
    """The nodes from which each one is computed, itself included, as the bits of an integer."""
    before: list[int] = []
    for index, node in enumerate(graph.nodes):
        own = 1 << index
        for i in inputs_of(node):
            own |= before[i]
        before.append(own)
    return before


def _leaf_weights(
    graph: Graph, leaves: Sequence[tuple[int, float]], shortcut_weight: float | None
) -> list[float]:
    """New weights for the terms of a sum; the first occurrence of a term carries all its weight."""
    total = combine(({leaf: 1.0}, weight) for leaf, weight in leaves)
    once = [total.pop(leaf, 0.0) for leaf, _ in leaves]
    nodes = [leaf for (leaf, _), weight in zip(leaves, once, strict=True) if weight]
    shortcuts = _shortcuts(graph, nodes)
    if shortcut_weight is None or not shortcuts:
        return _unit_norm(once)
    short = [leaf in shortcuts for leaf, _ in leaves]
    bypass = _unit_norm([w if s else 0.0 for w, s in zip(once, short, strict=True)])
    branch = _unit_norm([0.0 if s else w for w, s in zip(once, short, strict=True)])
    rest = math.sqrt(1.0 - shortcut_weight**2)
    return [shortcut_weight * a + rest * b for a, b in zip(bypass, branch, strict=True)]


def _shortcuts(graph: Graph, terms: Sequence[int]) -> set[int]:
    """The terms from which others are computed; else the one with the least before it, if any."""
    before = ancestors(graph)
    found = {a for a in terms for b in terms if a != b and before[b] >> a & 1}
    if found or len(terms) < 2:
        return found
    depths = [_depths(graph)[term] for term in terms]
    return set() if depths.count(min(depths)) > 1 else {terms[depths.index(min(depths))]}


def _unit_norm(weights: Sequence[float]) -> list[float]:
    norm = math.hypot(*weights)
    return [w / norm for w in weights] if norm else list(weights)


def _distribute(
    graph: Graph,
    index: int,
    weights: Sequence[float],
    inner: set[int],
    leaves: Mapping[int, Sequence[object]],
    found: Weights,
) -> None:
    """Set the sum at `index` and those inside so that its leaves get `weights`."""
    todo = [(index, list(weights))]
    while todo:
        index, values = todo.pop()
        own: list[float] = []
        for i in inputs_of(graph.nodes[index]):
            if i in inner:
                part, values = values[: len(leaves[i])], values[len(leaves[i]) :]
                own.append(math.hypot(*part))
                todo.append((i, _unit_norm(part)))
            else:
                own.append(values.pop(0))
        found[index] = tuple(own)

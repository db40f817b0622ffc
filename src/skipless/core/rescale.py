"""Brings residual networks into the form for which the theory holds (section 2.4).

Sums are normalised, and so are fixed functions, so that a gate keeps q = 1. A sum of sums,
x + f(x) + g(x), counts as one sum of three terms unless another node reads the inner sum. A
shortcut from behind one activation to before the next is moved to start before the first: the maps
of an activation assume normal inputs, which take a sum of many weights.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from .graph import (
    Affine,
    Fixed,
    Graph,
    GraphError,
    Measured,
    Node,
    Nonlinearity,
    Product,
    Sum,
    inputs_of,
    require_number,
)
from .maps import q_map

Weights = dict[int, tuple[float, ...]]  # of every sum in a graph, by its index


def normalise_sums(graph: Graph, shortcut_weight: float | None = None) -> Graph:
    r"""`graph` with normalised sums; see `normalised_weights`. Nodes keep their indices.

    Residual blocks as most people write them become the paper's:

    >>> from .graph import Input
    >>> plain = Graph([Input(), Affine(0), Nonlinearity(1), Affine(2), Sum((1, 3), (1.0, 1.0))])
    >>> normalise_sums(plain, 0.8) == Graph.residual(1, branch_depth=1, shortcut_weight=0.8)
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
    if shortcut_weight is not None:
        require_number("shortcut_weight", shortcut_weight)
        if not 0.0 <= shortcut_weight < 1.0:
            raise GraphError(
                f"shortcut_weight must be in [0, 1), got {shortcut_weight} (0 removes the "
                "shortcuts, 0.8 keeps them)"
            )
    inner = _inner_sums(graph)
    leaves: dict[int, list[tuple[int, float]]] = {}  # the terms of a sum, inner sums resolved
    parts: dict[int, dict[int, float]] = {}  # a sum as a combination of independent nodes
    wanted: dict[int, list[float]] = {}  # the weights of the leaves of a sum
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
            wanted[index] = [w / norm for w in weights]
    found: Weights = {}
    for index in sorted(leaves, reverse=True):  # a sum before the inner sums that it reads
        rest, own = iter(wanted[index]), list[float]()
        for i in inputs_of(graph.nodes[index]):
            part = list(islice(rest, len(leaves[i]) if i in inner else 1))
            own.append(math.hypot(*part) if i in inner else part[0])
            if i in inner and (index in graph.live or i not in wanted):
                wanted[i] = _unit_norm(part)
        found[index] = tuple(own)
    return found


def combine(terms: Iterable[tuple[Mapping[int, float], float]]) -> dict[int, float]:
    """A weighted sum of combinations of nodes, as one combination."""
    total: dict[int, float] = {}
    for parts, weight in terms:
        for source, part in parts.items():
            total[source] = total.get(source, 0.0) + weight * part
    return total


def to_residual_form(graph: Graph) -> Graph:
    r"""`graph` with the shortcuts that end before an activation starting before one, too.

    Blocks $x^{l+1} = \phi(x^l + \mathcal R(x^l))$ become $u^{l+1} = u^l + \mathcal R(\phi(u^l))$,
    the blocks of the paper (eq. 6), with $x^l = \phi(u^l)$. Every activation is still read.
    """
    nodes, before = list(graph.nodes), _before_nonlinearities(graph)
    for index, node in enumerate(graph.nodes):
        if isinstance(node, Sum) and index in before:
            inputs = tuple(_before_activation(graph, i) for i in node.inputs)
            nodes[index] = replace(node, inputs=inputs)
    return Graph(nodes)


def _before_activation(graph: Graph, term: int) -> int:
    """The input of the activation at `term` (perhaps times a factor) if it has other readers."""
    node, readers = graph.nodes[term], set(graph.readers[term])
    shared = len(readers) > 1
    while isinstance(node, Sum) and len(node.inputs) == 1 and node.weights[0] > 0.0:
        readers = set(graph.readers[node.inputs[0]])
        node, shared = graph.nodes[node.inputs[0]], shared or len(readers) > 1
    return node.input if isinstance(node, Nonlinearity) and shared else term


def _before_nonlinearities(graph: Graph) -> set[int]:
    """The nodes that an activation reads, directly or through sums and concatenations."""
    found: set[int] = set()
    for index in range(graph.output, 0, -1):
        node = graph.nodes[index]
        passes = index in found and not isinstance(node, Affine | Product | Fixed)
        if isinstance(node, Nonlinearity) or passes:
            found.update(inputs_of(node))
    return found


def reweight(graph: Graph, weights: Mapping[int, Sequence[float]]) -> Graph:
    """`graph` with new weights in its sums, without the terms of weight zero.

    Fixed functions and measured parts get the factor with which they keep q = 1.
    """
    nodes = [_normalise(node) for node in graph.nodes]
    for index, new in weights.items():
        node = nodes[index]
        assert isinstance(node, Sum)
        kept = [(i, w) for i, w in zip(node.inputs, new, strict=True) if w]
        # No live node reads a sum without terms.
        inputs, factors = zip(*(kept or [(node.inputs[0], 1.0)]), strict=True)
        nodes[index] = replace(node, inputs=inputs, weights=factors)
    return Graph(nodes)


def _normalise(node: Node) -> Node:
    """`node` with q = 1 for inputs of q = 1; of a fixed function's factor, the sign is left."""
    match node:
        case Fixed(scale=scale):
            size = q_map(replace(node, scale=1.0).function, 1.0) ** -0.5
            return replace(node, scale=math.copysign(size, scale))
        case Measured(curve=curve):
            return replace(node, curve=replace(curve, gain=1.0))
        case _:
            return node


def _inner_sums(graph: Graph) -> set[int]:
    """The sums that another sum reads once, and nothing else does."""
    alone = {index: r[0] for index, r in graph.readers.items() if len(r) == 1}
    sums = {index for index, node in enumerate(graph.nodes) if isinstance(node, Sum)}
    return {index for index in sums if alone.get(index) in sums}


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
    depths = [graph.depths[term] for term in terms]
    return set() if depths.count(min(depths)) > 1 else {terms[depths.index(min(depths))]}


def _unit_norm(weights: Sequence[float]) -> list[float]:
    norm = math.hypot(*weights)
    return [w / norm for w in weights] if norm else list(weights)

"""A network as the theory sees it: a graph of layers, activations, sums, products and parts."""

# pyright: reportUnnecessaryIsInstance=false

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from numbers import Integral, Real
from typing import Any, Self, assert_never

from .activations import Activation, activation, transform
from .arguments import require_flag
from .measured import PartMap


class GraphError(ValueError):
    """The nodes do not form a network."""


@dataclass(frozen=True)
class Input:
    """Where data enters. A graph has one, at index 0."""

    origin: str = field(default="", compare=False, kw_only=True)


@dataclass(frozen=True)
class Affine:
    """A dense or convolutional layer with random weights.

    A depthwise convolution does not mix channels: under Delta initialisation it changes signs.
    """

    input: int
    mixes: bool = field(default=True, kw_only=True)
    origin: str = field(default="", compare=False, kw_only=True)


@dataclass(frozen=True)
class Nonlinearity:
    """The elementwise activation function φ."""

    input: int
    origin: str = field(default="", compare=False, kw_only=True)


@dataclass(frozen=True)
class Sum:
    """A weighted sum; `weights` need not be normalised.

    Its inputs are assumed uncorrelated, as they are behind separate affine layers.
    """

    inputs: tuple[int, ...]
    weights: tuple[float, ...]
    origin: str = field(default="", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", _indices(self.inputs))
        object.__setattr__(self, "weights", _numbers("weights", self.weights))


@dataclass(frozen=True)
class Concat:
    """Channels side by side; `widths` counts those of each input, by default equal ones.

    At the end of a graph, its inputs may be `outputs` of the network, which nothing joins.
    """

    inputs: tuple[int, ...]
    widths: tuple[float, ...] = ()
    outputs: bool = field(default=False, kw_only=True)
    origin: str = field(default="", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", _indices(self.inputs))
        widths = _numbers("widths", self.widths) or (1.0,) * len(self.inputs)
        object.__setattr__(self, "widths", widths)


@dataclass(frozen=True)
class Measured:
    """A part that no formula covers, known by its own C map, which no method changes.

    It `mixes` if it has weights, so that its result is uncorrelated with other terms of a sum.
    """

    input: int
    curve: PartMap
    mixes: bool = field(default=True, kw_only=True)
    origin: str = field(default="", compare=False, kw_only=True)


@dataclass(frozen=True)
class Product:
    """The elementwise product of its inputs, as of a signal and its gate.

    They are assumed independent, as they are if one ends in weights that the other does not use.
    `rough` says where its maps hold only roughly, and why.
    """

    inputs: tuple[int, ...]
    rough: str = field(default="", compare=False, kw_only=True)
    origin: str = field(default="", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", _indices(self.inputs))


@dataclass(frozen=True)
class Fixed:
    """An elementwise function that is not shaped, such as the sigmoid of a gate.

    It is `scale` · (φ(x) + `shift`).
    """

    input: int
    phi: Activation
    scale: float = 1.0
    shift: float = 0.0
    origin: str = field(default="", compare=False, kw_only=True)

    @property
    def function(self) -> Activation:
        """The whole function; the same object for equal nodes."""
        return _transformed(self.phi, self.scale, self.shift)


@cache
def _transformed(phi: Activation, scale: float, shift: float) -> Activation:
    if (scale, shift) == (1.0, 0.0):
        return phi
    return transform(phi, output_scale=scale, output_shift=shift)


_MOST = 10**6  # layers of a standard graph: hundreds of MB

Node = Input | Affine | Nonlinearity | Sum | Concat | Measured | Product | Fixed


def inputs_of(node: Node) -> tuple[int, ...]:
    """Indices of the nodes that `node` reads."""
    match node:
        case Input():
            return ()
        case Affine() | Nonlinearity() | Measured() | Fixed():
            return (node.input,)
        case Sum() | Concat() | Product():
            return node.inputs
        case _:
            assert_never(node)


@dataclass(frozen=True, init=False, repr=False)
class Graph:
    """A network: its nodes in order of evaluation, each with the indices of the nodes it reads.

    The first node is the only `Input`, the last one is the output.

    >>> print(Graph([Input(), Affine(0), Nonlinearity(1), Affine(2), Sum((1, 3), (0.8, 0.6))]))
    Graph(5 nodes, 1 activation, depth 1)
      0  Input
      1  Affine(0)
      2  Nonlinearity(1)
      3  Affine(2)
      4  Sum(0.8·1 + 0.6·3)
    """

    nodes: tuple[Node, ...]

    def __init__(self, nodes: Iterable[Node]) -> None:
        if not isinstance(nodes, Iterable):
            raise TypeError(f"Graph takes a sequence of nodes, got {nodes!r}. Use a GraphBuilder.")
        object.__setattr__(self, "nodes", tuple(nodes))
        for node in self.nodes:
            if not isinstance(node, Node):
                raise TypeError(
                    "Graph nodes must be Input, Affine, Nonlinearity, Sum, Concat, Measured, "
                    f"Product or Fixed of skipless.core.graph, got {node!r}. A GraphBuilder makes "
                    "them."
                )
        names = (_name(index, node) for index, node in enumerate(self.nodes))
        if not self.nodes or not isinstance(self.nodes[0], Input):
            raise GraphError(
                f"A graph must start with Input() at index 0, got {next(names, 'no nodes')}. "
                "Put Input() first."
            )
        for index, node in enumerate(self.nodes):
            if flaw := _flaw(index, node):
                raise GraphError(f"{_name(index, node)} {flaw}")

    @classmethod
    def chain(cls, depth: int) -> Self:
        """`depth` combined layers in sequence, each an affine map followed by φ (section 2.1).

        >>> Graph.chain(100)
        Graph(201 nodes, 100 activations, depth 100)
        """
        _require_count("depth", depth)
        builder = GraphBuilder()
        x = builder.input()
        for _ in range(depth):
            x = builder.activation(builder.affine(x))
        return cls(builder.nodes)

    @classmethod
    def residual(cls, blocks: int, branch_depth: int = 3, *, shortcut_weight: float) -> Self:
        r"""Rescaled ResNet with shortcut weight `w` behind an affine stem (section 2.4, eq. 6).

        $$x^{l+1} = w\,x^l + \sqrt{1-w^2}\,\mathcal{R}(x^l)$$

        where R is `branch_depth` times an activation followed by an affine map, and w is in
        [0, 1]: at 1, nothing but the stem is left.

        >>> Graph.residual(16, shortcut_weight=0.8)
        Graph(114 nodes, 48 activations, depth 48)
        """
        _require_count("blocks", blocks)
        _require_count("branch_depth", branch_depth)
        _require_count("blocks times branch_depth", blocks * branch_depth)
        require_number("shortcut_weight", shortcut_weight)
        if not 0.0 <= shortcut_weight <= 1.0:
            raise GraphError(f"shortcut_weight must be in [0, 1], got {shortcut_weight:g}")
        weights = (shortcut_weight, math.sqrt(1.0 - shortcut_weight**2))
        builder = GraphBuilder()
        x = builder.affine(builder.input())
        for _ in range(blocks):
            branch = x
            for _ in range(branch_depth):
                branch = builder.affine(builder.activation(branch))
            x = builder.sum((x, branch), weights)
        return cls(builder.nodes)

    @property
    def output(self) -> int:
        """Index of the last node."""
        return len(self.nodes) - 1

    @cached_property
    def activations(self) -> int:
        """Number of activations in the graph."""
        return sum(isinstance(node, Nonlinearity) for node in self.nodes)

    @property
    def depth(self) -> int:
        """Number of activations on the longest path from input to output."""
        return self.depths[-1][0]

    @cached_property
    def depths(self) -> list[tuple[int, int]]:
        """The largest numbers of activations and of affine layers from the input to each node."""
        depths: list[tuple[int, int]] = []
        for node in self.nodes:
            before = [depths[i] for i in inputs_of(node)]
            activations = max((a for a, _ in before), default=0) + isinstance(node, Nonlinearity)
            layers = max((n for _, n in before), default=0) + isinstance(node, Affine)
            depths.append((activations, layers))
        return depths

    @cached_property
    def live(self) -> frozenset[int]:
        """Indices of the nodes that lead to the output."""
        live = {self.output}
        for index in range(self.output, 0, -1):
            if index in live:
                live.update(inputs_of(self.nodes[index]))
        return frozenset(live)

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """The live nodes that read each node; one that reads it twice is listed twice."""
        readers: dict[int, list[int]] = {}
        for index in sorted(self.live):
            for i in inputs_of(self.nodes[index]):
                readers.setdefault(i, []).append(index)
        return readers

    @cached_property
    def _hash(self) -> int:
        return hash(self.nodes)

    def __hash__(self) -> int:
        # Programs are cached by graph, and hashing 20,000 nodes takes longer than running them.
        return self._hash

    def __repr__(self) -> str:
        activations = f"{self.activations} activation{'s' * (self.activations != 1)}"
        return f"Graph({len(self.nodes)} nodes, {activations}, depth {self.depth})"

    def __str__(self) -> str:
        """The nodes, one per line; of a long graph, those at both ends."""
        lines = [_line(index, node) for index, node in enumerate(self.nodes)]
        if len(lines) > 20:
            lines[12:-6] = [f"  … {len(lines) - 18} more …"]
        return "\n".join([repr(self), *lines])


def joined(graphs: Sequence[Graph]) -> Graph:
    """The networks one after another: each reads the output of the one before it.

    >>> joined([Graph.chain(2), Graph.chain(3)]) == Graph.chain(5)
    True
    """
    nodes: list[Node] = [Input()]
    for graph in graphs:
        places = [len(nodes) - 1]
        for node in graph.nodes[1:]:
            moved = [places[i] for i in inputs_of(node)]
            places.append(len(nodes))
            one: Any = node
            several = hasattr(node, "inputs")
            nodes.append(replace(one, **({"inputs": moved} if several else {"input": moved[0]})))
    return Graph(nodes)


class GraphBuilder:
    """Builds a graph node by node; every method returns the index of the node it adds.

    >>> g = GraphBuilder()
    >>> x = g.affine(g.input())
    >>> g.sum([x, g.affine(g.activation(x))], weights=[0.8, 0.6])
    4
    >>> g.build()
    Graph(5 nodes, 1 activation, depth 1)
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def input(self, *, origin: str = "") -> int:
        """Add the `Input`; it comes first."""
        return self.add(Input(origin=origin))

    def affine(self, input: int, *, mixes: bool = True, origin: str = "") -> int:
        """Add an `Affine` layer that reads the node `input`."""
        require_flag("mixes", mixes)
        return self.add(Affine(input, mixes=mixes, origin=origin))

    def activation(self, input: int, *, origin: str = "") -> int:
        """Add an `Nonlinearity` that reads the node `input`."""
        return self.add(Nonlinearity(input, origin=origin))

    def sum(self, inputs: Sequence[int], weights: Sequence[float] = (), *, origin: str = "") -> int:
        """Add a `Sum`; its weights are 1 by default."""
        inputs = _indices(inputs)
        weights = _numbers("weights", weights) or (1.0,) * len(inputs)
        return self.add(Sum(inputs, weights, origin=origin))

    def concat(
        self, inputs: Sequence[int], widths: Sequence[float] = (), *, origin: str = ""
    ) -> int:
        """Add a `Concat`; its widths, the numbers of channels, are equal by default."""
        return self.add(Concat(_indices(inputs), _numbers("widths", widths), origin=origin))

    def measured(self, input: int, curve: PartMap, *, mixes: bool = True, origin: str = "") -> int:
        """Add a `Measured` part that reads the node `input`."""
        return self.add(Measured(input, curve, mixes=mixes, origin=origin))

    def product(self, inputs: Sequence[int], *, rough: str = "", origin: str = "") -> int:
        """Add a `Product` of independent nodes."""
        return self.add(Product(_indices(inputs), rough=rough, origin=origin))

    def fixed(self, input: int, phi: str | Activation, *, origin: str = "") -> int:
        """Add a `Fixed` function of the node `input`, such as "sigmoid"."""
        return self.add(Fixed(input, activation(phi), origin=origin))

    def add(self, node: Node) -> int:
        """Add any node."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def build(self) -> Graph:
        """The graph whose output is the node added last."""
        return Graph(self.nodes)


def _require_count(name: str, count: object) -> None:
    if not isinstance(count, Integral) or isinstance(count, bool):
        raise TypeError(f"{name} must be an integer, got {count!r} (for example 100)")
    if not 1 <= int(count) <= _MOST:
        raise GraphError(f"{name} must be from 1 to {_MOST}, got {count}")


def require_number(name: str, value: object) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r} (for example 0.8)")


def _indices(inputs: Iterable[int]) -> tuple[int, ...]:
    if not isinstance(inputs, Iterable):
        raise TypeError(f"inputs must be a sequence of indices of nodes, got {inputs!r}")
    return tuple(inputs)


def _numbers(name: str, values: Iterable[float]) -> tuple[float, ...]:
    try:
        return tuple(map(float, values))
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a sequence of numbers, got {values!r}") from None


def _name(index: int, node: Node) -> str:
    return f"node {index} ({', '.join(filter(None, (type(node).__name__, node.origin)))})"


def _line(index: int, node: Node) -> str:
    match node:
        case Input():
            text = ""
        case Affine() | Nonlinearity():
            text = f"({node.input})"
        case Sum():
            terms = zip(node.weights, node.inputs, strict=True)
            text = f"({' + '.join(f'{w:g}·{i}' for w, i in terms)})"
        case Concat():
            terms = zip(node.inputs, node.widths, strict=True)
            text = f"({', '.join(f'{i}: {width:g}' for i, width in terms)})"
        case Measured():
            text = f"({node.input}: {node.curve})"
        case Product():
            text = f"({' · '.join(map(str, node.inputs))})"
        case Fixed():
            shift = f" {node.shift:+g}" if node.shift else ""
            text = f"({node.scale:g}·({node.phi.name}({node.input}){shift}))"
        case _:
            assert_never(node)
    line = f"{index:3}  {type(node).__name__}{text}  {node.origin}".rstrip()
    return line if len(line) <= 80 else line[:79] + "…"


def _flaw(index: int, node: Node) -> str:
    """Why `node` cannot be at `index`, and what to do about it; empty if it can."""
    for i in inputs_of(node):
        if not isinstance(i, int):
            return f"reads {i!r}; inputs must be indices of nodes (int)."
        if not 0 <= i < index:
            return f"reads node {i}, which is not before it. List nodes in order of evaluation."
    match node:
        case Input():
            return "is a second input. Concatenate the inputs." if index else ""
        case Affine() | Nonlinearity() | Measured():
            return ""
        case Fixed():
            valid = math.isfinite(node.scale + node.shift) and node.scale != 0.0
            return "" if valid else "needs a finite scale that is not zero, and a finite shift."
        case Product():
            return "" if node.inputs else "multiplies nothing. Give it an input."
        case Sum(inputs, numbers):
            noun, rule = "weights", "finite weights, not all zero"
            valid = all(map(math.isfinite, numbers)) and any(numbers)
        case Concat(inputs, numbers):
            noun, rule = "widths", "positive finite widths (numbers of channels)"
            valid = all(0.0 < width < math.inf for width in numbers)
        case _:
            assert_never(node)
    if not inputs:
        return f"{'adds' if isinstance(node, Sum) else 'joins'} nothing. Give it an input."
    if len(inputs) != len(numbers):
        return f"has {len(inputs)} inputs and {len(numbers)} {noun}. Give one for each."
    return "" if valid else f"needs {rule}, got {numbers}."

import math
import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_oracle import graphs, layers
from skipless.core.graph import (
    Affine,
    Concat,
    Graph,
    GraphBuilder,
    GraphError,
    Input,
    Node,
    Nonlinearity,
    Sum,
    inputs_of,
)


def test_a_chain_alternates_affine_maps_and_activations() -> None:
    assert Graph.chain(2).nodes == (Input(), Affine(0), Nonlinearity(1), Affine(2), Nonlinearity(3))


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.8, 1.0])
def test_a_residual_block_is_the_normalised_sum_of_shortcut_and_branch(weight: float) -> None:
    graph = Graph.residual(blocks=2, branch_depth=1, shortcut_weight=weight)
    weights = (weight, math.sqrt(1 - weight**2))
    assert graph.nodes == (
        *(Input(), Affine(0)),
        *(Nonlinearity(1), Affine(2), Sum((1, 3), weights)),
        *(Nonlinearity(4), Affine(5), Sum((4, 6), weights)),
    )


@given(st.integers(1, 6), st.integers(1, 4))
def test_depth_and_activations_of_the_standard_graphs(blocks: int, branch: int) -> None:
    residual = Graph.residual(blocks, branch, shortcut_weight=0.8)
    assert residual.depth == residual.activations == blocks * branch
    assert Graph.chain(blocks).depth == Graph.chain(blocks).activations == blocks


def longest_path(graph: Graph, index: int) -> int:
    node = graph.nodes[index]
    before = max((longest_path(graph, i) for i in inputs_of(node)), default=0)
    return before + isinstance(node, Nonlinearity)


@settings(deadline=None)
@given(graphs())
def test_depth_counts_the_activations_of_the_longest_path(graph: Graph) -> None:
    assert graph.depth == longest_path(graph, graph.output)
    assert graph.depth <= len(layers(graph) & activations(graph)) <= graph.activations


def activations(graph: Graph) -> set[int]:
    return {i for i, node in enumerate(graph.nodes) if isinstance(node, Nonlinearity)}


def test_activations_count_dead_ends_and_depth_does_not() -> None:
    graph = Graph([Input(), Nonlinearity(0), Nonlinearity(1), Affine(0)])
    assert (graph.activations, graph.depth, graph.output) == (2, 0, 3)


def test_the_builder_makes_the_graph_that_its_nodes_spell_out() -> None:
    g = GraphBuilder()
    x = g.affine(g.input())
    y = g.activation(x)
    z = g.sum([x, y])
    g.concat([z, g.sum([x, z], weights=[0.8, 0.6])], widths=[1, 2])
    assert g.build() == Graph(
        (
            *(Input(), Affine(0), Nonlinearity(1), Sum((1, 2), (1.0, 1.0))),
            *(Sum((1, 3), (0.8, 0.6)), Concat((3, 4), (1.0, 2.0))),
        )
    )


def test_graphs_are_values() -> None:
    graph = Graph.chain(3)
    named = Graph([replace(node, origin="somewhere") for node in graph.nodes])
    assert graph == named == pickle.loads(pickle.dumps(graph))
    assert hash(graph) == hash(named)
    assert graph != Graph.chain(2)
    assert Graph([Input(), Affine(0)]) != Graph([Input(), Nonlinearity(0)])
    assert len({graph, named, Graph.chain(2)}) == 2


def test_lists_become_tuples_and_widths_left_out_are_equal() -> None:
    concat = Concat([0, 0])  # pyright: ignore[reportArgumentType]
    assert concat == Concat((0, 0), (1.0, 1.0))
    assert hash(Graph([Input(), concat])) == hash(Graph((Input(), Concat((0, 0), (1.0, 1.0)))))
    assert Sum([0, 0], [1, 2]) == Sum((0, 0), (1.0, 2.0))  # pyright: ignore[reportArgumentType]


def test_a_long_graph_prints_short() -> None:
    graph = Graph.residual(1000, shortcut_weight=0.8)
    assert repr(graph) == "Graph(7002 nodes, 3000 activations, depth 3000)"
    lines = str(graph).splitlines()
    assert len(lines) == 20
    assert lines[-1].endswith("Sum(0.8·6994 + 0.6·7000)")
    wide = str(Graph([Input(), Concat((0,) * 1000, origin="join")]))
    assert max(map(len, wide.splitlines())) == 80


def test_a_short_graph_prints_every_node_with_its_origin() -> None:
    graph = Graph([Input(), Affine(0, origin="stem.conv"), Concat((0, 1), (3, 64))])
    assert str(graph).splitlines() == [
        "Graph(3 nodes, 0 activations, depth 0)",
        "  0  Input",
        "  1  Affine(0)  stem.conv",
        "  2  Concat(0: 3, 1: 64)",
    ]


BAD: list[tuple[list[Node], str]] = [
    ([], "no nodes"),
    ([Affine(0, origin="fc")], r"Input\(\) at index 0, got node 0 \(Affine, fc\)"),
    ([Input(), Input(origin="mask")], r"node 1 \(Input, mask\) is a second input"),
    ([Input(), Affine(1, origin="fc")], r"node 1 \(Affine, fc\) reads node 1"),
    ([Input(), Nonlinearity(-1)], r"node 1 \(Nonlinearity\) reads node -1"),
    ([Input(), Sum((0, 2), (1, 1), origin="add"), Affine(0)], r"node 1 \(Sum, add\) reads node 2"),
    ([Input(), Sum((0, 0), (1,), origin="add")], r"\(Sum, add\) has 2 inputs and 1 weights"),
    ([Input(), Sum((), ())], r"node 1 \(Sum\) adds nothing"),
    ([Input(), Sum((0, 0), (0, 0))], r"not all zero, got \(0.0, 0.0\)"),
    ([Input(), Sum((0, 0), (1, math.inf))], "finite weights"),
    ([Input(), Sum((0, 0), (1, math.nan))], "finite weights"),
    ([Input(), Concat((), origin="cat")], r"node 1 \(Concat, cat\) joins nothing"),
    ([Input(), Concat((0, 0), (1,))], "has 2 inputs and 1 widths"),
    ([Input(), Concat((0, 0), (1, 0))], r"positive finite widths .*, got \(1.0, 0.0\)"),
    ([Input(), Concat((0, 0), (1, math.inf))], "positive finite widths"),
]


@pytest.mark.parametrize(("nodes", "message"), BAD)
def test_a_bad_graph_is_refused_by_the_name_of_its_node(nodes: list[Node], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Graph(nodes)


def test_standard_graphs_of_no_layers_are_refused() -> None:
    with pytest.raises(GraphError, match="depth must be from 1 to 1000000, got 0"):
        Graph.chain(0)
    with pytest.raises(GraphError, match="blocks must be from 1 to 1000000, got -1"):
        Graph.residual(-1, shortcut_weight=0.5)
    with pytest.raises(GraphError, match="branch_depth must be from 1 to 1000000, got 0"):
        Graph.residual(1, 0, shortcut_weight=0.5)


@pytest.mark.parametrize("weight", [1.01, -0.1, math.nan])
def test_a_shortcut_weight_outside_0_to_1_is_refused(weight: float) -> None:
    with pytest.raises(GraphError, match=r"shortcut_weight must be in \[0, 1\], got"):
        Graph.residual(1, shortcut_weight=weight)

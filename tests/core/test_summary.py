"""Tables of layers are short: equal layers are one row, and long tables lose their middle."""

import math

from skipless import Graph
from skipless.core.summary import (
    abbreviate,
    kind_of,
    layer_rows,
    name_range,
    number_range,
    row_name,
)


def kinds(graph: Graph) -> list[str]:
    return [kind_of(graph.nodes[i]) for i in sorted(graph.live)]


def test_equal_consecutive_layers_are_one_row() -> None:
    assert [len(row) for row in layer_rows(kinds(Graph.chain(50)))] == [1, 100]


def test_blocks_that_repeat_are_shown_once_and_every_node_has_one_row() -> None:
    nodes = kinds(Graph.residual(16, 3, shortcut_weight=0.8))
    rows = layer_rows(nodes)
    assert [len(row) for row in rows] == [1, 7, 15, 90, 1]
    assert sorted(place for row in rows for place in row) == list(range(len(nodes)))


def test_layers_of_a_sequential_are_named_by_kind_and_index() -> None:
    layers = [("Affine", f"Linear {3 * k}") for k in range(50)]
    assert row_name(layers) == "Linear 0-147 (50)"
    assert row_name([("Affine", "Conv2d 0"), ("Affine", "Linear 7")]) == "Conv2d 0 … Linear 7 (2)"
    assert row_name([("Sum", "block (net.py:3)")]) == "Sum block (net.py:3)"
    assert row_name([("Affine", "")] * 3) == "3 layers"


def test_names_fit_a_terminal() -> None:
    long = [f"{'encoder.' * 8}{k}.{'projection.' * 3}weight (model.py:{k})" for k in range(9)]
    assert len(name_range(long)) <= 38
    assert len(name_range(long[:1])) <= 38
    assert name_range(long).endswith("(9)")


def test_a_range_of_numbers_leaves_out_what_is_no_number() -> None:
    assert number_range([math.nan, 0.5, -0.25]) == "-0.250…0.500"
    assert number_range([math.nan]) == "nan"
    assert number_range([-0.0001]) == "0.000"


def test_long_tables_lose_their_middle() -> None:
    rows = [[str(i), ""] for i in range(100)]
    shown = abbreviate(rows)
    assert [shown[0], shown[12], shown[-1]] == [["0", ""], ["… 80 more …", ""], ["99", ""]]
    assert abbreviate(rows[:21]) == rows[:21]

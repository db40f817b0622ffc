"""Residual networks in the form for which the theory holds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipless.core.graph import Graph, GraphBuilder, GraphError, Nonlinearity, Sum
from skipless.core.network import fold, propagate
from skipless.core.predict import without_mixing
from skipless.core.rescale import normalise_sums, normalised_weights, reweight, to_residual_form

POWER = lambda q: q  # Q(q) = q


def plain_resnet(blocks: int, weights=(1.0, 1.0)) -> Graph:
    """Pre-activation blocks x + R(x), as most people write them."""
    b = GraphBuilder()
    x = b.affine(b.input())
    for _ in range(blocks):
        x = b.sum([x, b.affine(b.activation(b.affine(b.activation(x))))], weights)
    return b.build()


def post_activation_resnet(blocks: int) -> Graph:
    """Blocks that end in an activation, φ(x + R(x))."""
    b = GraphBuilder()
    x = b.activation(b.affine(b.input()))
    for _ in range(blocks):
        x = b.activation(b.sum([b.affine(b.activation(b.affine(x))), x]))
    b.affine(x)
    return b.build()


def q_values(graph: Graph) -> list[float]:
    return [p.q for p in propagate(graph, POWER, lambda c, q: c)]


@pytest.mark.parametrize("w", [0.0, 0.28, 0.8])
def test_plain_residual_blocks_become_those_of_the_paper(w: float) -> None:
    expected = Graph.residual(3, branch_depth=2, shortcut_weight=w)
    found = normalise_sums(plain_resnet(3), w)
    assert fold(found, lambda k: 1.0 + k, 0.0) == pytest.approx(
        fold(expected, lambda k: 1.0 + k, 0.0)
    )
    expected = (w, math.sqrt(1.0 - w * w)) if w else (1.0,)
    assert [n.weights for n in found.nodes if isinstance(n, Sum)] == [pytest.approx(expected)] * 3


@given(
    st.lists(st.floats(0.1, 10.0) | st.floats(-10.0, -0.1), min_size=1, max_size=5),
    st.none() | st.floats(0.0, 0.99),
)
def test_sums_of_sums_keep_q_at_one_and_the_order_of_terms(weights, shortcut_weight) -> None:
    """((x + R1) + R2) + …, each branch a layer deeper than the one before it."""
    b = GraphBuilder()
    x = b.affine(b.input())
    terms = [x]
    for depth, _ in enumerate(weights[1:], start=1):
        branch = x
        for _ in range(depth):
            branch = b.affine(b.activation(branch))
        terms.append(branch)
    total = b.sum([terms[0]], [weights[0]])
    for term, weight in zip(terms[1:], weights[1:], strict=True):
        total = b.sum([total, term], [1.0, weight])
    graph = b.build()
    found = normalise_sums(graph, shortcut_weight)
    assert q_values(found)[-1] == pytest.approx(1.0)
    # Along the nested sums, every term has the product of the weights on its way.
    ours = _leaf_weights(found, total, dict.fromkeys(terms, 0.0))
    norm = math.hypot(*weights)
    expected = [w / norm for w in weights]
    if shortcut_weight is not None and len(weights) > 1:
        rest = math.sqrt(1.0 - shortcut_weight**2) / math.hypot(*weights[1:])
        expected = [math.copysign(shortcut_weight, weights[0]), *(rest * w for w in weights[1:])]
    assert ours == pytest.approx(expected, abs=1e-12)


def _leaf_weights(graph: Graph, index: int, found: dict[int, float], factor=1.0) -> list[float]:
    node = graph.nodes[index]
    if index in found or not isinstance(node, Sum):
        found[index] += factor
    else:
        for i, w in zip(node.inputs, node.weights, strict=True):
            _leaf_weights(graph, i, found, factor * w)
    return list(found.values())


def test_every_term_that_another_is_computed_from_is_a_shortcut() -> None:
    b = GraphBuilder()
    x = b.affine(b.input())
    y = b.sum([x, b.affine(b.activation(x))])
    outer = b.sum([x, b.sum([y, b.affine(b.activation(y))])])
    graph = b.build()
    removed = normalise_sums(graph, 0.0)
    assert [n.weights for n in removed.nodes if isinstance(n, Sum)] == [(1.0,)] * 3
    for weight in (None, 0.6):
        found = normalise_sums(graph, weight)
        # By hand: x and the two branches are independent, and y has 0.6 x in it, or 0.7071 x.
        weights = {i: n.weights for i, n in enumerate(found.nodes) if isinstance(n, Sum)}
        (own, first), (inner_y, second), (short, rest) = weights.values()
        parts = (short + rest * inner_y * own, rest * inner_y * first, rest * second)
        assert math.hypot(*parts) == pytest.approx(1.0)
        assert outer == max(weights)


def test_a_term_that_occurs_twice_counts_once_with_both_weights() -> None:
    b = GraphBuilder()
    x = b.affine(b.input())
    b.sum([x, b.sum([x, b.affine(b.activation(x))])])
    assert fold(normalise_sums(b.build()), lambda k: 1.0 + k, 0.0) == pytest.approx(1.0 / 5.0)
    assert fold(normalise_sums(b.build(), 0.6), lambda k: 1.0 + k, 0.0) == pytest.approx(0.64)


def test_a_projection_is_known_by_what_is_not_behind_it() -> None:
    b = GraphBuilder()
    x = b.activation(b.affine(b.input()))
    projection = b.affine(x)
    b.sum([b.affine(b.activation(b.affine(x))), projection])
    assert normalised_weights(b.build(), 0.6) == {7: pytest.approx((0.8, 0.6))}


def test_branches_of_equal_depth_have_no_shortcut() -> None:
    b = GraphBuilder()
    x = b.input()
    b.sum([b.activation(b.affine(x)), b.activation(b.affine(x))], [3.0, -4.0])
    graph = b.build()
    for weight in (None, 0.0, 0.5):
        assert normalised_weights(graph, weight) == {5: pytest.approx((0.6, -0.8))}


def test_a_sum_that_others_read_too_is_one_of_its_own() -> None:
    b = GraphBuilder()
    x = b.affine(b.input())
    inner = b.sum([x, b.affine(b.activation(x))])
    outer = b.sum([inner, b.affine(b.activation(inner))])
    weights = normalised_weights(b.build())
    half = math.sqrt(0.5)
    assert weights == {inner: pytest.approx((half, half)), outer: pytest.approx((half, half))}


def test_a_sum_that_nothing_reads_changes_no_weights() -> None:
    def weights_of_live_sums(*, dead: bool) -> list[float]:
        b = GraphBuilder()
        start = b.input()
        x = b.affine(start)
        y, z, w = (b.affine(b.activation(x)) for _ in range(3))
        inner = b.sum([x, y])
        if dead:
            b.sum([inner, z], [3.0, 1.0])
        out = b.sum([inner, w], [1.0, 2.0])
        found = normalised_weights(b.build(), 0.8)
        return [*found[inner], *found[out]]

    assert weights_of_live_sums(dead=True) == pytest.approx(weights_of_live_sums(dead=False))


def test_terms_of_weight_zero_are_gone_and_what_only_they_need_is_dead() -> None:
    graph = plain_resnet(1)
    found = reweight(graph, {6: (0.0, 1.0)})
    assert found.nodes[6] == Sum((5,), (1.0,))
    assert found.live == frozenset(range(7))
    assert reweight(graph, {6: (1.0, 0.0)}).live == frozenset({0, 1, 6})


def test_post_activation_blocks_become_pre_activation_blocks() -> None:
    graph = post_activation_resnet(3)
    found = to_residual_form(graph)
    b = GraphBuilder()
    u = b.affine(b.input())
    for _ in range(3):
        u = b.sum([b.affine(b.activation(b.affine(b.activation(u)))), u])
    b.affine(b.activation(u))
    second = b.build()
    for r, x in ((lambda k: 1.0 + k, 0.0), (lambda c: (1 + c) / 2, 0.1)):
        assert fold(normalise_sums(found, 0.6), r, x) == fold(normalise_sums(second, 0.6), r, x)
    assert len(without_mixing(graph)) == 3
    assert without_mixing(found) == []


def test_a_factor_on_the_activation_does_not_hide_it() -> None:
    b = GraphBuilder()
    u = b.affine(b.input())
    x = b.sum([b.activation(u)], [0.7])
    block = b.sum([x, b.affine(x)])
    b.activation(block)
    found = to_residual_form(b.build()).nodes[block]
    assert isinstance(found, Sum)
    assert found.inputs == (u, 4)


def test_a_shortcut_that_is_the_only_reader_of_an_activation_is_left_alone() -> None:
    b = GraphBuilder()
    x = b.input()
    b.activation(b.sum([b.activation(b.affine(x)), b.affine(x)]))
    graph = b.build()
    assert to_residual_form(graph) == graph
    assert [type(graph.nodes[i]) for i in without_mixing(graph)] == [Nonlinearity]


def test_a_sum_that_weights_read_needs_no_change() -> None:
    b = GraphBuilder()
    x = b.activation(b.affine(b.input()))
    b.affine(b.sum([x, b.affine(b.activation(b.affine(x)))]))
    graph = b.build()
    assert to_residual_form(graph) == graph
    assert without_mixing(graph) == []


def test_an_activation_right_behind_the_input_or_another_is_unmixed() -> None:
    b = GraphBuilder()
    x = b.activation(b.input())
    y = b.activation(b.concat([b.affine(x), x]))
    assert without_mixing(b.build()) == [x, y]


@pytest.mark.parametrize("weight", [1.0, -0.1, math.nan])
def test_a_weight_that_leaves_no_branch_is_refused(weight: float) -> None:
    with pytest.raises(GraphError, match=r"must be in \[0, 1\), got"):
        normalise_sums(plain_resnet(1), weight)

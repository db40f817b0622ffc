import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_oracle import graphs, layers, q_value, subnetworks, value
from skipless.core.graph import Affine, Concat, Graph, GraphBuilder, Input, Nonlinearity, Sum
from skipless.core.maps import leaky_relu_c_map
from skipless.core.network import (
    Point,
    fold,
    max_c_value,
    max_curvature,
    max_slope,
    maximum,
    propagate,
)

Function = Callable[[float], float]


def relu_c_map(c: float) -> float:
    return c + (math.sqrt(1.0 - c * c) - c * math.acos(c)) / math.pi


@st.composite
def piecewise_linear(draw: st.DrawFn) -> Function:
    """A non-decreasing function, above the diagonal here and below it there."""
    ys = sorted(draw(st.lists(st.floats(-2.0, 2.0), min_size=5, max_size=5)))
    return lambda x: float(np.interp(x, [-2.0, -1.0, 0.0, 1.0, 2.0], ys))


FUNCTIONS: dict[str, tuple[Function, float]] = {
    "identity": (lambda x: x, 0.7),
    "C of ReLU": (relu_c_map, 0.0),
    "C of ReLU from below": (relu_c_map, -0.9),
    "slope above 1": (lambda x: 1.5 * x, 1.0),
    "slope below 1": (lambda x: 0.7 * x, 1.0),
    "curvature": (lambda x: x + 0.4, 0.0),
    "negative curvature": (lambda x: x - 0.4, 0.0),
    "half, negative": (lambda x: x / 2, -1.0),
    "ceiling": (lambda x: min(x, 0.3), 0.5),
    "floor": (lambda x: max(x, 0.3), 0.1),
}

# Slopes up to 4 through at most 15 layers magnify a rounding error of 1e-16 to less than this.
CLOSE = 1e-9


@settings(max_examples=40, deadline=None)
@given(graphs(), st.sampled_from(sorted(FUNCTIONS)))
def test_fold_is_the_recursion_of_the_recipe(graph: Graph, name: str) -> None:
    r, x = FUNCTIONS[name]
    assert fold(graph, r, x) == pytest.approx(value(graph, (0, graph.output), r, x), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(graphs(), piecewise_linear(), st.floats(-2.0, 2.0))
def test_maximum_is_the_largest_of_all_subnetworks(graph: Graph, r: Function, x: float) -> None:
    found = list(subnetworks(graph)) or [(0, 0)]
    assert maximum(graph, r, x) == pytest.approx(
        max(value(graph, g, r, x) for g in found), abs=CLOSE
    )
    for function, start in FUNCTIONS.values():
        assert maximum(graph, function, start) == pytest.approx(
            max(value(graph, g, function, start) for g in found), abs=1e-12
        )


@settings(max_examples=40, deadline=None)
@given(graphs(), piecewise_linear(), st.floats(-2.0, 2.0))
def test_the_maximum_is_never_below_the_whole_network(graph: Graph, r: Function, x: float) -> None:
    # Within rounding errors, by which an interpolation may decrease.
    assert maximum(graph, r, x) >= fold(graph, r, x) - CLOSE


def test_layers_3_4_5_of_an_mlp_are_a_subnetwork_and_layers_3_4_6_are_not() -> None:
    mlp = Graph([Input(), *map(Affine, range(10))])
    found = set(subnetworks(mlp))  # the footnote of appendix B.1; the oracle itself is tried here
    assert (2, 5) in found
    assert found == {(v, b) for b in range(1, 11) for v in range(b)}


def test_a_residual_branch_does_not_compose_with_the_blocks_before_it() -> None:
    # "A sufficiently deep residual branch won't compose with any subnetwork" (appendix B.2): of
    # blocks and the next branch, the output of the blocks would be a second output.
    graph = Graph.residual(2, branch_depth=1, shortcut_weight=0.6)
    assert set(subnetworks(graph)) == {
        *((0, 1), (0, 4), (0, 7), (1, 4), (1, 7), (4, 7)),
        *((1, 2), (2, 3), (1, 3), (4, 5), (5, 6), (4, 6)),
    }
    assert max_curvature(graph, 1.0) == pytest.approx(2 * (1 - 0.6**2))


def test_layers_with_a_second_output_are_no_subnetwork() -> None:
    g = GraphBuilder()
    x = g.input()
    leak = g.activation(x)
    inner = g.sum([x, leak], weights=[0.6, 0.8])
    g.sum([leak, g.activation(inner)], weights=[1.0, 0.1])
    graph = g.build()
    assert (0, inner) not in set(subnetworks(graph))
    # The whole network, not the activation behind `inner` at 1.64.
    assert max_curvature(graph, 1.0) == pytest.approx((1.0 + 0.01 * 1.64) / 1.01)


def test_dead_ends_are_no_part_of_the_network() -> None:
    graph = Graph([Input(), Nonlinearity(0), Nonlinearity(1), Affine(1)])
    assert layers(graph) == {1, 3}
    assert maximum(graph, lambda x: x + 1, 0.0) == fold(graph, lambda x: x + 1, 0.0) == 1.0
    assert calls(maximum, graph) == calls(fold, graph) == 1


def test_a_lone_input_passes_its_value_on() -> None:
    assert fold(Graph([Input()]), relu_c_map, 0.25) == 0.25
    assert maximum(Graph([Input()]), relu_c_map, 0.25) == 0.25


def test_the_input_alone_is_no_subnetwork() -> None:
    assert maximum(Graph([Input(), Nonlinearity(0)]), lambda x: x / 2, 1.0) == 0.5


@given(st.integers(1, 40), st.floats(0.001, 2.0))
def test_curvature_of_a_vanilla_network_is_its_depth_times_the_local_one(L: int, k: float) -> None:
    assert max_curvature(Graph.chain(L), k) == pytest.approx(L * k)


@given(st.integers(1, 12), st.floats(0.0, 1.0), st.floats(0.001, 2.0))
def test_curvature_of_a_rescaled_resnet_is_that_of_b5(blocks: int, w: float, k: float) -> None:
    graph = Graph.residual(blocks, shortcut_weight=w)
    L = 3 * blocks
    assert fold(graph, lambda x: k + x, 0.0) == pytest.approx(L * (1 - w * w) * k, abs=1e-12)
    assert max_curvature(graph, k) == pytest.approx(max(3, L * (1 - w * w)) * k)


def resnet(blocks_per_group: tuple[int, ...], w: float, shared: bool) -> Graph:
    """The rescaled ResNets of the experiments (B.5): pre-activation, four transition blocks.

    The shortcut of a transition block reads the first activation of its branch if it is `shared`,
    as in the released code, else an activation of its own.
    """
    g = GraphBuilder()
    x = g.affine(g.input())
    for blocks in blocks_per_group:
        for block in range(blocks):
            first = g.activation(x)
            branch = g.affine(first)
            for _ in range(2):
                branch = g.affine(g.activation(branch))
            if block == 0:
                x = g.affine(first if shared else g.activation(x))
            x = g.sum([x, branch], [w, math.sqrt(1 - w * w)])
    g.affine(g.activation(x))
    return g.build()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("w", [0.0, 0.5, 0.8, 0.9, 1.0])
@pytest.mark.parametrize(("L", "groups"), [(50, (3, 4, 6, 3)), (101, (3, 4, 23, 3))])
def test_curvature_of_the_experiments_resnets_is_that_of_b5(
    L: int, groups: tuple[int, ...], w: float, shared: bool
) -> None:
    graph = resnet(groups, w, shared)
    assert sum(groups) == (L - 2) / 3
    # B.5 calls L the number of nonlinear layers, but its own count leaves L - 1 on the main path.
    assert graph.depth == L - 1
    expected = ((L - 6) * (1 - w * w) + 5) * 0.3
    assert fold(graph, lambda k: 0.3 + k, 0.0) == pytest.approx(expected)
    assert max_curvature(graph, 0.3) == pytest.approx(expected)


def test_a_transition_block_alone_has_the_curvature_of_its_branch() -> None:
    # B.5 puts a branch at 3 (1 - w²) C'' here; alone it is 3 C'', as B.5 says before.
    g = GraphBuilder()
    x = g.affine(g.input())
    branch = x
    for _ in range(3):
        branch = g.affine(g.activation(branch))
    g.sum([g.affine(g.activation(x)), branch], [0.9, math.sqrt(1 - 0.9**2)])
    assert max_curvature(g.build(), 0.3) == pytest.approx(3 * 0.3)


@pytest.mark.parametrize("shared", [True, False])
def test_max_c_value_of_resnet_50_is_the_iterated_map(shared: bool) -> None:
    w = 0.9
    c = 0.0
    for blocks in (3, 4, 6, 3):
        for block in range(blocks):
            shortcut = c if block else relu_c_map(c)
            branch = relu_c_map(relu_c_map(relu_c_map(c)))
            c = w * w * shortcut + (1 - w * w) * branch
    graph = resnet((3, 4, 6, 3), w, shared)
    assert max_c_value(graph, relu_c_map) == pytest.approx(relu_c_map(c), abs=1e-12)


@given(st.integers(1, 30), st.floats(0.0, 2.0))
def test_max_slope_of_a_vanilla_network_is_a_power_or_none(L: int, slope: float) -> None:
    # An affine layer by itself has slope 1.
    assert max_slope(Graph.chain(L), slope) == pytest.approx(max(1.0, slope**L))


@settings(max_examples=40, deadline=None)
@given(graphs(), st.floats(0.0, 3.0), st.floats(0.0, 3.0))
def test_max_slope_and_curvature_grow_with_the_local_ones(graph: Graph, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert max_slope(graph, low) <= max_slope(graph, high)
    assert max_curvature(graph, low) <= max_curvature(graph, high)
    assert max_curvature(graph, high) == pytest.approx(high * max_curvature(graph, 1.0))


@settings(max_examples=40, deadline=None)
@given(graphs(), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_max_c_value_falls_as_the_negative_slope_rises(graph: Graph, a: float, b: float) -> None:
    low, high = sorted((a, b))
    at = lambda alpha: max_c_value(graph, lambda c: leaky_relu_c_map(c, alpha))
    assert at(high) <= at(low) + 1e-15  # but for rounding in the maps themselves
    # Strictly, once a subnetwork has an activation that counts and the slopes truly differ.
    if at(0.0) > 0.0 and high - low > 1e-3:
        assert at(high) < at(low)


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_an_array_folds_like_its_numbers(graph: Graph) -> None:
    c = np.linspace(-1.0, 1.0, 5)
    halved = lambda x: 0.5 * x + 0.25
    expected = [fold(graph, halved, float(x)) for x in c]
    assert fold(graph, halved, c) == pytest.approx(np.array(expected), abs=1e-14)


def calls(reading: Callable[[Graph, Function, float], float], graph: Graph) -> int:
    count = 0

    def r(x: float) -> float:
        nonlocal count
        count += 1
        return 0.5 * x + 0.5

    reading(graph, r, 0.0)
    return count


@pytest.mark.parametrize("graph", [Graph.chain(10_000), Graph.residual(1000, shortcut_weight=0.8)])
def test_cost_is_linear_in_depth(graph: Graph) -> None:
    assert calls(fold, graph) == graph.activations
    assert calls(maximum, graph) <= graph.activations + 2


def test_repeated_branches_are_evaluated_once() -> None:
    g = GraphBuilder()
    x = g.input()
    g.sum([g.affine(g.activation(g.affine(x))) for _ in range(50)])
    assert calls(fold, g.build()) == calls(maximum, g.build()) == 1


def test_a_deep_chain_folds_to_its_closed_form() -> None:
    assert fold(Graph.chain(10_000), lambda k: k + 0.5, 0.0) == 5000.0
    assert maximum(Graph.chain(10_000), lambda k: k + 0.5, 0.0) == 5000.0


def unnormalised(blocks: int, weight: float = 1.0) -> Graph:
    g = GraphBuilder()
    x = stem = g.affine(g.input())
    for _ in range(blocks):
        x = g.sum([x, g.affine(g.activation(x))])
    g.sum([x, stem], [weight, 1.0])
    return g.build()


def test_unnormalised_sums_may_outgrow_floating_point() -> None:
    # Each of 2000 plain blocks is the mean of both its branches, though q ends at 2^2000.
    assert fold(unnormalised(2000), lambda k: k + 1, 0.0) == pytest.approx(1000)
    assert fold(unnormalised(2), lambda k: k + 1, 0.0) == pytest.approx(4 / 5 * 1)
    assert fold(unnormalised(2000, weight=0.0), lambda k: k + 1, 0.0) == 0.0
    with pytest.raises(ValueError, match=r"got q = inf at node 3\d\d\d \(Sum\)"):
        propagate(unnormalised(2000), lambda q: q, lambda c, q: c)


@given(st.floats(0.0, 1.0), st.floats(-1.0, 1.0))
def test_rounding_never_carries_a_c_value_out_of_bounds(w: float, c: float) -> None:
    graph = Graph.residual(5, shortcut_weight=w)
    assert fold(graph, relu_c_map, 1.0) == 1.0
    assert fold(graph, lambda x: x, c) == c
    points = propagate(graph, lambda q: q, lambda c, q: relu_c_map(c), Point(1.0, 1.0))
    assert {point.c for point in points} == {1.0}


def test_an_input_of_weight_zero_changes_nothing_even_if_infinite() -> None:
    graph = Graph.residual(3, shortcut_weight=1.0)
    assert fold(graph, lambda x: math.inf, 0.25) == 0.25


def test_propagate_agrees_with_section_2_3_by_hand() -> None:
    graph = Graph(
        [
            *(Input(), Affine(0), Nonlinearity(1), Sum((1, 2), (-2.0, 3.0))),
            *(Concat((1, 2), (1.0, 3.0)), Concat((1, 2))),
        ]
    )
    points = propagate(graph, lambda q: q / 2, lambda c, q: c * c * q, Point(1.0, 0.5))
    assert points[:3] == (Point(1.0, 0.5), Point(1.0, 0.5), Point(0.5, 0.25))
    assert points[3].q == 4 * 1 + 9 * 0.5
    assert points[3].c == pytest.approx((4 * 1 * 0.5 + 9 * 0.5 * 0.25) / 8.5)
    assert points[4].q == (1 * 1 + 3 * 0.5) / 4
    assert points[4].c == pytest.approx((1 * 1 * 0.5 + 3 * 0.5 * 0.25) / (1 * 1 + 3 * 0.5))
    assert points[5].q == (1 + 0.5) / 2
    assert points[5].c == pytest.approx((1 * 0.5 + 0.5 * 0.25) / 1.5)


def test_affine_layers_scale_and_shift_the_kernel_when_asked() -> None:
    [_, point, _] = propagate(
        Graph.chain(1), lambda q: q, lambda c, q: c, Point(2.0, 0.25), sigma_w=3.0, sigma_b=0.5
    )
    assert point.q == 9 * 2 + 0.25
    assert point.c == pytest.approx((9 * 2 * 0.25 + 0.25) / (9 * 2 + 0.25))


@settings(max_examples=40, deadline=None)
@given(graphs(), st.floats(-1.0, 1.0), st.floats(0.1, 10.0))
def test_propagate_ends_where_fold_does(graph: Graph, c: float, q: float) -> None:
    points = propagate(graph, lambda q: q, lambda c, q: relu_c_map(c), Point(q, c))
    assert points[graph.output].c == pytest.approx(fold(graph, relu_c_map, c), abs=1e-12)
    for index, point in enumerate(points):
        assert point.q == pytest.approx(q * float(q_value(graph, index)))


def test_a_vanished_signal_has_no_c_value() -> None:
    graph = Graph([Input(), Nonlinearity(0, origin="block1.relu")])
    with pytest.raises(ValueError, match=r"got q = 0 at node 1 \(Nonlinearity, block1.relu\)"):
        propagate(graph, lambda q: 0.0, lambda c, q: c / 0)


def test_a_sampled_network_has_the_kernel_that_propagate_says() -> None:
    # One hidden layer: at any width its expected kernel is the one of infinite width.
    graph = Graph(
        [
            *(Input(), Affine(0), Nonlinearity(1), Affine(2), Sum((1, 3), (0.5, 2.0))),
            Concat((1, 4), (40, 120)),
        ]
    )
    start = Point(1.0, -0.3)
    points = propagate(graph, lambda q: q, lambda c, q: relu_c_map(c), start)
    rng = np.random.default_rng(0)
    kernels: list[np.ndarray] = []
    x = np.linalg.cholesky([[1.0, start.c], [start.c, 1.0]]) * math.sqrt(2)  # mean square 1
    for _ in range(4000):
        stem = x @ rng.normal(size=(2, 120)) / math.sqrt(2)
        hidden = math.sqrt(2) * np.maximum(stem, 0.0)
        added = 0.5 * stem + 2.0 * hidden @ rng.normal(size=(120, 120)) / math.sqrt(120)
        joined = np.concatenate([stem[:, :40], added], axis=1)
        kernels.append(np.stack([layer @ layer.T / layer.shape[1] for layer in (added, joined)]))
    mean = np.mean(kernels, axis=0)
    error = np.std(kernels, axis=0) / math.sqrt(len(kernels))
    for measured, spread, point in zip(mean, error, points[4:], strict=True):
        assert abs(measured[0, 0] - point.q) < 4 * spread[0, 0]
        assert abs(measured[0, 1] - point.q * point.c) < 4 * spread[0, 1]


def test_c_values_of_a_relu_chain_only_rise() -> None:
    points = propagate(Graph.chain(50), lambda q: q, lambda c, q: relu_c_map(c))
    assert all(before.c <= after.c for before, after in pairwise(points))

"""Products of branches, and gates: their maps against brute force, quadrature and wide networks."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial.hermite_e import hermegauss

from graph_oracle import series, subnetworks, tangled_graphs, value
from skipless import DKS, EOC, TAT, Graph, predict, solve
from skipless.core.activations import activation
from skipless.core.bands import FiniteWidth
from skipless.core.gates import recognise_gate
from skipless.core.graph import (
    Affine,
    Fixed,
    GraphBuilder,
    GraphError,
    Input,
    Nonlinearity,
    Product,
    Sum,
)
from skipless.core.maps import leaky_relu_c_map
from skipless.core.network import (
    Point,
    Size,
    fold,
    max_c_value,
    max_curvature,
    max_slope,
    maximum,
    propagate,
)
from skipless.core.predict import approximations, dependent_sums
from skipless.core.recognise import PROBE
from skipless.core.rescale import normalise_sums
from skipless.core.solution import Solution, UnreachableTargetError

PRODUCTS = tangled_graphs(products=True)
CLOSE = 1e-9  # slopes add up over products, so that rounding errors do


def gated_blocks(blocks: int, gate: str = "sigmoid") -> Graph:
    """Blocks x + a ⊙ gate(b), where a and b are layers of φ(x)."""
    g = GraphBuilder()
    x = g.affine(g.input())
    for _ in range(blocks):
        hidden = g.activation(x)
        signal, logit = g.affine(hidden), g.affine(hidden)
        x = g.sum([x, g.product([signal, g.fixed(logit, gate)])])
    return normalise_sums(g.build())


@settings(max_examples=60, deadline=None)
@given(PRODUCTS, st.floats(0.0, 1.0))
def test_products_multiply_in_every_subnetwork(graph: Graph, c: float) -> None:
    def r(x: float) -> float:
        return leaky_relu_c_map(x, 0.2)

    assert fold(graph, r, c) == pytest.approx(value(graph, (0, graph.output), r, c), abs=CLOSE)
    most = max(value(graph, g, r, c) for g in list(subnetworks(graph)) or [(0, 0)])
    assert maximum(graph, r, c) == pytest.approx(most, abs=CLOSE)


@settings(max_examples=60, deadline=None)
@given(PRODUCTS, st.sampled_from([0.0, 0.3, 2.0]))
def test_slopes_and_curvatures_are_those_of_power_series(graph: Graph, curvature: float) -> None:
    found = [series(graph, g, curvature) for g in list(subnetworks(graph)) or [(0, 0)]]
    assert max_slope(graph, 1.0) == pytest.approx(max(s for _, s, _ in found), rel=CLOSE)
    most = max(2.0 * k for *_, k in found)
    assert max_curvature(graph, curvature) == pytest.approx(most, rel=CLOSE, abs=CLOSE)


def test_slope_and_curvature_of_a_gated_block_are_derivatives() -> None:
    g = GraphBuilder()
    x = g.affine(g.input())
    g.product([g.affine(x), g.fixed(g.affine(g.fixed(g.affine(x), "sigmoid")), "sigmoid")])
    graph, h = g.build(), 1e-3
    values = [fold(graph, lambda c: c, 1.0 - i * h) for i in range(4)]
    slope = (11.0 * values[0] - 18.0 * values[1] + 9.0 * values[2] - 2.0 * values[3]) / (6.0 * h)
    curvature = (2.0 * values[0] - 5.0 * values[1] + 4.0 * values[2] - values[3]) / h**2
    assert max_slope(graph, 1.0) == pytest.approx(slope, rel=1e-6)
    assert max_curvature(graph, 0.0) == pytest.approx(curvature, rel=1e-3)


@pytest.mark.parametrize("c", [-0.6, 0.0, 0.7])
def test_gates_have_the_maps_of_gauss_hermite_quadrature(c: float) -> None:
    g = GraphBuilder()
    x = g.input()
    g.product([g.affine(x), g.fixed(g.affine(x), "sigmoid")])
    point = propagate(g.build(), lambda q: q, lambda c, _: c, Point(1.5, c))[-1]
    z, w = hermegauss(60)
    u, v = math.sqrt(1.5) * z[:, None], math.sqrt(1.5) * (c * z[:, None] + math.sqrt(1 - c * c) * z)
    p = np.outer(w, w) / (2.0 * math.pi)

    def mean(f: np.ndarray) -> float:
        return float(np.sum(p * f))

    gate, other = 1.0 / (1.0 + np.exp(-u)), 1.0 / (1.0 + np.exp(-v))
    q = 1.5 * mean(gate**2)
    assert point.q == pytest.approx(q, rel=1e-10)
    assert point.c == pytest.approx(mean(u * v) / 1.5 * 1.5 * mean(gate * other) / q, rel=1e-9)


def run(
    graph: Graph, phi: Solution, width: int, rng: np.random.Generator, cosine: float
) -> np.ndarray:
    """q and the inner product at every node of a network with Gaussian weights, for one pair."""
    u, v = rng.standard_normal((2, width))
    u, v = (x * math.sqrt(width) / np.linalg.norm(x) for x in (u, v - u * (u @ v) / (u @ u)))
    values: list[np.ndarray] = []
    for node in graph.nodes:
        match node:
            case Input():
                x = np.stack([u, cosine * u + math.sqrt(1.0 - cosine**2) * v])
            case Affine(i):
                x = values[i] @ rng.standard_normal((width, width)) / math.sqrt(width)
            case Nonlinearity(i):
                x = phi(values[i])
            case Fixed(i):
                x = node.scale * (node.phi(values[i]) + node.shift)
            case Product(inputs):
                x = np.prod([values[i] for i in inputs], axis=0)
            case Sum(inputs, weights):
                x = np.tensordot(weights, [values[i] for i in inputs], 1)
            case _:
                raise AssertionError("no other node is in these graphs")
        values.append(x)
    return np.array([[np.mean(x[0] ** 2), x[0] @ x[1] / width] for x in values])


def test_wide_networks_have_the_predicted_kernel() -> None:
    graph = gated_blocks(2)
    solution, rng = solve(graph), np.random.default_rng(0)
    points = predict(graph, solution, Point(1.0, 0.4))
    expected = np.array([[p.q, p.q * p.c] for p in points])
    errors = []
    for width, draws in ((64, 160), (576, 40)):
        found = np.array([run(graph, solution, width, rng, 0.4) for _ in range(draws)])
        error = found.std(axis=0, ddof=1) / math.sqrt(draws)
        assert np.all(np.abs(found.mean(axis=0) - expected) < 4.0 * error + 4.0 / width)
        errors.append(np.median(np.abs(found[:, 2:] - expected[2:])))
    assert errors[0] / errors[1] == pytest.approx(3.0, rel=0.35)  # √(576 / 64)


def test_the_noise_of_a_product_is_that_of_sampled_ones() -> None:
    g = GraphBuilder()
    x = g.input()
    a, b = g.affine(x), g.affine(x)
    g.product([a, g.fixed(b, "sigmoid")])
    graph, n, c, draws = g.build(), 64, 0.5, 4000
    finite = FiniteWidth(graph, solve(Graph.chain(3)), n, "gaussian")
    medians = dict(enumerate(predict(graph, solve(Graph.chain(3)), Point(1.0, c))))
    step = finite.step(4, medians)
    rng = np.random.default_rng(1)
    z = rng.standard_normal((2, 2, draws, n))
    pairs = np.stack([z[0], c * z[0] + math.sqrt(1 - c * c) * z[1]])  # (sample, factor, draw, n)
    gate = 1.0 / (1.0 + np.exp(-pairs[:, 1]))
    log_q = [np.log(np.mean(f[0] ** 2, axis=-1)) for f in (pairs[:, 0] * gate, pairs[:, 0], gate)]
    rest = log_q[0] - log_q[1] - log_q[2]
    assert np.var(rest) == pytest.approx(step.noise.single, rel=4.0 * math.sqrt(2.0 / draws))


def test_gates_are_scaled_so_that_q_stays_one() -> None:
    graph = gated_blocks(3, "tanh")
    assert [p.q for p in predict(graph, solve(graph))] == pytest.approx([1.0] * len(graph.nodes))
    negative = Graph([*Graph.chain(1).nodes, Fixed(2, activation("sigmoid"), -2.0)])
    gate = normalise_sums(negative).nodes[3]
    assert isinstance(gate, Fixed)
    assert gate.scale < 0.0


def test_tat_aims_for_a_share_of_what_relu_reaches() -> None:
    graph = gated_blocks(3)
    most = max_c_value(graph, lambda c: leaky_relu_c_map(c, 0.0))
    solution = solve(graph)
    assert solution.targets["mu0"] == pytest.approx(0.8 * most)
    assert solution.negative_slope is not None
    reached = max_c_value(graph, lambda c: leaky_relu_c_map(c, solution.negative_slope or 0.0))
    assert reached == pytest.approx(0.8 * most, abs=1e-10)


def test_smooth_activations_get_what_gates_leave_of_the_target() -> None:
    graph = gated_blocks(2)
    least = max_curvature(graph, 0.0)
    assert least > 0.0
    solution = solve(graph, TAT(tau=least + 0.5), "tanh")
    local = solution.targets["C''(1)"]
    assert max_curvature(graph, local) == pytest.approx(least + 0.5, rel=1e-9)
    assert max_slope(graph, solve(graph, DKS(zeta=1.5), "softplus").targets["C'(1)"]) == (
        pytest.approx(1.5)
    )


def test_targets_below_what_products_have_are_refused() -> None:
    graph = gated_blocks(6)
    for method in (TAT(tau=1e-3), DKS(zeta=1.001)):
        with pytest.raises(UnreachableTargetError, match="the products of this network"):
            solve(graph, method, "softplus")
    with pytest.raises(UnreachableTargetError, match="products and gates do not keep"):
        solve(graph, EOC(sigma_b=0.2), "tanh")
    assert solve(graph, EOC(), "relu").sigma_w == pytest.approx(math.sqrt(2.0))


def test_a_gate_by_itself_is_no_subnetwork() -> None:
    g = GraphBuilder()
    x = g.affine(g.input())
    g.product([g.affine(x), g.fixed(g.affine(x), "sigmoid")])
    assert max_c_value(g.build(), lambda c: c) == 0.0


def test_products_with_weights_of_their_own_are_independent_terms() -> None:
    assert dependent_sums(gated_blocks(2)) == []
    g = GraphBuilder()
    x = g.affine(g.input())
    g.sum([x, g.product([x, g.fixed(g.affine(x), "sigmoid")])])
    assert dependent_sums(g.build()) == [5]
    g.activation(4)
    assert approximations(g.build()) == ["activation of unweighted input at "]


def test_a_part_of_the_channels_fluctuates_around_the_whole() -> None:
    g = GraphBuilder()
    whole = g.affine(g.input())
    part = g.concat([whole])
    finite = FiniteWidth(g.build(), solve(Graph.chain(3)), {1: Size(64), part: Size(16)})
    rng, at = np.random.default_rng(2), {1: Point(1.0, 0.0)}
    x = rng.standard_normal((20_000, 64))
    ratio = np.mean(x[:, :16] ** 2, axis=1) / np.mean(x**2, axis=1)
    # A share of a χ² variable has variance 2 / n (1 - n / N) / (1 + 2 / N).
    assert np.var(ratio) * (1.0 + 2.0 / 64) == pytest.approx(
        finite.step(part, at).noise.single, rel=4.0 * math.sqrt(2.0 / 20_000)
    )


def test_graphs_with_gates_are_shown_and_pickled() -> None:
    graph = gated_blocks(1, "hard_sigmoid")
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert "Product(3 · 5)" in str(graph)
    assert "·(hard_sigmoid(4))" in str(graph)


def test_malformed_products_are_refused() -> None:
    g = GraphBuilder()
    g.product([])
    with pytest.raises(GraphError, match="multiplies nothing"):
        Graph([*Graph.chain(1).nodes, *g.nodes])
    with pytest.raises(GraphError, match="finite scale"):
        Graph([*Graph.chain(1).nodes, Fixed(1, activation("tanh"), 0.0)])


@pytest.mark.parametrize("scale", [1.8462285453386056, -0.1234567890123456])
def test_the_scale_of_a_gate_is_read_as_exactly_as_it_is_written(scale: float) -> None:
    # Errors add up over hundreds of gates, and what is written is compared with what is read.
    found = recognise_gate(scale * activation("sigmoid")(PROBE))
    assert found is not None
    assert found.scale == pytest.approx(scale, rel=1e-11)

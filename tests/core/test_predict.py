"""predict: q and c values layer by layer, against section 2.3 done by hand and sampled channels."""

import math

import numpy as np
import pytest

from skipless import DKS, EOC, TAT, Graph, GraphBuilder, solve
from skipless.core.activations import activation, leaky_relu
from skipless.core.maps import c_map, q_map
from skipless.core.network import Point, fold
from skipless.core.predict import dependent_sums, predict, without_mixing
from skipless.core.rules import composition

CHAIN = Graph.chain(6)
SAMPLES = 400_000


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (TAT(eta=0.4), "leaky_relu"),
        (TAT(), "tanh"),
        (DKS(), "softplus"),
        (DKS(), "leaky_relu"),
        (EOC(sigma_b=0.2), "tanh"),
        (EOC(), "relu"),
    ],
)
def test_predictions_are_the_local_maps_one_after_the_other(method, name) -> None:
    solution = solve(CHAIN, method, name)
    points = predict(CHAIN, solution, Point(1.0, 0.3))
    q, c = 1.0, 0.3
    for layer in range(6):
        weighted = solution.sigma_w**2 * q
        c = (weighted * c + solution.sigma_b**2) / (weighted + solution.sigma_b**2)
        q = weighted + solution.sigma_b**2
        assert points[2 * layer + 1].q == pytest.approx(q)
        assert points[2 * layer + 1].c == pytest.approx(c, abs=1e-9)
        q, c = q_map(solution.shaped, q), float(c_map(solution.shaped, c, q))
        assert points[2 * layer + 2].q == pytest.approx(q)
        assert points[2 * layer + 2].c == pytest.approx(c, abs=1e-9)


def test_predictions_end_where_the_global_map_does() -> None:
    graph = Graph.residual(5, shortcut_weight=0.8)
    solution = solve(graph, TAT(), "gelu")
    last = predict(graph, solution)[-1]
    assert last.c == pytest.approx(fold(graph, lambda c: float(solution.c_map(c)), 0.0), abs=1e-9)
    assert last.q == pytest.approx(1.0)


def separable(blocks: int) -> Graph:
    """A layer, then depthwise and pointwise convolutions in turn, each of them activated."""
    b = GraphBuilder()
    x = b.activation(b.affine(b.input()))
    for _ in range(blocks):
        x = b.activation(b.affine(b.activation(b.affine(x, mixes=False))))
    return b.build()


@pytest.mark.parametrize(
    ("method", "phi"),
    [(TAT(eta=0.3), "leaky_relu"), (DKS(), "softplus"), (TAT(), "tanh"), (EOC(), "relu")],
)
def test_channels_that_change_signs_have_the_predicted_q_and_c(method, phi) -> None:
    graph = separable(1)
    solution = solve(Graph.chain(3), method, phi)
    points = predict(graph, solution, Point(1.0, 0.4))
    generator = np.random.default_rng(0)
    x, y = points[1].q, points[1].c  # of the layer before the first activation
    u, v = generator.normal(size=(2, SAMPLES)) * math.sqrt(x)
    v = y * u + math.sqrt(1.0 - y * y) * v
    signs = solution.sigma_w * generator.choice([-1.0, 1.0], SAMPLES)
    first, second = (solution(signs * solution(z)) for z in (u, v))
    q, product = first**2, first * second
    four_errors = lambda a: 4.0 * a.std() / math.sqrt(SAMPLES)
    assert points[4].q == pytest.approx(q.mean(), abs=four_errors(q))
    assert points[4].q * points[4].c == pytest.approx(product.mean(), abs=four_errors(product))


def test_a_depthwise_convolution_before_weights_changes_nothing() -> None:
    mixed, plain = GraphBuilder(), GraphBuilder()
    for b in (mixed, plain):
        x = b.activation(b.affine(b.input()))
        if b is mixed:
            x = b.affine(x, mixes=False)
        b.activation(b.affine(x))
    solution = solve(plain.build(), TAT(eta=0.3))
    last = [predict(b.build(), solution)[-1].c for b in (mixed, plain)]
    assert last[0] == pytest.approx(last[1], abs=1e-12)
    assert without_mixing(mixed.build()) == []


def test_unmixed_activations_are_found() -> None:
    graph = separable(2)
    assert without_mixing(graph) == [4, 8]
    assert predict(graph, solve(graph, TAT(eta=0.5)))[-1].c != pytest.approx(0.5, abs=1e-3)


def test_a_composition_has_the_kinks_where_the_inner_function_meets_those_of_the_outer() -> None:
    f = composition(activation("hard_tanh"), activation("square"))
    assert f.kinks == pytest.approx((-1.0, 1.0))
    x = np.linspace(-3.0, 3.0, 1001) + 1e-4
    assert np.array_equal(f(x), np.minimum(x * x, 1.0))
    assert np.array_equal(f.slope(x), np.where(np.abs(x) < 1.0, 2.0 * x, 0.0))
    assert np.array_equal(f.curvature(x), np.where(np.abs(x) < 1.0, 2.0, 0.0))


def test_two_leaky_relus_have_the_maps_of_one() -> None:
    f, one = composition(leaky_relu(0.5), leaky_relu(0.5)), leaky_relu(0.25)
    assert q_map(f, 1.0) == pytest.approx(q_map(one, 1.0), rel=1e-12)
    assert c_map(f, 0.3) == pytest.approx(c_map(one, 0.3), rel=1e-12)


def test_an_activation_of_a_concatenation_acts_on_each_part() -> None:
    """As in a DenseNet, whose features differ in c: the mean of maps, not the map of the mean."""
    b, solution = GraphBuilder(), solve(Graph.chain(3), TAT(eta=0.4))
    x = b.affine(b.input())
    deep = b.affine(b.activation(b.affine(b.activation(x))))
    raw = b.activation(x)
    joined = b.concat([x, deep, raw], [2.0, 1.0, 1.0])
    last = b.activation(joined)
    points = predict(b.build(), solution)
    c = lambda phi, at: float(c_map(phi, points[at].c))
    twice = composition(solution.shaped, solution.shaped)
    q = q_map(twice, 1.0)
    expected = (2.0 * c(solution.shaped, x) + c(solution.shaped, deep) + q * c(twice, x)) / (
        3.0 + q
    )
    assert points[last].c == pytest.approx(expected, abs=1e-9)
    assert points[last].q == pytest.approx((3.0 + q) / 4.0)


def test_a_sum_of_terms_with_a_common_part_is_predicted_exactly() -> None:
    b, solution = GraphBuilder(), solve(Graph.chain(3), TAT(eta=0.4))
    x = b.affine(b.input())
    branch = b.affine(b.activation(x))
    y = b.sum([x, branch], [0.6, 0.8])
    total = b.sum([y, x], [1.0, 0.5])
    points = predict(b.build(), solution)
    assert points[total].q == pytest.approx(1.1**2 + 0.8**2)
    assert points[total].c == pytest.approx(0.64 * points[branch].c / (1.1**2 + 0.64))
    assert dependent_sums(b.build()) == []


def test_sums_of_dependent_terms_are_found() -> None:
    b = GraphBuilder()
    x = b.affine(b.input())
    a = b.activation(x)
    found = b.sum([x, a])
    b.sum([b.affine(found), b.affine(b.activation(b.affine(found)))])
    assert dependent_sums(b.build()) == [found]

"""The theorems and propositions of the paper hold for random networks, and their numbers are right.

Bounds are tried where they are nearly attained, so that a smaller bound would fail.
"""

# mpmath makes its functions at run time.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportInvalidTypeForm=false

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.optimize import brentq

from graph_oracle import graphs
from published import ETAS, RESNET_STAGES, slower_flow, stated_shortcut_weight
from skipless.core.activations import Activation, activation, leaky_relu, transform
from skipless.core.graph import Graph, GraphBuilder
from skipless.core.maps import (
    c_map,
    c_map_curvature,
    c_map_slope,
    leaky_relu_c_map,
    leaky_relu_c_map_slope,
    taylor_coefficients,
)
from skipless.core.network import fold, max_curvature
from skipless.core.theory import (
    DeviationBound,
    equivalent_shortcut_weight,
    imagenet_resnet_curvature,
    infinite_depth_c_map,
    leaky_relu_bound,
    limit_time,
    relu_from_leaky_relus,
    rescaled_resnet_curvature,
    smooth_bound,
)

Map = Callable[[float], float]
GRID = np.linspace(-1.0, 1.0, 41)
ROUNDING = 1e-12  # of a difference quotient over a step of the grid, after some layers
shortcut_weights = st.floats(0.0, 1.0)
slopes = st.floats(0.0, 1.0)
networks = (
    st.builds(Graph.chain, st.integers(1, 30))
    | st.builds(
        lambda blocks, depth, w: Graph.residual(blocks, depth, shortcut_weight=w),
        st.integers(1, 8),
        st.integers(1, 3),
        shortcut_weights,
    )
    | graphs()
)


def deviation(c_f: Map) -> DeviationBound:
    """The largest |C_f(c) - c| on a grid, and the largest |slope - 1| of its chords.

    A chord is as steep as the curve is somewhere, so that it keeps to any bound on the slope.
    """
    values = np.array([c_f(float(c)) for c in GRID])
    chords = np.diff(values) / np.diff(GRID)
    return DeviationBound(float(np.abs(values - GRID).max()), float(np.abs(chords - 1.0).max()))


def assert_within(found: DeviationBound, bound: DeviationBound) -> None:
    assert found.value <= bound.value + ROUNDING
    assert found.slope <= bound.slope + ROUNDING


@settings(max_examples=80, deadline=None)
@given(networks, slopes)
def test_theorem_1_bounds_every_network_of_leaky_relus(graph: Graph, alpha: float) -> None:
    c_f = lambda c: fold(graph, lambda t: leaky_relu_c_map(t, alpha), c)
    assert_within(deviation(c_f), leaky_relu_bound(c_f(0.0)))


@pytest.mark.parametrize("alpha", [0.5, 0.9])
def test_theorem_1_is_nearly_attained_by_a_single_layer(alpha: float) -> None:
    # C(0) = κ/π, and C(-1) + 1 = 1 - C′(-1) = κ, which is π/4 = 0.785 of the bound.
    kappa = (1.0 - alpha) ** 2 / (1.0 + alpha**2)
    bound = leaky_relu_bound(leaky_relu_c_map(0.0, alpha))
    assert bound.value == bound.slope == pytest.approx(4.0 * kappa / math.pi)
    found = deviation(lambda c: leaky_relu_c_map(c, alpha))
    assert found.value == pytest.approx(math.pi / 4.0 * bound.value)
    assert 1.0 - leaky_relu_c_map_slope(-1.0, alpha) == pytest.approx(math.pi / 4.0 * bound.slope)


def test_theorem_1_is_attained_by_a_deep_relu_network() -> None:
    # C_f is almost constant there, so C_f(-1) + 1 is almost 1 + C_f(0), and the slope is zero.
    c_f = lambda c: fold(Graph.chain(300), lambda t: leaky_relu_c_map(t, 0.0), c)
    found, bound = deviation(c_f), leaky_relu_bound(c_f(0.0))
    assert found.value > 0.9999 * bound.value
    assert found.slope > 0.9999 * bound.slope


@pytest.mark.parametrize(
    ("c_at_zero", "value", "slope"),
    [(0.0, 0.0, 0.0), (0.1, 0.4, 0.4), (0.25, 1.0, 1.0), (0.3, 1.2, 1.0), (0.5, 1.5, 1.0)],
)
def test_theorem_1_by_hand(c_at_zero: float, value: float, slope: float) -> None:
    bound = leaky_relu_bound(c_at_zero)
    assert (bound.value, bound.slope) == (pytest.approx(value), pytest.approx(slope))


@st.composite
def smooth_c_maps(draw: st.DrawFn) -> tuple[Map, float]:
    """A C map with C(1) = C′(1) = 1, and its C″(1).

    Any b_n >= 0 for n >= 2 with Σ n b_n <= 1 leave b_1 = 1 - Σ n b_n and b_0 = Σ (n - 1) b_n; the
    map is that of the smooth φ whose Hermite coefficients are √b_n.
    """
    b = np.zeros(8)
    parabola = st.just([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])  # the extreme case
    b[2:] = draw(st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6) | parabola)
    n = np.arange(8.0)
    b *= draw(st.floats(0.0, 1.0)) / max(float(n @ b), 1.0)
    b[1], b[0] = 1.0 - n @ b, (n - 1.0)[2:] @ b[2:]
    c_map = lambda c: float(np.polynomial.polynomial.polyval(c, b))
    return c_map, float((n * (n - 1.0)) @ b)


@settings(max_examples=80, deadline=None)
@given(networks, smooth_c_maps())
def test_theorem_2_bounds_every_smooth_network(graph: Graph, local: tuple[Map, float]) -> None:
    c_map, curvature = local
    global_curvature = fold(graph, lambda k: curvature + k, 0.0)
    assert_within(deviation(lambda c: fold(graph, c_map, c)), smooth_bound(global_curvature))


def parabola(epsilon: float) -> Activation:
    """φ = √ε + √(1 - 2ε) z + √ε (z² - 1)/√2, so that C = ε + (1 - 2ε) c + ε c²."""
    a, b, d = math.sqrt(epsilon), math.sqrt(1.0 - 2.0 * epsilon), math.sqrt(epsilon / 2.0)
    return Activation(
        lambda x: a + b * x + d * (x * x - 1.0),
        lambda x: b + 2.0 * d * x,
        lambda x: np.full_like(x, 2.0 * d),
    )


@pytest.mark.parametrize("epsilon", [0.01, 0.2])
def test_theorem_2_is_attained_by_a_parabola(epsilon: float) -> None:
    # C″(1) = 2ε; C(-1) + 1 = 1 - C′(-1) = 4ε: not a constant smaller than 2 would do.
    phi = parabola(epsilon)
    assert float(c_map_slope(phi, 1.0)) == pytest.approx(1.0)
    bound = smooth_bound(float(c_map_curvature(phi, 1.0)))
    assert bound == DeviationBound(pytest.approx(4.0 * epsilon), pytest.approx(4.0 * epsilon))
    assert float(c_map(phi, -1.0)) + 1.0 == pytest.approx(bound.value)
    assert 1.0 - float(c_map_slope(phi, -1.0)) == pytest.approx(bound.slope)
    b = taylor_coefficients(phi, 4)
    assert b == pytest.approx([epsilon, 1.0 - 2.0 * epsilon, epsilon, 0.0], abs=1e-14)


@pytest.mark.parametrize("depth", [1, 10, 100])
def test_theorem_2_bounds_deep_networks_of_a_shaped_sine(depth: int) -> None:
    # With δ² = (q cosh q - sinh q) exp(-q), the C map of sin(√q z) + δ has C′(1) = 1 and
    # C″(1) = q tanh q, as from E sin sin = exp(-q) sinh(qc); τ = L C″(1) is 0.3 here.
    q = float(brentq(lambda t: t * math.tanh(t) - 0.3 / depth, 1e-6, 2.0, xtol=1e-15))
    shift = math.sqrt((q * math.cosh(q) - math.sinh(q)) * math.exp(-q))
    phi = transform(activation("sin"), input_scale=math.sqrt(q), output_shift=shift)
    assert float(c_map_slope(phi, 1.0)) == pytest.approx(1.0, abs=1e-12)
    assert depth * float(c_map_curvature(phi, 1.0)) == pytest.approx(0.3)
    local = dict(zip(GRID.tolist(), c_map(phi, GRID).tolist(), strict=True))
    total = shift**2 + math.exp(-q) * math.sinh(q)
    closed = lambda c: (shift**2 + math.exp(-q) * math.sinh(q * c)) / total
    assert local == pytest.approx({c: closed(c) for c in local}, abs=1e-12)
    found = deviation(lambda c: fold(Graph.chain(depth), closed, c))
    assert_within(found, smooth_bound(0.3))
    assert found.value > 0.3 * smooth_bound(0.3).value


@given(st.integers(1, 20), slopes, st.floats(-1.0, 1.0))
def test_proposition_1_with_the_weight_of_its_proof(depth: int, alpha: float, c: float) -> None:
    w = equivalent_shortcut_weight(alpha)
    chain, resnet = Graph.chain(depth), Graph.residual(depth, 1, shortcut_weight=w)
    leaky = fold(chain, lambda t: leaky_relu_c_map(t, alpha), c)
    assert fold(resnet, lambda t: leaky_relu_c_map(t, 0.0), c) == pytest.approx(leaky, abs=1e-13)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.95])
def test_proposition_1_fails_with_the_weight_of_its_statement(alpha: float) -> None:
    w = stated_shortcut_weight(alpha)
    assert w == pytest.approx(equivalent_shortcut_weight(alpha) / math.sqrt(2.0))
    resnet = Graph.residual(5, 1, shortcut_weight=w)
    leaky = fold(Graph.chain(5), lambda t: leaky_relu_c_map(t, alpha), 0.0)
    assert abs(fold(resnet, lambda t: leaky_relu_c_map(t, 0.0), 0.0) - leaky) > 0.01


def test_proposition_1_asks_for_a_slope_that_has_a_weight() -> None:
    assert equivalent_shortcut_weight(0.0) == 0.0
    assert equivalent_shortcut_weight(0.5) == pytest.approx(math.sqrt(0.8))
    with pytest.raises(ValueError, match="alpha must be >= 0, got"):
        equivalent_shortcut_weight(-0.5)


@pytest.mark.parametrize("eta", [0.1, 0.5, *ETAS, 0.999])
def test_the_time_of_proposition_3_is_its_integral(eta: float) -> None:
    with mp.workdps(30):
        speed = lambda x: mp.sqrt(1 - x * x) - x * mp.acos(x)
        end = mpf(eta)
        wanted = mp.quad(lambda x: 1 / speed(x), [0, end / 2, end])
    assert limit_time(eta) == pytest.approx(float(wanted), rel=1e-12)


@pytest.mark.parametrize("eta", [1 - 1e-6, 1 - 1e-9])
def test_the_time_of_proposition_3_is_accurate_for_eta_near_one(eta: float) -> None:
    with mp.workdps(40):
        start = mp.acos(mpf(eta))
        ends = [start * 4**k for k in range(20) if start * 4**k < mp.pi / 2]
        g = lambda t: mp.sin(t) / (mp.sin(t) - t * mp.cos(t))
        wanted = mp.quad(g, [*ends, mp.pi / 2])
    assert limit_time(eta) == pytest.approx(float(wanted), rel=1e-12)


@pytest.mark.parametrize("eta", [0.3, *ETAS])
def test_the_limit_of_proposition_3_solves_its_equation(eta: float) -> None:
    found = infinite_depth_c_map(GRID, eta)
    assert found.shape == GRID.shape
    assert found[20] == pytest.approx(eta, abs=1e-12)  # c = 0
    assert found[-1] == 1.0
    assert np.all(np.diff(found) > 0.0)
    # From c to ψ(c, T) the flow takes the time T, whatever c.
    with mp.workdps(20):
        for c, end in ((-1.0, found[0]), (0.5, found[30])):
            angles = mp.acos(mpf(float(end))), mp.acos(mpf(c))
            time = mp.quad(lambda t: mp.sin(t) / (mp.sin(t) - t * mp.cos(t)), angles)
            assert float(time) == pytest.approx(limit_time(eta), rel=1e-10)


@pytest.mark.parametrize("eta", [0.1, 0.5, *ETAS, 0.999])
def test_the_flow_is_ahead_of_the_slower_one_of_the_proof(eta: float) -> None:
    time = limit_time(eta)
    assert slower_flow(time) < eta
    assert slower_flow(1.3 * time) > eta  # and not by much, as both slow down alike near 1


def trelu_chain(depth: int, eta: float) -> Map:
    """C_f of a chain with C_f(0) = η; its step κ is searched for here."""

    def c_f(kappa: float, c: float) -> float:
        for _ in range(depth):
            c += kappa / math.pi * (math.sqrt(max(0.0, 1.0 - c * c)) - c * math.acos(min(c, 1.0)))
        return c

    kappa = float(brentq(lambda k: c_f(k, 0.0) - eta, 0.0, 1.0, xtol=1e-15))
    # κ = (1 - α)² / (1 + α²), solved for the α in [0, 1].
    alpha = (1.0 - math.sqrt(1.0 - (1.0 - kappa) ** 2)) / (1.0 - kappa)
    return lambda c: fold(Graph.chain(depth), lambda t: leaky_relu_c_map(t, alpha), c)


@pytest.mark.parametrize("eta", [0.5, 0.9])
def test_deep_trelu_chains_converge_to_the_limit_at_rate_one_over_depth(eta: float) -> None:
    c = np.array([-1.0, -0.8, -0.3, 0.4, 0.8])
    limit = infinite_depth_c_map(c, eta)
    errors: list[float] = []
    for depth in (1000, 2000):
        c_f = trelu_chain(depth, eta)
        assert c_f(0.0) == pytest.approx(eta, abs=1e-9)
        errors.append(float(np.abs([c_f(float(t)) for t in c] - limit).max()))
    assert errors[0] < 2e-3
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("eta", [1.0, -0.1, 1.5, math.nan])
def test_the_flow_reaches_neither_one_nor_what_lies_behind_it(eta: float) -> None:
    with pytest.raises(ValueError, match=r"eta must be in \[0, 1\), got"):
        limit_time(eta)
    with pytest.raises(ValueError, match=r"eta must be in \[0, 1\), got"):
        infinite_depth_c_map(0.5, eta)


@pytest.mark.parametrize("c", [1.1, -2.0, math.nan])
def test_the_limit_takes_cosines_only(c: float) -> None:
    with pytest.raises(ValueError, match=r"c must be in \[-1, 1\], got"):
        infinite_depth_c_map(np.array([0.0, c]), 0.9)


@given(
    st.floats(-5.0, 5.0).filter(lambda a: abs(abs(a) - 1.0) > 1e-3),
    st.lists(st.floats(-100.0, 100.0), min_size=1, max_size=5),
)
def test_proposition_4_makes_a_relu_of_two_leaky_relus(alpha: float, points: list[float]) -> None:
    a, b = relu_from_leaky_relus(alpha)
    phi, x = leaky_relu(alpha), np.array(points)
    terms = a * phi(x), b * phi(-x)
    # Rounding is relative to what is added up.
    scale = 4e-16 * float(np.abs(terms).max() * (1.0 + abs(alpha)))
    np.testing.assert_allclose(terms[0] + terms[1], np.maximum(x, 0.0), rtol=0.0, atol=scale)


def test_proposition_4_makes_a_relu_network_of_a_leaky_one_of_twice_its_width() -> None:
    rng, alpha = np.random.default_rng(0), 0.3
    a, b = relu_from_leaky_relus(alpha)
    x, w, out = rng.normal(size=(7, 4)), rng.normal(size=(4, 9)), rng.normal(size=(9, 3))
    relu = np.maximum(x @ w, 0.0) @ out
    doubled = leaky_relu(alpha)(x @ np.hstack([w, -w])) @ np.vstack([a * out, b * out])
    np.testing.assert_allclose(doubled, relu, atol=1e-13)


@pytest.mark.parametrize("alpha", [1.0, -1.0])
def test_no_relu_is_made_of_lines_or_absolute_values(alpha: float) -> None:
    with pytest.raises(ValueError, match="must not be 1 or -1, got"):
        relu_from_leaky_relus(alpha)


@given(st.integers(1, 15), shortcut_weights)
def test_the_curvature_of_a_rescaled_resnet_is_the_maximum_over_subnetworks(
    blocks: int, w: float
) -> None:
    graph = Graph.residual(blocks, shortcut_weight=w)
    formula = rescaled_resnet_curvature(graph.activations, w)
    assert formula == pytest.approx(max_curvature(graph, 1.0), rel=1e-12)


def imagenet_resnet(stages: tuple[int, ...], w: float) -> Graph:
    """As B.5 describes it: four shortcuts and the end of the network have a φ of their own."""
    g = GraphBuilder()
    x = g.affine(g.input())
    for blocks in stages:
        for block in range(blocks):
            branch = x
            for _ in range(3):
                branch = g.affine(g.activation(branch))
            shortcut = x if block else g.affine(g.activation(x))
            x = g.sum([shortcut, branch], [w, math.sqrt(1.0 - w * w)])
    g.affine(g.activation(x))
    return g.build()


@pytest.mark.parametrize("layers", RESNET_STAGES)
@pytest.mark.parametrize("w", [0.0, 0.5, 0.8, 0.9, 0.99, 1.0])
def test_the_curvature_of_resnets_is_the_maximum_over_subnetworks(layers: int, w: float) -> None:
    stages = RESNET_STAGES[layers]
    assert 3 * sum(stages) == layers - 2
    graph = imagenet_resnet(stages, w)
    assert imagenet_resnet_curvature(layers, w) == pytest.approx(max_curvature(graph, 1.0))


def test_curvatures_of_b_5_by_hand() -> None:
    assert rescaled_resnet_curvature(48, 0.8) == pytest.approx(48 * 0.36)
    assert rescaled_resnet_curvature(48, 0.99) == 3.0
    assert imagenet_resnet_curvature(50, 0.8) == pytest.approx(44 * 0.36 + 5)
    assert imagenet_resnet_curvature(101, 1.0) == 5.0

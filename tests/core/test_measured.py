"""Measured parts: their curves against closed forms, and what graphs and solutions make of them."""

import math
from dataclasses import replace

import numpy as np
import pytest

from skipless.core.graph import Graph, GraphBuilder, Measured, Nonlinearity
from skipless.core.maps import leaky_relu_c_map, leaky_relu_c_map_slope
from skipless.core.measured import (
    GRID,
    NoSignalError,
    PartMap,
    measure_curve,
    orthogonal_samples,
)
from skipless.core.network import fold, max_c_value, max_curvature, max_slope
from skipless.core.predict import bases, predict, target_error
from skipless.core.rescale import normalise_sums
from skipless.core.solution import DKS, TAT, UnreachableTargetError
from skipless.core.solve import solve

FINE = tuple(np.cos(np.linspace(math.pi, 0.0, 400)).tolist())


def exact_curve(alpha: float, errors: float = 0.0) -> PartMap:
    """Leaky ReLU's C map as a fine table."""
    values = tuple(leaky_relu_c_map(max(-1.0, min(1.0, c)), alpha) for c in FINE)
    return PartMap((-1.0, *FINE[1:-1], 1.0), values, (errors,) * 399 + (0.0,), slope=1.0)


def features(seed: int, width: int = 128, count: int = 2):
    """A random layer, leaky ReLU and a random layer, fresh for every batch, and its inputs."""
    rng = np.random.default_rng(seed)

    def run(x: np.ndarray) -> np.ndarray:
        hidden = x.transpose(0, 2, 1) @ weights[0]
        return np.where(hidden > 0.0, hidden, 0.1 * hidden) @ weights[1]

    def draw() -> tuple[np.ndarray, np.ndarray]:
        weights[:] = rng.standard_normal((2, width, width)) / math.sqrt(width)
        return orthogonal_samples(rng, count, width, 1)

    weights = np.zeros((2, width, width))
    return run, draw


def test_the_curve_of_a_random_layer_is_that_of_its_activation() -> None:
    curve = measure_curve(*features(0), repeats=24)
    for c, value, error in zip(curve.cosines, curve.values, curve.errors, strict=True):
        assert abs(value - leaky_relu_c_map(c, 0.1)) <= 4.0 * error + 1e-12
    assert max(curve.errors) < 0.05
    assert abs(curve.gain - (1.0 + 0.01) / 2.0) < 4.0 * curve.gain_error < 0.2
    assert curve.degree == pytest.approx(1.0)
    # By finite differences, of a map whose curvature at 1 is infinite.
    assert abs(curve.slope - leaky_relu_c_map_slope(0.97, 0.1)) < 4.0 * curve.slope_error + 0.1


def test_errors_of_curves_are_those_of_repeated_measurements() -> None:
    curves = [measure_curve(*features(seed, 64), repeats=8) for seed in range(24)]
    place = GRID.index(0.0)
    spread = np.std([curve.values[place] for curve in curves], ddof=1)
    stated = np.mean([curve.errors[place] for curve in curves])
    # A standard deviation of 24 numbers has a relative standard error of 1 / √46.
    assert abs(stated / spread - 1.0) < 4.0 / math.sqrt(46)


def test_a_curve_never_falls_and_ends_at_one() -> None:
    rng = np.random.default_rng(3)
    noisy = measure_curve(
        lambda x: (np.tanh(x) + 0.3 * rng.standard_normal(x.shape)).transpose(0, 2, 1),
        lambda: orthogonal_samples(rng, 2, 16, 1),
        4,
    )
    at = np.linspace(-1.0, 1.0, 501)
    assert np.all(np.diff(noisy(at)) >= -1e-12)
    assert noisy(1.0) == 1.0
    assert np.allclose(noisy(at), [noisy(c) for c in at.tolist()])


def test_a_part_that_returns_zeros_has_no_curve() -> None:
    draw = features(0, 16)[1]
    with pytest.raises(NoSignalError):
        measure_curve(lambda x: 0.0 * x, draw, 2)


def hidden(depth: int, curve: PartMap) -> Graph:
    """A chain in which every second activation is hidden in a measured part."""
    g = GraphBuilder()
    x = g.input()
    for layer in range(depth):
        x = g.affine(x)
        x = g.measured(x, curve) if layer % 2 else g.activation(x)
    return g.build()


def test_a_measured_part_folds_like_the_activation_that_it_hides() -> None:
    phi = lambda c: leaky_relu_c_map(c, 0.3)
    graph = hidden(6, exact_curve(0.3))
    assert fold(graph, phi, 0.0) == pytest.approx(fold(Graph.chain(6), phi, 0.0), abs=1e-5)
    assert max_c_value(graph, phi) == pytest.approx(max_c_value(Graph.chain(6), phi), abs=1e-5)
    assert fold(graph, np.vectorize(phi), np.zeros(2))[0] == pytest.approx(fold(graph, phi, 0.0))


def test_solve_counts_measured_parts() -> None:
    graph = hidden(24, exact_curve(0.5))
    alpha = solve(graph, TAT(eta=0.9)).negative_slope or 0.0
    c = 0.0
    for _ in range(12):
        c = leaky_relu_c_map(leaky_relu_c_map(c, alpha), 0.5)
    assert c == pytest.approx(0.9, abs=1e-4)


def test_what_measured_parts_have_alone_bounds_the_target() -> None:
    graph = hidden(40, exact_curve(0.0))
    with pytest.raises(UnreachableTargetError, match="stay as they are"):
        solve(graph, TAT(eta=0.5))
    found = solve(graph)
    assert max_c_value(graph, lambda c: c) < found.targets["mu0"] < 1.0
    assert "parts that stay alone" in found.note
    steep = hidden(4, replace(exact_curve(0.0), slope=2.0))
    with pytest.raises(UnreachableTargetError, match="stay as they are"):
        solve(steep, DKS(zeta=3.0), "softplus")


def test_slopes_and_curvatures_pass_through_measured_parts() -> None:
    part = replace(exact_curve(0.5), slope=1.5, curvature=0.2)
    graph = hidden(4, part)
    assert max_slope(graph, 2.0) == pytest.approx((2.0 * 1.5) ** 2)
    s, k = 1.0, 0.0
    for _ in range(2):  # (f∘g)'' = f'' g'² + f' g''
        k += 0.1 * s**2
        s, k = 1.5 * s, 0.2 * s**2 + 1.5 * k
    assert max_curvature(graph, 0.1) == pytest.approx(k)
    slope = solve(graph, DKS(zeta=4.0), "softplus").targets["C'(1)"]
    assert (1.5 * slope) ** 2 == pytest.approx(4.0)
    curvature = solve(graph, TAT(tau=2.0), "tanh").targets["C''(1)"]
    assert max_curvature(graph, curvature) == pytest.approx(2.0)


def test_sums_weigh_measured_parts_by_their_gain_until_they_are_normalised() -> None:
    g = GraphBuilder()
    x = g.affine(g.input())
    part = g.measured(g.activation(x), replace(exact_curve(0.0), gain=3.0))
    g.sum([x, part], [1.0, 1.0])
    as_it_is, scaled = g.build(), normalise_sums(g.build())
    c = leaky_relu_c_map(leaky_relu_c_map(0.0, 0.5), 0.0)
    phi = lambda c: leaky_relu_c_map(c, 0.5)
    assert fold(as_it_is, phi, 0.0) == pytest.approx(3.0 / 4.0 * c, abs=1e-6)
    assert fold(scaled, phi, 0.0) == pytest.approx(c / 2.0, abs=1e-6)
    solution = solve(scaled, TAT(eta=0.4))
    assert predict(scaled, solution)[-1].q == pytest.approx(1.0)


def test_predictions_say_what_was_measured() -> None:
    g = GraphBuilder()
    x = g.affine(g.input())
    g.sum([g.measured(x, exact_curve(0.5, errors=0.01)), g.activation(x)])
    graph = normalise_sums(g.build())
    assert bases(graph) == ["derived", "derived", "measured", "derived", "derived"]
    assert "C(0) = 0.0637 ± 0.01" in str(graph) or "± 0.01" in str(graph)
    points = predict(graph, solve(graph, TAT(eta=0.15)))
    assert [point.basis for point in points] == bases(graph)


def test_the_target_error_is_that_of_all_curves_moved() -> None:
    curves = [exact_curve(alpha, errors=0.01) for alpha in (0.5, 0.6)]
    g = GraphBuilder()
    x = g.input()
    for curve in (*curves, curves[0]):
        x = g.activation(g.measured(g.affine(x), curve))
    graph = g.build()
    solution = solve(graph, TAT(eta=0.5))
    slope = solution.negative_slope or 0.0
    phi = lambda c: leaky_relu_c_map(c, slope)

    def end(first: float, second: float) -> float:
        c = 0.0
        for alpha, off in ((0.5, first), (0.6, second), (0.5, first)):
            c = phi(leaky_relu_c_map(c, alpha) + off)
        return c

    moved = [end(0.01, 0.0) - end(0.0, 0.0), end(0.0, 0.01) - end(0.0, 0.0)]
    assert target_error(graph, solution) == pytest.approx(math.hypot(*moved), rel=1e-3)
    assert target_error(Graph.chain(20), solve(Graph.chain(20))) == 0.0


def test_graphs_with_measured_parts_are_values() -> None:
    assert hidden(2, exact_curve(0.5)) == hidden(2, exact_curve(0.5)) != hidden(2, exact_curve(0.4))
    assert isinstance(hidden(2, exact_curve(0.5)).nodes[-1], Measured)
    assert isinstance(hidden(2, exact_curve(0.5)).nodes[2], Nonlinearity)

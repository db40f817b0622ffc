"""Local maps, their derivatives and their closed forms, against integrals that share no node."""

# mpmath makes its functions at run time.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportInvalidTypeForm=false

import math
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from oracles import (
    DIGITS,
    ORACLES,
    PAIR_MEANS,
    closed_c_map,
    extreme_c_map,
    gaussian_means,
    means,
    norm,
    polar_pair,
    x_marks,
)
from skipless.core.activations import Activation, activation, activation_names, leaky_relu
from skipless.core.activations import transform as transformed
from skipless.core.maps import (
    arc_gap,
    c_map,
    c_map_curvature,
    c_map_slope,
    erf_c_map,
    leaky_relu_c_map,
    leaky_relu_c_map_curvature,
    leaky_relu_c_map_slope,
    q_map,
    q_map_slope,
    tabulated_c_map,
    taylor_coefficients,
)

TOLERANCE = 1e-12  # what is promised: of C and C′ on the scale of 1, of C″ relative
ROUNDING = 1e-14  # of sums of a few thousand terms that are 1 in total
# Differences of numbers near 1 show no violation of an inequality that is smaller.
SLACK = 1e-13

WITHOUT_CLOSED_FORM = sorted(set(activation_names()) - set(PAIR_MEANS))
# Smooth, with a curvature that jumps, with one slope that jumps, and with two.
REPRESENTATIVE = ("gelu", "softsign", "selu", "relu6")
POINTS = [(-0.7, 2.0, 0.3), (0.0, 1.0, 1.0), (0.95, 25.0, 0.04), (0.999999, 1.0, 1.0)]
SMOOTH = ("tanh", "gelu", "softplus", "sigmoid", "erf", "sin", "asinh")
KINKED = ("relu", "leaky_relu", "hard_tanh", "selu", "softsign", "relu6")

every_name = pytest.mark.parametrize("name", activation_names())
cosines = st.floats(-1.0, 1.0)
qs = st.floats(0.02, 30.0)


def maps_at(phi: Activation, c: float, q1: float, q2: float) -> tuple[float, float, float]:
    value, slope, curvature = (f(phi, c, q1, q2) for f in (c_map, c_map_slope, c_map_curvature))
    return float(value), float(slope), float(curvature)


@every_name
def test_q_map_and_its_slope_are_the_integrals(name: str) -> None:
    q = 0.3  # others are in test_gaussian.py
    phi, wanted = activation(name), means(name, math.sqrt(q))
    assert q_map(phi, q) == pytest.approx(float(wanted.value_squared), rel=TOLERANCE, abs=0.0)
    slope = float(wanted.value_slope_z / mpf(math.sqrt(q)) ** 2)
    # The terms of a sine cancel: their mean is exp(-2q) of their size.
    size = float(wanted.value_squared) / q if phi.period else 0.0
    assert q_map_slope(phi, q) == pytest.approx(slope, rel=TOLERANCE, abs=ROUNDING * size)


@every_name
def test_the_slope_of_the_q_map_is_its_derivative(name: str) -> None:
    phi, q, h = activation(name), 1.3, 0.02
    values = [q_map(phi, q + n * h) for n in (-2, -1, 1, 2)]
    stencil = float(np.dot([1, -8, 8, -1], values)) / (12 * h)
    assert q_map_slope(phi, q) == pytest.approx(stencil, rel=1e-6)  # h⁴ = 1.6e-7


@pytest.mark.parametrize(
    ("name", "c", "q1", "q2"),
    [
        *((name, *POINTS[0]) for name in WITHOUT_CLOSED_FORM),
        *((name, *point) for name in REPRESENTATIVE for point in POINTS[1:]),
        *((name, -0.999999, 1.0, 1.0) for name in ("hard_tanh", "relu6", "selu", "softsign")),
    ],
)
def test_c_map_slope_and_curvature_are_the_integrals(
    name: str, c: float, q1: float, q2: float
) -> None:
    phi = activation(name)
    found, wanted = maps_at(phi, c, q1, q2), polar_pair(phi, c, q1, q2)
    scale, root = float(norm(name, q1, q2)), math.sqrt(q1 * q2)
    assert found[0] == pytest.approx(wanted.value / scale, abs=TOLERANCE)
    assert found[1] == pytest.approx(root * wanted.slope / scale, rel=TOLERANCE, abs=TOLERANCE)
    # Derivatives of the density: no formula for the derivatives of C, no delta functions.
    noise = ROUNDING / ((1 - c) * (1 + c))
    assert found[1] == pytest.approx(wanted.value_in_c / scale, abs=noise)
    curvature = root * wanted.slope_in_c / scale
    assert found[2] == pytest.approx(curvature, rel=TOLERANCE, abs=noise * max(1.0, found[1]))
    if not phi.has_slope_jump:
        curvature = root**2 * wanted.curvature / scale
        assert found[2] == pytest.approx(curvature, rel=TOLERANCE, abs=1e-15)


def hard_tanh_curvature(c: float, q: float) -> float:
    """hard_tanh has φ″ = δ at -1 and -δ at 1, so C″ is a sum of four bivariate densities."""
    with mp.workdps(DIGITS):
        t, scale = mpf(c), norm("hard_tanh", q, q)
        root = 2 * mp.pi * mp.sqrt(1 - t * t)
        density = lambda ab: mp.exp(-(1 - t * ab) / (mpf(q) * (1 - t * t))) / root
        return float(2 * q * (density(1) - density(-1)) / scale)


@pytest.mark.parametrize(("c", "q"), [(-0.9, 0.7), (0.3, 0.3), (0.99, 4.0), (1 - 1e-9, 1.0)])
def test_curvature_of_hard_tanh_is_a_sum_of_densities(c: float, q: float) -> None:
    found = float(c_map_curvature(activation("hard_tanh"), c, q))
    assert found == pytest.approx(hard_tanh_curvature(c, q), rel=TOLERANCE)


@pytest.mark.parametrize("c", [-0.999999, 0.999999, 1 - 1e-9])
def test_curvature_from_kinks_off_zero_keeps_its_accuracy_near_the_ends(c: float) -> None:
    found = float(c_map_curvature(activation("hard_tanh"), c, 0.7))
    assert found == pytest.approx(hard_tanh_curvature(c, 0.7), rel=TOLERANCE)


@pytest.mark.parametrize("name", ["tanh", "softplus", "silu", "hard_tanh", "selu", "softsign"])
def test_c_map_and_slope_are_the_integrals_for_q_far_apart(name: str) -> None:
    phi, (c, q1, q2) = activation(name), (0.6, 1e4, 0.02)
    wanted, scale = polar_pair(phi, c, q1, q2), float(norm(name, q1, q2))
    assert float(c_map(phi, c, q1, q2)) == pytest.approx(wanted.value / scale, abs=TOLERANCE)
    slope = math.sqrt(q1 * q2) * wanted.slope / scale
    assert float(c_map_slope(phi, c, q1, q2)) == pytest.approx(slope, abs=TOLERANCE)


@pytest.mark.parametrize("name", PAIR_MEANS)
@pytest.mark.parametrize("c", [-0.999999, 0.04, 0.06, 1 - 1e-12])
def test_c_map_slope_and_curvature_are_those_of_the_closed_form(name: str, c: float) -> None:
    phi = activation(name)
    for q1, q2 in ((1.0, 1.0), (4.0, 1e-3)):
        found = maps_at(phi, c, q1, q2)
        wanted = [closed_c_map(name, c, q1, q2, order) for order in range(3)]
        assert found[0] == pytest.approx(wanted[0], abs=TOLERANCE)
        assert found[1] == pytest.approx(wanted[1], rel=TOLERANCE, abs=TOLERANCE)
        assert found[2] == pytest.approx(wanted[2], rel=TOLERANCE, abs=1e-15)


@pytest.mark.parametrize("name", sorted(set(PAIR_MEANS) - {"sin", "cos"}))
@pytest.mark.parametrize(("q1", "q2"), [(1e-6, 1e-6), (1e6, 1e6), (1e-6, 1e6)])
def test_c_map_and_slope_are_those_of_the_closed_form_at_extreme_q(
    name: str, q1: float, q2: float
) -> None:
    phi = activation(name)
    for c in (-0.9999, 0.3):
        wanted = [closed_c_map(name, c, q1, q2, order) for order in range(2)]
        assert float(c_map(phi, c, q1, q2)) == pytest.approx(wanted[0], abs=TOLERANCE)
        slope = float(c_map_slope(phi, c, q1, q2))
        assert slope == pytest.approx(wanted[1], rel=TOLERANCE, abs=TOLERANCE)


def assert_waves(name: str, c: float, q1: float, q2: float) -> None:
    # Each derivative of a wave brings a factor of √(q₁ q₂).
    scales = [math.sqrt(q1 * q2) ** order for order in range(3)]
    wanted = [closed_c_map(name, c, q1, q2, order) / scales[order] for order in range(3)]
    found = maps_at(activation(name), c, q1, q2)
    assert [f / s for f, s in zip(found, scales, strict=True)] == pytest.approx(
        wanted, abs=TOLERANCE
    )


@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("c", [0.3, 0.9, -0.99])
def test_waves_that_no_panel_follows_have_the_maps_of_the_closed_form(name: str, c: float) -> None:
    for q1, q2 in ((12.0, 9.0), (1e4, 1e4), (1e6, 1e6), (1e-3, 1e6)):
        assert_waves(name, c, q1, q2)


@pytest.mark.parametrize("c", [-1 + 1e-7, 1 - 1e-7])
def test_waves_keep_their_accuracy_near_the_ends(c: float) -> None:
    assert_waves("sin", c, 1e6, 1e6)


# q² E[φ″φ″] / Q(q) cancels: φ″ is of order 1 within 1/√q of zero, where erf has Q(q) near 1, and
# the bell has Q(q) of the order of 1/√q.
@pytest.mark.parametrize(("name", "power"), [("erf", 1.0), ("gaussian", 1.5)])
def test_curvature_at_large_q_is_accurate_to_the_rounding_of_its_terms(
    name: str, power: float
) -> None:
    for c, q in ((0.04, 1e6), (0.3, 1e4)):
        wanted = closed_c_map(name, c, q, q, order=2)
        found = float(c_map_curvature(activation(name), c, q))
        assert found == pytest.approx(wanted, abs=1e-15 * q**power)


@pytest.mark.parametrize(
    ("name", "c"), [*((name, -1) for name in (*SMOOTH, *KINKED, "cos")), ("tanh", 1), ("relu6", 1)]
)
def test_c_maps_reach_their_ends(name: str, c: int) -> None:
    phi, (q1, q2) = activation(name), (1.0, 0.3)
    value, slope, curvature = extreme_c_map(name, c, q1, q2)
    found = maps_at(phi, float(c), q1, q2)
    assert found[0] == pytest.approx(value, abs=TOLERANCE)
    assert found[1] == pytest.approx(slope, rel=TOLERANCE, abs=TOLERANCE)
    if not phi.has_slope_jump:
        assert found[2] == pytest.approx(curvature, rel=TOLERANCE, abs=1e-15)
    assert float(c_map(phi, 1.0, q1)) == pytest.approx(1.0, abs=ROUNDING)


# A slope that jumps by J at k makes C″(1) infinite, and C″(-1) where φ′ jumps at -k too; its sign
# there is that of the product of both jumps.
@pytest.mark.parametrize(
    ("name", "at_minus_one"),
    [
        ("abs", math.inf),
        ("hard_sigmoid", -math.inf),
        ("hard_swish", math.inf),
        ("hard_tanh", -math.inf),
        ("leaky_relu", math.inf),
        ("relu", math.inf),
        ("relu6", math.inf),
        ("selu", math.inf),
        ("soft_shrink", -math.inf),
    ],
)
def test_curvature_is_infinite_at_the_ends_where_the_slope_jumps(
    name: str, at_minus_one: float
) -> None:
    phi = activation(name)
    assert float(c_map_curvature(phi, 1.0)) == math.inf
    assert float(c_map_curvature(phi, -1.0)) == at_minus_one
    near = [float(c_map_curvature(phi, c)) for c in (-1 + 1e-4, -1 + 1e-6, -1 + 1e-8)]
    assert sorted(near, key=lambda t: t * math.copysign(1.0, at_minus_one)) == near
    assert near[2] / near[1] > 5.0  # it grows by 10 in the end, as (1 - c²)^(-1/2)


def test_curvature_at_one_is_finite_where_the_kinks_do_not_meet() -> None:
    # √q₁ z = ±1 and √q₂ z = ±1 at other z, and hard_tanh does not bend anywhere else.
    assert float(c_map_curvature(activation("hard_tanh"), 1.0, 1.0, 2.0)) == 0.0
    # selu bends below zero, and leaps at zero.
    assert float(c_map_curvature(activation("selu"), 1.0, 1.0, 2.0)) == math.inf


@pytest.mark.parametrize("name", [*SMOOTH, *KINKED, "elu", "hard_swish"])
def test_slope_and_curvature_are_the_derivatives_of_the_c_map(name: str) -> None:
    phi, c, h = activation(name), 0.4, 0.02
    at = lambda f: [float(f(phi, c + n * h, 0.8, 1.7)) for n in (-2, -1, 0, 1, 2)]
    values, slopes = at(c_map), at(c_map_slope)
    by_differences = np.dot([1, -8, 0, 8, -1], values) / (12 * h)
    assert slopes[2] == pytest.approx(by_differences, abs=2e-6)  # h⁴ = 1.6e-7
    bends = [
        np.dot([1, -8, 0, 8, -1], slopes) / (12 * h),
        np.dot([-1, 16, -30, 16, -1], values) / (12 * h * h),
    ]
    assert bends == pytest.approx([float(c_map_curvature(phi, c, 0.8, 1.7))] * 2, abs=4e-6)


@pytest.mark.parametrize("f", [c_map, c_map_slope, c_map_curvature])
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_arrays_come_back_in_their_shape(f: Callable[..., np.ndarray], name: str) -> None:
    phi, c = activation(name), np.array([[-0.9, 0.0, 0.2], [0.5, 0.7, 0.99]])
    found = f(phi, c, 1.5)
    assert found.shape == c.shape
    assert found.tolist() == [[float(f(phi, t, 1.5)) for t in row] for row in c.tolist()]
    assert f(phi, 0.5).shape == ()
    assert f(phi, np.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("name", ["gelu", "selu"])
def test_c_map_is_symmetric_in_both_inputs(name: str) -> None:
    phi = activation(name)
    for f in (c_map, c_map_slope, c_map_curvature):
        assert float(f(phi, -0.6, 0.5, 3.0)) == pytest.approx(
            float(f(phi, -0.6, 3.0, 0.5)), rel=1e-13
        )


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(activation_names()), cosines, qs, qs)
def test_no_pair_is_closer_than_cauchy_and_schwarz_allow(
    name: str, c: float, q1: float, q2: float
) -> None:
    phi = activation(name)
    assert -1.0 <= float(c_map(phi, c, q1, q2)) <= 1.0
    # The clip may cut rounding errors only: between equal inputs nothing is lost to it.
    assert abs(float(c_map(phi, c, q1, q2))) <= float(c_map(phi, 1.0, q1)) + SLACK
    assert float(c_map(phi, 1.0, q1)) == pytest.approx(1.0, abs=ROUNDING)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([*SMOOTH, *KINKED]), qs, st.integers(0, 2**32 - 1))
def test_c_maps_of_cosines_are_positive_semidefinite(name: str, q: float, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(4, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    gram = c_map(activation(name), np.clip(vectors @ vectors.T, -1.0, 1.0), q)
    assert np.linalg.eigvalsh(gram).min() >= -SLACK


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(activation_names()), qs, st.tuples(*[st.floats(0.0, 1.0)] * 3))
def test_c_maps_rise_and_are_convex_between_zero_and_one(
    name: str, q: float, c: tuple[float, float, float]
) -> None:
    low, middle, high = sorted(c)
    a, b, d = (float(t) for t in c_map(activation(name), np.array([low, middle, high]), q))
    assert a <= b + SLACK
    assert b <= d + SLACK
    assert (middle - low) * d + (high - middle) * a >= (high - low) * b - SLACK


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(activation_names()), qs)
def test_taylor_coefficients_are_a_distribution(name: str, q: float) -> None:
    b = taylor_coefficients(activation(name), 80, q)
    assert b.min() >= 0.0
    assert b.sum() <= 1.0 + SLACK


def double_factorials() -> Iterator[tuple[int, float]]:
    """(2m choose m) / 4^m, the coefficients of 1/√(1 - x²) at x^2m."""
    term = 1.0
    for m in range(40):
        yield m, term
        term *= (2 * m + 1) / (2 * m + 2)


def relu_series() -> dict[int, float]:
    # C″ = 1 / (π √(1 - c²)), C(0) = 1/π and C′(0) = 1/2.
    terms = {2 * m + 2: t / (math.pi * (2 * m + 1) * (2 * m + 2)) for m, t in double_factorials()}
    return {0: 1 / math.pi, 1: 0.5, **terms}


def erf_series(q: float) -> dict[int, float]:
    rho = 2 * q / (1 + 2 * q)
    return {
        2 * m + 1: t / (2 * m + 1) * rho ** (2 * m + 1) / math.asin(rho)
        for m, t in double_factorials()
    }


def sine_series(q: float) -> dict[int, float]:
    return {n: q**n / math.factorial(n) / math.sinh(q) for n in range(1, 60, 2)}


def bell_series(q: float) -> dict[int, float]:
    # Of √(1 + 2q) / √((1 + q)² - q² c²).
    ratio = q / (1 + q)
    return {
        2 * m: t * ratio ** (2 * m) * math.sqrt(1 + 2 * q) / (1 + q) for m, t in double_factorials()
    }


@pytest.mark.parametrize(
    ("name", "q", "series"),
    [
        ("relu", 1.0, relu_series()),
        ("relu", 9.0, relu_series()),
        ("erf", 0.7, erf_series(0.7)),
        ("erf", 20.0, erf_series(20.0)),
        ("sin", 1.0, sine_series(1.0)),
        ("sin", 8.0, sine_series(8.0)),
        ("gaussian", 3.0, bell_series(3.0)),
        ("square", 2.0, {0: 1 / 3, 2: 2 / 3}),
        ("identity", 2.0, {1: 1.0}),
    ],
)
def test_taylor_coefficients_are_those_of_the_closed_form(
    name: str, q: float, series: dict[int, float]
) -> None:
    wanted = np.zeros(60)
    for n, b in series.items():
        if n < wanted.size:
            wanted[n] = b
    found = taylor_coefficients(activation(name), wanted.size, q)
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=1e-16)


def test_taylor_coefficients_of_high_order_are_those_of_the_closed_form() -> None:
    # Of ReLU: b_n = (n - 3)!!² / (π n!) for even n.
    n = 1000
    log_half = lambda k: math.lgamma(k + 1) - k * math.log(2.0) - math.lgamma(k / 2 + 1)
    wanted = math.exp(2 * (log_half(n - 2) + math.log(2.0) * (n - 2) / 2) - math.lgamma(n + 1))
    found = taylor_coefficients(activation("relu"), n + 1)
    assert found[n] == pytest.approx(wanted / math.pi, rel=1e-9)  # of lgamma(1000) = 5905
    assert found[n - 1] == pytest.approx(0.0, abs=1e-16)


@cache
def mean_derivative(name: str, order: int, q: float) -> float:
    """E[φ^(n)(√q z)], n times differentiated in 60 digits."""
    with mp.workdps(DIGITS):
        s = mp.sqrt(mpf(q))
        f = lambda z: (mp.diff(ORACLES[name], s * z, order),)
        return float(gaussian_means(f, x_marks(name, s, mpf(0)))[0])


@pytest.mark.parametrize(
    ("name", "n"), [*(("tanh", n) for n in range(5)), ("softplus", 1), ("gelu", 2)]
)
def test_taylor_coefficients_are_squared_means_of_derivatives(name: str, n: int) -> None:
    # Appendix A.4, with the q and the Q(q) that are 1 there.
    q = 1.4
    b = taylor_coefficients(activation(name), 5, q)[n]
    wanted = q**n * mean_derivative(name, n, q) ** 2 / q_map(activation(name), q)
    assert b * math.factorial(n) == pytest.approx(wanted, rel=TOLERANCE, abs=1e-30)


@pytest.mark.parametrize(("name", "c"), [("tanh", 0.9), ("gelu", -0.95), ("softplus", 1.0)])
def test_the_taylor_series_is_the_c_map(name: str, c: float) -> None:
    b = taylor_coefficients(activation(name), 300)
    series = float(np.polynomial.polynomial.polyval(c, b))
    assert series == pytest.approx(float(c_map(activation(name), c)), abs=TOLERANCE)


def test_the_q_map_of_a_steep_activation_is_that_at_a_large_q() -> None:
    for scale, shift in ((1000.0, 0.0), (1000.0, 300.0)):
        found = q_map(transformed(activation("tanh"), scale, shift), 1.0)
        with mp.workdps(DIGITS):
            wanted = means("tanh", scale, shift).value_squared
        assert found == pytest.approx(float(wanted), rel=TOLERANCE)


@pytest.mark.parametrize("scale", [10.0, 100.0])
def test_taylor_coefficients_of_a_steep_activation_are_those_at_a_large_q(scale: float) -> None:
    steep = taylor_coefficients(transformed(activation("tanh"), scale), 30)
    wide = taylor_coefficients(activation("tanh"), 30, scale**2)
    np.testing.assert_allclose(steep, wide, rtol=0.0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "name", ["tanh", "gelu", "sin", "relu", "leaky_relu", "abs", "selu", "hard_tanh"]
)
def test_the_tabulated_c_map_is_the_c_map(name: str) -> None:
    phi = activation(name)
    fast = tabulated_c_map(phi)
    c = np.array([*np.random.default_rng(0).uniform(-1.0, 1.0, 12), -1.0, -1 + 1e-9, 1 - 1e-9, 1.0])
    np.testing.assert_allclose(fast(c), c_map(phi, c), rtol=0.0, atol=TOLERANCE)
    assert fast(c).shape == c.shape
    assert np.shape(fast(0.5)) == ()


@pytest.mark.parametrize(("name", "q"), [("softplus", 0.1), ("relu6", 4.0), ("tanh", 6.0)])
def test_the_tabulated_c_map_is_the_c_map_at_any_q(name: str, q: float) -> None:
    phi, c = activation(name), np.linspace(-1.0, 1.0, 9)
    found = tabulated_c_map(phi, q)(c)
    np.testing.assert_allclose(found, c_map(phi, c, q), rtol=0.0, atol=TOLERANCE)


slopes_of_leaky_relu = st.floats(-2.0, 2.0)


@settings(max_examples=40, deadline=None)
@given(cosines, slopes_of_leaky_relu, qs)
def test_the_closed_form_of_leaky_relu_is_the_integral(c: float, alpha: float, q: float) -> None:
    phi = leaky_relu(alpha)
    assert leaky_relu_c_map(c, alpha) == pytest.approx(float(c_map(phi, c, q)), abs=TOLERANCE)
    slope = float(c_map_slope(phi, c, q))
    assert leaky_relu_c_map_slope(c, alpha) == pytest.approx(slope, abs=TOLERANCE)
    if abs(c) < 1.0:
        bend = float(c_map_curvature(phi, c, q))
        # The jump of slopes is known to 1e-12, and C″ is the square of it.
        assert leaky_relu_c_map_curvature(c, alpha) == pytest.approx(bend, rel=1e-10, abs=1e-11)


@settings(max_examples=30, deadline=None)
@given(slopes_of_leaky_relu)
def test_normalised_leaky_relu_has_the_maps_of_lemma_1(alpha: float) -> None:
    phi = transformed(leaky_relu(alpha), output_scale=math.sqrt(2 / (1 + alpha**2)))
    assert q_map(phi, 2.0) == pytest.approx(2.0, rel=ROUNDING)
    assert q_map_slope(phi, 2.0) == pytest.approx(1.0, rel=ROUNDING)
    assert float(c_map(phi, 0.2, 2.0)) == pytest.approx(leaky_relu_c_map(0.2, alpha), abs=SLACK)


@given(cosines, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_leaky_relu_c_map_falls_as_its_negative_slope_rises(c: float, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert leaky_relu_c_map(c, low) >= leaky_relu_c_map(c, high) - 1e-15
    assert leaky_relu_c_map(c, high) >= c - 1e-15  # and stays above the identity


@given(cosines, slopes_of_leaky_relu.filter(lambda a: abs(a) > 1e-3))
def test_alpha_and_its_inverse_have_one_c_map(c: float, alpha: float) -> None:
    assert leaky_relu_c_map(c, alpha) == pytest.approx(leaky_relu_c_map(c, 1 / alpha), abs=ROUNDING)


@given(cosines, slopes_of_leaky_relu)
@example(c=-1.0, alpha=-0.9999999999999999)
def test_leaky_relu_c_map_stays_within_one(c: float, alpha: float) -> None:
    assert -1.0 <= leaky_relu_c_map(c, alpha) <= 1.0
    assert leaky_relu_c_map(1.0, alpha) == 1.0


NEAR_THE_ENDS = [
    *(-1.0 + t for t in (1e-15, 1e-12, 1e-9, 1e-4)),
    *(-0.97, -0.5, 0.0, 0.5, 0.96, 0.9688, 0.969, 0.97),
    *(1.0 - t for t in (1e-4, 1e-9, 1e-12, 1e-15)),
]


@pytest.mark.parametrize("c", NEAR_THE_ENDS)
def test_closed_forms_keep_their_relative_accuracy_towards_the_ends(c: float) -> None:
    with mp.workdps(DIGITS):
        t = mpf(c)
        gap = mp.sqrt(1 - t * t) - t * mp.acos(t)
        relu = t + gap / mp.pi
        kappa = (1 - mpf(0.6)) ** 2 / (1 + mpf(0.6) ** 2)
        leaky = t + kappa * gap / mp.pi
        bend = kappa / (mp.pi * mp.sqrt((1 - t) * (1 + t)))
    # C(c) - c is gap / π: no difference of C and c could be as accurate.
    assert arc_gap(c) == pytest.approx(float(gap), rel=2e-14, abs=0.0)
    assert leaky_relu_c_map(c, 0.0) == pytest.approx(float(relu), rel=2e-14, abs=0.0)
    assert leaky_relu_c_map(c, 0.6) == pytest.approx(float(leaky), rel=2e-14, abs=0.0)
    assert leaky_relu_c_map_curvature(c, 0.6) == pytest.approx(float(bend), rel=1e-14, abs=0.0)
    if c < 0.0:  # 1 - arccos(c)/π is the distance to the end
        slope = float(mp.acos(-mpf(c)) / mp.pi)
        assert leaky_relu_c_map_slope(c, 0.0) == pytest.approx(slope, abs=ROUNDING)


def test_closed_forms_reach_the_ends() -> None:
    assert arc_gap(1.0) == 0.0
    assert arc_gap(-1.0) == pytest.approx(math.pi, rel=1e-15)
    assert leaky_relu_c_map(-1.0, 0.0) == 0.0
    assert leaky_relu_c_map(-1.0, -1.0) == 1.0  # |x|
    assert leaky_relu_c_map_slope(1.0, 0.3) == 1.0
    assert leaky_relu_c_map_slope(-1.0, 0.0) == pytest.approx(0.0, abs=1e-15)
    assert leaky_relu_c_map_curvature(1.0, 0.3) == math.inf
    assert leaky_relu_c_map_curvature(1.0, 1.0) == 0.0


@settings(max_examples=30, deadline=None)
@given(cosines, st.floats(1e-3, 100.0), st.floats(1e-3, 100.0))
def test_the_closed_form_of_erf_is_the_integral(c: float, q1: float, q2: float) -> None:
    phi = activation("erf")
    assert erf_c_map(c, q1, q2) == pytest.approx(float(c_map(phi, c, q1, q2)), abs=TOLERANCE)
    assert erf_c_map(c, q1) == pytest.approx(erf_c_map(c, q1, q1), abs=0.0)


@pytest.mark.parametrize("c", [1.0 + 1e-9, -1.5, math.nan, math.inf])
@pytest.mark.parametrize("f", [c_map, c_map_slope, c_map_curvature])
def test_a_c_that_is_no_cosine_is_refused(f: Callable[..., np.ndarray], c: float) -> None:
    for asked in (c, np.array([0.1, c])):
        with pytest.raises(ValueError, match=r"c must be in \[-1, 1\], got"):
            f(activation("tanh"), asked)


@pytest.mark.parametrize("q", [0.0, -1.0, math.nan, math.inf])
def test_a_q_that_is_not_positive_is_refused(q: float) -> None:
    phi = activation("tanh")
    calls: list[Callable[[], object]] = [
        lambda: q_map(phi, q),
        lambda: q_map_slope(phi, q),
        lambda: c_map(phi, 0.5, q),
        lambda: c_map(phi, 0.5, 1.0, q),
        lambda: c_map_slope(phi, 0.5, q),
        lambda: c_map_curvature(phi, 0.5, q),
        lambda: c_map_curvature(phi, 0.5, 1.0, q),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="q must be positive and finite, got"):
            call()


def test_a_negative_q_is_refused_with_the_same_words_everywhere() -> None:
    phi = activation("tanh")
    calls: list[Callable[[], object]] = [
        lambda: c_map_slope(phi, 0.5, 1.0, -1.0),
        lambda: taylor_coefficients(phi, 5, -1.0),
        lambda: tabulated_c_map(phi, -1.0),
        lambda: erf_c_map(0.5, -1.0),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="q must be positive and finite, got"):
            call()


@pytest.mark.parametrize("c", [1.2, -1.2, math.nan])
@pytest.mark.parametrize(
    "f",
    [
        lambda c: leaky_relu_c_map(c, 0.5),
        lambda c: leaky_relu_c_map_slope(c, 0.5),
        lambda c: leaky_relu_c_map_curvature(c, 0.5),
        lambda c: erf_c_map(c, 0.1),
    ],
)
def test_closed_forms_refuse_a_c_that_is_no_cosine(f: Callable[[float], float], c: float) -> None:
    with pytest.raises(ValueError, match=r"c must be in \[-1, 1\], got"):
        f(c)


def test_a_vanished_activation_has_no_c_map() -> None:
    with pytest.raises(ValueError, match=r"soft_shrink vanishes at q = .*use a larger q"):
        c_map(activation("soft_shrink"), 0.5, 1e-6)


def test_taylor_coefficients_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        taylor_coefficients(activation("tanh"), 0)

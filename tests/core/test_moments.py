"""Moments of φ(αz + β): small differences of large numbers, and yet accurate."""

import math
from dataclasses import fields
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

from oracles import DIGITS, means
from skipless.core.activations import Array, activation, transform
from skipless.core.gaussian import (
    Moments,
    distortion,
    moments,
    shaped_q_map,
    tanh_sinh_moments,
    uniform_phase_scale,
)
from skipless.core.maps import c_map_curvature, c_map_slope, q_map, q_map_slope

FIELDS = [field.name for field in fields(Moments)]
SMOOTH = ["tanh", "erf", "gelu", "softplus", "silu", "asinh", "bent_identity", "softsign", "elu"]
ORDINARY = [(1.0, 0.0), (0.3, 1.2), (5.0, 1.0)]
# Where G and P are a millionth of V, or less.
NEARLY_LINEAR = [(0.01, -1.7), (1e-3, -1.7)]
ACCURACY = 1e-11  # a tenth of the residual that a solution may have
# u and v are of the order α², and rounded to 1e-16 of ψ and ψ′: G and P, of the order α⁴, keep
# what is left. P has a part that is linear in v, so its errors are a few rounding errors of V.
CANCELLED = 1e-9
OF_VARIANCE = 1e-14


@cache
def wanted(name: str, alpha: float, beta: float) -> dict[str, float]:
    """The moments by their definitions, in 60 digits."""
    m = means(name, alpha, beta)
    with mp.workdps(DIGITS):
        variance = m.value_squared - m.value**2
        found = {
            "mean": m.value,
            "variance": variance,
            "excess": m.slope_squared - variance,
            "imbalance": m.value_slope_z - m.value * m.slope_z - variance,
            "tilt": m.slope_z,
            "bending": m.curvature_squared,
        }
        return {field: float(value) for field, value in found.items()}


def both(name: str, alpha: float, beta: float) -> list[dict[str, float]]:
    """By either quadrature."""
    phi = activation(name)
    found = (
        moments(phi, np.array(alpha), np.array(beta)),
        tanh_sinh_moments(phi, alpha, beta),
    )
    return [{field: float(getattr(m, field)) for field in FIELDS} for m in found]


@pytest.mark.parametrize("name", ["tanh", "gelu", "softsign", "selu", "leaky_relu", "relu6", "sin"])
@pytest.mark.parametrize(("alpha", "beta"), ORDINARY)
def test_both_quadratures_give_the_moments(name: str, alpha: float, beta: float) -> None:
    for found in both(name, alpha, beta):
        # Odd functions have no mean; what is left there is rounding.
        assert found == pytest.approx(wanted(name, alpha, beta), rel=ACCURACY, abs=1e-15)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(("alpha", "beta"), NEARLY_LINEAR)
def test_small_differences_are_accurate_where_phi_is_nearly_linear(
    name: str, alpha: float, beta: float
) -> None:
    expected = wanted(name, alpha, beta)
    if name != "elu":  # which is linear on its positive side
        assert abs(expected["excess"]) < 1e-3 * expected["variance"]
    for found in both(name, alpha, beta):
        for field in ("mean", "variance", "tilt", "bending"):
            assert found[field] == pytest.approx(expected[field], rel=ACCURACY, abs=0.0), field
        assert found["excess"] == pytest.approx(expected["excess"], rel=CANCELLED, abs=0.0)
        noise = OF_VARIANCE * expected["variance"]
        assert found["imbalance"] == pytest.approx(expected["imbalance"], rel=CANCELLED, abs=noise)


def test_the_excess_of_an_odd_function_is_of_sixth_order() -> None:
    # tanh x = x - x³/3 + …: G = α⁶ E[(z² - 1)² - (z³/3 - z)²] = α⁶ (2 - 2/3), and V = α².
    alpha = 1e-2
    expected = wanted("tanh", alpha, 0.0)
    assert expected["excess"] == pytest.approx(4 / 3 * alpha**6, rel=1e-2)
    for found in both("tanh", alpha, 0.0):
        assert found["excess"] == pytest.approx(expected["excess"], rel=1e-8, abs=0.0)


def test_pairs_of_parameters_are_taken_all_at_once() -> None:
    phi = activation("gelu")
    alpha, beta = np.array([[0.1, 1.0, 4.0], [0.5, 2.0, 0.02]]), np.array([[0.0, 1.0, -2.0]] * 2)
    together = moments(phi, alpha, beta)
    for field in FIELDS:
        found: Array = getattr(together, field)
        assert found.shape == alpha.shape
        for index in np.ndindex(alpha.shape):
            alone = moments(phi, alpha[index], beta[index])
            assert found[index] == pytest.approx(float(getattr(alone, field)), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*SMOOTH, "selu", "relu6"]), st.floats(0.01, 8.0), st.floats(-4.0, 4.0))
def test_variance_and_excess_are_never_negative(name: str, alpha: float, beta: float) -> None:
    found = moments(activation(name), np.array(alpha), np.array(beta))
    assert float(found.variance) >= 0.0
    # Poincaré: a function of z varies less than its slope is large on average.
    assert float(found.excess) >= -1e-16 * (1.0 + float(found.variance))


@pytest.mark.parametrize("name", ["tanh", "softplus", "elu"])
def test_conditions_are_the_maps_of_the_shaped_activation(name: str) -> None:
    alpha, beta, gamma, delta = 0.7, 0.4, 1.3, -0.2
    phi = activation(name)
    hat = transform(phi, alpha, beta, gamma, delta)
    found = tanh_sinh_moments(phi, alpha, beta).conditions(gamma, delta)
    m = wanted(name, alpha, beta)
    square = m["variance"] + (m["mean"] + delta) ** 2
    expected = {
        "Q(1)": q_map(hat, 1.0),
        "Q'(1)": q_map_slope(hat, 1.0),
        "C(0)": (m["mean"] + delta) ** 2 / square,
        "C'(1)": float(c_map_slope(hat, 1.0)),
        "C''(1)": float(c_map_curvature(hat, 1.0)),
    }
    assert found == pytest.approx(expected, rel=1e-12)
    assert found["Q(1)"] == pytest.approx(gamma**2 * square, rel=1e-13)


@pytest.mark.parametrize("name", ["tanh", "gelu", "selu", "hard_tanh"])
def test_the_shaped_q_map_is_the_q_map_of_the_shaped_activation(name: str) -> None:
    parameters = 0.8, -0.3, 1.4, 0.1
    q = np.array([0.05, 1.0, 7.0, 60.0])
    hat = transform(activation(name), *parameters)
    wanted_q = [q_map(hat, t) for t in q.tolist()]
    np.testing.assert_allclose(shaped_q_map(activation(name), parameters)(q), wanted_q, rtol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.7])
def test_the_q_map_of_a_sine_has_its_closed_form_at_any_q(beta: float) -> None:
    # E[sin(sz + β)²] = (1 - exp(-2s²) cos 2β) / 2; beyond `uniform_phase_scale` it is 1/2.
    alpha, q = 1.7, np.array([0.01, 0.5, 3.0, 40.0, 1e3, 1e6])
    expected = (1.0 - np.exp(-2.0 * alpha**2 * q) * math.cos(2.0 * beta)) / 2.0
    found = shaped_q_map(activation("sin"), (alpha, beta, 1.0, 0.0))(q)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert alpha * math.sqrt(q[-1]) > uniform_phase_scale(2.0 * math.pi)


def test_distortion_is_none_for_the_identity_and_the_integral_for_a_power() -> None:
    assert distortion(activation("identity"), (1.0, 0.0, 1.0, 0.0)) == pytest.approx(0.0, abs=1e-12)
    # Q(q) = q² for x²/√3: the integral of u exp(-u/2) is 4, here by a sum of steps of 1/2.
    found = distortion(activation("square"), (1.0, 0.0, 3.0**-0.5, 0.0))
    ratio = math.exp(-0.25)
    assert found == pytest.approx(0.25 * ratio / (1.0 - ratio) ** 2, rel=1e-4)
    assert found == pytest.approx(4.0, rel=0.02)

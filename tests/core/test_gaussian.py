"""Expectations reach rounding error for every activation, or say that they do not."""

# mpmath makes its functions at run time.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportInvalidTypeForm=false

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

import oracles
from oracles import DIGITS, PAIR_MEANS, gaussian_means, means, polar_pair
from skipless.core.activations import Activation, Array, activation, activation_names
from skipless.core.gaussian import QuadratureError, expectation, pair_expectation, panel_ends, rule

RELATIVE = 1e-12  # what is promised for every activation
QS = (1e-6, 1e6)  # test_maps.py has an ordinary one
# Tests of their own: the waves of sine and cosine, and the tail in which soft_shrink is not zero.
ELSEWHERE = {("sin", 30.0), ("sin", 1e6), ("cos", 30.0), ("cos", 1e6), ("soft_shrink", 1e-6)}
every_name = pytest.mark.parametrize("name", activation_names())


def test_the_oracles_do_not_use_what_they_are_the_oracle_of() -> None:
    tree = ast.parse(Path(oracles.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module for module in imported if module and module.startswith("skipless")} == {
        "skipless.core.activations"
    }


def test_the_oracle_in_one_dimension_knows_the_moments_of_a_normal() -> None:
    found = gaussian_means(lambda z: (mpf(1), z**2, z**8, mp.cos(z), abs(z - mpf("0.3"))), [0.3])
    with mp.workdps(DIGITS):
        k = mpf(0.3)
        kinked = 2 * mp.npdf(k) + k * mp.erf(k / mp.sqrt(2)) + (k - mpf("0.3")) * mp.erf(k)
        wanted = [mpf(1), mpf(1), mpf(105), mp.exp(mpf(-0.5)), kinked]
        errors = [abs(a / b - 1) for a, b in zip(found, wanted, strict=True)]
        assert max(errors[:4]) < 1e-25
        assert errors[4] < 1e-16  # 0.3 the float is not 0.3 the decimal


@pytest.mark.parametrize("name", ["abs", "erf", "leaky_relu", "relu_squared", "sin"])
@pytest.mark.parametrize(("c", "q1", "q2"), [(-0.6, 1.0, 2.0), (0.999999, 3.0, 0.1)])
def test_the_oracle_in_two_dimensions_knows_the_closed_forms(
    name: str, c: float, q1: float, q2: float
) -> None:
    found = polar_pair(activation(name), c, q1, q2)
    with mp.workdps(DIGITS):
        pair = lambda t: PAIR_MEANS[name](t, mpf(q1), mpf(q2))
        wanted = [float(mp.diff(pair, mpf(c), n)) for n in range(3)]
    noise = 5e-15 / (1 - c * c)
    scale = math.sqrt(q1 * q2)
    assert found.value == pytest.approx(wanted[0], rel=1e-14)
    assert found.value_in_c == pytest.approx(wanted[1], rel=1e-14, abs=noise)
    assert scale * found.slope == pytest.approx(wanted[1], rel=1e-14)
    assert scale * found.slope_in_c == pytest.approx(wanted[2], rel=1e-14, abs=noise)


@pytest.mark.parametrize(
    ("name", "q"),
    [(name, q) for name in activation_names() for q in QS if (name, q) not in ELSEWHERE],
)
def test_expectations_of_every_activation_reach_twelve_digits(name: str, q: float) -> None:
    phi, s = activation(name), math.sqrt(q)
    wanted, ends = means(name, s), panel_ends(phi, s)
    squares = expectation(lambda z: phi.value(s * z) ** 2, ends)
    slopes = expectation(lambda z: phi.slope(s * z) ** 2, ends)
    mixed = expectation(lambda z: phi.value(s * z) * phi.slope(s * z) * z, ends)
    assert squares == pytest.approx(float(wanted.value_squared), rel=RELATIVE, abs=0.0)
    assert slopes == pytest.approx(float(wanted.slope_squared / mpf(s) ** 2), rel=RELATIVE, abs=0.0)
    assert mixed == pytest.approx(float(wanted.value_slope_z / mpf(s)), rel=RELATIVE, abs=0.0)


@pytest.mark.parametrize("q", [0.3, 10.0, 1e4])
def test_expectations_of_oscillating_functions_follow_every_wave(q: float) -> None:
    sine, s = activation("sin"), math.sqrt(q)
    squares = expectation(lambda z: sine.value(s * z) ** 2, panel_ends(sine, s))
    mixed = expectation(lambda z: sine.value(s * z) * sine.slope(s * z) * z, panel_ends(sine, s))
    assert squares == pytest.approx(-math.expm1(-2 * q) / 2, rel=RELATIVE)
    assert mixed == pytest.approx(s * math.exp(-2 * q), abs=RELATIVE)
    ends = np.clip(np.sort(panel_ends(sine, s)), -12.0, 12.0)
    assert np.diff(ends).max() <= math.pi / s * (1 + 1e-9)  # half a wave


@pytest.mark.parametrize("q", [0.5, 0.02, 1e-3, 4e-4])
def test_expectations_far_out_in_the_tail_keep_their_relative_accuracy(q: float) -> None:
    # soft_shrink is zero up to 0.5, which is 25 standard deviations for the smallest q.
    phi, s = activation("soft_shrink"), math.sqrt(q)
    with mp.workdps(DIGITS):
        t = mpf(0.5) / mpf(s)
        tail = mp.erfc(t / mp.sqrt(2)) / 2
        wanted = float(2 * mpf(s) ** 2 * ((1 + t * t) * tail - t * mp.npdf(t)))
    found = expectation(lambda z: phi.value(s * z) ** 2, panel_ends(phi, s))
    assert found == pytest.approx(wanted, rel=RELATIVE, abs=0.0)


def test_expectations_far_out_in_the_tail_are_never_refused() -> None:
    refused: list[float] = []
    for k in np.arange(8.0, 36.0, 0.1).tolist():
        try:
            expectation(lambda z, k=k: np.maximum(z - k, 0.0) ** 2, np.array([k]))
        except QuadratureError:
            refused.append(k)
    assert refused == []


def hinge_mean(k: float, power: int) -> float:
    """E[max(z - k, 0)^p] for p = 1, 2, 3, by parts."""
    with mp.workdps(DIGITS):
        t = mpf(k)
        tail, peak = mp.erfc(t / mp.sqrt(2)) / 2, mp.npdf(t)
        means = {
            1: peak - t * tail,
            2: (1 + t * t) * tail - t * peak,
            3: (t * t + 2) * peak - (t**3 + 3 * t) * tail,
        }
        return float(means[power])


@settings(max_examples=50, deadline=None)
@given(st.floats(-8.0, 8.0), st.integers(1, 3))
def test_a_declared_kink_is_resolved_wherever_it_lies(k: float, power: int) -> None:
    found = expectation(lambda z: np.maximum(z - k, 0.0) ** power, np.array([k]))
    assert found == pytest.approx(hinge_mean(k, power), rel=RELATIVE, abs=0.0)


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize("k", [-1.7, 0.3, 0.75, 2.0, 5.0])
def test_an_undeclared_kink_is_resolved_or_refused(k: float, power: int) -> None:
    try:
        found = expectation(lambda z: np.maximum(z - k, 0.0) ** power)
    except QuadratureError:
        return
    assert found == pytest.approx(hinge_mean(k, power), rel=RELATIVE, abs=0.0)


@pytest.mark.parametrize("k", [3.843834950095083, 1.501, 3.003])
def test_an_undeclared_kink_beside_the_end_of_a_panel_is_resolved_or_refused(k: float) -> None:
    test_an_undeclared_kink_is_resolved_or_refused(k, 1)


def distance_from(k: float) -> Activation:
    """|x - k|, by a user who did not declare its kink."""
    return Activation(lambda x: np.abs(x - k), lambda x: np.sign(x - k), np.zeros_like)


def test_an_undeclared_kink_raises_an_error_that_says_what_to_do() -> None:
    phi = distance_from(0.3)
    for f in (phi.value, phi.slope):
        with pytest.raises(QuadratureError, match=r"did not converge after 9 .*kinks=.*period"):
            expectation(lambda z, f=f: f(z) * np.maximum(z, 0.0), panel_ends(phi, 1.0))
    ends = panel_ends(phi, 1.0)
    shifted = lambda z: phi.value(z) + z
    with pytest.raises(QuadratureError):
        pair_expectation(shifted, shifted, 0.5, ends, ends)


def test_an_undeclared_kink_that_a_square_hides_is_refused_too() -> None:
    phi = distance_from(0.3)
    with pytest.raises(QuadratureError):
        pair_expectation(phi.value, phi.value, 0.5, panel_ends(phi, 1.0), panel_ends(phi, 1.0))


def test_a_nan_never_passes_for_a_number() -> None:
    with pytest.raises(QuadratureError):
        expectation(lambda z: np.where(z > 1.0, np.nan, z))


@pytest.mark.parametrize("c", [-1.0, -0.999, -0.3, 0.0, 0.04, 0.06, 0.8, 0.99999, 1.0])
def test_pairs_have_the_moments_of_isserlis(c: float) -> None:
    nothing = np.zeros(0)
    power = lambda n: lambda z: z**n
    mean = lambda n, m: pair_expectation(power(n), power(m), c, nothing, nothing)
    assert mean(0, 0) == pytest.approx(1.0, rel=1e-14)
    assert mean(1, 1) == pytest.approx(c, abs=1e-14)
    assert mean(2, 2) == pytest.approx(1 + 2 * c * c, rel=1e-14)
    assert mean(3, 1) == pytest.approx(3 * c, abs=1e-13)
    assert mean(4, 4) == pytest.approx(9 + 72 * c * c + 24 * c**4, rel=1e-13)


@pytest.mark.parametrize("c", [-0.9999999, -0.7, 0.0, 0.3, 0.9999999])
def test_pairs_of_kinks_that_do_not_meet_are_resolved(c: float) -> None:
    # E[1{z₁ > a} 1{z₂ > b}] by its derivative in the correlation, the bivariate density.
    a, b = 0.4, -0.7
    step: list[tuple[Array, float]] = [(np.array([k]), k) for k in (a, b)]
    above = [lambda z, k=k: np.where(z > k, 1.0, 0.0) for _, k in step]
    found = pair_expectation(above[0], above[1], c, step[0][0], step[1][0])
    with mp.workdps(30):
        p = lambda t: (
            mp.exp(-(mpf(a) ** 2 - 2 * t * a * b + mpf(b) ** 2) / (2 * (1 - t * t)))
            / (2 * mp.pi * mp.sqrt(1 - t * t))
        )
        tails = [mp.erfc(mpf(k) / mp.sqrt(2)) / 2 for k in (a, b)]
        wanted = tails[0] * tails[1] + mp.quad(p, [0, mpf(c) / 2, mpf(c)])
    assert found == pytest.approx(float(wanted), rel=RELATIVE)


def test_rules_of_many_rows_are_those_of_each_row() -> None:
    ends = np.array([[0.1, 2.0], [-0.3, 50.0]])
    z, w = rule(ends)
    for row in range(2):
        z_alone, w_alone = rule(ends[row])
        np.testing.assert_array_equal(z[row, : z_alone.size], z_alone)
        np.testing.assert_array_equal(w[row, : w_alone.size], w_alone)
        assert not w[row, w_alone.size :].any()  # panels of no width
        assert w[row].sum() == pytest.approx(1.0, rel=1e-14)


def test_halved_panels_are_a_rule_of_their_own() -> None:
    z, w = rule(np.array([0.3]), halvings=2)
    assert z.size == 4 * rule(np.array([0.3]))[0].size
    assert w @ z**6 == pytest.approx(15.0, rel=1e-14)


@every_name
def test_panels_end_at_every_kink_under_scale_and_shift(name: str) -> None:
    phi = activation(name)
    ends = panel_ends(phi, 2.0, -0.5)
    for k in phi.kinks:
        assert np.min(np.abs(ends - (k + 0.5) / 2.0)) == 0.0

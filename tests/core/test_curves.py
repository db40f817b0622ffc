"""The curves of solutions: where they end in infinitely deep networks, and which one is taken."""

import math

import numpy as np
import pytest

from skipless.core.activations import activation
from skipless.core.curves import (
    DKS_CONDITIONS,
    TAT_CONDITIONS,
    nearest_transformation,
    reachable_range,
    trace_curves,
    transformations,
)
from skipless.core.gaussian import distortion, shaped_q_map

STABLE, STEEP = TAT_CONDITIONS
ROOT_TWO = math.sqrt(2.0)

# For α → 0 the Taylor series of φ around β leaves φ′φ‴ = -φ″²/2 of the conditions of DKS, and
# φ′φ‴ = ∓φ″²/√2 of those of TAT. For tanh, φ′φ‴/φ″² = (3t² - 1)/2t² with t = tanh β; for softplus
# it is (1 - 2σ)/(1 - σ) with σ = sigmoid β; for sin, -cot² β; for atan, (3β² - 1)/2β².
DEEP_SHIFTS = [
    ("tanh", DKS_CONDITIONS, math.atanh(0.5)),
    ("tanh", STABLE, math.atanh((3 + ROOT_TWO) ** -0.5)),
    ("tanh", STEEP, math.atanh((3 - ROOT_TWO) ** -0.5)),
    ("softplus", DKS_CONDITIONS, math.log(1.5)),
    ("softplus", STABLE, math.log((1 + 1 / ROOT_TWO) / 1.0)),
    ("sin", DKS_CONDITIONS, math.atan(ROOT_TWO)),
    ("sin", STABLE, math.atan(2**0.25)),
    ("atan", DKS_CONDITIONS, 0.5),
    ("atan", STABLE, (3 + ROOT_TWO) ** -0.5),
]


@pytest.mark.parametrize(("name", "conditions", "beta"), DEEP_SHIFTS)
def test_the_shift_tends_to_the_root_of_its_deep_limit(name, conditions, beta) -> None:
    gaps = []
    for reading in (4e-4, 1e-4):
        point = next(transformations(activation(name), conditions, reading))
        gaps.append(abs(point.beta - beta))
    assert gaps[0] < 10 * 4e-4
    # The error is of the order of α², and so is the reading.
    assert gaps[1] == pytest.approx(gaps[0] / 4, rel=0.05, abs=1e-7)


@pytest.mark.parametrize(
    ("conditions", "ratio"), [(STABLE, 1.5 - ROOT_TWO), (STEEP, 1.5 + ROOT_TWO)]
)
def test_the_two_families_of_tat_differ_by_the_curvature_of_their_q_map(conditions, ratio) -> None:
    reading, e = 1e-4, 0.2
    point = next(transformations(activation("tanh"), conditions, reading))
    q_map = shaped_q_map(activation("tanh"), (point.alpha, point.beta, point.gamma, point.delta))
    low, middle, high = q_map(np.array([1 - e, 1.0, 1 + e]))
    assert (low - 2 * middle + high) / e**2 == pytest.approx(ratio * reading, rel=0.02)


def test_a_point_reads_its_target_and_is_found_wherever_the_curve_passes() -> None:
    for target in np.geomspace(1e-5, 0.45, 40):
        assert next(transformations(activation("softplus"), DKS_CONDITIONS, target)).reading == (
            pytest.approx(target, rel=1e-9)
        )
    assert not list(transformations(activation("softplus"), DKS_CONDITIONS, 0.5))


def test_what_is_reachable_is_the_range_of_the_curves() -> None:
    span = reachable_range(activation("softplus"), DKS_CONDITIONS)
    assert span is not None
    low, high = span
    assert low < 1e-8
    # Softplus of great scale is ReLU, and E[φ′²]/Var φ = 1/(1 - 1/π) for ReLU.
    assert high == pytest.approx(1 / (1 - 1 / math.pi) - 1, rel=1e-3)
    assert reachable_range(activation("square"), DKS_CONDITIONS) is None
    assert trace_curves(activation("square"), STABLE) == ()
    assert nearest_transformation(activation("square"), STABLE, 0.1) is None


def test_the_greatest_reading_of_a_sine_is_where_its_curve_turns() -> None:
    # There it is a cosine, whose moments are known: with y = exp(-α²), Q'(1) = 1 asks for
    # α² = (1 - y)/2y, and C'(1) - 1 is (1 - y)/2y as well: the root of x = (e^x - 1)/2.
    x = 1.0
    for _ in range(60):
        x -= (math.expm1(x) / 2 - x) / (math.exp(x) / 2 - 1)
    span = reachable_range(activation("sin"), DKS_CONDITIONS)
    assert span is not None
    assert span[1] == pytest.approx(x, rel=1e-5)
    assert not list(transformations(activation("sin"), DKS_CONDITIONS, x * 1.001))
    assert list(transformations(activation("sin"), DKS_CONDITIONS, x * 0.999))


def test_the_chosen_branch_has_the_least_distorted_q_map_in_deep_networks() -> None:
    for name in ("gelu", "silu", "mish", "selu", "softplus"):
        phi = activation(name)
        families = (TAT_CONDITIONS[0], DKS_CONDITIONS) if name != "selu" else (DKS_CONDITIONS,)
        for conditions in families:
            every = list(transformations(phi, conditions, 1e-5))
            bends = [distortion(phi, (p.alpha, p.beta, p.gamma, p.delta)) for p in every]
            assert bends[0] == min(bends), (name, conditions.name, bends)


def test_distortion_of_a_linear_map_vanishes_and_of_x_squared_is_known() -> None:
    assert distortion(activation("identity"), (1.0, 0.0, 1.0, 0.0)) < 1e-12
    # Q(q) = 3γ⁴… for γx²: with γ² = 1/3, Q(q) = q², and ∫ log q · q^(-3/2) dq = 4.
    square = distortion(activation("square"), (1.0, 0.0, 3**-0.5, 0.0))
    assert square == pytest.approx(4.0, rel=0.03)  # a sum of steps of 1/2 in log q

"""The curves of solutions: where they end in infinitely deep networks, and which one is taken."""

import math

import numpy as np
import pytest

from skipless.core.activations import Activation, Array, activation
from skipless.core.curves import (
    DKS_CONDITIONS,
    TAT_CONDITIONS,
    Conditions,
    Transformation,
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


# The trapezoidal rule, which converges quickly wherever the poles of φ are.
Z: Array = np.linspace(-9.0, 9.0, 91)
WEIGHT: Array = np.exp(-0.5 * Z**2) / np.sum(np.exp(-0.5 * Z**2))


def raw_conditions(
    phi: Activation, conditions: Conditions, target: float, log_alpha: Array, beta: Array
) -> tuple[Array, Array]:
    """What Q'(1) and C'(1) - 1 or C''(1) lack, with γ and δ from the first two conditions."""
    alpha = np.exp(log_alpha)[..., None]
    x = alpha * Z + beta[..., None]
    psi, slope, bend = phi.value(x), alpha * phi.slope(x), alpha**2 * phi.curvature(x)
    square = slope**2 @ WEIGHT
    psi = psi - (psi @ WEIGHT)[..., None]
    variance = psi**2 @ WEIGHT
    if conditions is not DKS_CONDITIONS:  # C'(1) = Q(1) leaves E[φ̂] but for its sign
        same = np.sign(bend @ WEIGHT) if conditions is STABLE else -np.sign(bend @ WEIGHT)
        mean = same * np.sqrt(np.maximum(square - variance, 0.0))
        psi, variance, reading = psi + mean[..., None], square, bend**2 @ WEIGHT / square
    else:
        reading = square / variance - 1.0
    q_slope = (psi * slope * Z) @ WEIGHT / variance
    return (q_slope - 1.0) / target, np.log(reading / target)


def scanned(phi: Activation, conditions: Conditions, target: float) -> list[tuple[float, float]]:
    """Every (α, β) in cells of a grid where both conditions change sign, by Newton's method."""
    at = lambda a, b: raw_conditions(phi, conditions, target, a, b)
    log_alpha = np.linspace(math.log(0.012), math.log(4.0), 90)[:, None]
    beta = (0.6 + np.exp(log_alpha)) * np.linspace(-4.5, 3.0, 120)
    grid = at(np.broadcast_to(log_alpha, beta.shape), beta)
    corners = [np.stack([f[:-1, :-1], f[1:, :-1], f[:-1, 1:], f[1:, 1:]]) for f in grid]
    i, j = np.nonzero(np.all([(f.min(0) < 0) & (f.max(0) > 0) for f in corners], axis=0))
    x = np.stack([log_alpha[i, 0], beta[i, j]])
    h = 1e-6
    for _ in range(20):
        f = np.stack(at(*x))
        columns = [(np.stack(at(x[0] + a, x[1] + b)) - f) / h for a, b in ((h, 0.0), (0.0, h))]
        step = np.linalg.solve(np.stack(columns, -1).transpose(1, 0, 2), f.T[..., None])[..., 0].T
        x = x - np.clip(step, -0.1, 0.1)
    solved = np.abs(np.stack(at(*x))).max(axis=0) < 1e-8
    found: list[tuple[float, float]] = []
    for a, b in zip(np.exp(x[0, solved]).tolist(), x[1, solved].tolist(), strict=True):
        if not any(abs(a - p) < 1e-5 * p and abs(b - q) < 1e-5 for p, q in found):
            found.append((a, b))
    return sorted(found)


@pytest.mark.parametrize(
    ("name", "conditions", "target", "count"),
    [
        ("gelu", STABLE, 0.006, 5),
        ("gelu", STEEP, 0.006, 3),
        ("gelu_tanh", STABLE, 0.008, 5),  # a pair, close to where their curve turns
        ("mish", DKS_CONDITIONS, 0.3, 3),  # on an arc between two values of α of the trace
        ("quick_gelu", STABLE, 6.0, 2),  # two curves that nearly touch
    ],
)
def test_a_scan_of_the_plane_finds_no_more_solutions_than_the_curves(
    name: str, conditions: Conditions, target: float, count: int
) -> None:
    phi = activation(name)
    ours = [(p.alpha, p.beta) for p in transformations(phi, conditions, target) if p.alpha < 4.0]
    theirs = scanned(phi, conditions, target)
    assert len(theirs) == count
    assert sorted(ours) == [pytest.approx(solution, rel=1e-5) for solution in theirs]


@pytest.mark.parametrize("name", ["gelu", "cos", "tanh"])
def test_every_solution_is_listed_once(name: str) -> None:
    for target in (0.006, 0.3, 0.8):
        for conditions in (DKS_CONDITIONS, STABLE):
            points = list(transformations(activation(name), conditions, target))
            rounded = {(f"{p.alpha:.4g}", f"{p.beta:.4g}") for p in points}
            assert len(rounded) == len(points)


def bend(name: str, points: list[Transformation]) -> list[float]:
    return [distortion(activation(name), p.constants) for p in points]


def test_the_chosen_branch_has_the_least_distorted_q_map_at_its_own_target() -> None:
    for name in ("gelu", "silu", "mish", "selu", "softplus"):
        families = (STABLE, DKS_CONDITIONS) if name != "selu" else (DKS_CONDITIONS,)
        for conditions in families:
            for target in (1e-5, 0.006):
                bends = bend(name, list(transformations(activation(name), conditions, target)))
                assert bends[0] == min(bends), (name, conditions.name, bends)


def test_the_branch_changes_where_another_one_gets_more_stable() -> None:
    # Near this target a SELU of small scale is a leaky ReLU, whose Q map is the identity.
    chosen, other = [
        next(transformations(activation("selu"), DKS_CONDITIONS, t)) for t in (0.0353, 0.02)
    ]
    assert chosen.alpha < 0.15 < other.alpha


def test_a_step_that_hides_in_a_linear_function_is_not_chosen() -> None:
    # x - tanh(x) of great scale is x less a step: the Q map of such a φ̂ is hardly distorted, but
    # C''(1) grows like α, and one input in α sees the step.
    points = list(transformations(activation("tanh_shrink"), DKS_CONDITIONS, 0.01))
    bends = bend("tanh_shrink", points)
    assert bends[0] > min(bends)
    assert points[0].alpha == min(p.alpha for p in points) < 0.2


def test_distortion_of_a_linear_map_vanishes_and_of_x_squared_is_known() -> None:
    assert distortion(activation("identity"), (1.0, 0.0, 1.0, 0.0)) < 1e-12
    # Q(q) = 3γ⁴… for γx²: with γ² = 1/3, Q(q) = q², and ∫ log q · q^(-3/2) dq = 4.
    square = distortion(activation("square"), (1.0, 0.0, 3**-0.5, 0.0))
    assert square == pytest.approx(4.0, rel=0.03)  # a sum of steps of 1/2 in log q

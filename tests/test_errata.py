"""The errata of docs/paper.md: what is printed fails here, and what the code does instead holds."""

import math
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import root

from skipless.core.activations import Activation, Array, activation, transform
from skipless.core.graph import Graph, GraphBuilder
from skipless.core.maps import (
    c_map,
    c_map_curvature,
    c_map_slope,
    leaky_relu_c_map,
    leaky_relu_c_map_slope,
    q_map,
    q_map_slope,
)
from skipless.core.network import fold, max_c_value, max_curvature, maximum
from skipless.core.solution import DKS, EOC, TAT, ClampedTargetWarning, UnreachableTargetError
from skipless.core.solve import solve
from skipless.core.theory import equivalent_shortcut_weight, infinite_depth_c_map, leaky_relu_bound

ROOT = Path(__file__).parents[1]
Z, WEIGHT = (np.asarray(a, float) for a in np.polynomial.hermite_e.hermegauss(120))
WEIGHT = WEIGHT / WEIGHT.sum()


def relu_c_map(c: float) -> float:
    return c + (math.sqrt(1.0 - c * c) - c * math.acos(c)) / math.pi


def leaky(c: float, alpha: float) -> float:
    """Lemma 1, written out once more."""
    kappa = (1.0 - alpha) ** 2 / (1.0 + alpha**2)
    return c + kappa / math.pi * (math.sqrt(1.0 - c * c) - c * math.acos(c))


def resnet(blocks_per_stage: tuple[int, ...], w: float) -> Graph:
    """A rescaled ResNet V2; the first block of a stage has an affine layer on its shortcut."""
    g = GraphBuilder()
    x = g.affine(g.input())
    for blocks in blocks_per_stage:
        for block in range(blocks):
            first = g.activation(x)
            branch = g.affine(g.activation(g.affine(g.activation(g.affine(first)))))
            shortcut = x if block else g.affine(first)
            x = g.sum([shortcut, branch], [w, math.sqrt(1.0 - w * w)])
    g.affine(g.activation(x))
    return g.build()


RESNET_50 = (3, 4, 6, 3)


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.8])
def test_proposition_1_holds_with_the_shortcut_weight_of_its_proof_only(alpha: float) -> None:
    for c in (-0.7, 0.0, 0.5):
        stated = alpha / (1.0 + alpha**2)
        assert abs(stated * c + (1.0 - stated) * relu_c_map(c) - leaky(c, alpha)) > 1e-3
        proved = equivalent_shortcut_weight(alpha) ** 2
        assert proved * c + (1.0 - proved) * relu_c_map(c) == pytest.approx(leaky(c, alpha))


def test_proposition_1_has_no_shortcut_weight_for_a_negative_slope_below_zero() -> None:
    # At c = -1 a block reads w² c + (1 - w²) C(c) = -w² <= 0; the leaky ReLU is above.
    assert leaky(-1.0, -0.3) > 0.3
    with pytest.raises(ValueError, match="alpha must be >= 0"):
        equivalent_shortcut_weight(-0.3)


def test_equation_26_leads_out_of_the_unit_interval_until_both_its_slips_are_mended() -> None:
    alpha, total = 0.3, 1.0 + 0.3**2
    printed = lambda c: 2 * alpha / total + (1 - alpha**2) / total * relu_c_map(c)
    mended = lambda c: 2 * alpha / total * c + (1 - alpha) ** 2 / total * relu_c_map(c)
    assert printed(1.0) > 1.38
    for c in (-1.0, -0.2, 0.5, 1.0):
        assert mended(c) == pytest.approx(leaky_relu_c_map(c, alpha), abs=1e-14)


def test_the_tanh_pair_of_section_5_4_lies_beyond_the_edge_of_chaos() -> None:
    def slope_at_fixed_point(sigma_w: float, sigma_b: float) -> float:
        q = 1.0
        for _ in range(1000):
            q = sigma_w**2 * float(WEIGHT @ np.tanh(math.sqrt(q) * Z) ** 2) + sigma_b**2
        return sigma_w**2 * float(WEIGHT @ np.cosh(math.sqrt(q) * Z) ** -4)

    assert slope_at_fixed_point(1.302, 0.02) == pytest.approx(1.0642, abs=1e-4)
    assert slope_at_fixed_point(1.302, 0.2) == pytest.approx(0.9988, abs=1e-4)
    for sigma_b, sigma_w in ((0.02, 1.0668), (0.2, 1.3041)):
        found = solve(Graph.chain(49), EOC(sigma_b=sigma_b), "tanh")
        assert found.sigma_w == pytest.approx(sigma_w, abs=1e-4)
        assert slope_at_fixed_point(found.sigma_w, sigma_b) == pytest.approx(1.0, abs=1e-6)


def test_the_first_c_value_is_a_cosine_and_not_the_kernel() -> None:
    x1, x2 = np.array([2.0, 2.0]), np.array([2.0, 0.0])
    assert x1 @ x2 / 2 == 2.0  # the printed c⁰, no cosine
    # One linear layer keeps the cosine; by eq. 5 it is normalised by both q values.
    q1, q2 = x1 @ x1 / 2, x2 @ x2 / 2
    c = float(x1 @ x2) / (2.0 * math.sqrt(q1 * q2))
    identity = activation("identity")
    assert float(c_map(identity, c, float(q1), float(q2))) == pytest.approx(math.sqrt(0.5))


def test_the_sum_rule_holds_for_two_inputs_of_equal_q_only() -> None:
    # Two terms of weight √½ that see both inputs in one direction, but at other lengths.
    q_first, q_second, w = np.array([1.0, 4.0]), np.array([4.0, 1.0]), np.full(2, math.sqrt(0.5))
    printed = (w**2 * q_first * 1.0).sum() / (w**2 * q_first).sum()
    y_first, y_second = w * np.sqrt(q_first), w * np.sqrt(q_second)  # one axis for each term
    cosine = y_first @ y_second / (np.linalg.norm(y_first) * np.linalg.norm(y_second))
    assert (printed, cosine) == (pytest.approx(1.0), pytest.approx(0.8))


def test_equation_7_needs_a_branch_that_ends_in_an_affine_layer() -> None:
    rng, n, w = np.random.default_rng(0), 1500, 0.8
    weights = lambda: rng.standard_normal((n, n)) / math.sqrt(n)

    def q_after_two_blocks(last_affine: bool) -> float:
        x = rng.standard_normal(n)
        x *= math.sqrt(n) / np.linalg.norm(x)
        for _ in range(2):
            branch = math.sqrt(2.0) * np.maximum(weights() @ x, 0.0)
            x = w * x + math.sqrt(1.0 - w * w) * (weights() @ branch if last_affine else branch)
        return float(x @ x / n)

    # Without it, shortcut and branch share a mean, and q gains 2 w (1 - w²) / π in the second
    # block. Four standard errors: a q value of n draws has 1/√n times about √5.
    error = 4.0 * math.sqrt(5.0 / n)
    assert q_after_two_blocks(last_affine=True) == pytest.approx(1.0, abs=error)
    without = q_after_two_blocks(last_affine=False)
    assert without == pytest.approx(1.0 + 2.0 * w * (1.0 - w * w) / math.pi, abs=error)


def test_the_c_map_falls_with_alpha_below_one_only_and_never_at_c_equal_one() -> None:
    assert leaky_relu_c_map(0.0, 0.5) > leaky_relu_c_map(0.0, 0.9) > leaky_relu_c_map(0.0, 1.0)
    assert leaky_relu_c_map(0.0, 4.0) > leaky_relu_c_map(0.0, 2.0) > leaky_relu_c_map(0.0, 1.0)
    assert leaky_relu_c_map(0.3, 2.0) == pytest.approx(leaky_relu_c_map(0.3, 0.5))
    assert leaky_relu_c_map(1.0, 0.0) == leaky_relu_c_map(1.0, 0.5) == 1.0
    slope = solve(Graph.chain(50), TAT(eta=0.9)).negative_slope
    assert slope is not None
    assert 0.0 <= slope <= 1.0


def test_the_proof_of_theorem_1_bounds_the_slope_by_0_and_1_and_not_the_value() -> None:
    c = np.linspace(-1.0, 1.0, 201)
    assert leaky_relu_c_map(-1.0, 0.5) == pytest.approx(-0.8)  # C itself leaves [0, 1]
    slopes = [leaky_relu_c_map_slope(float(t), 0.5) for t in c]
    assert min(slopes) >= 0.0
    assert max(slopes) <= 1.0


def test_theorem_1_bounds_little_at_the_eta_of_the_experiments() -> None:
    # A C map with C_f(0) = η that does not decrease has |C_f - c| <= 1 + η and |C_f' - 1| <= 1.
    assert leaky_relu_bound(0.9).value == 1.9
    assert leaky_relu_bound(0.9).slope == 1.0
    assert leaky_relu_bound(0.2).value == pytest.approx(0.8)
    # The bound is nearly attained: the limit of deep TReLU networks is far from the identity.
    assert float(infinite_depth_c_map(-1.0, eta=0.9)) + 1.0 == pytest.approx(1.8806, abs=1e-4)


def test_as_alpha_goes_to_one_the_step_of_the_c_map_vanishes_and_its_slope_does_not() -> None:
    slopes = [leaky_relu_c_map_slope(-0.5, alpha) for alpha in (0.0, 0.9, 0.999)]
    assert slopes == sorted(slopes)
    assert slopes[-1] == pytest.approx(1.0, abs=1e-6)
    assert leaky_relu_c_map(-0.5, 0.999) + 0.5 == pytest.approx(0.0, abs=1e-6)
    assert leaky_relu_c_map_slope(-1.0, 0.0) == 0.0  # the one place where it is zero


def test_the_second_derivative_of_the_c_map_sees_the_jump_of_the_slope() -> None:
    relu, h = activation("relu"), 1e-3
    assert not np.any(relu.curvature(Z))  # eq. 18 with the pointwise φ″ would be zero
    for c in (-0.5, 0.0, 0.7):
        bend = (relu_c_map(c + h) - 2.0 * relu_c_map(c) + relu_c_map(c - h)) / h**2
        assert float(c_map_curvature(relu, c)) == pytest.approx(bend, rel=1e-5)


def test_a_linear_network_of_any_depth_keeps_its_c_values() -> None:
    # Proposition 2 has every network forget c. Its one exception is a linear φ.
    assert fold(Graph.chain(1000), lambda c: leaky_relu_c_map(c, 1.0), 0.3) == 0.3
    assert fold(Graph.chain(1000), relu_c_map, 0.3) == pytest.approx(1.0, abs=1e-4)


def test_the_width_of_theorem_4_lacks_a_constant() -> None:
    # One ReLU layer, one input: κ is the mean of n draws of 2 max(z, 0)², of variance 5.
    delta, epsilon = 0.1, 0.05
    n = math.ceil(math.log(1.0 / delta) / epsilon**2)
    z = np.random.default_rng(0).standard_normal((1000, n))
    kernel = np.mean(2.0 * np.maximum(z, 0.0) ** 2, axis=1)
    close = float(np.mean(np.abs(kernel - 1.0) <= epsilon))
    assert close < 0.6 < 1.0 - delta  # 0.50; four standard errors are 0.06


def test_a_larger_subnetwork_may_read_less_where_r_lies_below_the_identity() -> None:
    # Appendix B.2 drops every subnetwork that a larger one contains, whatever r.
    chain, halve = Graph.chain(3), lambda x: 0.5 * x
    assert fold(chain, halve, 1.0) == 0.125
    assert fold(Graph.chain(1), halve, 1.0) == 0.5
    assert maximum(chain, halve, 1.0) == 1.0  # an affine layer alone
    above = lambda x: 0.1 + x  # r(x) >= x: here the whole chain is the maximum
    assert maximum(chain, above, 0.0) == fold(chain, above, 0.0)


def test_blocks_followed_by_a_branch_are_no_subnetwork_or_b_5_would_read_more() -> None:
    w2, blocks = 0.64, 16
    printed = max(3.0, 3 * blocks * (1.0 - w2))
    with_a_second_output = 3 * (blocks - 1) * (1.0 - w2) + 3.0
    assert max_curvature(Graph.residual(blocks, shortcut_weight=0.8), 1.0) == pytest.approx(printed)
    assert with_a_second_output > printed + 1.9


def test_a_branch_is_a_subnetwork_of_curvature_three_whatever_its_weight() -> None:
    w = 0.9
    graph = Graph.residual(1, shortcut_weight=w)
    assert max_curvature(graph, 1.0) == 3.0
    assert max_curvature(graph, 1.0) != pytest.approx(3.0 * (1.0 - w * w))
    # It changes nothing in B.5, where the whole network reads 5 or more.
    assert max_curvature(resnet(RESNET_50, w), 1.0) == pytest.approx((50 - 6) * (1 - w * w) + 5)


def test_resnet_50_has_49_activations_on_its_path_and_not_l() -> None:
    assert resnet(RESNET_50, 0.0).depth == 49
    assert max_curvature(resnet(RESNET_50, 0.0), 1.0) == pytest.approx(49.0)


@pytest.mark.parametrize(("w", "eta", "most"), [(0.9, 0.9, 0.8879), (0.8, 0.95, 0.9398)])
def test_the_etas_of_the_grid_are_partly_out_of_reach(w: float, eta: float, most: float) -> None:
    graph, c = resnet(RESNET_50, w), 0.0
    for blocks in RESNET_50:
        for block in range(blocks):
            shortcut = c if block else relu_c_map(c)
            c = w * w * shortcut + (1 - w * w) * relu_c_map(relu_c_map(relu_c_map(c)))
    assert relu_c_map(c) == pytest.approx(most, abs=5e-5)
    assert max_c_value(graph, relu_c_map) == pytest.approx(relu_c_map(c))
    with pytest.raises(UnreachableTargetError, match=r"out of reach"):
        solve(graph, TAT(eta=eta))
    with pytest.warns(ClampedTargetWarning):
        clamped = solve(graph, TAT(eta=eta), clamp=True)
    assert clamped.negative_slope == pytest.approx(0.0, abs=1e-12)  # plain ReLU


def test_eta_of_0_9_needs_13_layers() -> None:
    assert fold(Graph.chain(12), relu_c_map, 0.0) < 0.9 < fold(Graph.chain(13), relu_c_map, 0.0)
    with pytest.raises(UnreachableTargetError):
        solve(Graph.chain(12), TAT(eta=0.9))
    assert solve(Graph.chain(13), TAT(eta=0.9)).largest_residual < 1e-10


@pytest.mark.parametrize("alpha", [-1.0, -0.5, 0.0, 0.4, 0.9])
def test_leaky_relu_satisfies_dks_without_an_input_shift(alpha: float) -> None:
    kappa, mean = (1 - alpha) ** 2 / (1 + alpha**2), (1 - alpha) / math.sqrt(2 * math.pi)
    gamma = ((1 + alpha**2) / 2 - mean**2) ** -0.5
    shaped = transform(activation("leaky_relu", alpha), 1.0, 0.0, gamma, -mean)
    assert q_map(shaped, 1.0) == pytest.approx(1.0, abs=1e-12)
    assert q_map_slope(shaped, 1.0) == pytest.approx(1.0, abs=1e-12)
    assert float(c_map(shaped, 0.0)) == pytest.approx(0.0, abs=1e-12)
    assert float(c_map_slope(shaped, 1.0)) == pytest.approx(1 / (1 - kappa / math.pi), abs=1e-12)


def test_leaky_relu_reaches_a_slope_of_2_752_in_a_layer_under_dks() -> None:
    assert solve(Graph.chain(1), DKS(zeta=2.75)).input_shift == 0.0
    with pytest.raises(UnreachableTargetError, match=r"2\.752"):
        solve(Graph.chain(1), DKS(zeta=2.76))


@pytest.mark.parametrize(
    ("name", "flat", "steep"),
    [("tanh", (0.01, 0.52), (0.006, 1.08)), ("softplus", (0.03, 0.53), (0.013, -1.23))],
)
def test_equations_14_to_16_have_two_families_of_solutions(
    name: str, flat: tuple[float, float], steep: tuple[float, float]
) -> None:
    curvature = 1e-4
    for start, sign, expected in ((flat, 1.0, 1.5 - 2**0.5), (steep, -1.0, 1.5 + 2**0.5)):
        bend = _q_curvature(_shaped_at(name, curvature, start, sign))
        assert bend / curvature == pytest.approx(expected, abs=0.01)
    ours = solve(Graph.chain(10_000), TAT(tau=1e4 * curvature), name)
    assert _q_curvature(ours.shaped) / curvature == pytest.approx(1.5 - 2**0.5, abs=0.01)


def _shaped_at(name: str, curvature: float, start: tuple[float, float], sign: float) -> Activation:
    """φ̂ with all four conditions, found from `start`; its mean has `sign` times that of φ″."""
    phi = activation(name)

    def shaped(x: Array) -> Activation:
        alpha, beta = float(x[0]), float(x[1])
        psi = phi.value(alpha * Z + beta)
        slope, bend = alpha * phi.slope(alpha * Z + beta), phi.curvature(np.array([beta]))[0]
        mean, square = float(WEIGHT @ psi), float(WEIGHT @ slope**2)
        excess = square - float(WEIGHT @ (psi - mean) ** 2)
        shift = sign * math.copysign(math.sqrt(max(excess, 0.0)), bend)  # Q(1) = C'(1) = 1
        return transform(phi, alpha, beta, square**-0.5, shift - mean)

    def left(x: Array) -> list[float]:
        hat = shaped(x)
        q_slope = float(WEIGHT @ (hat.value(Z) * hat.slope(Z) * Z))
        return [(q_slope - 1) / curvature, float(WEIGHT @ hat.curvature(Z) ** 2) / curvature - 1]

    found = root(left, start)
    assert np.max(np.abs(left(found.x))) < 1e-6
    hat = shaped(found.x)
    assert [float(WEIGHT @ v**2) for v in (hat.value(Z), hat.slope(Z))] == pytest.approx([1, 1])
    return hat


def _q_curvature(phi: Activation) -> float:
    below, here, above = (
        float(WEIGHT @ phi.value(math.sqrt(q) * Z) ** 2) for q in (0.95, 1.0, 1.05)
    )
    return (below - 2 * here + above) / 0.05**2


def test_x_squared_can_be_shaped_by_neither_tat_nor_dks() -> None:
    for method in (TAT(), DKS()):
        with pytest.raises(UnreachableTargetError, match="homogeneous"):
            solve(Graph.chain(50), method, "square")


def test_a_layer_of_softplus_is_less_steep_than_pi_over_pi_minus_1_under_dks() -> None:
    most = math.pi / (math.pi - 1.0)
    assert solve(Graph.chain(1), DKS(zeta=most - 0.01), "softplus").largest_residual < 1e-10
    with pytest.raises(UnreachableTargetError):
        solve(Graph.chain(1), DKS(zeta=most + 0.01), "softplus")


TABLE = [
    line.split(" | ")
    for line in (ROOT / "docs/paper.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and line.count(" | ") == 3
]


def test_the_code_that_the_table_of_the_paper_names_exists() -> None:
    names = [name for row in TABLE for name in re.findall(r"`([\w.]+)`", row[1])]
    assert len(names) > 30
    for name in names:
        room = {"torch": "skipless.", "skipless": ""}.get(name.split(".")[0], "skipless.core.")
        pkgutil.resolve_name(room + name)


def test_the_tests_that_the_table_of_the_paper_names_exist() -> None:
    names = [name for row in TABLE for name in re.findall(r"`([\w./:]+)`", row[2])]
    assert len(names) > 30
    for name in names:
        file, _, function = name.partition("::")
        path = ROOT / "tests" / file
        assert path.exists(), f"docs/paper.md names {file}"
        assert f"def {function}" in path.read_text(encoding="utf-8"), f"docs/paper.md names {name}"

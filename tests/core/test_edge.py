"""The edge of chaos: C'(1) = 1 at a q value that the layers are drawn to."""

import math
import re

import numpy as np
import pytest
from scipy.integrate import quad

from skipless.core.activations import activation, leaky_relu
from skipless.core.edge import edge_of_chaos
from skipless.core.graph import Graph
from skipless.core.maps import c_map_slope
from skipless.core.solution import EOC, UnreachableTargetError
from skipless.core.solve import solve

ATTRACTED = [
    "tanh",
    "sigmoid",
    "erf",
    "elu",
    "selu",
    "softsign",
    "atan",
    "asinh",
    "sin",
    "cos",
    "hard_tanh",
    "relu6",
]


def mean(f):
    """E[f(z)] by QUADPACK."""
    weight = lambda z: math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return sum(
        quad(lambda z: f(z) * weight(z), a, b, epsabs=1e-14, epsrel=1e-13, limit=400)[0]
        for a, b in ((-12, 0), (0, 12))
    )


@pytest.mark.parametrize("name", ATTRACTED)
def test_the_weights_hold_q_and_give_slope_one_by_quadpack(name: str) -> None:
    solution = solve(Graph.chain(10), EOC(sigma_b=0.3), name)
    phi, s = activation(name), math.sqrt(solution.q)
    held = solution.sigma_w**2 * mean(lambda z: float(phi(s * z)) ** 2) + 0.09
    assert held == pytest.approx(solution.q, rel=1e-8)
    at = lambda z: float(phi.slope(np.array([s * z]))[0])
    assert solution.sigma_w**2 * mean(lambda z: at(z) ** 2) == pytest.approx(1.0, abs=1e-7)


@pytest.mark.parametrize("name", ATTRACTED)
def test_q_is_drawn_to_the_fixed_point_from_both_sides(name: str) -> None:
    solution = solve(Graph.chain(10), EOC(sigma_b=0.3), name)
    for start in (0.8, 1.25):
        q = start * solution.q
        gap = abs(q - solution.q)
        for _ in range(30):
            q = solution.q_map(q)
        assert abs(q - solution.q) < 0.9 * gap


def test_the_edge_of_chaos_of_tanh_at_zero_bias_is_the_unit_scale_at_q_zero() -> None:
    solution = solve(Graph.chain(10), EOC(), "tanh")
    assert (solution.q, solution.sigma_w) == (0.0, 1.0)
    assert solution.c_map([0.25, -0.5]) == pytest.approx([0.25, -0.5], abs=1e-9)


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.25, -0.5])
def test_the_relu_family_has_he_scale(slope: float) -> None:
    solution = solve(Graph.chain(10), EOC(), leaky_relu(slope))
    assert solution.sigma_w == pytest.approx(math.sqrt(2 / (1 + slope**2)), rel=1e-12)
    assert solution.negative_slope == slope
    assert solution.activation == "leaky_relu"


def test_the_sigma_w_of_tanh_at_a_bias_of_a_fifth() -> None:
    # Bisection on σ_w for C'(1) = 1 at the q that iterating the Q map gives: no shared code.
    def slope_at_rest(sigma_w: float) -> float:
        q = 1.0
        for _ in range(400):
            s = math.sqrt(q)
            q = sigma_w**2 * mean(lambda z, s=s: math.tanh(s * z) ** 2) + 0.04
            if abs(q - s * s) < 1e-13:
                break
        s = math.sqrt(q)
        return sigma_w**2 * mean(lambda z: math.cosh(s * z) ** -4)

    found = solve(Graph.chain(10), EOC(sigma_b=0.2), "tanh").sigma_w
    assert slope_at_rest(found - 1e-4) < 1 < slope_at_rest(found + 1e-4)


@pytest.mark.parametrize("name", ["softplus", "bent_identity", "square", "squareplus"])
def test_where_no_q_attracts_there_is_no_edge_of_chaos(name: str) -> None:
    for sigma_b in (0.0, 0.1, 1.0):
        with pytest.raises(UnreachableTargetError, match="at a stable q value"):
            solve(Graph.chain(10), EOC(sigma_b), name)


def test_a_bias_out_of_reach_names_one_within_reach() -> None:
    with pytest.raises(UnreachableTargetError, match="nearest target") as caught:
        solve(Graph.chain(10), EOC(0.2), "gelu")
    (found,) = re.findall(r"nearest target, ([\d.]+)", str(caught.value))
    nearest = float(found)
    assert nearest > 0.2
    # It is the end of the range, to the digits that are shown.
    assert edge_of_chaos(activation("gelu"), nearest + 1e-3) is not None
    assert edge_of_chaos(activation("gelu"), nearest - 1e-3) is None


@pytest.mark.parametrize("sigma_b", [0.0, 0.02, 0.1, 2.0])
def test_soft_shrink_repels_every_q_from_above(sigma_b: float) -> None:
    # It vanishes at its kinks, so that E[φφ″] = 0 and Q′ = C'(1): where that is 1, Q is convex.
    with pytest.raises(UnreachableTargetError, match="at no sigma_b do its layers have"):
        solve(Graph.chain(10), EOC(sigma_b), "soft_shrink", clamp=True)


def test_the_c_map_of_a_layer_includes_the_bias() -> None:
    solution = solve(Graph.chain(10), EOC(0.3), "tanh")
    bias = 0.09 / solution.q
    assert float(solution.c_map(0.0)) == pytest.approx(bias, abs=1e-12)
    assert float(solution.c_map(1.0)) == pytest.approx(1.0, abs=1e-12)
    # C'(1) = 1 of the whole layer, by a difference quotient.
    e = 1e-5
    slope = float(solution.c_map(1.0) - solution.c_map(1.0 - e)) / e
    assert slope == pytest.approx(1.0, abs=1e-4)
    inner = float(c_map_slope(activation("tanh"), 1.0, solution.q))
    assert (1 - bias) * inner == pytest.approx(1.0, abs=1e-10)

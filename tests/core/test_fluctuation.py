"""What a layer of finite width does to q and c is what sampled layers do."""

import math

import numpy as np
import pytest

from skipless import DKS, EOC, TAT, Graph, solve
from skipless.core.activations import Array, leaky_relu
from skipless.core.fluctuation import (
    Noise,
    activation_response,
    log_mean,
    log_variance,
    normal_covariance,
)
from skipless.core.maps import c_map, c_map_slope, q_map, q_map_slope
from skipless.core.network import Point
from skipless.core.solution import Solution

CHAIN = Graph.chain(20)
SOLUTIONS: dict[str, Solution] = {
    "TReLU": solve(CHAIN, TAT(eta=0.8)),
    "SoftPlus": solve(CHAIN, DKS(zeta=10.0), "softplus"),
    "tanh": solve(CHAIN, EOC(sigma_b=0.3), "tanh"),
    "ELU": solve(CHAIN, DKS(zeta=1.5), "elu"),
}


def pairs_in_random_directions(
    rng: np.random.Generator, count: int, n: int, kernel: Array
) -> Array:
    """Pairs of vectors of n numbers, of shape (count, 2, n), that have exactly this kernel.

    That is what an orthogonal layer makes of two given inputs.
    """
    normal = rng.standard_normal((count, 2, n))
    own = np.linalg.cholesky(np.einsum("sai,sbi->sab", normal, normal) / n)
    turned = np.linalg.cholesky(np.broadcast_to(kernel, own.shape)) @ np.linalg.inv(own)
    return np.einsum("sab,sbi->sai", turned, normal)


def kernels(x: Array) -> tuple[Array, Array, Array]:
    """q of both samples, and c."""
    k = np.einsum("sai,sbi->sab", x, x) / x.shape[-1]
    return k[:, 0, 0], k[:, 1, 1], k[:, 0, 1] / np.sqrt(k[:, 0, 0] * k[:, 1, 1])


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("c", [-0.5, 0.0, 0.9])
def test_a_leaky_relu_adds_the_variance_of_the_closed_form(alpha: float, c: float) -> None:
    response = activation_response(leaky_relu(alpha), Point(1.0, c))
    variance = 6.0 * (1.0 + alpha**4) / (1.0 + alpha**2) ** 2 - 1.0
    assert response.covariance[0, 0] + 2.0 == pytest.approx(variance, abs=1e-6)


@pytest.mark.parametrize("name", SOLUTIONS)
@pytest.mark.parametrize("at", [Point(1.0, 0.0), Point(0.6, 0.7), Point(2.0, -0.4)])
def test_the_jacobian_has_the_slopes_of_the_q_and_c_maps(name: str, at: Point) -> None:
    phi = SOLUTIONS[name].shaped
    found = activation_response(phi, at)
    q, c = q_map(phi, at.q), float(c_map(phi, at.c, at.q))
    assert (found.q, found.c) == pytest.approx((q, c), rel=1e-6, abs=1e-7)
    # Of log Q by log q; and of k / Q by k / q at fixed q, which is that of C by c.
    assert found.jacobian[0, 0] == pytest.approx(at.q * q_map_slope(phi, at.q) / q, abs=1e-5)
    assert found.jacobian[2, 2] == pytest.approx(float(c_map_slope(phi, at.c, at.q)), abs=1e-5)
    # At c = 1 the samples are one: k changes as Q does.
    alike = activation_response(phi, Point(at.q, 1.0)).jacobian.sum(axis=1)
    np.testing.assert_allclose(alike, at.q * q_map_slope(phi, at.q) / q, atol=1e-5)


@pytest.mark.parametrize("name", SOLUTIONS)
@pytest.mark.parametrize(("n", "c"), [(16, 0.0), (64, 0.6), (64, 0.95)])
def test_sampled_layers_fluctuate_and_drift_as_predicted(name: str, n: int, c: float) -> None:
    phi, count = SOLUTIONS[name].shaped, 8000
    rng = np.random.default_rng([n, round(100 * c)])
    x = pairs_in_random_directions(rng, count, n, np.array([[1.0, c], [c, 1.0]]))
    q1, q2, measured = kernels(phi.value(x))
    response = activation_response(phi, Point(1.0, c))
    noise = Noise.of(response.covariance / n, response.shift / n, response.c)
    log_q, z = np.log(np.stack([q1, q2]) / response.q), np.arctanh(measured)
    error = lambda values: 4.0 * np.std(values) / math.sqrt(count)
    # The next order in 1 / n is below a tenth of the drift, and a quarter of a variance at n = 16.
    drift = noise.q_shift + log_mean(noise.single)
    assert np.mean(log_q) == pytest.approx(drift, abs=error(log_q) + 0.4 * noise.single / n**0.5)
    shift = math.atanh(response.c) + noise.artanh_c_shift
    assert np.mean(z) == pytest.approx(shift, abs=error(z) + 0.6 * noise.artanh_c / n**0.5)
    assert np.var(log_q) == pytest.approx(log_variance(noise.single), rel=0.06 + 4.0 / n)
    assert np.var(z) == pytest.approx(noise.artanh_c, rel=0.06 + 4.0 / n)


def test_the_products_of_normal_numbers_have_their_covariance() -> None:
    rng, c, count = np.random.default_rng(0), 0.6, 400_000
    u, w = rng.standard_normal((2, count))
    v = c * u + math.sqrt(1.0 - c * c) * w
    found = np.cov(np.stack([u * u, v * v, u * v]))
    np.testing.assert_allclose(normal_covariance(c), found, atol=0.05)


def test_a_gaussian_layer_has_a_gamma_variable_for_its_q_value() -> None:
    n, x = 7, np.random.default_rng(0).standard_normal((200_000, 7))
    q = np.log(np.mean(x**2, axis=1))
    assert np.mean(q) == pytest.approx(log_mean(2.0 / n), abs=4.0 * np.std(q) / len(q) ** 0.5)
    assert np.var(q) == pytest.approx(log_variance(2.0 / n), rel=0.02)
    assert log_mean(0.0) == 0.0

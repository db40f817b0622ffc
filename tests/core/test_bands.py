"""The 95 % bands of narrow networks hold 95 % of sampled networks."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from skipless import DKS, EOC, TAT, Graph, predict, solve
from skipless.core.activations import Array
from skipless.core.bands import FiniteWidth, Prediction
from skipless.core.graph import GraphBuilder
from skipless.core.network import ORTHOGONAL, Size
from skipless.core.solution import Solution

Weights = Callable[[int, int], Array]
DRAWS = 400


def gaussian(rng: np.random.Generator) -> Weights:
    return lambda m, k: rng.standard_normal((m, k)) / math.sqrt(k)


def orthogonal(rng: np.random.Generator) -> Weights:
    def draw(m: int, k: int) -> Array:
        q, r = np.linalg.qr(rng.standard_normal((max(m, k), min(m, k))))
        q = q * np.sign(np.diag(r)) * max(math.sqrt(m / k), 1.0)
        return q if m >= k else q.T

    return draw


def orthogonal_pair(n: int) -> Array:
    x = np.zeros((2, n))
    x[0, 0] = x[1, 1] = math.sqrt(n)
    return x


def sampled(network: Callable[[Weights, Array], Array], kind, n: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(n)
    outputs = [network(kind(rng), orthogonal_pair(n)) for _ in range(DRAWS)]
    kernel = np.einsum("sai,sbi->sab", outputs, outputs) / outputs[0].shape[1]
    q = kernel[:, 0, 0]
    return q, kernel[:, 0, 1] / np.sqrt(q * kernel[:, 1, 1])


def assert_covers(prediction: Prediction, q: Array, c: Array) -> None:
    """95 % of the draws lie in the bands, up to four standard errors, and half below the median."""
    error = 4.0 * math.sqrt(0.05 * 0.95 / len(q))
    for values, band in ((q, prediction.q_band), (c, prediction.c_band)):
        inside = np.mean((band.low <= values) & (values <= band.high))
        assert inside > 0.95 - error, (band, np.quantile(values, [0.025, 0.5, 0.975]))
        assert abs(np.mean(values < band.median) - 0.5) < 4.0 * 0.5 / math.sqrt(len(q))


@pytest.mark.parametrize("kind", [orthogonal, gaussian])
@pytest.mark.parametrize(
    ("n", "depth", "solution"),
    [
        (30, 20, solve(Graph.chain(20), TAT(eta=0.8))),
        (64, 12, solve(Graph.chain(12), DKS(zeta=1.5), "softplus")),
        (128, 6, solve(Graph.chain(6), TAT(eta=0.5))),
    ],
)
def test_the_bands_of_a_chain_hold_95_percent(kind, n: int, depth: int, solution: Solution) -> None:
    def chain(weights: Weights, x: Array) -> Array:
        for _ in range(depth):
            x = solution(x @ weights(n, n).T)
        return x

    distribution = kind.__name__
    points = predict(Graph.chain(depth), solution, widths=n, distribution=distribution)
    last = points[-1]
    assert isinstance(last, Prediction)
    assert_covers(last, *sampled(chain, kind, n))
    # Not for being too wide: 95 % of the draws span most of the band.
    q, _ = sampled(chain, kind, n)
    low, high = np.log(np.quantile(q, [0.025, 0.975]))
    assert high - low > 0.75 * math.log(last.q_band.high / last.q_band.low)


def blocks(weight: float) -> Graph:
    """Two residual blocks of two layers, a concatenation of both, and a layer that narrows it."""
    b = GraphBuilder()
    x = first = b.affine(b.input())
    for _ in range(2):
        branch = b.affine(b.activation(b.affine(b.activation(x))))
        x = b.sum([x, branch], [weight, math.sqrt(1.0 - weight**2)])
    b.affine(b.activation(b.concat([first, x])))
    return b.build()


@pytest.mark.parametrize("kind", [orthogonal, gaussian])
def test_the_bands_of_branches_that_meet_again_hold_95_percent(kind) -> None:
    n, weight = 48, 0.8
    graph = blocks(weight)
    solution = solve(graph, TAT(eta=0.3))

    def network(weights: Weights, x: Array) -> Array:
        layer = lambda x: x @ weights(n, x.shape[1]).T
        x = first = layer(x)
        for _ in range(2):
            x = weight * x + math.sqrt(1.0 - weight**2) * layer(solution(layer(solution(x))))
        return layer(solution(np.concatenate([first, x], axis=1)))

    sizes = dict.fromkeys(range(len(graph.nodes)), Size(n, n))
    concat = next(i for i, node in enumerate(graph.nodes) if type(node).__name__ == "Concat")
    sizes |= {concat: Size(2 * n), concat + 1: Size(2 * n), concat + 2: Size(n, 2 * n)}
    found = FiniteWidth(graph, solution, sizes, kind.__name__).predict(predict(graph, solution))
    assert_covers(found[graph.output], *sampled(network, kind, n))


def test_biases_count_and_infinitely_wide_networks_have_no_band() -> None:
    graph = Graph.chain(3)
    solution = solve(graph, EOC(sigma_b=0.5), "tanh")
    n, rng = 40, np.random.default_rng(0)

    def network(weights: Weights, x: Array) -> Array:
        for _ in range(3):
            bias = solution.sigma_b * rng.standard_normal(n)
            x = solution(solution.sigma_w * x @ weights(n, n).T + bias)
        return x

    found = predict(graph, solution, widths=n)[-1]
    assert isinstance(found, Prediction)
    assert_covers(found, *sampled(network, orthogonal, n))
    wide = FiniteWidth(graph, solution, {}).predict(predict(graph, solution))[graph.output]
    assert tuple(wide.q_band) == pytest.approx((wide.q,) * 3)
    assert tuple(wide.c_band) == pytest.approx((wide.c,) * 3)


def test_predictions_are_those_of_infinite_width_with_bands() -> None:
    graph = Graph.chain(3)
    solution = solve(graph, TAT(eta=0.5))
    plain, banded = predict(graph, solution), predict(graph, solution, ORTHOGONAL, widths=100)
    assert [(p.q, p.c) for p in banded] == [(p.q, p.c) for p in plain]
    assert all(isinstance(p, Prediction) for p in banded)

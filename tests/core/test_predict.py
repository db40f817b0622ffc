"""predict: q and c values layer by layer, against section 2.3 done by hand."""

import pytest

from skipless import DKS, EOC, TAT, Graph, solve
from skipless.core.maps import c_map, q_map
from skipless.core.network import Point, fold
from skipless.core.predict import predict

CHAIN = Graph.chain(6)


@pytest.mark.parametrize(
    ("method", "activation"),
    [
        (TAT(eta=0.4), "leaky_relu"),
        (TAT(), "tanh"),
        (DKS(), "softplus"),
        (DKS(), "leaky_relu"),
        (EOC(sigma_b=0.2), "tanh"),
        (EOC(), "relu"),
    ],
)
def test_predictions_are_the_local_maps_one_after_the_other(method, activation) -> None:
    solution = solve(CHAIN, method, activation)
    points = predict(CHAIN, solution, Point(1.0, 0.3))
    q, c = 1.0, 0.3
    for layer in range(6):
        weighted = solution.sigma_w**2 * q
        c = (weighted * c + solution.sigma_b**2) / (weighted + solution.sigma_b**2)
        q = weighted + solution.sigma_b**2
        assert points[2 * layer + 1].q == pytest.approx(q)
        assert points[2 * layer + 1].c == pytest.approx(c, abs=1e-9)
        q, c = q_map(solution.shaped, q), float(c_map(solution.shaped, c, q))
        assert points[2 * layer + 2].q == pytest.approx(q)
        assert points[2 * layer + 2].c == pytest.approx(c, abs=1e-9)


def test_they_end_where_the_global_map_does() -> None:
    graph = Graph.residual(5, shortcut_weight=0.8)
    solution = solve(graph, TAT(), "gelu")
    last = predict(graph, solution)[-1]
    assert last.c == pytest.approx(fold(graph, lambda c: float(solution.c_map(c)), 0.0), abs=1e-9)
    assert last.q == pytest.approx(1.0)

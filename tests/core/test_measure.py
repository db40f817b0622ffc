"""Estimates are those of numpy, and agreement means what it says."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest

from skipless import Graph, Solution, activation
from skipless.core.graph import Affine, Input
from skipless.core.measure import (
    Check,
    Comparison,
    Estimate,
    Measurement,
    NodeMeasurement,
    check,
    compare,
    pair_vectors,
)
from skipless.core.network import Point


def row(q: float = 1.0, c: float = 0.5, error: float = 0.0, tolerance: float = 0.1) -> Comparison:
    measured = NodeMeasurement(3, "Affine", "fc", Estimate(q, error, 0.0), Estimate(c, error, 0.0))
    return Comparison(Point(2.0, 0.5), measured, tolerance, cosine=0.0)


def test_the_standard_error_is_that_of_the_means_of_the_seeds() -> None:
    samples = np.random.default_rng(0).normal(size=(7, 5))
    found = Estimate.of(samples)
    means = [float(np.mean(row)) for row in samples]
    assert found.mean == pytest.approx(np.mean(samples))
    assert found.error == pytest.approx(np.std(means, ddof=1) / math.sqrt(7))
    assert found.spread == pytest.approx(np.std(samples, ddof=1))


def test_with_one_seed_the_standard_error_is_that_of_the_pairs() -> None:
    samples = np.random.default_rng(0).normal(size=(1, 9))
    assert Estimate.of(samples).error == pytest.approx(np.std(samples, ddof=1) / 3.0)


def test_a_single_sample_has_no_standard_error() -> None:
    found = Estimate.of(np.array([[0.25]]))
    assert found.mean == 0.25
    assert math.isnan(found.error)


def test_pairs_without_a_cosine_are_left_out() -> None:
    nan = math.nan
    found = Estimate.of(np.array([[1.0, 3.0, nan], [nan, 5.0, nan], [nan, nan, nan]]))
    assert (found.mean, found.error) == pytest.approx((3.5, np.std([2, 5], ddof=1) / math.sqrt(2)))
    assert math.isnan(Estimate.of(np.full((2, 2), nan)).mean)


@pytest.mark.parametrize(
    ("found", "agrees"),
    [
        (row(q=2.0, c=0.5), True),
        (row(q=2.0, c=0.599), True),
        (row(q=2.0, c=0.601), False),
        (row(q=2.0, c=0.399), False),
        (row(q=2.19, c=0.5), True),  # q is compared relative to its prediction
        (row(q=2.21, c=0.5), False),
        (row(q=1.79, c=0.5), False),
        (row(q=2.0, c=0.639, error=0.01), True),  # four standard errors
        (row(q=2.0, c=0.641, error=0.01), False),
        (row(q=2.0, c=0.599, error=math.nan), True),  # a single sample has none
        (row(q=2.0, c=math.nan), False),
        (row(q=math.nan, c=0.5), False),
    ],
)
def test_a_node_agrees_within_the_tolerance_and_four_standard_errors(found, agrees) -> None:
    assert found.agrees is agrees


def test_a_check_agrees_if_all_its_nodes_do_and_names_the_worst() -> None:
    good, bad = row(q=2.0, c=0.55), row(q=2.0, c=0.8)
    assert Check((good, good), 0.1, 5, 5).agrees
    mixed = Check((good, bad, good), 0.1, 5, 5)
    assert not mixed.agrees
    assert mixed.worst is bad
    assert mixed.disagreements == (bad,)
    assert "1 of 3 nodes DISAGREE by more than 0.1 + 4 standard errors.\n" in str(mixed)
    assert "Worst: node 3 (Affine, fc), Δc = +0.3000, Δq/q = +0.0000." in str(mixed)
    assert "✗ 1 of 3" in str(mixed)
    assert "✗" not in str(Check((good, good), 0.1, 5, 5))
    assert pickle.loads(pickle.dumps(mixed)) == mixed


def test_differences_are_given_in_standard_errors() -> None:
    assert row(c=0.53, error=0.01).c_deviation == pytest.approx(3.0)
    assert row(c=0.5).c_deviation == 0.0
    assert row(c=0.6).c_deviation > 1000.0  # with no error but rounding


def test_measurements_and_predictions_meet_by_node_and_dead_ends_are_left_out() -> None:
    graph = Graph([Input(), Affine(0), Affine(0)])  # node 1 leads nowhere
    q = np.arange(8.0).reshape(2, 2, 2)
    measured = Measurement.of(graph, q, q / 10.0)
    assert [m.node for m in measured.nodes] == [0, 2]
    assert [m.q.mean for m in measured.nodes] == [2.5, 4.5]
    points = [Point(1.0, float(i)) for i in range(3)]
    assert [r.predicted.c for r in compare(points, measured, 0.1, 0.0)] == [0.0, 2.0]
    assert "2 draws of the weights" in str(measured)
    assert "one draw" in str(replace(measured, seeds=1))


def test_a_check_of_a_deep_chain_prints_one_row_for_its_layers() -> None:
    graph = Graph.chain(50)
    values = np.random.default_rng(0).uniform(size=(3, 101, 4))
    measured = Measurement.of(graph, values, values)
    rows = compare([Point(1.0, 0.5)] * 101, measured, 0.1, 0.0)
    text = str(Check(rows, 0.1, 3, 4))
    assert len(text.splitlines()) < 12
    assert max(map(len, text.splitlines())) <= 100
    assert "50 layers" in text
    assert "None" not in text
    assert max(map(len, str(measured).splitlines())) <= 100


class Chain:
    """A network of one layer that multiplies by a given number."""

    graph = Graph([Input(), Affine(0)])
    start_shape = (4, 3)
    channel_axis = 0

    def __call__(self, start: np.ndarray, weight: float) -> tuple[np.ndarray, np.ndarray]:
        values = [start, weight * start]
        q = [np.mean(v**2, axis=(1, 2)) for v in values]
        c = [np.mean(v[::2] * v[1::2], axis=(1, 2)) / 1.0 for v in values]
        return np.array([row[::2] for row in q]), np.array([c[0], c[1] / weight**2])


def test_a_check_gives_every_draw_the_same_pairs_of_each_cosine() -> None:
    solution = Solution.of(activation("identity"))
    found = check(Chain(), solution, [1.0, -1.0, 1.0], (0.5, -0.25), pairs=3, tolerance=0.0)
    assert found.agrees
    assert (found.seeds, found.pairs) == (3, 3)
    assert [row.cosine for row in found.comparisons] == [0.5, 0.5, -0.25, -0.25]
    assert [row.measured.c.mean for row in found.comparisons] == pytest.approx(
        [0.5, 0.5, -0.25, -0.25], abs=1e-6
    )
    scaled = check(Chain(), solution, [1.1] * 3, (0.5,), pairs=3, tolerance=0.1)
    assert scaled.worst.q_difference == pytest.approx(0.21, abs=1e-5)
    assert not scaled.agrees


@pytest.mark.parametrize("cosine", [-1.0, -0.3, 0.0, 0.8, 1.0])
def test_pairs_of_vectors_have_q_one_and_the_cosine(cosine: float) -> None:
    x = pair_vectors(np.random.default_rng(0), 5, 7, cosine)
    np.testing.assert_allclose((x**2).mean(axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose((x[::2] * x[1::2]).mean(axis=1), cosine, atol=1e-14)
    assert not np.allclose(x[0], x[2])

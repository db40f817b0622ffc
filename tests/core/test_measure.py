"""Estimates are those of numpy, and agreement means what it says."""

import math
import pickle
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from skipless import TAT, Graph, Solution, activation, solve
from skipless.core.bands import Interval, Prediction
from skipless.core.graph import Affine, Input, Sum
from skipless.core.measure import (
    Check,
    Comparison,
    Estimate,
    Kernels,
    Measurement,
    NodeMeasurement,
    Probe,
    check,
    first_node_of_pairs,
    pair_vectors,
)
from skipless.core.network import Point, Size
from skipless.core.surprise import Surprise
from skipless.core.trace import Axes, Notes, Reading, Step


def row(
    q: float = 2.0, c: float = 0.5, surprise: tuple[float, float] = (0.0, 0.0), error: float = 0.0
) -> Comparison:
    measured = NodeMeasurement(3, "Affine", "fc", Estimate(q, 0.0, 0.0), Estimate(c, 0.0, 0.0))
    predicted = Prediction(2.0, 0.5, Interval(1.9, 1.0, 4.0), Interval(0.5, 0.4, 0.6))
    return Comparison(predicted, measured, Point(q, c), Surprise(*surprise), error, 4.0, 0.1, 0.0)


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
        (row(), True),
        (row(q=0.3, c=0.9), True),  # as far as its inputs let expect
        (row(surprise=(3.9, -3.9)), True),
        (row(surprise=(4.1, 0.0)), False),
        (row(surprise=(0.0, -4.1)), False),
        (row(surprise=(math.nan, 0.0)), False),
        (row(error=0.002), True),
        (row(error=0.004), False),  # another function
    ],
)
def test_a_node_agrees_if_its_inputs_do_not_make_it_a_surprise(found, agrees: bool) -> None:
    assert found.agrees is agrees


@pytest.mark.parametrize(
    ("found", "close"),
    [
        (row(c=0.599), True),
        (row(c=0.601), False),
        (row(c=0.399), False),
        (row(q=2.19), True),  # q is compared relative to its prediction
        (row(q=2.21), False),
        (row(q=1.79), False),
    ],
)
def test_a_network_is_close_within_the_tolerance(found, close: bool) -> None:
    assert found.is_close is close
    assert Check((row(), found), 0.1, 5, 5).is_close is close


def test_the_verdict_says_whether_and_where_and_why() -> None:
    good, narrow = row(c=0.55), row(c=0.8)
    loud, other = row(surprise=(6.0, 0.0)), row(error=0.2)
    assert Check((good, good), 0.1, 5, 5).verdict.startswith("All 2 nodes agree with the pred")
    found = Check((good, narrow), 0.1, 5, 5, wanted_width=700)
    assert "agree, within the fluctuation of this width." in found.verdict
    assert "node 3 (Affine, fc), Δq/q = +0.0000, Δc = +0.3000" in found.verdict
    assert "a width of about 700 on" in found.verdict
    assert found.worst is narrow
    found.assert_ok()
    mixed = Check((good, loud, narrow), 0.1, 5, 5)
    assert not mixed.agrees
    assert mixed.worst is loud
    assert mixed.disagreements == (loud,)
    assert "1 of 3 nodes DISAGREE.\n" in str(mixed)
    assert "q is 6.0 standard deviations too high (4.0 are allowed)" in str(mixed)
    assert "✗ 1 of 3" in str(mixed)
    assert "✗" not in str(found)
    with pytest.raises(AssertionError, match="DISAGREE"):
        mixed.assert_ok()
    wrong = Check((good, other), 0.1, 5, 5).verdict
    assert "computes another function than the activation that was solved for" in wrong
    assert "20 %" in wrong
    assert pickle.loads(pickle.dumps(mixed)) == mixed


def test_measurements_leave_dead_ends_out() -> None:
    graph = Graph([Input(), Affine(0), Affine(0)])  # node 1 leads nowhere
    q = np.arange(8.0).reshape(2, 2, 2)
    both = np.stack([q - 1.0, q + 1.0], axis=-1)  # of which q is the mean
    measured = Measurement.of(graph, both, q / 10.0)
    assert [m.node for m in measured.nodes] == [0, 2]
    assert [m.q.mean for m in measured.nodes] == [2.5, 4.5]
    assert "2 draws of the weights" in str(measured)
    assert "one draw" in str(replace(measured, seeds=1))


class Sampled:
    """A chain of layers of `width`, as an adapter would run it.

    Its weights are a generator that they are drawn from. One layer may be scaled, and one
    activation have another slope.
    """

    rounding = 1e-7

    def __init__(
        self,
        solution: Solution,
        depth: int,
        width: int,
        orthogonal: bool = True,
        loud: int | None = None,
        bent: int | None = None,
    ) -> None:
        self.graph, self.width, self.depth = Graph.chain(depth), width, depth
        self.sizes: Mapping[int, Size] = dict.fromkeys(range(2 * depth + 1), Size(width, width))
        self.begin, self.start_shape, self.channel_axis = 0, (width,), 0
        self.solution, self.orthogonal, self.loud, self.bent = solution, orthogonal, loud, bent
        steps: dict[int, Step[int]] = {0: Step("input", 0)}
        for i in range(1, 2 * depth + 1):
            steps[i] = Step("affine" if i % 2 else "activation", i, (i - 1,))
        axes = dict.fromkeys(range(2 * depth + 1), Axes(0, (1,)))
        reading = Reading(self.graph, Notes(), steps, axes, self.sizes, [2 * depth])
        self._probe: Probe[int] = Probe(reading, solution)

    def __call__(self, start: npt.NDArray[np.float32], weights: np.random.Generator) -> Kernels:
        x, values = np.asarray(start, float), []
        for index in range(2 * self.depth + 1):
            if index % 2:
                w = weights.standard_normal((self.width, self.width))
                w = np.linalg.qr(w)[0] if self.orthogonal else w / math.sqrt(self.width)
                w = w * (1.3 if index == self.loud else 1.0)
                self._probe.feed(index, x.shape, lambda x, w=w: x @ w)
                x = x @ w
            elif index:
                y = self.solution(x)
                x = np.where(x < 0.0, 0.8 * y, y) if index == self.bent else y
            self._probe.see(index, lambda x=x: x)
            q = np.mean(x**2, axis=1).reshape(-1, 2)
            values.append((q, np.mean(x[::2] * x[1::2], axis=1) / np.sqrt(q.prod(axis=1))))
        q, c = zip(*values, strict=True)
        gains = {node: np.array([gain]) for node, gain in self._probe.gains.items()}
        return Kernels(np.stack(q), np.stack(c), self._probe.errors, gains)


def checked(network: Sampled, seed: int, draws: int = 3) -> Check:
    generators = [np.random.default_rng([seed, draw]) for draw in range(draws)]
    kind = "orthogonal" if network.orthogonal else "gaussian"
    return check(network, network.solution, generators, (0.0,), 4, 0.05, kind)


DEEP = solve(Graph.chain(12), TAT(eta=0.6))


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("width", [16, 64])
def test_sound_networks_agree_and_faults_are_found_at_any_width(width: int, orthogonal) -> None:
    runs = range(12)
    sound = [checked(Sampled(DEEP, 12, width, orthogonal), run).agrees for run in runs]
    assert all(sound)  # with false alarms in 1 % of runs, and fixed seeds
    for fault in ({"loud": 7}, {"bent": 8}):
        found = [checked(Sampled(DEEP, 12, width, orthogonal, **fault), run) for run in runs]
        assert {each.worst.measured.node for each in found} == set(fault.values())
        assert not any(each.agrees for each in found)


def test_few_draws_do_not_turn_a_disagreement_into_an_agreement() -> None:
    loud = Sampled(DEEP, 12, 32, orthogonal=False, loud=3)
    assert not any(checked(loud, run, draws=1).agrees for run in range(10))


def test_a_narrow_network_says_which_width_its_depth_wants() -> None:
    narrow = checked(Sampled(DEEP, 12, 16), 0, draws=20)
    assert narrow.agrees
    assert not narrow.is_close
    assert narrow.wanted_width is not None
    wide = checked(Sampled(DEEP, 12, narrow.wanted_width), 0, draws=1)
    for found in wide.comparisons[:-1]:
        band = found.predicted.q_band
        assert band.high / band.median <= 1.5 * 1.01
        assert found.predicted.c_band.high - found.predicted.c_band.low <= 0.2 * 1.05


def test_a_check_of_a_deep_chain_prints_one_row_for_its_layers() -> None:
    text = str(checked(Sampled(DEEP, 12, 16), 0))
    assert len(text.splitlines()) < 14
    assert max(map(len, text.splitlines())) <= 100
    assert "12 layers" in text
    assert "None" not in text


def test_pairs_are_chosen_behind_the_first_layer_where_the_input_has_one_channel() -> None:
    chain = Graph.chain(2)
    several = {0: Size(3), 1: Size(8, 3)}
    single = {0: Size(1), 1: Size(8, 1)}
    assert first_node_of_pairs(chain, several) == 0
    assert first_node_of_pairs(chain, single) == 1
    assert first_node_of_pairs(chain, {0: Size(1), 1: Size(1)}) == 0
    twice = Graph([Input(), Affine(0), Affine(0), Sum((1, 2), (0.6, 0.8))])
    assert first_node_of_pairs(twice, single) == 0
    network = Sampled(DEEP, 12, 16)
    network.begin = 1
    found = check(network, DEEP, [np.random.default_rng(0)], None, 4, 0.05, "orthogonal")
    assert [row.measured.node for row in found.comparisons] == list(range(1, 25))
    network.start_shape = (1,)
    with pytest.raises(ValueError, match="alike or opposite"):
        check(network, DEEP, [np.random.default_rng(0)], (0.5,), 4, 0.05, "orthogonal")


def test_identical_layers_agree_at_every_cosine() -> None:
    identity = Solution.of(activation("identity"))
    network = Sampled(identity, 2, 8)
    draws = [np.random.default_rng(draw) for draw in range(3)]
    found = check(network, identity, draws, (0.5, -0.25), 3, 0.0, "orthogonal")
    assert found.agrees
    assert found.is_close
    assert (found.seeds, found.pairs) == (3, 3)
    assert [row.cosine for row in found.comparisons] == [0.5] * 5 + [-0.25] * 5
    cosines = [row.measured.c.mean for row in found.comparisons]
    assert cosines == pytest.approx([0.5] * 5 + [-0.25] * 5, abs=1e-6)


@pytest.mark.parametrize("cosine", [-1.0, -0.3, 0.0, 0.8, 1.0])
def test_pairs_of_vectors_have_q_one_and_the_cosine(cosine: float) -> None:
    x = pair_vectors(np.random.default_rng(0), 5, 7, cosine)
    np.testing.assert_allclose((x**2).mean(axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose((x[::2] * x[1::2]).mean(axis=1), cosine, atol=1e-14)
    assert not np.allclose(x[0], x[2])

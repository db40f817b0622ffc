"""Claims: judged from the numbers, with standard errors, and not run where numbers are missing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from skipless.paper import ITEMS
from skipless.paper.claims import all_above, difference, narrows, none_below, paired, within
from skipless.paper.figures import epochs_to_loss
from skipless.paper.results import Results, Series, Summary, Trial, TriedSetting, Value
from skipless.runs.outcome import Outcome, TrainingCurve, Tried, ValidationCurve


def outcome(
    top1: float | None, losses: Sequence[float] = (2.0, 1.0), train: float = 0.9
) -> Outcome:
    epochs = [float(n) for n in range(1, len(losses) + 1)]
    values = [0.1 * n for n in range(len(epochs) - 1)] + [top1 or 0.1]
    return Outcome(
        diverged=top1 is None,
        top1=top1,
        train_loss=losses[-1],
        train_accuracy=None if top1 is None else train,
        seconds=10.0,
        parameters=5,
        validation=ValidationCurve(epochs, values, [10 * e for e in epochs]),
        training=TrainingCurve(epochs, list(losses), [0.5] * len(epochs), [10 * e for e in epochs]),
        started="2026-01-01T00:00:00+00:00",
        machine={},
        versions={},
    )


def results(cells: Mapping[tuple[str, str], Sequence[float | None]], scale: str = "cpu") -> Results:
    """Results with one learning rate, and a trial for each seed of every cell."""
    trials = tuple(
        Trial(row, column, {"lr": 0.1}, seed, outcome(top1))
        for (row, column), values in cells.items()
        for seed, top1 in enumerate(values)
    )
    return Results("table5", scale, {}, trials)


A, B = ("a", "x"), ("b", "x")
HOLDS, NOT, OPEN, MISSING = "holds", "does not hold", "undecided", "not run"


def cell_of(values: Sequence[float | None]) -> Summary:
    cell = results({A: values}).cell(*A)
    assert cell is not None
    return cell


def test_a_cell_is_its_final_runs_by_their_seeds():
    cell = cell_of([0.7, 0.8])
    assert cell.by_seed == pytest.approx({0: 70.0, 1: 80.0})
    assert cell.mean == pytest.approx(75.0)
    # scipy's own interval: one degree of freedom, a standard error of 5.
    low, high = stats.t.interval(0.95, 1, loc=75.0, scale=5.0)
    assert cell.half_width == pytest.approx((high - low) / 2)
    assert str(cell) == "75.0 ± 63.5"
    assert math.isnan(cell_of([0.7]).half_width)


def test_a_cell_that_was_not_run_is_none_and_one_that_diverged_says_so():
    assert results({A: [0.5]}).cell("c", "x") is None
    assert str(cell_of([None, None])) == "diverged"
    assert cell_of([None, 0.5]).by_seed == {0: 0.0, 1: 50.0}  # a run that diverged is worth nothing
    assert cell_of([None, 0.5]).trained == 1


@pytest.mark.parametrize(("top1", "trained"), [(0.21, True), (0.2, False), (0.1, False)])
def test_a_network_has_learned_if_it_is_twice_as_good_as_chance(top1, trained):
    assert outcome(top1).trained is trained
    assert replace(outcome(top1 / 100), classes=1000).trained is trained


@given(
    seeds=st.lists(st.integers(-3000, 3000).map((0.01).__mul__), min_size=2, unique=True),
    margin=st.integers(-300, 300).map((0.01).__mul__),
)
def test_verdicts_are_those_of_paired_t_tests(seeds, margin):
    found = paired(seeds)
    word = found.exceeds(margin)
    pvalues = [
        stats.ttest_1samp(seeds, margin, alternative=side).pvalue for side in ("greater", "less")
    ]
    assume(all(abs(p - 0.05) > 1e-6 for p in pvalues))
    assert word == (HOLDS if pvalues[0] < 0.05 else NOT if pvalues[1] < 0.05 else OPEN)


def test_seeds_are_compared_pair_by_pair():
    """A network whose seeds go up and down with the other's is one point better all the same."""
    found = results({A: [0.31, 0.512, 0.711], B: [0.30, 0.50, 0.70]})
    gap = difference(cell_of([0.31, 0.512, 0.711]), cell_of([0.30, 0.50, 0.70]))
    assert gap is not None
    one, other = ([31.0, 51.2, 71.1], [30.0, 50.0, 70.0])
    assert stats.ttest_rel(one, other).statistic == pytest.approx(gap.points / gap.error)
    assert all_above(found, [(A, B)])[0] == HOLDS


@pytest.mark.parametrize(
    ("better", "worse", "verdict"),
    [
        ([0.80, 0.82], [0.60, 0.61], HOLDS),
        ([0.80, 0.82, 0.81], [0.81, 0.80, 0.82], OPEN),
        ([0.60, 0.61], [0.80, 0.80], NOT),
        ([0.90], [0.50], OPEN),  # one seed decides nothing
        ([0.80, 0.81], [None, None], OPEN),  # against a baseline that did not train
        ([0.80, 0.81], [0.10, 0.11], OPEN),
        ([None, None], [0.50, 0.51], NOT),
        ([None, None], [None, None], OPEN),
    ],
)
def test_one_cell_is_above_another_if_its_seeds_say_so(better, worse, verdict):
    assert all_above(results({A: better, B: worse}), [(A, B)])[0] == verdict


def test_where_a_collapse_is_claimed_a_network_that_learned_nothing_shows_it():
    found = results({A: [0.80, 0.81], B: [0.10, 0.10]})
    assert all_above(found, [(A, B)])[0] == OPEN
    assert all_above(found, [(A, B)], collapse=True)[0] == HOLDS


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        ([0.800, 0.801], [0.805, 0.806], HOLDS),  # half a point behind, which is within one
        ([0.80, 0.81], [0.83, 0.84], NOT),
        ([0.80, 0.84], [0.83, 0.81], OPEN),
        ([0.9, 0.91], [0.8, 0.81], HOLDS),
        ([0.8], [0.8], OPEN),
        ([0.8, 0.81], [None, None], OPEN),
    ],
)
def test_one_cell_is_level_with_another_up_to_a_point(one, other, verdict):
    assert none_below(results({A: one, B: other}), [(A, B)])[0] == verdict


def test_a_margin_is_added():
    found = results({A: [0.90, 0.901], B: [0.80, 0.801]})
    assert all_above(found, [(A, B)], margin=9.9)[0] == HOLDS
    assert all_above(found, [(A, B)], margin=10.1)[0] == NOT
    assert none_below(found, [(B, A)], margin=9.9)[0] == NOT
    assert none_below(found, [(B, A)], margin=10.1)[0] == HOLDS


def test_one_failing_pair_fails_the_claim_and_a_missing_one_is_left_out():
    found = results({A: [0.9, 0.91], B: [0.5, 0.51], ("c", "x"): [0.95, 0.96]})
    missing = (A, ("missing", "x"))
    assert all_above(found, [(A, B), missing])[0] == HOLDS
    assert all_above(found, [(A, B), missing])[1].endswith("(1 of 2 settings were run)")
    assert all_above(found, [(A, B), (A, ("c", "x"))])[0] == NOT
    assert all_above(found, [missing]) == (MISSING, "")


@pytest.mark.parametrize("origin", [{"left": 3}, {"given": {"only": "a | *"}}])
def test_a_claim_of_which_a_part_is_still_to_be_run_does_not_hold_yet(origin):
    found = replace(results({A: [0.9, 0.91], B: [0.5, 0.51]}), origin=origin)
    missing = (A, ("missing", "x"))
    assert all_above(found, [(A, B), missing])[0] == OPEN
    assert all_above(found, [(A, B)])[0] == HOLDS
    assert all_above(found, [(B, A), missing])[0] == NOT  # which nothing can change


def test_a_claim_about_many_pairs_fails_only_by_more_than_one_of_many_may():
    """A pair that is below at the level 5 %, but not at a hundredth of that, is undecided."""
    below = [-3.0, -1.0, -2.2]
    assert stats.ttest_1samp(below, 0.0, alternative="less").pvalue == pytest.approx(
        0.036, abs=2e-3
    )
    cells = {A: [0.5 + x / 100 for x in below], B: [0.5] * 3}
    assert all_above(results(cells), [(A, B)])[0] == NOT
    assert all_above(results(cells), [(A, B)] * 100)[0] == OPEN


CLOSE = (3.0, 1.0, 2.2)  # above 0 at 5 %, but not at half of that


def test_the_claims_of_several_comparisons_allow_for_chance():
    """Judged each at 5 %, false claims pass, and true ones fail, in up to a fifth of cases."""
    pvalue = stats.ttest_1samp(CLOSE, 0.0, alternative="greater").pvalue
    assert 0.025 < pvalue < 0.05
    rivals = {("SGD", "50"): [0.7] * 3, ("Muon", "50"): [0.8] * 3}
    behind = results({**rivals, ("K-FAC", "50"): [0.8 - (1.0 + x) / 100 for x in CLOSE]})
    assert verdicts("optimizers", behind)[0] == OPEN
    columns = list(dict.fromkeys(cell.column for cell in ITEMS["table7"].cells))
    rows = [f"50, {o}, w = {w}" for o in ("K-FAC", "SGD") for w in ("0", "0.8")]
    level = [0.8, 0.5, 0.8 - 0.01, 0.9]  # the first column's, beside 0.8: three rows of four
    cells = {(row, column): [0.8] * 3 for row in rows for column in columns}
    cells |= {(row, columns[0]): [top1] * 3 for row, top1 in zip(rows, level, strict=True)}
    cells[rows[2], columns[0]] = [0.8 + (x - 1.0) / 100 for x in CLOSE]
    assert verdicts("table7", results(cells))[0] == OPEN
    cells[rows[2], columns[0]] = [0.8 + (x - 0.5) / 100 for x in CLOSE]
    assert verdicts("table7", results(cells))[0] == HOLDS
    trials = [
        Trial(row, depth, {}, seed, outcome(0.5, train=0.9 - (row == "EOC") * (2 + x) / 100))
        for seed, x in enumerate(CLOSE)
        for row in ("EOC", "TAT")
        for depth in ("50", "101")
    ]
    assert verdicts("figure7", Results("figure7", "cpu", {}, tuple(trials))) == [OPEN]


def test_the_evidence_has_the_numbers():
    evidence = all_above(results({A: [0.90, 0.90], B: [0.5, 0.6]}), [(A, B)])[1]
    assert evidence == "a, x 90.0 ± 0.0, b, x 55.0 ± 63.5 (+35.0 ± 63.5)"


def test_a_lead_narrows_seed_by_seed():
    judge = narrows("{0}, then {1}", "big | {n}", "small | {n}", n=["x", "y"])
    cells = {
        ("big", "x"): [0.80, 0.70, 0.75], ("small", "x"): [0.70, 0.60, 0.65],
        ("big", "y"): [0.80, 0.70, 0.75], ("small", "y"): [0.72, 0.625, 0.67],
    }  # fmt: skip
    assert judge(results(cells))[0] == HOLDS
    overtaken = {**cells, ("small", "y"): [0.90, 0.81, 0.85]}  # a lead below zero is narrower too
    assert judge(results(overtaken))[0] == HOLDS
    wider = {**cells, ("small", "y"): [0.68, 0.575, 0.63]}
    assert judge(results(wider))[0] == NOT
    assert judge(results({**cells, ("small", "y"): [0.10, 0.11, 0.1]}))[0] == OPEN
    del cells["small", "y"]
    assert judge(results(cells)) == (MISSING, "")


def test_two_cells_are_within_a_margin_if_neither_is_below_the_other():
    judge = within("a | x", "b | x", 2.0)
    assert judge(results({A: [0.80, 0.81], B: [0.81, 0.82]}))[0] == HOLDS
    assert judge(results({A: [0.80, 0.81], B: [0.85, 0.86]}))[0] == NOT
    assert judge(results({A: [0.85, 0.86], B: [0.80, 0.81]}))[0] == NOT
    assert judge(results({A: [0.80, 0.84], B: [0.82, 0.80]}))[0] == OPEN


def test_epochs_to_a_loss_are_the_first_that_reach_it():
    assert epochs_to_loss(outcome(0.9, (2.0, 1.0, 0.5, 0.7)), 0.8) == 3.0
    assert epochs_to_loss(outcome(0.9, (2.0, 1.0)), 1.0) == 2.0
    assert epochs_to_loss(outcome(0.9, (2.0, 1.0)), 0.8) == math.inf


def verdicts(item: str, found: Results) -> list[str]:
    return [verdict.word for verdict in ITEMS[item].verdicts(found)]


def test_every_claim_is_not_run_without_results():
    for item in ITEMS.values():
        found = item.verdicts(Results(item.name, "cpu", {}))
        assert [verdict.word for verdict in found] == ["not run"] * len(item.claims), item.name


def test_figure_1_tells_a_fall_with_depth_from_none():
    cells = {
        ("TAT", "50"): [0.80, 0.81, 0.80], ("TAT", "200"): [0.79, 0.80, 0.80],
        ("EOC", "50"): [0.70, 0.71, 0.70], ("EOC", "200"): [0.40, 0.42, 0.41],
    }  # fmt: skip
    assert verdicts("figure1", results(cells)) == [HOLDS, HOLDS, HOLDS]
    flat = {**cells, ("EOC", "200"): [0.69, 0.70, 0.70]}
    assert verdicts("figure1", results(flat)) == [HOLDS, NOT, HOLDS]
    fallen = {**cells, ("TAT", "200"): [0.30, 0.31, 0.30]}
    assert verdicts("figure1", results(fallen)) == [NOT, HOLDS, NOT]
    # EOC learns nothing at depth 200: it has fallen, but to be above it proves nothing.
    collapsed = {**cells, ("EOC", "200"): [0.10, 0.10, 0.10]}
    assert verdicts("figure1", results(collapsed)) == [HOLDS, HOLDS, OPEN]


def test_table_2_allows_the_rescaled_resnet_a_point_and_no_more():
    cells = {
        ("SGD, TReLU", "w = 0.8"): [0.797, 0.784, 0.799],
        ("SGD", "standard ResNet"): [0.80, 0.79, 0.80],
    }
    assert verdicts("table2", results(cells))[0] == HOLDS
    worse = {**cells, ("SGD, TReLU", "w = 0.8"): [0.70, 0.71, 0.70]}
    assert verdicts("table2", results(worse))[0] == NOT


def speed(kfac: Sequence[float], seeds: int = 5) -> Results:
    trials = [
        trial
        for seed in range(seeds)
        for trial in (
            Trial("SGD", "90", {}, seed, outcome(0.7, (2.0, 1.5, 1.2, 1.0))),
            Trial("K-FAC", "90", {}, seed, outcome(0.8, kfac)),
        )
    ]
    return Results("figure3", "cpu", {}, tuple(trials))


def test_figure_3_counts_epochs_to_the_loss_of_sgd():
    faster = ITEMS["figure3"].verdicts(speed((1.5, 0.9, 0.8, 0.7)))[0]
    assert faster.word == HOLDS
    assert "2.0 instead of 4" in faster.evidence
    assert verdicts("figure3", speed((2.0, 1.8, 1.4, 1.1)))[0] == NOT
    assert verdicts("figure3", speed((1.5, 0.9, 0.8, 0.7), seeds=3))[0] == OPEN  # 1 in 8 by chance
    lost = [
        replace(t, outcome=replace(t.outcome, top1=0.1)) if t.row == "SGD" else t
        for t in speed((1.5, 0.9, 0.8, 0.7)).trials
    ]
    assert verdicts("figure3", Results("figure3", "cpu", {}, tuple(lost)))[0] == OPEN


def test_figure_4_compares_errors_at_every_width():
    def found(ours: float) -> Results:
        values = [
            Value(f"{setting}, {law}", f"largest error, width {width}", error)
            for law in ("gaussian", "orthogonal")
            for width in (30, 100)
            for setting, error in (
                ("TReLU", ours if width == 100 else 0.02),
                ("DKS + SoftPlus", 0.1),
            )
        ]
        return Results("figure4", "cpu", {}, values=tuple(values))

    assert verdicts("figure4", found(0.05))[:2] == [HOLDS, HOLDS]
    assert verdicts("figure4", found(0.2))[:2] == [NOT, NOT]


def test_table_8_compares_losses_with_batch_size():
    def found(kfac: float) -> Results:
        spread = lambda top1: [top1, top1 + 0.002, top1 + 0.001]
        cells = {("SGD", "512"): 0.8, ("SGD", "4096"): 0.6, ("K-FAC", "512"): 0.8}
        cells |= {("K-FAC", "4096"): kfac}
        return results({place: spread(top1) for place, top1 in cells.items()})

    assert verdicts("table8", found(0.7)) == [MISSING, HOLDS, HOLDS]
    assert verdicts("table8", found(0.6)) == [MISSING, HOLDS, OPEN]
    assert verdicts("table8", found(0.5)) == [MISSING, HOLDS, NOT]


def printed(item: str, change: Callable[[float], float] = float) -> Results:
    """What the paper prints, as the mean of three seeds that lie 0.4 points apart."""
    trials = tuple(
        Trial(
            cell.row, cell.column, {}, seed, outcome((change(cell.paper) + 0.4 * (seed - 1)) / 100)
        )
        for cell in ITEMS[item].cells
        if cell.paper is not None
        for seed in range(3)
    )
    return Results(item, "cpu", {}, trials)


def test_the_papers_claims_hold_for_the_numbers_that_it_prints():
    found = {item: verdicts(item, printed(item)) for item in MIRRORED}
    # Vanilla networks with w = 0.8 are 0.1 to 0.6 points behind ResNets, 1.8 with tanh: not all of
    # the paper's differences are differences by our standard of one point.
    assert found == {item: [HOLDS] * len(ITEMS[item].claims) for item in found}


# Nearly the same accuracies stay so, and so does a depth that makes little difference.
MIRRORED = {
    "table2": [HOLDS, NOT, NOT],
    "table3": [NOT, NOT],
    "table4": [HOLDS, NOT, NOT],
    "table5": [NOT, NOT, NOT, HOLDS],
    "table6": [NOT, NOT],
    "table7": [NOT, HOLDS],
    "table8": [HOLDS, NOT, NOT],
    "table9": [NOT, NOT, NOT],
    "table10": [NOT, NOT],
    "table11": [HOLDS, HOLDS, HOLDS],
}


def test_claims_do_not_hold_where_every_accuracy_is_an_error_rate():
    mirror = lambda percent: 100.0 - percent
    assert {item: verdicts(item, printed(item, mirror)) for item in MIRRORED} == MIRRORED


def test_the_scale_smoke_proves_nothing():
    assert set(verdicts("table6", replace(printed("table6"), scale="smoke"))) == {MISSING}


def test_figure_1_has_the_papers_numbers_at_two_depths():
    assert verdicts("figure1", printed("figure1")) == [MISSING, MISSING, HOLDS]


@pytest.mark.parametrize(("gaussian", "verdict"), [(0.71, HOLDS), (0.85, NOT), (0.55, NOT)])
def test_table_11_allows_neither_initialisation_to_be_much_better(gaussian, verdict):
    cells = {
        ("50, SGD, Orth Delta", "TAT"): [0.70, 0.701],
        ("50, SGD, Gaussian", "TAT"): [gaussian, gaussian + 0.002],
    }
    assert verdicts("table11", results(cells)) == [MISSING, MISSING, verdict]


@pytest.mark.parametrize(("best", "verdict"), [(3, HOLDS), (2, NOT)])
def test_table_7_wants_three_rows_of_four(best, verdict):
    rows = [f"50, {o}, w = {w}" for o in ("K-FAC", "SGD") for w in ("0", "0.8")]
    columns = list(dict.fromkeys(cell.column for cell in ITEMS["table7"].cells))
    cells = {
        (row, column): [0.9, 0.901] if (column == "TAT LReLU") == (number < best) else [0.6, 0.6]
        for number, row in enumerate(rows)
        for column in columns
    }
    assert verdicts("table7", results(cells)) == [verdict, MISSING]


def test_figure_5_compares_the_smallest_with_the_largest_depth_that_was_run():
    cells = {
        ("TAT", "100"): [0.501, 0.502], ("TAT", "202"): [0.50, 0.50],
        ("EOC", "100"): [0.40, 0.402], ("EOC", "202"): [0.22, 0.221],
    }  # fmt: skip
    assert verdicts("figure5", results(cells)) == [HOLDS, HOLDS, HOLDS]
    swapped = {(row, {"100": "202", "202": "100"}[depth]): v for (row, depth), v in cells.items()}
    assert verdicts("figure5", results(swapped)) == [HOLDS, NOT, HOLDS]
    fallen = {**cells, ("TAT", "202"): [0.301, 0.303]}
    assert verdicts("figure5", results(fallen)) == [HOLDS, HOLDS, NOT]


def test_figure_6_takes_the_fastest_run_that_did_not_diverge():
    def found(seldom: float) -> Results:
        seconds = {
            "SGD": (None, 10.0, 30.0),
            "K-FAC (1, 50)": (20.0, 90.0),
            "K-FAC (10, 200)": (seldom, 90.0),
        }
        trials = [
            Trial(row, "accuracy", {}, seed, replace(outcome(time and 0.5), seconds=time or 1.0))
            for row, times in seconds.items()
            for seed, time in enumerate(times)
        ]
        return Results("figure6", "cpu", {}, tuple(trials))

    verdict = ITEMS["figure6"].verdicts(found(14.0))[1]
    assert verdict.word == HOLDS
    assert "K-FAC (1, 50) 2.00 (paper 2.5), K-FAC (10, 200) 1.40 (paper 1.25)" in verdict.evidence
    assert verdicts("figure6", found(16.0))[1] == NOT


@pytest.mark.parametrize(("eoc", "verdict"), [(0.60, HOLDS), (0.585, HOLDS), (0.57, NOT)])
def test_figure_7_compares_training_accuracies(eoc, verdict):
    trials = [
        Trial(row, "50", {}, seed, outcome(0.5, train=train + 0.001 * seed * (row == "EOC")))
        for row, train in (("EOC", eoc), ("TAT", 0.60))
        for seed in range(3)
    ]
    found = Results("figure7", "cpu", {}, tuple(trials))
    assert verdicts("figure7", found) == [verdict]


def test_a_run_that_diverged_has_no_training_accuracy():
    cell = Summary({}, (outcome(0.5, train=0.75), outcome(None)), (0, 1))
    assert cell.train_accuracies == {0: 75.0, 1: 0.0}


def timed(curves: Mapping[str, Sequence[float]], *, diverged: str = "") -> Results:
    """Validation accuracies of optimisers at depth 200, one each ten seconds, for five seeds."""
    trials = []
    for seed, (name, top1) in itertools.product(range(5), curves.items()):
        seconds = [10.0 * (n + 1) for n in range(len(top1))]
        curve = ValidationCurve([float(n) for n in range(len(top1))], list(top1), seconds)
        own = replace(outcome(None if name == diverged else top1[-1]), validation=curve)
        trials.append(Trial(name, "200", {}, seed, own))
    return Results("optimizers", "cpu", {}, tuple(trials))


def test_optimisers_are_compared_by_the_seconds_to_the_accuracy_of_sgd():
    first = lambda results: ITEMS["optimizers"].verdicts(results)[1]
    verdict = first(timed({"SGD": [0.1, 0.4, 0.35], "K-FAC": [0.001, 0.3, 0.5]}))
    assert (verdict.word, verdict.evidence) == (NOT, "to 35.0 %: SGD 20 s, K-FAC 30 s")
    assert first(timed({"SGD": [0.001, 0.35], "K-FAC": [0.5]})).word == HOLDS
    never = first(timed({"SGD": [0.001, 0.35], "K-FAC": [0.001]}))
    assert (never.word, never.evidence) == (NOT, "to 35.0 %: SGD 20 s, K-FAC not always")
    slower = timed({"SGD": [0.1, 0.5], "K-FAC": [0.1, 0.6], "Muon": [0.7]})
    assert first(slower).word == NOT
    lost = timed({"SGD": [0.1, 0.5], "K-FAC": [0.1, 0.6]}, diverged="SGD")
    assert first(lost).word == OPEN


def test_k_fac_is_compared_with_the_best_of_the_other_optimisers():
    cells = {("K-FAC", "50"): [0.80, 0.801], ("SGD", "50"): [0.7, 0.7], ("Muon", "50"): [0.9, 0.9]}
    assert verdicts("optimizers", results(cells))[0] == NOT
    assert verdicts("optimizers", results({**cells, ("Muon", "50"): [0.805, 0.806]}))[0] == HOLDS


def test_table_1_wants_every_condition_and_one_degenerate_method():
    ends = {"EOC (smooth)": 0.4, "EOC (LReLU)": 0.996, "DKS": 0.0, "TAT (smooth)": 0.1,
            "TAT (LReLU)": 0.9}  # fmt: skip

    def found(miss: float, **other: float) -> Results:
        values = [Value(name, "C_f(0)", end) for name, end in (ends | other).items()]
        values.append(Value("DKS", "Q(1)", 1.0 - miss, 1.0))
        return Results("table1", "cpu", {}, values=tuple(values))

    assert verdicts("table1", found(1e-9)) == [HOLDS, HOLDS]
    assert verdicts("table1", found(1e-7)) == [NOT, HOLDS]
    assert verdicts("table1", found(0.0, DKS=0.999)) == [HOLDS, NOT]
    assert verdicts("table1", found(0.0, DKS=0.995)) == [HOLDS, NOT]  # not only EOC with ReLU


@pytest.mark.parametrize(
    ("relu", "gaps", "expected"),
    [
        ((0.8, 0.9, 0.99, 0.998, 0.9999), (0.1, 0.01, 0.005, 0.002, 0.0005), [HOLDS, HOLDS]),
        ((0.8, 0.9, 0.99, 0.98, 0.9999), (0.1, 0.01, 0.02, 0.002, 0.0005), [NOT, NOT]),
        ((0.8, 0.9, 0.91, 0.92, 0.93), (0.1, 0.09, 0.08, 0.07, 0.06), [NOT, NOT]),
    ],
)
def test_figure_2_tells_a_limit_from_none(relu, gaps, expected):
    depths = (10, 30, 100, 300, 1000)
    values = [
        *(Value("ReLU (EOC)", f"C_f(0), {n} layers", v) for n, v in zip(depths, relu, strict=True)),
        *(
            Value("TReLU", f"distance to the limit, {n} layers", v)
            for n, v in zip(depths, gaps, strict=True)
        ),
    ]
    assert verdicts("figure2", Results("figure2", "cpu", {}, values=tuple(values))) == expected


@pytest.mark.parametrize(("ours", "verdict"), [(0.01, HOLDS), (0.03, NOT)])
def test_figure_4_compares_deviations_with_gaussian_weights(ours, verdict):
    values = [
        Value("TReLU, gaussian", "largest deviation, width 30", ours),
        Value("DKS + SoftPlus, gaussian", "largest deviation, width 30", 0.02),
    ]
    found = Results("figure4", "cpu", {}, values=tuple(values))
    assert verdicts("figure4", found)[2] == verdict


def test_results_survive_their_file(tmp_path):
    found = Results(
        "table5",
        "cpu",
        {"started": "today", "seconds": 5},
        results({A: [0.5, None]}).trials,
        (Value("a", "b", 0.5, None),),
        (Series("p", "l", (0.0, 1.0), (0.5, 0.25), (0.1, 0.2)),),
        (TriedSetting("a", "x", "k", Tried({"lr": 0.1}, None, 2.0, "stopped", 1.5)),),
    )
    assert Results.read(found.write(tmp_path / "new" / "table5.jsonl")) == found


def test_a_blank_line_in_results_is_nothing(tmp_path):
    path = results({A: [0.5]}).write(tmp_path / "table5.jsonl")
    path.write_text(path.read_text() + "\n")
    assert Results.read(path) == results({A: [0.5]})


@pytest.mark.parametrize(
    "text",
    [
        '{"kind": "item", "item": "table5", "scale": "huge"}',
        "", "{}", '{"kind": "trial"}', "no json", '{"kind": "item"}',
        '{"kind": "item", "item": "table5", "scale": "cpu"}\n{"kind": "trial", "outcome": 5}',
    ],
)  # fmt: skip
def test_a_file_without_results_is_refused(tmp_path, text):
    path = tmp_path / "wrong.jsonl"
    path.write_text(text)
    with pytest.raises(
        ValueError, match=r"Cannot read .*wrong.jsonl .* that skipless reproduce wrote"
    ):
        Results.read(path)

"""Learning rates by step: as the paper describes them, and as torch's own schedulers set them."""

import math
from fractions import Fraction

import pytest
import torch
from torch.optim import lr_scheduler

from skipless.train.settings import Schedule, ScheduleName


def torch_factors(warmup: int, total: int) -> list[float]:
    """Torch's linear warm-up, whose last step has the whole rate, and then its cosine to 0."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=total - warmup)
    scheduler = cosine
    if warmup:
        linear = lr_scheduler.LinearLR(optimizer, 1.0 / warmup, 1.0, total_iters=warmup - 1)
        scheduler = lr_scheduler.SequentialLR(optimizer, [linear, cosine], milestones=[warmup])
    factors: list[float] = []
    for _ in range(total):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return factors


@pytest.mark.parametrize(("warmup", "total"), [(0, 40), (2, 7), (5, 90), (20, 21)])
def test_the_cosine_is_that_of_torch(warmup: int, total: int) -> None:
    schedule = Schedule("cosine", total, warmup)
    found = [schedule.factor(step) for step in range(total)]
    assert found == pytest.approx(torch_factors(warmup, total), rel=1e-9, abs=1e-12)


def test_the_cosine_reaches_zero_after_the_last_step_and_not_before() -> None:
    schedule = Schedule("cosine", 100, 10)
    assert schedule.factor(99) > 0.0
    assert schedule.factor(100) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("name", ["step", "cosine", "constant"])
def test_the_warm_up_is_linear_starts_above_zero_and_ends_at_the_whole_rate(
    name: ScheduleName,
) -> None:
    schedule = Schedule(name, total=100, warmup=4)
    assert [schedule.factor(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("name", ["step", "cosine", "constant"])
def test_without_a_warm_up_the_first_step_has_the_whole_rate(name: ScheduleName) -> None:
    assert Schedule(name, total=10).factor(0) == 1.0


@pytest.mark.parametrize("name", ["step", "cosine", "constant"])
def test_a_run_may_be_all_warm_up(name: ScheduleName) -> None:
    schedule = Schedule(name, total=2, warmup=2, marks=())
    assert [schedule.factor(step) for step in range(3)] == [0.5, 1.0, 1.0]


def test_a_constant_rate_is_constant_to_the_end() -> None:
    schedule = Schedule("constant", total=50, warmup=5)
    assert {schedule.factor(step) for step in range(5, 51)} == {1.0}


@pytest.mark.parametrize(
    ("marks", "epochs"),
    [
        ((Fraction(4, 9), Fraction(7, 9)), 90),  # ImageNet in the paper, appendix D
        ((Fraction(75, 200), Fraction(150, 200)), 200),  # its CIFAR-10
        ((Fraction(55, 100), Fraction(7, 10)), 100),
    ],
)
@pytest.mark.parametrize("steps_per_epoch", [1, 7, 98, 1251, 5004])
def test_the_rate_falls_by_ten_in_the_very_step_that_begins_an_epoch(
    marks: tuple[Fraction, ...], epochs: int, steps_per_epoch: int
) -> None:
    total = epochs * steps_per_epoch
    schedule = Schedule("step", total, marks=tuple(map(float, marks)))
    for i, mark in enumerate(marks):
        begins = mark * total
        assert begins.denominator == 1
        assert schedule.factor(int(begins) - 1) == pytest.approx(10.0**-i)
        assert schedule.factor(int(begins)) == pytest.approx(10.0 ** -(i + 1))


def test_the_usual_marks_are_those_of_the_paper() -> None:
    schedule = Schedule("step", total=90)
    falls = [s for s in range(1, 91) if schedule.factor(s) < schedule.factor(s - 1)]
    assert falls == [40, 70]


def test_how_far_the_rate_falls_can_be_chosen() -> None:
    schedule = Schedule("step", total=10, marks=(0.5,), decay=0.25)
    assert [schedule.factor(step) for step in (4, 5, 10)] == [1.0, 0.25, 0.25]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "linear"}, "one of step, cosine, constant, got 'linear'"),
        ({"total": 0}, "total must be >= 1 step, got 0"),
        ({"warmup": -1}, "from 0 to 10 steps, got -1"),
        ({"warmup": 11}, "from 0 to 10 steps, got 11"),
        ({"marks": (0.0,)}, "increasing fractions"),
        ({"marks": (0.5, 1.0)}, "increasing fractions"),
        ({"marks": (math.nan,)}, "increasing fractions"),
        ({"marks": (0.7, 0.5)}, "increasing fractions"),
        ({"marks": (0.5, 0.5)}, "increasing fractions"),
        ({"decay": 0.0}, r"decay must be in \(0, 1\], got "),
        ({"decay": 2.0}, r"decay must be in \(0, 1\], got "),
        ({"decay": math.nan}, r"decay must be in \(0, 1\], got "),
    ],
)
def test_nonsense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**({"name": "step", "total": 10} | change))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("step", [-1, 11])
def test_a_step_outside_the_run_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match=f"from 0 to 10, got {step}"):
        Schedule("constant", total=10).factor(step)

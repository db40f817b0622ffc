"""What is kept of a run."""

import json
from pathlib import Path
from typing import get_args

import pytest

from skipless.record import Json, Record
from skipless.runs.outcome import Ending, Outcome, summarize_run

RUN: dict[str, Json] = {
    "parameters": 682,
    "started": "2026-01-01T00:00:00+00:00",
    "machine": {"cores": 2},
    "versions": {"torch": "2.13.0"},
}


def train_row(step: int, loss: float | None = 1.0) -> dict[str, Json]:
    """Row of a run with ten steps an epoch, that takes a third of a second for each step."""
    return {
        "kind": "train",
        "step": step,
        "epoch": step / 10,
        "loss": loss,
        "accuracy": step / 1000,
        "seconds": step / 3,
    }


def validation_row(step: int, top1: float) -> dict[str, Json]:
    return {"kind": "validation", "step": step, "epoch": step / 10, "top1": top1, "seconds": step}


def record(*metrics: dict[str, Json]) -> Record:
    return Record(Path(), RUN, metrics)


def test_final_numbers_are_the_last_accuracy_and_means_over_the_last_epoch() -> None:
    rows = [train_row(step, loss=float(step)) for step in (5, 10, 15, 20)]
    found = summarize_run(
        record(*rows, validation_row(10, 0.5), validation_row(20, 0.25)), "finished"
    )
    assert not found.diverged
    assert found.top1 == 0.25
    assert found.train_loss == (15 + 20) / 2  # 5 and 10 are of the first epoch
    assert found.train_accuracy == (0.015 + 0.020) / 2
    assert found.validation.epochs == [1.0, 2.0]
    assert found.validation.top1 == [0.5, 0.25]
    assert (found.parameters, found.started) == (682, "2026-01-01T00:00:00+00:00")


def test_numbers_have_five_significant_digits() -> None:
    found = summarize_run(
        record(train_row(20, loss=0.000123456789), validation_row(20, 2 / 3)), "finished"
    )
    assert found.train_loss == 0.00012346
    assert found.top1 == 0.66667
    assert found.seconds == 6.6667


def test_a_long_training_curve_is_thinned_between_its_ends() -> None:
    rows = [train_row(step) for step in range(1, 1001)]
    curve = summarize_run(record(*rows, validation_row(1000, 0.5)), "finished").training
    assert len(curve.epochs) == len(curve.loss) == len(curve.accuracy) == len(curve.seconds) == 60
    assert (curve.epochs[0], curve.epochs[-1]) == (0.1, 100.0)
    gaps = {round(10 * (b - a)) for a, b in zip(curve.epochs, curve.epochs[1:], strict=False)}
    assert gaps == {16, 17}  # 999 / 59 = 16.9
    assert len(summarize_run(record(*rows[:60]), "diverged").training.epochs) == 60


@pytest.mark.parametrize("rows", [[], [train_row(1), train_row(2, loss=None)]])
def test_a_diverged_run_has_no_final_numbers(rows: list[dict[str, Json]]) -> None:
    found = summarize_run(record(*rows), "diverged")
    assert found.diverged
    assert (found.top1, found.train_loss, found.train_accuracy) == (None, None, None)
    assert len(found.training.loss) == min(len(rows), 1)  # those that are numbers


def test_an_outcome_is_the_same_after_a_journey_through_json() -> None:
    for ending in get_args(Ending):
        found = summarize_run(record(train_row(7), validation_row(7, 1 / 3)), ending)
        assert found.ending == ending
        assert Outcome.of(json.loads(json.dumps(found.as_mapping()))) == found

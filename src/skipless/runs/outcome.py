"""What came of a run, small enough to be kept in a data base and shared between machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from skipless.record import Json, Record, number

_DIGITS = 5  # significant ones: more than seeds leave the same
_MOST_POINTS = 60  # of a training curve: more than a chart can show


@dataclass(frozen=True)
class ValidationCurve:
    """Accuracy on the validation images, and the seconds of training that it took."""

    epochs: list[float]
    top1: list[float]
    seconds: list[float]


@dataclass(frozen=True)
class TrainingCurve:
    """Loss and accuracy while training; of a long run every few lines of its journal."""

    epochs: list[float]
    loss: list[float]
    accuracy: list[float]
    seconds: list[float]


@dataclass(frozen=True)
class Outcome:
    """A run that came to its end, or `diverged`: then it has no final numbers.

    `train_loss` and `train_accuracy` are means over the last epoch, as far as it was logged.
    """

    diverged: bool
    top1: float | None
    train_loss: float | None
    train_accuracy: float | None
    seconds: float | None
    parameters: int
    validation: ValidationCurve
    training: TrainingCurve
    started: str
    machine: dict[str, Json]
    versions: dict[str, Json]

    def as_mapping(self) -> dict[str, Any]:
        """Every value by name, in types that JSON has."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Outcome:
        """The outcome that `as_mapping` gave."""
        curves = {
            "validation": ValidationCurve(**values["validation"]),
            "training": TrainingCurve(**values["training"]),
        }
        return cls(**{**values, **curves})


def outcome_of(record: Record, finished: bool) -> Outcome:
    """The outcome of a run that left `record`; one that was not `finished` has diverged."""
    validation = _columns(record, "validation", ("epoch", "top1", "seconds"))
    training = _columns(record, "train", ("epoch", "loss", "accuracy", "seconds"))
    epochs, losses, accuracies, seconds = training
    last = [place for place, epoch in enumerate(epochs) if epoch > epochs[-1] - 1]

    def final(values: Sequence[float]) -> float | None:
        return _rounded(fmean(values[place] for place in last)) if finished and last else None

    run = record.run
    machine, versions = run["machine"], run["versions"]
    assert isinstance(machine, dict)
    assert isinstance(versions, dict)
    return Outcome(
        diverged=not finished,
        top1=_rounded(validation[1][-1]) if finished else None,
        train_loss=final(losses),
        train_accuracy=final(accuracies),
        seconds=_rounded(seconds[-1]) if seconds else None,
        parameters=int(number(run, "parameters")),
        validation=ValidationCurve(*(_all_rounded(column) for column in validation)),
        training=TrainingCurve(*(_all_rounded(_thinned(column)) for column in training)),
        started=str(run["started"]),
        machine=machine,
        versions=versions,
    )


def _columns(record: Record, kind: str, names: Sequence[str]) -> list[list[float]]:
    """The numbers of all rows of a kind that have each of them, by name."""
    rows = [
        row
        for row in record.metrics
        if row["kind"] == kind and all(row.get(name) is not None for name in names)
    ]
    return [[number(row, name) for row in rows] for name in names]


def _thinned(values: Sequence[float]) -> Sequence[float]:
    """At most so many of `values`, evenly spaced, the first and the last among them."""
    if len(values) <= _MOST_POINTS:
        return values
    step = (len(values) - 1) / (_MOST_POINTS - 1)
    return [values[round(place * step)] for place in range(_MOST_POINTS)]


def _all_rounded(values: Sequence[float]) -> list[float]:
    return [_rounded(value) for value in values]


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")

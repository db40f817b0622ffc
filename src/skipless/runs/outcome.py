"""The outcome of a run, small enough for a data base that machines share; never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

from skipless.files import typed
from skipless.record import Json, Record, number

Ending = Literal["finished", "stopped", "diverged"]

_DIGITS = 5  # significant ones; seeds differ in fewer
_MOST_POINTS = 60  # of a training curve; a chart shows no more


@dataclass(frozen=True)
class ValidationCurve:
    """Accuracy on the validation images, and the seconds of training that it took."""

    epochs: list[float]
    top1: list[float]
    seconds: list[float]

    def __post_init__(self) -> None:
        _require_columns(self)


@dataclass(frozen=True)
class TrainingCurve:
    """Loss and accuracy while training; for a long run, every few lines of its metrics."""

    epochs: list[float]
    loss: list[float]
    accuracy: list[float]
    seconds: list[float]

    def __post_init__(self) -> None:
        _require_columns(self)


def _require_columns(curve: ValidationCurve | TrainingCurve) -> None:
    if len({len(column) for column in vars(curve).values()}) > 1:
        raise ValueError("the columns of a curve differ in length")


@dataclass(frozen=True)
class Outcome:
    """A run that ended, early or not, or that `diverged`: then it has no final numbers."""

    diverged: bool
    top1: float | None
    train_loss: float | None  # as the accuracy, a mean over the last epoch's logged steps
    train_accuracy: float | None
    seconds: float | None
    parameters: int
    validation: ValidationCurve
    training: TrainingCurve
    started: str
    machine: dict[str, Json]
    versions: dict[str, Json]
    stopped: bool = False  # early, as hopeless
    commit: str | None = None  # of skipless itself, where it ran from a repository
    classes: int = 10

    @property
    def ending(self) -> Ending:
        """How the run ended."""
        return "diverged" if self.diverged else "stopped" if self.stopped else "finished"

    @property
    def trained(self) -> bool:
        """Whether the network learned anything: its accuracy is more than twice that of chance."""
        return self.top1 is not None and self.top1 * self.classes > 2.0

    def as_mapping(self) -> dict[str, Any]:
        """Every value by name, in types that JSON has."""
        return asdict(self)

    @classmethod
    def of(cls, values: object) -> Outcome:
        """The outcome that `as_mapping` wrote."""
        return typed(cls, values)


@dataclass(frozen=True)
class Tried:
    """A setting that was tried, and its accuracy on the held-out images when it ended."""

    chosen: Mapping[str, Json]
    accuracy: float | None
    epochs: float
    ending: Ending
    seconds: float | None


def summarize_run(record: Record, ending: Ending) -> Outcome:
    """The outcome of the run in `record`, which ended so."""
    diverged = ending == "diverged"
    validation = _columns(record, "validation", ("epoch", "top1", "seconds"))
    training = _columns(record, "train", ("epoch", "loss", "accuracy", "seconds"))
    epochs, losses, accuracies, seconds = training
    last = [place for place, epoch in enumerate(epochs) if epoch > epochs[-1] - 1]

    def final(values: Sequence[float]) -> float | None:
        return _round(fmean(values[place] for place in last)) if last and not diverged else None

    run = record.run
    machine, versions = run["machine"], run["versions"]
    assert isinstance(machine, dict)
    assert isinstance(versions, dict)
    return Outcome(
        diverged=diverged,
        stopped=ending == "stopped",
        top1=_round(validation[1][-1]) if validation[1] and not diverged else None,
        train_loss=final(losses),
        train_accuracy=final(accuracies),
        seconds=_round(seconds[-1]) if seconds else None,
        parameters=int(number(run, "parameters")),
        validation=ValidationCurve(*([_round(v) for v in column] for column in validation)),
        training=TrainingCurve(*([_round(v) for v in _thin(column)] for column in training)),
        started=str(run["started"]),
        machine=machine,
        versions=versions,
        classes=int(number(run, "classes")) if "classes" in run else 10,
        commit=None if (commit := run.get("skipless_commit")) is None else str(commit),
    )


def _columns(record: Record, kind: str, names: Sequence[str]) -> list[list[float]]:
    """Columns of the rows of a kind that have all of the numbers."""
    rows = [row for row in record.metrics if row["kind"] == kind]
    rows = [row for row in rows if all(row.get(name) is not None for name in names)]
    return [[number(row, name) for row in rows] for name in names]


def _thin(values: Sequence[float]) -> Sequence[float]:
    """At most `_MOST_POINTS` of `values`, evenly spaced, with the first and the last."""
    step = max(1.0, (len(values) - 1) / (_MOST_POINTS - 1))
    return [values[round(place * step)] for place in range(min(len(values), _MOST_POINTS))]


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")

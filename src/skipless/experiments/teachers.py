"""A run of `skipless train` as the teacher of another one: `--teacher CHECKPOINT`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from skipless.record import RUN, Json, Record
from skipless.train.checkpoint import run_and_checkpoint, trained_weights
from skipless.train.data import Data
from skipless.train.process import Process
from skipless.train.teacher import Teacher

from .configuration import Configuration
from .methods import flag
from .stored import stored_configuration

Network = Callable[[Configuration, tuple[int, int, int], int], nn.Module]


@dataclass(frozen=True)
class TrainedTeacher:
    """A teacher, and what a record says of it: run, step and checksum."""

    teacher: Teacher
    origin: dict[str, Json]


def teacher_of(
    given: Configuration, data: Data, process: Process, network: Network
) -> TrainedTeacher | None:
    """The teacher that a configuration names, on the device of `process`, if it names one.

    `network` makes one from its configuration, for images of a shape and a number of classes.
    """
    if given.teacher is None:
        _demand_unused(given)
        return None
    try:
        run, checkpoint = run_and_checkpoint(given.teacher)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"--teacher: {error}") from None
    record = Record.read(run)
    own = stored_configuration(record)
    _demand_fitting(given, own, record, data)
    weights = trained_weights(checkpoint)
    try:
        model = network(own, data.shape, data.num_classes)
        model.load_state_dict(weights.tensors)
    except (RuntimeError, ValueError) as error:
        raise ValueError(_unfit(checkpoint, run, error)) from None
    if own.data != given.data and process.leads:
        warnings.warn(
            f"the teacher in {run} was trained on {own.data}, and is asked about {given.data}: "
            "see to it that the classes are the same, in the same order.",
            stacklevel=2,
        )
    teacher = Teacher(model.to(process.device), given.teacher_weight, given.teacher_temperature)
    return TrainedTeacher(
        teacher, {"run": str(run), "step": weights.step, "sha256": weights.sha256}
    )


def demand_same_teacher(output: Path, found: TrainedTeacher | None) -> None:
    """Raise if the run in `output`, which is to go on, was started with another teacher."""
    if not (output / RUN).exists():
        return
    before = Record.read(output).run.get("teacher")
    if not isinstance(before, dict):
        return
    if found is None or found.origin["sha256"] != before.get("sha256"):
        now = "none" if found is None else f"step {found.origin['step']} of {found.origin['run']}"
        raise ValueError(
            f"The run in {output} was started with the teacher of step {before.get('step')} of "
            f"{before.get('run')}, and would go on with another one: {now}. Name the checkpoint of "
            "that step by --teacher, or start another run."
        )


def _demand_unused(given: Configuration) -> None:
    for name in ("teacher_weight", "teacher_temperature"):
        if getattr(given, name) != getattr(Configuration(), name):
            raise ValueError(
                f"{flag(name)} was given without a teacher. Leave it out, or name a trained run by "
                "--teacher."
            )


def _demand_fitting(given: Configuration, own: Configuration, record: Record, data: Data) -> None:
    """Raise if teacher and student do not see the same images, or do not know the same classes."""
    shape = record.run.get("shape", list(data.shape))  # which older runs do not tell
    classes = record.run.get("classes", data.num_classes)
    pairs = (
        ("classes", classes, data.num_classes),
        ("images of shape", shape, list(data.shape)),
        ("images with --normalize", own.normalize, given.normalize),
    )
    for what, theirs, ours in pairs:
        if theirs != ours:
            raise ValueError(
                f"The teacher in {record.folder} knows {what} {theirs}, and the network to be "
                f"trained has {ours}. Both must have the same: change the one, or train the other "
                "anew."
            )


def _unfit(checkpoint: Path, run: Path, error: Exception) -> str:
    reason = " ".join(str(error).split())[:300].rstrip(".")
    return (
        f"The teacher in {checkpoint} does not fit these images and classes, or {run / RUN} is "
        f"that of another network: {reason}. Name another one."
    )

r"""How to train, whatever is trained.

Learning rates over a run: linear warm-up, then steps, a cosine or a constant.

They are functions of the number of the step and nothing else, so that a run that goes on from a
checkpoint needs no state of its schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import cos, pi
from typing import Literal, get_args

ScheduleName = Literal["step", "cosine", "constant"]

DEFAULT_MARKS = (4 / 9, 7 / 9)  # of the paper (appendix D)


@dataclass(frozen=True)
class Schedule:
    r"""A learning rate, as a multiple of the initial one, at every step of `total`.

    Steps are counted from 0. The factor grows linearly over the first `warmup` of them: it is
    (step + 1) / warmup, so that no step is spent on a rate of 0 and the last one of the warm-up has
    the whole rate. What it is multiplied with depends on the name:

    - "step": `decay` for each of the `marks`, which are fractions of the total, that has been
      reached. The usual 4/9 and 7/9 are those of the paper (appendix D); CIFAR-10 is trained there
      with `marks=(75 / 200, 150 / 200)`. A mark between two steps counts for the nearer one.
    - "cosine": $\tfrac12 (1 + \cos \pi t)$, where $t$ goes from 0 after the warm-up to 1 after the
      last step, so that the last step too has a rate above 0.
    - "constant": 1.

    >>> schedule = Schedule("step", total=9, warmup=2)
    >>> [round(schedule.factor(step), 6) for step in range(9)]
    [0.5, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.01, 0.01]
    """

    name: ScheduleName
    total: int
    warmup: int = 0
    marks: tuple[float, ...] = DEFAULT_MARKS
    decay: float = 0.1

    def __post_init__(self) -> None:
        if self.name not in get_args(ScheduleName):
            raise ValueError(
                f"The schedule {self.name!r} was asked for; there are "
                f"{', '.join(get_args(ScheduleName))}."
            )
        if self.total < 1 or not 0 <= self.warmup <= self.total:
            raise ValueError(
                f"A schedule of {self.total} steps with {self.warmup} of warm-up was asked for; "
                "give 1 step or more, and a warm-up of 0 up to as many."
            )
        inside = all(0.0 < mark < 1.0 for mark in self.marks)
        if not inside or sorted(set(self.marks)) != list(self.marks):
            raise ValueError(
                f"The learning rate was to fall at {self.marks} of the run; give rising fractions "
                "between 0 and 1."
            )
        if not 0.0 < self.decay <= 1.0:
            raise ValueError(
                f"The learning rate was to fall to {self.decay:g} times itself; give a factor "
                "above 0 and at most 1."
            )

    def factor(self, step: int) -> float:
        """What the initial learning rate is multiplied with in a step; `total` is past the last."""
        if not 0 <= step <= self.total:
            raise ValueError(
                f"The learning rate at step {step} was asked for, in a run of {self.total} steps. "
                "Steps are counted from 0; a longer run needs a schedule with a larger total."
            )
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        match self.name:
            case "step":
                # Rounded, or 0.55 of 100 steps, 55.00000000000001, would be reached a step late.
                return warm * self.decay ** sum(step >= round(m * self.total) for m in self.marks)
            case "cosine":
                rest = self.total - self.warmup
                return warm * (1.0 + cos(pi * max(0, step - self.warmup) / max(1, rest))) / 2.0
            case "constant":
                return warm


Precision = Literal["float32", "bfloat16"]

_SEEDS = 2**32  # so that each process can have its own, derived from it


@dataclass(frozen=True)
class Settings:
    """All that the engine can be told.

    `batch_size` is that of a step, over all processes and accumulated parts. `average` is the decay
    of the moving average of the weights, `clip` the largest norm of a gradient. `checkpoint_every`
    counts steps; without it there is one after each epoch. `classes_per_batch` is how many classes
    the images of a step are of; without it, chance decides.
    """

    epochs: int = 90
    batch_size: int = 128
    classes_per_batch: int | None = None
    steps: int | None = None  # instead of what `epochs` amounts to
    schedule: ScheduleName = "cosine"
    marks: tuple[float, ...] = DEFAULT_MARKS  # of the schedule "step"
    warmup: float | None = None  # epochs; the paper's 5, but at most a tenth of the run
    label_smoothing: float = 0.1
    accumulate: int = 1
    precision: Precision = "float32"
    channels_last: bool = False
    compile: bool = False
    average: float | None = None
    clip: float | None = None
    seed: int = 0
    workers: int = 0
    log_every: int = 10
    evaluate_every: int = 1
    checkpoint_every: int | None = None
    keep: int = 3

    def __post_init__(self) -> None:
        least = {"epochs": 1, "batch_size": 1, "steps": 1, "accumulate": 1, "log_every": 1}
        least |= {"evaluate_every": 1, "checkpoint_every": 1, "keep": 1, "workers": 0, "warmup": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and not smallest <= value < math.inf:
                raise ValueError(f"{name} = {value} was asked for; give {smallest} or more.")
        for name, given in (("label_smoothing", self.label_smoothing), ("average", self.average)):
            if given is not None and not 0.0 <= given < 1.0:
                raise ValueError(
                    f"{name} = {given} was asked for; give 0 or more, and less than 1."
                )
        if not 0 <= self.seed < _SEEDS:
            raise ValueError(f"seed = {self.seed} was asked for; give one from 0 to 2^32 - 1.")
        if self.clip is not None and not self.clip > 0.0:
            raise ValueError(f"clip = {self.clip} was asked for; a largest norm is more than 0.")

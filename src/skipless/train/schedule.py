r"""Learning rates over a run: linear warm-up, then steps, a cosine or a constant.

They are functions of the number of the step and nothing else, so that a run that goes on from a
checkpoint needs no state of its schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Literal, get_args

ScheduleName = Literal["step", "cosine", "constant"]

USUAL_MARKS = (4 / 9, 7 / 9)  # of the paper (appendix D)


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
    marks: tuple[float, ...] = USUAL_MARKS
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

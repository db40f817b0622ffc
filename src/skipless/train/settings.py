"""How to train, whatever is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from .schedule import USUAL_MARKS, ScheduleName

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
    marks: tuple[float, ...] = USUAL_MARKS  # of the schedule "step"
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

r"""Settings of the engine, whatever it trains, and the learning rate at each step.

The rate depends on the number of the step alone, so that a run resumes without state of a schedule.
"""

import math
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

ScheduleName = Literal["step", "cosine", "constant"]
Precision = Literal["float32", "bfloat16"]
CropName = Literal["window", "inception"]

DEFAULT_MARKS = (4 / 9, 7 / 9)  # of the paper (appendix D)
_USUAL_RATIO = 0.02
_MOST = {"workers": 1000}  # of whatever is counted, else 10^9


def option(default: Any, help_: str, *, resumable: bool = False) -> Any:
    """A dataclass field with the help text of its command-line option."""
    # A resumable one may change when a run resumes, because no number depends on it.
    return field(default=default, metadata={"help": help_, "resumable": resumable})


def parse_clip(given: str | float | None) -> str | float | None:
    """A norm, "adaptive:RATIO" or None, whichever way it was written.

    >>> parse_clip("1"), parse_clip("adaptive"), parse_clip("none")
    (1.0, 'adaptive:0.02', None)
    """
    if given is None or given == "none":
        return None
    adaptive = re.fullmatch(r"adaptive(?::(.+))?", str(given))
    try:
        value = float(given if adaptive is None else adaptive[1] or _USUAL_RATIO)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise ValueError(
            "clip must be a norm, adaptive, adaptive:RATIO, or none, with a norm or ratio that is "
            f"finite and > 0, got {given}"
        )
    return value if adaptive is None else f"adaptive:{value}"


@dataclass(frozen=True)
class Settings:
    """How to train, whatever is trained."""

    schedule: ScheduleName = option(  # noqa: RUF009 - a field
        "cosine", "After the warm-up: a tenth at each of --marks, half a cosine, or constant."
    )
    marks: str | None = option(
        None,
        "step: where the learning rate drops to a tenth, as fractions of the run such as "
        "75/200,0.75.  [default: 4/9,7/9]",
    )
    warmup: float | None = option(
        None, "Epochs of linear warm-up.  [default: 5, or a tenth of a shorter run]"
    )
    epochs: int = option(90, "Passes over the training images.")
    steps: int | None = option(None, "Steps to train, instead of --epochs.")
    batch_size: int = option(128, "Images per step, over all processes and accumulated parts.")
    classes_per_batch: int | None = option(
        None, "Draw each batch from this many classes, equally many images of each."
    )
    accumulate: int = option(1, "Parts to split each batch into, to save memory.")
    label_smoothing: float = option(0.1, "Share of the target spread over all classes.")
    clip: str | float | None = option(
        None,
        "Bound the norm of the gradient, such as 1; or that of each unit, relative to its weights: "
        "adaptive, or adaptive:0.02; or none.  [default: 1 for SGD without normalisation layers]",
    )
    average: float | None = option(None, "Decay of a moving average of the weights, such as 0.999.")
    precision: Precision = option("float32", "Precision of the forward pass.")  # noqa: RUF009
    channels_last: bool | None = option(
        None, "Use the channels-last memory format.  [default: for convolutions]"
    )
    compile: bool = option(False, "Compile the network with torch.compile.")
    tf32: bool | None = option(
        None,
        "NVIDIA GPUs: round inputs of products to TensorFloat-32.  [default: of convolutions]",
        resumable=True,
    )
    cudnn_benchmark: bool = option(
        True, "NVIDIA GPUs: time cuDNN's algorithms and take the fastest.", resumable=True
    )
    sync_batch_norm: bool | None = option(
        None,
        "Several processes: BatchNorm sees the whole batch, or each process's share.  [default: "
        "the whole batch on GPUs]",
    )
    workers: int | None = option(
        None, "Processes that decode images.  [default: as many as help]", resumable=True
    )
    seed: int = option(0, "Seed of weights, data order, augmentation and dropout.")
    log_every: int = option(10, "Steps between lines of metrics.jsonl.")
    log_kernel: int | None = option(
        None,
        "Steps between lines on layers: q, c between images, norms of gradients and weights.  "
        "[default: none]",
        resumable=True,
    )
    log_layers: str | None = option(
        None,
        "Layers that --log-kernel measures, by patterns such as 'stages.0.*,fc'.  [default: eight "
        "from the first to the last]",
        resumable=True,
    )
    evaluate_every: int = option(1, "Epochs between evaluations.")
    checkpoint_every: int | None = option(
        None, "Steps between checkpoints.  [default: one epoch]", resumable=True
    )
    keep: int = option(3, "Checkpoints to keep.", resumable=True)

    def __post_init__(self) -> None:
        least = {"epochs": 1, "batch_size": 1, "steps": 1, "accumulate": 1, "log_every": 1}
        least |= {
            "log_kernel": 1,
            "evaluate_every": 1,
            "checkpoint_every": 1,
            "keep": 1,
            "workers": 0,
            "warmup": 0,
        }
        for name, smallest in least.items():
            value, most = getattr(self, name), _MOST.get(name, 10**9)
            if value is not None and not smallest <= value <= most:
                raise ValueError(f"{name} must be from {smallest} to {most}, got {value}")
        for name, given in (("label_smoothing", self.label_smoothing), ("average", self.average)):
            if given is not None and not 0.0 <= given < 1.0:
                raise ValueError(f"{name} must be in [0, 1), got {given}")
        if not 0 <= self.seed < 2**32:  # each process derives its own
            raise ValueError(f"seed must be from 0 to 2^32 - 1, got {self.seed}")
        if self.log_layers is not None and self.log_kernel is None:
            raise ValueError(
                f"log_layers {self.log_layers} needs log_kernel, the steps between two lines, such "
                "as 100"
            )
        object.__setattr__(self, "clip", parse_clip(self.clip))
        if self.marks is not None and self.schedule != "step":
            raise ValueError(
                f"marks belong to the schedule step, but the schedule is {self.schedule}. Drop "
                f"--marks {self.marks}, or use --schedule step."
            )
        Schedule("step", total=1, marks=self.mark_fractions)  # which checks them

    def as_mapping(self) -> dict[str, Any]:
        """Every value by its name, in types that JSON has."""
        return asdict(self)

    @property
    def mark_fractions(self) -> tuple[float, ...]:
        """The `marks` as numbers."""
        if self.marks is None:
            return DEFAULT_MARKS
        try:
            parts = [mark.split("/") for mark in self.marks.split(",")]
            return tuple(float(top) / float(*bottom or "1") for top, *bottom in parts)
        except (ValueError, TypeError, ZeroDivisionError):
            raise ValueError(
                f"marks must be fractions of the run, such as 75/200,0.75, got {self.marks!r}"
            ) from None


@dataclass(frozen=True)
class Schedule:
    r"""The learning rate of each of `total` steps, as a multiple of the initial one.

    Over the first `warmup` steps, counted from 0, it grows as (step + 1) / warmup: no step has a
    rate of 0, and the last one of the warm-up has the full rate. This is multiplied by:

    - "step": `decay` for each of the `marks` (fractions of `total`) passed, where a mark between
      two steps counts for the nearer one. The paper trains CIFAR-10 with 75/200 and 150/200.
    - "cosine": $\tfrac12 (1 + \cos \pi t)$, where $t$ goes from 0 after the warm-up to 1 after the
      last step, so that the last step, too, has a rate above 0.
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
            names = ", ".join(get_args(ScheduleName))
            raise ValueError(f"schedule must be one of {names}, got {self.name!r}")
        if self.total < 1:
            raise ValueError(f"total must be >= 1 step, got {self.total}")
        if not 0 <= self.warmup <= self.total:
            raise ValueError(f"warmup must be from 0 to {self.total} steps, got {self.warmup}")
        inside = all(0.0 < mark < 1.0 for mark in self.marks)
        if not inside or sorted(set(self.marks)) != list(self.marks):
            raise ValueError(f"marks must be increasing fractions in (0, 1), got {self.marks}")
        if not 0.0 < self.decay <= 1.0:
            raise ValueError(f"decay must be in (0, 1], got {self.decay:g}")

    def factor(self, step: int) -> float:
        """The factor of the initial learning rate in a step; `total` is past the last."""
        if not 0 <= step <= self.total:
            raise ValueError(
                f"step must be from 0 to {self.total}, got {step}. For a longer run, raise total."
            )
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if self.name == "step":
            # Rounded, or 0.55 of 100 steps, 55.00000000000001, would be reached a step late.
            return warm * self.decay ** sum(step >= round(m * self.total) for m in self.marks)
        if self.name == "cosine":
            rest = max(1, self.total - self.warmup)
            return warm * (1.0 + math.cos(math.pi * max(0, step - self.warmup) / rest)) / 2.0
        return warm

"""Three scales of the paper's experiments: its own, that of a laptop, and one for tests.

Items state their runs as the paper does: full width, 90 epochs, batches of 1,024. A scale turns
such a run into one of its own size. It keeps the depth, except at the scale `smoke`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from skipless.runs.configuration import Configuration
from skipless.runs.search import Range

ScaleName = Literal["smoke", "cpu", "full"]
Option = str | int | float | bool | None
Options = Mapping[str, Option]
Space = Mapping[str, Range | tuple[Option, ...]]

EPOCHS, BATCH = 90, 1024  # section 5


@dataclass(frozen=True)
class Scale:
    """How large runs are, and over what they are tuned.

    `epochs`, `batch` and `width` are factors of the paper's values, `options` apply to every run,
    those `of_optimizer` to the runs of one, and `models` replaces networks by smaller ones. An item
    may keep only some cells, by row and column.

    Every cell is tuned in as many `trials`, on `held_out` training images, over the ranges of its
    optimiser, beginning with the values that stand `first`, and over the other options below; its
    best setting is trained from `seeds`. Without trials, the first values are taken.
    """

    name: ScaleName
    options: Options
    ranges: Mapping[str, Mapping[str, Range]]  # by optimiser
    first: Mapping[str, Options]
    of_optimizer: Mapping[str, Options] = field(default_factory=dict)
    epochs: float = 1.0
    batch: float = 1.0
    width: float = 1.0
    trials: int = 0
    least_epochs: int = 2  # of a trial
    seeds: int = 1
    held_out: int | None = None
    l2: tuple[float, ...] = (0.0,)
    dropouts: tuple[float, ...] = (0.0,)
    etas: tuple[float, ...] = (0.9,)
    taus: tuple[float, ...] = (0.3,)
    zetas: tuple[float, ...] = (1.5,)
    models: Mapping[str, str] = field(default_factory=dict)
    keep: Callable[[str, str], bool] = lambda row, column: True
    seconds: float = 0.0  # of an image in a layer, forward and backward, with SGD
    seconds_of_step: float = 0.0  # in a layer, however small the batch
    processor: str = "CPU"

    def configuration(
        self, run: Options, given: Mapping[str, object] | None = None
    ) -> Configuration:
        """The configuration of a run stated as in the paper, with the options that a user adds."""
        full = {"epochs": EPOCHS, "batch_size": BATCH, "schedule": "step", **run}
        sized = {
            "model": self.models.get(str(full["model"]), full["model"]),
            "epochs": max(1, round(_number(full["epochs"]) * self.epochs)),
            "batch_size": max(1, round(_number(full["batch_size"]) * self.batch)),
        }
        if self.width != 1.0 or "width" in full:
            usual = 2.0 if str(full["model"]).startswith("wide") else 1.0
            sized["width"] = _number(full.get("width", usual)) * self.width
        own = {**self.options, **self.of_optimizer.get(str(run["optimizer"]), {})}
        own = {name: value for name, value in own.items() if name not in run}
        if run.get("activation") == "prelu":
            own.pop("precision", None)  # its slopes are trained, which bfloat16 does not speed up
        return Configuration.of(full, sized, own, given or {})

    def space(self, run: Options) -> tuple[Space, Options]:
        """What a run is tuned over, and what is tried first: all that the run does not fix."""
        optimizer = str(run["optimizer"])
        choices: dict[str, tuple[Option, ...]] = {"l2": self.l2}
        if run.get("norm") != "batch":
            choices["dropout"] = self.dropouts
        match run.get("method"), run.get("activation"):
            case "tat", None | "leaky_relu":
                choices["eta"] = _reachable(run, self.etas)
            case "tat", _:
                choices["tau"] = self.taus
            case "dks", _:
                choices["zeta"] = self.zetas
        space: dict[str, Range | tuple[Option, ...]] = dict(self.ranges.get(optimizer, {}))
        space |= {name: values for name, values in choices.items() if len(values) > 1}
        first = {name: values[0] for name, values in choices.items()}
        first |= self.first.get(optimizer, {})
        free = lambda values: {n: value for n, value in values.items() if n not in run}
        return free(space), free(first)


def _reachable(run: Options, etas: tuple[float, ...]) -> tuple[float, ...]:
    """The values of η that a leaky ReLU can give; ReLU gives a ResNet-50 0.9398 with w = 0.8."""
    if run.get("shortcut_weight") == 0.8 and run["model"] == "resnet50":
        return tuple(eta for eta in etas if eta < 0.9398)
    return etas


# Not the paper's: no more on disk than needed.
_LEAN: Options = {"log_every": 10, "checkpoint_every": 10**9, "keep": 1}

# The paper's K-FAC.
_FIXED_PERIODS: Options = {"kfac_early_inverses": False, "kfac_restarts": False}

_FULL_RANGES = {  # from the least to the most of appendix D; the last three are ours
    "sgd": {"lr": Range(0.01, 1.0)},
    "kfac": {"lr": Range(0.00003, 0.003)},
    "lars": {"lr": Range(0.1, 10.0)},
    "muon": {"lr": Range(0.001, 0.02)},
    "soap": {"lr": Range(0.0003, 0.003)},
    "adamw": {"lr": Range(0.0003, 0.003)},
}

FULL = Scale(
    "full",
    {"data": "imagefolder:imagenet", "crop": "inception"},  # as the authors' released example
    _FULL_RANGES,
    first={
        "sgd": {"lr": 0.1},
        "kfac": {"lr": 0.0003},
        "lars": {"lr": 1.0},
        "muon": {"lr": 0.005},
        "soap": {"lr": 0.001},
        "adamw": {"lr": 0.001},
    },
    of_optimizer={"kfac": {**_FIXED_PERIODS, "kfac_preset": "imagenet"}},
    trials=20,
    least_epochs=10,
    seeds=5,
    held_out=10_000,
    l2=(0.00002, 0.00005, 0.0),  # appendix D
    dropouts=(0.0, 0.2),  # where there is no BatchNorm
    etas=(0.9, 0.95),  # section 5
    taus=(0.3, 0.2, 0.5),  # section 5.4
    zetas=(1.5, 10.0, 100.0),
    # A ResNet-50 takes about 1,200 images of 224 x 224 a second on an A100.
    seconds=1 / (1200 * 50),
    seconds_of_step=1e-4,
    processor="GPU (A100)",
)

_CLIPPED: Options = {"clip": 1.0}  # the paper has no clipping: docs/results.md

CPU = Scale(
    "cpu",
    {
        **_LEAN,
        "data": "fashion-mnist",
        "image_size": 14,
        "train_size": 20_000,
        "schedule": "cosine",
        "precision": "bfloat16",
        "evaluate_every": 10,
        "threads": 1,
    },
    {
        "sgd": {"lr": Range(0.01, 1.0)},
        "lars": {"lr": Range(0.3, 30.0)},
        "kfac": {"lr": Range(0.003, 0.3), "kfac_norm_constraint": Range(1e-4, 1e-2)},
        "muon": {"lr": Range(0.0005, 0.05)},
        "soap": {"lr": Range(0.0003, 0.03)},
        "adamw": {"lr": Range(0.0001, 0.01)},
    },
    first={
        "sgd": {"lr": 0.1},
        "lars": {"lr": 3.0},
        "kfac": {"lr": 0.03, "kfac_norm_constraint": 0.001},
        "muon": {"lr": 0.005},
        "soap": {"lr": 0.003},
        "adamw": {"lr": 0.001},
    },
    of_optimizer={
        **dict.fromkeys(("sgd", "lars", "muon", "soap", "adamw"), _CLIPPED),
        # Factors of curvature are inverted, so nothing is rounded to bfloat16.
        "kfac": {
            "precision": "float32",
            "kfac_preset": "cifar10",
            "kfac_curvature_period": 5,
            "kfac_inverse_period": 20,
        },
    },
    epochs=1 / 9,
    batch=1 / 8,
    width=1 / 8,
    trials=8,
    seeds=5,
    held_out=3000,
    etas=(0.9, 0.8),
    zetas=(1.5, 10.0),
    seconds=6e-6,
    seconds_of_step=6e-4,
)

_TINY_RATE = {"lr": 0.001}

SMOKE = Scale(
    "smoke",
    {
        **_LEAN,
        "data": "digits",
        "train_size": 64,
        "validation_size": 32,
        "steps": 2,
        "clamp": True,  # these networks are too shallow for some targets
        "log_every": 1,
        "threads": 1,
    },
    {},
    first=dict.fromkeys(("sgd", "kfac", "lars", "muon", "soap", "adamw"), _TINY_RATE),
    of_optimizer={"kfac": {"kfac_preset": "cifar10", "kfac_burn_in": 1}},
    batch=1 / 64,
    width=1 / 16,
    models={
        "resnet50": "resnet18",
        "resnet101": "resnet34",
        "resnet152": "resnet34",
        "resnet200": "resnet34",
        **{f"wide_resnet{depth}": "wide_resnet10" for depth in (16, 100, 154, 202, 250, 304)},
    },
    seconds=1e-5,
)

# Of some items: their figures show accuracy by epoch.
CPU_OFTEN = replace(CPU, options={**CPU.options, "evaluate_every": 1})
FULL_CIFAR = replace(
    FULL, options={"data": "cifar10"}, held_out=5000, seconds=FULL.seconds * (32 / 224) ** 2
)

SCALES: Mapping[ScaleName, Scale] = {scale.name: scale for scale in (SMOKE, CPU, FULL)}


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


# What the names of rows and columns stand for: a run is made of such parts.
OPTIMIZERS: Mapping[str, Options] = {
    "K-FAC": {"optimizer": "kfac"},
    "SGD": {"optimizer": "sgd"},
    "LARS": {"optimizer": "lars"},
}
RESNETS: Mapping[str, Options] = {
    depth: {"model": f"resnet{depth}"} for depth in ("50", "101", "152", "200")
}
BATCH_NORM: Options = {"norm": "batch"}
VANILLA: Options = {"shortcut_weight": 0.0}  # neither shortcuts nor normalisation layers

RELU: Options = {"method": "eoc"}  # (σ_w, σ_b) = (√2, 0)
TRELU: Options = {"method": "tat"}
VANILLA_TRELU: Options = {**VANILLA, **TRELU}


def rescaled(shortcut_weight: float) -> Options:
    """No normalisation layers, and the sums of eq. 6.

    With w = 0.9, no leaky ReLU has the η of table 2; the nearest is taken (docs/paper.md, errata).
    """
    clamp = {"clamp": True} if shortcut_weight > 0.8 else {}
    return {"shortcut_weight": shortcut_weight, **clamp}


NETWORKS: dict[str, Options] = {
    "ResNet": BATCH_NORM,
    "EOC": {**VANILLA, **RELU},
    "TAT": VANILLA_TRELU,
    "w = 0": VANILLA_TRELU,
    "w = 0.8": {**rescaled(0.8), **TRELU},
}

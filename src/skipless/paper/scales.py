"""Three scales of the paper's experiments: its own, that of a laptop, and one for tests.

Items state their runs as the paper does: full width, 90 epochs, batches of 1,024. A scale turns
such a run into one of its own size. It keeps the depth, except at the scale `smoke`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from skipless.runs.configuration import Configuration

ScaleName = Literal["smoke", "cpu", "full"]
Option = str | int | float | bool | None
Options = Mapping[str, Option]

EPOCHS, BATCH = 90, 1024  # section 5


@dataclass(frozen=True)
class Scale:
    """How large runs are, and what they are searched over.

    `epochs`, `batch` and `width` are factors of the paper's values, `options` apply to every run,
    `models` replaces networks by smaller ones, and `rates` are learning rates by optimiser. An item
    may keep only some cells, and search some over other rates, both by row and column.
    """

    name: ScaleName
    options: Options
    rates: Mapping[str, tuple[float, ...]]
    epochs: float = 1.0
    batch: float = 1.0
    width: float = 1.0
    seeds: Callable[[Options], int] = lambda _: 1
    l2: tuple[float, ...] = (0.0,)
    dropouts: tuple[float, ...] = (0.0,)
    etas: tuple[float, ...] = (0.9,)
    taus: tuple[float, ...] = (0.3,)
    zetas: tuple[float, ...] = (1.5,)
    models: Mapping[str, str] = field(default_factory=dict)
    keep: Callable[[str, str], bool] = lambda row, column: True
    cell_rates: Callable[[str, str], tuple[float, ...] | None] = lambda row, column: None

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
        own = {name: value for name, value in self.options.items() if name not in run}
        if run["optimizer"] != "kfac":
            own = {name: value for name, value in own.items() if not name.startswith("kfac_")}
        return Configuration.of(full, sized, own, given or {})

    def grid(self, run: Options) -> dict[str, tuple[Option, ...]]:
        """What a run is searched over: all that the paper searches and the run does not fix."""
        own: dict[str, tuple[Option, ...]] = {
            "lr": tuple(self.rates[str(run["optimizer"])]),
            "l2": self.l2,
        }
        if run.get("norm") != "batch":
            own["dropout"] = self.dropouts
        match run.get("method"), run.get("activation"):
            case "tat", None | "leaky_relu":
                own["eta"] = self.etas
            case "tat", _:
                own["tau"] = self.taus
            case "dks", _:
                own["zeta"] = self.zetas
        return {name: values for name, values in own.items() if name not in run}


def _seeds_on_cpu(run: Options) -> int:
    """Three for the networks that most claims are about, trained as usual; one for others."""
    usual = {"model", "norm", "shortcut_weight", "method", "eta", "optimizer"}
    if not run.keys() <= usual or run["optimizer"] not in ("sgd", "kfac"):
        return 1
    match run.get("norm"), run.get("method"), run.get("shortcut_weight"):
        case _, "eoc" | "tat", 0.0:
            return 3
        case ("batch", _, None) | (_, "tat", 0.8) if run["model"] == "resnet50":
            return 3
        case _:
            return 1


# Not the paper's: no more on disk than needed.
_LEAN: Options = {"log_every": 10, "checkpoint_every": 10**9, "keep": 1}

# The paper's K-FAC.
_FIXED_PERIODS: Options = {"kfac_early_inverses": False, "kfac_restarts": False}

FULL = Scale(
    "full",
    # Of the two values of η, 0.95 is out of reach with w = 0.8 (docs/paper.md, errata).
    {**_FIXED_PERIODS, "data": "imagefolder:imagenet", "kfac_preset": "imagenet", "clamp": True},
    {  # appendix D; the last three are ours
        "sgd": (1.0, 0.3, 0.1, 0.03, 0.01),
        "kfac": (0.003, 0.001, 0.0003, 0.0001, 0.00003),
        "lars": (10.0, 3.0, 1.0, 0.3, 0.1),
        "muon": (0.02, 0.005, 0.001),
        "soap": (0.003, 0.001),
        "adamw": (0.003, 0.001, 0.0003),
    },
    l2=(0.00005, 0.00002, 0.0),  # appendix D
    dropouts=(0.2, 0.0),  # where there is no BatchNorm
    etas=(0.9, 0.95),  # section 5
    taus=(0.2, 0.3, 0.5),  # section 5.4
    zetas=(1.5, 10.0, 100.0),
)

CPU = Scale(
    "cpu",
    {
        **_LEAN,
        **_FIXED_PERIODS,
        "data": "fashion-mnist",
        "image_size": 7,
        "train_size": 2560,
        "validation_size": 2000,
        "evaluate_every": 5,
        "threads": 1,
        "kfac_preset": "cifar10",
        "kfac_curvature_period": 5,
        "kfac_inverse_period": 20,
    },
    {
        "sgd": (0.1, 0.03, 0.01, 0.003, 0.001),
        "kfac": (0.01,),
        "lars": (3.0, 1.0, 0.3),
        "muon": (0.01, 0.003, 0.001),
        "soap": (0.003, 0.001),
        "adamw": (0.003, 0.001, 0.0003),
    },
    epochs=1 / 18,
    batch=1 / 16,
    width=1 / 8,
    seeds=_seeds_on_cpu,
)

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
        "kfac_preset": "cifar10",
        "kfac_burn_in": 1,
    },
    dict.fromkeys(("sgd", "kfac", "lars", "muon", "soap", "adamw"), (0.001,)),
    batch=1 / 64,
    width=1 / 16,
    models={
        "resnet50": "resnet18",
        "resnet101": "resnet34",
        "resnet152": "resnet34",
        "resnet200": "resnet34",
        **{f"wide_resnet{depth}": "wide_resnet10" for depth in (16, 100, 154, 202, 250, 304)},
    },
)

# Of some items.
CPU_OFTEN = replace(CPU, options={**CPU.options, "evaluate_every": 1})
FULL_CIFAR = replace(FULL, options={**FULL.options, "data": "cifar10"})

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

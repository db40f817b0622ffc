"""K-FAC's settings, declared once, and what settings of optimisers must be.

This file does not import PyTorch: the command line reads `KFACSettings` to show its help.
"""

# ruff: noqa: RUF009 - `_setting` returns a field

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import inf
from sys import float_info
from typing import Any, Literal, TypedDict, get_args

Loss = Literal["cross_entropy", "binary_cross_entropy", "mse"]
Fisher = Literal["sampled", "exact", "empirical"]
PresetName = Literal["cifar10", "imagenet", "batchnorm"]


PRESETS: dict[PresetName, dict[str, float]] = {
    # Appendix E.2. Also the one for small data and small batches: ImageNet's lets vanilla networks
    # of 50 layers diverge on them, at all but tiny learning rates.
    "cifar10": {"damping": 1e-2, "norm_constraint": 1e-4},
    # Appendix D: batches of 1,024, learning rates from 0.00003 to 0.003, 5 epochs of warm-up.
    "imagenet": {"damping": 1e-3, "norm_constraint": 1e-3},
    # Ours, for networks with BatchNorm, with a learning rate of 0.1. The paper is silent; the
    # example of a ResNet-50 in kfac-jax has the same norm constraint.
    "batchnorm": {"damping": 1e-2, "norm_constraint": 1e-2},
}


def require_number(name: str, value: object, below: float = inf) -> None:
    """Raise a ValueError unless `value` is a number in [0, below)."""
    most = min(below, float_info.max)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < most:
        limit = "finite and >= 0" if below == inf else f"in [0, {below:g})"
        raise ValueError(f"{name} must be {limit}, got {value!r}")


def _require_integer(name: str, value: object, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")


def require_bool(name: str, value: object) -> None:
    """Raise unless `value` is true or false: any other would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def _setting(
    default: Any, check: Callable[..., None], help_: str | None = None, **bounds: float
) -> Any:
    """A field with its check and, if it is an option of the command line, its help text."""
    shown = {} if help_ is None else {"help": help_}
    return field(default=default, metadata={"check": partial(check, **bounds), **shown})


def _choice(default: str, known: tuple[str | None, ...], help_: str | None = None) -> Any:
    def check(name: str, value: object) -> None:
        if value not in known:
            names = ", ".join(filter(None, known))
            raise ValueError(f"{name} must be one of {names}, got {value!r}")

    return _setting(default, check, help_)


@dataclass(frozen=True)
class KFACSettings:
    """The settings of `KFAC`, whose documentation explains them.

    `damping` and `norm_constraint` of None are the preset's. Without a preset they are taken
    literally: `damping` is required, and a `norm_constraint` of None does not limit steps.

    >>> KFACSettings(preset="imagenet", damping=0.1).resolve().norm_constraint
    0.001
    """

    preset: PresetName | None = _choice(
        "cifar10",
        (*PRESETS, None),
        "damping and norm constraint, of the paper's runs or for BatchNorm, where batchnorm is "
        "taken by default.",
    )
    damping: float | None = _setting(
        None, require_number, "added to the curvature, instead of a preset."
    )
    norm_constraint: float | None = _setting(
        None, require_number, "largest squared length of a step, instead of a preset."
    )
    curvature_ema: float = _setting(
        0.99, require_number, "how much of the curvature an update keeps.", below=1.0
    )
    curvature_period: int = _setting(1, _require_integer, "steps between updates of the curvature.")
    inverse_period: int = _setting(50, _require_integer, "steps between updates of its inverse.")
    early_inverses: bool = _setting(True, require_bool, "update the inverse more often at first.")
    restarts: bool = _setting(
        True, require_bool, "drop the momentum of steps that prove far too long."
    )
    burn_in: int = _setting(
        5, _require_integer, "first steps that only measure the curvature.", least=0
    )
    loss: Loss = _choice("cross_entropy", get_args(Loss))
    fisher: Fisher = _choice(
        "sampled",
        get_args(Fisher),
        "labels drawn from the network, all of them, or the data's own.",
    )
    input_stride: int = _setting(
        1, _require_integer, "every n-th example enters the factors of inputs."
    )
    spread_inverses: bool = _setting(
        False, require_bool, "invert a part of the factors in each step."
    )
    eigenbasis: bool = _setting(
        False, require_bool, "measure curvature along axes of factors (EKFAC)."
    )
    damping_period: int | None = _setting(None, _require_integer)
    seed: int = _setting(0, _require_integer, least=0)

    def __post_init__(self) -> None:
        for own in fields(self):
            value = getattr(self, own.name)
            if value is not None or own.default is not None:
                own.metadata["check"](own.name, value)
        if self.preset is None:
            require_number("damping", self.damping)

    def resolve(self) -> KFACSettings:
        """The same settings without a preset: its values are filled in where there are none."""
        if self.preset is None:
            return self
        usual = PRESETS[self.preset].items()
        missing = {name: value for name, value in usual if getattr(self, name) is None}
        return replace(self, preset=None, **missing)


class KFACOptions(TypedDict, total=False):
    """The fields of `KFACSettings` as keyword arguments of `KFAC`, for type checkers."""

    preset: PresetName
    damping: float
    norm_constraint: float | None
    curvature_ema: float
    curvature_period: int
    inverse_period: int
    early_inverses: bool
    restarts: bool
    burn_in: int
    loss: Loss
    fisher: Fisher
    input_stride: int
    spread_inverses: bool
    eigenbasis: bool
    damping_period: int | None
    seed: int

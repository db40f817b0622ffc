"""What K-FAC is asked for, looked at before it does anything."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from torch import Tensor

from .scores import FISHERS, LOSSES, Fisher, Loss


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise an error that says what is out of range."""
    for name, least, bound in (
        ("lr", 0.0, inf),
        ("momentum", 0.0, 1.0),
        ("damping", 0.0, inf),
        ("norm_constraint", 0.0, inf),
        ("l2", 0.0, inf),
        ("curvature_ema", 0.0, 1.0),
    ):
        value = settings[name]
        if value is not None and not least <= value < bound:
            limit = "or more" if bound == inf else f"to below {bound:g}"
            raise ValueError(f"K-FAC was asked for with {name} = {value}; it is {least:g} {limit}.")
    for name, least in (
        ("curvature_period", 1),
        ("inverse_period", 1),
        ("damping_period", 1),
        ("input_stride", 1),
        ("burn_in", 0),
    ):
        value = settings[name]
        if name == "damping_period" and value is None:
            continue
        if not isinstance(value, int) or value < least:
            raise ValueError(
                f"K-FAC was asked for with {name} = {value}; it is a whole number from {least} on."
            )
    if settings["damping"] + settings["l2"] == 0.0:
        raise ValueError(
            "K-FAC was asked for without damping, but the curvature of a batch has directions "
            "without any. Raise the damping."
        )
    for name, known in (("loss", LOSSES), ("fisher", FISHERS)):
        if settings[name] not in known:
            raise ValueError(
                f"K-FAC was asked for with {name} = {settings[name]!r}; it is one of "
                f"{', '.join(known)}."
            )


def check_outputs(
    outputs: Tensor, targets: Tensor | None, divisor: int | None, loss: Loss, fisher: Fisher
) -> None:
    """Raise an error where curvature cannot be taken from `outputs`."""
    found = f"of shape {tuple(outputs.shape)}"
    if not outputs.requires_grad:
        raise ValueError(
            f"K-FAC was asked for the curvature of outputs {found} without a graph. Give it what "
            "the model returned, not detached, and not computed under no_grad."
        )
    if outputs.ndim < (2 if loss == "cross_entropy" else 1) or not outputs.numel():
        raise ValueError(
            f"K-FAC was asked for the curvature of outputs {found}. Give it what {loss} takes, not "
            "the loss: examples first" + (", then classes." if loss == "cross_entropy" else ".")
        )
    if not outputs.is_floating_point():
        raise ValueError(f"K-FAC was asked for the curvature of outputs of {outputs.dtype}.")
    if divisor is not None and divisor < 1:
        raise ValueError(f"K-FAC was given a divisor of {divisor}; it is 1 or more.")
    if fisher == "empirical" and targets is None:
        raise ValueError(
            "K-FAC was asked for the empirical Fisher matrix, which needs the labels of the data. "
            "Call curvature(outputs, targets)."
        )

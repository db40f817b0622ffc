"""demand_kinds: refuses what is of the wrong type, before it fails somewhere deep in a network."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from types import NoneType

from skipless.core.methods import DKS, EOC, TAT

# What each argument of create_model may be, and what to give in its place.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "num_classes": ((Integral,), "a whole number, such as 10"),
    "in_channels": ((Integral,), "a whole number, such as 3"),
    "input_size": ((Integral,), "a whole number for both sides, such as 224, or a pair of them"),
    "width": ((Real, NoneType), "a number, such as 2, or leave it out"),
    "shortcut_weight": ((Real, NoneType), "a number in [-1, 1], such as 0.8, or leave it out"),
    "negative_slope": ((Real, NoneType), "a number, such as 0.25, or leave it out"),
    "method": ((TAT, DKS, EOC, NoneType), "a method, such as TAT(eta=0.9)"),
    "dropout": ((Real,), "a probability below 1, such as 0.2"),
}


def demand_kinds(given: Mapping[str, object]) -> None:
    """Nothing, if all arguments in `given` are of their types; numbers may be those of numpy."""
    for name, value in given.items():
        kinds, advice = _KINDS[name]
        if isinstance(value, bool) or not isinstance(value, kinds):  # Python counts with True, too
            raise ValueError(
                f"{name}={value!r} was asked for, which is of type {type(value).__name__}. "
                f"Give {advice}."
            )

"""Methods by name, with targets as a command line or a file gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from skipless.core.methods import Method

MethodName = Literal["tat", "dks", "eoc"]
METHODS: tuple[MethodName, ...] = ("tat", "dks", "eoc")
TARGETS: dict[MethodName, tuple[str, ...]] = {
    "tat": ("eta", "tau"),
    "dks": ("zeta",),
    "eoc": ("sigma_b",),
}


def method_of(
    name: MethodName, activation: str | None, given: Mapping[str, float | None]
) -> Method:
    """The method with the targets that were given, which must be its own and in use."""
    from skipless.core.activations import activation as look_up
    from skipless.core.methods import DKS, EOC, TAT

    named = {key: value for key, value in given.items() if value is not None}
    for key in named:
        if key not in TARGETS[name]:
            own = " and ".join(map(flag, TARGETS[name]))
            raise ValueError(f"{flag(key)} does not belong to {name}, which has {own}.")
    if activation == "prelu":
        raise ValueError(
            f"--activation prelu was asked for with --method {name}, but its slopes are trained, "
            "where a method solves for them. Leave one of the two out."
        )
    if name == "tat":
        leaky = activation is None or look_up(activation).negative_slope is not None
        used, unused = ("eta", "tau") if leaky else ("tau", "eta")
        if unused in named:
            raise ValueError(
                f"{flag(unused)} has no effect on {activation or 'leaky_relu'}, which TAT shapes "
                f"by {flag(used)}. Use that."
            )
    return {"tat": TAT, "dks": DKS, "eoc": EOC}[name](**named)


def flag(name: str) -> str:
    """The option of the command line for a field: `sigma_b` is `--sigma-b`."""
    return f"--{name.replace('_', '-')}"

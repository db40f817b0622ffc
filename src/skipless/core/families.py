"""The activations that differ from others by one number, known by their names."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from .activations import Activation, celu, elu, leaky_relu, soft_shrink, softplus

_FAMILIES = {family.__name__: family for family in (celu, elu, leaky_relu, soft_shrink, softplus)}


@dataclass(frozen=True)
class Member:
    """One activation of a family, by the name and the value of its parameter."""

    family: str
    label: str
    number: float

    @classmethod
    def named(cls, name: str) -> Member | None:
        """The member of that name, which may be the family's own; None if it is no member's.

        >>> Member.named("softplus") == Member("softplus", "beta", 1.0)
        True
        >>> Member.named("elu(alpha=0.3)")
        Member(family='elu', label='alpha', number=0.3)
        """
        if (found := re.fullmatch(r"(\w+)\((\w+)=([-+.e\d]+)\)", name)) and found[1] in _FAMILIES:
            return cls(found[1], found[2], float(found[3]))
        if name not in _FAMILIES:
            return None
        (parameter,) = inspect.signature(_FAMILIES[name]).parameters.values()
        return cls(name, parameter.name, parameter.default)

    @classmethod
    def of(cls, phi: Activation) -> Member | None:
        """The member that `phi` is; None if it is of no family, or but called like one.

        >>> Member.of(leaky_relu(0.3)) == Member("leaky_relu", "negative_slope", 0.3)
        True
        """
        found = cls.named(phi.name)
        return found if found and phi == found.activation else None

    @property
    def activation(self) -> Activation:
        return _FAMILIES[self.family](self.number)

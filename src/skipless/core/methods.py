"""TAT, DKS and EOC: frozen objects that carry their targets (table 1 of the paper)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real


@dataclass(frozen=True)
class TAT:
    r"""Tailored Activation Transformation (section 4).

    Leaky ReLU, by its negative slope: $Q(q) = q$, $C'(1) = 1$, $\mu^0_f = \eta$.
    Smooth φ, by $\hat\phi(x) = \gamma(\phi(\alpha x+\beta)+\delta)$: $Q(1) = Q'(1) = C'(1) = 1$,
    $\mu^2_f = \tau$.

    >>> TAT(eta=0.95)
    TAT(eta=0.95, tau=0.3)
    """

    eta: float = 0.9
    tau: float = 0.3

    def __post_init__(self) -> None:
        _demand("eta", self.eta, 0.0, 1.0, "0.9 or 0.95")
        _demand("tau", self.tau, 0.0, math.inf, "0.2 to 0.5")


@dataclass(frozen=True)
class DKS:
    r"""Deep Kernel Shaping (section 3): $Q(1) = Q'(1) = 1$, $C(0) = 0$, $\mu^1_f = \zeta$.

    >>> DKS()
    DKS(zeta=1.5)
    """

    zeta: float = 1.5

    def __post_init__(self) -> None:
        _demand("zeta", self.zeta, 1.0, math.inf, "1.5, 10 or 100")


@dataclass(frozen=True)
class EOC:
    r"""Edge of Chaos (section 3): φ as it is, and $\sigma_w$ such that $C'(1) = 1$.

    That is to hold at the q value to which the layers are drawn, with
    $q = \sigma_w^2 E[\phi(\sqrt q z)^2] + \sigma_b^2$.

    >>> EOC(sigma_b=0.2)
    EOC(sigma_b=0.2)
    """

    sigma_b: float = 0.0

    def __post_init__(self) -> None:
        if self.sigma_b != 0.0:
            _demand("sigma_b", self.sigma_b, 0.0, math.inf, "0 to 0.5")


Method = TAT | DKS | EOC


def _demand(name: str, value: object, low: float, high: float, usual: str) -> None:
    """Refuse what is no number between `low` and `high`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"{name} = {value!r} was asked for, but a number is needed; usual: {usual}."
        )
    number = float(value)
    if not low < number < high:
        rule = f"{low:g} < {name} < {high:g}" if high < math.inf else f"{name} > {low:g}"
        raise ValueError(
            f"{name} = {number:g} was asked for, but {rule} is needed; usual: {usual}."
        )

"""TAT, DKS and EOC: frozen objects that carry their targets (table 1 of the paper)."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
        _demand(0.0 < self.eta < 1.0, "eta", self.eta, "0 < eta < 1", "0.9 or 0.95")
        _demand(0.0 < self.tau < math.inf, "tau", self.tau, "tau > 0", "0.2 to 0.5")


@dataclass(frozen=True)
class DKS:
    r"""Deep Kernel Shaping (section 3): $Q(1) = Q'(1) = 1$, $C(0) = 0$, $\mu^1_f = \zeta$.

    >>> DKS()
    DKS(zeta=1.5)
    """

    zeta: float = 1.5

    def __post_init__(self) -> None:
        _demand(1.0 < self.zeta < math.inf, "zeta", self.zeta, "zeta > 1", "1.5, 10 or 100")


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
        _demand(0.0 <= self.sigma_b < math.inf, "sigma_b", self.sigma_b, "sigma_b >= 0", "0 to 1")


Method = TAT | DKS | EOC


def _demand(holds: bool, name: str, value: float, rule: str, usual: str) -> None:
    if not holds:
        raise ValueError(f"{name} = {value:g} was asked for, but {rule} is needed; usual: {usual}.")

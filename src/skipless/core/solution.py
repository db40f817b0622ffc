"""TAT, DKS and EOC with their targets (table 1 of the paper), and `Solution`, their result."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Real
from typing import Self

import numpy.typing as npt

from skipless.tables import table

from .activations import CONSTANTS, Activation, Array, activation, activation_names, transform
from .arguments import finite_number, number, numbers
from .maps import c_map, q_map, require_cosines, tabulated_c_map

_MOST_RESIDUAL = 1e-10
_NEUTRAL = dict(zip(CONSTANTS, (1.0, 0.0, 1.0, 0.0), strict=True))
# Each method has a condition that no other one has.
_METHOD_OF = {"mu0": "TAT", "mu2": "TAT", "mu1": "DKS", "Q(q)/q": "EOC"}


class UnreachableTargetError(ValueError):
    """No transformation of this activation meets the target in this network."""


class ClampedTargetWarning(UserWarning):
    """The target is out of reach, so the nearest reachable one is used instead."""


@dataclass(frozen=True)
class Solution:
    r"""The activation $\hat\phi$ and the initial weights that shape a network, with their proof.

    $\hat\phi(x)$ = `output_scale` · (φ(`input_scale` · x + `input_shift`) + `output_shift`), where
    φ is `base`; a parameter that the method does not use is None. Weights are drawn with standard
    deviation `sigma_w` / √fan-in, biases with `sigma_b`.

    `targets` maps each condition, in the paper's symbols, to its target, and `residuals` to the
    error by a second quadrature, relative for targets above 1. `q` is the q value of every layer:
    1, except for EOC. `note` says how a target was chosen that is not the one given.

    A solution can be called on arrays:

    >>> from skipless import Graph, solve
    >>> trelu = solve(Graph.chain(100))
    >>> abs(trelu(-1.0) / trelu(1.0) + trelu.negative_slope) < 1e-15
    np.True_
    >>> print(replace(trelu, targets={}, note=""))
    leaky_relu
    <BLANKLINE>
    parameter           value
    --------------  ---------
    negative_slope  0.5704395
    output_scale     1.228404
    sigma_w                 1
    sigma_b                 0
    """

    activation: str
    negative_slope: float | None = None
    input_scale: float | None = None
    input_shift: float | None = None
    output_scale: float | None = None
    output_shift: float | None = None
    sigma_w: float = 1.0
    sigma_b: float = 0.0
    q: float = 1.0
    targets: Mapping[str, float] = field(default_factory=dict[str, float])
    residuals: Mapping[str, float] = field(default_factory=dict[str, float])
    custom: Activation | None = field(default=None, repr=False)
    note: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in ("negative_slope", *CONSTANTS):
            if getattr(self, name) is not None:
                finite_number(name, getattr(self, name))
        for name in ("sigma_w", "sigma_b", "q"):
            finite_number(name, getattr(self, name), 0.0)

    def __getstate__(self) -> dict[str, object]:
        # Cached functions cannot be pickled, and are rebuilt on first use.
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __str__(self) -> str:
        methods = [_METHOD_OF[name] for name in self.targets if name in _METHOD_OF]
        parameters = self.parameters | ({"q": self.q} if self.q != 1.0 else {})
        rows = [[name, f"{x:.7g}"] for name, x in parameters.items() if x is not None]
        head = " with ".join([*methods, self.activation])
        parts = [f"{head}: {self.note}" if self.note else head, table(["parameter", "value"], rows)]
        if self.targets:
            rows = [[n, f"{x:.7g}", f"{self.residuals[n]:.1e}"] for n, x in self.targets.items()]
            parts.append(table(["condition", "target", "residual"], rows))
        return "\n\n".join(parts)

    @classmethod
    def of(cls, phi: Activation) -> Self:
        """A solution that leaves `phi` as it is; `dataclasses.replace` fills in the rest."""
        name = "leaky_relu" if phi.negative_slope is not None else phi.name
        known = name in activation_names() and activation(name, phi.negative_slope) is phi
        return cls(name, negative_slope=phi.negative_slope, custom=None if known else phi)

    @property
    def parameters(self) -> dict[str, float | None]:
        """The numbers that define the shaped network; None if the method does not use one."""
        names = ("negative_slope", *CONSTANTS, "sigma_w", "sigma_b")
        return {name: getattr(self, name) for name in names}

    @property
    def base(self) -> Activation:
        """The φ to transform: the activation of that name, or the user's own."""
        return self.custom or activation(self.activation, self.negative_slope)

    @property
    def constants(self) -> dict[str, float]:
        """The four numbers of φ̂, those that the method does not use at their neutral values."""
        given = {name: getattr(self, name) for name in CONSTANTS}
        return _NEUTRAL | {name: x for name, x in given.items() if x is not None}

    @property
    def is_rectifier(self) -> bool:
        """Whether φ̂ is a leaky ReLU times `output_scale`, which frameworks have as `TReLU`."""
        leaky = self.base.negative_slope is not None
        return leaky and {**self.constants, "output_scale": 1.0} == _NEUTRAL

    @cached_property
    def shaped(self) -> Activation:
        """φ̂ with its slope, curvature and kinks."""
        return transform(self.base, **self.constants)

    def __call__(self, x: npt.ArrayLike) -> Array:
        return self.shaped(numbers("x", x))

    def q_map(self, q: float) -> float:
        """Q map of one layer, from pre-activation to pre-activation."""
        return self.sigma_w**2 * q_map(self.shaped, q) + self.sigma_b**2

    @cached_property
    def c_map(self) -> Callable[[npt.ArrayLike], Array]:
        """C map of one layer at the q value of the network; vectorised, fast to call."""
        q = self.q or 1e-12  # for layers whose q tends to 0, the limit
        inner, bias = tabulated_c_map(self.shaped, q), self.sigma_b**2 / q

        def layer_c_map(c: npt.ArrayLike) -> Array:
            cosines = numbers("c", c)
            require_cosines(cosines)
            return (1.0 - bias) * inner(cosines) + bias

        return layer_c_map

    def local_c_map(self, c: float, q: float) -> float:
        """C map of φ̂ alone between two inputs of the same `q`, for `propagate`."""
        return float(c_map(self.shaped, c, q))

    @cached_property
    def largest_residual(self) -> float:
        return max((abs(r) for r in self.residuals.values()), default=0.0)

    def with_residuals(
        self, targets: Mapping[str, float], attained: Mapping[str, float]
    ) -> Solution:
        """This solution with targets and residuals, after checking that all residuals are small."""
        residuals: dict[str, float] = {}
        for name, target in targets.items():
            residuals[name] = (attained[name] - target) / max(1.0, abs(target))
            if not abs(residuals[name]) <= _MOST_RESIDUAL:
                raise ArithmeticError(
                    f"Solver check failed for {self.activation}: {name} is {attained[name]:.12g} "
                    f"by a second quadrature, expected {target:g}. Please report this."
                )
        return replace(self, targets=dict(targets), residuals=residuals)


def clamp_or_raise(
    clamp: bool, name: str, target: float, nearest: float, why: str, then: str = ""
) -> float:
    """The nearest reachable target, with a warning, if `clamp`; else raises with the reason.

    The warning ends with `then`, what activations are with that target.
    """
    if not math.isfinite(nearest):
        raise UnreachableTargetError(
            f"{name} = {target:g} is out of reach: {why}. The nearest target overflows."
        )
    if not clamp:
        raise UnreachableTargetError(
            f"{name} = {target:g} is out of reach: {why}, or take the nearest target, "
            f"{nearest:.4g}, with clamp=True (--clamp)."
        )
    warnings.warn(
        f"{name} = {target:g} is out of reach; using {nearest:.6g}, the nearest reachable target"
        f"{then and f', with which activations are {then}'}.",
        ClampedTargetWarning,
        stacklevel=4,
    )
    return nearest


def require_solution(solution: object) -> None:
    if not isinstance(solution, Solution):
        raise TypeError(
            f"Expected a Solution, which `solve` returns, got {solution!r}. "
            "Use solution = solve(graph, TAT(eta=0.9))."
        )


@dataclass(frozen=True)
class TAT:
    r"""Tailored Activation Transformation (section 4).

    Leaky ReLU, by its negative slope: $Q(q) = q$, $C'(1) = 1$, $\mu^0_f = \eta$.
    Smooth φ, by $\hat\phi(x) = \gamma(\phi(\alpha x+\beta)+\delta)$: $Q(1) = Q'(1) = C'(1) = 1$,
    $\mu^2_f = \tau$.

    Without `eta`, `solve` takes 0.9 if the network can reach it, and otherwise 0.8 of what plain
    ReLU reaches.

    >>> TAT(), TAT(eta=0.95)
    (TAT(), TAT(eta=0.95))
    """

    eta: float | None = None
    tau: float = 0.3

    def __post_init__(self) -> None:
        if self.eta is not None:
            _require_between("eta", self.eta, 0.0, 1.0, "0.9 or 0.95")
        _require_between("tau", self.tau, 0.0, math.inf, "0.2 to 0.5")

    def __repr__(self) -> str:
        own = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
        return f"TAT({', '.join(f'{name}={value!r}' for name, value in own.items())})"


@dataclass(frozen=True)
class DKS:
    r"""Deep Kernel Shaping (section 3): $Q(1) = Q'(1) = 1$, $C(0) = 0$, $\mu^1_f = \zeta$.

    >>> DKS()
    DKS(zeta=1.5)
    """

    zeta: float = 1.5

    def __post_init__(self) -> None:
        _require_between("zeta", self.zeta, 1.0, math.inf, "1.5, 10 or 100")


@dataclass(frozen=True)
class EOC:
    r"""Edge of Chaos (section 3): φ as it is, and $\sigma_w$ such that $C'(1) = 1$.

    This holds at the q value to which the layers converge, where
    $q = \sigma_w^2 E[\phi(\sqrt q z)^2] + \sigma_b^2$.

    With `spread`, `solve` chooses $\sigma_b$ for dynamical isometry (Pennington et al. 2017; Xiao
    et al. 2018): of a network of L activations without shortcuts, with orthogonal weights, the
    squared singular values of the Jacobian have mean 1 and this variance,
    $L\,(E[\phi'^4] / E[\phi'^2]^2 - 1)$.

    >>> EOC(sigma_b=0.2), EOC(spread=0.1)
    (EOC(sigma_b=0.2), EOC(spread=0.1))
    """

    sigma_b: float = 0.0
    spread: float | None = None

    def __post_init__(self) -> None:
        _require_between("sigma_b", self.sigma_b, 0.0, math.inf, "0 to 0.5", closed=True)
        if self.spread is not None:
            _require_between("spread", self.spread, 0.0, math.inf, "0.1")
            if self.sigma_b != 0.0:
                raise ValueError("EOC solves for sigma_b if it has a spread. Give one of them.")

    def __repr__(self) -> str:
        own = f"sigma_b={self.sigma_b!r}" if self.spread is None else f"spread={self.spread!r}"
        return f"EOC({own})"


Method = TAT | DKS | EOC


def _require_between(
    name: str, value: object, low: float, high: float, typical: str, *, closed: bool = False
) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r} (typically {typical})")
    found = number(name, value)
    if not (low < found < high or (closed and found == low)):
        above = f"finite and {'>=' if closed else '>'} {low:g}"
        rule = f"in ({low:g}, {high:g})" if high < math.inf else above
        raise ValueError(f"{name} must be {rule}, got {found:g} (typically {typical})")

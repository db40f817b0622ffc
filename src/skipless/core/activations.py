"""The activation functions φ that the mathematics knows, each with its slope, curvature and kinks.

The functions themselves are in `formulas`, with their kinks and periods as data.

The activations that differ from others by one number, known by their names.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from . import formulas
from .formulas import Array, Formulas, Function

# pyright: reportUnnecessaryIsInstance=false


__all__ = [
    "Activation",
    "Array",
    "Function",
    "UnknownActivationError",
    "activation",
    "activation_names",
    "celu",
    "elu",
    "leaky_relu",
    "native",
    "native_name",
    "soft_shrink",
    "softplus",
    "transform",
]

T = TypeVar("T")

# Where a new activation is tried out: three points that differ in sign and size.
_PROBE = np.array([-1.25, 0.5, 2.0])
# One-sided limits at a kink k are taken from this far away, times max(|k|, 1), by one Taylor step.
# That leaves 1e-20 φ‴, and is far enough to stay on its side of k after an affine map has rounded.
_NEAR = 2.0**-33
# Smaller jumps are rounding, relative to the scale on which φ or φ′ is rounded near the kink.
_VALUE_JUMP = 1e-9
_SLOPE_JUMP = 1e-12


class UnknownActivationError(ValueError):
    """An activation was asked for by a name that is not in the table."""


@dataclass(frozen=True)
class Activation:
    """An activation function φ with φ′, φ″ and the points where φ, φ′ or φ″ is not smooth.

    The three functions map a float64 array to a float64 array of the same shape. φ is continuous;
    `kinks` are the points where φ′ or φ″ jumps, so that integrals can be split there.

    >>> hinge = Activation(
    ...     value=lambda x: np.maximum(x - 1.0, 0.0) ** 2,
    ...     slope=lambda x: 2.0 * np.maximum(x - 1.0, 0.0),
    ...     curvature=lambda x: np.where(x > 1.0, 2.0, 0.0),
    ...     kinks=(1.0,),
    ... )
    >>> hinge.slope_jumps  # only the curvature jumps
    (0.0,)
    >>> bool(hinge(3.0) == 4.0)
    True
    """

    value: Function
    slope: Function
    curvature: Function
    kinks: tuple[float, ...] = ()
    name: str = "custom"
    period: float | None = None
    negative_slope: float | None = None  # of leaky ReLU, which the methods shape by it
    bend: tuple[float, float] = (0.0, 1.0)  # around where, and on what scale, a smooth φ bends

    def __post_init__(self) -> None:
        for part in ("value", "slope", "curvature"):
            self._check_function(part)
        kinks = tuple(sorted({float(k) for k in self.kinks}))
        if not all(map(math.isfinite, kinks)):
            raise ValueError(
                f"Activation {self.name!r}: every kink must be a finite number, found {kinks}. "
                "List only the points where the slope or the curvature jumps."
            )
        object.__setattr__(self, "kinks", kinks)
        left, right, scale = self._limits_at_kinks(self.value, self.slope)
        jumps = ~(np.abs(right - left) <= _VALUE_JUMP * np.maximum(scale, 1.0))
        for k, a, b, jump in zip(kinks, left, right, jumps, strict=True):
            if jump:
                raise ValueError(
                    f"Activation {self.name!r}: φ must be continuous, found φ({k:g}−) = {a:g} and "
                    f"φ({k:g}+) = {b:g}. Kernel shaping needs E[φ′²] < ∞: use a continuous φ."
                )
        if self.period is not None and not 0.0 < self.period < math.inf:
            raise ValueError(
                f"Activation {self.name!r}: the period must be positive and finite, found "
                f"{self.period!r}. Leave it None where φ does not repeat."
            )

    def __call__(self, x: npt.ArrayLike) -> Array:
        """Return φ(x) in float64, in the shape of `x`."""
        points = np.asarray(x, dtype=np.float64)
        return self.value(np.atleast_1d(points)).reshape(points.shape)[()]

    @cached_property
    def slope_jumps(self) -> tuple[float, ...]:
        """φ′(k+) − φ′(k−) for every kink k; zero where only the curvature jumps.

        >>> activation("hard_tanh").slope_jumps
        (1.0, -1.0)
        """
        left, right, scale = self._limits_at_kinks(self.slope, self.curvature)
        jumps = right - left
        return tuple(np.where(np.abs(jumps) <= _SLOPE_JUMP * scale, 0.0, jumps).tolist())

    @property
    def has_slope_jump(self) -> bool:
        """Whether φ′ jumps anywhere, which makes C″(1) infinite."""
        return any(self.slope_jumps)

    @cached_property
    def degree(self) -> float | None:
        """The k for which φ(sx) = s^k φ(x) for all s > 0, or None; 1 for the ReLU family.

        >>> [activation(name).degree for name in ("leaky_relu", "square", "elu")]
        [1.0, 2.0, None]
        """
        near, far, close = (self.value(s * _PROBE) for s in (1.0, 4.0, 4.0**-10))
        scale = far[-1] / near[-1] if near[-1] else math.nan
        scales = scale > 1.0 and np.all(far == scale * near) and np.all(close == near / scale**10)
        return math.log(scale, 4.0) if scales and set(self.kinks) <= {0.0} else None

    def _check_function(self, part: str) -> None:
        try:
            result = np.asarray(getattr(self, part)(_PROBE.copy()))
            found = f"{result.dtype} of shape {result.shape}"
        except (TypeError, ValueError) as error:
            found = f"{type(error).__name__}: {error}"
        if found != f"float64 of shape {_PROBE.shape}":
            raise TypeError(
                f"Activation {self.name!r}: {part} must map a float64 array to another of the same "
                f"shape, {_PROBE.shape} when tried; found {found}. Write it with numpy, for "
                "instance np.where(x > 0, 1.0, 0.0) or np.ones_like(x)."
            )

    def _limits_at_kinks(self, f: Function, f_slope: Function) -> tuple[Array, Array, Array]:
        """Return f(k−) and f(k+) for every kink k, and the scale to which they are rounded."""
        k = np.array(self.kinks, dtype=np.float64)
        size = np.maximum(np.abs(k), 1.0)
        sides = np.array([k - _NEAR * size, k + _NEAR * size])
        slopes = f_slope(sides)
        limits = f(sides) + (k - sides) * slopes
        scale = np.maximum(np.abs(limits), size * np.abs(slopes)).max(axis=0)
        return limits[0], limits[1], scale


def transform(
    activation: Activation,
    input_scale: float = 1.0,
    input_shift: float = 0.0,
    output_scale: float = 1.0,
    output_shift: float = 0.0,
) -> Activation:
    r"""φ̂, the activation between two affine maps, with its derivatives, kinks and period.

    $$\hat\varphi(x) = s_o \left(\varphi(s_i\, x + b_i) + b_o\right)$$

    A sigmoid is a tanh of half its input, moved up:

    >>> half = transform(activation("tanh"), 0.5, 0.0, 0.5, 1.0)
    >>> bool(np.isclose(half(0.3), activation("sigmoid")(0.3), rtol=1e-15))
    True
    """
    numbers = (input_scale, input_shift, output_scale, output_shift)
    if input_scale == 0.0 or not all(map(math.isfinite, numbers)):
        raise ValueError(
            f"transform({activation.name!r}) needs finite numbers and an input_scale that is not "
            f"zero, found (input_scale, input_shift, output_scale, output_shift) = {numbers}. "
            "An input scale of zero would make φ̂ constant."
        )
    inner: Function = lambda x: input_scale * x + input_shift
    slope_scale = output_scale * input_scale
    curvature_scale = slope_scale * input_scale
    return Activation(
        lambda x: output_scale * (activation.value(inner(x)) + output_shift),
        lambda x: slope_scale * activation.slope(inner(x)),
        lambda x: curvature_scale * activation.curvature(inner(x)),
        tuple((k - input_shift) / input_scale for k in activation.kinks),
        f"transformed {activation.name}",
        None if activation.period is None else activation.period / abs(input_scale),
        bend=((activation.bend[0] - input_shift) / input_scale, activation.bend[1] / input_scale),
    )


def activation(name: str | Activation, negative_slope: float | None = None) -> Activation:
    """Return the activation called `name`; the same object for the same name and slope.

    Upper case, spaces, hyphens and underscores make no difference; an `Activation` is its own name.

    >>> activation("Swish") is activation("silu")
    True
    """
    if isinstance(name, Activation):
        found = name
    else:
        if not isinstance(name, str):
            raise TypeError(
                f"An activation was asked for by {name!r}; give its name, such as 'tanh', or an "
                "Activation(value, slope, curvature, kinks) of your own."
            )
        key = _key(name)
        found = _TABLE.get(key) or _TABLE.get(_key(_ALIASES.get(key, "")))
        if found is None:
            raise UnknownActivationError(_unknown(name))
    if negative_slope is None:
        return found
    if found is not _TABLE["leakyrelu"]:
        raise ValueError(
            f"activation({found.name!r}) has no negative_slope, found negative_slope = "
            f"{negative_slope!r}. Leave it out, or ask for 'leaky_relu'."
        )
    return leaky_relu(negative_slope)


def activation_names() -> tuple[str, ...]:
    """Names that `activation` knows, sorted, without the aliases.

    >>> {"relu", "leaky_relu", "tanh"} <= set(activation_names())
    True
    """
    return tuple(sorted(phi.name for phi in _TABLE.values()))


def _key(name: str) -> str:
    return name.lower().translate(str.maketrans("", "", " -_"))


def _unknown(name: str) -> str:
    spellings = {key: phi.name for key, phi in _TABLE.items()} | _ALIASES
    near = [spellings[key] for key in difflib.get_close_matches(_key(name), spellings)]
    if near:
        advice = f"Did you mean {' or '.join(map(repr, dict.fromkeys(near)))}?"
    else:
        advice = f"Known names: {', '.join(activation_names())}."
    return f"No activation is called {name!r}. {advice} Or pass an Activation of your own."


def leaky_relu(negative_slope: float = 0.01) -> Activation:
    r"""Leaky ReLU, $\varphi_\alpha(x) = \max(x, 0) + \alpha \min(x, 0)$.

    >>> leaky_relu(0.25).slope_jumps  # 1 - alpha
    (0.75,)
    """
    alpha = _checked("leaky_relu", "negative_slope", negative_slope)
    name = _named("leaky_relu", "negative_slope", alpha, default=0.01)
    kinks = () if alpha == 1.0 else (0.0,)
    return _member(formulas.leaky_relu, alpha, kinks, name)


def elu(alpha: float = 1.0) -> Activation:
    r"""ELU, $x$ where $x > 0$ and $\alpha\,(e^x - 1)$ elsewhere.

    >>> elu(0.25).slope_jumps  # 1 - alpha
    (0.75,)
    """
    alpha = _checked("elu", "alpha", alpha)
    return _member(formulas.elu, alpha, (0.0,), _named("elu", "alpha", alpha, default=1.0))


def celu(alpha: float = 1.0) -> Activation:
    r"""CELU, $x$ where $x > 0$ and $\alpha\,(e^{x/\alpha} - 1)$ elsewhere.

    >>> celu(0.25).has_slope_jump
    False
    """
    alpha = _checked("celu", "alpha", alpha, above=0.0)
    return _member(formulas.celu, alpha, (0.0,), _named("celu", "alpha", alpha, default=1.0))


def softplus(beta: float = 1.0) -> Activation:
    r"""Softplus, $\log(1 + e^{\beta x}) / \beta$.

    >>> bool(softplus(2.0)(0.0) == np.log(2.0) / 2.0)
    True
    """
    beta = _checked("softplus", "beta", beta, above=0.0)
    return _member(formulas.softplus, beta, (), _named("softplus", "beta", beta, default=1.0))


def soft_shrink(lambd: float = 0.5) -> Activation:
    r"""Soft shrinkage, $x - \mathrm{clip}(x, -\lambda, \lambda)$.

    >>> soft_shrink(2.0)([-3.0, 1.0, 5.0]).tolist()
    [-1.0, 0.0, 3.0]
    """
    lambd = _checked("soft_shrink", "lambd", lambd, above=0.0)
    name = _named("soft_shrink", "lambd", lambd, default=0.5)
    return _member(formulas.soft_shrink, lambd, (-lambd, lambd), name)


def _checked(name: str, label: str, number: float, above: float = -math.inf) -> float:
    if above < number < math.inf:
        return float(number)
    kind = "a finite number" if math.isinf(above) else f"finite and above {above:g}"
    raise ValueError(f"{name}: {label} must be {kind}, found {number!r}. Pass another {label}.")


def _named(name: str, label: str, number: float, default: float) -> str:
    """Return a name of its own for every parameter, since a name stands for one function."""
    return name if number == default else f"{name}({label}={number!r})"


@cache
def _member(
    family: Callable[[float], Formulas], parameter: float, kinks: tuple[float, ...], name: str
) -> Activation:
    slope = parameter if family is formulas.leaky_relu else None
    return Activation(*family(parameter), kinks, name, negative_slope=slope)


_TABLE = {
    _key(phi.name): phi
    for phi in (
        *(
            Activation(*functions, formulas.KINKS.get(name, ()), name, formulas.PERIODS.get(name))
            for name, functions in formulas.TABLE.items()
        ),
        *(family() for family in (celu, elu, leaky_relu, soft_shrink, softplus)),
    )
}
_ALIASES = {
    "swish": "silu",
    "hardsilu": "hard_swish",
    "lrelu": "leaky_relu",
    "relu2": "relu_squared",
    "squaredrelu": "relu_squared",
    "logistic": "sigmoid",
    "gelunew": "gelu_tanh",
    "gelupytorchtanh": "gelu_tanh",
    "sine": "sin",
    "cosine": "cos",
    "arctan": "atan",
    "arcsinh": "asinh",
    "bentid": "bent_identity",
    "linear": "identity",
}


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


def native(phi: Activation, table: Mapping[str, Callable[..., T]]) -> Callable[..., T]:
    """`phi` in a framework's own tensors, from its `table` of functions by name.

    >>> native(leaky_relu(0.5), {"leaky_relu": lambda x, negative_slope: x * negative_slope})(3.0)
    1.5
    """
    name, parameter = native_name(phi, table)
    return partial(table[name], **parameter) if parameter else table[name]


def native_name(phi: Activation, table: Container[str]) -> tuple[str, dict[str, float]]:
    """The name of `phi` in a framework's `table`, with its parameter if it is one of a family."""
    if phi.name in table and phi == activation(phi.name):
        return phi.name, {}
    if (member := Member.of(phi)) is not None:
        return member.family, {member.label: member.number}
    raise ValueError(
        f"{phi.name!r} is known only in numpy. Pass its function of tensors as well: function=... "
        "of convert, ShapedActivation.from_solution(solution, function), or "
        "ShapedActivation(function)."
    )

"""The activation functions φ that the mathematics knows, each with its slope, curvature and kinks.

The formulas are in `formulas`. Some activations form families with one parameter, such as ELU with
its α: `Activation.family` and `Activation.parameter` say which member it is.
"""

import contextlib
import difflib
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from . import arguments, formulas
from .formulas import Array, Formulas, Function

# pyright: reportUnnecessaryIsInstance=false

CONSTANTS = ("input_scale", "input_shift", "output_scale", "output_shift")
T = TypeVar("T")

# A new activation is evaluated here: three points that differ in sign and size.
_PROBE = np.array([-1.25, 0.5, 2.0])
# One-sided limits at a kink k are taken from this far away, times max(|k|, 1), by one Taylor step.
# That leaves 1e-20 φ‴, and is far enough to stay on its side of k after an affine map has rounded.
_NEAR = 2.0**-33
# Smaller jumps are rounding, relative to the scale on which φ or φ′ is rounded near the kink.
_VALUE_JUMP = 1e-9
_SLOPE_JUMP = 1e-12
_MOST = 1e100  # of a parameter: squares of the function's values are numbers, too


class UnknownActivationError(ValueError):
    """No activation has this name."""


@dataclass(frozen=True)
class Activation:
    """An activation function φ with φ′, φ″ and the points where φ, φ′ or φ″ is not smooth.

    The three functions map a float64 array to a float64 array of the same shape. φ must be
    continuous; `kinks` are the points where φ′ or φ″ jumps, so that integrals can be split there.

    Args:
        name: What errors and tables call it.
        period: After which φ repeats itself, if it does.
        bend: Where, and on what scale, a smooth φ bends.
        family: Such as "elu", of which φ is the member with this `parameter`.

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
    bend: tuple[float, float] = (0.0, 1.0)
    family: str | None = field(default=None, kw_only=True)
    parameter: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for part in ("value", "slope", "curvature"):
            self._check_function(part)
        kinks = tuple(sorted(set(map(float, self.kinks))))
        if not all(map(math.isfinite, kinks)):
            raise ValueError(
                f"Activation {self.name!r}: kinks must be finite, got {kinks}. "
                "List the points where the slope or the curvature jumps."
            )
        object.__setattr__(self, "kinks", kinks)
        left, right, scale = self._limits_at_kinks(self.value, self.slope)
        jumps = ~(np.abs(right - left) <= _VALUE_JUMP * np.maximum(scale, 1.0))
        for k, a, b, jump in zip(kinks, left, right, jumps, strict=True):
            if jump:
                raise ValueError(
                    f"Activation {self.name!r}: φ must be continuous, got φ({k:g}−) = {a:g} and "
                    f"φ({k:g}+) = {b:g}. Kernel shaping needs E[φ′²] < ∞."
                )
        if self.period is not None and not 0.0 < self.period < math.inf:
            raise ValueError(
                f"Activation {self.name!r}: period must be positive and finite, or None if "
                f"φ does not repeat, got {self.period!r}."
            )

    def __call__(self, x: npt.ArrayLike) -> Array:
        """Return φ(x) in float64, in the shape of `x`."""
        points = np.asarray(x, dtype=np.float64)
        return self.value(np.atleast_1d(points)).reshape(points.shape)[()]

    def __reduce__(self) -> tuple[object, ...]:
        # Many formulas are closures, which cannot be pickled; a name can.
        with contextlib.suppress(UnknownActivationError):
            if activation(self.name) is self:
                return activation, (self.name,)
        return object.__new__, (type(self),), dict(self.__dict__)

    @property
    def negative_slope(self) -> float | None:
        """The slope below zero of a leaky ReLU, for which TAT and DKS solve; None for others."""
        return self.parameter if self.family == "leaky_relu" else None

    @property
    def family_arguments(self) -> dict[str, float]:
        """The parameter of a member of a family, by its name, such as {"alpha": 0.3}."""
        if self.family is None or self.parameter is None:
            return {}
        return {_FAMILIES[self.family].label: self.parameter}

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
                f"Activation {self.name!r}: {part} must map a float64 array to one of the same "
                f"shape, {_PROBE.shape} here, got {found}. Use numpy, for example "
                "np.where(x > 0, 1.0, 0.0) or np.ones_like(x)."
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
    require_constants(f"transform({activation.name!r})", dict(zip(CONSTANTS, numbers, strict=True)))
    inner: Function = lambda x: input_scale * x + input_shift
    slope_scale = output_scale * input_scale
    curvature_scale = slope_scale * input_scale
    centre, width = activation.bend
    return Activation(
        lambda x: output_scale * (activation.value(inner(x)) + output_shift),
        lambda x: slope_scale * activation.slope(inner(x)),
        lambda x: curvature_scale * activation.curvature(inner(x)),
        tuple((k - input_shift) / input_scale for k in activation.kinks),
        f"transformed {activation.name}",
        activation.period and activation.period / abs(input_scale),
        bend=((centre - input_shift) / input_scale, width / input_scale),
    )


def activation(name: str | Activation, negative_slope: float | None = None) -> Activation:
    """The activation called `name`; the same object for the same name and slope.

    Case, spaces, hyphens and underscores make no difference. An `Activation` is returned as it is.

    Args:
        name: such as "tanh", "Swish", or "elu(alpha=0.3)" for a member of a family.
        negative_slope: of "leaky_relu"; 0.01 if left out.

    >>> activation("Swish") is activation("silu")
    True
    >>> activation("elu(alpha=0.3)") is elu(0.3)
    True
    """
    if not isinstance(name, str | Activation):
        raise TypeError(
            f"activation must be a name such as 'tanh', or an Activation(value, slope, "
            f"curvature, kinks) of your own, got {name!r}."
        )
    found = _find(name) if isinstance(name, str) else name
    if negative_slope is None:
        return found
    if found is not _TABLE["leakyrelu"]:
        raise ValueError(
            f"activation({found.name!r}) has no negative_slope, got {negative_slope!r}. "
            "Leave it out, or use 'leaky_relu'."
        )
    return leaky_relu(negative_slope)


@cache
def activation_names() -> tuple[str, ...]:
    """The names that `activation` knows, sorted, without aliases."""
    return tuple(sorted(phi.name for phi in _TABLE.values()))


def _key(name: str) -> str:
    return name.lower().translate(str.maketrans("", "", " -_"))


def _find(name: str) -> Activation:
    key = _key(name)
    if known := _TABLE.get(_key(_ALIASES.get(key, key))):
        return known
    for family, law in _FAMILIES.items():
        start = f"{family}({law.label}="
        if name.startswith(start) and name.endswith(")"):
            return _member(family, float(name[len(start) : -1]))
    advice = f"Known names: {', '.join(activation_names())}."
    spellings = {key: phi.name for key, phi in _TABLE.items()} | _ALIASES
    if near := difflib.get_close_matches(key, spellings):
        advice = f"Did you mean {' or '.join(dict.fromkeys(repr(spellings[k]) for k in near))}?"
    raise UnknownActivationError(
        f"Unknown activation {name!r}. {advice} Or pass an Activation of your own."
    )


def leaky_relu(negative_slope: float = 0.01) -> Activation:
    r"""Leaky ReLU, $\varphi_\alpha(x) = \max(x, 0) + \alpha \min(x, 0)$.

    >>> leaky_relu(0.25).slope_jumps  # 1 - alpha
    (0.75,)
    """
    return _member("leaky_relu", negative_slope)


def elu(alpha: float = 1.0) -> Activation:
    r"""ELU, $x$ where $x > 0$ and $\alpha\,(e^x - 1)$ elsewhere.

    >>> elu(0.25).slope_jumps  # 1 - alpha
    (0.75,)
    """
    return _member("elu", alpha)


def celu(alpha: float = 1.0) -> Activation:
    r"""CELU, $x$ where $x > 0$ and $\alpha\,(e^{x/\alpha} - 1)$ elsewhere.

    >>> celu(0.25).has_slope_jump
    False
    """
    return _member("celu", alpha)


def softplus(beta: float = 1.0) -> Activation:
    r"""Softplus, $\log(1 + e^{\beta x}) / \beta$.

    >>> bool(softplus(2.0)(0.0) == np.log(2.0) / 2.0)
    True
    """
    return _member("softplus", beta)


def soft_shrink(lambd: float = 0.5) -> Activation:
    r"""Soft shrinkage, $x - \mathrm{clip}(x, -\lambda, \lambda)$.

    >>> soft_shrink(2.0)([-3.0, 1.0, 5.0]).tolist()
    [-1.0, 0.0, 3.0]
    """
    return _member("soft_shrink", lambd)


@dataclass(frozen=True)
class _Family:
    formulas: Callable[[float], Formulas]
    label: str
    default: float
    kinks: Callable[[float], tuple[float, ...]] = lambda _: (0.0,)
    above: float = -math.inf  # what the parameter must exceed


_FAMILIES = {
    "celu": _Family(formulas.celu, "alpha", 1.0, above=0.0),
    "elu": _Family(formulas.elu, "alpha", 1.0),
    "leaky_relu": _Family(
        formulas.leaky_relu, "negative_slope", 0.01, lambda slope: () if slope == 1.0 else (0.0,)
    ),
    "soft_shrink": _Family(
        formulas.soft_shrink, "lambd", 0.5, lambda lambd: (-lambd, lambd), above=0.0
    ),
    "softplus": _Family(formulas.softplus, "beta", 1.0, lambda _: (), above=0.0),
}


def _member(family: str, parameter: float) -> Activation:
    law = _FAMILIES[family]
    if not law.above < arguments.number(law.label, parameter) < math.inf:
        condition = "finite" if math.isinf(law.above) else f"finite and above {law.above:g}"
        raise ValueError(f"{family}: {law.label} must be {condition}, got {parameter!r}.")
    if abs(parameter) > _MOST:
        raise ValueError(
            f"{family}: {law.label} must be at most {_MOST:g} in size, got {parameter!r}."
        )
    return _cached_member(family, float(parameter))


@cache
def _cached_member(family: str, number: float) -> Activation:
    law = _FAMILIES[family]
    name = family if number == law.default else f"{family}({law.label}={number!r})"
    functions, kinks = law.formulas(number), law.kinks(number)
    return Activation(*functions, kinks, name, family=family, parameter=number)


_TABLE = {
    _key(phi.name): phi
    for phi in (
        *(
            Activation(*functions, formulas.KINKS.get(name, ()), name, formulas.PERIODS.get(name))
            for name, functions in formulas.TABLE.items()
        ),
        *(_member(family, law.default) for family, law in _FAMILIES.items()),
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


def native(phi: Activation, table: Mapping[str, Callable[..., T]]) -> Callable[..., T]:
    """`phi` in a framework's own tensors, from its `table` of functions by name.

    >>> native(leaky_relu(0.5), {"leaky_relu": lambda x, negative_slope: x * negative_slope})(3.0)
    1.5
    """
    name, parameter = native_name(phi, table)
    return partial(table[name], **parameter) if parameter else table[name]


def require_phi(function: object) -> None:
    """Raise unless `function` can be φ in tensors."""
    if not callable(function):
        raise TypeError(
            f"phi must be a name, an Activation or a function, got {function!r:.50} (try 'tanh')"
        )


def shaping_constants(
    input_scale: float, input_shift: float, output_scale: float, output_shift: float
) -> dict[str, float]:
    """The constants of φ̂ as floats, by their names."""
    given = zip(CONSTANTS, (input_scale, input_shift, output_scale, output_shift), strict=True)
    return {name: arguments.number(name, value) for name, value in given}


def trelu_scale(negative_slope: float) -> float:
    """The γ of a TReLU (eq. 11)."""
    return math.sqrt(2.0 / (1.0 + arguments.number("negative_slope", negative_slope) ** 2))


def require_constants(owner: str, constants: Mapping[str, float]) -> None:
    """Raise unless φ̂ can have these numbers; with an input scale of 0 it would be constant."""
    for name, number in constants.items():
        with np.errstate(over="ignore"):
            single = float(np.float32(number))  # which a network computes in
        if not math.isfinite(single) or (name == "input_scale" and single == 0.0):
            raise ValueError(
                f"{owner} needs finite constants and a nonzero input_scale, both in float32, as "
                f"`solve` finds them, got {name} = {number:g}"
            )


def native_name(phi: Activation, table: Container[str]) -> tuple[str, dict[str, float]]:
    """The name of `phi` in a framework's `table`, with its parameter if it is one of a family."""
    if phi.name in table and phi == activation(phi.name):
        return phi.name, {}
    if phi.family is not None:
        return phi.family, phi.family_arguments
    raise ValueError(
        f"{phi.name!r} is known only in numpy. Pass its function of tensors as well: function=... "
        "of convert, ShapedActivation.from_solution(solution, function), "
        "ShapedActivation(function), or in JAX shaped(solution, function)."
    )

"""Every φ of `core` as a function of JAX arrays, and shaped: φ̂ between two affine maps.

They keep the type of their input; half precision is computed in float32 and rounded once. JAX
differentiates them any number of times, with the slopes of `core` at kinks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from skipless.core import activations as core
from skipless.core.solution import Solution, require_solution

Function = Callable[[Array], Array]


@dataclass(frozen=True)
class Phi:
    """An activation by its name in `core`, and its parameter if it is one of a family.

    Equal ones are the same to `jax.jit` and to Flax, which compare functions before they compile.
    """

    name: str
    parameter: float | None = None

    def __call__(self, x: ArrayLike) -> Array:
        if self.parameter is None:
            return in_float32(_TABLE[self.name], jnp.asarray(x))
        family, parameter = _FAMILIES[self.name], self.parameter
        return in_float32(lambda wide: family(wide, parameter), jnp.asarray(x))


def function(name: str | core.Activation, negative_slope: float | None = None) -> Phi:
    """φ as a function of arrays, for every activation in `skipless.activation_names()`.

    It keeps the type of its input, and is equal to any other of the same name.

    >>> x = jnp.linspace(-2.0, 2.0, 5)
    >>> bool(jnp.array_equal(function("hard_tanh")(x), jnp.clip(x, -1.0, 1.0)))
    True
    """
    return in_arrays(core.activation(name, negative_slope))


def in_arrays(phi: core.Activation) -> Phi:
    """The same φ, of JAX arrays."""
    name, parameter = core.native_name(phi, _TABLE)
    return Phi(name, *parameter.values())


def in_float32(f: Function, x: Array) -> Array:
    """f(x), computed in float32 and rounded once where `x` is of half precision."""
    if jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits < 32:
        return f(x.astype(jnp.float32)).astype(x.dtype)
    return f(x)


def _clip(x: Array, low: float, high: float) -> Array:
    # Unlike that of jnp.clip, the slope is zero at both ends.
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x))


def _relu(x: Array) -> Array:
    return jnp.where(x <= 0.0, 0.0, x)


def _bent_identity(x: Array) -> Array:
    square = x * x
    return x + 0.5 * square / (1.0 + jnp.sqrt(1.0 + square))


def _elu(x: Array, alpha: float, scale: float = 1.0, width: float = 1.0) -> Array:
    below = jnp.where(x > 0.0, 0.0, x)  # or the exponential, though not taken, would overflow
    return scale * jnp.where(x > 0.0, x, alpha * jnp.expm1(below / width))


_TABLE: dict[str, Function] = {
    "abs": lambda x: x * jnp.sign(x),  # the slope of jnp.abs at zero is 1
    "gaussian": lambda x: jnp.exp(-0.5 * x * x),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "hard_sigmoid": lambda x: _clip(x + 3.0, 0.0, 6.0) / 6.0,
    "hard_swish": lambda x: x * _clip(x + 3.0, 0.0, 6.0) / 6.0,
    "hard_tanh": lambda x: _clip(x, -1.0, 1.0),
    "quick_gelu": lambda x: jax.nn.silu(1.702 * x) / 1.702,
    "relu6": lambda x: _clip(x, 0.0, 6.0),
    "relu_squared": lambda x: jnp.square(_relu(x)),
    "selu": lambda x: _elu(x, 1.6732632423543772848, scale=1.0507009873554804934),
    # (x + √(x² + 4)) / 2, without the cancellation on the negative side:
    "squareplus": lambda x: jnp.exp(jnp.arcsinh(0.5 * x)),
    "tanh_shrink": lambda x: x - jnp.tanh(x),
    "asinh": jnp.arcsinh, "atan": jnp.arctan, "bent_identity": _bent_identity, "cos": jnp.cos,
    "erf": jax.lax.erf, "identity": jnp.positive, "log_sigmoid": jax.nn.log_sigmoid,
    "mish": jax.nn.mish, "relu": _relu, "sigmoid": jax.nn.sigmoid, "silu": jax.nn.silu,
    "sin": jnp.sin, "softsign": jax.nn.soft_sign, "square": jnp.square,
    "tanh": jnp.tanh,
}  # fmt: skip
_FAMILIES: dict[str, Callable[[Array, float], Array]] = {
    "celu": lambda x, alpha: _elu(x, alpha, width=alpha),
    "elu": _elu,
    "leaky_relu": lambda x, slope: jnp.where(x > 0.0, x, slope * x),
    "soft_shrink": lambda x, lambd: jnp.where(jnp.abs(x) <= lambd, 0.0, x - lambd * jnp.sign(x)),
    "softplus": lambda x, beta: jax.nn.softplus(beta * x) / beta,
}


@dataclass(frozen=True)
class Shaped:
    r"""φ̂, an activation between two affine maps, as a function of arrays.

    $$\hat\varphi(x) = s_o \left(\varphi(s_i\, x + b_i) + b_o\right)$$

    The constants are Python numbers, which JAX applies in the precision of `x`. Equal ones are the
    same to `jax.jit`, and they can be pickled if their function can.

    >>> half = Shaped(function("tanh"), 0.5, 0.0, 0.5, 1.0)
    >>> bool(jnp.allclose(half(0.3), function("sigmoid")(0.3)))
    True
    """

    function: Function
    input_scale: float = 1.0
    input_shift: float = 0.0
    output_scale: float = 1.0
    output_shift: float = 0.0

    def __post_init__(self) -> None:
        core.require_phi(self.function)
        for name, number in core.shaping_constants(**self.constants).items():
            object.__setattr__(self, name, number)
        core.require_constants("Shaped", self.constants)

    @property
    def constants(self) -> dict[str, float]:
        """The four numbers that define φ̂, by their names."""
        return {name: getattr(self, name) for name in core.CONSTANTS}

    def __call__(self, x: ArrayLike) -> Array:
        return in_float32(self._apply, jnp.asarray(x))

    def _apply(self, x: Array) -> Array:
        if self.input_scale != 1.0:
            x = x * self.input_scale
        if self.input_shift != 0.0:
            x = x + self.input_shift
        y = self.function(x)
        if self.output_shift != 0.0:
            y = y + self.output_shift
        return y if self.output_scale == 1.0 else y * self.output_scale


def shaped(solution: Solution, function: Function | None = None) -> Shaped:
    """The φ̂ of `solution` as a function of arrays, which can be jitted, mapped and differentiated.

    `function` is φ in JAX arrays; needed if φ is an `Activation` of your own.

    >>> from skipless import DKS, Graph, solve
    >>> tanh = solve(Graph.chain(50), DKS(), "tanh")
    >>> bool(jnp.allclose(shaped(tanh)(0.3), tanh(0.3)))
    True
    """
    require_solution(solution)
    return Shaped(function or in_arrays(solution.base), **solution.constants)

"""Shaped activations: φ̂, a pure function between two affine maps."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from skipless.core.solution import Solution, demand_solution

from .functions import Function, activation, in_float32


@dataclass(frozen=True)
class Shaped:
    r"""φ̂, an activation between two affine maps, as a function of arrays.

    $$\hat\varphi(x) = s_o \left(\varphi(s_i\, x + b_i) + b_o\right)$$

    The constants are Python numbers, which JAX applies in the precision of `x`. Half precision is
    computed in float32 and rounded once, for $s_o$ magnifies every error that is made before it.
    Equal ones are the same to `jax.jit`, and they can be pickled if their function can.

    A sigmoid is a tanh of half its input, moved up:

    >>> half = Shaped(activation("tanh"), 0.5, 0.0, 0.5, 1.0)
    >>> bool(jnp.allclose(half(0.3), activation("sigmoid")(0.3)))
    True
    """

    function: Function
    input_scale: float = 1.0
    input_shift: float = 0.0
    output_scale: float = 1.0
    output_shift: float = 0.0

    def __post_init__(self) -> None:
        for name in _CONSTANTS:
            number = float(getattr(self, name))
            if not math.isfinite(number) or (name == "input_scale" and number == 0.0):
                raise ValueError(
                    f"A shaped activation was given {name} = {number:g}, with which it is no "
                    "function of its input. Give finite constants and an input_scale other than 0, "
                    "as `solve` finds them."
                )
            object.__setattr__(self, name, number)

    @property
    def constants(self) -> dict[str, float]:
        """The four numbers that define φ̂, by their names."""
        return {name: getattr(self, name) for name in _CONSTANTS}

    def __call__(self, x: ArrayLike) -> Array:
        return in_float32(self._between, jnp.asarray(x))

    def _between(self, x: Array) -> Array:
        if self.input_scale != 1.0:
            x = x * self.input_scale
        if self.input_shift != 0.0:
            x = x + self.input_shift
        y = self.function(x)
        if self.output_shift != 0.0:
            y = y + self.output_shift
        return y if self.output_scale == 1.0 else y * self.output_scale


_CONSTANTS = tuple(field.name for field in fields(Shaped))[1:]


def shaped(solution: Solution, function: Function | None = None) -> Shaped:
    """The φ̂ of `solution` as a function of arrays, to be jitted, mapped and differentiated.

    `function` is φ in arrays, to be given if φ is an `Activation` of the user's own.

    >>> from skipless import DKS, Graph, solve
    >>> tanh = solve(Graph.chain(50), DKS(), "tanh")
    >>> bool(jnp.allclose(shaped(tanh)(0.3), tanh(0.3)))
    True
    """
    demand_solution(solution)
    used = {name: v for name in _CONSTANTS if (v := solution.parameters[name]) is not None}
    return Shaped(activation(solution.base) if function is None else function, **used)

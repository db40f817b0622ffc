"""Shaped activations as modules of Flax NNX."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from skipless.core import activations as core
from skipless.core.solution import Solution
from skipless.jax.activations import Shaped, shaped
from skipless.jax.functions import Function, Phi, activation, in_float32


class Constant(nnx.Variable[Array]):
    """A number that `solve` found: part of the model's state, and not of what is trained."""


class ShapedActivation(nnx.Module):
    r"""φ̂, an activation between two affine maps, with its constants in the model's state.

    $$\hat\varphi(x) = s_o \left(\varphi(s_i\, x + b_i) + b_o\right)$$

    φ is a name, an `Activation` of `core`, or a function of arrays. The constants are `Constant`s:
    saved, restored, split and merged with the model, but left alone by whatever takes `nnx.Param`.
    Half precision is computed in float32 and rounded once.

    >>> half = ShapedActivation("tanh", 0.5, 0.0, 0.5, 1.0)
    >>> bool(jnp.allclose(half(0.3), activation("sigmoid")(0.3)))
    True
    >>> sorted(nnx.to_pure_dict(nnx.state(half, Constant)))
    ['input_scale', 'input_shift', 'output_scale', 'output_shift']
    """

    def __init__(
        self,
        phi: str | core.Activation | Function,
        input_scale: float = 1.0,
        input_shift: float = 0.0,
        output_scale: float = 1.0,
        output_shift: float = 0.0,
    ) -> None:
        function = activation(phi) if isinstance(phi, str | core.Activation) else phi
        self._hold(Shaped(function, input_scale, input_shift, output_scale, output_shift))

    @staticmethod
    def from_solution(solution: Solution, function: Function | None = None) -> ShapedActivation:
        """The φ̂ of `solution`, which is a `TReLU` if it has but a slope and an output scale.

        `function` is φ in arrays, to be given if φ is an `Activation` of the user's own.

        >>> from skipless import Graph, solve
        >>> type(ShapedActivation.from_solution(solve(Graph.chain(50)))).__name__
        'TReLU'
        """
        phi = shaped(solution, function)
        moved = phi.constants | {"output_scale": 1.0} != Shaped(phi.function).constants
        if moved or (slope := _slope(phi.function)) is None:
            return ShapedActivation(phi.function, **phi.constants)
        return TReLU(slope, phi.output_scale)

    @property
    def constants(self) -> dict[str, float]:
        """The numbers that define φ̂, by the names of their variables."""
        held = {name: value for name, value in vars(self).items() if isinstance(value, Constant)}
        return {name: float(value[...]) for name, value in held.items()}

    def __call__(self, x: ArrayLike) -> Array:
        array = jnp.asarray(x)
        floating = jnp.issubdtype(array.dtype, jnp.floating)
        return in_float32(self._between, array if floating else array.astype(float))

    def _between(self, x: Array) -> Array:
        x = self._function(x * self._number("input_scale", x) + self._number("input_shift", x))
        return (x + self._number("output_shift", x)) * self._number("output_scale", x)

    def _function(self, x: Array) -> Array:
        if "negative_slope" in vars(self):  # which may have come with another state
            return jnp.where(x > 0.0, x, self._number("negative_slope", x) * x)
        return self.function(x)

    def _number(self, name: str, x: Array) -> Array:
        return getattr(self, name)[...].astype(x.dtype)

    def _hold(self, phi: Shaped, names: Sequence[str] | None = None) -> None:
        self.function = phi.function
        slope = _slope(phi.function)
        numbers = phi.constants if slope is None else {"negative_slope": slope} | phi.constants
        for name in numbers if names is None else names:
            setattr(self, name, Constant(jnp.asarray(numbers[name], float)))


class TReLU(ShapedActivation):
    r"""γ φ_α(x), the leaky ReLU of slope α below zero whose Q map is the identity (eq. 11).

    $$\gamma\,(\max(x, 0) + \alpha \min(x, 0)), \qquad \gamma = \sqrt{2 / (1 + \alpha^2)}$$

    >>> round(TReLU(negative_slope=0.0).constants["output_scale"], 5)  # ReLU needs γ² = 2
    1.41421
    """

    def __init__(self, negative_slope: float, output_scale: float | None = None) -> None:
        if output_scale is None:
            output_scale = math.sqrt(2.0 / (1.0 + negative_slope**2))
        phi = activation(core.leaky_relu(negative_slope))
        self._hold(Shaped(phi, output_scale=output_scale), ("negative_slope", "output_scale"))

    def _between(self, x: Array) -> Array:
        return self._function(x) * self._number("output_scale", x)


def _slope(function: Function) -> float | None:
    if isinstance(function, Phi) and function.name == "leaky_relu":
        return function.parameter
    return None

"""Shaped activations: every φ of `core` in Keras tensors, φ̂ as a layer, TReLU, weighted sums.

Functions run on any backend and keep the type of their input. Where a backend's own function is
less exact than float64, or is not differentiated exactly at a kink, it is written out here.

Constants of layers are Python floats in their configuration: a `.keras` file holds them with all
their digits, and no policy rounds them.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from functools import partial, reduce, wraps
from typing import Any, Self

import keras
from keras import ops

from skipless.core import activations as core
from skipless.core.arguments import finite_number
from skipless.core.solution import Solution, require_solution

# To a type checker, operations of Keras may return None.
# pyright: reportOptionalOperand=false, reportOperatorIssue=false, reportGeneralTypeIssues=false


Array = Any  # Keras has no type for the tensors of all its backends
Function = Callable[[Array], Array]
Config = dict[str, object]


def is_half(x: Array) -> bool:
    return keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16")


def in_float32(f: Function, x: Array) -> Array:
    """f(x), computed in float32 and rounded once where `x` is of half precision."""
    if is_half(x):
        return ops.cast(f(ops.cast(x, "float32")), x.dtype)
    return f(x)


def _widened(name: str, f: Callable[..., Array]) -> Callable[..., Array]:
    """`f` in float32, under the `name` by which Keras saves it."""

    def phi(x: Array, **parameter: float) -> Array:
        return in_float32(partial(f, **parameter), x)

    phi.__name__ = name
    return phi


def _in_full(narrowing: Function, native: str) -> Function:
    """An operation of Keras which, on JAX and PyTorch, would turn float64 into float32."""

    @wraps(narrowing)
    def exact(x: Array) -> Array:
        library = {"jax": "jax.numpy", "torch": "torch"}.get(keras.backend.backend())
        wide = keras.backend.standardize_dtype(x.dtype) == "float64"
        if library is None or not wide or isinstance(x, keras.KerasTensor):
            return narrowing(x)
        return getattr(sys.modules[library], native)(x)

    return exact


def identity(x: Array) -> Array:
    return x


def hard_tanh(x: Array) -> Array:
    return ops.clip(x, -1.0, 1.0)


def _bent_identity(x: Array) -> Array:
    square = x * x
    return x + 0.5 * square / (1.0 + ops.sqrt(1.0 + square))


def _elu(x: Array, alpha: float = 1.0, width: float = 1.0) -> Array:
    below = ops.where(x > 0.0, ops.zeros_like(x), x)
    return ops.where(x > 0.0, x, alpha * ops.expm1(below / width))


def _gelu_tanh(x: Array) -> Array:
    rate = 2.0 * math.sqrt(2.0 / math.pi)
    return x * ops.sigmoid(rate * x * (1.0 + 0.044715 * x * x))


def _softplus(x: Array, beta: float = 1.0) -> Array:
    # PyTorch's softplus is x itself above 20, where the rest is still 2e-9; this one is exact.
    return -ops.log_sigmoid(-beta * x) / beta


def _squareplus(x: Array) -> Array:
    # (x + √(x² + 4)) / 2, on the negative side as 2 / (√(x² + 4) + |x|).
    s = ops.sqrt(x * x + 4.0) + ops.abs(x)
    return ops.where(x > 0.0, 0.5 * s, 2.0 / s)


_tanh = _in_full(ops.tanh, "tanh")
_WIDENED: dict[str, Callable[..., Array]] = {
    "celu": lambda x, alpha=1.0: _elu(x, alpha, width=alpha),
    "gaussian": lambda x: ops.exp(-0.5 * x * x),
    # TensorFlow would take √2, and the slope of leaky ReLU, in float32.
    "gelu": lambda x: 0.5 * x * (1.0 + ops.erf(math.sqrt(0.5) * x)),
    "hard_sigmoid": lambda x: ops.relu6(x + 3.0) / 6.0,
    "hard_swish": lambda x: x * ops.relu6(x + 3.0) / 6.0,
    "leaky_relu": lambda x, negative_slope=0.01: ops.where(x > 0.0, x, negative_slope * x),
    "mish": lambda x: x * _tanh(_softplus(x)),
    "quick_gelu": lambda x: x * ops.sigmoid(1.702 * x),
    "relu_squared": lambda x: ops.square(ops.relu(x)),
    # Klambauer et al. 2017, eq. 14, as in `core`.
    "selu": lambda x: 1.0507009873554804934 * _elu(x, 1.6732632423543772848),
    "soft_shrink": lambda x, lambd=0.5: x - ops.clip(x, -lambd, lambd),
    "softsign": lambda x: x / (1.0 + ops.abs(x)),
    "tanh_shrink": lambda x: x - _tanh(x),
    "bent_identity": _bent_identity, "elu": _elu, "gelu_tanh": _gelu_tanh, "softplus": _softplus,
    "squareplus": _squareplus,
}  # fmt: skip
_TABLE: dict[str, Callable[..., Array]] = {
    "abs": ops.abs, "asinh": _in_full(ops.arcsinh, "asinh"), "atan": _in_full(ops.arctan, "atan"),
    "cos": _in_full(ops.cos, "cos"), "erf": ops.erf, "hard_tanh": hard_tanh,
    "identity": identity, "log_sigmoid": ops.log_sigmoid, "relu": ops.relu, "relu6": ops.relu6,
    "sigmoid": ops.sigmoid, "silu": ops.silu, "sin": _in_full(ops.sin, "sin"),
    "square": ops.square, "tanh": _tanh,
    **{name: _widened(name, f) for name, f in _WIDENED.items()},
}  # fmt: skip


def function(name: str | core.Activation, negative_slope: float | None = None) -> Function:
    """φ as a function of tensors, for every activation that `core` knows.

    It keeps the type of its input and can be differentiated, compiled, and given to a layer.

    >>> y = function("hard_tanh")(ops.array([-2.0, 0.5, 2.0]))
    >>> ops.convert_to_numpy(y).tolist()
    [-1.0, 0.5, 1.0]
    """
    return core.native(core.activation(name, negative_slope), _TABLE)


@keras.saving.register_keras_serializable(package="skipless")
class ShapedActivation(keras.layers.Layer):
    r"""φ̂, an activation between two affine maps.

    $$\hat\varphi(x) = s_o \left(\varphi(s_i\, x + b_i) + b_o\right)$$

    φ is a name, an `Activation` of `core`, or a function of tensors; to be loaded from a file, such
    a function is registered, or given as one of the `custom_objects`. Half precision is computed in
    float32.

    >>> half = ShapedActivation("tanh", 0.5, 0.0, 0.5, 1.0)
    >>> x = ops.array([-2.0, 0.0, 1.0])
    >>> bool(ops.max(ops.abs(half(x) - ops.sigmoid(x))) < 1e-6)
    True
    """

    def __init__(
        self,
        phi: str | core.Activation | Function,
        input_scale: float = 1.0,
        input_shift: float = 0.0,
        output_scale: float = 1.0,
        output_shift: float = 0.0,
        *,
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.supports_masking = True
        self._named = isinstance(phi, str | core.Activation)
        if isinstance(phi, str | core.Activation):
            known = core.activation(phi)
            self.function, self.phi = function(known), known.name
            self.negative_slope = known.negative_slope
        else:
            core.require_phi(phi)  # a file may say anything
            self.function, self.phi = phi, getattr(phi, "__name__", repr(phi))
            self.negative_slope = None
        numbers = core.shaping_constants(input_scale, input_shift, output_scale, output_shift)
        self.input_scale, self.input_shift = numbers["input_scale"], numbers["input_shift"]
        self.output_scale, self.output_shift = numbers["output_scale"], numbers["output_shift"]
        core.require_constants(f"{type(self).__name__} of {self.phi}", self.constants)
        self.built = True

    @staticmethod
    def from_solution(
        solution: Solution,
        function: Function | None = None,
        *,
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
    ) -> ShapedActivation:
        """The φ̂ of `solution`: a `TReLU` if it has only a slope and an output scale.

        `function` is φ in tensors, needed if φ is an `Activation` of your own.

        >>> from skipless import DKS, Graph, solve
        >>> ShapedActivation.from_solution(solve(Graph.chain(50), DKS(), "tanh")).phi
        'tanh'
        """
        require_solution(solution)
        slope = solution.base.negative_slope
        if function is None and slope is not None and solution.is_rectifier:
            return TReLU(slope, solution.constants["output_scale"], name=name, dtype=dtype)
        phi = function or solution.base
        return ShapedActivation(phi, *solution.constants.values(), name=name, dtype=dtype)

    @property
    def constants(self) -> dict[str, float]:
        """The numbers that define φ̂."""
        slope = {} if self.negative_slope is None else {"negative_slope": self.negative_slope}
        return slope | {name: getattr(self, name) for name in core.CONSTANTS}

    def call(self, x: Array) -> Array:
        return in_float32(self._apply, x)

    def _apply(self, x: Array) -> Array:
        if self.input_scale != 1.0:
            x = x * self.input_scale
        if self.input_shift != 0.0:
            x = x + self.input_shift
        y = self.function(x)
        if self.output_shift != 0.0:
            y = y + self.output_shift
        return y if self.output_scale == 1.0 else y * self.output_scale

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> Config:
        phi = self.phi if self._named else keras.saving.serialize_keras_object(self.function)
        numbers = {name: getattr(self, name) for name in core.CONSTANTS}
        return {**super().get_config(), "phi": phi, **numbers}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        if isinstance(phi := config.get("phi"), dict):
            config = config | {"phi": keras.saving.deserialize_keras_object(phi)}
        return super().from_config(config)

    def __repr__(self) -> str:
        numbers = ", ".join(f"{n}={v:.6g}" for n, v in self.constants.items())
        return f"{type(self).__name__}({self.phi.split('(')[0]}, {numbers})"


@keras.saving.register_keras_serializable(package="skipless")
class TReLU(ShapedActivation):
    r"""γ φ_α(x), the leaky ReLU of slope α below zero whose Q map is the identity (eq. 11).

    $$\gamma\,(\max(x, 0) + \alpha \min(x, 0)), \qquad \gamma = \sqrt{2 / (1 + \alpha^2)}$$

    >>> TReLU(negative_slope=0.0)  # ReLU needs γ² = 2
    TReLU(leaky_relu, negative_slope=0, output_scale=1.41421)
    """

    def __init__(
        self,
        negative_slope: float,
        output_scale: float | None = None,
        *,
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        trainable: bool = True,
    ) -> None:
        if output_scale is None:
            output_scale = core.trelu_scale(negative_slope)
        phi = core.leaky_relu(negative_slope)
        super().__init__(
            phi, output_scale=output_scale, name=name, dtype=dtype, trainable=trainable
        )

    @property
    def constants(self) -> dict[str, float]:
        used = ("negative_slope", "output_scale")
        return {name: v for name, v in super().constants.items() if name in used}

    def _apply(self, x: Array) -> Array:
        low = self.constants["negative_slope"] * self.output_scale
        return ops.where(x > 0.0, self.output_scale * x, low * x)

    def get_config(self) -> Config:
        own = {"output_scale": self.output_scale, "negative_slope": self.negative_slope}
        return keras.layers.Layer.get_config(self) | own


@keras.saving.register_keras_serializable(package="skipless")
class WeightedAdd(keras.layers.Layer):
    """A weighted sum of tensors of one shape, as at the end of a shortcut.

    >>> x, y = ops.array([1.0, 0.0]), ops.array([0.0, 1.0])
    >>> [round(n, 6) for n in ops.convert_to_numpy(WeightedAdd([0.8, 0.6])([x, y])).tolist()]
    [0.8, 0.6]
    """

    def __init__(
        self,
        weights: list[float] | tuple[float, ...],
        *,
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.supports_masking = True
        if not isinstance(weights, list | tuple) or not weights:
            raise ValueError(
                "WeightedAdd needs a finite weight for each term, such as [0.8, 0.6], got "
                f"{weights!r}"
            )
        # Keras calls a layer's variables `weights`.
        self.sum_weights = tuple(finite_number("every weight", weight) for weight in weights)
        self.built = True

    def call(self, inputs: list[Array]) -> Array:
        terms = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if len(terms) != len(self.sum_weights):
            raise ValueError(
                f"{self.name} needs one tensor for each of its {len(self.sum_weights)} weights, "
                f"got {len(terms)}"
            )
        if is_half(terms[0]):
            wide = self.call([ops.cast(term, "float32") for term in terms])
            return ops.cast(wide, terms[0].dtype)
        scaled = (x if w == 1.0 else x * w for x, w in zip(terms, self.sum_weights, strict=True))
        return reduce(operator.add, scaled)

    def get_config(self) -> Config:
        return {**super().get_config(), "weights": list(self.sum_weights)}

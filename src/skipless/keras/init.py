r"""Initial weights under which q values stay 1, as Keras initialisers (appendix D).

They are those of `skipless.torch.init`. Numbers are drawn in float32, or float64 for weights of
that type. As in Keras, an initialiser with an integer `seed` draws the same numbers each time; one
with a `SeedGenerator` draws new ones.
"""

# To a type checker, operations of Keras may return None.
# pyright: reportOptionalOperand=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import numpy as np
from keras import layers, ops

from skipless.core.arguments import finite_number, require_flag, whole_number
from skipless.core.trace import UnsupportedModelError

from .activations import Array, Config
from .operations import AFFINE, CONVOLUTIONS, DEPTHWISE, NORMS, SEPARABLE, TRANSPOSED, is_stock

Seed = int | keras.random.SeedGenerator | None
Distribution = Literal["orthogonal", "gaussian"]


class _Initializer(keras.initializers.Initializer):
    """An initialiser with a gain and a seed, which draws random matrices."""

    distribution: Distribution = "orthogonal"
    delta = True  # or all taps of a kernel are drawn
    groups = 1
    _options: Sequence[str] = ()  # attributes that a subclass adds to its configuration

    def __init__(self, gain: float = 1.0, *, seed: Seed = None) -> None:
        self.gain = finite_number("gain", gain)
        if not isinstance(seed, int | keras.random.SeedGenerator | dict | None):
            raise TypeError(f"seed must be an integer or a SeedGenerator, got {seed!r}")
        self._given = seed
        if isinstance(seed, dict):  # from a configuration
            seed = keras.saving.deserialize_keras_object(seed)
        self.seed = seed if seed is not None else keras.random.SeedGenerator()

    def get_config(self) -> Config:
        seed = keras.saving.serialize_keras_object(self._given)
        own = {name: getattr(self, name) for name in self._options}
        return {"gain": self.gain, "seed": seed, **own}

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Array:
        if len(shape) < 2 or self.groups < 1 or shape[-1] % self.groups:
            raise ValueError(
                "A kernel must be of shape (*kernel, in, out), with out a multiple of "
                f"groups={self.groups}, got {tuple(shape)}"
            )
        dtype = keras.backend.standardize_dtype(dtype or keras.config.floatx())
        return ops.cast(self._draw(shape, dtype), dtype)

    def _draw(self, shape: Sequence[int], dtype: str) -> Array:
        raise NotImplementedError

    def _normal(self, shape: Sequence[int], dtype: str) -> Array:
        wide = "float64" if dtype == "float64" else "float32"
        return keras.random.normal(tuple(shape), dtype=wide, seed=self.seed)

    def _matrices(self, count: int, m: int, k: int, dtype: str) -> Array:
        """`count` independent matrices of k inputs and m outputs, (k, count, m)."""
        if self.distribution == "gaussian":
            matrices = self.gain / math.sqrt(max(k, 1)) * self._normal((count, k, m), dtype)
            return ops.transpose(matrices, (1, 0, 2))
        q, r = ops.qr(self._normal((count, max(m, k), min(m, k)), dtype))
        # Q is uniform only beside an R of positive diagonal; LAPACK's has other signs.
        diagonal = ops.expand_dims(ops.diagonal(r, axis1=1, axis2=2), 1)
        q = q * ops.where(diagonal < 0.0, -ops.ones_like(diagonal), ops.ones_like(diagonal))
        q = ops.transpose(q, (1, 0, 2) if k >= m else (2, 0, 1))
        return self.gain * max(math.sqrt(m / max(k, 1)), 1.0) * q


@keras.saving.register_keras_serializable(package="skipless")
class GaussianFanIn(_Initializer):
    r"""Weights from $\mathcal N(0, \mathrm{gain}^2 / k)$ (eq. 1), for $k$ of them an output.

    >>> weight = ops.convert_to_numpy(GaussianFanIn(seed=0)((400, 500)))
    >>> round(400 * float((weight**2).mean()), 1)
    1.0
    """

    def _draw(self, shape: Sequence[int], dtype: str) -> Array:
        return self.gain / math.sqrt(max(math.prod(shape[:-1]), 1)) * self._normal(shape, dtype)


@keras.saving.register_keras_serializable(package="skipless")
class ScaledUniformOrthogonal(_Initializer):
    """Weights of the distribution of `skipless.torch.scaled_uniform_orthogonal_`.

    A convolution is a matrix from all that its kernel covers, one for each group: right for kernels
    of size 1 and patches that do not overlap. Others need `DeltaOrthogonal`.

    >>> weight = ScaledUniformOrthogonal(seed=0)((3, 6))
    >>> bool(ops.max(ops.abs(weight @ ops.transpose(weight) - 2.0 * ops.eye(3))) < 1e-5)
    True
    """

    _options = ("groups",)

    def __init__(self, gain: float = 1.0, *, groups: int = 1, seed: Seed = None) -> None:
        super().__init__(gain, seed=seed)
        self.groups = whole_number("groups", groups, 1)

    def _draw(self, shape: Sequence[int], dtype: str) -> Array:
        inputs, outputs = math.prod(shape[:-1]), shape[-1] // self.groups
        return ops.reshape(self._matrices(self.groups, outputs, inputs, dtype), tuple(shape))


@keras.saving.register_keras_serializable(package="skipless")
class DeltaOrthogonal(ScaledUniformOrthogonal):
    """Weights of a convolution: `ScaledUniformOrthogonal` at one tap, for each group, else 0.

    `skipless.torch.delta_` says why. The tap is the centre of the kernel, of an even one the first
    of the two middle taps, which under `padding="same"` reads the location itself. With a dilation
    d no tap of an even kernel does, and the first d // 2 locations see only padding. `tap` names
    another, by its index along each axis of the kernel: a causal convolution needs its last,
    (size - 1,).

    >>> weight = ops.convert_to_numpy(DeltaOrthogonal(seed=0)((3, 3, 4, 4)))
    >>> int((weight != 0.0).sum()), bool((weight[1, 1] != 0.0).all())
    (16, True)
    """

    _options = ("groups", "tap")

    def __init__(
        self,
        gain: float = 1.0,
        *,
        groups: int = 1,
        tap: Sequence[int] | None = None,
        seed: Seed = None,
    ) -> None:
        super().__init__(gain, groups=groups, seed=seed)
        self.tap = None if tap is None else tuple(tap)
        for index in self.tap or ():
            whole_number("every index in tap", index, -64)

    def _draw(self, shape: Sequence[int], dtype: str) -> Array:
        if not self.delta:
            return super()._draw(shape, dtype)
        *kernel, inputs, outputs = shape
        tap = _centre(kernel) if self.tap is None else self.tap
        inside = [0 <= i < size for i, size in zip(tap, kernel, strict=False)]
        if len(tap) != len(kernel) or not all(inside):
            raise ValueError(
                f"tap must be an index along each axis of the kernel {tuple(kernel)}, from 0 on, "
                f"got {tap}"
            )
        return _at_taps(super()._draw((inputs, outputs), dtype), kernel, tap)


@keras.saving.register_keras_serializable(package="skipless")
class DepthwiseDelta(_Initializer):
    """Weights of a depthwise convolution, zero but for the centre: a sign for each channel.

    With a depth multiplier above 1, each channel has a vector of random direction.

    >>> weight = ops.convert_to_numpy(DepthwiseDelta(seed=0)((3, 3, 8, 1)))
    >>> sorted({round(abs(float(w)), 6) for w in weight.flat}), int(abs(weight[1, 1]).sum().round())
    ([0.0, 1.0], 8)
    """

    def _draw(self, shape: Sequence[int], dtype: str) -> Array:
        *kernel, channels, multiplier = shape
        taps = 1 if self.delta else math.prod(kernel)
        rows = self._matrices(channels, multiplier, taps, dtype)
        if not self.delta:
            return ops.reshape(rows, tuple(shape))
        return _at_taps(rows[0], kernel, _centre(kernel))


@keras.saving.register_keras_serializable(package="skipless")
class TransposedDelta(_Initializer):
    """Weights of a transposed convolution, as of `skipless.torch.transposed_delta_`.

    The taps begin at (size - stride) // 2. Under `padding="same"` every location is reached; under
    `"valid"` there is a border of zeros if the kernel is larger than the stride.

    >>> up = keras.layers.Conv1DTranspose(8, 4, 2, "same", kernel_initializer=TransposedDelta(2))
    >>> bool(ops.all(ops.abs(ops.mean(up(ops.ones((1, 5, 8))) ** 2, axis=-1) - 1.0) < 1e-5))
    True
    """

    _options = ("strides",)

    def __init__(
        self, strides: int | Sequence[int] = 1, gain: float = 1.0, *, seed: Seed = None
    ) -> None:
        super().__init__(gain, seed=seed)
        for stride in strides if isinstance(strides, tuple | list) else (strides,):
            whole_number("strides", stride, 1)
        self.strides = strides if isinstance(strides, int) else tuple(strides)

    def _draw(self, shape: Sequence[int], dtype: str) -> Array:
        *kernel, outputs, inputs = shape
        each = self.strides
        strides = (each,) * len(kernel) if isinstance(each, int) else each
        _require_no_gaps("A transposed convolution", kernel, strides, (1,) * len(kernel))
        if not self.delta:
            return self._draw_all(shape, strides, dtype)
        matrix = self._matrices(1, outputs, inputs, dtype)[:, 0]
        first = [(size - step) // 2 for size, step in zip(kernel, strides, strict=True)]
        return _at_taps(ops.transpose(matrix), kernel, first, strides)

    def _draw_all(self, shape: Sequence[int], strides: Sequence[int], dtype: str) -> Array:
        """All taps; those that reach one location are a matrix."""
        whole = np.zeros(tuple(shape))
        for first in itertools.product(*map(range, strides)):
            part = whole[tuple(slice(i, None, s) for i, s in zip(first, strides, strict=True))]
            *taps, outputs, inputs = part.shape
            matrix = self._matrices(1, outputs, inputs * math.prod(taps), dtype)[:, 0]
            values = np.asarray(ops.convert_to_numpy(matrix)).reshape(*taps, inputs, outputs)
            part[...] = np.swapaxes(values, -1, -2)
        return ops.convert_to_tensor(whole, dtype)


def _require_no_gaps(
    where: str, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> None:
    axes = zip(kernel, strides, dilation, strict=False)
    gaps = any(size < step or math.gcd(step, space) > 1 for size, step, space in axes)
    if gaps or len(strides) != len(kernel):
        raise UnsupportedModelError(
            f"{where} with kernel {tuple(kernel)}, strides {tuple(strides)} and dilation "
            f"{tuple(dilation)} cannot reach all locations and would leave q = 0 at others. Use a "
            "kernel at least as large as the stride, and no dilation."
        )


def _centre(kernel: Sequence[int]) -> Sequence[int]:
    return tuple((size - 1) // 2 for size in kernel)


def _at_taps(
    matrix: Array, kernel: Sequence[int], first: Sequence[int], number: Sequence[int] | None = None
) -> Array:
    """`matrix` at so many taps, one unless given, of each axis of a kernel, from `first` on."""
    number = number or (1,) * len(kernel)
    block = ops.reshape(matrix, (*(1 for _ in kernel), *matrix.shape))
    block = ops.tile(block, (*number, 1, 1))
    around = [(i, size - i - n) for size, i, n in zip(kernel, first, number, strict=True)]
    return ops.pad(block, (*around, (0, 0), (0, 0)))


def initializers_for(
    layer: Any,
    path: str,
    new_seed: Callable[[], int],
    sigma_w: float = 1.0,
    sigma_b: float = 0.0,
    distribution: Distribution = "orthogonal",
    delta: bool = True,
) -> dict[str, keras.initializers.Initializer]:
    """The initialisers of a layer with weights, by their names in its configuration."""
    if distribution not in ("orthogonal", "gaussian"):
        raise ValueError(f"distribution must be 'orthogonal' or 'gaussian', got {distribution!r}")
    seed = new_seed()
    found: dict[str, Any] = {"bias_initializer": keras.initializers.Zeros()}
    if sigma_b:
        found["bias_initializer"] = keras.initializers.RandomNormal(stddev=sigma_b, seed=new_seed())
    if isinstance(layer, (*DEPTHWISE, *SEPARABLE)):
        found["depthwise_initializer"] = DepthwiseDelta(sigma_w, seed=seed)
        if isinstance(layer, SEPARABLE):
            found["pointwise_initializer"] = ScaledUniformOrthogonal(sigma_w, seed=new_seed())
    elif isinstance(layer, TRANSPOSED):
        of_path = f"{path}, a transposed convolution,"
        _require_no_gaps(of_path, layer.kernel_size, layer.strides, layer.dilation_rate)
        found["kernel_initializer"] = TransposedDelta(layer.strides, sigma_w, seed=seed)
    elif isinstance(layer, CONVOLUTIONS):
        # Causal padding is all in front, so that the last tap reads the location itself.
        causal = layer.padding == "causal"
        tap = [size - 1 for size in layer.kernel_size] if causal else None
        kernel = DeltaOrthogonal(sigma_w, groups=layer.groups, tap=tap, seed=seed)
        found["kernel_initializer"] = kernel
    elif isinstance(layer, layers.Dense):
        found["kernel_initializer"] = ScaledUniformOrthogonal(sigma_w, seed=seed)
    else:
        raise UnsupportedModelError(
            f"{path} ({type(layer).__name__}) has weights of a shape that the theory's "
            "distributions are not made for. Write it as a Dense layer."
        )
    for initializer in found.values():
        if isinstance(initializer, _Initializer):
            initializer.distribution, initializer.delta = distribution, delta
    return found


def initialize_(
    model: keras.Model,
    *,
    sigma_w: float = 1.0,
    sigma_b: float = 0.0,
    distribution: Distribution = "orthogonal",
    delta: bool = True,
    seed: int | None = None,
) -> list[str]:
    """Paths of the variables left as they were, after drawing all others in place.

    Dense layers and convolutions of all kinds are drawn, and normalisation layers reset, as by
    `skipless.torch.initialize_`. All else, such as embeddings, `EinsumDense` or the slope of
    `PReLU`, is left alone. A `seed` makes the weights reproducible.

    >>> dense, slope = keras.layers.Dense(4), keras.layers.PReLU(name="slope")
    >>> initialize_(keras.Sequential([keras.Input((4,)), dense, slope], name="net"), seed=0)
    ['net/slope/alpha']
    >>> bool(ops.max(ops.abs(dense.kernel @ ops.transpose(dense.kernel) - ops.eye(4))) < 1e-5)
    True
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a keras.Model, got {model!r}")
    finite_number("sigma_w", sigma_w, 0.0)
    finite_number("sigma_b", sigma_b, 0.0)
    require_flag("delta", delta)
    if not model.built:
        raise ValueError(
            f"{model.name} has no weights yet. Begin it with keras.Input, or build it."
        )
    new_seed = seed_source(seed)
    settings = (sigma_w, sigma_b, distribution, delta)
    drawn: list[tuple[keras.Variable, Any]] = []
    every: list[Any] = list(model._flatten_layers(include_self=False))  # pyright: ignore
    for layer in every:
        if is_stock(layer, AFFINE) and not isinstance(layer, layers.EinsumDense):
            chosen = initializers_for(layer, layer.name, new_seed, *settings)
            drawn += [(_variable(layer, name), chosen[name]) for name in chosen]
        elif is_stock(layer, NORMS):
            drawn += [(v, _FRESH[v.name]) for v in layer.variables if v.name in _FRESH]
    for variable, initializer in drawn:  # after all were found to be possible
        if variable is not None:
            variable.assign(initializer(tuple(variable.shape), dtype=variable.dtype))
    known = {id(variable) for variable, _ in drawn}
    return [v.path for v in model.trainable_variables if id(v) not in known]


_FRESH = {
    **dict.fromkeys(("gamma", "scale", "moving_variance"), keras.initializers.Ones()),
    **dict.fromkeys(("beta", "moving_mean"), keras.initializers.Zeros()),
}


def seed_source(seed: int | None) -> Callable[[], int]:
    """A function that returns another seed each time, reproducibly if `seed` is given."""
    if seed is not None:
        whole_number("seed", seed, 0)
    source = random.Random(seed)
    return lambda: source.randrange(2**31)


def _variable(layer: Any, initializer: str) -> Any:
    """The variable that an initialiser, by its name in the configuration, is for."""
    part = initializer.removesuffix("_initializer")
    if part == "bias":
        return layer.bias if layer.use_bias else None
    return getattr(layer, f"{part}_kernel" if isinstance(layer, SEPARABLE) else "kernel")

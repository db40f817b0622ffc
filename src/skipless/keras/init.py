r"""Initial weights under which q values stay 1, as Keras initialisers (appendix D).

They are those of `skipless.torch.init`. In Keras' layout outputs come last: (in, out) for `Dense`,
(*kernel, in / groups, out) for convolutions. That of a depthwise one is (*kernel, channels,
multiplier), of a transposed one (*kernel, out, in), and these have initialisers of their own.

Numbers are drawn in float32, or float64 for weights of that type. As in Keras, an initialiser with
an integer `seed` draws the same numbers each time; one with a `SeedGenerator` draws new ones.
"""

# To a type checker, operations of Keras may return None.
# pyright: reportOptionalOperand=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import numpy as np
from keras import layers, ops

from skipless.core.trace import UnsupportedModelError

from .activations import Array, Config
from .operations import AFFINE, CONVOLUTIONS, DEPTHWISE, NORMS, SEPARABLE, TRANSPOSED, is_stock

Seed = int | keras.random.SeedGenerator | None
Distribution = Literal["orthogonal", "gaussian"]


class _Initializer(keras.initializers.Initializer):
    """An initialiser with a gain and a seed, which draws random matrices."""

    distribution: Distribution = "orthogonal"

    def __init__(self, gain: float = 1.0, *, seed: Seed = None) -> None:
        self.gain = float(gain)
        self._given = seed
        if isinstance(seed, dict):  # from a configuration
            seed = keras.saving.deserialize_keras_object(seed)
        self.seed = seed if seed is not None else keras.random.SeedGenerator()

    def get_config(self) -> Config:
        return {"gain": self.gain, "seed": keras.saving.serialize_keras_object(self._given)}

    def _normal(self, shape: Sequence[int], dtype: str) -> Array:
        wide = "float64" if dtype == "float64" else "float32"
        return keras.random.normal(tuple(shape), dtype=wide, seed=self.seed)

    def _matrices(self, count: int, m: int, k: int, dtype: str) -> Array:
        """`count` independent matrices of k inputs and m outputs, (count, k, m)."""
        if self.distribution == "gaussian":
            return self.gain / math.sqrt(max(k, 1)) * self._normal((count, k, m), dtype)
        q, r = ops.qr(self._normal((count, max(m, k), min(m, k)), dtype))
        # Q is uniform only beside an R of positive diagonal; LAPACK's has other signs.
        diagonal = ops.expand_dims(ops.diagonal(r, axis1=1, axis2=2), 1)
        q = q * ops.where(diagonal < 0.0, -ops.ones_like(diagonal), ops.ones_like(diagonal))
        q = q if k >= m else ops.transpose(q, (0, 2, 1))
        return self.gain * max(math.sqrt(m / max(k, 1)), 1.0) * q


@keras.saving.register_keras_serializable(package="skipless")
class GaussianFanIn(_Initializer):
    r"""Independent weights from $\mathcal N(0, \mathrm{gain}^2 / k)$ (eq. 1).

    $k$ is the number of weights that each output has: in / groups · kernel size.

    >>> weight = ops.convert_to_numpy(GaussianFanIn(seed=0)((400, 500)))
    >>> round(400 * float((weight**2).mean()), 1)
    1.0
    """

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Array:
        dtype = _require_kernel(shape, dtype)
        scale = self.gain / math.sqrt(max(math.prod(shape[:-1]), 1))
        return ops.cast(scale * self._normal(shape, dtype), dtype)


@keras.saving.register_keras_serializable(package="skipless")
class ScaledUniformOrthogonal(_Initializer):
    r"""Weights of the scale-corrected uniform orthogonal distribution (SUO).

    `skipless.torch.scaled_uniform_orthogonal_` defines it. A convolution is a matrix from all that
    its kernel covers, one for each group. This is right for kernels of size 1 and patches that do
    not overlap; others need `DeltaOrthogonal`.

    >>> weight = ScaledUniformOrthogonal(seed=0)((3, 6))
    >>> bool(ops.max(ops.abs(weight @ ops.transpose(weight) - 2.0 * ops.eye(3))) < 1e-5)
    True
    """

    def __init__(self, gain: float = 1.0, *, groups: int = 1, seed: Seed = None) -> None:
        super().__init__(gain, seed=seed)
        self.groups = groups

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Array:
        dtype = _require_kernel(shape, dtype, self.groups)
        inputs, outputs = math.prod(shape[:-1]), shape[-1] // self.groups
        blocks = self._matrices(self.groups, outputs, inputs, dtype)
        return ops.cast(ops.reshape(_side_by_side(blocks), tuple(shape)), dtype)

    def get_config(self) -> Config:
        return super().get_config() | {"groups": self.groups}


@keras.saving.register_keras_serializable(package="skipless")
class DeltaOrthogonal(ScaledUniformOrthogonal):
    """Weights of a convolution, zero but for one SUO matrix at the centre of the kernel.

    `skipless.torch.delta_` says why. Each group has a matrix of its own. A kernel without spatial
    axes, as that of `Dense`, is all centre.

    An even kernel has no centre; of its two middle taps the first, (size - 1) // 2, is taken, which
    reads the location itself under `padding="same"`. With a dilation d no tap of an even kernel
    does: the nearest is taken, and the first d // 2 locations see only padding. `tap` names
    another, by its index along each axis of the kernel: a causal convolution needs its last,
    (size - 1,).

    >>> weight = ops.convert_to_numpy(DeltaOrthogonal(seed=0)((3, 3, 4, 4)))
    >>> int((weight != 0.0).sum()), bool((weight[1, 1] != 0.0).all())
    (16, True)
    """

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

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Array:
        dtype = _require_kernel(shape, dtype, self.groups)
        *kernel, inputs, outputs = shape
        place = _centre(kernel) if self.tap is None else _require_tap(self.tap, kernel)
        blocks = self._matrices(self.groups, outputs // self.groups, inputs, dtype)
        return ops.cast(_at_taps(_side_by_side(blocks), kernel, [(i, 1) for i in place]), dtype)

    def get_config(self) -> Config:
        return super().get_config() | {"tap": self.tap}


@keras.saving.register_keras_serializable(package="skipless")
class DepthwiseDelta(_Initializer):
    """Weights of a depthwise convolution, zero but for the centre: a sign for each channel.

    With a depth multiplier above 1, the outputs of each channel are a vector of random direction.

    >>> weight = ops.convert_to_numpy(DepthwiseDelta(seed=0)((3, 3, 8, 1)))
    >>> sorted({round(abs(float(w)), 6) for w in weight.flat}), int(abs(weight[1, 1]).sum().round())
    ([0.0, 1.0], 8)
    """

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Array:
        dtype = _require_kernel(shape, dtype)
        *kernel, channels, multiplier = shape
        rows = self._matrices(channels, multiplier, 1, dtype)
        taps = [(i, 1) for i in _centre(kernel)]
        return ops.cast(_at_taps(rows[:, 0, :], kernel, taps), dtype)


@keras.saving.register_keras_serializable(package="skipless")
class TransposedDelta(_Initializer):
    """Weights of a transposed convolution, zero but for one SUO matrix at the middle taps.

    As under `skipless.torch.transposed_delta_`, as many taps as the stride hold it, here from
    (size - stride) // 2 on. Under `padding="same"` every location is reached; under `"valid"` there
    is a border of zeros if the kernel is larger than the stride.

    >>> up = keras.layers.Conv1DTranspose(8, 4, 2, "same", kernel_initializer=TransposedDelta(2))
    >>> bool(ops.all(ops.abs(ops.mean(up(ops.ones((1, 5, 8))) ** 2, axis=-1) - 1.0) < 1e-5))
    True
    """

    def __init__(
        self, strides: int | Sequence[int] = 1, gain: float = 1.0, *, seed: Seed = None
    ) -> None:
        super().__init__(gain, seed=seed)
        self.strides = strides if isinstance(strides, int) else tuple(strides)

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Array:
        dtype = _require_kernel(shape, dtype)
        *kernel, outputs, inputs = shape
        each = self.strides
        strides = (each,) * len(kernel) if isinstance(each, int) else each
        if len(strides) != len(kernel) or any(s > k for s, k in zip(strides, kernel, strict=True)):
            raise ValueError(
                f"A transposed convolution with kernel {tuple(kernel)} and strides {strides} "
                "cannot reach all locations and would leave q = 0 at others. Use a kernel at least "
                "as large as the stride."
            )
        matrix = self._matrices(1, outputs, inputs, dtype)[0]
        taps = [((size - s) // 2, s) for size, s in zip(kernel, strides, strict=True)]
        return ops.cast(_at_taps(ops.transpose(matrix), kernel, taps), dtype)

    def get_config(self) -> Config:
        return super().get_config() | {"strides": self.strides}


def _require_kernel(shape: Sequence[int], dtype: str | None, groups: int = 1) -> str:
    if len(shape) < 2 or groups < 1 or shape[-1] % groups:
        raise ValueError(
            "A kernel must be of shape (*kernel, in, out), with out a multiple of "
            f"groups={groups}, got {tuple(shape)}"
        )
    return keras.backend.standardize_dtype(dtype or keras.config.floatx())


def _centre(kernel: Sequence[int]) -> tuple[int, ...]:
    return tuple((size - 1) // 2 for size in kernel)


def _require_tap(tap: tuple[int, ...], kernel: Sequence[int]) -> tuple[int, ...]:
    inside = [0 <= i < size for i, size in zip(tap, kernel, strict=False)]
    if len(tap) != len(kernel) or not all(inside):
        raise ValueError(
            f"tap must be an index along each axis of the kernel {tuple(kernel)}, from 0 on, got "
            f"{tap}"
        )
    return tap


def _side_by_side(blocks: Array) -> Array:
    """The matrices of groups, (groups, k, m), as one of shape (k, groups · m)."""
    groups, inputs, outputs = blocks.shape
    return ops.reshape(ops.transpose(blocks, (1, 0, 2)), (inputs, groups * outputs))


def _at_taps(matrix: Array, kernel: Sequence[int], taps: Sequence[tuple[int, int]]) -> Array:
    """`matrix` at those taps (the first, and how many) of each axis of a kernel, else zeros."""
    block = ops.reshape(matrix, (*(1 for _ in kernel), *matrix.shape))
    block = ops.tile(block, (*(number for _, number in taps), 1, 1))
    around = [
        (first, size - first - number) for size, (first, number) in zip(kernel, taps, strict=True)
    ]
    return ops.pad(block, (*around, (0, 0), (0, 0))) if kernel else block


class _AllDepthwiseTaps(_Initializer):
    """All taps of a depthwise convolution, a matrix for each channel."""

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Array:
        dtype = _require_kernel(shape, dtype)
        *kernel, channels, multiplier = shape
        blocks = self._matrices(channels, multiplier, math.prod(kernel), dtype)
        return ops.cast(ops.reshape(ops.transpose(blocks, (1, 0, 2)), tuple(shape)), dtype)


class _AllTransposedTaps(_Initializer):
    """All taps of a transposed convolution; those that reach one location are a matrix."""

    strides: tuple[int, ...] = ()

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Array:
        dtype = _require_kernel(shape, dtype)
        whole = np.zeros(tuple(shape))
        for first in itertools.product(*map(range, self.strides)):
            part = whole[tuple(slice(i, None, s) for i, s in zip(first, self.strides, strict=True))]
            *taps, outputs, inputs = part.shape
            matrix = self._matrices(1, outputs, inputs * math.prod(taps), dtype)[0]
            values = np.asarray(ops.convert_to_numpy(matrix)).reshape(*taps, inputs, outputs)
            part[...] = np.swapaxes(values, -1, -2)
        return ops.convert_to_tensor(whole, dtype)


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
        bias = keras.initializers.RandomNormal(stddev=sigma_b, seed=new_seed())
        found["bias_initializer"] = bias
    depthwise = DepthwiseDelta if delta else _AllDepthwiseTaps
    if isinstance(layer, SEPARABLE):
        found["depthwise_initializer"] = depthwise(sigma_w, seed=seed)
        found["pointwise_initializer"] = ScaledUniformOrthogonal(sigma_w, seed=new_seed())
    elif isinstance(layer, DEPTHWISE):
        found["depthwise_initializer"] = depthwise(sigma_w, seed=seed)
    elif isinstance(layer, TRANSPOSED):
        _require_no_gaps(layer, path)
        kernel = TransposedDelta(layer.strides, sigma_w, seed=seed)
        if not delta:
            kernel = _AllTransposedTaps(sigma_w, seed=seed)
            kernel.strides = tuple(layer.strides)
        found["kernel_initializer"] = kernel
    elif isinstance(layer, CONVOLUTIONS):
        kernel = ScaledUniformOrthogonal(sigma_w, groups=layer.groups, seed=seed)
        if delta:
            # Causal padding is all in front, so that the last tap reads the location itself.
            causal = layer.padding == "causal"
            tap = tuple(size - 1 for size in layer.kernel_size) if causal else None
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
            initializer.distribution = distribution
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
    r"""Paths of the variables left as they were, after drawing all others in place.

    Dense layers and convolutions of all kinds get weights with gain `sigma_w`, and biases from
    $\mathcal N(0, \sigma_b^2)$. Normalisation layers are reset: scale 1, shift 0, no running
    statistics. All else, such as embeddings, `EinsumDense` or the slope of `PReLU`, is left alone.
    The arguments are those of `skipless.torch.initialize_`; a `seed` makes the weights
    reproducible.

    >>> dense, slope = keras.layers.Dense(4), keras.layers.PReLU(name="slope")
    >>> initialize_(keras.Sequential([keras.Input((4,)), dense, slope], name="net"), seed=0)
    ['net/slope/alpha']
    >>> bool(ops.max(ops.abs(dense.kernel @ ops.transpose(dense.kernel) - ops.eye(4))) < 1e-5)
    True
    """
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
    "gamma": keras.initializers.Ones(),
    "scale": keras.initializers.Ones(),
    "beta": keras.initializers.Zeros(),
    "moving_mean": keras.initializers.Zeros(),
    "moving_variance": keras.initializers.Ones(),
}


def seed_source(seed: int | None) -> Callable[[], int]:
    """A function that returns another seed each time, reproducibly if `seed` is given."""
    source = random.Random(seed)
    return lambda: source.randrange(2**31)


def _variable(layer: Any, initializer: str) -> Any:
    """The variable that an initialiser, by its name in the configuration, is for."""
    part = initializer.removesuffix("_initializer")
    if part == "bias":
        return layer.bias if layer.use_bias else None
    return getattr(layer, f"{part}_kernel" if isinstance(layer, SEPARABLE) else "kernel")


def _require_no_gaps(layer: Any, path: str) -> None:
    axes = zip(layer.kernel_size, layer.strides, layer.dilation_rate, strict=True)
    if any(size < step or math.gcd(step, space) > 1 for size, step, space in axes):
        raise UnsupportedModelError(
            f"{path}, a transposed convolution with kernel {layer.kernel_size}, strides "
            f"{layer.strides} and dilation {layer.dilation_rate}, cannot reach all locations and "
            "would leave q = 0 at others. Use a kernel at least as large as the stride, and no "
            "dilation."
        )

r"""Initial weights under which q values stay 1, as Keras initialisers (appendix D).

A layer with $k$ inputs and $m$ outputs takes a vector with $q = \|x\|^2 / k = 1$ to one with
$\|W x\|^2 / m = 1$, on average over $W$, if every weight has mean square $1/k$. In Keras' layout
outputs come last: (in, out) for `Dense`, (*kernel, in / groups, out) for convolutions. That of a
depthwise one is (*kernel, channels, multiplier), of a transposed one (*kernel, out, in), and these
have initialisers of their own.

Numbers are drawn in float32, or float64 for weights of that type. As in Keras, an initialiser with
an integer for a `seed` draws the same numbers each time; one with a `SeedGenerator` goes on.
"""

# To a type checker, operations of Keras may return None.
# pyright: reportOptionalOperand=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math
from collections.abc import Sequence

import keras
from keras import ops

from .activations import Array, Config

Seed = int | keras.random.SeedGenerator | None


class _Drawn(keras.initializers.Initializer):
    """An initialiser with a gain and a seed, which draws random matrices."""

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

    def _orthogonal(self, count: int, m: int, k: int, dtype: str) -> Array:
        """`count` independent matrices of k inputs and m outputs, (count, k, m)."""
        q, r = ops.qr(self._normal((count, max(m, k), min(m, k)), dtype))
        # Q is uniform only beside an R of positive diagonal; LAPACK's has other signs.
        diagonal = ops.expand_dims(ops.diagonal(r, axis1=1, axis2=2), 1)
        q = q * ops.where(diagonal < 0.0, -ops.ones_like(diagonal), ops.ones_like(diagonal))
        q = q if k >= m else ops.transpose(q, (0, 2, 1))
        return self.gain * max(math.sqrt(m / max(k, 1)), 1.0) * q


@keras.saving.register_keras_serializable(package="skipless")
class GaussianFanIn(_Drawn):
    r"""Independent weights from $\mathcal N(0, \mathrm{gain}^2 / k)$ (eq. 1).

    $k$ is the number of weights that each output has: in / groups · kernel size.

    >>> weight = ops.convert_to_numpy(GaussianFanIn(seed=0)((400, 500)))
    >>> round(400 * float((weight**2).mean()), 1)
    1.0
    """

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Array:
        dtype = _demand_kernel(shape, dtype)
        scale = self.gain / math.sqrt(max(math.prod(shape[:-1]), 1))
        return ops.cast(scale * self._normal(shape, dtype), dtype)


@keras.saving.register_keras_serializable(package="skipless")
class ScaledUniformOrthogonal(_Drawn):
    r"""Weights of the scale-corrected uniform orthogonal distribution (SUO).

    For $m$ outputs and $k$ inputs this is a uniformly distributed matrix with orthonormal rows, or
    columns if $m > k$, times $\max\{\sqrt{m/k}, 1\}$ and `gain`, so that for $m \ge k$ every input
    keeps its q value exactly, and for $m < k$ on average. A convolution is a matrix from all that
    its kernel covers, one for each group. This is right for kernels of size 1 and patches that do
    not overlap; for others the theory asks for `DeltaOrthogonal`.

    >>> weight = ScaledUniformOrthogonal(seed=0)((3, 6))
    >>> bool(ops.max(ops.abs(weight @ ops.transpose(weight) - 2.0 * ops.eye(3))) < 1e-5)
    True
    """

    def __init__(self, gain: float = 1.0, *, groups: int = 1, seed: Seed = None) -> None:
        super().__init__(gain, seed=seed)
        self.groups = groups

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Array:
        dtype = _demand_kernel(shape, dtype, self.groups)
        inputs, outputs = math.prod(shape[:-1]), shape[-1] // self.groups
        blocks = self._orthogonal(self.groups, outputs, inputs, dtype)
        return ops.cast(ops.reshape(_side_by_side(blocks), tuple(shape)), dtype)

    def get_config(self) -> Config:
        return super().get_config() | {"groups": self.groups}


@keras.saving.register_keras_serializable(package="skipless")
class DeltaOrthogonal(ScaledUniformOrthogonal):
    """Weights of a convolution, zero but for one SUO matrix at the centre of the kernel.

    This Delta initialisation lets the network act on each location by itself, which is what makes q
    and c values of convolutional networks computable (section 2.3). Each group has a matrix of its
    own. A kernel without spatial axes, as that of `Dense`, is all centre.

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
        dtype = _demand_kernel(shape, dtype, self.groups)
        *kernel, inputs, outputs = shape
        place = _centre(kernel) if self.tap is None else _demand_tap(self.tap, kernel)
        blocks = self._orthogonal(self.groups, outputs // self.groups, inputs, dtype)
        return ops.cast(_at_taps(_side_by_side(blocks), kernel, [(i, 1) for i in place]), dtype)

    def get_config(self) -> Config:
        return super().get_config() | {"tap": self.tap}


@keras.saving.register_keras_serializable(package="skipless")
class DepthwiseDelta(_Drawn):
    """Weights of a depthwise convolution, zero but for the centre: a sign for each channel.

    The q and c values are kept, but nothing is added up, so an activation that follows does not see
    normal numbers as its maps assume. With a depth multiplier above 1, the outputs of each channel
    are a vector of random direction.

    >>> weight = ops.convert_to_numpy(DepthwiseDelta(seed=0)((3, 3, 8, 1)))
    >>> sorted({round(abs(float(w)), 6) for w in weight.flat}), int(abs(weight[1, 1]).sum().round())
    ([0.0, 1.0], 8)
    """

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> Array:
        dtype = _demand_kernel(shape, dtype)
        *kernel, channels, multiplier = shape
        rows = self._orthogonal(channels, multiplier, 1, dtype)
        taps = [(i, 1) for i in _centre(kernel)]
        return ops.cast(_at_taps(rows[:, 0, :], kernel, taps), dtype)


@keras.saving.register_keras_serializable(package="skipless")
class TransposedDelta(_Drawn):
    """Weights of a transposed convolution, zero but for one SUO matrix at the middle taps.

    A single tap would reach only every `strides`-th location of the output. So as many taps as the
    stride, from (size - stride) // 2 on, hold the same matrix: the layer copies each location that
    often and then acts on it as under `DeltaOrthogonal`. Under `padding="same"` every location is
    reached; under `"valid"` there is a border of zeros if the kernel is larger than the stride.

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
        dtype = _demand_kernel(shape, dtype)
        *kernel, outputs, inputs = shape
        each = self.strides
        strides = (each,) * len(kernel) if isinstance(each, int) else each
        if len(strides) != len(kernel) or any(s > k for s, k in zip(strides, kernel, strict=True)):
            raise ValueError(
                f"A transposed convolution with kernel {tuple(kernel)} and strides {strides} "
                "cannot reach all locations and would leave q = 0 at others. Use a kernel at least "
                "as large as the stride."
            )
        matrix = self._orthogonal(1, outputs, inputs, dtype)[0]
        taps = [((size - s) // 2, s) for size, s in zip(kernel, strides, strict=True)]
        return ops.cast(_at_taps(ops.transpose(matrix), kernel, taps), dtype)

    def get_config(self) -> Config:
        return super().get_config() | {"strides": self.strides}


def _demand_kernel(shape: Sequence[int], dtype: str | None, groups: int = 1) -> str:
    if len(shape) < 2 or groups < 1 or shape[-1] % groups:
        raise ValueError(
            "A kernel is of shape (*kernel, in, out), the last number a multiple of "
            f"groups={groups}; not of shape {tuple(shape)}."
        )
    return keras.backend.standardize_dtype(dtype or keras.config.floatx())


def _centre(kernel: Sequence[int]) -> tuple[int, ...]:
    return tuple((size - 1) // 2 for size in kernel)


def _demand_tap(tap: tuple[int, ...], kernel: Sequence[int]) -> tuple[int, ...]:
    inside = [0 <= i < size for i, size in zip(tap, kernel, strict=False)]
    if len(tap) != len(kernel) or not all(inside):
        raise ValueError(
            f"A kernel of size {tuple(kernel)} was asked for with weights at tap {tap}, which it "
            "does not have. Name one by its index along each axis, from 0 on."
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

r"""Inputs of q value 1, as the theory assumes them.

The q value of an input is $q = \|x\|^2 / d$; what the theory predicts, it predicts for $q = 1$
(section 2.2). A convolutional network under Delta initialisation acts on every location by itself,
so that each location's vector of channels is to have q value 1: `normalize_per_location`. A
multilayer perceptron takes all numbers of a sample as one vector: `normalize_per_sample`.
"""

from __future__ import annotations

import keras
from keras import ops

from .activations import Array, Config, is_half


def normalize_per_location(x: Array, *, axis: int = -1, homogeneous: float | None = 1.0) -> Array:
    r"""`x` with a constant channel appended, scaled to q value 1 at every location.

    $$x \mapsto \sqrt{\frac{d + 1}{\|x\|^2 + h^2}}\; (x_1, \ldots, x_d, h)$$

    Scaling alone would forget the length of $x$, which is the brightness of a pixel. The
    homogeneous coordinate $h$ keeps it, and gives a location of zeros a direction. **The output has
    one channel more than the input.** With `homogeneous=None` it has not; then locations of zeros
    stay zero. `axis` is that of the channels.

    >>> y = normalize_per_location(ops.array([[0.0, 0.0, 0.0], [0.0, 0.0, 3.0]]))
    >>> ops.convert_to_numpy(y)[0].tolist()
    [0.0, 0.0, 0.0, 2.0]
    """
    wide = ops.cast(x, "float32") if is_half(x) else x
    if homogeneous is not None:
        first = ops.take(wide, ops.array([0]), axis=axis)
        wide = ops.concatenate([wide, ops.full_like(first, homogeneous)], axis=axis)
    return ops.cast(_scaled(wide, (axis,)), x.dtype)


def normalize_per_sample(x: Array) -> Array:
    """`x` scaled to q value 1 over all numbers of each sample; a sample of zeros stays zero.

    >>> ops.convert_to_numpy(normalize_per_sample(ops.array([[3.0, 0.0, 0.0, 0.0]]))).tolist()
    [[2.0, 0.0, 0.0, 0.0]]
    """
    axes = tuple(range(1, len(x.shape)))
    if not axes:
        raise ValueError(
            f"A tensor of shape {tuple(x.shape)} has no axis for the numbers of a sample: put the "
            "samples of a batch along the first one."
        )
    wide = ops.cast(x, "float32") if is_half(x) else x
    return ops.cast(_scaled(wide, axes), x.dtype)


@keras.saving.register_keras_serializable(package="skipless")
class PerLocationNormalization(keras.layers.Layer):
    """`normalize_per_location` as the first layer of a network.

    >>> first = PerLocationNormalization()
    >>> first.compute_output_shape((None, 8, 8, 3))
    (None, 8, 8, 4)
    """

    def __init__(
        self,
        axis: int = -1,
        homogeneous: float | None = 1.0,
        *,
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.axis, self.homogeneous = axis, homogeneous
        self.built = True

    def call(self, x: Array) -> Array:
        return normalize_per_location(x, axis=self.axis, homogeneous=self.homogeneous)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        shape = list(input_shape)
        channels = shape[self.axis]
        if channels is not None and self.homogeneous is not None:
            shape[self.axis] = channels + 1
        return tuple(shape)

    def get_config(self) -> Config:
        return {**super().get_config(), "axis": self.axis, "homogeneous": self.homogeneous}


def _scaled(x: Array, axes: tuple[int, ...]) -> Array:
    """`x` times what makes its mean square over `axes` 1; zeros stay zeros."""
    # Squares of entries that are at most 1 do not overflow.
    peak = ops.stop_gradient(ops.max(ops.abs(x), axis=axes, keepdims=True))
    nothing = peak == 0.0
    x = x / ops.where(nothing, ops.ones_like(peak), peak)
    square = ops.mean(ops.square(x), axis=axes, keepdims=True)
    return x * ops.rsqrt(ops.where(nothing, ops.ones_like(square), square))

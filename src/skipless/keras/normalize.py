"""Inputs of q value 1, as the theory assumes them; `skipless.torch.normalize` says why."""

from typing import Self

import keras
from keras import ops

from skipless._deprecated import renamed_arguments, warn_renamed
from skipless.core.activations import require_constants
from skipless.core.arguments import finite_number, require_axis, whole_number

from .activations import Array, Config, in_float32


@renamed_arguments(axis="channel_axis")
def normalize_per_location(
    x: Array, *, channel_axis: int = -1, homogeneous: float | None = 1.0
) -> Array:
    r"""`x` with a constant channel appended, scaled to q value 1 at every location.

    $$x \mapsto \sqrt{\frac{d + 1}{\|x\|^2 + h^2}}\; (x_1, \ldots, x_d, h)$$

    `skipless.torch.normalize_per_location` says why. **The output has one channel more than the
    input**, but not with `homogeneous=None`.

    >>> y = normalize_per_location(ops.array([[0.0, 0.0, 0.0], [0.0, 0.0, 3.0]]))
    >>> ops.convert_to_numpy(y)[0].tolist()
    [0.0, 0.0, 0.0, 2.0]
    """
    _require_tensor(x)
    require_axis("channel_axis", channel_axis, tuple(x.shape))
    if homogeneous is not None:
        finite_number("homogeneous", homogeneous)

    def normalize(wide: Array) -> Array:
        if homogeneous is not None:
            first = ops.take(wide, ops.array([0]), axis=channel_axis)
            wide = ops.concatenate([wide, ops.full_like(first, homogeneous)], axis=channel_axis)
        return _scale_to_unit_q(wide, (channel_axis,))

    return in_float32(normalize, x)


def normalize_per_sample(x: Array, *, start_axis: int = 1) -> Array:
    """`x` scaled to q value 1 over all numbers of each sample; a sample of zeros stays zero.

    A sample is what lies in the axes from `start_axis` on: 1 in batches, 0 for a single sample.

    >>> ops.convert_to_numpy(normalize_per_sample(ops.array([[3.0, 0.0, 0.0, 0.0]]))).tolist()
    [[2.0, 0.0, 0.0, 0.0]]
    """
    _require_tensor(x)
    axes = tuple(range(whole_number("start_axis", start_axis, 0), len(x.shape)))
    if not axes:
        raise ValueError(
            f"x needs an axis {start_axis} for the numbers of a sample, got shape "
            f"{tuple(x.shape)}. For a single sample without a batch, set start_axis=0."
        )
    return in_float32(lambda wide: _scale_to_unit_q(wide, axes), x)


@keras.saving.register_keras_serializable(package="skipless")
class PerLocationNormalization(keras.layers.Layer):
    """`normalize_per_location` as the first layer of a network.

    >>> first = PerLocationNormalization()
    >>> first.compute_output_shape((None, 8, 8, 3))
    (None, 8, 8, 4)
    """

    def __init__(
        self,
        channel_axis: int = -1,
        homogeneous: float | None = 1.0,
        *,
        axis: int | None = None,  # the old name; Keras reads this signature: no decorator
        name: str | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        if axis is not None:
            warn_renamed("PerLocationNormalization(axis=...)", "channel_axis")
            channel_axis = axis
        if homogeneous is not None:
            finite_number("homogeneous", homogeneous)
            require_constants(type(self).__name__, {"homogeneous": homogeneous})
        self.channel_axis = whole_number("channel_axis", channel_axis, -64, 64)
        self.homogeneous = homogeneous
        self.built = True

    def call(self, x: Array) -> Array:
        return normalize_per_location(
            x, channel_axis=self.channel_axis, homogeneous=self.homogeneous
        )

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        shape = list(input_shape)
        if (channels := shape[self.channel_axis]) is not None:
            shape[self.channel_axis] = channels + (self.homogeneous is not None)
        return tuple(shape)

    def get_config(self) -> Config:
        own = {"channel_axis": self.channel_axis, "homogeneous": self.homogeneous}
        return super().get_config() | own

    @classmethod
    def from_config(cls, config: Config) -> Self:
        # Files of release 0.1 have an "axis".
        return super().from_config(
            {"channel_axis" if k == "axis" else k: v for k, v in config.items()}
        )


def _require_tensor(x: Array) -> None:
    if not hasattr(x, "shape"):
        raise TypeError(f"x must be a tensor, got {x!r}")


def _scale_to_unit_q(x: Array, axes: tuple[int, ...]) -> Array:
    # As in PyTorch, squares of entries that are at most 1 do not overflow.
    peak = ops.stop_gradient(ops.max(ops.abs(x), axis=axes, keepdims=True))
    nothing = peak == 0.0
    x = x / ops.where(nothing, ops.ones_like(peak), peak)
    square = ops.mean(ops.square(x), axis=axes, keepdims=True)
    return x * ops.rsqrt(ops.where(nothing, ops.ones_like(square), square))

"""Inputs of q value 1, as the theory assumes them; `skipless.torch.normalize` says why."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from skipless.core.arguments import finite_number, require_axis, whole_number

from .activations import in_float32


def normalize_per_location(
    x: ArrayLike, *, channel_axis: int = -1, homogeneous: float | None = 1.0
) -> Array:
    r"""`x` with a constant channel appended, scaled to q value 1 at every location.

    $$x \mapsto \sqrt{\frac{d + 1}{\|x\|^2 + h^2}}\; (x_1, \ldots, x_d, h)$$

    `skipless.torch.normalize_per_location` says why. **The output has one channel more than the
    input**, but not with `homogeneous=None`. `channel_axis` is -1 where channels come last, as in
    Flax, and 1 in batches with channels first.

    >>> black_and_blue = jnp.array([[0.0, 0.0, 0.0], [0.0, 0.0, 3.0]])
    >>> y = normalize_per_location(black_and_blue)
    >>> y[0].tolist(), [round(q, 6) for q in jnp.mean(y**2, axis=-1).tolist()]
    ([0.0, 0.0, 0.0, 2.0], [1.0, 1.0])
    """
    array = _as_floating(x)
    require_axis("channel_axis", channel_axis, array.shape)
    if homogeneous is not None:
        finite_number("homogeneous", homogeneous)

    def normalize(wide: Array) -> Array:
        if homogeneous is not None:
            first = jax.lax.slice_in_dim(wide, 0, 1, axis=channel_axis)
            constant = jnp.full_like(first, homogeneous)
            wide = jnp.concatenate([wide, constant], axis=channel_axis)
        return _scale_to_unit_q(wide, (channel_axis,))

    return in_float32(normalize, array)


def normalize_per_sample(x: ArrayLike, *, start_axis: int = 1) -> Array:
    """`x` scaled to q value 1 over all numbers of each sample; a sample of zeros stays zero.

    A sample is what lies in the axes from `start_axis` on: 1 in batches, 0 for a single sample, as
    under `jax.vmap`.

    >>> normalize_per_sample(jnp.array([[3.0, 0.0, 0.0, 0.0], [5.0, 5.0, -5.0, 5.0]])).tolist()
    [[2.0, 0.0, 0.0, 0.0], [1.0, 1.0, -1.0, 1.0]]
    """
    array = _as_floating(x)
    axes = tuple(range(array.ndim)[whole_number("start_axis", start_axis, 0) :])
    if not axes:
        raise ValueError(
            f"An array of shape {array.shape} has no axis {start_axis} for the numbers of a "
            "sample. For a single sample without a batch, set start_axis=0."
        )
    return in_float32(lambda wide: _scale_to_unit_q(wide, axes), array)


def _as_floating(x: ArrayLike) -> Array:
    if isinstance(x, str) or x is None:
        raise TypeError(f"x must be an array, got {x!r}")
    array = jnp.asarray(x)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(
            f"Expected floating-point numbers, not {array.dtype}. Divide the bytes of an image by "
            "255 and standardise them first."
        )
    return array


def _scale_to_unit_q(x: Array, axes: tuple[int, ...]) -> Array:
    # Squares of entries that are at most 1 do not overflow. The result does not depend on `peak`,
    # so it needs no derivative.
    peak = jnp.max(jnp.abs(jax.lax.stop_gradient(x)), axis=axes, keepdims=True)
    nothing = peak == 0
    x = x / jnp.where(nothing, 1.0, peak)
    square = jnp.mean(jnp.square(x), axis=axes, keepdims=True)
    return x * jax.lax.rsqrt(jnp.where(nothing, 1.0, square))

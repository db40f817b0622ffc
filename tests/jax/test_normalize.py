"""Inputs are scaled to q value 1, whatever their layout, type and size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from skipless.jax import normalize_per_location, normalize_per_sample
from skipless.torch import normalize_per_location as torch_per_location


def images(*shape: int) -> np.ndarray:
    """Random numbers of very different sizes, with zeros at the first location."""
    x = np.random.default_rng(0).normal(size=shape) * np.logspace(-3, 3, shape[-2])[:, None]
    x[(0,) * (len(shape) - 1)] = 0.0
    return x


def test_a_pixel_worked_by_hand() -> None:
    # (1, 2, 2) with a 1 has length √10 and is to have length √4.
    y = normalize_per_location(jnp.array([1.0, 2.0, 2.0]))
    np.testing.assert_allclose(y, np.array([1.0, 2.0, 2.0, 1.0]) * 0.4**0.5, rtol=1e-6)


@pytest.mark.parametrize("homogeneous", [1.0, -2.0, None])
def test_every_location_has_q_value_1_in_every_layout(homogeneous: float | None) -> None:
    x = images(2, 4, 5, 3)
    with jax.enable_x64(True):
        y = normalize_per_location(jnp.asarray(x), homogeneous=homogeneous)
        first = normalize_per_location(
            jnp.moveaxis(jnp.asarray(x), -1, 1), channel_axis=1, homogeneous=homogeneous
        )
        np.testing.assert_array_equal(jnp.moveaxis(first, 1, -1), y)
        q = np.asarray(jnp.mean(y**2, axis=-1)).ravel()
    expected = np.ones_like(q)
    expected[0] = 1.0 if homogeneous else 0.0
    np.testing.assert_allclose(q, expected, rtol=1e-14)
    theirs = torch_per_location(torch.from_numpy(x), channel_axis=-1, homogeneous=homogeneous)
    np.testing.assert_allclose(y, theirs.numpy(), rtol=1e-13)


def test_every_sample_has_q_value_1_and_zeros_stay_zero() -> None:
    x = jnp.asarray(images(4, 6, 5)).at[0].set(0.0)
    y = normalize_per_sample(x)
    q = jnp.mean(y**2, axis=(1, 2))
    np.testing.assert_allclose(q, [0.0, 1.0, 1.0, 1.0], rtol=1e-6)
    mapped = jax.jit(jax.vmap(lambda sample: normalize_per_sample(sample, start_axis=0)))(x)
    np.testing.assert_allclose(mapped, y, rtol=1e-6)
    ratio = (y / x)[2]
    np.testing.assert_allclose(ratio, np.full_like(ratio, ratio[0, 0]), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_type_is_kept_and_short_ones_are_scaled_in_float32(dtype: str) -> None:
    x = jnp.array([[300.0, 400.0, 0.0], [0.0, 0.0, 0.0]], dtype)  # 300² is over float16
    for f in (normalize_per_location, normalize_per_sample):
        assert f(x).dtype == x.dtype
        np.testing.assert_array_equal(f(x), f(x.astype("float32")).astype(dtype))


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_squares_neither_overflow_nor_vanish(size: float) -> None:
    x = size * jnp.array([[3.0, 4.0]])
    for y in (normalize_per_sample(x), normalize_per_location(x, homogeneous=None)):
        np.testing.assert_allclose(y, np.array([[0.6, 0.8]]) * 2**0.5, rtol=1e-6)


@pytest.mark.parametrize("homogeneous", [1.0, None])
def test_gradients_are_finite_at_zeros_and_right_elsewhere(homogeneous: float | None) -> None:
    f = lambda x: normalize_per_location(x, homogeneous=homogeneous)
    zeros = jnp.zeros((2, 3)).at[1].set(1.0)
    slopes = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(f(x)))))
    assert jnp.isfinite(slopes(zeros)).all()
    x, direction, step = jnp.array([[0.3, -1.2, 0.8]]), jnp.array([[0.5, 0.2, -0.7]]), 1e-2
    _, found = jax.jvp(f, (x,), (direction,))
    # Central differences with Richardson's correction leave 1e-7.
    far, near = (f(x + s * direction) - f(x - s * direction) for s in (2 * step, step))
    np.testing.assert_allclose(found, (8 * near - far) / (12 * step), atol=2e-5)


def test_a_batch_without_features_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(5,\) has no axis 1.*start_axis=0"):
        normalize_per_sample(jnp.ones(5))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool", "complex64"])
def test_other_types_are_refused(dtype: str) -> None:
    for f in (normalize_per_location, normalize_per_sample):
        with pytest.raises(TypeError, match=f"not {dtype}.*255"):
            f(jnp.ones((2, 3), dtype))

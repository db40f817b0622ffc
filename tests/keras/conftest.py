"""Gradients on whichever backend KERAS_BACKEND names."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

# Keras 3.15 turns variables into arrays in a way that numpy 2 deprecates.
_DEPRECATED = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(_DEPRECATED))


def double_precision() -> contextlib.AbstractContextManager[object]:
    """Where JAX computes in float64, which it does only when told."""
    if keras.backend.backend() != "jax":
        return contextlib.nullcontext()
    import jax

    return jax.enable_x64(True)


def value_and_slope(f: Callable, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A pointwise function and its derivative, by the backend's own differentiation."""
    match keras.backend.backend():
        case "jax":
            import jax
            import jax.numpy as jnp

            y, slope = f(jnp.asarray(x)), jax.grad(lambda z: f(z).sum())(jnp.asarray(x))
        case "tensorflow":
            import tensorflow as tf

            z = tf.constant(x)
            with tf.GradientTape() as tape:
                tape.watch(z)
                y = f(z)
            slope = tape.gradient(y, z)
        case _:
            import torch

            z = torch.tensor(x, requires_grad=True)
            y = f(z)
            (slope,) = torch.autograd.grad(y.sum(), z)
            y = y.detach()
    return np.asarray(y), np.asarray(slope)


@pytest.fixture
def float64():
    with double_precision():
        yield


@pytest.fixture
def differentiate() -> Callable:
    return value_and_slope

"""Inputs have q value 1; the layer survives its configuration, also that of release 0.1."""

import keras
import numpy as np
import pytest
from keras import ops

from skipless.keras import PerLocationNormalization, normalize_per_location, normalize_per_sample


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def array(tensor) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(tensor), float)


@pytest.mark.parametrize("channel_axis", [-1, 1])
@pytest.mark.parametrize("homogeneous", [None, 0.5])
def test_every_location_has_q_value_1(channel_axis, homogeneous) -> None:
    x = images(2, 5, 4, 3)
    y = normalize_per_location(ops.array(x), channel_axis=channel_axis, homogeneous=homogeneous)
    q = np.mean(array(y) ** 2, axis=channel_axis)
    np.testing.assert_allclose(q, 1.0, rtol=1e-5)
    layer = PerLocationNormalization(channel_axis, homogeneous)
    assert tuple(y.shape) == layer.compute_output_shape(x.shape)


def test_every_sample_has_q_value_1() -> None:
    x = images(3, 4, 2)
    y = array(normalize_per_sample(ops.array(x)))
    np.testing.assert_allclose((y**2).mean(axis=(1, 2)), 1.0, rtol=1e-5)
    single = normalize_per_sample(ops.array(x[1]), start_axis=0)
    np.testing.assert_allclose(array(single), y[1], rtol=1e-6)
    with pytest.raises(ValueError, match=r"axis 1 .*got shape \(5,\).*start_axis=0"):
        normalize_per_sample(ops.ones(5))


def test_the_old_name_of_the_axis_works_and_warns_but_not_from_a_file() -> None:
    with pytest.warns(
        DeprecationWarning, match=r"PerLocationNormalization\(axis=...\).*channel_ax"
    ):
        old = PerLocationNormalization(axis=1)
    with pytest.warns(DeprecationWarning, match="use channel_axis"):
        normalize_per_location(ops.ones((2, 3)), axis=-1)  # pyright: ignore[reportCallIssue]
    config = old.get_config()
    config["axis"] = config.pop("channel_axis")
    assert PerLocationNormalization.from_config(config).channel_axis == 1
    again = keras.layers.deserialize(keras.layers.serialize(old))
    assert again.channel_axis == 1  # pyright: ignore[reportAttributeAccessIssue]

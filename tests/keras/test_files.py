"""What a `.keras` file says of our layers: a layer that computes, or an error of value or type."""

import math

import keras
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skipless as sk

LARGEST = 2.0**128  # of float32
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.sampled_from([1e308, -1e308, 1e39, 1e-60, 10**400, "", "tanh", "os.system", [], {}, [1.0]]),
    st.fixed_dictionaries({
        "class_name": st.sampled_from(["Lambda", "function", "__lambda__", "system", "Dense"]),
        "module": st.sampled_from(["os", "builtins", "keras.layers", "skipless", None]),
        "config": st.sampled_from(["system", "eval", {"code": "x"}, {}, None]),
        "registered_name": st.sampled_from(["system", None]),
    }),
)  # fmt: skip


def layers() -> list[keras.layers.Layer]:
    return [
        sk.keras.ShapedActivation("tanh", 0.5, 0.1, 2.0, 0.2),
        sk.keras.TReLU(0.3),
        sk.keras.PerLocationNormalization(),
    ]


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_a_layer_from_altered_settings_computes_or_is_refused(data: st.DataObject) -> None:
    layer = data.draw(st.sampled_from(layers()))
    config = layer.get_config()
    names = sorted(set(config) - {"name", "dtype", "trainable"})
    for name in data.draw(st.lists(st.sampled_from([*names, "more"]), min_size=1, max_size=2)):
        config[name] = data.draw(VALUES)
    try:
        loaded = type(layer).from_config(config)
    except (ValueError, TypeError):
        return
    numbers = [v for v in loaded.get_config().values() if isinstance(v, float)]
    assert all(abs(number) < LARGEST for number in numbers)
    function = getattr(loaded, "function", math.tanh)
    assert function.__module__ not in ("os", "posix", "builtins")


@pytest.mark.parametrize("name", ["input_scale", "input_shift", "output_scale", "output_shift"])
def test_constants_that_float32_cannot_hold_are_refused(name: str) -> None:
    config: dict[str, object] = {**layers()[0].get_config(), name: 1e308}
    with pytest.raises(TypeError, match=rf"finite constants .* {name} = 1e\+308"):  # Keras' own
        sk.keras.ShapedActivation.from_config(config)

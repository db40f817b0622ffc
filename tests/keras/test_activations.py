"""In Keras, activations are what `core` says; shaped, they are saved and loaded to the last bit."""

# Keras' own annotations are inferred from its defaults.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

from activation_examples import KNOWN, POINTS, SHAPED, solved
from skipless import Activation
from skipless._install import install_line
from skipless.keras import ShapedActivation, TReLU, WeightedAdd, function

every_solution = pytest.mark.parametrize("name", SHAPED)


@keras.saving.register_keras_serializable(package="tests")
def cubed(x):
    return x * x * x


@pytest.mark.parametrize("phi", KNOWN, ids=lambda phi: phi.name)
def test_an_activation_and_its_gradient_equal_those_of_core(phi, float64, differentiate) -> None:
    y, slope = differentiate(function(phi), POINTS)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, phi(POINTS), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(slope, phi.slope(POINTS), rtol=1e-12, atol=1e-12)


@every_solution
def test_a_shaped_layer_is_the_solution(name, float64, differentiate) -> None:
    solution = solved(name)
    layer = ShapedActivation.from_solution(solution, dtype="float64")
    y, slope = differentiate(layer, POINTS)
    np.testing.assert_allclose(y, solution(POINTS), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(slope, solution.shaped.slope(POINTS), rtol=1e-12, atol=1e-12)


@every_solution
def test_a_configuration_gives_the_same_constants_back_through_json(name) -> None:
    layer = ShapedActivation.from_solution(solved(name))
    stored = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    again = keras.saving.deserialize_keras_object(stored)
    assert type(again) is type(layer)
    assert again.constants == layer.constants
    assert again.phi == layer.phi
    assert again.get_config() == layer.get_config()


def test_a_function_of_the_users_own_is_saved_by_its_registered_name() -> None:
    layer = ShapedActivation(cubed, output_scale=0.5)
    again = ShapedActivation.from_config(layer.get_config())
    assert again.function is cubed
    assert float(again(ops.array([2.0]))[0]) == 4.0


def test_tat_gives_a_trelu_and_dks_another_layer() -> None:
    assert type(ShapedActivation.from_solution(solved("TAT leaky_relu"))) is TReLU
    assert type(ShapedActivation.from_solution(solved("DKS leaky_relu"))) is ShapedActivation


def test_half_precision_is_rounded_once() -> None:
    policy = keras.DTypePolicy("mixed_bfloat16")
    x = np.linspace(-4.0, 4.0, 201, dtype=np.float32)
    half = ops.cast(x, "bfloat16")
    exact = np.asarray(ops.convert_to_numpy(ops.cast(half, "float32")), float)
    for name in ("TAT leaky_relu", "TAT tanh"):
        y = ShapedActivation.from_solution(solved(name), dtype=policy)(half)
        assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
        got = np.asarray(ops.convert_to_numpy(ops.cast(y, "float32")), float)
        wanted = solved(name)(exact)
        # Half an ulp of bfloat16, and a little for float32.
        assert np.max(np.abs(got - wanted) / np.maximum(np.abs(wanted), 1e-3)) < 2.0**-8 + 2e-4


def test_an_activation_in_half_precision_is_computed_in_float32_and_rounded_once() -> None:
    half = ops.cast(np.linspace(-4.0, 4.0, 201, dtype=np.float32), "bfloat16")
    y = function("leaky_relu", 0.3)(half)
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    x = np.asarray(ops.convert_to_numpy(ops.cast(half, "float32")))
    once = ops.cast(np.where(x > 0.0, x, np.float32(0.3) * x), "bfloat16")
    got, wanted = (ops.convert_to_numpy(ops.cast(a, "float32")) for a in (y, once))
    np.testing.assert_array_equal(got, wanted)


def test_squareplus_keeps_its_digits_far_below_zero(float64) -> None:
    y = function("squareplus")(ops.convert_to_tensor(np.array([-1000.0]), "float64"))
    # (√(x² + 4) - |x|) / 2 = 1/|x| - 1/|x|³ + 2/|x|⁵ - ...
    assert float(y[0]) == pytest.approx(1e-3 - 1e-9 + 2e-15, rel=1e-14, abs=0.0)


def test_shapes_are_known_without_computing() -> None:
    layer = ShapedActivation("tanh", 0.5)
    assert layer.compute_output_shape((None, 3, 4)) == (None, 3, 4)
    assert layer(keras.Input((3, 4))).shape == (None, 3, 4)
    assert layer.count_params() == 0


def test_a_weighted_sum_is_exact_and_has_a_configuration(float64) -> None:
    layer = WeightedAdd([0.8, -0.6], dtype="float64")
    x, y = np.array([1.0, 3.0]), np.array([2.0, 5.0])
    again = WeightedAdd.from_config(layer.get_config())
    total = ops.convert_to_numpy(again([ops.convert_to_tensor(a, "float64") for a in (x, y)]))
    np.testing.assert_array_equal(total, 0.8 * x - 0.6 * y)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ShapedActivation("tanh", input_scale=0.0), "input_scale = 0"),
        (lambda: TReLU(float("nan"), 1.0), "must be finite, got nan"),
        (lambda: WeightedAdd([]), "finite weight for each term"),
        (lambda: WeightedAdd([1.0])([ops.ones(2), ops.ones(2)]), "each of its 1 weights, got 2"),
        (lambda: function("tahn"), "Did you mean 'tanh'"),
        (
            lambda: function(
                Activation(np.sinh, np.cosh, np.sinh, name="mine")  # a formula for numpy only
            ),
            "known only in numpy",
        ),
    ],
)
def test_a_mistake_is_named(make, says) -> None:
    with pytest.raises(ValueError, match=says):
        make()


HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
try:
    exec(sys.argv[2])
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("how", ["import skipless; skipless.keras", "import skipless.keras"])
@pytest.mark.parametrize(
    ("missing", "says"),
    [
        (
            "keras",
            f"skipless.keras needs keras, which is not installed: {install_line('keras')}\n",
        ),
        ("jax", "Keras needs its backend jax, which is not installed: pip install jax, or set"),
    ],
)
def test_one_line_says_what_is_missing(missing, says, how) -> None:
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    command = [sys.executable, "-c", HIDE, missing, how]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.startswith(says)
    assert told.stdout.count("\n") == 1

"""A converted Keras model has the kernel that was solved for, trains, and is saved and loaded."""

# Keras' own annotations are inferred from its defaults.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportIncompatibleMethodOverride=false, reportFunctionMemberAccess=false

import math
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers, ops

from skipless import DKS, EOC, TAT, Activation, solve
from skipless.core.predict import predict
from skipless.core.rescale import normalise_sums, to_residual_form
from skipless.keras import (
    ShapedActivation,
    TReLU,
    UnsupportedModelError,
    WeightedAdd,
    convert,
    trace,
)

IMAGE = (4, 4, 3)


def functional(build, shape) -> keras.Model:
    x = keras.Input(shape, name="pixels")
    return keras.Model(x, build(x), name="net")


def conv(filters=8, size=3, **options):
    return layers.Conv2D(
        filters, size, padding="same", use_bias=False, kernel_initializer="zeros", **options
    )


def resnet(x, width=8):
    """A ResNet of the first kind: two blocks, one with a projection."""
    x = layers.ReLU()(layers.BatchNormalization()(conv(width, name="stem")(x)))
    for number in range(2):
        y = layers.Activation("relu")(layers.BatchNormalization()(conv(width)(x)))
        y = layers.BatchNormalization()(conv(width)(y))
        project = conv(width, 1, name="project") if number else layers.Identity()
        x = layers.Activation("relu", name=f"end_{number}")(layers.Add()([y, project(x)]))
    return layers.Dense(4, activation="softmax", name="head")(layers.GlobalAveragePooling2D()(x))


def mlp(depth: int, width: int) -> keras.Sequential:
    hidden = [layers.Dense(width, activation="tanh") for _ in range(depth)]
    return keras.Sequential([keras.Input((width,)), *hidden])


def of(model: keras.Model, *kinds: type) -> list[str]:
    return [layer.name for layer in model.layers if isinstance(layer, kinds)]


@pytest.fixture(scope="module")
def original() -> keras.Model:
    return functional(resnet, IMAGE)


@pytest.mark.parametrize("weight", [None, 0.8, 0.0])
def test_the_converted_model_has_the_graph_that_was_solved_for(original, weight) -> None:
    method = TAT(eta=0.2)
    model = convert(original, method=method, shortcut_weight=weight, seed=0)
    graph = normalise_sums(to_residual_form(trace(original)), weight)
    report = model.skipless_report
    assert report.graph == graph
    assert report.solution == solve(graph, method)
    found = trace(model)
    assert found.activations == graph.activations == 5
    assert solve(found, method).negative_slope == pytest.approx(
        report.solution.negative_slope, abs=1e-9
    )
    assert of(model, layers.BatchNormalization) == []
    assert len(of(model, TReLU)) == 5
    assert len(of(model, WeightedAdd)) == (0 if weight == 0.0 else 2)
    assert ("project" in [layer.name for layer in model.layers]) == (weight != 0.0)
    normalised_ones = set(of(model, layers.Conv2D)) - {"project"}
    assert all(model.get_layer(n).use_bias for n in normalised_ones)


def test_layers_keep_their_names_and_the_original_is_left_alone(original) -> None:
    before = original.get_config()
    model = convert(original, method=TAT(eta=0.2), seed=0)
    assert original.get_config() == before
    assert {"stem", "project", "end_0", "end_1", "head"} <= {layer.name for layer in model.layers}
    assert isinstance(model.get_layer("end_0"), TReLU)
    assert model.input.name == "pixels"
    assert model.get_layer("stem").output.shape == (None, 4, 4, 8)
    np.testing.assert_allclose(
        np.asarray(ops.convert_to_numpy(model(np.ones((1, *IMAGE))))).sum(), 1.0, rtol=1e-5
    )


def test_the_method_may_still_come_second_but_warns(original) -> None:
    with pytest.warns(DeprecationWarning, match=r"use convert\(model, method=method\)"):
        model = convert(original, TAT(eta=0.2), example=None, seed=0)  # pyright: ignore[reportCallIssue]
    assert (
        model.skipless_report
        == convert(model=original, method=TAT(eta=0.2), seed=0).skipless_report
    )


def test_a_seed_draws_the_same_weights_and_no_two_layers_the_same() -> None:
    model = mlp(2, 8)
    one, two, other = (convert(model, method=TAT(eta=0.1), seed=s) for s in (0, 0, 1))
    for a, b, c in zip(one.get_weights(), two.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
        assert (a != c).any() or not a.any()
    assert (one.get_weights()[0] != one.get_weights()[2]).any()


def cosines(model: keras.Model, pairs: int, shape: tuple[int, ...]) -> np.ndarray:
    """Of the outputs for pairs of inputs, orthogonal and of q value 1 at every location."""
    rng = np.random.default_rng(0)
    channels = shape[-1]
    q, _ = np.linalg.qr(rng.normal(size=(pairs, *shape[:-1], channels, 2)))
    x = math.sqrt(channels) * np.moveaxis(q, -1, 0)
    a, b = (np.asarray(ops.convert_to_numpy(model(z.astype("float32"))), float) for z in x)
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return ((a * b).sum(-1) / lengths).reshape(pairs, -1).mean(-1)


def within_chance(samples: list[np.ndarray], predicted: float, width: int) -> bool:
    """Four standard errors of the means of the draws, and what a finite width adds."""
    means = np.array([s.mean() for s in samples])
    return (
        abs(means.mean() - predicted) < 4.0 * means.std(ddof=1) / math.sqrt(len(means)) + 2 / width
    )


@pytest.mark.parametrize("activation", ["leaky_relu", "tanh"])
def test_the_measured_kernel_of_an_mlp_is_the_predicted_one(activation) -> None:
    width, model = 128, mlp(10, 128)
    method = TAT(eta=0.6) if activation == "leaky_relu" else DKS(zeta=1.5)
    samples, report = [], None
    for seed in range(3):
        new = convert(model, method=method, activation=activation, seed=seed)
        samples.append(cosines(new, 64, (width,)))
        report = new.skipless_report
    assert report.predicted == predict(report.graph, report.solution)
    assert within_chance(samples, report.predicted[-1].c, width)
    if activation == "leaky_relu":
        assert report.predicted[-1].c == pytest.approx(0.6)


def test_the_measured_kernel_of_a_residual_network_is_the_predicted_one() -> None:
    width = 64

    def net(x):
        for _ in range(4):
            y = layers.LayerNormalization()(conv(width)(layers.ReLU()(conv(width)(x))))
            x = layers.Add()([conv(width, 1)(x), y])
        return x

    model = functional(net, (3, 3, width))
    samples, report = [], None
    for seed in range(3):
        new = convert(model, method=TAT(eta=0.2), shortcut_weight=0.6, seed=seed)
        samples.append(cosines(new, 32, (3, 3, width)))
        report = new.skipless_report
    assert within_chance(samples, report.predicted[-1].c, width)
    assert report.predicted[-1].c > 0.1


def test_a_converted_model_trains_and_comes_back_from_a_file_on_another_backend(
    original, tmp_path
) -> None:
    model = convert(original, method=TAT(eta=0.2), shortcut_weight=0.8, seed=0)
    model.compile("adam", "sparse_categorical_crossentropy")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, *IMAGE)).astype("float32"), np.arange(16) % 4
    losses = model.fit(x, y, epochs=4, batch_size=16, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "net.keras")
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys\n"
        "sys.modules['tensorflow'] = None\n"
        "import keras, numpy as np, skipless.keras\n"
        "model = keras.models.load_model(sys.argv[1] + '/net.keras')\n"
        "x = np.load(sys.argv[1] + '/x.npy')\n"
        "np.save(sys.argv[1] + '/y.npy', model.predict(x, verbose=0))\n"
    )
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    command = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(command, env=environment, check=True, timeout=300)
    np.testing.assert_allclose(
        np.load(tmp_path / "y.npy"), model.predict(x, verbose=0), rtol=1e-5, atol=1e-6
    )
    loaded = keras.models.load_model(tmp_path / "net.keras")
    assert trace(loaded) == trace(model)
    for name in of(model, TReLU):
        assert loaded.get_layer(name).constants == model.get_layer(name).constants


def test_conversion_keeps_what_compile_was_given() -> None:
    model = mlp(2, 8)
    model.compile(keras.optimizers.SGD(0.25), "mse")
    new = convert(model, method=TAT(tau=0.3), activation="tanh")
    assert new.compiled
    assert float(new.optimizer.learning_rate) == 0.25


def test_a_converted_model_can_be_converted_again() -> None:
    once = convert(mlp(3, 8), method=TAT(eta=0.1), seed=0)
    again = convert(once, method=DKS(), activation="tanh", seed=0)
    assert len(of(again, ShapedActivation)) == 3
    assert {again.get_layer(n).phi for n in of(again, ShapedActivation)} == {"tanh"}


def test_nested_models_are_written_out_under_names_that_do_not_clash() -> None:
    def block():
        return keras.Sequential(
            [keras.Input((8,)), layers.Dense(8, activation="relu", name="dense")]
        )

    shared = block()
    model = functional(lambda x: shared(block()(shared(x))), (8,))
    new = convert(model, method=TAT(eta=0.1), seed=0)
    assert trace(new) == trace(model)
    assert len(of(new, layers.Dense)) == 2  # the shared one is shared
    assert len(new.get_weights()) == 4


def test_every_kind_of_layer_is_drawn_so_that_q_is_kept() -> None:
    def net(x):
        x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
        x = layers.DepthwiseConv2D(3, padding="same")(x)
        x = layers.SeparableConv2D(16, 3, padding="same")(x)
        x = layers.Conv2DTranspose(16, 4, 2, padding="same")(x)
        return layers.Conv2D(16, 3, padding="same", groups=4)(x)

    linear = convert(functional(net, (4, 4, 16)), method=TAT(eta=0.05), seed=0)
    # Under this target the only activation is nearly linear, and the sizes of numbers stay.
    x = np.random.default_rng(0).normal(size=(8, 4, 4, 16)).astype("float32")
    y = np.asarray(ops.convert_to_numpy(linear(x)))
    assert y.shape == (8, 8, 8, 16)
    assert (y**2).mean() == pytest.approx((x**2).mean(), rel=0.1)


def test_a_causal_network_keeps_q_from_the_first_location_on() -> None:
    def net(x):
        x = layers.Conv1D(48, 3, padding="causal", dilation_rate=2, activation="relu")(x)
        return layers.Conv1D(48, 4, padding="causal", groups=2)(x)

    new = convert(functional(net, (8, 48)), method=TAT(eta=0.05), seed=0)
    x = np.random.default_rng(0).normal(size=(8, 1, 48)).astype("float32")
    y = np.asarray(ops.convert_to_numpy(new(np.repeat(x, 8, axis=1))))
    # Locations are equal, so that a tap that reads the padding anywhere shows by a difference.
    np.testing.assert_allclose(y, np.repeat(y[:, -1:], 8, axis=1), atol=1e-5)
    assert (y**2).mean() == pytest.approx((x**2).mean(), rel=0.2)


@pytest.mark.parametrize("factors", [(1.0, 3.0), (3.0, 1.0)])
def test_one_activation_read_with_and_without_a_factor_stays_one(factors) -> None:
    def net(x):
        y = layers.ReLU()(layers.Dense(8)(x))
        terms = [layers.Dense(8)(y if factor == 1.0 else factor * y) for factor in factors]
        return layers.ReLU()(layers.Add()(terms))

    assert len(of(convert(functional(net, (8,)), method=TAT(eta=0.1), seed=0), TReLU)) == 2


def test_a_negative_factor_leaves_its_sign_in_the_sum() -> None:
    def net(x):
        y = layers.Dense(8, name="y")(x)
        branch = layers.Dense(8, name="branch")(layers.ReLU()(layers.Dense(8)(y)))
        return layers.Add(name="sum")([-2.0 * y, branch])

    new = convert(functional(net, (8,)), method=TAT(eta=0.1), seed=0)
    weights = (-2.0 / math.sqrt(5.0), 1.0 / math.sqrt(5.0))
    assert new.get_layer("sum").sum_weights == pytest.approx(weights)
    ends = keras.Model(new.input, [new.get_layer(n).output for n in ("y", "branch", "sum")])
    x = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    y, branch, total = (np.asarray(ops.convert_to_numpy(a)) for a in ends(x))
    np.testing.assert_allclose(total, weights[0] * y + weights[1] * branch, rtol=1e-4, atol=1e-5)


def test_eoc_draws_biases_too() -> None:
    new = convert(mlp(2, 64), method=EOC(sigma_b=0.3), activation="tanh", seed=0)
    sigma_w = new.skipless_report.solution.sigma_w
    kernel, bias, *_ = new.get_weights()
    np.testing.assert_allclose(kernel.T @ kernel, sigma_w**2 * np.eye(64), atol=1e-4)
    assert 0.2 < bias.std() < 0.4


def test_mixed_precision_is_kept() -> None:
    policy = keras.DTypePolicy("mixed_bfloat16")
    hidden = [layers.Dense(8, activation="relu", dtype=policy) for _ in range(2)]
    new = convert(keras.Sequential([keras.Input((8,)), *hidden]), method=TAT(eta=0.1))
    assert [layer.compute_dtype for layer in new.layers[1:]] == ["bfloat16"] * 4
    assert new.output.dtype == "bfloat16"


def test_an_activation_of_the_users_own_needs_its_function() -> None:
    hinge = Activation(
        lambda x: np.maximum(x, 0.0), lambda x: np.where(x > 0.0, 1.0, 0.0), np.zeros_like, (0.0,)
    )
    model = mlp(3, 8)
    with pytest.raises(ValueError, match="known only in numpy"):
        convert(model, method=EOC(), activation=hinge)
    new = convert(model, method=EOC(), activation=hinge, function=ops.relu)
    assert len(of(new, ShapedActivation)) == 3


def test_the_report_says_what_was_done(original) -> None:
    said = str(convert(original, method=TAT(eta=0.2), shortcut_weight=0.0).skipless_report)
    for words in (
        "normalisation removed",
        "TReLU",
        "bias added",
        "mu0                    0.2",
        "project",
        "0.200",
    ):
        assert words in said


@pytest.mark.parametrize("end", ["sigmoid", "tanh", "softmax", "log_softmax"])
def test_what_makes_probabilities_or_the_range_of_outputs_stays(end) -> None:
    hidden = [layers.Dense(8, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((8,)), *hidden, layers.Dense(3, activation=end)])
    new = convert(model, method=TAT(eta=0.1), seed=0)
    assert len(of(new, ShapedActivation)) == 2
    assert "computed after the network, kept" in str(new.skipless_report)
    before = keras.Model(new.input, new.get_layer(model.layers[-1].name).output)
    x = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    expected = keras.activations.get(end)(before(x))
    assert np.allclose(ops.convert_to_numpy(new(x)), ops.convert_to_numpy(expected), atol=1e-6)


def test_a_network_of_nothing_but_a_sigmoid_is_converted() -> None:
    model = keras.Sequential([keras.Input((8,)), layers.Dense(8, activation="sigmoid")])
    new = convert(model, method=DKS(), activation="tanh", seed=0)
    assert [new.get_layer(n).phi for n in of(new, ShapedActivation)] == ["tanh"]


class Scaled(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x):
        return ops.matmul(x, self.kernel)


def test_weights_of_a_users_own_layer_cannot_be_drawn() -> None:
    model = functional(lambda x: layers.ReLU()(Scaled(name="mine")(x)), (8,))
    assert trace(model).activations == 1
    with pytest.raises(UnsupportedModelError, match=r"mine/matmul.*Dense"):
        convert(model, method=TAT(eta=0.1))

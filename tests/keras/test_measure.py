"""A real Keras network has the kernel that it was given; values are those of its layers."""

# Keras' own annotations are inferred from its defaults.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false

import math
from dataclasses import replace

import keras
import numpy as np
import pytest
from keras import layers, ops

from skipless import DKS, EOC, TAT, Graph, solve
from skipless.keras import (
    PerLocationNormalization,
    ShapedActivation,
    TReLU,
    check,
    convert,
    initialize_,
    measure,
    pair_inputs,
)


def batch(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def functional(build, shape) -> keras.Model:
    x = keras.Input(shape)
    return keras.Model(x, build(x))


def mlp(depth: int, width: int, activation="relu") -> keras.Sequential:
    hidden = [layers.Dense(width, activation=activation) for _ in range(depth)]
    return keras.Sequential([keras.Input((width,)), *hidden])


def agree(found, tensor, channel_axis: int = -1) -> None:
    """q and c of every pair, with one loop over pairs."""
    values = np.moveaxis(np.asarray(ops.convert_to_numpy(tensor), float), channel_axis, -1)
    q, c = [], []
    for a, b in zip(values[::2], values[1::2], strict=True):
        lengths = np.linalg.norm(a, axis=-1), np.linalg.norm(b, axis=-1)
        q.append((np.mean(a**2) + np.mean(b**2)) / 2)
        c.append(np.mean(np.sum(a * b, axis=-1) / (lengths[0] * lengths[1])))
    assert (found.q.mean, found.c.mean) == pytest.approx((np.mean(q), np.mean(c)), abs=1e-5)


def test_the_values_are_those_of_the_layers_before_and_after_their_activations() -> None:
    model, x = mlp(2, 6, "tanh"), batch(8, 6)
    found = measure(model, x)
    assert [m.kind for m in found.nodes] == ["Input", *["Affine", "Activation"] * 2]
    assert (found.seeds, found.pairs) == (1, 4)
    agree(found.nodes[0], x)
    y = ops.convert_to_tensor(x)
    for place, layer in enumerate(model.layers):
        linear = ops.matmul(y, layer.kernel) + layer.bias
        y = ops.tanh(linear)
        agree(found.nodes[1 + 2 * place], linear)
        agree(found.nodes[2 + 2 * place], y)
    assert all(layer.activation is keras.activations.tanh for layer in model.layers)


@pytest.mark.parametrize("use_bias", [True, False])
def test_a_separable_convolution_is_measured_in_both_parts(use_bias) -> None:
    layer = layers.SeparableConv2D(
        6, 3, padding="same", depth_multiplier=2, use_bias=use_bias, bias_initializer="ones"
    )
    model, x = functional(layer, (5, 4, 3)), batch(4, 5, 4, 3)
    _, first, second = measure(model, x).nodes
    inner = ops.depthwise_conv(x, layer.depthwise_kernel, padding="same")
    agree(first, inner)
    agree(second, layer(x))


def test_sums_concatenations_and_locations_are_measured_where_the_graph_has_them() -> None:
    def net(x):
        y = layers.Conv2D(8, 3, padding="same", name="y")(x)
        total = layers.Add(name="sum")([y, layers.Conv2D(8, 1)(layers.ReLU()(y))])
        joined = layers.Concatenate(name="joined")([total, y])
        return layers.Dense(4, name="out")(layers.Flatten()(joined))

    model, x = functional(net, (4, 4, 3)), batch(6, 4, 4, 3)
    found = {m.origin: m for m in measure(model, x).nodes}
    names = ("y", "sum", "joined", "out")
    ends = keras.Model(model.input, [model.get_layer(name).output for name in names])
    for name, tensor in zip(names, ends(x), strict=True):
        agree(found[name], tensor)


def test_seeds_are_averaged_and_the_model_keeps_its_weights() -> None:
    model, x = mlp(2, 6), batch(8, 6)
    before = model.get_weights()
    found = measure(model, x, seeds=(3, 4, 9))
    assert found.seeds == 3
    assert found == measure(model, x, seeds=iter((3, 4, 9)))
    assert found != measure(model, x, seeds=3)
    means = []
    for seed in (3, 4, 9):
        initialize_(model, seed=seed)
        means.append(measure(model, x).nodes[-1].c.mean)
    model.set_weights(before)
    assert found.nodes[-1].c.mean == pytest.approx(np.mean(means), abs=1e-6)
    assert found.nodes[-1].c.error == pytest.approx(np.std(means, ddof=1) / math.sqrt(3), abs=1e-6)
    measure(model, x, seeds=2)
    check(model, solution=solve(Graph.chain(2), EOC(), "relu"), seeds=2)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_pairs_are_exact_and_come_from_the_seed() -> None:
    draw = lambda: pair_inputs((3, 5), 2, 0.3, channel_axis=0, seed=1)
    x, again = (np.asarray(ops.convert_to_numpy(draw()), float) for _ in range(2))
    np.testing.assert_allclose((x**2).mean(axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose((x[::2] * x[1::2]).mean(axis=1), 0.3, rtol=1e-5)
    np.testing.assert_array_equal(x, again)


@pytest.mark.parametrize("distribution", ["orthogonal", "gaussian"])
@pytest.mark.parametrize(
    ("method", "activation"), [(TAT(eta=0.6), "leaky_relu"), (DKS(zeta=1.5), "tanh")]
)
def test_a_converted_network_has_the_kernel_that_was_predicted(
    method, activation, distribution
) -> None:
    model = convert(mlp(10, 200), method=method, activation=activation, seed=0)
    found = check(model, cosines=(0.0, 0.6), seeds=8, distribution=distribution)
    assert found.agrees, str(found)
    ends = [row for row in found.comparisons if row.measured.node == 20]
    assert [row.cosine for row in ends] == [0.0, 0.6]
    assert ends[0].predicted.c == pytest.approx(model.skipless_report.predicted[-1].c)


def test_a_converted_residual_network_has_the_kernel_that_was_predicted() -> None:
    def net(x):
        for _ in range(3):
            y = layers.BatchNormalization()(layers.Conv2D(64, 3, padding="same")(x))
            y = layers.DepthwiseConv2D(3, padding="same")(y)
            x = layers.Add()([x, layers.Conv2D(64, 3, padding="same")(layers.ReLU()(y))])
        return layers.GlobalAveragePooling2D()(x)

    model = convert(functional(net, (4, 4, 64)), method=TAT(eta=0.1), shortcut_weight=0.6, seed=0)
    found = check(model, seeds=8)
    assert found.agrees, str(found)
    assert {"Sum", "Affine", "Activation"} < {row.measured.kind for row in found.comparisons}


@pytest.mark.parametrize("error", [-0.15, 0.15])
def test_a_wrong_slope_is_found(error: float) -> None:
    model = convert(mlp(10, 200), method=TAT(eta=0.7), seed=0)
    solution = model.skipless_report.solution
    slope = solution.negative_slope + error
    scale = math.sqrt(2.0 / (1.0 + slope**2))
    wrong = replace(solution, negative_slope=slope, output_scale=scale)
    found = check(model, solution=wrong, seeds=8)
    assert not found.agrees
    assert np.sign(found.worst.c_difference) == np.sign(error)


def test_a_scaled_layer_is_found_in_q() -> None:
    solution = solve(Graph.chain(2), TAT(eta=0.2))
    phi = TReLU(solution.negative_slope, 1.3 * solution.constants["output_scale"])
    model = keras.Sequential([keras.Input((200,)), layers.Dense(200), phi])
    found = check(model, solution=solution, seeds=5)
    assert not found.agrees
    assert found.worst.q_difference == pytest.approx(0.69, abs=0.1)
    assert abs(found.worst.c_difference) < 0.05


def test_a_network_that_normalises_its_inputs_is_checked_from_behind_that() -> None:
    solution = solve(Graph.chain(2), EOC(), "relu")
    first = [keras.Input((None, None, 1)), PerLocationNormalization()]
    model = keras.Sequential([*first, layers.Conv2D(300, 1), layers.ReLU()])
    with pytest.raises(ValueError, match=r"leaves sizes of its input open.*Pass an example"):
        check(model, solution=solution)
    assert len(measure(model, batch(4, 3, 5, 1)).nodes) == 3
    found = check(model, (1, 4, 4, 1), solution, cosines=(0.5,), seeds=10)
    assert found.comparisons[0].measured.c.mean == pytest.approx(0.5, abs=1e-6)
    assert found.agrees, str(found)


def test_a_layer_that_holds_its_shaped_activation_keeps_it() -> None:
    solution = solve(Graph.chain(3), TAT(eta=0.3))
    phi = [ShapedActivation.from_solution(solution) for _ in range(3)]
    model = keras.Sequential([keras.Input((300,)), *(layers.Dense(300, activation=f) for f in phi)])
    found = check(model, solution=solution, seeds=5)
    assert found.agrees, str(found)
    assert [layer.activation for layer in model.layers] == phi


def test_what_is_no_batch_of_pairs_or_no_solution_is_refused() -> None:
    model = mlp(2, 4)
    with pytest.raises(ValueError, match=r"even number.*got shape \(5, 4\)"):
        measure(model, batch(5, 4))
    with pytest.raises(ValueError, match="Pass solution="):
        check(model)
    with pytest.raises(TypeError, match="solve"):
        check(model, solution=TAT())

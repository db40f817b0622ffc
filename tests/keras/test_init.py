"""Initial weights in Keras: orthogonal, of the right scale, at the right tap, and as torch's."""

# Keras' own annotations are inferred from its defaults.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false

import keras
import numpy as np
import pytest
import torch
from keras import layers, ops

from skipless.keras import (
    DeltaOrthogonal,
    DepthwiseDelta,
    GaussianFanIn,
    ScaledUniformOrthogonal,
    TransposedDelta,
    UnsupportedModelError,
    initialize_,
)
from skipless.torch import gaussian_fan_in_, scaled_uniform_orthogonal_


def array(tensor) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(tensor), float)


def drawn(initializer, shape) -> np.ndarray:
    return array(initializer(shape))


@pytest.mark.parametrize(("inputs", "outputs"), [(6, 6), (3, 6), (6, 3)])
def test_dense_weights_are_orthogonal_with_the_scale_of_appendix_d(inputs, outputs) -> None:
    w = drawn(ScaledUniformOrthogonal(1.5, seed=3), (inputs, outputs))
    if outputs > inputs:
        np.testing.assert_allclose(w @ w.T, 2.25 * outputs / inputs * np.eye(inputs), atol=1e-5)
    else:
        np.testing.assert_allclose(w.T @ w, 2.25 * np.eye(outputs), atol=1e-5)


def test_each_group_of_a_convolution_has_an_orthogonal_matrix_of_its_own() -> None:
    w = drawn(ScaledUniformOrthogonal(groups=2, seed=0), (2, 2, 4, 12))
    blocks = [w.reshape(16, 12)[:, :6], w.reshape(16, 12)[:, 6:]]
    for block in blocks:
        np.testing.assert_allclose(block.T @ block, np.eye(6), atol=1e-5)
    assert np.abs(blocks[0] - blocks[1]).max() > 0.1


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_delta_kernel_acts_on_each_location_by_itself_under_same_padding(size) -> None:
    conv = layers.Conv1D(
        16, size, padding="same", groups=2, kernel_initializer=DeltaOrthogonal(groups=2, seed=1)
    )
    x = np.random.default_rng(0).normal(size=(2, 7, 8)).astype("float32")
    y = np.asarray(ops.convert_to_numpy(conv(x)))
    w = drawn(conv.kernel_initializer, (size, 4, 16))[(size - 1) // 2]
    alone = np.concatenate([x[..., :4] @ w[:, :8], x[..., 4:] @ w[:, 8:]], axis=-1)
    np.testing.assert_allclose(y, alone, atol=1e-5)
    np.testing.assert_allclose((y**2).mean(-1), (x**2).mean(-1), rtol=1e-4)  # q is kept


def test_a_delta_kernel_at_its_last_tap_reads_the_present_under_causal_padding() -> None:
    conv = layers.Conv1D(
        8,
        3,
        padding="causal",
        dilation_rate=2,
        kernel_initializer=DeltaOrthogonal(tap=(2,), seed=1),
    )
    x = np.random.default_rng(0).normal(size=(2, 7, 8)).astype("float32")
    q = np.asarray(ops.convert_to_numpy(conv(x)) ** 2).mean(-1)
    np.testing.assert_allclose(q, (x**2).mean(-1), rtol=1e-4)


@pytest.mark.parametrize("tap", [(3, 0), (0, -1), (1,), (1, 1, 1)])
def test_a_tap_outside_of_the_kernel_is_refused(tap) -> None:
    with pytest.raises(ValueError, match=r"tap must be an index .*kernel \(3, 3\).* got \("):
        DeltaOrthogonal(tap=tap)((3, 3, 4, 4))


@pytest.mark.parametrize("multiplier", [1, 3])
def test_a_depthwise_delta_keeps_q_at_every_location(multiplier) -> None:
    conv = layers.DepthwiseConv2D(
        3, padding="same", depth_multiplier=multiplier, depthwise_initializer=DepthwiseDelta(seed=1)
    )
    x = np.random.default_rng(0).normal(size=(1, 4, 4, 8)).astype("float32")
    y = np.asarray(ops.convert_to_numpy(conv(x))).reshape(1, 4, 4, 8, multiplier)
    np.testing.assert_allclose((y**2).mean(-1), x**2, rtol=1e-4)


@pytest.mark.parametrize("size", [2, 4])
def test_an_even_depthwise_delta_reads_the_location_itself_under_same_padding(size) -> None:
    conv = layers.DepthwiseConv2D(
        size, padding="same", depthwise_initializer=DepthwiseDelta(seed=1)
    )
    x = np.random.default_rng(0).normal(size=(1, 5, 5, 8)).astype("float32")
    y = np.asarray(ops.convert_to_numpy(conv(x)))
    np.testing.assert_allclose(y**2, x**2, rtol=1e-4)


@pytest.mark.parametrize(("size", "stride"), [(3, 2), (4, 2), (3, 1)])
def test_a_transposed_delta_reaches_every_location_once(size, stride) -> None:
    up = layers.Conv1DTranspose(
        8, size, stride, "same", kernel_initializer=TransposedDelta(stride, seed=1)
    )
    x = np.random.default_rng(0).normal(size=(1, 5, 8)).astype("float32")
    q = np.asarray(ops.convert_to_numpy(up(x)) ** 2).mean(-1)
    np.testing.assert_allclose(q, np.repeat((x**2).mean(-1), stride, axis=1), rtol=1e-4)


def test_a_kernel_smaller_than_its_stride_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot reach all locations"):
        TransposedDelta(3)((2, 8, 8))


def test_orthogonal_weights_have_the_moments_of_the_uniform_distribution_and_of_torch() -> None:
    groups, n = 2000, 4
    w = drawn(ScaledUniformOrthogonal(groups=groups, seed=0), (n, groups * n))
    ours = w.reshape(n, groups, n).transpose(1, 2, 0)  # outputs first, as in torch
    weight = torch.empty(groups * n, n)
    scaled_uniform_orthogonal_(weight, groups=groups, generator=torch.manual_seed(0))
    theirs = weight.numpy().astype(float).reshape(groups, n, n)
    # Of a uniform orthogonal matrix: E q² = 1/n, E q⁴ = 3/(n(n+2)), and of two entries of different
    # rows and columns E q²r² = (n+1)/((n-1)n(n+2)); its trace has mean 0 and variance 1.
    moments = {
        "mean": (lambda q: q[:, 0, 0], 0.0),
        "second": (lambda q: q[:, 0, 1] ** 2, 1 / n),
        "fourth": (lambda q: q[:, 1, 0] ** 4, 3 / (n * (n + 2))),
        "mixed": (
            lambda q: q[:, 0, 0] ** 2 * q[:, 1, 1] ** 2,
            (n + 1) / ((n - 1) * n * (n + 2)),
        ),
        "trace": (lambda q: np.trace(q, axis1=1, axis2=2), 0.0),
        "trace²": (lambda q: np.trace(q, axis1=1, axis2=2) ** 2, 1.0),
    }
    for name, (moment, exact) in moments.items():
        for q in (ours, theirs):
            samples = moment(q)
            error = samples.std() / np.sqrt(groups)
            assert abs(samples.mean() - exact) < 4.0 * error, name


def test_gaussian_weights_have_the_variance_of_the_fan_in_as_torchs_do() -> None:
    ours = drawn(GaussianFanIn(1.5, seed=0), (3, 3, 16, 400))
    theirs = gaussian_fan_in_(torch.empty(400, 16, 3, 3), 1.5, generator=torch.manual_seed(0))
    for w in (ours, theirs.numpy().astype(float)):
        squares = w**2 * 9 * 16 / 2.25
        error = np.sqrt(2.0 / squares.size)
        assert abs(squares.mean() - 1.0) < 4.0 * error
        assert abs((squares**2).mean() - 3.0) < 4.0 * np.sqrt(96.0) * error / np.sqrt(2.0)


@pytest.mark.parametrize(
    ("initializer", "shape"),
    [
        (ScaledUniformOrthogonal(0.7, groups=2, seed=5), (4, 8)),
        (DeltaOrthogonal(0.7, groups=2, seed=5), (3, 4, 8)),
        (DeltaOrthogonal(0.7, groups=2, tap=[2], seed=5), (3, 4, 8)),
        (DepthwiseDelta(0.7, seed=5), (3, 4, 2)),
        (TransposedDelta((2,), 0.7, seed=5), (4, 4, 8)),
        (GaussianFanIn(0.7, seed=5), (4, 8)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_configuration_draws_the_same_numbers(initializer, shape) -> None:
    again = keras.initializers.deserialize(keras.initializers.serialize(initializer))
    assert type(again) is type(initializer)
    np.testing.assert_array_equal(drawn(initializer, shape), drawn(again, shape))
    other = type(again).from_config(again.get_config() | {"seed": 6})
    assert (drawn(initializer, shape) != drawn(other, shape)).any()


def test_without_a_seed_layers_differ_and_a_seed_generator_goes_on() -> None:
    for initializer in (
        ScaledUniformOrthogonal(),
        ScaledUniformOrthogonal(seed=keras.random.SeedGenerator(1)),
    ):
        first, second = drawn(initializer, (4, 4)), drawn(initializer, (4, 4))
        assert (first != second).any()


def test_a_bias_is_no_kernel() -> None:
    with pytest.raises(ValueError, match="A kernel must be of shape"):
        ScaledUniformOrthogonal()((8,))


def every_kind() -> keras.Model:
    x = keras.Input((6, 6, 4))
    y = layers.Conv2D(8, 3, padding="same", groups=2)(x)
    y = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2)(layers.PReLU()(y))
    y = layers.SeparableConv2D(8, 3, padding="same", use_bias=False)(y)
    y = layers.Conv2DTranspose(8, 4, 2, padding="same")(layers.BatchNormalization()(y))
    return keras.Model(x, layers.Dense(8)(y), name="net")


@pytest.mark.parametrize("distribution", ["orthogonal", "gaussian"])
@pytest.mark.parametrize("delta", [True, False])
def test_a_whole_model_is_drawn_with_mean_square_one_over_fan_in(distribution, delta) -> None:
    model = every_kind()
    for variable in model.variables:
        variable.assign(np.full(variable.shape, 7.0))
    untouched = initialize_(
        model, sigma_w=0.5, sigma_b=2.0, distribution=distribution, delta=delta, seed=0
    )
    assert [path.split("/")[-1] for path in untouched] == ["alpha"]
    conv, depthwise, separable, up, dense = (
        layer for layer in model.layers if hasattr(layer, "use_bias")
    )
    norm = next(x for x in model.layers if isinstance(x, layers.BatchNormalization))
    assert [array(v).mean() for v in norm.variables] == [1.0, 0.0, 0.0, 1.0]
    close = 0.9 if distribution == "gaussian" else 1e-4
    # The sum of squares an output, on average over outputs.
    columns = {
        "conv": (conv.kernel, (0, 1, 2)),
        "depthwise": (depthwise.kernel, (0, 1)),
        "separable": (separable.depthwise_kernel, (0, 1)),
        "pointwise": (separable.pointwise_kernel, (0, 1, 2)),
        "dense": (dense.kernel, (0,)),
    }
    for name, (kernel, axes) in columns.items():
        squares = (array(kernel) ** 2).sum(axis=axes)
        assert squares.mean() == pytest.approx(0.25, rel=close), name
    taps = (array(up.kernel) ** 2).sum(axis=(2, 3))
    assert int((taps > 0).sum()) == (4 if delta else 16)
    used = (array(conv.kernel) != 0).any(axis=(2, 3))
    assert int(used.sum()) == (1 if delta else 9)
    # A location is reached by every second tap along both axes.
    assert taps[::2, ::2].sum() / 8 == pytest.approx(0.25, rel=close)
    biases = np.concatenate([array(x.bias) for x in (conv, depthwise, up, dense)])
    assert biases.std() == pytest.approx(2.0, rel=0.6)


def test_a_seed_draws_the_same_weights_again_and_gaps_change_nothing() -> None:
    model = every_kind()
    initialize_(model, seed=3)
    first = model.get_weights()
    initialize_(model, seed=4)
    assert any((a != b).any() for a, b in zip(first, model.get_weights(), strict=True))
    initialize_(model, seed=3)
    for a, b in zip(first, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    x = keras.Input((4, 4))
    gaps = keras.Model(x, layers.Conv1DTranspose(4, 1, 2)(layers.Dense(4, name="first")(x)))
    before = gaps.get_weights()
    with pytest.raises(UnsupportedModelError, match="cannot reach all locations"):
        initialize_(gaps, seed=0)
    for a, b in zip(before, gaps.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="got 'uniform'"):
        initialize_(model, distribution="uniform")

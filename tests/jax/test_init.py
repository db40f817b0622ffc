"""Initial weights: orthogonal, uniformly distributed, and of a scale that keeps q values at 1."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

import skipless.jax
from skipless.jax import (
    UnsupportedModelError,
    delta,
    gaussian_fan_in,
    initialize,
    scaled_uniform_orthogonal,
    transposed_delta,
)
from skipless.torch.init import scaled_uniform_orthogonal_

KEY = jax.random.key(0)
SHAPES = [(5, 5), (3, 5), (5, 3)]  # (m, k)
DRAWS = 4000


@cache
def draws(m: int, k: int) -> np.ndarray:
    """Independent matrices (m, k): the groups of one kernel."""
    init = scaled_uniform_orthogonal(feature_group_count=DRAWS)
    w = np.asarray(init(KEY, (k, DRAWS * m)), float)
    return w.T.reshape(DRAWS, m, k)


def assert_mean(samples: np.ndarray, expected: float) -> None:
    """Each column of `samples`, a row for each independent draw, has the `expected` mean."""
    error = samples.std(axis=0) / math.sqrt(len(samples))
    assert (np.abs(samples.mean(axis=0) - expected) <= 4 * error + 1e-5).all()


@pytest.mark.parametrize(("m", "k"), [(5, 5), (1, 4), (4, 1)])
def test_rows_or_columns_are_orthogonal_and_of_the_right_length(m: int, k: int) -> None:
    w = np.asarray(scaled_uniform_orthogonal(1.3)(KEY, (k, m)), float).T
    product = w @ w.T if m <= k else w.T @ w * k / m
    np.testing.assert_allclose(product, 1.3**2 * np.eye(min(m, k)), atol=1e-5)


@pytest.mark.parametrize(("m", "k"), SHAPES)
def test_matrices_have_the_moments_of_haar_measure(m: int, k: int) -> None:
    # A row or column of a Haar matrix is uniform on the sphere in n dimensions, whose coordinates
    # have E[u⁴] = 3 / (n (n + 2)).
    n, scale, w = max(m, k), max(m / k, 1.0), draws(m, k).reshape(DRAWS, -1)
    assert_mean(w, 0.0)
    assert_mean(w**2, 1.0 / k)
    assert_mean(w**4, scale**2 * 3.0 / (n * (n + 2)))


@pytest.mark.parametrize(("m", "k"), SHAPES)
def test_moments_are_those_of_torch(m: int, k: int) -> None:
    weight = torch.empty(DRAWS * m, k)
    scaled_uniform_orthogonal_(weight, groups=DRAWS, generator=torch.Generator().manual_seed(1))
    theirs, ours = weight.double().numpy().reshape(DRAWS, m, k), draws(m, k)
    features = {
        "second": lambda w: w**2,
        "fourth": lambda w: w**4,
        "of a square": lambda w: w[:, :1, :1] * w[:, :1, 1:2] * w[:, 1:2, :1] * w[:, 1:2, 1:2],
    }
    for name, feature in features.items():
        a, b = feature(ours), feature(theirs)
        error = np.sqrt((a.var(axis=0) + b.var(axis=0)) / DRAWS)
        assert (np.abs(a.mean(axis=0) - b.mean(axis=0)) <= 4 * error).all(), name


def test_rotations_and_reflections_are_equally_likely() -> None:
    assert_mean(np.linalg.det(draws(3, 3))[:, None], 0.0)


def test_groups_are_drawn_independently() -> None:
    first, second = draws(2, 3)[::2], draws(2, 3)[1::2]
    assert_mean((first * second).reshape(len(first), -1), 0.0)


def test_gaussian_entries_are_normal_with_variance_gain_squared_over_fan_in() -> None:
    w = np.asarray(gaussian_fan_in(1.7)(KEY, (2, 3, 40_000)), float).reshape(6, -1).T
    assert_mean(w, 0.0)
    assert_mean(w**2, 1.7**2 / 6)
    assert_mean(w**4, 3 * (1.7**2 / 6) ** 2)


@pytest.mark.parametrize(("kernel", "groups"), [((3,), 1), ((4, 5), 2)])
def test_delta_has_the_matrix_at_the_centre_only(kernel: tuple[int, ...], groups: int) -> None:
    weight = delta(2.0, feature_group_count=groups)(KEY, (*kernel, 4, 6))
    matrix = scaled_uniform_orthogonal(2.0, feature_group_count=groups)(KEY, (4, 6))
    centre = weight[tuple((size - 1) // 2 for size in kernel)]
    np.testing.assert_array_equal(centre, matrix)
    assert jnp.count_nonzero(weight) == 24


LAYOUTS = {  # of the kernel in `lax`'s letters: in_axis, out_axis
    "HWIO": (-2, -1),
    "OIHW": (1, 0),
    "IOHW": (0, 1),
}


@pytest.mark.parametrize(
    ("letters", "groups", "size", "stride"),
    [
        *(("HWIO", 2, 3, 1), ("OIHW", 2, 3, 1), ("IOHW", 1, 3, 1)),
        *(("HWIO", 1, 2, 1), ("HWIO", 1, 3, 2), ("HWIO", 1, 4, 2), ("HWIO", 1, 5, 3)),
    ],
)
def test_under_same_padding_a_convolution_keeps_q_at_every_location(
    letters: str, groups: int, size: int, stride: int
) -> None:
    # With at least as many outputs as inputs in each group, every vector keeps its q value.
    x = np.random.default_rng(0).normal(size=(1, 7, 8, 6))
    x = jnp.asarray(x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True)), "float32")
    # One group's channels have a q value of their own, so the mean over groups is kept, too.
    sizes = {"H": size, "W": size, "I": 6 // groups, "O": 8}
    init = delta(1.0, *LAYOUTS[letters], feature_group_count=groups)
    weight = init(KEY, tuple(sizes[letter] for letter in letters))
    y = jax.lax.conv_general_dilated(
        x,
        weight,
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", letters, "NHWC"),
        feature_group_count=groups,
    )
    np.testing.assert_allclose(jnp.mean(y**2, axis=-1), 1.0, rtol=1e-5)


def test_dense_layers_of_either_layout_keep_q() -> None:
    x = np.random.default_rng(0).normal(size=(10, 6))
    x /= np.sqrt(np.mean(x**2, axis=1, keepdims=True))
    inputs_first = scaled_uniform_orthogonal()(KEY, (6, 8))
    outputs_first = scaled_uniform_orthogonal(1.0, 1, 0)(KEY, (8, 6))
    for y in (x @ inputs_first, x @ outputs_first.T):
        np.testing.assert_allclose(np.mean(y**2, axis=1), 1.0, rtol=1e-5)


def test_inputs_and_outputs_may_have_several_axes() -> None:
    weight = scaled_uniform_orthogonal(1.0, (0, 2), (1, 3))(KEY, (2, 3, 2, 4))
    matrix = weight.transpose(1, 3, 0, 2).reshape(12, 4)
    np.testing.assert_allclose(matrix.T @ matrix, 3.0 * np.eye(4), atol=1e-5)


def test_a_convolution_without_delta_is_a_matrix_from_all_that_its_kernel_covers() -> None:
    weight = scaled_uniform_orthogonal()(KEY, (3, 3, 2, 5))
    matrix = weight.reshape(18, 5)
    np.testing.assert_allclose(matrix.T @ matrix, np.eye(5), atol=1e-5)


@pytest.mark.parametrize(
    ("size", "stride", "turned"),
    [
        *((4, 1, False), (2, 2, False), (3, 2, False), (4, 3, False)),
        *((4, 1, True), (3, 2, True), (4, 2, True)),
    ],
)
def test_a_transposed_convolution_copies_every_location(
    size: int, stride: int, turned: bool
) -> None:
    x = jax.random.normal(jax.random.key(1), (2, 5, 6))
    axes, shape = ((-1, -2), (size, 9, 6)) if turned else ((-2, -1), (size, 6, 9))
    init = transposed_delta(stride, 1.0, *axes, transpose_kernel=turned)
    kernel = init(KEY, shape)
    y = jax.lax.conv_transpose(x, kernel, (stride,), "SAME", transpose_kernel=turned)
    matrix = scaled_uniform_orthogonal(1.0, *axes)(KEY, shape[1:])
    local = jnp.repeat(x, stride, axis=1) @ (matrix.T if turned else matrix)
    np.testing.assert_allclose(y, local, atol=1e-5)


def test_a_causal_convolution_has_its_weights_at_the_last_tap() -> None:
    x = jax.random.normal(jax.random.key(1), (2, 7, 4))
    init = delta(tap=(2,))
    layer = nnx.Conv(4, 4, 3, padding="CAUSAL", kernel_init=init, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(jnp.sum(layer(x) ** 2, -1), jnp.sum(x**2, -1), rtol=1e-5)


def test_flax_takes_the_initialisers() -> None:
    x = jax.random.normal(jax.random.key(1), (2, 6, 5, 4))
    q = jnp.mean(x**2, axis=-1)
    layers = [
        linen.Dense(8, kernel_init=scaled_uniform_orthogonal()),
        linen.Conv(8, (3, 3), kernel_init=delta()),
    ]
    for layer in layers:
        y = layer.apply(layer.init(KEY, x), x)
        np.testing.assert_allclose(jnp.mean(jnp.asarray(y) ** 2, axis=-1), q, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_types_are_drawn_in_float32_and_rounded(dtype: str) -> None:
    for init in (gaussian_fan_in(), delta()):
        short = init(KEY, (3, 4, 4), jnp.dtype(dtype))
        assert short.dtype == dtype
        np.testing.assert_array_equal(short, init(KEY, (3, 4, 4)).astype(dtype))


def test_float64_is_drawn_in_float64() -> None:
    with jax.enable_x64(True):
        w = np.asarray(scaled_uniform_orthogonal()(KEY, (5, 5), jnp.float64))
    np.testing.assert_allclose(w @ w.T, np.eye(5), atol=1e-14)


def test_initialisers_are_pure_functions_of_their_key() -> None:
    init = delta()
    every = jax.jit(jax.vmap(lambda key: init(key, (3, 4, 4))))
    first, second, again = every(jnp.stack([KEY, jax.random.key(1), KEY]))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(first, init(KEY, (3, 4, 4)), atol=1e-6)
    assert not np.allclose(first, second)


def test_empty_weights_stay_empty() -> None:
    for shape in ((0, 4), (4, 0)):
        assert scaled_uniform_orthogonal()(KEY, shape).shape == shape
        assert gaussian_fan_in()(KEY, shape).shape == shape


@pytest.mark.parametrize(
    ("init", "shape", "message"),
    [
        (delta(), (4,), r"different axes of the shape \(4,\)"),
        (scaled_uniform_orthogonal(1.0, 1, 1), (4, 4), "in_axis and out_axis .* got 1 and 1"),
        (scaled_uniform_orthogonal(1.0, 2, 0), (4, 4), "got 2 and 0"),
        (delta(feature_group_count=3), (4, 4), "divide the 4 outputs.*got 3"),
        (delta(feature_group_count=0), (4, 4), "divide the 4 outputs.*got 0"),
        (delta(tap=(3,)), (3, 4, 4), r"tap .*size \(3,\), got \(3,\)"),
        (delta(tap=(1, 1)), (3, 4, 4), r"tap .*size \(3,\), got \(1, 1\)"),
        (transposed_delta(2), (1, 1, 3, 3), r"kernel \(1, 1\) and strides \(2, 2\)"),
    ],
)
def test_what_is_no_weight_is_refused(init, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        init(KEY, shape)


def test_other_types_and_shardings_are_refused() -> None:
    with pytest.raises(ValueError, match="floating-point type, got int32"):
        gaussian_fan_in()(KEY, (4, 4), jnp.int32)
    with pytest.raises(ValueError, match=r"jax\.device_put"):
        gaussian_fan_in()(KEY, (4, 4), None, jax.sharding.PartitionSpec())


@pytest.mark.parametrize(
    "initialiser",
    [scaled_uniform_orthogonal, gaussian_fan_in, delta],
)
@pytest.mark.parametrize("key", [jax.random.key(0), jax.random.PRNGKey(0), "1.0"])
def test_what_makes_an_initialiser_is_not_taken_for_one(initialiser, key) -> None:
    with pytest.raises(TypeError, match=r"(?s)must be a number, got .*Call what the"):
        initialiser(key, (4, 4))
    with pytest.raises(TypeError, match=r"(?s)must be a number, got .*Call what the"):
        transposed_delta(2, key)
    for gain in (2, np.float32(2.0), jnp.asarray(2.0)):
        assert initialiser(gain)(jax.random.key(0), (4, 4)).shape == (4, 4)


def test_a_transposed_kernel_has_a_stride_for_each_axis() -> None:
    with pytest.raises(ValueError, match=r"or 1 for a kernel of shape \(4, 8, 8\); got \(2, 2\)"):
        transposed_delta((2, 2))(jax.random.key(0), (4, 8, 8))
    with pytest.raises(TypeError, match="gain must be a number"):
        transposed_delta(jax.random.key(0), (4, 8, 8))  # pyright: ignore


def drawn(fn, *arguments, **options):
    return initialize(fn, *arguments, key=KEY, **options)


def test_all_layers_of_a_function_are_initialised_in_their_trees() -> None:
    fn = lambda p, key, x: jnp.tanh(x @ p["w"].T + p["b"]) * p["gain"]
    shapes = {
        "w": jnp.ones((6, 4)),
        "b": jax.ShapeDtypeStruct((6,), "float32"),
        "gain": jnp.ones(()),
    }
    found, key = drawn(fn, shapes, KEY, jnp.ones((2, 4)), sigma_w=2.0, sigma_b=0.5)
    assert key is KEY
    assert found["gain"] == 1.0
    np.testing.assert_allclose(found["w"].T @ found["w"], 4.0 * 6 / 4 * np.eye(4), atol=1e-4)
    assert 0.1 < float(found["b"].std()) < 1.0
    gaussian, _ = drawn(fn, shapes, KEY, jnp.ones((2, 4)), distribution="gaussian")
    assert not np.allclose(gaussian["w"].T @ gaussian["w"], 1.5 * np.eye(4), atol=0.1)


def test_layers_of_a_scan_are_initialised_in_their_stack() -> None:
    fn = lambda x, w, b: jax.lax.scan(lambda x, p: (jnp.tanh(x @ p[0] + p[1]), None), x, (w, b))[0]
    w, b = drawn(fn, jnp.ones((2, 4)), jnp.zeros((3, 4, 4)), jnp.ones((3, 4)), argnum=0)
    np.testing.assert_allclose(w @ w.mT, np.broadcast_to(np.eye(4), (3, 4, 4)), atol=1e-5)
    assert not np.allclose(w[0], w[1])
    assert not b.any()


def test_weights_used_in_part_keep_the_rest() -> None:
    (w,) = drawn(lambda w, x: x @ w[1:5], jnp.full((6, 4), 7.0), jnp.ones((2, 4)))
    np.testing.assert_allclose(w[1:5] @ w[1:5].T, np.eye(4), atol=1e-5)
    assert (w[0] == 7.0).all()
    assert (w[5] == 7.0).all()


def test_weights_that_cannot_be_returned_are_refused() -> None:
    held = jnp.ones((4, 4))
    with pytest.raises(UnsupportedModelError, match=r"holds weights.*initialize\(fn, params"):
        drawn(lambda x: x @ held, jnp.ones((2, 4)))
    with pytest.raises(UnsupportedModelError, match="or computes them, so they cannot"):
        drawn(lambda p, x: x @ p[0] + p[1] @ p[0], [held, jnp.ones((1, 4))], jnp.ones((2, 4)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("activation", "function"),
        ("delta_orthogonal", "delta"),
        ("transposed_delta_orthogonal", "transposed_delta"),
    ],
)
def test_old_names_work_and_name_the_new_ones(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} is deprecated, use skipless.jax.{new}"):
        assert getattr(skipless.jax, old) is getattr(skipless.jax, new)

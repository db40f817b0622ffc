"""trace: JAX functions, written with any library, become the graphs that PyTorch's become."""

import functools
import math
import re

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

import jax_networks as networks
from skipless import DKS, TAT, Graph, GraphBuilder, solve
from skipless.core.activations import activation_names
from skipless.core.graph import Affine, Concat, Sum
from skipless.core.trace import UnsupportedModelError
from skipless.jax import normalize_per_location, shaped
from skipless.jax.trace import read, trace
from skipless.torch import trace as torch_trace

KEY = jax.random.key(0)
X = jnp.ones((4, 16))
IMAGE = jnp.ones((2, 8, 8, 3))
W = jnp.ones((3, 16, 16))

# Every activation of core, in the ways in which people write it.
FORMS = {
    "abs": [jnp.abs],
    "asinh": [jnp.arcsinh],
    "atan": [jnp.arctan],
    "bent_identity": [lambda x: (jnp.sqrt(x * x + 1) - 1) / 2 + x],
    "celu": [jax.nn.celu, lambda x: jax.nn.celu(x, 0.7)],
    "cos": [jnp.cos],
    "elu": [jax.nn.elu, lambda x: jax.nn.elu(x, 0.5)],
    "erf": [jax.lax.erf, jax.scipy.special.erf],
    "gaussian": [lambda x: jnp.exp(-x * x / 2)],
    "gelu": [
        lambda x: jax.nn.gelu(x, approximate=False),
        lambda x: 0.5 * x * (1 + jax.lax.erf(x / math.sqrt(2))),
    ],
    "gelu_tanh": [jax.nn.gelu],
    "hard_sigmoid": [jax.nn.hard_sigmoid],
    "hard_swish": [jax.nn.hard_swish, lambda x: x * jnp.clip(x + 3, 0, 6) / 6],
    "hard_tanh": [jax.nn.hard_tanh, lambda x: jnp.clip(x, -1, 1)],
    "leaky_relu": [
        jax.nn.leaky_relu,
        lambda x: jnp.maximum(x, 0.2 * x),
        lambda x: jnp.where(x >= 0, x, jnp.full((5,), 0.3) * x),
    ],
    "log_sigmoid": [jax.nn.log_sigmoid],
    "mish": [jax.nn.mish, lambda x: x * jnp.tanh(jax.nn.softplus(x))],
    "quick_gelu": [lambda x: x * jax.nn.sigmoid(1.702 * x)],
    "relu": [jax.nn.relu, lambda x: jnp.maximum(x, 0), lambda x: x * (x > 0)],
    "relu6": [jax.nn.relu6],
    "relu_squared": [lambda x: jax.nn.relu(x) ** 2],
    "selu": [jax.nn.selu],
    "sigmoid": [jax.nn.sigmoid, lambda x: 1 / (1 + jnp.exp(-x))],
    "silu": [jax.nn.silu, jax.nn.swish, lambda x: x * jax.nn.sigmoid(x)],
    "sin": [jnp.sin],
    "soft_shrink": [lambda x: jnp.sign(x) * jnp.maximum(jnp.abs(x) - 0.5, 0)],
    "softplus": [jax.nn.softplus, lambda x: jnp.log(1 + jnp.exp(x)), lambda x: jnp.logaddexp(x, 0)],
    "softsign": [jax.nn.soft_sign],
    "square": [jnp.square, lambda x: x * x, lambda x: x**2],
    "squareplus": [jax.nn.squareplus, lambda x: (x + jnp.sqrt(x * x + 4)) / 2],
    "tanh": [jnp.tanh, jax.nn.tanh],
    "tanh_shrink": [lambda x: x - jnp.tanh(x)],
}


def test_every_activation_has_its_forms() -> None:
    assert {*FORMS, "identity"} == set(activation_names())


def found_in(function, dtype, *, wide: bool) -> list[tuple[str, float]]:
    """The names and factors that are found for `function`, in a network recorded in `dtype`."""
    layer = lambda w, x: function(x @ w)
    reading = read(layer, jnp.ones((5, 5), dtype), jnp.ones((2, 5), dtype), wide=wide)
    assert reading.graph == Graph.chain(1)
    return [(name, reading.steps[tensor].scale) for tensor, name in reading.activations.items()]


@pytest.mark.parametrize("name", sorted(FORMS))
def test_an_activation_is_recognised_however_it_is_written(name: str) -> None:
    same = {"celu": ("celu", "elu")}  # at their default parameters
    for function in FORMS[name]:
        for dtype, wide in ((np.float32, True), (np.float32, False)):
            [(found, scale)] = found_in(function, dtype, wide=wide)
            assert found.startswith(same.get(name, name))
            assert scale == 1.0
            if found.partition("(")[0] in ("gelu", "gelu_tanh", "silu", "sigmoid"):
                assert found == name  # and not the one whose name begins alike


@pytest.mark.parametrize("name", sorted(FORMS))
def test_an_activation_is_recognised_in_half_precision(name: str) -> None:
    for function in FORMS[name]:
        [(_, scale)] = found_in(function, jnp.bfloat16, wide=False)
        assert scale == 1.0


def test_near_misses_are_distinguished() -> None:
    slope = lambda s: found_in(lambda x: jax.nn.leaky_relu(x, s), np.float32, wide=True)[0][0]
    assert slope(0.0101) == "leaky_relu(negative_slope=0.0101)"
    assert slope(0.01) in ("leaky_relu", "leaky_relu(negative_slope=0.01)")
    with pytest.raises(UnsupportedModelError, match="none of the known"):
        trace(lambda w, x: (lambda y: y * jax.nn.sigmoid(1.71 * y))(x @ w), W[0], X)


def test_two_activations_in_a_row_are_two_even_if_each_is_many_operations() -> None:
    chained = lambda w, x: jax.nn.silu(jax.nn.hard_sigmoid(jax.nn.gelu(x @ w)))
    assert trace(chained, W[0], X).depth == 3


LIBRARIES = ("linen", "nnx", "equinox", "haiku", "plain", "scan")


@pytest.fixture(scope="module")
def residual_in_torch() -> Graph:
    return torch_trace(networks.TorchResidual(50, 4), torch.ones(2, 4))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_residual_network_of_100_layers_is_the_same_in_every_library(
    library: str, residual_in_torch: Graph
) -> None:
    fn, arguments = networks.residual(library, 50)
    assert trace(fn, *arguments) == residual_in_torch
    assert residual_in_torch.activations == 100


def test_a_graph_of_rounded_factors_has_the_solution_of_the_exact_one(residual_in_torch) -> None:
    fn, arguments = networks.residual("plain", 50)
    rounded = read(fn, *arguments).graph  # in float32
    assert rounded != residual_in_torch
    found, exact = (solve(g, DKS(), "tanh") for g in (rounded, residual_in_torch))
    for name in ("input_scale", "input_shift", "output_scale", "output_shift"):
        assert found.parameters[name] == pytest.approx(exact.parameters[name], rel=1e-6, abs=1e-12)


def linen(model: nn.Module, x: jax.Array = IMAGE) -> Graph:
    return trace(model.apply, jax.eval_shape(model.init, KEY, x), x)


def test_networks_become_the_graphs_and_solutions_that_they_become_in_pytorch() -> None:
    image, method = torch.ones(2, 3, 8, 8), TAT(eta=0.2)
    separable = jax.vmap(networks.EquinoxSeparable())
    channels_first = jnp.ones((2, 3, 8, 8))
    for graph, expected in (
        (linen(networks.PreActivation()), networks.TorchPreActivation()),
        (linen(networks.Dense()), networks.TorchDense()),
        (
            trace(separable, channels_first, jax.random.split(KEY, 2), argnum=0),
            networks.TorchSeparable(),
        ),
    ):
        assert graph == torch_trace(expected, image)
        assert solve(graph, method) == solve(torch_trace(expected, image), method)


def test_normalisation_in_training_mode_is_skipped_with_its_running_means() -> None:
    model = networks.PreActivation(train=True)
    variables = jax.eval_shape(model.init, KEY, IMAGE)
    reading = read(functools.partial(model.apply, mutable=["batch_stats"]), variables, IMAGE)
    assert reading.graph == linen(networks.PreActivation())
    assert len(reading.notes.norms) == 5
    first = reading.notes.norms[0]
    assert re.fullmatch(r"PreActivation/BatchNorm_0 \(jax_networks.py:\d+\)", first)


@pytest.mark.parametrize("train", [False, True])
def test_a_haiku_resnet_has_its_17_activations_and_20_normalisations(train: bool) -> None:
    net = hk.transform_with_state(lambda x, train: hk.nets.ResNet18(10)(x, train))
    params, state = jax.eval_shape(lambda key, x: net.init(key, x, True), KEY, IMAGE)
    reading = read(net.apply, params, state, None, IMAGE, train, argnum=3)
    assert (reading.graph.activations, reading.graph.depth) == (17, 17)
    assert len(reading.notes.norms) == 20
    assert sum(isinstance(n, Sum) for n in reading.graph.nodes) == 8


class Nnx(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(8, rngs=rngs), nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.dropout(nnx.relu(self.norm(self.conv(x))))
        x = nnx.avg_pool(x, (3, 3), (2, 2), padding="SAME", count_include_pad=False)
        return self.head(x.mean((1, 2)))


def test_an_nnx_module_in_training_is_read_and_left_as_it_was() -> None:
    model = Nnx()
    before = jax.tree.map(jnp.copy, nnx.state(model, nnx.BatchStat))
    b = GraphBuilder()
    b.affine(b.activation(b.affine(b.input())))
    assert trace(model, IMAGE) == b.build()
    model.eval()
    assert trace(lambda x: model(x), IMAGE) == b.build()
    jax.tree.map(np.testing.assert_array_equal, before, nnx.state(model, nnx.BatchStat))


MASKS = {
    "bernoulli": lambda key: jax.random.bernoulli(key, 0.9, X.shape),
    "uniform": lambda key: jax.random.uniform(key, X.shape) > 0.1,
    "raw key": lambda key: jax.random.bernoulli(jax.random.key_data(key), 0.9, X.shape),
    "split": lambda key: jax.random.bernoulli(jax.random.split(key)[1], 0.9, X.shape),
    "of no argument": lambda _: jax.random.bernoulli(jax.random.key(1), 0.9, X.shape),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=list(MASKS))
def test_dropout_written_by_hand_is_refused_with_its_line(mask) -> None:
    for drop in (lambda h, m: h * m / 0.9, lambda h, m: jnp.where(m, h / 0.9, 0)):
        layer = lambda w, key, x, drop=drop: drop(jax.nn.relu(x @ w[0]), mask(key)) @ w[1]
        with pytest.raises(UnsupportedModelError, match=r"test_trace.py:\d+ .*evaluation mode"):
            trace(layer, W, KEY, X)


def test_layers_that_no_line_of_the_user_calls_are_named_by_their_weights() -> None:
    layer = lambda: nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    graph = trace(nnx.Sequential(layer(), nnx.relu, layer()), jnp.ones((1, 4)))
    assert [node.origin for node in graph.nodes if isinstance(node, Affine)] == [
        "layers.0",
        "layers.2",
    ]


def test_barriers_and_names_are_skipped() -> None:
    def layer(w: jax.Array, x: jax.Array) -> jax.Array:
        x, w = jax.lax.optimization_barrier((x, w))
        return checkpoint_name(jax.nn.relu(x @ w), "hidden")

    assert trace(layer, W[0], X) == Graph.chain(1)


def test_calls_branches_and_loops_are_written_out() -> None:
    layer = lambda x, w: (jax.nn.relu(x @ w), None)
    loops = [
        lambda w, x: jax.lax.scan(layer, x, w)[0],
        lambda w, x: jax.lax.fori_loop(0, 3, lambda i, x: layer(x, w[i])[0], x),
        lambda w, x: functools.reduce(lambda x, v: jax.jit(layer)(x, v)[0], w, x),
        lambda w, x: jax.lax.scan(jax.remat(layer), x, w, reverse=True)[0],
        lambda w, x: jax.lax.cond(
            w[0, 0, 0] > 0, lambda x: jax.lax.scan(layer, x, w)[0], lambda x: x, x
        ),
    ]
    assert all(trace(loop, W, X) == Graph.chain(3) for loop in loops)


def test_biases_belong_to_layers_and_the_input_may_be_standardised() -> None:
    bias, mean = jax.random.normal(KEY, (16,)), jnp.arange(16.0)
    layer = lambda b, m, x: jax.nn.tanh(((x - m) / 0.3) @ W[0] + b)
    assert trace(layer, bias, mean, X) == Graph.chain(1)
    assert trace(layer, bias, mean, np.ones((2, 16), np.uint8).astype(np.float16)) == Graph.chain(1)
    first = lambda b, x: jax.nn.relu(
        b[:, None, None] + jax.lax.conv(x, jnp.ones((4, 3, 1, 1)), (1, 1), "SAME")
    )
    assert trace(first, bias[:4], jnp.ones((1, 3, 2, 2))) == Graph.chain(1)


def test_a_bare_activation_is_one() -> None:
    b = GraphBuilder()
    b.activation(b.input())
    for phi in (jax.nn.gelu, jax.nn.hard_sigmoid, jax.nn.silu):
        assert trace(phi, X) == b.build()


def test_a_shaped_activation_is_one_and_a_normalised_input_the_beginning() -> None:
    phi = shaped(solve(Graph.chain(3), DKS(), "tanh"))
    weights = [jnp.ones((4, 5)), jnp.ones((5, 5)), jnp.ones((5, 5))]

    def model(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        x = normalize_per_location(x)
        for w in weights:
            x = jax.jit(phi)(x @ w)
        return x

    assert trace(model, weights, jnp.ones((2, 3))) == Graph.chain(3)
    late = lambda w, x: normalize_per_location(x @ w[0]) @ w[1]
    with pytest.raises(UnsupportedModelError, match="inside the network"):
        trace(late, [jnp.ones((2, 3)), jnp.ones((4, 3))], jnp.ones((2, 2)))


def test_sums_have_their_factors_whatever_is_pooled_before() -> None:
    graph = trace(lambda w, x: 0.3 * (x @ w[0]) - (x @ w[1]) / 3, W, X)
    assert isinstance(graph.nodes[-1], Sum)
    assert graph.nodes[-1].weights == pytest.approx((0.3, -1 / 3), rel=1e-12)
    rezero = lambda a, x: x @ W[0] + a * (jax.nn.relu(x @ W[1]) @ W[2])
    for start in (jnp.zeros(()), jnp.full((16,), 1e-6)):  # as in ReZero and LayerScale
        assert trace(rezero, start, X).nodes[-1].weights == (1.0, 1.0)  # pyright: ignore


def test_pooling_leaves_no_factor_behind_whatever_its_layout() -> None:
    b = GraphBuilder()
    b.affine(b.input())
    layer = eqx.nn.Conv2d(3, 4, 1, key=KEY)
    channels_first = jnp.ones((2, 3, 8, 8))
    for pool in (eqx.nn.AvgPool2d(3, 2, padding=1), eqx.nn.AdaptiveAvgPool2d(2)):
        pooled = jax.vmap(lambda x, pool=pool: pool(layer(x)))
        assert trace(pooled, channels_first) == b.build()


def test_locations_may_be_padded_and_channels_may_not() -> None:
    layer = lambda x: jax.nn.relu(x @ jnp.ones((3, 4)))
    padded = lambda *config: lambda x: jnp.pad(layer(x), config)
    images = jnp.ones((2, 8, 8, 3))
    assert trace(padded((0, 0), (1, 1), (0, 2), (0, 0)), images) == Graph.chain(1)
    assert trace(lambda x: jax.lax.pad(layer(x), 0.0, [(0, 0, 0)] * 3 + [(-1, -1, 0)]), images)
    shortcut = lambda x: jnp.pad(layer(x)[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (2, 2)))
    with pytest.raises(UnsupportedModelError, match=r"fills up channels by pad.*1x1"):
        trace(shortcut, images)


def conv(w: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def test_locations_that_were_made_of_channels_may_be_padded() -> None:
    border = ((0, 0), (1, 1), (1, 1), (0, 0))
    kernel = jnp.ones((3, 3, 4, 4))

    def generator(x: jax.Array) -> jax.Array:
        h = jax.nn.relu(x @ jnp.ones((16, 64))).reshape(-1, 4, 4, 4)
        return jax.nn.relu(conv(kernel, jnp.pad(h, border)))

    def upscaled(x: jax.Array) -> jax.Array:
        h = jax.nn.relu(x @ jnp.ones((3, 16))).reshape(2, 8, 8, 2, 2, 4)
        h = h.transpose(0, 1, 3, 2, 4, 5).reshape(2, 16, 16, 4)  # depth to space
        return jax.nn.relu(conv(kernel, jnp.pad(h, border)))

    assert trace(generator, X) == trace(upscaled, IMAGE) == Graph.chain(2)


def test_one_channel_may_be_averaged_and_summed() -> None:
    b = GraphBuilder()
    b.affine(b.activation(b.affine(b.input())))
    head = lambda x: jnp.tanh(x @ W[0]) @ W[1, :, :1]
    for pool in (lambda y: y.mean(-1), lambda y: y.sum(-1)):
        assert trace(lambda x, pool=pool: pool(head(x)), X) == b.build()
    sequences = jnp.ones((2, 5, 16))
    for pool in (
        lambda y: y.mean((1, 2)),
        lambda y: y.mean(-1).mean(1),
        lambda y: y[..., 0].max(1),
    ):
        assert trace(lambda x, pool=pool: pool(head(x)), sequences) == b.build()


@pytest.mark.parametrize(
    "function",
    [
        jax.nn.softmax,
        jax.nn.sigmoid,
        lambda y: 2.0 * jnp.tanh(y),
        lambda y: y * jnp.arange(16.0) + 3.0,
        lambda y: y - y.mean(-1, keepdims=True),
        lambda y: (jnp.argmax(y, -1), jnp.sort(y)),
    ],
)
def test_a_network_ends_before_what_makes_the_form_of_its_outputs(function) -> None:
    network = lambda w, x: jax.nn.relu(x @ w[0]) @ w[1]
    assert trace(lambda w, x: function(network(w, x)), W, X) == trace(network, W, X)


def test_poolings_that_count_padded_zeros_are_approximate() -> None:
    kernel = jnp.ones((3, 3, 3, 4))
    for padding, counted in (("SAME", True), ("SAME", False), ("VALID", True)):
        pool = functools.partial(
            nn.avg_pool, window_shape=(3, 3), padding=padding, count_include_pad=counted
        )
        reading = read(lambda w, x, pool=pool: pool(jnp.tanh(conv(w, x))), kernel, IMAGE)
        notes = reading.notes.approximate
        assert [n.partition(" at ")[0] for n in notes] == ["averages of padded zeros"] * (
            padding == "SAME" and counted
        )


def attention(w: jax.Array, x: jax.Array) -> jax.Array:
    return (x @ w[0]) @ (x @ w[1]).T


REFUSED = {
    "multiplies two tensors": attention,
    "combines two branches by mul": lambda w, x: (lambda y: y * y[:, ::-1])(x @ w[0]),
    "computes softmax inside the network": lambda w, x: jax.nn.softmax(x @ w[0]) @ w[1],
    "computes while with an unknown number": lambda w, x: jax.lax.while_loop(
        lambda x: x.sum() < 0, lambda x: x @ w[0], x
    ),
    "computes scan along the input": lambda w, x: jax.lax.scan(
        lambda c, x: (jnp.tanh(c @ w[0] + x), None), jnp.zeros(16), x
    )[0],
    "computes sort": lambda w, x: jnp.sort(x @ w[0]) @ w[1],
    "computes cond by a condition": lambda w, x: jax.lax.cond(
        x.sum() > 0, lambda x: x @ w[0], lambda x: x, x
    ),
    "none of the known": lambda w, x: ((x @ w[0]) * jnp.arange(16.0)) @ w[1],
    "adds a tensor to a rearrangement": lambda w, x: (lambda y: y - y.mean(0))(x @ w[0]),
    "computes scan_results of all iterations": lambda w, x: jax.lax.scan(
        lambda c, w: (c @ w, c), x, w
    )[1].sum(0),
    "computes reduce_max over channels": lambda w, x: (
        (x @ w[0]).reshape(4, 8, 2).max(-1) @ w[1, :8]
    ),
    "computes reduce_sum over channels": lambda w, x: jnp.tanh(x @ w[0]).reshape(4, 8, 2).mean(-1),
    "reduce_sum over channels or branches": lambda w, x: jnp.mean(
        jnp.array([x @ w[0], x @ w[1]]), 0
    ),
    "reduce_sum over channels or branches, as": lambda w, x: jnp.tanh(
        jnp.einsum("bi,hio->bho", x, w)
    ).mean(1),
    "fills up channels by pad": lambda w, x: jnp.pad(jnp.tanh(x @ w[0]), ((0, 0), (4, 4))),
    "computes stack of arrays along a new axis": lambda w, x: jnp.stack([x @ w[0], x @ w[1]]).sum(
        0
    ),
    "dot_general of a kind of its own": lambda w, x: jnp.einsum("bi,j->bij", x, w[0, 0]),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_covered_is_refused_with_its_line(reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=re.escape(reason)) as error:
        trace(REFUSED[reason], W, X)
    assert re.search(r"test_trace\.py:\d+", str(error.value))


@pytest.mark.parametrize(
    "pool",
    [
        lambda y: y.sum(1).sum(1) / 64,
        lambda y: y.sum((1, 2)) / 64,
        lambda y: y.sum(2).mean(1) / 8,
        lambda y: y.sum(1).reshape(2, 2, 4, 16).sum(1).mean(1) / 16,
        lambda y: y.mean((1, 2)),
    ],
)
def test_a_mean_in_several_sums_is_a_mean(pool) -> None:
    layer = lambda x: jax.nn.relu(x @ W[0])
    images = jnp.ones((2, 8, 8, 16))
    b = GraphBuilder()
    b.affine(b.activation(b.affine(b.input())))
    assert trace(lambda x: pool(layer(x)) @ W[1], images) == b.build()


def test_repetition_is_a_move() -> None:
    assert trace(lambda w, x: jnp.tile(jnp.tanh(x @ w[0]), (2, 1)), W, X) == Graph.chain(1)


def test_factors_are_found_to_the_last_bit() -> None:
    for w in np.arange(0.02, 1.0, 0.07).tolist():
        other = math.sqrt(1.0 - w * w)
        block = lambda p, x, w=w, other=other: x * w + (jax.nn.relu(x @ p[0]) @ p[1]) * other
        assert trace(block, W, X).nodes[-1].weights == (w, other)  # pyright: ignore


def test_a_factor_of_a_shortcut_from_the_input_is_kept_wherever_it_goes() -> None:
    branch = lambda w, x: 0.8 * (jnp.tanh(x @ w[0]) @ w[1])
    direct = trace(lambda w, x: 0.6 * x + branch(w, x), W, X)
    assert direct.nodes[-1].weights == (0.6, 0.8)  # pyright: ignore
    flipped = trace(lambda w, x: jnp.flip(0.6 * x, 0) + branch(w, x), W, X)
    weights = [node.weights for node in flipped.nodes if isinstance(node, Sum)]
    assert sorted(weights) == [(0.6,), (1.0, 0.8)]

    def once(w, x):
        z = (x - 0.5) / 0.25
        return jnp.flip(0.6 * z, 0) + branch(w, z)

    weights = [node.weights for node in trace(once, W, X).nodes if isinstance(node, Sum)]
    assert sorted(weights) == [(0.6,), (1.0, 0.8)]


def test_layers_of_one_line_on_one_tensor_are_distinguished() -> None:
    class Heads(nn.Module):
        together: bool

        @nn.compact
        def __call__(self, x):
            z = nn.Dense(8)(x)
            heads = [nn.Dense(8)(nn.relu(nn.LayerNorm()(z))) for _ in range(2)]
            return 0.6 * heads[0] + 0.8 * heads[1] if self.together else heads

    variables = Heads(True).init(KEY, X)
    graph = trace(Heads(True).apply, variables, X)
    assert graph.nodes[-1].weights == (0.6, 0.8)  # pyright: ignore
    side_by_side = trace(Heads(False).apply, variables, X)
    assert isinstance(side_by_side.nodes[-1], Concat)


@pytest.mark.parametrize(
    ("arguments", "argnum", "found"),
    [
        ((W[0], {"x": X}), -1, "argument -1, must be an array .*, got dict"),
        ((X, W[0], KEY), -1, "got a random key.*argnum=1"),
        ((W[0], X, jnp.ones(())), 2, "argument 2, .*got a single number"),
        ((W[0], X), 2, "argnum=2 names none of the 2 arguments"),
        ((), -1, "argnum=-1 names none of the 0 arguments"),
    ],
)
def test_an_input_that_is_no_array_is_refused(arguments, argnum: int, found: str) -> None:
    with pytest.raises(TypeError, match=found):
        trace(lambda w, x, *_: x @ w, *arguments, argnum=argnum)


def test_an_array_added_to_a_layer_is_its_bias_unless_it_depends_on_the_input() -> None:
    factors = [W[0], jnp.ones((1, 4)), W[1, :4]]
    assert trace(lambda p, x: jnp.tanh(x @ p[0] + p[1] @ p[2]), factors, X[:1]) == Graph.chain(1)
    whole = lambda w, x: jnp.tanh(x @ w[0] + jnp.cumsum(jnp.ones((4, 16)), 0) @ w[1])
    assert trace(whole, W, X) == Graph.chain(1)
    other = lambda w, t, x: jnp.tanh(x @ w[0] + t @ w[1])
    assert trace(other, W, X, X) == Graph.chain(1)
    with pytest.raises(UnsupportedModelError, match="none of the known"):  # behind an activation
        trace(lambda b, x: relu_layer(W[0], x) + b, jnp.arange(16.0), X)


def relu_layer(w, x):
    return jax.nn.relu(x @ w)


V, SQUARE = jnp.arange(16.0), jnp.ones((16, 16))


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        # in a batch of one
        (lambda w, b, x: jnp.tanh(x @ w + b), (W[0], V[None], X[:1])),
        (
            lambda w, b, x: jnp.tanh(x.reshape(1, -1) @ w + b),
            (W[0], V[None], X[:1].reshape(1, 4, 4)),
        ),
        (
            lambda w, b, x: jnp.tanh(conv(w, x) + b),
            (jnp.ones((3, 3, 3, 16)), V.reshape(1, 1, 1, 16), IMAGE[:1]),
        ),
        (
            lambda w, b, x: jnp.tanh(x @ w + b),
            (W[0], jnp.arange(160.0).reshape(1, 10, 16), jnp.ones((1, 10, 16))),
        ),
        # of a single sample
        (lambda w, b, x: jnp.tanh(w @ x + b), (W[0], V, X[0])),
        (lambda w, a, b, x: jnp.tanh((w + a @ b) @ x), (W[0], W[1], W[2], X[0])),
        # weights of as many rows as there are samples
        (lambda w, x: jnp.tanh(x @ (w / 16**0.5)), (W[0], SQUARE)),
        (lambda w, g, x: jnp.tanh(x @ (w * g)), (W[0], V, SQUARE)),
        (lambda w, mask, x: jnp.tanh(x @ (w * mask)), (W[0], W[1], SQUARE)),
        (lambda w, a, b, x: jnp.tanh(x @ (w + a @ b)), (W[0], W[1], W[2], SQUARE)),
        (lambda w, x: jnp.tanh(x @ (w + w.T)), (W[0], SQUARE)),
        (lambda w, x: jnp.tanh(x @ (w / jnp.linalg.norm(w, axis=0))), (W[0], SQUARE)),
        # statistics of as many channels, and samples side by side
        (lambda w, mean, x: jnp.tanh(x @ w - (mean + 1e-5)), (W[0], V, SQUARE)),
        (lambda w, b, x: jnp.tanh(w @ x.T + b[:, None]), (W[0], V, SQUARE)),
        (lambda w, b, x: jnp.tanh(w @ x + b[:, None]), (W[0], V, X.T)),
    ],
)
def test_parameters_with_the_batch_size_of_the_input_are_parameters(fn, arguments) -> None:
    assert trace(fn, *arguments) == Graph.chain(1)


def test_a_normalisation_by_given_statistics_is_refused_as_in_a_list() -> None:
    def norm(w, mean, var, x):
        return jnp.tanh((x @ w - mean) / jnp.sqrt(var + 1e-5))

    with pytest.raises(UnsupportedModelError, match="none of the known"):
        trace(norm, W[0], V, V + 1, SQUARE)
    with pytest.raises(UnsupportedModelError, match="none of the known"):
        trace(lambda p, x: norm(p[0], p[1], p[2], x), [W[0], V, V + 1], SQUARE)


def test_argnum_names_the_input_and_all_else_is_parameters() -> None:
    first = lambda x, w, b, key: jax.nn.relu(x @ w + b)
    for argnum in (0, -4):
        assert trace(first, X, W[0], W[0, 0], KEY, argnum=argnum) == Graph.chain(1)
    with pytest.raises(UnsupportedModelError, match="none of the known"):  # a mask is no weight
        trace(
            lambda p, x, mask: relu_layer(p, x) * mask, W[0], X, jnp.arange(4.0)[:, None], argnum=1
        )
    turned = read(lambda x, w: x @ w, X, W[0]).record  # the same, with weights and input swapped
    assert turned.input.shape == (16, 16)


def test_keys_states_and_integers_beside_the_input_are_skipped() -> None:
    calls = [
        (lambda p, state, key, x: relu_layer(p["w"], x), {"w": W[0]}, {}, KEY, X),
        (lambda p, mask, x: relu_layer(p, x), W[0], jnp.ones((4,), bool), X),
        (lambda w, b, x: jax.nn.relu(x @ w + b), W[0], W[0, 0], X),
        (lambda w, b, x: jax.nn.relu(b + x @ w), W[0], W[0, 0], W[1]),
        (lambda x: relu_layer(W[0], x) * jnp.ones((4, 1)), X),
    ]
    for fn, *arguments in calls:
        assert trace(fn, *arguments) == Graph.chain(1)
    columns = lambda p, x: jax.nn.relu(p[1] @ jax.nn.relu(p[0] @ x))  # samples side by side
    assert trace(columns, list(W), X.T) == Graph.chain(2)


def test_the_recipe_builds_the_solved_network_in_equinox_and_haiku() -> None:
    class Net(eqx.Module):
        layers: list
        phi: object = eqx.field(static=True)

        def __init__(self, phi, key):
            self.layers = [eqx.nn.Linear(8, 8, key=k) for k in jax.random.split(key, 15)]
            self.phi = phi

        def __call__(self, x):
            for layer in self.layers:
                x = self.phi(layer(x))  # pyright: ignore
            return x

    def haiku(phi):
        def run(x):
            for _ in range(15):
                x = phi(hk.Linear(8)(x))
            return x

        return hk.transform(run)

    x = jax.random.normal(KEY, (4, 8))
    expected = solve(Graph.chain(15), TAT(eta=0.9))
    solution = solve(trace(jax.vmap(Net(jnp.tanh, KEY)), x), TAT(eta=0.9))
    assert solution == expected
    net = Net(shaped(solution), KEY)
    own = [(layer.weight.T, layer.bias) for layer in net.layers]
    np.testing.assert_allclose(jax.vmap(net)(x), by_numpy(solution, own, x), atol=1e-5)

    params = haiku(jnp.tanh).init(KEY, x)
    solution = solve(trace(haiku(jnp.tanh).apply, params, KEY, x), TAT(eta=0.9))
    assert solution == expected
    names = ["linear", *(f"linear_{i}" for i in range(1, 15))]
    own = [(params[name]["w"], params[name]["b"]) for name in names]
    found = haiku(shaped(solution)).apply(params, KEY, x)
    np.testing.assert_allclose(found, by_numpy(solution, own, x), atol=1e-5)


def by_numpy(phi, layers, x) -> np.ndarray:
    z = np.asarray(x, np.float64)
    for weight, bias in layers:
        z = phi(z @ np.asarray(weight, np.float64) + np.asarray(bias, np.float64))
    return z


def test_other_models_are_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedModelError, match="returns no array that depends"):
        trace(lambda w, x: w @ w, W, X)
    with pytest.raises(UnsupportedModelError, match="JAX cannot record the function"):
        trace(lambda w, x: x @ w[0] if x[0, 0] > 0 else x, W, X)
    with pytest.raises(UnsupportedModelError, match="as an embedding does"):
        trace(lambda table, tokens: table[tokens] @ W[0], W[0], jnp.ones((2, 3), int))


def test_weights_used_again_and_max_pooling_are_approximate() -> None:
    model = lambda w, x: jax.nn.relu(jax.nn.relu(x @ w) @ w)
    assert len(read(model, W[0], X).notes.approximate) == 1
    scanned = lambda w, x: jax.lax.scan(lambda x, w: (x @ w, None), x, w)[0]
    assert read(scanned, W, X).notes.approximate == []
    pooled = read(lambda x: nn.max_pool(x, (2, 2)), IMAGE)
    assert re.fullmatch(r"reduce_window_max at test_trace.py:\d+", pooled.notes.approximate[0])

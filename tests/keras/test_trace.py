"""A Keras model is read as the theory sees it, and as PyTorch's twin of it is read."""

# Keras' own annotations are inferred from its defaults.
# pyright: reportArgumentType=false, reportIncompatibleMethodOverride=false, reportOptionalOperand=false

import math

import keras
import numpy as np
import pytest
import torch
from keras import layers, ops
from torch import nn

from skipless import TAT, Graph, solve
from skipless.core.graph import Affine, Concat, Sum
from skipless.keras import (
    PerLocationNormalization,
    ShapedActivation,
    UnsupportedModelError,
    WeightedAdd,
    trace,
)
from skipless.keras.trace import read
from skipless.torch import trace as torch_trace

WIDTH = 8


def dense(units: int = WIDTH, **options):
    return layers.Dense(units, kernel_initializer="zeros", **options)


def conv(filters: int = WIDTH, size: int = 3, **options):
    return layers.Conv2D(filters, size, padding="same", kernel_initializer="zeros", **options)


def functional(build, shape=(WIDTH,)) -> keras.Model:
    x = keras.Input(shape)
    return keras.Model(x, build(x))


def kinds(graph: Graph) -> list[str]:
    return [type(node).__name__ for node in graph.nodes]


# The same networks in Keras and in PyTorch.


def keras_mlp(x):
    for _ in range(3):
        x = dense(activation="relu")(x)
    return dense(4)(x)


class TorchMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x)


def keras_residual(x):
    x = dense()(x)
    for _ in range(2):
        x = x * 0.8 + dense()(ops.tanh(x)) * 0.6
    return x


class TorchResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = x * 0.8 + layer(torch.tanh(x)) * 0.6
        return x


def keras_dense_net(x):
    x = conv(4)(x)
    for _ in range(2):
        y = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.Concatenate()([x, conv(2)(y)])
    return layers.GlobalAveragePooling2D()(x)


class TorchDenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4 + 2 * i) for i in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(4 + 2 * i, 2, 3, padding=1) for i in range(2))

    def forward(self, x):
        x = self.stem(x)
        for norm, layer in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, layer(torch.relu(norm(x)))], 1)
        return x.mean((2, 3))


def keras_separable(x):
    x = conv(activation="relu6")(x)
    x = layers.DepthwiseConv2D(3, padding="same", depthwise_initializer="zeros")(x)
    x = layers.ReLU(6.0)(x)
    x = conv(16, 1)(x)
    x = layers.SeparableConv2D(16, 3, padding="same", activation="relu6")(x)
    return conv(16, groups=4)(x)


class TorchSeparable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, padding=1), nn.ReLU6(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH), nn.ReLU6(),
            nn.Conv2d(WIDTH, 16, 1),
            nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 16, 1), nn.ReLU6(),
            nn.Conv2d(16, 16, 3, padding=1, groups=4),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


def keras_resnet(x):
    x = layers.ReLU()(layers.BatchNormalization()(conv()(x)))
    x = layers.MaxPooling2D(2)(x)
    for width in (WIDTH, 16):
        y = layers.Activation("relu")(layers.BatchNormalization()(conv(width)(x)))
        y = layers.BatchNormalization()(conv(width)(y))
        shortcut = x if width == WIDTH else layers.BatchNormalization()(conv(width, 1)(x))
        x = layers.ReLU()(layers.Add()([y, shortcut]))
    return dense(4)(layers.GlobalAveragePooling2D()(x))


class TorchResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH))
        self.first, self.second, self.project = (nn.ModuleList() for _ in range(3))
        for before, width in ((WIDTH, WIDTH), (WIDTH, 16)):
            self.first.append(nn.Conv2d(before, width, 3, padding=1))
            self.second.append(nn.Conv2d(width, width, 3, padding=1))
            self.project.append(nn.Conv2d(before, width, 1) if width > before else nn.Identity())
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.stem(x)), 2)
        for first, second, project in zip(self.first, self.second, self.project, strict=True):
            y = second(torch.relu(first(x)))
            x = torch.relu(y + project(x))
        return self.last(x.mean((2, 3)))


IMAGE, TORCH_IMAGE = (4, 4, 3), torch.zeros(2, 3, 4, 4)
TWINS = {
    "mlp": (keras_mlp, (WIDTH,), TorchMLP, torch.zeros(2, WIDTH)),
    "residual": (keras_residual, (WIDTH,), TorchResidual, torch.zeros(2, WIDTH)),
    "dense net": (keras_dense_net, IMAGE, TorchDenseNet, TORCH_IMAGE),
    "separable": (keras_separable, IMAGE, TorchSeparable, TORCH_IMAGE),
    "resnet": (keras_resnet, IMAGE, TorchResNet, TORCH_IMAGE),
}


@pytest.mark.parametrize("name", TWINS)
def test_the_same_network_in_torch_gives_an_equal_graph_and_solution(name) -> None:
    build, shape, twin, example = TWINS[name]
    model = functional(build, shape)
    graph, other = trace(model), torch_trace(twin().eval(), example)
    assert graph == other
    method = TAT(eta=0.1)
    assert solve(graph, method) == solve(other, method)
    loaded = keras.Model.from_config(model.get_config())
    assert trace(loaded) == graph


def keras_blocks(x):
    x = dense()(x)
    for _ in range(10):
        branch = dense()(layers.ReLU()(dense()(layers.ReLU()(x))))
        x = 0.8 * x + math.sqrt(1.0 - 0.8**2) * branch
    return x


def test_the_same_network_in_torch_jax_and_keras_gives_an_equal_graph_and_solution() -> None:
    for library in ("flax", "equinox", "haiku"):
        pytest.importorskip(library)
    import jax_networks
    from skipless.jax import trace as jax_trace

    function, arguments = jax_networks.residual("linen", 10)
    graphs = [
        trace(functional(keras_blocks)),
        torch_trace(jax_networks.TorchResidual(10, 4), torch.zeros(2, 4)),
        jax_trace(function, *arguments),
    ]
    assert graphs[0] == graphs[1] == graphs[2]
    assert graphs[0].activations == 20
    solutions = [solve(graph, TAT(eta=0.1)) for graph in graphs]
    assert solutions[0] == solutions[1] == solutions[2]


# Ways to write one thing.


@pytest.mark.parametrize(
    "activate",
    [
        lambda x: layers.Activation("relu")(x),
        lambda x: layers.Activation(keras.activations.silu)(x),
        lambda x: layers.ReLU()(x),
        lambda x: layers.ReLU(max_value=6.0)(x),
        lambda x: layers.LeakyReLU(negative_slope=0.3)(x),
        lambda x: layers.ELU(0.7)(x),
        lambda x: layers.PReLU(alpha_initializer=keras.initializers.Constant(0.25))(x),
        lambda x: ops.gelu(x),
        lambda x: x * ops.sigmoid(x),
        lambda x: layers.Multiply()([x, layers.Activation("sigmoid")(x)]),
        lambda x: ops.maximum(x, 0.0),
        lambda x: layers.Lambda(lambda z: ops.where(z > 0.0, z, 0.1 * z))(x),
        lambda x: ShapedActivation("tanh", 0.3, 0.1, 1.7, 0.2)(x),
        lambda x: layers.Activation("tanh")(layers.Identity()(layers.Dropout(0.5)(x))),
        lambda x: layers.Activation("relu")(layers.LayerNormalization()(x)),
        lambda x: ops.erf(x),
    ],
)
def test_an_activation_is_known_however_it_is_written(activate) -> None:
    graph = trace(functional(lambda x: dense()(activate(dense()(x)))))
    assert kinds(graph) == ["Input", "Affine", "Nonlinearity", "Affine"]


def test_two_activations_in_a_row_are_two_and_factors_are_sums() -> None:
    graph = trace(functional(lambda x: ops.tanh(layers.ReLU()(dense()(x))) * 3.0))
    assert kinds(graph) == ["Input", "Affine", "Nonlinearity", "Nonlinearity", "Sum"]
    assert graph.nodes[-1] == Sum((3,), (3.0,))


def test_origins_are_the_names_of_layers_and_of_the_models_they_are_in() -> None:
    inner = keras.Sequential([keras.Input((WIDTH,)), dense(name="first")], name="inner")
    graph = trace(functional(lambda x: dense(activation="relu", name="second")(inner(x))))
    assert [node.origin for node in graph.nodes[1:]] == ["inner/first", "second", "second"]


def test_sequential_models_nested_models_and_shared_layers_are_chains() -> None:
    block = keras.Sequential([dense(activation="relu"), dense(activation="relu")])
    shared = dense(activation="relu")
    nested = functional(lambda x: shared(shared(functional(lambda z: block(z))(block(x)))))
    assert trace(nested) == Graph.chain(6)


def test_a_sequential_model_without_a_shape_needs_an_example() -> None:
    model = keras.Sequential([dense(activation="relu")])
    with pytest.raises(UnsupportedModelError, match="pass an example"):
        trace(model)
    assert trace(model, np.zeros((2, WIDTH))) == Graph.chain(1)


@pytest.mark.parametrize(
    "begin",
    [
        lambda x: layers.Rescaling(1 / 127.5, offset=-1.0)(x),
        lambda x: layers.Normalization(mean=[0.1, 0.2, 0.3], variance=[1.0, 2.0, 3.0])(x),
        lambda x: layers.Rescaling([0.1, 0.2, 0.3])(layers.Rescaling(1 / 255.0)(x)),
        lambda x: (x - 0.5) / 0.25,
        lambda x: layers.RandomFlip()(x),
        lambda x: PerLocationNormalization()(x),
    ],
)
def test_what_only_prepares_the_input_is_no_node(begin) -> None:
    graph = trace(functional(lambda x: conv(activation="relu")(begin(x)), IMAGE))
    assert graph == Graph.chain(1)


def test_channels_first_counts_the_same_channels() -> None:
    def net(x, axis, order):
        x = layers.Concatenate(axis=axis)(
            [conv(4, data_format=order)(x), conv(2, data_format=order)(x)]
        )
        return layers.DepthwiseConv2D(3, data_format=order, padding="same")(x)

    first = trace(functional(lambda x: net(x, 1, "channels_first"), (3, 4, 4)))
    assert first == trace(functional(lambda x: net(x, -1, "channels_last"), IMAGE))
    assert first.nodes[3:] == (Concat((1, 2), (4.0, 2.0)), Affine(3, mixes=False))


def test_sums_have_the_weights_of_their_layer() -> None:
    def net(merge):
        return trace(functional(lambda x: merge([dense()(x), dense()(x)]))).nodes[-1]

    assert net(layers.Add()) == Sum((1, 2), (1.0, 1.0))
    assert net(layers.Subtract()) == Sum((1, 2), (1.0, -1.0))
    assert net(layers.Average()) == Sum((1, 2), (0.5, 0.5))
    assert net(WeightedAdd([0.8, 0.6])) == Sum((1, 2), (0.8, 0.6))
    assert net(lambda xy: 2.0 * xy[0] - xy[1]) == Sum((1, 2), (2.0, -1.0))
    assert net(lambda xy: layers.Add()([xy[0], xy[0], xy[1]])) == Sum((1, 2), (2.0, 1.0))


def test_a_factor_of_the_input_in_a_sum_is_kept() -> None:
    graph = trace(functional(lambda x: 0.6 * x + 0.8 * dense()(ops.relu(dense()(x)))))
    assert graph.nodes[-1] == Sum((0, 3), (0.6, 0.8))


@pytest.mark.parametrize(
    "between", [layers.Dropout(0.1), layers.Identity(), layers.LayerNormalization()]
)
def test_a_factor_of_the_input_is_kept_whatever_stands_before_the_sum(between) -> None:
    def net(x):
        return between(0.6 * x) + 0.8 * dense()(dense(activation="tanh")(x))

    graph = trace(functional(net))
    assert graph.nodes[1] == Sum((0,), (0.6,))
    assert graph.nodes[-1] == Sum((1, 4), (1.0, 0.8))


def test_constants_before_two_branches_still_standardise_the_input() -> None:
    def net(x):
        x = (x - 0.5) / 0.25
        return layers.Dropout(0.1)(x) + dense()(dense(activation="tanh")(x))

    assert trace(functional(net)).nodes[-1] == Sum((0, 3), (1.0, 1.0))


def test_a_separable_convolution_is_two_layers_that_are_used_once() -> None:
    def net(multiplier, times):
        layer = layers.SeparableConv2D(16, 3, padding="same", depth_multiplier=multiplier)

        def build(x):
            for _ in range(times):
                x = layer(x)
            return layers.ReLU()(x)

        return read(functional(build, (4, 4, 16)))

    assert net(1, 1).notes.approximate == []
    assert len(net(1, 2).notes.approximate) == 2  # both parts of it
    assert net(1, 1).graph.nodes[1:3] == (Affine(0, mixes=False), Affine(1, mixes=True))
    assert net(2, 1).graph.nodes[1:3] == (Affine(0, mixes=True), Affine(1, mixes=True))


def test_smooth_resizing_is_approximate_and_copying_is_not() -> None:
    def notes(interpolation):
        up = layers.UpSampling2D(interpolation=interpolation, name="up")
        return read(functional(lambda x: up(conv()(x)), IMAGE)).notes.approximate

    assert notes("nearest") == []
    assert notes("bilinear") == ["bilinear at up"]


def test_a_layer_of_the_users_own_is_read_by_its_operations() -> None:
    class Scale(layers.Layer):
        def build(self, shape):
            self.gamma = self.add_weight(shape=(shape[-1],), initializer="ones")

        def call(self, x):
            return ops.relu(x) * self.gamma

    assert trace(functional(lambda x: Scale()(dense()(x)))) == Graph.chain(1)


def test_a_network_ends_before_what_makes_the_form_of_its_outputs() -> None:
    ends = [
        lambda x: dense(4, activation="sigmoid")(x),
        lambda x: layers.Reshape((2, 2))(ops.tanh(dense(4)(x))),
        lambda x: layers.Rescaling(3.0, 1.0)(dense(4)(x)),
        lambda x: (lambda y: y - ops.mean(y, axis=1, keepdims=True))(dense(4)(x)),
        lambda x: dense(4, activation="softmax")(x),
        lambda x: layers.Softmax()(dense(4)(x)),
        lambda x: ops.log_softmax(dense(4)(x)),
    ]
    for end in ends:
        graph = trace(functional(lambda x, end=end: end(dense(activation="relu")(x))))
        assert kinds(graph) == ["Input", "Affine", "Nonlinearity", "Affine"]


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = dense()

    def call(self, x):
        return self.dense(x)


class Opaque(layers.Layer):
    """A layer of numpy's functions, which know no symbolic tensors."""

    def call(self, x):
        return np.sinh(np.asarray(x, float))

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


def two_inputs() -> keras.Model:
    x, y = keras.Input((WIDTH,)), keras.Input((WIDTH,))
    return keras.Model([x, y], layers.Add()([dense()(x), y]))


def two_outputs() -> keras.Model:
    x = keras.Input((WIDTH,))
    return keras.Model(x, [dense()(x), x])


REFUSED = {
    "two inputs": (two_inputs, "has 2 inputs and 1 outputs.*Trace keras.Model"),
    "two outputs": (two_outputs, "has 1 inputs and 2 outputs"),
    "subclass": (Subclassed, r"\(Subclassed\) is a subclassed model.*Functional"),
    "nested subclass": (
        lambda: functional(lambda x: Subclassed()(x)),
        r"\(Subclassed\) is a custom layer or subclassed model that holds layers",
    ),
    "gate": (
        lambda: functional(
            lambda x: layers.Multiply(name="gate")([y := dense()(x), keras.ops.flip(y, 1)])
        ),
        "gate combines two branches by Multiply",
    ),
    "softmax inside": (
        lambda: functional(lambda x: dense()(layers.Softmax(name="soft")(x))),
        r"soft \(Softmax\) computes a softmax inside the network",
    ),
    "attention": (
        lambda: functional(
            lambda x: layers.MultiHeadAttention(1, 2, name="attend")(x, x), (4, WIDTH)
        ),
        r"attend \(MultiHeadAttention\) computes attention, which has no Q and C maps",
    ),
    "recurrent": (
        lambda: functional(lambda x: layers.SimpleRNN(4, name="rnn")(x), (4, WIDTH)),
        r"rnn \(SimpleRNN\) is a recurrent layer, which has no",
    ),
    "embedding": (
        lambda: functional(lambda x: layers.Embedding(5, 4)(x)),
        r"\(Embedding\) makes vectors of indices, which has no",
    ),
    "gated activation": (
        lambda: functional(dense(activation="glu", name="gated")),
        r"gated \(Dense\) multiplies one half of its input by a gate, which has no",
    ),
    "gated operation": (
        lambda: functional(lambda x: ops.glu(dense()(x))),
        r"\(Glu\) multiplies one half of its input by a gate, which has no",
    ),
    "activation that is not pointwise": (
        lambda: functional(
            lambda x: dense()(
                dense(activation=lambda x: ops.flip(x, axis=1) * ops.relu(x), name="mine")(x)
            )
        ),
        "mine computes a pointwise function that is none of the known activations",
    ),
    "unknown operation": (
        lambda: functional(lambda x: dense()(ops.sort(dense()(x)))),
        r"\(Sort\) is an unknown operation, which has no",
    ),
    "unknown layer": (
        lambda: functional(lambda x: layers.UnitNormalization(name="unit")(dense()(x))),
        r"unit \(UnitNormalization\) is an unknown layer, which has no",
    ),
    "unknown function": (
        lambda: functional(lambda x: dense()(ops.cosh(dense()(x)))),
        "none of the known activations",
    ),
    "uneven slopes": (
        lambda: functional(
            lambda x: dense()(
                layers.PReLU(alpha_initializer=keras.initializers.RandomNormal(seed=0))(dense()(x))
            )
        ),
        "none of the known activations",
    ),
    "rearranged": (
        lambda: functional(
            lambda x: layers.Add()([dense(name="d")(x), layers.Permute((1,))(x), x])
        ),
        "rearrangement of itself",
    ),
    "opaque": (
        lambda: functional(lambda x: Opaque(name="numpy")(x)),
        r"numpy \(Opaque\).*keras.ops",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_theory_does_not_cover_is_refused_by_its_name_with_advice(name) -> None:
    build, says = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=says):
        trace(build())


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match="got Dense"):
        trace(dense())


@pytest.mark.parametrize(
    "pool",
    [
        layers.GlobalAveragePooling2D(),
        layers.GlobalMaxPooling2D(keepdims=True),
        layers.AdaptiveAveragePooling2D(2),
        layers.MaxPooling2D(2),
        lambda x: ops.mean(x, axis=(1, 2)),
        lambda x: ops.mean(x, axis=[-3, -2], keepdims=True),
        lambda x: ops.mean(ops.mean(x, axis=1), axis=1),
        lambda x: ops.mean(layers.Reshape((-1, WIDTH))(x), axis=1),
        lambda x: ops.mean(layers.Permute((3, 1, 2))(x), axis=(2, 3)),
        lambda x: layers.GlobalAveragePooling2D(data_format="channels_first")(
            ops.transpose(x, (0, 3, 1, 2))
        ),
        lambda x: ops.mean(x[:, 0], axis=1),
        lambda x: ops.mean(ops.take(x, 0, axis=1), axis=1),
        lambda x: ops.average_pool(x, 2),
    ],
)
@pytest.mark.parametrize("shape", [(4, 4, 3), (None, None, 3)])
def test_locations_may_be_pooled_however_it_is_written(pool, shape) -> None:
    model = functional(lambda x: pool(conv(activation="relu")(x)), shape)
    assert trace(model) == Graph.chain(1)


@pytest.mark.parametrize(
    ("layer", "axis"),
    [
        (dense(activation="relu"), 1),
        (layers.EinsumDense("abc,cde->abde", (5, 2, 3), activation="relu"), 1),
        (layers.EinsumDense("...c,cd->...d", 3, activation="relu"), 1),
        (layers.Conv1D(4, 1, data_format="channels_first", activation="relu"), 2),
    ],
)
def test_tokens_may_be_pooled_and_channels_may_not(layer, axis) -> None:
    pooled = lambda axis: functional(lambda x: ops.mean(layer(x), axis=axis), (5, 7))
    assert trace(pooled(axis)) == Graph.chain(1)
    with pytest.raises(UnsupportedModelError, match="Mean over channels"):
        trace(pooled(3 - axis if len(layer.output.shape) == 3 else 2))


@pytest.mark.parametrize(
    ("pool", "name"),
    [
        (lambda x: ops.mean(x, axis=-1), "Mean"),
        (lambda x: ops.mean(x, axis=3, keepdims=True), "Mean"),
        (lambda x: ops.mean(x), "Mean"),
        (lambda x: ops.average(x, axis=-1), "Average"),
        (lambda x: ops.mean(layers.Reshape((-1, WIDTH))(x), axis=2), "Mean"),
        (lambda x: ops.mean(layers.Flatten()(x), axis=1), "Mean"),
        (lambda x: ops.mean(x[:, 0], axis=2), "Mean"),
        (
            lambda x: ops.mean(
                ops.concatenate([ops.expand_dims(b, 1) for b in (x, conv()(x))], axis=1), axis=1
            ),
            "Mean",
        ),
        (
            lambda x: layers.GlobalAveragePooling2D(data_format="channels_first")(x),
            "GlobalAveragePooling2D",
        ),
        (
            lambda x: layers.MaxPooling1D(2)(
                layers.Permute((2, 1))(layers.Reshape((16, WIDTH))(x))
            ),
            "MaxPooling1D",
        ),
    ],
)
def test_pooling_of_channels_or_branches_is_refused(pool, name) -> None:
    model = functional(lambda x: pool(conv(activation="relu")(x)), IMAGE)
    says = rf"\w+ computes {name} over channels or branches, as maxout does"
    with pytest.raises(UnsupportedModelError, match=says):
        trace(model)


@pytest.mark.parametrize(
    "pad",
    [
        lambda x: ops.pad(x[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (2, 2))),
        lambda x: ops.pad(ops.mean(x, axis=(1, 2)), ((0, 0), (0, 4)), constant_values=1.0),
        lambda x: ops.pad(x, 1),
        lambda x: layers.ZeroPadding2D(1, data_format="channels_first")(x),
    ],
)
def test_channels_that_are_filled_up_are_refused(pad) -> None:
    model = functional(lambda x: pad(conv(activation="relu")(x)), IMAGE)
    with pytest.raises(UnsupportedModelError, match=r"fills up channels by \w*Pad.*1x1"):
        trace(model)


@pytest.mark.parametrize(
    "pad",
    [
        lambda x: ops.pad(x, ((0, 0), (1, 1), (0, 2), (0, 0))),
        lambda x: ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect"),
        lambda x: ops.pad(ops.transpose(x, (0, 3, 1, 2)), ((0, 0), (0, 0), (1, 1), (1, 1))),
        layers.ZeroPadding2D(1),
        lambda x: layers.ZeroPadding1D(1)(layers.Reshape((16, WIDTH))(x)),
        lambda x: ops.image.pad_images(x, 1, 1, target_height=6, target_width=6),
        lambda x: layers.ZeroPadding2D()(layers.Reshape((2, 2, 2))(ops.mean(x, (1, 2)))),
    ],
)
def test_locations_may_be_padded(pad) -> None:
    model = functional(lambda x: pad(conv(activation="relu")(x)), IMAGE)
    assert trace(model) == Graph.chain(1)


@pytest.mark.parametrize("tokens", [10, None])
def test_channels_that_became_locations_may_not_be_pooled_however_many_there_are(tokens) -> None:
    inputs = keras.Input((tokens, 4))
    pairs = layers.Reshape((-1, 2))(layers.Dense(8, "relu")(inputs))
    model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(pairs)))
    with pytest.raises(UnsupportedModelError, match="over channels"):
        trace(model)


def test_the_mean_of_a_single_channel_is_itself() -> None:
    model = functional(lambda x: ops.mean(layers.Conv2D(1, 1, activation="relu")(x), -1), IMAGE)
    assert trace(model) == Graph.chain(1)

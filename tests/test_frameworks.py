"""The verbs at the top of the package find the framework of a model."""

import copy
import inspect
from collections import Counter

import jax.numpy as jnp
import keras
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import skipless as sk
from skipless.torch import ShapedActivation

DEPTH, WIDTH = 13, 16


def torch_network() -> nn.Module:
    return nn.Sequential(
        *(m for _ in range(DEPTH) for m in (nn.Linear(WIDTH, WIDTH), nn.ReLU())),
        nn.Linear(WIDTH, 4),
    )


def keras_network() -> keras.Model:
    hidden = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(DEPTH)]
    return keras.Sequential([keras.Input((WIDTH,)), *hidden, keras.layers.Dense(4)])


def jax_network(weights: list[jnp.ndarray], x: jnp.ndarray) -> jnp.ndarray:
    for weight in weights[:-1]:
        x = jnp.maximum(x @ weight, 0.0)
    return x @ weights[-1]


def jax_arguments() -> tuple[list[jnp.ndarray], jnp.ndarray]:
    weights = [jnp.ones((WIDTH, WIDTH)) for _ in range(DEPTH)]
    return [*weights, jnp.ones((WIDTH, 4))], jnp.ones((2, WIDTH))


def test_one_verb_reads_models_of_every_framework() -> None:
    graphs = [
        sk.trace(torch_network(), torch.zeros(2, WIDTH)),
        sk.trace(keras_network(), np.zeros((2, WIDTH))),
        sk.trace(jax_network, *jax_arguments()),
    ]
    assert graphs[0] == graphs[1] == graphs[2]
    assert graphs[0].depth == DEPTH


def torch_gated() -> nn.Module:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.gate = nn.Linear(8, 12), nn.Linear(6, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = self.up(x).chunk(2, -1)
            y = self.down(a * nn.functional.silu(b))
            return x + y * torch.sigmoid(self.gate(y))

    return Gated()


def jax_gated(weights: list[jnp.ndarray], x: jnp.ndarray) -> jnp.ndarray:
    up, down, gate = weights
    a, b = jnp.split(x @ up, 2, -1)
    y = (a * nnx.silu(b)) @ down
    return x + y * nnx.sigmoid(y @ gate)


def keras_gated() -> keras.Model:
    x = keras.Input((8,))
    a, b = keras.ops.split(keras.layers.Dense(12)(x), 2, -1)  # pyright: ignore
    y = keras.layers.Dense(8)(keras.layers.Multiply()([a, keras.activations.silu(b)]))
    return keras.Model(x, x + y * keras.layers.Dense(8, activation="sigmoid")(y))


def test_a_gated_network_is_the_same_graph_in_every_framework() -> None:
    weights = [jnp.ones(shape) for shape in ((8, 12), (6, 8), (8, 8))]
    graphs = [
        sk.trace(torch_gated(), torch.zeros(2, 8)),
        sk.trace(keras_gated(), np.zeros((2, 8))),
        sk.trace(jax_gated, weights, jnp.ones((2, 8))),
    ]
    assert graphs[0] == graphs[1] == graphs[2]
    assert Counter(type(node).__name__ for node in graphs[0].nodes)["Product"] == 2
    converted = sk.convert(keras_gated(), np.zeros((2, 8)))
    assert [p.q for p in converted.skipless_report.predicted] == pytest.approx([1.0] * 11)


def test_the_solution_may_be_the_last_argument_of_check_as_in_each_framework() -> None:
    solution = sk.solve(sk.Graph.chain(1))
    model = nn.Sequential(nn.Linear(8, 8), ShapedActivation.from_solution(solution))
    x = torch.zeros(2, 8)
    named = sk.check(model, x, solution=solution, seeds=2)
    assert sk.check(model, x, solution, seeds=2) == named
    assert named.agrees


def test_a_grey_image_that_several_layers_read_is_checked_with_opposite_pairs() -> None:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 16, 1), nn.Conv2d(1, 16, 1)
            self.last = nn.Conv2d(16, 16, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.a(x) + self.b(x)))

    x = torch.zeros(2, 1, 4, 4)
    found = sk.check(sk.convert(Towers(), x), x, seeds=3)
    assert found.agrees, str(found)
    assert {row.cosine for row in found.comparisons} == {-1.0}


def test_a_module_of_jax_is_found_by_its_class() -> None:
    layer = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0))
    assert sk.trace(layer, jnp.ones((2, WIDTH))).depth == 0


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (nn.Linear, torch.zeros(1, 3), "got the class Linear; call it"),
        (torch.relu, torch.zeros(1, 3), "got a function of tensors; wrap it in a module"),
        (3, torch.zeros(1, 3), "Expected a PyTorch, Keras or JAX model, got int"),
    ],
)
def test_what_is_no_model_is_named(model: object, example: object, message: str) -> None:
    for verb in (sk.trace, sk.convert, sk.check, sk.measure):
        with pytest.raises(TypeError, match=message):
            verb(model, example)


class Network(nnx.Module):
    """Layers with normalisation, as a module of Flax."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        layer = lambda: nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.layers = nnx.List([layer() for _ in range(DEPTH)])
        self.norms = nnx.List([nnx.BatchNorm(WIDTH, rngs=rngs) for _ in range(DEPTH)])
        self.activation, self.last = nnx.relu, nnx.Linear(WIDTH, 4, rngs=rngs)

    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = self.activation(norm(layer(x)))
        return self.last(x)


def normalised_networks() -> list[tuple[object, object]]:
    torch_layers = (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
    modules = [copy.deepcopy(m) for _ in range(DEPTH) for m in torch_layers]
    layers = keras.layers
    keras_layers = (lambda: layers.Dense(WIDTH), layers.BatchNormalization, layers.ReLU)
    hidden = [make() for _ in range(DEPTH) for make in keras_layers]
    return [
        (nn.Sequential(*modules, nn.Linear(WIDTH, 4)), torch.zeros(2, WIDTH)),
        (keras.Sequential([keras.Input((WIDTH,)), *hidden, layers.Dense(4)]), None),
        (Network(), jnp.zeros((2, WIDTH))),
    ]


def test_the_same_arguments_give_the_same_solution_and_the_same_report() -> None:
    reports = [
        sk.convert(model, example, sk.TAT(eta=0.8), activation="leaky_relu").skipless_report
        for model, example in normalised_networks()
    ]
    first = reports[0]
    for report in reports[1:]:
        assert report.graph == first.graph
        assert report.solution == first.solution
        assert report.predicted == first.predicted
        assert report.untouched == ()
        # All is printed alike but for the names of layers.
        texts = [str(r).split("\n\n") for r in (first, report)]
        assert [len(text) for text in texts] == [5, 5]
        assert (texts[0][0], texts[0][2], texts[0][4]) == (texts[1][0], texts[1][2], texts[1][4])
        assert "SGD with momentum 0.9, gradients clipped at norm 1" in texts[0][4]
        rows = [[line.split()[-2:] for line in text[3].splitlines()[2:]] for text in texts]
        assert rows[0] == rows[1]
    whats = [Counter(change.what for change in report.changes) for report in reports]
    assert whats[0] == whats[1]
    assert whats[0]["normalisation removed"] == whats[2]["normalisation removed"] == DEPTH


@pytest.mark.parametrize("verb", ["trace", "convert", "check", "measure", "initialize_"])
def test_the_verbs_have_the_same_arguments_in_the_same_order(verb: str) -> None:
    native = {"generator": "seed", "rngs": "seed"}  # the source of randomness
    native |= {"fn": "model", "args": "example"}  # of JAX, where a model is a function
    # PyTorch alone measures parts, converts some of them, and trains slopes.
    of_one = {"strict", "parts", "keep", "trainable_slope", "argnum"}
    rooms = [sk.torch, sk.keras, *([sk.jax] if verb == "convert" else [])]
    names = [
        [
            native.get(name, name)
            for name in inspect.signature(getattr(room, verb)).parameters
            if name not in of_one
        ]
        for room in rooms
    ]
    assert all(own == names[0] for own in names)


class TorchPair(nn.Module):
    """A layer for each of two inputs, and one after their sum; `Split` feeds it one input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 8), nn.Linear(5, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.c(torch.relu(self.a(x)) + torch.relu(self.b(y)))


class JaxPair(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.a, self.b = nnx.Linear(3, 8, rngs=rngs), nnx.Linear(5, 8, rngs=rngs)
        self.c, self.phi = nnx.Linear(8, 4, rngs=rngs), nnx.relu

    def __call__(self, x: jnp.ndarray, y: jnp.ndarray) -> jnp.ndarray:
        return self.c(self.phi(self.a(x)) + self.phi(self.b(y)))


class JaxSplit(nnx.Module):
    def __init__(self) -> None:
        self.model = JaxPair()

    def __call__(self, x: jnp.ndarray) -> jnp.ndarray:
        return self.model(*jnp.split(x, (3,), 1))


def keras_pair(parts: bool) -> keras.Model:
    a, b = (keras.layers.Dense(8, activation="relu") for _ in range(2))
    c, x, y = keras.layers.Dense(4), keras.Input((3,)), keras.Input((5,))
    pair = keras.Model([x, y], c(a(x) + b(y)))
    if parts:
        return pair
    both = keras.Input((8,))
    return keras.Model(both, pair(keras.ops.split(both, (3,), 1)))


PAIRS = (
    (JaxPair, JaxSplit, jnp.asarray),
    (lambda: keras_pair(True), lambda: keras_pair(False), np.asarray),
)


def test_two_inputs_of_a_torch_model_are_one_tuple() -> None:
    x, y = torch.zeros(2, 3), torch.zeros(2, 5)
    assert sk.trace(TorchPair(), (x, y)).depth == 1
    for verb in (sk.trace, sk.check, sk.measure):
        with pytest.raises(TypeError, match=r"Expected one input, got 2.*as one tuple"):
            verb(TorchPair(), x, y)
    with pytest.raises(ValueError, match=r"missing a required argument.*as one tuple"):
        sk.trace(TorchPair(), x)


@pytest.mark.parametrize(("pair", "split", "tensor"), PAIRS, ids=["jax", "keras"])
def test_two_inputs_are_refused_with_advice_that_works(pair, split, tensor) -> None:
    model, x, y = pair(), tensor(np.zeros((2, 3), "f")), tensor(np.zeros((2, 5), "f"))
    for inputs in ((x, y), [x, y], x):
        for verb in (sk.trace, sk.convert, sk.measure):
            with pytest.raises((TypeError, ValueError), match=r"splits? (a single|one) input"):
                verb(model, inputs)
    if pair is not JaxPair:  # where all arguments but the last are parameters
        for verb in (sk.trace, sk.check, sk.measure):
            with pytest.raises(TypeError, match=r"Expected one input, got 2.*splits a single"):
                verb(model, x, y)
    graph = sk.trace(split(), tensor(np.zeros((2, 8), "f")))
    kinds = Counter(type(node).__name__ for node in graph.nodes)
    assert kinds == {"Input": 1, "Affine": 3, "Nonlinearity": 2, "Sum": 1}
    assert graph.depth == 1

"""The verbs at the top of the package find the framework of a model."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest
import torch
from flax import nnx
from torch import nn

import skipless as sk

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

"""What the wrong calls of wrong_calls.txt are made with, by the names that they have there."""

import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import torch
from flax import nnx
from torch import nn

import skipless as sk


class Exits(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sys.exit(3)


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return {}["a"]


class Flax(nnx.Module):
    def __init__(self) -> None:
        self.first = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
        self.last = nnx.Linear(8, 3, rngs=nnx.Rngs(1))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(jax.nn.relu(self.first(x)))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def builder() -> SimpleNamespace:
    """A graph builder with an input, each of whose methods also builds the graph."""
    made = sk.GraphBuilder()
    made.input()

    def built(name: str) -> Any:
        def add(*args: Any, **options: Any) -> sk.Graph:
            getattr(made, name)(*args, **options)
            return made.build()

        return add

    names = ("input", "affine", "activation", "sum", "concat", "add")
    return SimpleNamespace(**{name: built(name) for name in names})


def names() -> dict[str, Any]:
    graph, weights = sk.Graph.chain(20), jnp.eye(8)
    layers = [keras.Input((8,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)]
    return {
        **{"sk": sk, "np": np, "torch": torch, "nn": nn, "jnp": jnp, "sys": sys},
        **{"G": graph, "SOL": sk.solve(graph), "B": builder, "X": torch.randn(2, 8)},
        **{"Exits": Exits, "Fails": Fails, "LIN": nn.Linear(8, 8), "NET": network()},
        **{"KEY": jax.random.key(0), "A": jnp.zeros((2, 8)), "M": Flax()},
        **{"F": lambda x: jax.nn.relu(x @ weights) @ weights, "K": keras.Sequential(layers)},
    }

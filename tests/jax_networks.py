"""The same networks, written with every library of JAX and with PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from flax import nnx
from torch import nn as tnn

Traced = tuple[Callable[..., object], tuple[object, ...]]  # a function and its arguments
KEY = jax.random.key(0)
SHORTCUT, BRANCH = 0.8, math.sqrt(1.0 - 0.8**2)


class LinenResidual(nn.Module):
    blocks: int
    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Dense(self.width)(x)
        for _ in range(self.blocks):
            branch = nn.Dense(self.width)(nn.relu(x))
            x = SHORTCUT * x + BRANCH * nn.Dense(self.width)(nn.relu(branch))
        return x


class NnxResidual(nnx.Module):
    def __init__(self, blocks: int, width: int, rngs: nnx.Rngs) -> None:
        layer = lambda: nnx.Linear(width, width, rngs=rngs)
        self.stem = layer()
        self.branches = nnx.List([nnx.List([layer(), layer()]) for _ in range(blocks)])

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.stem(x)
        for first, second in self.branches:
            x = SHORTCUT * x + BRANCH * second(nnx.relu(first(nnx.relu(x))))
        return x


class EquinoxResidual(eqx.Module):
    stem: eqx.nn.Linear
    branches: list[tuple[eqx.nn.Linear, eqx.nn.Linear]]

    def __init__(self, blocks: int, width: int) -> None:
        layer = lambda: eqx.nn.Linear(width, width, key=KEY)
        self.stem = layer()
        self.branches = [(layer(), layer()) for _ in range(blocks)]

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.stem(x)
        for first, second in self.branches:
            x = SHORTCUT * x + BRANCH * second(jax.nn.relu(first(jax.nn.relu(x))))
        return x


def haiku_residual(blocks: int, width: int) -> hk.Transformed:
    def forward(x: jax.Array) -> jax.Array:
        x = hk.Linear(width)(x)
        for _ in range(blocks):
            branch = hk.Linear(width)(jax.nn.relu(x))
            x = SHORTCUT * x + BRANCH * hk.Linear(width)(jax.nn.relu(branch))
        return x

    return hk.transform(forward)


def plain_residual(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    x = x @ params["stem"]
    for first, second in zip(params["first"], params["second"], strict=True):
        x = SHORTCUT * x + BRANCH * (jax.nn.relu(jax.nn.relu(x) @ first) @ second)
    return x


def scanned_residual(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    @jax.checkpoint
    def block(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        first, second = weights
        return SHORTCUT * x + BRANCH * (jax.nn.relu(jax.nn.relu(x) @ first) @ second), None

    return jax.lax.scan(block, x @ params["stem"], (params["first"], params["second"]))[0]


class TorchResidual(tnn.Module):
    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.stem = tnn.Linear(width, width)
        layer = lambda: tnn.ModuleList([tnn.Linear(width, width), tnn.Linear(width, width)])
        self.branches = tnn.ModuleList(layer() for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for first, second in self.branches:  # pyright: ignore[reportGeneralTypeIssues]
            x = SHORTCUT * x + BRANCH * second(F.relu(first(F.relu(x))))
        return x


def residual(library: str, blocks: int, width: int = 4) -> Traced:
    """A residual network of 2 · `blocks` + 1 layers in that library."""
    x = jnp.ones((2, width))
    stacked = {name: jnp.ones((blocks, width, width)) for name in ("first", "second")}
    weights = {"stem": jnp.ones((width, width)), **stacked}
    match library:
        case "linen":
            model = LinenResidual(blocks, width)
            return model.apply, (jax.eval_shape(model.init, KEY, x), x)
        case "nnx":
            return NnxResidual(blocks, width, nnx.Rngs(0)), (x,)
        case "equinox":
            return jax.vmap(EquinoxResidual(blocks, width)), (x,)
        case "haiku":
            net = haiku_residual(blocks, width)
            return net.apply, (jax.eval_shape(net.init, KEY, x), KEY, x)
        case "scan":
            return scanned_residual, (weights, x)
        case _:
            return plain_residual, (weights, x)


class PreActivation(nn.Module):
    """A pre-activation ResNet with normalisation, pooled twice."""

    train: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        norm = lambda: nn.BatchNorm(use_running_average=not self.train)
        x = nn.Conv(8, (3, 3))(x)
        for width, stride in ((8, 1), (16, 2)):
            y = nn.relu(norm()(x))
            shortcut = x if stride == 1 else nn.Conv(width, (1, 1), stride)(y)
            y = nn.relu(norm()(nn.Conv(width, (3, 3), stride)(y)))
            x = shortcut + nn.Conv(width, (3, 3))(y)
        x = nn.avg_pool(nn.relu(norm()(x)), (2, 2), (2, 2))
        return nn.Dense(10)(jnp.mean(x, axis=(1, 2)))


class TorchPreActivation(tnn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = tnn.Conv2d(3, 8, 3, padding=1), tnn.Linear(16, 10)
        self.norms = tnn.ModuleList(map(tnn.BatchNorm2d, (8, 8, 8, 16, 16)))
        self.first = tnn.ModuleList(
            [tnn.Conv2d(8, 8, 3, padding=1), tnn.Conv2d(8, 16, 3, 2, padding=1)]
        )
        self.second = tnn.ModuleList(tnn.Conv2d(w, w, 3, padding=1) for w in (8, 16))
        self.shortcut = tnn.Conv2d(8, 16, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for i in range(2):
            y = F.relu(self.norms[2 * i](x))
            shortcut = x if i == 0 else self.shortcut(y)
            y = F.relu(self.norms[2 * i + 1](self.first[i](y)))
            x = shortcut + self.second[i](y)
        x = F.avg_pool2d(F.relu(self.norms[4](x)), 2)
        return self.head(x.mean(dim=(2, 3)))


class Dense(nn.Module):
    """DenseNet, with GELU and max pooling."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(8, (3, 3))(x)
        for _ in range(3):
            y = nn.Conv(4, (3, 3))(nn.gelu(nn.GroupNorm(2)(x), approximate=False))
            x = jnp.concatenate([x, y], axis=-1)
        x = nn.max_pool(x, (2, 2), (2, 2))
        return nn.Dense(5)(x.reshape(len(x), -1))


class TorchDense(tnn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = tnn.Conv2d(3, 8, 3, padding=1), tnn.Linear(20 * 16, 5)
        self.convs = tnn.ModuleList(tnn.Conv2d(c, 4, 3, padding=1) for c in (8, 12, 16))
        self.norms = tnn.ModuleList(tnn.GroupNorm(2, c) for c in (8, 12, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = torch.cat([x, conv(F.gelu(norm(x)))], dim=1)
        return self.head(F.max_pool2d(x, 2).flatten(1))


class EquinoxSeparable(eqx.Module):
    """Depthwise and pointwise convolutions, for one image, channels first."""

    layers: list[eqx.nn.Conv2d]
    head: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self) -> None:
        conv = lambda i, o, k, g=1: eqx.nn.Conv2d(i, o, k, padding=k // 2, groups=g, key=KEY)
        self.layers = [conv(3, 16, 3), conv(16, 16, 3, 16), conv(16, 16, 1), conv(16, 32, 3, 4)]
        self.head = eqx.nn.Linear(32, 5, key=KEY)
        self.dropout = eqx.nn.Dropout(0.3)

    def __call__(self, x: jax.Array, key: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = jax.nn.silu(layer(x))
        return self.head(self.dropout(jnp.mean(x, axis=(1, 2)), key=key))


class TorchSeparable(tnn.Module):
    def __init__(self) -> None:
        super().__init__()
        conv = lambda i, o, k, g=1: tnn.Conv2d(i, o, k, padding=k // 2, groups=g)
        convs = [conv(3, 16, 3), conv(16, 16, 3, 16), conv(16, 16, 1), conv(16, 32, 3, 4)]
        self.layers, self.head = tnn.ModuleList(convs), tnn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.silu(layer(x))
        return self.head(F.dropout(x.mean(dim=(2, 3)), 0.3))

"""Seconds of steps of kfac-jax, and of Optax's SGD between them, as JSON."""

# pyright: reportMissingImports=false

import json
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import kfac_jax
import numpy as np
import optax
from jax import Array
from tasks import CLASSES, CONVNET, MLP, NETWORKS, SLOPE, medians

Params = list[dict[str, Array]]
Batch = tuple[Array, Array]
RATE = 1e-6


def task(kind: str) -> tuple[Params, Batch]:
    random = np.random.default_rng(0)
    if kind == "mlp":
        batch, width, depth = MLP
        shapes, image = [(width, width)] * (depth - 1), (width,)
    else:
        batch, pixels, width, depth = CONVNET
        shapes, image = [(3, 3, width, width)] * depth, (pixels, pixels, width)
    params = [
        {
            "w": jnp.asarray(random.normal(size=s) / np.sqrt(np.prod(s[:-1])), jnp.float32),
            "b": jnp.zeros(s[-1]),
        }
        for s in (*shapes, (width, CLASSES))
    ]
    inputs = jnp.asarray(random.normal(size=(batch, *image)), jnp.float32)
    return params, (inputs, jnp.asarray(random.integers(CLASSES, size=batch)))


def loss(params: Params, batch: Batch) -> Array:
    x, labels = batch
    *hidden, last = params
    layout = ("NHWC", "HWIO", "NHWC")
    for layer in hidden:
        if x.ndim == 4:
            x = jax.lax.conv_general_dilated(
                x, layer["w"], (1, 1), "SAME", dimension_numbers=layout
            )
        else:
            x = x @ layer["w"]
        x = x + layer["b"]
        x = jnp.where(x > 0, x, SLOPE * x)
    x = x.mean((1, 2)) if x.ndim == 4 else x
    logits = x @ last["w"] + last["b"]
    kfac_jax.register_softmax_cross_entropy_loss(logits, targets=labels)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def by_kfac(kind: str) -> Callable[[], None]:
    params, batch = task(kind)
    optimizer = kfac_jax.Optimizer(
        jax.value_and_grad(loss),
        l2_reg=0.0,
        learning_rate_schedule=lambda step: jnp.asarray(RATE),
        momentum_schedule=lambda step: jnp.asarray(0.9),
        damping_schedule=lambda step: jnp.asarray(1e-3),
        norm_constraint=1e-3,
        curvature_ema=0.99,
        curvature_update_period=2,
        inverse_update_period=4,
        num_burnin_steps=0,
    )
    key = jax.random.PRNGKey(0)
    held = [params, optimizer.init(params, key, batch)]

    def step() -> None:
        held[0], held[1], _ = optimizer.step(held[0], held[1], key, batch=batch)
        jax.block_until_ready(held[0])

    return step


def by_sgd(kind: str) -> Callable[[], None]:
    params, batch = task(kind)
    optimizer = optax.sgd(RATE, momentum=0.9)

    @partial(jax.jit, donate_argnums=(0, 1))
    def updated(params: Params, state: optax.OptState, batch: Batch):
        gradients = jax.grad(loss)(params, batch)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state

    held = [params, optimizer.init(params)]

    def step() -> None:
        held[0], held[1] = updated(held[0], held[1], batch)
        jax.block_until_ready(held[0])

    return step


OPTIMIZERS = {"sgd": by_sgd, "kfac-jax": by_kfac}


def main() -> None:
    told = {
        network: medians({name: by(kind) for name, by in OPTIMIZERS.items()})
        for kind, network in NETWORKS.items()
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()

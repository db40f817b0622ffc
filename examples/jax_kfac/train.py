"""50 layers without shortcuts and without normalisation, trained in JAX: K-FAC beside SGD.

    make jax-example

or, in an environment of its own, because kfac-jax 0.0.8 needs a JAX older than 0.9:

    python3.11 -m venv .venv-jax-example
    .venv-jax-example/bin/pip install -r examples/jax_kfac/requirements.txt
    .venv-jax-example/bin/pip install --no-deps .
    .venv-jax-example/bin/python examples/jax_kfac/train.py

The network is a plain function. `skipless.jax.trace` reads it, `solve` finds the rectifier that
shapes it, and the same function then runs with that one instead of ReLU.
"""

# pyright: reportMissingImports=false

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import kfac_jax
import numpy as np
import optax
from jax import Array
from sklearn.datasets import load_digits

import skipless as sk

Params = list[dict[str, Array]]
Batch = tuple[Array, Array]  # images and labels
Phi = Callable[[Array], Array]

CLASSES, BATCH = 10, 128
# Appendix E.2, which is for CIFAR-10; inverses more often than there, as an epoch has 14 steps.
DAMPING, NORM_CONSTRAINT, INVERSE_PERIOD = 1e-2, 1e-4, 5
MOMENTUM = 0.9


def network(params: Params, images: Array, phi: Phi) -> Array:
    """The logits: dense layers with `phi` between them, and nothing else."""
    *hidden, last = params
    x = images
    for layer in hidden:
        x = phi(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def initial_params(key: Array, pixels: int, depth: int, width: int) -> Params:
    """Scaled-uniform orthogonal weights, as the theory assumes, and biases of zero."""
    draw = sk.jax.scaled_uniform_orthogonal()
    sizes = [pixels, *[width] * depth, CLASSES]
    return [
        {"w": draw(own, (fan_in, fan_out), jnp.float32), "b": jnp.zeros(fan_out)}
        for own, fan_in, fan_out in zip(
            jax.random.split(key, depth + 1), sizes[:-1], sizes[1:], strict=True
        )
    ]


def shape(params: Params, images: Array) -> tuple[Phi, sk.Solution]:
    """TReLU for the network above, and its solution."""
    graph = sk.jax.trace(partial(network, phi=jax.nn.relu), params, images[:2])
    solution = sk.solve(graph, sk.TAT(eta=0.9), clamp=True)
    return sk.jax.shaped(solution), solution


def digits() -> Batch:
    """All 1,797 images of 64 pixels, each of q value 1, and their labels."""
    images, labels = load_digits(return_X_y=True)
    centred = jnp.asarray(images - images.mean(), jnp.float32)
    return sk.jax.normalize_per_sample(centred), jnp.asarray(labels)


def batches(seed: int) -> Iterator[Batch]:
    """Endless batches, in an order that depends only on the seed."""
    images, labels = digits()
    random = np.random.default_rng(seed)
    while True:
        order = random.permutation(len(images))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            own = order[start : start + BATCH]
            yield images[own], labels[own]


def loss(params: Params, batch: Batch, phi: Phi) -> Array:
    """Mean cross-entropy; registers with kfac-jax which distribution the logits have."""
    images, labels = batch
    logits = network(params, images, phi)
    kfac_jax.register_softmax_cross_entropy_loss(logits, targets=labels)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def train_with_kfac(params: Params, phi: Phi, rate: float, seed: int) -> Iterator[float]:
    """The training loss at each step of K-FAC."""
    optimizer = kfac_jax.Optimizer(
        jax.value_and_grad(partial(loss, phi=phi)),
        l2_reg=0.0,
        learning_rate_schedule=lambda step: jnp.asarray(rate),
        momentum_schedule=lambda step: jnp.asarray(MOMENTUM),
        damping_schedule=lambda step: jnp.asarray(DAMPING),
        norm_constraint=NORM_CONSTRAINT,
        inverse_update_period=INVERSE_PERIOD,
        curvature_ema=0.99,
        num_burnin_steps=0,
    )
    key = jax.random.PRNGKey(seed)
    # Its steps reuse the memory of their parameters, and SGD starts from the same ones.
    params = jax.tree_util.tree_map(jnp.array, params)
    state = optimizer.init(params, key, next(batches(seed)))
    for batch in batches(seed):
        key, own = jax.random.split(key)
        params, state, stats = optimizer.step(params, state, own, batch=batch)
        yield float(stats["loss"])


def train_with_sgd(params: Params, phi: Phi, rate: float, seed: int) -> Iterator[float]:
    """The training loss at each step of SGD with momentum."""
    optimizer = optax.sgd(rate, momentum=MOMENTUM)
    state = optimizer.init(params)

    @jax.jit
    def step(params: Params, state: optax.OptState, batch: Batch):
        value, gradients = jax.value_and_grad(partial(loss, phi=phi))(params, batch)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, value

    for batch in batches(seed):
        params, state, value = step(params, state, batch)
        yield float(value)


OPTIMIZERS = {"kfac": train_with_kfac, "sgd": train_with_sgd}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="Example: python train.py --steps 3 --depth 6 --optimizer kfac",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=positive, default=60, help="steps of each optimiser")
    parser.add_argument("--depth", type=positive, default=50, help="hidden layers")
    parser.add_argument("--width", type=positive, default=100, help="units of a hidden layer")
    parser.add_argument(
        "--optimizer",
        choices=("both", *OPTIMIZERS),
        default="both",
        help="optimisers to train with",
    )
    parser.add_argument("--kfac-rate", type=float, default=0.003, help="learning rate of K-FAC")
    parser.add_argument("--sgd-rate", type=float, default=0.0005, help="learning rate of SGD")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and curvature")
    return parser.parse_args()


def positive(text: str) -> int:
    """A positive integer, for argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return int(text)


def main() -> None:
    args = options()
    images, _ = digits()
    params = initial_params(jax.random.PRNGKey(args.seed), images.shape[1], args.depth, args.width)
    phi, solution = shape(params, images)
    print(
        f"{args.depth} hidden layers of {args.width}, no shortcuts, no normalisation; "
        f"TReLU with negative slope {solution.negative_slope:.4f}\n"
    )
    rates = {"kfac": args.kfac_rate, "sgd": args.sgd_rate}
    names = list(OPTIMIZERS) if args.optimizer == "both" else [args.optimizer]
    runs = [OPTIMIZERS[name](params, phi, rates[name], args.seed) for name in names]
    print("step", *(f"{name:>8}" for name in names))
    for step in range(args.steps):
        print(f"{step:4d}", *(f"{next(run):8.4f}" for run in runs), flush=True)


if __name__ == "__main__":
    main()

"""convert of a function: the shaped network runs in its place, for every library and shape."""

from __future__ import annotations

import math
from collections.abc import Callable

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import jax_networks as networks
import skipless as sk
from skipless import DKS, EOC, TAT
from skipless.core.trace import UnsupportedModelError
from skipless.jax import ConvertedFunction, check, convert, initialize, shaped, trace

KEY = jax.random.key(0)
ETA = TAT(eta=0.2)
X = jax.random.normal(jax.random.key(1), (4, 16))
Weights = dict[str, jax.Array]


def close(found: object, wanted: object, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(
        np.asarray(found), np.asarray(wanted), rtol=tolerance, atol=tolerance
    )


def by_hand(weights: Weights, x: jax.Array, phi: Callable, w: float) -> jax.Array:
    """The residual network of `jax_networks`, with this activation and shortcut weight."""
    x = x @ weights["stem"]
    for first, second in zip(weights["first"], weights["second"], strict=True):
        x = w * x + math.sqrt(1.0 - w * w) * (phi(phi(x) @ first) @ second)
    return x


def residual(library: str) -> tuple[Callable, tuple, Callable[[tuple], Weights]]:
    """The network with all weights in arguments, and how to read them there."""
    fn, args = networks.residual(library, 2, 16)
    stacked = lambda of: {name: jnp.stack([of(b, i) for b in range(2)]) for i, name in NAMES}
    match library:
        case "linen":
            kernel = lambda args, i: args[0]["params"][f"Dense_{i}"]["kernel"]
            read = lambda args: (
                {"stem": kernel(args, 0)} | stacked(lambda b, i: kernel(args, 1 + 2 * b + i))
            )
        case "haiku":
            name = lambda i: f"linear_{i}" if i else "linear"
            read = lambda args: (
                {"stem": args[0]["linear"]["w"]}
                | stacked(lambda b, i: args[0][name(1 + 2 * b + i)]["w"])
            )
        case "equinox":
            model = networks.EquinoxResidual(2, 16)
            fn, args = lambda model, x: jax.vmap(model)(x), (model, args[-1])
            read = lambda args: (
                {"stem": args[0].stem.weight.T}
                | stacked(lambda b, i: args[0].branches[b][i].weight.T)
            )
        case "nnx":
            definition, state = nnx.split(fn)
            fn, args = lambda state, x: nnx.merge(definition, state)(x), (state, args[-1])
            read = lambda args: (
                {"stem": args[0]["stem"]["kernel"][...]}
                | stacked(lambda b, i: args[0]["branches"][b][i]["kernel"][...])
            )
        case _:
            read = lambda args: args[0]
    return fn, args, read


NAMES = ((0, "first"), (1, "second"))


@pytest.mark.parametrize("library", ["linen", "haiku", "equinox", "nnx", "scan", "plain"])
def test_the_network_of_every_library_becomes_the_one_written_by_hand(library: str) -> None:
    fn, args, weights = residual(library)
    model = convert(fn, *args, ETA, shortcut_weight=0.5)
    drawn = initialize(model, *args, key=KEY)
    phi = shaped(model.skipless_report.solution)
    wanted = by_hand(weights(drawn), X, phi, 0.5)
    close(jax.jit(model)(*drawn, X), wanted)
    close(model(*drawn, X[:2]), wanted[:2])
    square = weights(drawn)["stem"]
    close(square.T @ square, np.eye(16))
    assert trace(model, *args) == model.skipless_report.graph


@pytest.mark.parametrize("shortcut_weight", [None, 0.0, 0.5])
def test_it_is_what_pytorch_makes_of_the_same_network(shortcut_weight: float | None) -> None:
    options = {"activation": "tanh", "shortcut_weight": shortcut_weight}
    theirs = sk.torch.convert(
        networks.TorchResidual(2, 16), torch.zeros(2, 16), DKS(zeta=1.2), **options
    )
    mine = convert(
        *networks.residual("plain", 3, 16)[:1], *residual("plain")[1], DKS(1.2), **options
    )
    report, expected = mine.skipless_report, theirs.skipless_report
    assert report.solution.parameters == pytest.approx(expected.solution.parameters, abs=1e-6)
    close([p.c for p in report.predicted], [p.c for p in expected.predicted], 1e-7)
    kinds = [[c.what for c in r.changes if "activation" in c.what] for r in (report, expected)]
    assert kinds[0] == kinds[1]
    matrices = [p.detach().numpy().T for name, p in theirs.named_parameters() if "weight" in name]
    stem, *branches = map(jnp.asarray, matrices)
    weights = {"stem": stem, "first": jnp.stack(branches[::2]), "second": jnp.stack(branches[1::2])}
    close(mine(weights, X), theirs(torch.tensor(np.asarray(X))).detach().numpy())


def test_transformations_of_jax_apply_to_it() -> None:
    fn, args, _ = residual("plain")
    model = convert(fn, *args, ETA, shortcut_weight=0.5)
    (weights,) = initialize(model, *args, key=KEY)
    reference = lambda weights, x: by_hand(weights, x, shaped(model.skipless_report.solution), 0.5)
    loss = lambda fn: lambda weights, x: jnp.sum(jnp.sin(fn(weights, x)))
    found, wanted = (jax.grad(loss(f), (0, 1))(weights, X) for f in (model, reference))
    jax.tree.map(close, found, wanted)
    close(jax.vmap(model, (None, 0))(weights, X), reference(weights, X))
    twice = jax.tree.map(lambda w: jnp.stack([w, 2.0 * w]), weights)
    both = jax.vmap(model, (0, None))(twice, X)
    close(both[1], reference(jax.tree.map(lambda w: 2.0 * w, weights), X), 1e-4)
    close(
        jax.jvp(model, (weights, X), (weights, X))[1],
        jax.jvp(reference, (weights, X), (weights, X))[1],
    )
    inside = jax.jit(lambda w, x: convert(fn, w, x, ETA, shortcut_weight=0.5)(w, x))
    close(inside(weights, X), reference(weights, X))


def test_a_function_is_recorded_once_for_each_shape() -> None:
    calls: list[object] = []

    def network(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        calls.append(x.shape)
        for w in weights:
            x = jax.nn.relu(x @ w)
        return x

    weights = [jnp.eye(16)] * 5
    model = convert(network, weights, X, ETA)
    before = len(calls)
    for size in (4, 2, 4, 2):
        close(model(weights, X[:size]), model(weights, X)[:size])
    assert len(calls) - before == 2
    half = model(jax.tree.map(jnp.bfloat16, weights), X.astype(jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    close(half, model(weights, X), 0.1)


def test_arrays_that_the_function_closes_over_are_read_in_every_call() -> None:
    held = {"w": jnp.eye(16)}
    model = convert(lambda x: jax.nn.relu(x @ held["w"]) @ held["w"], X, TAT(eta=0.1))
    first = model(X)
    held["w"] = 2.0 * jnp.eye(16)
    close(model(X), 4.0 * first)


class PostActivation(nn.Module):
    """ReLU behind the sums, normalisation, dropout, pooling by a sum, and a softmax."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        norm = lambda: nn.BatchNorm(use_running_average=not train)
        x = nn.relu(norm()(nn.Conv(8, (3, 3), use_bias=False)(x)))
        for _ in range(2):
            y = norm()(nn.Conv(8, (3, 3), use_bias=False)(x))
            x = nn.relu(x + nn.Dropout(0.5, deterministic=not train)(y))
        x = jnp.sum(x, axis=(1, 2)) / (x.shape[1] * x.shape[2])
        return nn.softmax(nn.Dense(5)(x))


def test_shortcuts_move_norms_leave_their_shift_and_what_is_no_network_stays() -> None:
    net, image = PostActivation(), jax.random.normal(KEY, (1, 2, 2, 3))
    variables = net.init(KEY, image)
    model = convert(net.apply, variables, image, TAT(eta=0.1), shortcut_weight=0.6)
    (variables,) = initialize(model, variables, image, key=KEY)
    params = variables["params"]
    for name in ("BatchNorm_0", "BatchNorm_2"):
        params[name]["bias"] = jnp.linspace(-1.0, 1.0, 8)
    phi = shaped(model.skipless_report.solution)

    def reference(params, x: jax.Array) -> jax.Array:
        same = lambda x, i: (
            jax.lax.conv_general_dilated(
                x,
                params[f"Conv_{i}"]["kernel"],
                (1, 1),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            + params[f"BatchNorm_{i}"]["bias"]
        )
        x = same(x, 0)
        for i in (1, 2):
            x = 0.6 * x + 0.8 * same(phi(x), i)
        x = jnp.mean(phi(x), axis=(1, 2))
        return jax.nn.softmax(x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])

    close(model(variables, image), reference(params, image))
    whats = [change.what for change in model.skipless_report.changes]
    assert whats.count("normalisation removed") == whats.count("bias added") == 3
    run = lambda train: model(variables, image, train=train, rngs={"dropout": KEY}, mutable=True)
    output, state = jax.jit(run, static_argnums=0)(True)
    assert not np.allclose(output, reference(params, image))  # dropout drops
    jax.tree.map(np.testing.assert_array_equal, state["batch_stats"], variables["batch_stats"])


def test_gradients_stop_where_they_stopped_and_signs_of_factors_stay() -> None:
    def network(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = -2.0 * jnp.tanh(x @ w)
        return jax.lax.stop_gradient(x) @ weights[0]

    weights = [jnp.eye(16)] * 6
    model = convert(network, weights, X, DKS(zeta=1.1), activation="tanh")
    phi, x = shaped(model.skipless_report.solution), X
    for _ in weights:
        x = -phi(x)
    close(model(weights, X), x)
    found = jax.grad(lambda w: jnp.sum(model(w, X)))(weights)
    close(found[0], jnp.broadcast_to(x.sum(0)[:, None], (16, 16)))
    close(found[1], 0.0)


def test_gates_are_scaled_and_checked() -> None:
    def network(weights: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
        for a, b in weights:
            x = jax.nn.relu(x @ a) * jax.nn.sigmoid(x @ b)
        return x

    weights = [(jax.ShapeDtypeStruct((64, 64), "float32"),) * 2] * 4
    x = jnp.zeros((1, 64))
    model = convert(network, weights, x, TAT(eta=0.1), clamp=True)
    found = check(model, weights, x, seeds=4)
    assert found.agrees, found.verdict
    assert "gate kept" in str(model.skipless_report)


def test_sigmas_come_from_the_solution_and_training_works() -> None:
    def forward(x: jax.Array) -> jax.Array:
        for _ in range(8):
            x = jnp.tanh(hk.Linear(16)(x))
        return hk.Linear(1)(x)[:, 0]

    net = hk.without_apply_rng(hk.transform(forward))
    shapes = jax.eval_shape(net.init, KEY, X)
    model = convert(net.apply, shapes, X, EOC(sigma_b=0.2), activation="tanh")
    (params,) = initialize(model, shapes, X, key=KEY)
    biases = jnp.concatenate([layer["b"] for layer in params.values()])
    assert float(biases.std()) == pytest.approx(0.2, abs=4 * 0.2 / math.sqrt(2 * biases.size))
    target = X[:, 0] * X[:, 1]
    loss = lambda params: jnp.mean((model(params, X) - target) ** 2)
    step = jax.jit(lambda p: jax.tree.map(lambda w, g: w - 0.01 * g, p, jax.grad(loss)(p)))
    before = loss(params)
    for _ in range(20):
        params = step(params)
    assert loss(params) < 0.5 * before


def test_a_module_of_equinox_may_be_the_function() -> None:
    mlp = eqx.nn.MLP(16, 16, 16, 6, key=KEY)
    model = convert(mlp, X[0], ETA)
    phi, x = shaped(model.skipless_report.solution), X[0]
    for layer in mlp.layers[:-1]:
        x = phi(layer(x))
    close(model(X[0]), mlp.layers[-1](x))
    assert isinstance(model, ConvertedFunction)


def test_the_argument_may_be_named_and_sk_finds_the_room() -> None:
    fn = lambda x, weights: by_hand(weights, x, jax.nn.relu, 0.8)
    _, (weights, _), _ = residual("plain")
    first = convert(fn, X, weights, method=ETA, argnum=0)
    last = sk.convert(lambda w, x: fn(x, w), weights, X, ETA)
    close(first(X, weights), last(weights, X))
    close(sk.convert(lambda w, x: fn(x, w), weights, X, method=ETA)(weights, X), last(weights, X))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda fn, w: convert(3, X), r"Expected a function and its .*int"),  # pyright: ignore
        (lambda fn, w: convert(fn, w, X, "tat"), r"must be an array or a .*got str"),
        (lambda fn, w: convert(fn), r"argnum=-1 names none of the 0 arguments"),
        (lambda fn, w: convert(fn, w, X, rngs=nnx.Rngs(0)), r"drawn by sk\.jax\.initialize"),
        (lambda fn, w: convert(fn, w, X, ETA, activation="tahn"), r"Did you mean 'tanh'"),
        (lambda fn, w: convert(fn, w, X[:, :3], ETA), r"cannot record the function on an input"),
        (lambda fn, w: convert(fn, w, X, ETA)(w, X[:, :3]), r"cannot record the function on an"),
        (
            lambda fn, w: convert(lambda w, x: jnp.sort(x @ w) @ w, w, X),
            r"computes sort.*no Q and C",
        ),
        (lambda fn, w: convert(networks.NnxResidual(1, 16, nnx.Rngs(0)), X, X, X), r"one input"),
    ],
)
def test_mistakes_are_told_in_one_line(call: Callable, message: str) -> None:
    fn = lambda w, x: jax.nn.relu(jax.nn.relu(x @ w) @ w)
    with pytest.raises((TypeError, ValueError, UnsupportedModelError), match=message) as caught:
        call(fn, jnp.eye(16))
    assert "\n" not in str(caught.value).partition("\n\nFrom")[0]

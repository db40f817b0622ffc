"""measure and check: a real network of JAX has the kernel that the theory gives it."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jax_networks as networks
from skipless import EOC, TAT, Graph, solve
from skipless.core.trace import UnsupportedModelError
from skipless.jax import check, measure, normalize_per_location, pair_inputs, shaped, trace
from skipless.torch import measure as torch_measure

KEY = jax.random.key(0)


def test_pairs_have_their_cosine_at_every_location() -> None:
    x = np.asarray(pair_inputs((3, 5, 4), pairs=3, cosine=0.3, channel_axis=0), np.float64)
    assert x.shape == (6, 3, 5, 4)
    np.testing.assert_allclose((x**2).mean(axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose((x[0::2] * x[1::2]).mean(axis=1), 0.3, atol=1e-5)
    other = pair_inputs((3, 5, 4), 3, 0.3, channel_axis=0, key=jax.random.key(1))
    assert not np.allclose(x, other)


def test_the_values_are_those_that_pytorch_measures_with_the_same_weights() -> None:
    model = networks.TorchResidual(3, 8)
    fn, _ = networks.residual("plain", 3, 8)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.zeros_(parameter)
    own = lambda layer: jnp.asarray(layer.weight.detach().numpy().T)
    params = {
        "stem": own(model.stem),
        "first": jnp.stack([own(b[0]) for b in model.branches]),  # pyright: ignore
        "second": jnp.stack([own(b[1]) for b in model.branches]),  # pyright: ignore
    }
    x = pair_inputs((8,), pairs=4, cosine=0.5)
    expected = torch_measure(model, torch.from_numpy(np.array(x)))
    found = measure(fn, params, x)
    assert len(found.nodes) == len(expected.nodes) == 17
    for mine, theirs in zip(found.nodes, expected.nodes, strict=True):
        assert (mine.node, mine.kind) == (theirs.node, theirs.kind)
        assert mine.q.mean == pytest.approx(theirs.q.mean, rel=1e-4)
        assert mine.c.mean == pytest.approx(theirs.c.mean, abs=1e-5)


def test_channels_are_found_wherever_a_library_puts_them() -> None:
    def first_q(fn, *arguments) -> list[float]:
        return [node.q.mean for node in measure(fn, *arguments, seeds=2).nodes]

    image = pair_inputs((4, 4, 8), pairs=2, cosine=0.0)
    conv = nn.Conv(8, (3, 3))
    linen = first_q(conv.apply, jax.eval_shape(conv.init, KEY, image), image)
    layer = eqx.nn.Conv2d(8, 8, 3, padding=1, key=KEY)
    equinox = first_q(jax.vmap(layer), jnp.moveaxis(image, -1, 1))
    assert linen == pytest.approx([1.0, 1.0], abs=1e-4)
    assert equinox == pytest.approx([1.0, 1.0], abs=1e-4)


def test_channels_are_found_behind_a_transposition() -> None:
    x = pair_inputs((8, 5), pairs=3, cosine=0.25, channel_axis=0)
    found = measure(lambda w, x: jnp.swapaxes(x, 1, 2) @ w, jnp.eye(8), x)
    assert [node.c.mean for node in found.nodes] == pytest.approx([0.25, 0.25], abs=1e-5)


def test_the_kernel_of_a_shaped_residual_network_is_the_predicted_one() -> None:
    def model(params, phi, x):
        x = x @ params[0]
        for first, second in params[1:]:
            x = 0.6 * x + 0.8 * (phi(phi(x) @ first) @ second)
        return x

    weights = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    params, x = [weights, *([(weights, weights)] * 5)], jnp.zeros((1, 128))
    solution = solve(trace(model, params, jax.nn.relu, x), TAT(eta=0.5))
    found = check(model, params, shaped(solution), x, solution=solution, cosines=(0, 0.5), seeds=6)
    assert found.agrees, found.verdict
    other = solve(Graph.chain(10), TAT(eta=0.8))  # not what the network has
    assert not check(model, params, shaped(solution), x, solution=other, seeds=6).agrees


class Convolutional(nn.Module):
    phi: object

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = normalize_per_location(x)
        for stride in (1, 2):
            x = self.phi(nn.Conv(64, (3, 3), stride)(x))  # pyright: ignore
        x = self.phi(nn.ConvTranspose(64, (4, 4), (2, 2))(x))  # pyright: ignore
        x = nn.avg_pool(x, (2, 2), (2, 2))
        return nn.Dense(64)(x.reshape(len(x), -1))


@pytest.mark.parametrize("distribution", ["orthogonal", "gaussian"])
def test_the_kernel_of_a_convolutional_network_with_biases_is_the_predicted_one(
    distribution,
) -> None:
    x = jnp.zeros((1, 4, 4, 8))
    variables = jax.eval_shape(Convolutional(jnp.tanh).init, KEY, x)
    graph = trace(Convolutional(jnp.tanh).apply, variables, x)
    solution = solve(graph, EOC(sigma_b=0.3), "tanh")
    model = Convolutional(shaped(solution))
    found = check(model.apply, variables, x, solution=solution, seeds=8, distribution=distribution)
    assert found.agrees, found.verdict
    assert solution.sigma_b == 0.3


def test_what_cannot_be_drawn_or_run_is_refused() -> None:
    x = jnp.ones((2, 4))
    computed = lambda w, x: x @ (w / jnp.linalg.norm(w))
    solution = solve(Graph.chain(20))
    with pytest.raises(UnsupportedModelError, match="weights that are computed by div"):
        check(computed, jnp.ones((4, 4)), x, solution=solution)
    with pytest.raises(UnsupportedModelError, match="of another layer, transposed"):
        check(lambda w, x: x @ w @ w.T, jnp.ones((4, 5)), x, solution=solution)
    with pytest.raises(ValueError, match="Only the shape"):
        measure(lambda w, x: x @ w, jax.ShapeDtypeStruct((4, 4), jnp.float32), x)
    with pytest.raises(ValueError, match="even number of samples"):
        measure(lambda w, x: x @ w, jnp.ones((4, 4)), x[:1])
    with pytest.raises(TypeError, match="cosines must be a sequence of numbers"):
        check(lambda w, x: x @ w, jnp.ones((4, 4)), x, solution=solution, cosines=())


def test_weights_may_be_drawn_by_the_user() -> None:
    x = pair_inputs((4,), pairs=2, cosine=0.0)
    draw = lambda key: (jax.random.randint(key, (), 2, 4) * jnp.eye(4),)
    found = measure(lambda w, x: x @ w, jnp.eye(4), x, seeds=[0, 1, 2], draw=draw)
    expected = np.mean([float(draw(jax.random.key(s))[0][0, 0]) ** 2 for s in range(3)])
    assert found.nodes[-1].q.mean == pytest.approx(expected, rel=1e-5)
    assert found.seeds == 3


@pytest.mark.parametrize(("reverse", "q"), [(False, [1, 4, 36, 900]), (True, [1, 25, 225, 900])])
def test_a_scan_takes_its_layers_in_order(reverse: bool, q: list[float]) -> None:
    w = jnp.stack([k * jnp.eye(4) for k in (2.0, 3.0, 5.0)])
    fn = lambda w, x: jax.lax.scan(lambda c, w: (c @ w, None), x, w, reverse=reverse)[0]
    found = measure(fn, w, pair_inputs((4,), pairs=2, cosine=0.0))
    assert [node.q.mean for node in found.nodes] == pytest.approx(q, rel=1e-4)


def test_a_factor_of_an_activation_is_a_node_of_its_own() -> None:
    x = pair_inputs((4,), pairs=2, cosine=0.0)
    found = measure(lambda w, x: (3.0 * jnp.tanh(x @ w)) @ w, jnp.eye(4), x)
    own = float(np.mean(np.tanh(np.asarray(x, float)) ** 2))
    expected = [1, 1, own, 9 * own, 9 * own]
    assert [node.q.mean for node in found.nodes] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("size", "dilation"), [(3, 2), (5, 3)])
def test_dilated_convolutions_are_drawn_at_the_tap_that_reads_the_location(size, dilation) -> None:
    conv = lambda w, x: jax.lax.conv_general_dilated(
        x, w, (1,), "SAME", rhs_dilation=(dilation,), dimension_numbers=("NWC", "WIO", "NWC")
    )
    w = jax.ShapeDtypeStruct((size, 8, 8), jnp.float32)
    found = measure(conv, w, pair_inputs((12, 8), pairs=2, cosine=0.0), seeds=2)
    assert [node.q.mean for node in found.nodes] == pytest.approx([1, 1], abs=1e-4)


def test_weights_with_an_axis_of_groups_are_drawn_group_by_group() -> None:
    fn = lambda w, x: jnp.einsum("bhi,hio->bho", x, w)
    w = jax.ShapeDtypeStruct((3, 8, 16), jnp.float32)
    found = measure(fn, w, pair_inputs((3, 8), pairs=2, cosine=0.0), seeds=2)
    assert [node.q.mean for node in found.nodes] == pytest.approx([1, 1], abs=1e-4)


def test_weights_that_are_used_twice_are_drawn_once_and_are_not_lost() -> None:
    fn = lambda w, x: jax.nn.relu(jax.nn.relu(x @ w) @ w)
    w = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    found = measure(fn, w, pair_inputs((64,), pairs=2, cosine=0.0), seeds=2)
    assert found.nodes[-1].q.mean > 0.05

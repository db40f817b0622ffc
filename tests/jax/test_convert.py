"""Flax NNX: constants travel with the model and are not trained; convert shapes what is held."""

import math
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from skipless import DKS, TAT, Graph, solve
from skipless.core.graph import Nonlinearity
from skipless.core.network import fold
from skipless.core.summary import kind_of
from skipless.jax import (
    Constant,
    ConversionReport,
    Identity,
    ShapedActivation,
    TReLU,
    check,
    convert,
    measure,
    normalize_per_location,
    pair_inputs,
    shaped,
    trace,
)
from skipless.jax.modules import initialize_, is_activation
from skipless.jax.trace import UnsupportedModelError

POINTS = jnp.linspace(-3.0, 3.0, 13)
CHAIN = Graph.chain(30)
TRELU = solve(CHAIN, TAT())
TANH = solve(CHAIN, DKS(), "tanh")
IMAGE = jnp.zeros((1, 6, 6, 3))
SHALLOW = TAT(eta=0.2)
# Flax's own weights, which convert replaces, would take most of the time.
Conv, Einsum, ConvTranspose, LinearGeneral = (
    partial(layer, kernel_init=nnx.initializers.zeros)
    for layer in (nnx.Conv, nnx.Einsum, nnx.ConvTranspose, nnx.LinearGeneral)
)


def close(found, wanted, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("solution", [TRELU, TANH], ids=["TAT", "DKS"])
def test_a_shaped_activation_is_its_solution(solution) -> None:
    module = ShapedActivation.from_solution(solution)
    assert isinstance(module, TReLU) == (solution is TRELU)
    close(module(POINTS), solution(np.asarray(POINTS, float)), 1e-5)
    half = module(POINTS.astype("bfloat16"))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_array_equal(half, shaped(solution)(POINTS.astype("bfloat16")))
    used = {name: number for name, number in solution.parameters.items() if number is not None}
    assert module.constants == pytest.approx(
        {name: used[name] for name in used if not name.startswith("sigma")}, rel=1e-6
    )


def test_constants_are_state_that_is_split_merged_and_restored() -> None:
    module, other = ShapedActivation.from_solution(TANH), ShapedActivation("tanh")
    definition, state = nnx.split(module)
    np.testing.assert_array_equal(nnx.merge(definition, state)(POINTS), module(POINTS))
    assert not np.allclose(other(POINTS), module(POINTS))
    nnx.update(other, state)
    np.testing.assert_array_equal(other(POINTS), module(POINTS))
    slope = TReLU(0.3)
    nnx.update(slope, nnx.state(TReLU(0.7, 2.0)))
    close(slope(jnp.array([-1.0, 1.0])), [-1.4, 2.0])


def test_constants_are_not_trained_by_default() -> None:
    model = nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), TReLU(0.3))
    gradient = nnx.jit(nnx.grad(lambda model: jnp.sum(model(jnp.ones((2, 3))) ** 2)))(model)
    assert set(nnx.to_pure_dict(gradient)["layers"]) == {0}
    assert len(jax.tree.leaves(nnx.state(model, Constant))) == 2


def test_a_number_that_is_no_constant_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nonzero input_scale.* got input_scale = 0"):
        ShapedActivation("tanh", 0.0)


def test_activations_are_distinguished_from_other_functions() -> None:
    for held in (nnx.relu, nnx.gelu, jnp.tanh, partial(nnx.leaky_relu, negative_slope=0.2)):
        assert is_activation(held)
    others = (nnx.identity, nnx.softmax, lambda x: 2.0 * x + 1.0, jnp.sum, normalize_per_location)
    for held in (*others, nnx.Linear, nnx.initializers.zeros, jax.lax.dot_general, "relu", None):
        assert not is_activation(held)


class Block(nnx.Module):
    """A residual block as the theory wants it, with activations in a tuple and in a dictionary."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = Conv(8, 8, (3, 3), use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.second = Conv(8, 8, (3, 3), feature_group_count=2, rngs=rngs)
        self.activations = (nnx.relu, nnx.gelu)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.norm(self.first(self.activations[0](x)))
        return 0.8 * x + 0.6 * self.second(self.activations[1](y))


class Unnormalised(Block):
    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.second(self.activations[0](x))


class BehindActivation(Block):
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.activations[0](0.8 * x + 0.6 * self.first(x))


class NotHeld(Block):
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.first(nnx.sigmoid(self.second(self.activations[0](x))))


class Network(nnx.Module):
    def __init__(self, block: type[Block] = Block) -> None:
        rngs = nnx.Rngs(0)
        self.stem = Conv(3, 8, (3, 3), rngs=rngs)
        self.blocks = nnx.List([block(rngs) for _ in range(2)])
        self.last = nnx.data({"activation": nnx.PReLU()})
        self.up = ConvTranspose(8, 8, (4, 4), strides=2, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = LinearGeneral((8,), (3, 2), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.dropout(self.up(self.last["activation"](x))))


@cache
def converted() -> tuple[Network, Network, ConversionReport]:
    original = Network()
    model = convert(original, IMAGE, SHALLOW, rngs=nnx.Rngs(1))
    return original, model, report_of(model)


def report_of(model: nnx.Module) -> ConversionReport:
    return model.skipless_report  # pyright: ignore[reportAttributeAccessIssue]


def places(report: ConversionReport, what: str) -> list[str]:
    return [change.where for change in report.changes if change.what == what]


def shapes_of(model: nnx.Module) -> list[ShapedActivation]:
    return [m for _, m in nnx.iter_modules(model) if isinstance(m, ShapedActivation)]


def test_every_activation_that_is_held_is_shaped() -> None:
    original, model, report = converted()
    assert sorted(places(report, "activation replaced by TReLU")) == [
        *(f"blocks.{i}.activations.{j}" for i in (0, 1) for j in (0, 1)),
        "last.activation",
    ]
    shapes = shapes_of(model)
    assert len(shapes) == 5
    for module in shapes:
        close(module(POINTS), report.solution(np.asarray(POINTS, float)))
    assert original.blocks[0].activations == (nnx.relu, nnx.gelu)
    assert isinstance(original.blocks[0].norm, nnx.BatchNorm)


def test_the_solution_is_for_the_network_as_it_is() -> None:
    # By hand: from orthogonal inputs through two blocks of 0.8² c + 0.6² C(C(c)), then once C.
    _, _, report = converted()
    c_map, c = report.solution.c_map, 0.0
    for _ in range(2):
        c = 0.64 * c + 0.36 * float(c_map(c_map(c)))
    assert float(c_map(c)) == pytest.approx(SHALLOW.eta, abs=1e-9)
    assert sum(isinstance(node, Nonlinearity) for node in report.graph.nodes) == 5
    assert fold(report.graph, lambda c: c, 1.0) == pytest.approx(1.0, abs=1e-12)
    assert report.predicted[-1].c == pytest.approx(SHALLOW.eta, abs=1e-6)
    assert "TAT(eta=0.2" in str(report)
    assert places(report, "normalisation removed") == ["blocks.0.norm", "blocks.1.norm"]


def test_normalisation_is_gone_and_layers_have_biases() -> None:
    _, model, report = converted()
    assert isinstance(model.blocks[0].norm, Identity)
    assert places(report, "bias added") == ["blocks.0.first", "blocks.1.first"]
    assert report.untouched == ()
    for _, module in nnx.iter_modules(model):
        bias = getattr(module, "bias", None)
        assert bias is None or not bias[...].any()
    assert not jax.tree.leaves(nnx.state(model, nnx.BatchStat))


def test_weights_are_drawn_so_that_q_stays_1() -> None:
    _, model, _ = converted()
    x = normalize_per_location(jax.random.normal(jax.random.key(0), (2, 6, 6, 8)), homogeneous=None)
    # All these have as many outputs as inputs, in each group: vectors keep their length.
    for layer in (model.blocks[0].first, model.blocks[1].second, model.up):
        close(jnp.mean(layer(x) ** 2, axis=-1), 1.0, 1e-5)
    head = model.head.kernel[...].reshape(8, 6)
    close(head.T @ head, np.eye(6), 1e-5)


def test_a_converted_model_is_compiled_and_trained() -> None:
    model = nnx.clone(converted()[1])
    x = jax.random.normal(jax.random.key(0), (2, 6, 6, 3))

    @nnx.jit
    def slopes(model: Network) -> nnx.State:
        return nnx.grad(lambda model: jnp.mean(model(x) ** 2))(model)

    gradient = slopes(model)
    assert all(jnp.any(leaf != 0.0) for leaf in jax.tree.leaves(gradient))
    again = convert(model, IMAGE, TAT(eta=0.1), rngs=nnx.Rngs(1))  # shaped ones are held, too
    for old, new in zip(shapes_of(model), shapes_of(again), strict=True):
        assert new.constants["negative_slope"] > old.constants["negative_slope"]


class Wide(nnx.Module):
    """Layers wide enough for the theory, and a residual block that the `last` function ends."""

    def __init__(self, last: Callable[..., jax.Array] = lambda x, y, _: 0.8 * x + 0.6 * y) -> None:
        rngs = nnx.Rngs(0)
        linear = partial(nnx.Linear, 64, 64, kernel_init=nnx.initializers.zeros, rngs=rngs)
        self.layers = nnx.List([f for _ in range(10) for f in (linear(), nnx.relu)])
        self.first, self.second, self.activation = linear(), linear(), nnx.relu
        self.offset = nnx.Param(jnp.ones(64))
        self.last = last

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        x = self.first(x)
        return self.last(x, self.second(self.activation(x)), self.offset[...])


VECTORS = pair_inputs((64,), pairs=4, cosine=0.0)
METHODS = {
    "TReLU": (TAT(eta=0.5), "leaky_relu"),
    "smooth TAT": (TAT(tau=0.3), "tanh"),
    "DKS of tanh": (DKS(), "tanh"),
    "DKS of softplus": (DKS(), "softplus"),
}


@cache
def shaped_by(name: str) -> tuple[Wide, ConversionReport]:
    method, phi = METHODS[name]
    model = convert(Wide(), VECTORS, method, rngs=nnx.Rngs(1), activation=phi)
    return model, report_of(model)


@pytest.mark.parametrize("name", METHODS)
def test_a_converted_model_is_traced_as_it_was_reported(name: str) -> None:
    model, report = shaped_by(name)
    definition, state = nnx.split(model)
    merged = nnx.merge(definition, state)
    for fn in (model, nnx.jit(model), merged, jax.jit(lambda x: merged(x))):
        assert trace(fn, VECTORS) == report.graph
    pure = jax.jit(lambda state, x: nnx.merge(definition, state)(x))
    assert trace(pure, state, VECTORS) == report.graph


@pytest.mark.parametrize("name", METHODS)
def test_a_converted_model_has_the_kernel_that_was_predicted(name: str) -> None:
    model, report = shaped_by(name)
    found = check(nnx.jit(model), VECTORS, solution=report.solution, seeds=4)
    assert str(found) == str(check(model, VECTORS, seeds=4))  # which carries its solution
    assert found.agrees, str(found)
    measured = measure(model, VECTORS).nodes
    assert [node.kind for node in measured] == [kind_of(n) for n in report.graph.nodes]
    close(measured[-1].q.mean, jnp.mean(model(VECTORS) ** 2), 1e-5)


def test_a_converted_convolutional_model_is_traced_as_it_was_reported() -> None:
    _, model, report = converted()
    model = nnx.clone(model)
    model.eval()
    assert trace(model, IMAGE) == report.graph


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Unnormalised, r"test_convert.py:\d+ add up to 2, .*w \* x \+ sqrt\(1 - w\*\*2\)"),
        (BehindActivation, r"starts behind an activation.*before activations"),
        (
            NotHeld,
            r"2 activations of Network are .* in __call__.*self\.activation = nnx\.relu",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused_with_advice(block, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        convert(Network(block), IMAGE, SHALLOW, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("last", "total"),
    [
        (lambda x, y, _: x + y, 2),
        (lambda x, y, _: (x + y).reshape(-1, 8, 8), 2),
        (lambda x, y, _: (x + y) + y, 5),
        (lambda x, y, _: 2.0 * y, 4),
    ],
    ids=["sum", "sum moved", "sum of sums", "factor"],
)
def test_an_unnormalised_sum_at_the_output_is_refused(last, total: int) -> None:
    message = rf"test_convert.py:\d+ add up to {total}, .*w \* x \+ sqrt\(1 - w\*\*2\)"
    with pytest.raises(UnsupportedModelError, match=message):
        convert(Wide(last), VECTORS, SHALLOW, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    "last",
    [
        lambda x, y, _: 0.8 * x + 0.6 * y,
        lambda x, y, _: (x + y) / math.sqrt(2.0),
        lambda x, y, offset: y + offset,
        lambda x, y, _: -y,
    ],
    ids=["weighted", "divided", "bias", "sign"],
)
def test_a_normalised_sum_at_the_output_is_converted(last) -> None:
    report = report_of(convert(Wide(last), VECTORS, SHALLOW, rngs=nnx.Rngs(0)))
    assert fold(report.graph, lambda c: c, 1.0) == pytest.approx(1.0, abs=1e-12)


def test_reparametrised_weights_are_refused() -> None:
    layer = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
    model = nnx.Sequential(nnx.WeightNorm(layer, rngs=nnx.Rngs(0)), nnx.relu)
    with pytest.raises(UnsupportedModelError, match=r"layers\.0 computes weights by WeightNorm"):
        convert(model, jnp.ones((1, 3)), SHALLOW, rngs=nnx.Rngs(0))


def test_layers_of_every_kind_are_drawn() -> None:
    rngs = nnx.Rngs(0)

    @nnx.vmap
    def many(rngs: nnx.Rngs) -> nnx.Linear:
        return nnx.Linear(4, 4, rngs=rngs, kernel_init=nnx.initializers.zeros)

    class Layers(nnx.Module):
        def __init__(self) -> None:
            self.einsum = Einsum("bti,hio->btho", (2, 3, 4), rngs=rngs)
            self.per_head = Einsum("bhi,hio->bho", (2, 3, 4), rngs=rngs)
            self.causal = Conv(4, 4, 3, padding="CAUSAL", rngs=rngs)
            self.many = many(nnx.Rngs(0).split(5))
            self.embed = nnx.Embed(5, 3, rngs=rngs)

    model = Layers()
    left, _ = initialize_(model, TRELU, rngs, add_biases=False)
    assert left == ["embed.embedding", "per_head.kernel"]
    matrix = model.einsum.kernel[...].transpose(0, 2, 1).reshape(8, 3)
    close(matrix.T @ matrix, 8 / 3 * np.eye(3), 1e-5)
    assert model.causal.kernel[...].any(axis=(1, 2)).tolist() == [False, False, True]
    matrices = model.many.kernel[...]
    close(matrices @ matrices.mT, np.broadcast_to(np.eye(4), (5, 4, 4)), 1e-5)
    assert not np.allclose(matrices[0], matrices[1])


@pytest.mark.parametrize("options", [{"mask": jnp.ones((3, 4, 4))}, {"input_dilation": 2}])
def test_convolutions_with_holes_are_refused(options) -> None:
    layer = Conv(4, 4, 3, rngs=nnx.Rngs(0), **options)
    with pytest.raises(ValueError, match="without mask and dilation"):
        initialize_(nnx.Sequential(layer), TRELU, nnx.Rngs(0), add_biases=False)


def test_without_normalisation_no_biases_are_added() -> None:
    rngs = nnx.Rngs(0)
    net = [f for _ in range(15) for f in (nnx.Linear(8, 8, use_bias=False, rngs=rngs), nnx.relu)]
    model = convert(nnx.Sequential(*net), jnp.ones((1, 8)), TAT(eta=0.5))
    assert places(report_of(model), "bias added") == []


def test_only_an_instance_of_a_model_is_converted() -> None:
    with pytest.raises(TypeError, match=r"got the class Linear.*Make one first"):
        convert(nnx.Linear, IMAGE, rngs=nnx.Rngs(0))  # pyright: ignore
    with pytest.raises(TypeError, match=r"rngs is for an nnx\.Module; the weights of a function"):
        convert(jnp.tanh, IMAGE, rngs=nnx.Rngs(0))  # pyright: ignore


def test_the_report_stays_with_the_model_through_split_jit_and_clone() -> None:
    model, report = shaped_by("TReLU")
    definition, state = nnx.split(model)
    assert report_of(nnx.merge(definition, state)) is report
    assert report_of(nnx.clone(model)) is report
    assert nnx.jit(lambda model, x: model(x))(model, VECTORS).shape == VECTORS.shape
    assert hash(definition) == hash(nnx.split(model)[0])  # so that nothing is compiled twice


def test_a_shortcut_weight_is_refused_where_sums_are_code() -> None:
    with pytest.raises(UnsupportedModelError, match=r"None, got 0\.5: the sum at test_conv"):
        convert(Wide(), VECTORS, SHALLOW, shortcut_weight=0.5)


def test_old_names_work_and_warn() -> None:
    import skipless.jax
    from skipless.jax import nnx as old

    for name in ("Constant", "Identity", "ShapedActivation", "TReLU"):
        with pytest.warns(DeprecationWarning, match=f"use skipless.jax.{name}"):
            assert getattr(old, name) is getattr(skipless.jax, name)
    chain = [f for _ in range(9) for f in (nnx.Linear(4, 4, rngs=nnx.Rngs(0)), nnx.relu)]
    with pytest.warns(DeprecationWarning, match=r"skipless\.jax\.convert, whose model has"):
        model, report = old.convert(nnx.Sequential(*chain), jnp.ones((1, 4)), SHALLOW)
    assert report_of(model) is report
    assert callable(skipless.jax.convert)  # and not the module of that name


def test_convert_is_the_function_even_where_its_module_is_imported_first() -> None:
    script = (
        "import sys, skipless.jax; assert 'flax' not in sys.modules;"
        "import skipless.jax.convert; print(type(skipless.jax.convert).__name__);"
        "from skipless.jax import convert; print(type(convert).__name__)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.split() == ["function", "function"], found.stderr


class Classifier(nnx.Module):
    def __init__(self, end: Callable[[jax.Array], jax.Array]) -> None:
        rngs = nnx.Rngs(0)
        self.net = nnx.Sequential(nnx.Linear(8, 8, rngs=rngs), nnx.relu)
        self.head, self.held = nnx.Linear(8, 3, rngs=rngs), {"end": lambda: end}

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.held["end"]()(self.head(self.net(x)))


@pytest.mark.parametrize("end", [nnx.sigmoid, nnx.softmax, jnp.tanh])
def test_what_makes_the_form_of_the_outputs_may_be_written_in_call(end) -> None:
    x = jax.random.normal(jax.random.key(0), (4, 8))
    model = convert(Classifier(end), x, TAT(eta=0.1))
    np.testing.assert_allclose(model(x), end(model.head(model.net(x))), atol=1e-6)

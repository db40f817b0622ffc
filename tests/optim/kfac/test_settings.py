"""What each setting of K-FAC does, by hand; and which of them a saved state brings along."""

import copy
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from optim.kfac.dense_fisher import (
    DenseKFAC,
    brute_force_factors,
    input_rows,
    outer_products,
    summed_loss,
)
from skipless.optim import KFAC

Batch = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def chance() -> None:
    torch.manual_seed(0)


def mlp(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def batches(count: int, dtype: torch.dtype = torch.float64) -> list[Batch]:
    return [(torch.randn(8, 5, dtype=dtype), torch.randint(3, (8,))) for _ in range(count)]


def step(
    model: nn.Module,
    optimizer: KFAC,
    batch: Batch,
    forward: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """One step of training by cross entropy, with labels for the empirical Fisher matrix."""

    def closure() -> float:
        optimizer.zero_grad()
        outputs = (forward or model)(batch[0])
        optimizer.curvature(outputs, batch[1])
        loss = F.cross_entropy(outputs, batch[1])
        loss.backward()
        return loss.item()

    optimizer.step(closure)


def train(model: nn.Module, optimizer: KFAC, given: Iterable[Batch]) -> None:
    for batch in given:
        step(model, optimizer, batch)


def values(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def finite(model: nn.Module) -> bool:
    return all(bool(value.isfinite().all()) for value in values(model))


def same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def block_of(optimizer: KFAC, module: nn.Module) -> Any:
    blocks = optimizer._estimate.blocks.of_layer
    return next(block for layer, block in blocks.items() if layer.module is module)


def assert_close(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected), rtol=1e-11, atol=1e-13)


# Which examples and labels


STRIDED: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(3, 2), (7, 3)),
    "convolution": (nn.Conv2d(2, 2, 2, bias=False), (7, 2, 3, 3)),
    "times": (nn.Linear(3, 2), (7, 4, 3)),
}


def measured(layer: nn.Module, inputs: Tensor, **settings: Any) -> tuple[Tensor, Tensor]:
    """Both factors of a network of one layer, after one step."""
    layer = layer.double()
    optimizer = KFAC(layer, 0.1, burn_in=1, loss="mse", **settings)
    optimizer.curvature(layer(inputs))
    optimizer.step()
    block = block_of(optimizer, layer)
    return block.inputs, block.outputs


@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("kind", STRIDED)
def test_a_stride_takes_every_nth_example_for_the_factor_of_inputs_only(
    kind: str, stride: int
) -> None:
    layer, shape = STRIDED[kind]
    inputs = torch.randn(shape, dtype=torch.float64)
    found = measured(layer, inputs, input_stride=stride)
    (rows,) = input_rows(layer, inputs[::stride])
    assert_close(found[0][0], outer_products(rows) / len(rows))
    assert_close(found[1], measured(layer, inputs)[1])


@pytest.mark.parametrize(
    ("loss", "outputs"), [("cross_entropy", 3), ("mse", 1), ("binary_cross_entropy", 1)]
)
def test_the_empirical_fisher_matrix_is_by_the_labels_of_the_data(loss: Any, outputs: int) -> None:
    """With a single label for each example, all rules for several of them agree."""
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, outputs)).double()
    x = torch.randn(6, 5, dtype=torch.float64)
    labels = torch.rand(6, 1, dtype=torch.float64)
    if loss == "cross_entropy":
        labels = torch.tensor([0, 1, 2, 2, 1, 0])
    optimizer = KFAC(model, 0.1, burn_in=1, fisher="empirical", loss=loss)
    optimizer.curvature(model(x), labels)
    optimizer.step()
    hidden = model[0](x).detach().requires_grad_()
    last = model[2](hidden.tanh()).detach().requires_grad_()
    (back_hidden,) = torch.autograd.grad(summed_loss(model[1:](hidden), labels, loss), hidden)
    (back_last,) = torch.autograd.grad(summed_loss(last, labels, loss), last)
    for module, back in ((model[0], back_hidden), (model[2], back_last)):
        assert_close(block_of(optimizer, module).outputs[0], outer_products(list(back.numpy())) / 6)


@pytest.mark.parametrize("loss", ["mse", "binary_cross_entropy"])
def test_the_empirical_fisher_matrix_has_the_squared_score_of_each_output(loss: Any) -> None:
    layer, x = nn.Linear(5, 3).double(), torch.randn(6, 5, dtype=torch.float64)
    labels = torch.rand(6, 3, dtype=torch.float64)
    optimizer = KFAC(layer, 0.1, burn_in=1, fisher="empirical", loss=loss)
    optimizer.curvature(layer(x), labels)
    optimizer.step()
    outputs = layer(x).detach().requires_grad_()
    (back,) = torch.autograd.grad(summed_loss(outputs, labels, loss), outputs)
    found = block_of(optimizer, layer).outputs[0].diagonal()
    assert_close(found, back.square().sum(0) / 18)


def scores_of_same_batch(*, parts: int, steps: int, fisher: Any) -> Tensor:
    """The factor of outputs when one batch is given again and again."""
    torch.manual_seed(0)
    model, ((x, _),) = mlp(), batches(1)
    optimizer = KFAC(model, 0.1, burn_in=9, fisher=fisher)
    for _ in range(steps):
        for _ in range(parts):
            optimizer.curvature(model(x))
        optimizer.step()
    return block_of(optimizer, model[2]).outputs


@pytest.mark.parametrize(("parts", "steps"), [(2, 1), (1, 2)])
def test_every_part_and_every_step_draws_labels_of_its_own(parts: int, steps: int) -> None:
    once, again = (
        [scores_of_same_batch(parts=p, steps=s, fisher=fisher) for fisher in ("sampled", "exact")]
        for p, s in ((1, 1), (parts, steps))
    )
    assert_close(again[1], once[1])
    assert not torch.allclose(again[0], once[0], rtol=1e-3)


# Running means


def test_burn_in_takes_plain_means_and_what_comes_after_decays() -> None:
    model, given = mlp(), batches(4)
    optimizer = KFAC(model, 0.1, burn_in=3, fisher="exact", curvature_ema=0.99)
    seen = [brute_force_factors(model, x, "cross_entropy") for x, _ in given]
    train(model, optimizer, given[:3])
    means = {}
    for module in (model[0], model[2]):
        block = block_of(optimizer, module)
        means[module] = [
            np.mean([getattr(own[module], side)[0] for own in seen[:3]], axis=0)
            for side in ("inputs", "outputs")
        ]
        assert_close(block.inputs[0], means[module][0])
        assert_close(block.outputs[0], means[module][1])
        assert block.weight == 3.0
    train(model, optimizer, given[3:])
    for module, (inputs, outputs) in means.items():
        block, new = block_of(optimizer, module), seen[3][module]
        assert block.weight == pytest.approx(0.99 * 3.0 + 1.0, rel=1e-15)
        assert_close(block.inputs[0], (2.97 * inputs + new.inputs[0]) / 3.97)
        assert_close(block.outputs[0], (2.97 * outputs + new.outputs[0]) / 3.97)


class Optional(nn.Module):
    """A network that uses its activation's slope when it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.slope, self.last = nn.Linear(5, 6), nn.PReLU(6), nn.Linear(6, 3)
        self.asked = True
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(self.slope(x) if self.asked else x.tanh())


def test_the_diagonal_of_a_parameter_rests_while_it_is_not_used() -> None:
    model, given = Optional(), batches(40)
    optimizer = KFAC(model, 0.01, burn_in=1)

    def kept() -> tuple[Tensor, float]:
        own = optimizer.state_dict()["kfac"]["others"]["slope.weight"]
        return own["mean"].clone(), own["weight"]

    train(model, optimizer, given[:4])
    mean, weight = kept()
    assert (mean > 0.0).all()
    model.asked = False
    train(model, optimizer, given[4:39])
    assert torch.equal(kept()[0], mean)
    assert kept()[1] == weight
    model.asked = True
    train(model, optimizer, given[39:])
    assert kept()[1] == pytest.approx(0.99 * weight + 1.0, rel=1e-15)
    assert finite(model)


# Steps


@pytest.mark.parametrize("bound", [1e-3, None])
def test_each_group_goes_by_its_own_rate_and_momentum_under_one_constraint(
    bound: float | None,
) -> None:
    settings: dict[str, Any] = {"l2": 0.01, "burn_in": 1, "inverse_period": 1, "damping": 0.1}
    model, twin, given = mlp(), mlp(), batches(4)
    optimizer = KFAC(model, 0.1, norm_constraint=bound, **settings)
    directions = KFAC(twin, 1.0, momentum=0.0, norm_constraint=None, **settings)
    rates, momenta = {"weights": 0.3, "others": 0.7}, {"weights": 0.5, "others": 0.2}
    for group in optimizer.param_groups:
        group["lr"], group["momentum"] = rates[group["name"]], momenta[group["name"]]
    velocities = [torch.zeros_like(p) for p in model.parameters()]
    groups = ["weights" if p.ndim > 1 else "others" for p in model.parameters()]
    for number, batch in enumerate(given):
        before = values(model)
        twin.load_state_dict(model.state_dict())
        step(model, optimizer, batch)
        step(twin, directions, batch)
        if number == 0:
            assert same(values(model), before), "the first step only measures"
            continue
        length, moves = 0.0, []
        pairs = zip(before, values(twin), twin.parameters(), groups, strict=True)
        for old, new, parameter, group in pairs:
            assert parameter.grad is not None
            gradient = parameter.grad + (0.01 * old if group == "weights" else 0.0)
            moves.append(old - new)
            length += rates[group] ** 2 * float((moves[-1] * gradient).sum())
        factor = 1.0 if bound is None else min(1.0, math.sqrt(bound / length))
        assert bound is None or factor < 0.5
        for index, (move, group) in enumerate(zip(moves, groups, strict=True)):
            velocities[index] = momenta[group] * velocities[index] - rates[group] * factor * move
            found = values(model)[index] - before[index]
            torch.testing.assert_close(found, velocities[index], rtol=1e-9, atol=1e-13)


def dampings(start: float, change: float, steps: int) -> list[float]:
    """The damping after each step, when the loss always changes so much by them."""
    model, ((x, y),) = mlp(), batches(1)
    optimizer = KFAC(model, 0.1, momentum=0.0, damping=start, burn_in=2, damping_period=3)
    calls: list[float] = []

    def closure() -> float:
        optimizer.zero_grad()
        outputs = model(x)
        optimizer.curvature(outputs)
        F.cross_entropy(outputs, y).backward()
        calls.append(7.0 + change * len(calls))
        return calls[-1]

    found = []
    for _ in range(steps):
        calls.clear()
        optimizer.step(closure)
        found.append(optimizer.damping)
    return found


@pytest.mark.parametrize(("change", "factor"), [(-100.0, 0.9**3), (100.0, 0.9**-3)])
def test_the_damping_changes_in_every_third_step_after_the_burn_in(
    change: float, factor: float
) -> None:
    found = dampings(0.1, change, 9)
    assert found == pytest.approx([0.1] * 4 + [0.1 * factor] * 3 + [0.1 * factor**2] * 2, rel=1e-12)


def test_the_damping_never_falls_below_its_floor() -> None:
    assert min(dampings(2e-8, -100.0, 15)) == 1e-8  # as in kfac-jax


def test_new_axes_of_an_embedding_invert_the_product_of_its_factors_with_damping() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 3)).double()
    codes, labels = torch.tensor([[0, 2], [1, 1], [2, 3], [4, 0]]), torch.tensor([0, 2, 1, 1])
    dense = DenseKFAC(model, damping=0.02, l2=0.03)
    dense.see(codes)
    gradient = dense.gradient(F.cross_entropy(model(codes), labels))
    damped = dense.curvature() + 0.05 * np.eye(len(gradient))
    optimizer = KFAC(
        model,
        0.5,
        momentum=0.0,
        damping=0.02,
        l2=0.03,
        norm_constraint=None,
        burn_in=0,
        fisher="exact",
        eigenbasis=True,
    )
    before = dense.vectors.values
    step(model, optimizer, (codes, labels))
    found = dense.vectors.values - before
    np.testing.assert_allclose(found, -0.5 * np.linalg.solve(damped, gradient), rtol=1e-9)


def test_spread_inverses_are_computed_once_in_a_period_a_part_in_each_step() -> None:
    sizes = (5, 4, 6, 3, 5, 3)
    model = nn.Sequential(*(nn.Linear(i, o) for i, o in pairwise(sizes)))
    fixed: dict[str, Any] = {"inverse_period": 3, "early_inverses": False}
    optimizer = KFAC(model.double(), 0.01, burn_in=1, spread_inverses=True, **fixed)
    blocks, inverted = optimizer._estimate.blocks, []
    original = blocks.refresh

    def noted(chosen: Any, *rest: Any) -> None:
        inverted[-1].extend(block.layer.name for block in chosen)
        original(chosen, *rest)

    blocks.refresh = noted  # pyright: ignore
    for batch in batches(8):
        inverted.append([])
        step(model, optimizer, batch)
    every = dict.fromkeys("01234", 1)
    burn_in, first, *parts = inverted
    assert burn_in == []
    assert Counter(first) == every
    for period in (parts[:3], parts[3:]):
        assert Counter(name for part in period for name in part) == every
        assert all(len(part) in (1, 2, 3) for part in period)
    assert parts[:3] == parts[3:]


def due(moves: int, **settings: Any) -> list[list[str]]:
    """The layers that are inverted in each of so many steps."""
    layers = [nn.Linear(4, 4) for _ in range(5)]
    optimizer, found = KFAC(nn.Sequential(*layers), 0.1, burn_in=3, **settings), []
    for optimizer.steps in range(3, 3 + moves):
        found.append([block.layer.name for block in optimizer._blocks_due()])
    return found


def test_gaps_between_inversions_grow_up_to_the_period() -> None:
    found = [move for move, names in enumerate(due(260)) if names]
    assert found[:17] == [0, 1, 2, 3, 4, 5, 6, 9, 12, 18, 24, 36, 48, 50, 75, 100, 150]
    assert found[17:] == [200, 250]
    fixed = [move for move, names in enumerate(due(260, early_inverses=False)) if names]
    assert fixed == [0, 50, 100, 150, 200, 250]


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize(("measured", "period"), [(1, 1), (1, 7), (1, 50), (10, 200), (3, 20)])
def test_inverses_are_at_most_half_as_old_as_the_run(
    spread: bool, measured: int, period: int
) -> None:
    found = due(
        5 * period, spread_inverses=spread, inverse_period=period, curvature_period=measured
    )
    last: dict[str, int] = {}
    for move, names in enumerate(found):
        last |= dict.fromkeys(names, move)
        youngest = 2 * measured - 1  # as there is nothing new to invert between measurements
        parts = 2 if spread else 1  # early in one period, late in the next
        for age in (move - at for at in last.values()):
            assert age <= parts * max(youngest, min(period, move / 2))
    assert len(last) == 5
    extra = sum(len(names) for names in found) / 5 - 5
    assert extra <= 3 * math.log2(period / measured) + 2, "a few for each doubling of the gap"


def velocities(optimizer: KFAC) -> list[Tensor]:
    return [own["momentum_buffer"].clone() for own in optimizer.state.values()]


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_velocity_restarts_where_an_inversion_makes_steps_far_shorter(
    scale: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Inputs that grow 30 times over make the curvature 900 times as large."""
    given = [(scale ** (number > 3) * x, y) for number, (x, y) in enumerate(batches(8))]
    models, optimizers = [mlp(), mlp()], list[KFAC]()
    models[1].load_state_dict(models[0].state_dict())
    for model, restarts in zip(models, (True, False), strict=True):
        settings: dict[str, Any] = {"inverse_period": 4, "early_inverses": False}
        # No norm constraint: it would make all of these steps equally long.
        optimizer = KFAC(
            model,
            0.01,
            damping=0.01,
            norm_constraint=None,
            restarts=restarts,
            **settings,
            burn_in=1,
        )
        optimizers.append(optimizer)
    for number, batch in enumerate(given):
        if scale > 1.0 and number == 5:  # the second inversion; the one without is told by hand
            for own in optimizers[1].state.values():
                own["momentum_buffer"].zero_()
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer, batch)
    assert same(values(models[0]), values(models[1]))
    assert same(velocities(optimizers[0]), velocities(optimizers[1]))
    said = [record.message for record in caplog.records]
    assert len(said) == (scale > 1.0), said
    assert all("Lower inverse_period" in message for message in said)


def test_a_state_of_an_older_version_keeps_its_fixed_period() -> None:
    given, model = batches(12), mlp()
    settings: dict[str, Any] = {"inverse_period": 4, "burn_in": 1}
    optimizer = KFAC(model, 0.1, **settings, early_inverses=False, restarts=False)
    train(model, optimizer, given[:3])
    weights, state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for name in ("early", "restarts"):
        del state["kfac"]["timing"][name]
    train(model, optimizer, given[3:])
    again = mlp()
    loaded = KFAC(again, 0.1, **settings)
    again.load_state_dict(weights)
    loaded.load_state_dict(state)
    train(again, loaded, given[3:])
    assert same(values(again), values(model))


# Which modules are layers


class Pair(nn.Module):
    """Two modules whose results are added, and a layer of classes."""

    def __init__(self, one: nn.Module, other: nn.Module, features: int) -> None:
        super().__init__()
        self.one, self.other, self.last = one, other, nn.Linear(features, 3)
        self.double()
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        one, other = (own(x).flatten(2).mean(2) for own in (self.one, self.other))
        return self.last(one + other)


class Lookup(nn.Module):
    """Embeddings of codes, added up, and a layer of classes."""

    def __init__(self, *tables: nn.Embedding) -> None:
        super().__init__()
        self.tables, self.last = nn.ModuleList(tables), nn.Linear(4, 3)
        self.double()
        for table in tables:
            table.weight = tables[0].weight

    def forward(self, codes: Tensor) -> Tensor:
        found = sum(table(codes) for table in self.tables)
        assert isinstance(found, Tensor)
        return self.last(found.mean(1))


def images() -> Tensor:
    return torch.randn(8, 2, 5, 5, dtype=torch.float64)


def columns() -> Tensor:
    return torch.randn(8, 4, 5, dtype=torch.float64)


def codes() -> Tensor:
    return torch.randint(6, (8, 5))


SHARED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], set[str]]] = {
    "strides": (
        lambda: Pair(nn.Conv2d(2, 4, 2, bias=False), nn.Conv2d(2, 4, 2, 2, bias=False), 4),
        images,
        {"one.weight"},
    ),
    "biases": (
        lambda: Pair(nn.Linear(5, 5), nn.Linear(5, 5), 4),
        columns,
        {"one.weight", "one.bias", "other.bias"},
    ),
    "bias of one": (
        lambda: Pair(nn.Linear(5, 5, bias=False), nn.Linear(5, 5), 4),
        columns,
        {"one.weight", "other.bias"},
    ),
    "padding": (
        lambda: Lookup(nn.Embedding(6, 4, padding_idx=1), nn.Embedding(6, 4, padding_idx=2)),
        codes,
        {"tables.0.weight"},
    ),
    "padding of one": (
        lambda: Lookup(nn.Embedding(6, 4), nn.Embedding(6, 4, padding_idx=2)),
        codes,
        {"tables.0.weight"},
    ),
    "largest norm": (
        lambda: Lookup(nn.Embedding(6, 4, max_norm=1.0)),
        codes,
        {"tables.0.weight"},
    ),
    "nothing but the weight": (
        lambda: Pair(nn.Conv2d(2, 4, 2, bias=False), nn.Conv2d(2, 4, 2, bias=False), 4),
        images,
        set(),
    ),
    "equal padding": (
        lambda: Lookup(nn.Embedding(6, 4, padding_idx=1), nn.Embedding(6, 4, padding_idx=1)),
        codes,
        set(),
    ),
}


@pytest.mark.parametrize("case", SHARED)
def test_weights_that_are_not_multiplied_in_one_way_are_left_to_the_diagonal(case: str) -> None:
    make, inputs, expected = SHARED[case]
    model = make()
    optimizer = KFAC(model, 0.1, burn_in=1)
    before = values(model)
    train(model, optimizer, [(inputs(), torch.randint(3, (8,))) for _ in range(3)])
    assert set(optimizer.state_dict()["kfac"]["others"]) == expected
    assert len(optimizer._estimate.blocks.of_layer) == (1 if expected else 2)
    assert finite(model)
    assert not any(torch.equal(*pair) for pair in zip(values(model), before, strict=True))


# What goes wrong


@pytest.mark.parametrize("small", [1e-15, 1e-20, 1e-25])
def test_a_curvature_that_vanishes_does_not_stop_other_layers(small: float) -> None:
    """Of what comes back through the small weights the squares, 1e-40, are below single precision.

    The last layer has all the gradient it ever had, and once it has grown the others have too.
    """
    model = mlp(torch.float32)
    with torch.no_grad():
        model.get_parameter("2.weight").mul_(small)
    optimizer = KFAC(model, 0.1, burn_in=1, inverse_period=1)
    before = values(model)
    given = batches(8, torch.float32)
    train(model, optimizer, given[:2])
    assert finite(model)
    assert not any(map(torch.equal, values(model)[2:], before[2:]))
    train(model, optimizer, given[2:])
    assert finite(model)
    assert not any(map(torch.equal, values(model), before))


def test_the_damping_adapts_where_no_curvature_reaches_a_parameter() -> None:
    """The reentrant checkpoint computes its layers only in the backward pass."""
    model = mlp()
    before = values(model)
    optimizer = KFAC(model, 0.1, burn_in=1, damping=0.1, damping_period=1)

    def forward(x: Tensor) -> Tensor:
        found = checkpoint(model[0], x.detach().requires_grad_(), use_reentrant=True)
        assert isinstance(found, Tensor)
        return model[1:](found)

    for batch in batches(3):
        step(model, optimizer, batch, forward)
    assert same(values(model)[:2], before[:2])
    assert not any(map(torch.equal, values(model)[2:], before[2:]))
    assert optimizer.damping != 0.1
    assert finite(model)


@pytest.mark.parametrize("lr", [0.1, None])
def test_a_first_batch_that_is_not_finite_does_no_harm_where_the_damping_adapts(
    lr: float | None,
) -> None:
    model, given = mlp(), batches(4)
    optimizer = KFAC(model, lr, burn_in=0, damping_period=1)
    before = values(model)
    step(model, optimizer, (given[0][0] * math.inf, given[0][1]))
    assert same(values(model), before)
    train(model, optimizer, given[1:])
    assert finite(model)
    assert 0.0 < optimizer.damping < math.inf
    assert not any(map(torch.equal, values(model), before))


# What is saved


KEPT: dict[str, tuple[Any, Any]] = {  # what it was saved with, and what it is loaded into
    "lr": (0.1, 0.3),
    "momentum": (0.9, 0.5),
    "l2": (0.1, 0.0),
    "damping": (0.1, 1.0),
    "norm_constraint": (1e-4, None),
    "curvature_ema": (0.5, 0.99),
    "curvature_period": (2, 1),
    "inverse_period": (2, 3),
    "early_inverses": (False, True),
    "burn_in": (3, 1),
    "spread_inverses": (True, False),
    "damping_period": (2, None),
    "seed": (3, 4),
    "fisher": ("empirical", "sampled"),
    "loss": ("mse", "cross_entropy"),
    "input_stride": (2, 1),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_saved_state_brings_its_settings_along(name: str) -> None:
    usual: dict[str, Any] = {"lr": 0.1, "burn_in": 1, "inverse_period": 2}
    given = batches(8)
    ends, states = [], []
    for value in KEPT[name]:
        torch.manual_seed(1)
        model = mlp()
        optimizer = KFAC(model, **(usual | {name: value}))
        train(model, optimizer, given[:2])
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        states.append(file)
        train(model, optimizer, given[2:])
        ends.append((values(model), optimizer))
    (expected, saved), (other, _) = ends
    assert not same(expected, other), "the setting makes a difference"
    states[0].seek(0)
    weights, state = torch.load(states[0], weights_only=True)
    again = mlp()
    loaded = KFAC(again, **(usual | {name: KEPT[name][1]}))
    again.load_state_dict(weights)
    loaded.load_state_dict(state)
    if name in ("norm_constraint", "curvature_ema", "damping_period"):
        assert getattr(loaded, name) == KEPT[name][0]
    train(again, loaded, given[2:])
    assert same(values(again), expected)
    assert loaded.damping == saved.damping

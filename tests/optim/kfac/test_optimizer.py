"""K-FAC as an optimiser: what a loop has to do, when work is done, and how it is saved."""

import copy
import gc
import io
import logging
import pickle
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler

from skipless.optim import KFAC

Batch = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "skipless.optim")


def network(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(2, 3, 2), nn.PReLU(), nn.Flatten(), nn.Linear(12, 5), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(5, 3)).to(dtype)


def batches(count: int, size: int = 8, dtype: torch.dtype = torch.float32) -> list[Batch]:
    chance = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, size, 2, 3, 3, generator=chance, dtype=torch.float64).to(dtype)
    labels = torch.randint(3, (count, size), generator=chance)
    return list(zip(inputs, labels, strict=True))


def closure_of(model: nn.Module, optimizer: KFAC, batch: Batch) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        outputs = model(batch[0])
        optimizer.curvature(outputs)
        loss = F.cross_entropy(outputs, batch[1])
        loss.backward()
        return loss

    return closure


def train(model: nn.Module, optimizer: KFAC, given: Iterable[Batch]) -> None:
    for batch in given:
        optimizer.step(closure_of(model, optimizer, batch))  # pyright: ignore


def values(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_equal(found: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)


def changed(found: Iterable[Tensor], expected: Iterable[Tensor]) -> bool:
    return any(not torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def factors(optimizer: KFAC) -> list[Tensor]:
    layers = optimizer.state_dict()["kfac"]["layers"].values()
    return [layer[name].clone() for layer in layers for name in ("inputs", "outputs")]


def leaves(state: Any) -> list[Any]:
    """Everything in a state, as values that stay when the optimiser goes on."""
    if isinstance(state, dict):
        return [leaf for key in sorted(state, key=str) for leaf in leaves(state[key])]
    if isinstance(state, list):
        return [leaf for item in state for leaf in leaves(item)]
    return [state.tolist() if isinstance(state, Tensor) else state]


# What a loop has to do


def test_a_step_without_curvature_raises_and_changes_nothing() -> None:
    model, (batch, *rest) = network(), batches(4)
    optimizer = KFAC(model, 0.1, burn_in=1)
    train(model, optimizer, rest)
    before, state = values(model), leaves(optimizer.state_dict())
    optimizer.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    with pytest.raises(RuntimeError, match=r"Call optimizer\.curvature\(outputs\)"):
        optimizer.step()
    assert_equal(values(model), before)
    assert leaves(optimizer.state_dict()) == state


def test_a_step_of_the_quadratic_model_without_curvature_raises() -> None:
    model, (batch, *rest) = network(), batches(3)
    optimizer = KFAC(model, None, burn_in=1, curvature_period=100)
    train(model, optimizer, rest)
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    with pytest.raises(RuntimeError, match="has no curvature"):
        optimizer.step()


@pytest.mark.parametrize("lr", [0.1, None])
def test_curvature_after_backward_raises_and_the_step_can_be_done_again(lr: float | None) -> None:
    given = batches(3)
    undisturbed, model = network(), network()
    train(undisturbed, KFAC(undisturbed, lr, burn_in=1), given)
    optimizer = KFAC(model, lr, burn_in=1)
    train(model, optimizer, given[:2])
    outputs = model(given[2][0])
    F.cross_entropy(outputs, given[2][1]).backward()
    with pytest.raises(RuntimeError, match=r"Call curvature\(\) before backward"):
        optimizer.curvature(outputs)
    train(model, optimizer, given[2:])
    assert_equal(values(model), values(undisturbed))


@pytest.mark.parametrize(
    ("settings", "wrong", "message"),
    [
        ({}, lambda out: out.detach(), "without a graph"),
        ({}, lambda out: out.argmax(1), "without a graph"),
        ({}, lambda out: F.cross_entropy(out, out.argmax(1)), "not the loss"),
        ({}, lambda out: out[:0], "without examples"),
        ({}, lambda out: (out, out), "got tuple"),
        ({}, lambda out: out[:, 0], "examples first, then classes"),
        ({"loss": "mse"}, lambda out: out.square().mean(), "not the loss"),
        ({"fisher": "empirical"}, lambda out: out, r"Call curvature\(outputs, targets\)"),
    ],
)
def test_outputs_that_have_no_curvature_are_refused(
    settings: dict[str, Any], wrong: Callable[[Tensor], Tensor], message: str
) -> None:
    model = network()
    optimizer = KFAC(model, 0.1, **settings)
    with pytest.raises((TypeError, ValueError), match=message):
        optimizer.curvature(wrong(model(batches(1)[0][0])))


def test_a_divisor_below_one_is_refused() -> None:
    model = network()
    optimizer = KFAC(model, 0.1)
    with pytest.raises(ValueError, match="divisor must be an integer >= 1, got 0"):
        optimizer.curvature(model(batches(1)[0][0]), divisor=0)


def test_outputs_of_a_pass_that_was_not_heard_are_refused() -> None:
    """Such as one before the optimiser, one for a second head, or one of another model."""
    model, (x, y) = network(), batches(1)[0]
    early = model(x)
    optimizer = KFAC(model, 0.1, burn_in=0)
    with pytest.raises(RuntimeError, match="found no layer calls"):
        optimizer.curvature(early)
    train(model, optimizer, [(x, y)])
    with pytest.raises(RuntimeError, match="found no layer calls"):
        optimizer.curvature(network(1)(x))
    outputs = model(x)
    optimizer.curvature(outputs)
    with pytest.raises(RuntimeError, match="once per pass"):
        optimizer.curvature(outputs)


def test_a_damping_that_adapts_needs_a_closure() -> None:
    model, (batch,) = network(), batches(1)
    optimizer = KFAC(model, 0.1, damping_period=5)
    closure_of(model, optimizer, batch)()
    with pytest.raises(ValueError, match=r"pass a closure to step\(\)"):
        optimizer.step()


# When work is done


@pytest.fixture
def passes_back(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each call of torch.autograd.grad."""
    calls: list[int] = []
    grad = torch.autograd.grad

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return grad(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    return calls


def test_curvature_is_free_in_steps_that_do_not_need_it(passes_back: list[int]) -> None:
    model = network()
    optimizer = KFAC(model, 0.1, burn_in=2, curvature_period=10)
    found: list[int] = []
    heard: list[int] = []
    for x, y in batches(23):
        optimizer.zero_grad()
        outputs = model(x)
        heard.append(len(optimizer._estimate.recorder._calls))
        before = len(passes_back)
        optimizer.curvature(outputs)
        found.append(len(passes_back) - before)
        F.cross_entropy(outputs, y).backward()
        optimizer.step()
    due = [step in (0, 1, 2, 12, 22) for step in range(23)]
    assert found == [int(yes) for yes in due]
    assert heard == [3 * yes for yes in due]


def test_the_first_steps_only_measure() -> None:
    model, given = network(), batches(5)
    optimizer = KFAC(model, 0.1, burn_in=4)
    start = values(model)
    train(model, optimizer, given[:4])
    assert_equal(values(model), start)
    assert not any(own["momentum_buffer"].any() for own in optimizer.state.values())
    train(model, optimizer, given[4:])
    assert changed(values(model), start)


def test_passes_that_are_not_trained_on_do_not_count() -> None:
    given = batches(6)
    undisturbed, model = network(), network()
    train(undisturbed, KFAC(undisturbed, 0.1, burn_in=2), given)
    optimizer = KFAC(model, 0.1, burn_in=2)
    for batch in given:
        model.eval()
        with torch.no_grad():
            model(3.0 * batch[0])
        model(5.0 * batch[0])
        model.train()
        model(7.0 * batch[0]).sum().backward()
        closure = closure_of(model, optimizer, batch)
        closure()
        model(9.0 * batch[0])
        optimizer.step()
    assert_equal(values(model), values(undisturbed))


def test_two_halves_of_a_batch_are_the_batch() -> None:
    given = batches(6, dtype=torch.float64)
    whole, halves = network(dtype=torch.float64), network(dtype=torch.float64)
    for layer in (whole[1], halves[1]):
        layer.requires_grad_(False)  # the diagonal depends on which labels are drawn
    settings: dict[str, Any] = {"lr": 0.1, "burn_in": 2, "fisher": "exact"}
    first, second = KFAC(whole, **settings), KFAC(halves, **settings)
    train(whole, first, given)
    for x, y in given:
        second.zero_grad()
        for part, labels in zip(x.chunk(2), y.chunk(2), strict=True):
            outputs = halves(part)
            second.curvature(outputs)
            (F.cross_entropy(outputs, labels) / 2).backward()
        second.step()
    for one, other in zip(factors(first), factors(second), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    for one, other in zip(values(whole), values(halves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def measured(seed: int) -> list[Tensor]:
    model = network()
    optimizer = KFAC(model, 0.1, burn_in=9, seed=seed)
    train(model, optimizer, batches(2))
    return factors(optimizer)


def test_the_seed_decides_which_labels_are_drawn() -> None:
    assert_equal(measured(3), measured(3))
    assert changed(measured(3), measured(4))


@pytest.mark.parametrize("fisher", ["sampled", "exact", "empirical"])
@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy", "mse"])
def test_drawing_labels_leaves_the_global_generator_alone(loss: Any, fisher: Any) -> None:
    model, x = network(), batches(1)[0][0]
    optimizer = KFAC(model, 0.1, loss=loss, fisher=fisher)
    outputs = model(x)
    state = torch.get_rng_state()
    targets = torch.zeros_like(outputs)
    optimizer.curvature(outputs, targets.argmax(1) if loss == "cross_entropy" else targets)
    assert torch.equal(torch.get_rng_state(), state)


def test_looking_at_a_step_sees_the_dropout_of_the_step_and_leaves_the_next_to_itself() -> None:
    """With the same masks a second closure at the same weights has the same loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(18, 40), nn.Dropout(0.5), nn.Linear(40, 3))
    optimizer = KFAC(model, 0.0, burn_in=1, damping_period=1, momentum=0.0)
    losses: list[float] = []
    for x, y in batches(3):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            loss = closure_of(model, optimizer, (x.flatten(1), y))()
            losses.append(loss.item())
            return loss

        optimizer.step(closure)  # pyright: ignore
    assert len(losses) == 1 + 2 + 2
    assert losses[1] == losses[2] != losses[3] == losses[4]


# A citizen of torch.optim


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step)),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=8),
    "sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.ConstantLR(optimizer, 0.2, 99), lr_scheduler.ExponentialLR(optimizer, 0.5)],
        [3],
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_steps_follow_torchs_schedules(
    schedule: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler],
) -> None:
    """As if the rates and momenta that SGD has under the same schedule were set by hand."""
    sgd = torch.optim.SGD(network().parameters(), 0.1, momentum=0.9)
    model, by_hand = network(), network()
    optimizer, other = KFAC(model, 0.1, burn_in=2), KFAC(by_hand, 7.0, 0.5, burn_in=2)
    of_sgd, scheduler = schedule(sgd), schedule(optimizer)
    for batch in batches(6):
        for group in other.param_groups:
            group |= {name: sgd.param_groups[0][name] for name in ("lr", "momentum")}
        train(by_hand, other, [batch])
        closure_of(model, optimizer, batch)()
        optimizer.step()
        scheduler.step()
        sgd.step()
        of_sgd.step()
    assert_equal(values(model), values(by_hand))


def test_clipped_gradients_give_shorter_steps() -> None:
    """A step is linear in the gradient where its length is not constrained."""
    (batch,) = batches(1)
    moved: list[list[Tensor]] = []
    for clipped in (False, True):
        model = network()
        optimizer = KFAC(model, 0.1, burn_in=0, norm_constraint=None)
        before = values(model)
        closure_of(model, optimizer, batch)()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1 if clipped else 1e9)
        optimizer.step()
        moved.append([w - b for w, b in zip(values(model), before, strict=True)])
    for far, near in zip(*moved, strict=True):
        torch.testing.assert_close(near, far * 0.1 / norm, rtol=1e-3, atol=1e-7)


def test_gradients_of_zero_are_like_none_but_for_momentum() -> None:
    model, given = network(), batches(3)
    optimizer = KFAC(model, 0.1, burn_in=0)
    train(model, optimizer, given[:1])
    for set_to_none in (True, False):
        closure_of(model, optimizer, given[1])()
        optimizer.zero_grad(set_to_none=set_to_none)
        before = values(model)
        pushes = [optimizer.state[p]["momentum_buffer"].clone() for p in model.parameters()]
        optimizer.step()
        for w, b, v in zip(values(model), before, pushes, strict=True):
            torch.testing.assert_close(w, b if set_to_none else b + 0.9 * v)


def test_weights_are_one_group_and_everything_else_another() -> None:
    model = network()
    weights, others = KFAC(model, 0.1, l2=0.3).param_groups
    assert (weights["name"], weights["l2"]) == ("weights", 0.3)
    assert (others["name"], others["l2"]) == ("others", 0.0)
    assert [tuple(p.shape) for p in weights["params"]] == [(3, 2, 2, 2), (5, 12), (3, 5)]
    assert [tuple(p.shape) for p in others["params"]] == [(3,), (1,), (5,), (3,)]


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"lr": 0.1},
    "spread": {"lr": 0.1, "spread_inverses": True, "inverse_period": 3, "l2": 1e-3},
    "periods": {"lr": 0.1, "momentum": 0.0, "curvature_period": 2, "inverse_period": 3},
    "eigenbasis": {"lr": 0.1, "eigenbasis": True, "inverse_period": 3},
    "adaptive": {"lr": None, "damping_period": 2, "inverse_period": 2},
    "damping": {"lr": 0.1, "damping_period": 2, "inverse_period": 2},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("saved_at", [1, 6])
def test_a_run_goes_on_bit_for_bit_from_what_was_saved(
    settings: dict[str, Any], saved_at: int
) -> None:
    given = batches(12)
    model = network()
    optimizer = KFAC(model, **settings, burn_in=2)
    train(model, optimizer, given[:saved_at])
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    train(model, optimizer, given[saved_at:])
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    again = network(seed=1)
    fresh = KFAC(again, **settings, burn_in=2)
    train(again, fresh, given[:3])  # even into one that was used
    again.load_state_dict(weights)
    fresh.load_state_dict(state)
    train(again, fresh, given[saved_at:])
    assert_equal(values(again), values(model))
    assert fresh.damping == optimizer.damping


def other_activation() -> nn.Sequential:
    model = network()
    model[1] = nn.PReLU(3)
    return model


def other_width() -> nn.Sequential:
    return nn.Sequential(*list(network())[:3], nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3))


def without_prelu() -> nn.Sequential:
    model = network()
    model[1] = nn.ReLU()
    return model


def deeper() -> nn.Sequential:
    return nn.Sequential(*network(), nn.Linear(3, 3))


def without_bias() -> nn.Sequential:
    model = network()
    model[5] = nn.Linear(5, 3, bias=False)
    return model


def kfac_state(model: nn.Module, **settings: Any) -> dict[str, Any]:
    optimizer = KFAC(model, 0.3, burn_in=1, **settings)
    train(model, optimizer, batches(3))
    return optimizer.state_dict()


def sgd_state() -> dict[str, Any]:
    groups = [{"params": group["params"]} for group in KFAC(network(), 0.1).param_groups]
    return torch.optim.SGD(groups, 0.3).state_dict()


FOREIGN: dict[str, Callable[[], dict[str, Any]]] = {
    "sgd": sgd_state,
    "prelu of channels": lambda: kfac_state(other_activation()),
    "no prelu": lambda: kfac_state(without_prelu()),
    "width": lambda: kfac_state(other_width()),
    "depth": lambda: kfac_state(deeper()),
    "bias": lambda: kfac_state(without_bias()),
    "eigenbasis": lambda: kfac_state(network(), eigenbasis=True),
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
def test_a_state_that_does_not_fit_is_refused_as_a_whole(
    foreign: Callable[[], dict[str, Any]],
) -> None:
    model, given = network(), batches(4)
    optimizer = KFAC(model, 0.1, burn_in=1)
    train(model, optimizer, given[:3])
    before = leaves(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"Load (it into the network|a state from KFAC)"):
        optimizer.load_state_dict(foreign())
    assert leaves(optimizer.state_dict()) == before
    undisturbed = network()
    train(undisturbed, KFAC(undisturbed, 0.1, burn_in=1), given)
    train(model, optimizer, given[3:])
    assert_equal(values(model), values(undisturbed))


def loss_of(model: nn.Module, batch: Batch) -> float:
    with torch.no_grad():
        return F.cross_entropy(model(batch[0]).float(), batch[1]).item()


@pytest.mark.parametrize("lr", [0.1, None])
@pytest.mark.parametrize("within", [True, False])
def test_under_autocast_the_curvature_is_in_full_precision(within: bool, lr: float | None) -> None:
    model, (batch,) = network(), batches(1, size=32)
    optimizer = KFAC(model, lr, burn_in=1)
    start = loss_of(model, batch)
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(batch[0])
            if within:
                optimizer.curvature(outputs)
        if not within:
            optimizer.curvature(outputs)
        F.cross_entropy(outputs.float(), batch[1]).backward()
        optimizer.step()
    assert loss_of(model, batch) < start
    state = optimizer.state_dict()["kfac"]
    assert {t.dtype for t in state["layers"]["3"].values() if isinstance(t, Tensor)} == {
        torch.float32
    }
    # In bfloat16 the mean of many squares has an error of about 1e-2.
    inputs = F.pad(batch[0].unfold(2, 2, 1).unfold(3, 2, 1).movedim(1, 3).flatten(3), (0, 1))
    rows = inputs.flatten(0, 2).double()
    rows[:, -1] = 1.0
    expected = rows.mT @ rows / len(rows)
    torch.testing.assert_close(
        state["layers"]["0"]["inputs"][0].double(), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_networks_of_other_precisions_are_trained(
    dtype: torch.dtype, settings: dict[str, Any]
) -> None:
    model, (batch,) = network(dtype=dtype), batches(1, size=32, dtype=dtype)
    optimizer = KFAC(model, **settings, burn_in=1)
    start = loss_of(model, batch)
    train(model, optimizer, [batch] * 8)
    assert loss_of(model, batch) < start
    wide = torch.promote_types(dtype, torch.float32)
    layers = optimizer.state_dict()["kfac"]["layers"].values()
    found = {t.dtype for layer in layers for t in layer.values() if isinstance(t, Tensor)}
    assert found == {wide}
    assert {p.dtype for p in model.parameters()} == {dtype}


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_of_the_model_are_not_listened_to(way: str) -> None:
    given = batches(4)
    model, undisturbed = network(), network()
    optimizer = KFAC(model, 0.1, burn_in=1)
    train(model, optimizer, given[:2])
    if way == "deepcopy":
        other = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    other(given[0][0])
    assert not optimizer._estimate.recorder.pop()
    assert_equal(values(other), values(model))
    own = KFAC(other, 0.1, burn_in=1)  # a new one hears the copy
    own.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for batch in given[2:]:
        train(other, own, [batch])
        train(model, optimizer, [batch])
    train(undisturbed, KFAC(undisturbed, 0.1, burn_in=1), given)
    assert_equal(values(model), values(undisturbed))
    assert_equal(values(other), values(undisturbed))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_model_and_optimiser_go_on_as_they_would(
    duplicate: Callable[[tuple[nn.Module, KFAC]], tuple[nn.Module, KFAC]],
) -> None:
    model, given = network(), batches(6)
    optimizer = KFAC(model, 0.1, burn_in=1, inverse_period=2)
    train(model, optimizer, given[:3])
    twin, twins = duplicate((model, optimizer))
    train(twin, twins, given[3:])
    halfway = values(model)
    train(model, optimizer, given[3:])
    assert_equal(values(twin), values(model))
    assert changed(values(model), halfway)


def test_more_parameters_are_refused() -> None:
    optimizer = KFAC(network(), 0.1)
    with pytest.raises(ValueError, match="Create a new one for the whole model"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    assert len(optimizer.param_groups) == 2


def test_two_optimisers_take_turns_on_one_model() -> None:
    """Each is as one that was made and loaded for its turn alone."""
    given = batches(6)
    model, expected = network(), network()
    optimizers = [KFAC(model, 0.1, burn_in=1, seed=seed) for seed in (1, 2)]
    states: list[dict[str, Any] | None] = [None, None]
    for number, batch in enumerate(given):
        train(model, optimizers[number % 2], [batch])
        alone = KFAC(expected, 0.1, burn_in=1, seed=1 + number % 2)
        state = states[number % 2]
        if state is not None:
            alone.load_state_dict(state)
        train(expected, alone, [batch])
        states[number % 2] = alone.state_dict()
        del alone
    assert_equal(values(model), values(expected))


def test_what_another_optimiser_trains_does_not_pile_up() -> None:
    model = network()
    optimizer, sgd = KFAC(model, 0.1), torch.optim.SGD(model.parameters(), 0.1)
    for x, y in batches(5):
        sgd.zero_grad()
        F.cross_entropy(model(x), y).backward()
        sgd.step()
    layers = [call.layer.name for call in optimizer._estimate.recorder.pop()]
    assert layers == ["0", "3", "5"]


def test_an_optimiser_that_is_gone_leaves_nothing_behind() -> None:
    """Not even until the garbage collector comes."""
    model = network()
    optimizer = KFAC(model, None, burn_in=1, damping_period=1)
    train(model, optimizer, batches(3))
    closure_of(model, optimizer, batches(1)[0])()  # with a step that was begun
    kept = [weakref.ref(optimizer), weakref.ref(optimizer._estimate.blocks.all[0].inputs)]
    gc.disable()
    try:
        del optimizer
        assert [reference() for reference in kept] == [None, None]
    finally:
        gc.enable()
    assert not any(module._forward_hooks for module in model.modules())

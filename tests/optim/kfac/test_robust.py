"""K-FAC goes on where numbers go wrong: infinite, singular, dead or very deep."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from skipless.optim import KFAC
from skipless.optim.kfac.inverse import Damping, damped_inverses

Batch = tuple[Tensor, Tensor]


def network(*between: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 6), *(between or (nn.Tanh(),)), nn.Linear(6, 3)]
    return nn.Sequential(*layers).to(dtype)


def batches(count: int, dtype: torch.dtype = torch.float64) -> list[Batch]:
    chance = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 8, 5, generator=chance, dtype=torch.float64).to(dtype)
    return list(zip(inputs, torch.randint(3, (count, 8), generator=chance), strict=True))


def backward(model: nn.Module, optimizer: KFAC, batch: Batch) -> Tensor:
    optimizer.zero_grad()
    outputs = model(batch[0])
    optimizer.curvature(outputs)
    loss = F.cross_entropy(outputs, batch[1])
    loss.backward()
    return loss


def train(model: nn.Module, optimizer: KFAC, given: list[Batch]) -> None:
    for batch in given:
        backward(model, optimizer, batch)
        optimizer.step()


def values(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def pushes(model: nn.Module, optimizer: KFAC) -> list[Tensor]:
    return [optimizer.state[p]["momentum_buffer"].clone() for p in model.parameters()]


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def finite(model: nn.Module) -> bool:
    return all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def notes(caplog: pytest.LogCaptureFixture, about: str) -> int:
    return sum(about in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("lr", [0.1, None])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["0.weight", "1.weight", "2.bias"])
def test_a_gradient_that_is_not_finite_is_left_out_and_told_once(
    lr: float | None, bad: float, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, given = network(nn.PReLU()), batches(6)
    optimizer = KFAC(model, lr, burn_in=1)
    train(model, optimizer, given[:3])
    before = values(model) + pushes(model, optimizer)
    for batch in given[3:5]:
        backward(model, optimizer, batch)
        grad = model.get_parameter(where).grad
        assert grad is not None
        grad.view(-1)[0] = bad
        optimizer.step()
        assert same(values(model) + pushes(model, optimizer), before)
    assert notes(caplog, "A gradient is not finite") == 1
    train(model, optimizer, given[5:])
    assert not same(values(model), before[:5])
    assert finite(model)


def factors(optimizer: KFAC) -> list[Tensor]:
    own = optimizer.state_dict()["kfac"]
    layers = [layer[name] for layer in own["layers"].values() for name in ("inputs", "outputs")]
    return [t.clone() for t in [*layers, *(other["mean"] for other in own["others"].values())]]


@pytest.mark.parametrize("eigenbasis", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_batch_whose_curvature_is_not_finite_is_left_out_and_told_once(
    bad: float, eigenbasis: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model, given = network(nn.PReLU()), batches(6)
    optimizer = KFAC(model, 0.1, burn_in=1, eigenbasis=eigenbasis)
    train(model, optimizer, given[:3])
    kept, before = factors(optimizer), values(model)
    for x, y in given[3:5]:
        train(model, optimizer, [(x * torch.tensor([bad, 1, 1, 1, 1]), y)])
    assert same(factors(optimizer), kept)
    assert same(values(model), before)
    assert notes(caplog, "The curvature of a batch is not finite") == 1
    train(model, optimizer, given[5:])
    assert not same(factors(optimizer), kept)
    assert finite(model)


def test_a_first_batch_that_is_not_finite_does_no_harm() -> None:
    model, given = network(nn.PReLU()), batches(4)
    optimizer = KFAC(model, 0.1, burn_in=0)
    start = values(model)
    train(model, optimizer, [(given[0][0] * math.inf, given[0][1])])
    assert same(values(model), start)
    train(model, optimizer, given[1:])
    assert finite(model)
    assert not same(values(model), start)


@pytest.mark.parametrize("norm_constraint", [1e-3, None])
def test_a_factor_that_rounding_made_indefinite_is_inverted_in_double_precision(
    norm_constraint: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Inputs of rank 2, whose rounding is far above the damping."""
    torch.manual_seed(0)
    model = nn.Linear(30, 3)
    nn.init.normal_(model.weight, std=1e-5)
    optimizer = KFAC(model, 1e-3, damping=1e-12, burn_in=1, norm_constraint=norm_constraint)
    rows = 1e4 * torch.randn(3, 64, 2).repeat(1, 1, 15)
    train(model, optimizer, [(x, torch.randint(3, (64,))) for x in rows])
    assert (
        notes(caplog, "A Kronecker factor of size 31 could only be inverted in double precision")
        == 1
    )
    assert finite(model)


def test_inverses_of_factors_beside_one_that_fails_are_their_own() -> None:
    """The indefinite one has an eigenvalue of -1e-3, so that 1e4 times 1e-6 are enough."""
    turn = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).double())
    indefinite = turn.Q @ torch.tensor([5.0, 3.0, 0.0, -1e-3]).double().diag() @ turn.Q.mT
    good = torch.eye(4).double() * 2.0
    warned: list[str] = []
    damping = Damping(torch.ones(3).double(), torch.full((3,), 1e-6).double())
    stack = torch.stack([good, indefinite, 3.0 * good])
    found = damped_inverses(stack, damping, torch.zeros_like(stack), warned.append)
    eye = torch.eye(4).double()
    expected = [m + shift * eye for m, shift in zip(stack, (1e-6, 1e-2, 1e-6), strict=True)]
    torch.testing.assert_close(found @ torch.stack(expected), eye.expand(3, 4, 4))
    assert len(warned) == 1
    assert "with 10000 times the damping" in warned[0]


def test_double_precision_comes_before_more_damping() -> None:
    """In single precision 1 + 1e-9 is 1, and the matrix is singular."""
    warned: list[str] = []
    damping = Damping(torch.ones(1), torch.full((1,), 1e-9))
    found = damped_inverses(torch.ones(1, 2, 2), damping, torch.zeros(1, 2, 2), warned.append)
    shift = damping.shift.double().item()
    expected = torch.tensor([[1 + shift, -1.0], [-1.0, 1 + shift]]) / (shift * (2 + shift))
    torch.testing.assert_close(found[0], expected)
    assert len(warned) == 1
    assert "with 1 times the damping" in warned[0]


def test_a_factor_that_cannot_be_inverted_at_all_keeps_its_last_inverse() -> None:
    warned: list[str] = []
    stack = torch.stack([torch.eye(2), -1e9 * torch.eye(2), math.nan * torch.eye(2)])
    damping = Damping(torch.ones(3), torch.full((3,), 1e-3))
    previous = torch.arange(12.0).view(3, 2, 2)
    found = damped_inverses(stack, damping, previous, warned.append)
    torch.testing.assert_close(found[0], torch.eye(2) / 1.001)
    assert torch.equal(found[1:], previous[1:])
    assert all("its last inverse is kept" in message for message in warned)


def test_a_length_that_rounding_made_negative_constrains_nothing() -> None:
    """The step is along -u then, whose length in the metric is not known but tiny."""
    model, given = network(), batches(2)
    optimizer = KFAC(model, 0.1, burn_in=0, momentum=0.0)
    train(model, optimizer, given[:1])
    for block in optimizer._estimate.blocks.all:
        inverse = optimizer._estimate.blocks._stack_of[block].tensors(block)["inverse_inputs"]
        inverse.mul_(-1e-9)
    train(model, optimizer, given[1:])
    assert finite(model)


class Dead(nn.Module):
    """Nothing goes in here, and nothing comes back."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.0 * x


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 0.1},
        {"lr": None},
        {"lr": 0.1, "eigenbasis": True},
        {"lr": 0.1, "damping_period": 1},
        {"lr": 0.1, "damping": 1e-12},
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_dead_layers_give_finite_steps(
    settings: dict[str, Any], bias: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    dead = [Dead(), nn.Linear(6, 6, bias=bias), Dead()]
    model = nn.Sequential(nn.Linear(5, 6), *dead, nn.Linear(6, 3, bias=bias)).double()
    optimizer = KFAC(model, **settings, burn_in=1)
    start = values(model)
    for batch in batches(5):
        optimizer.step(lambda batch=batch: backward(model, optimizer, batch))  # pyright: ignore
    assert finite(model)
    assert not notes(caplog, "inverted")
    found = values(model)
    assert same(found[:2], start[:2]), "nothing comes back to the first layer"
    assert bias != same(found[-1:], start[-1:]), "the last bias has all the gradient there is"


def test_zero_inputs_give_finite_steps_in_single_precision() -> None:
    model = network(nn.ReLU(), dtype=torch.float32)
    optimizer = KFAC(model, 0.1, burn_in=1)
    train(model, optimizer, [(0.0 * x, y) for x, y in batches(4, torch.float32)])
    assert finite(model)


def test_one_example_at_a_time_is_enough() -> None:
    model = network()
    optimizer = KFAC(model, 0.05, burn_in=2)
    start = values(model)
    train(model, optimizer, [(x[:1], y[:1]) for x, y in batches(8)])
    assert finite(model)
    assert not same(values(model), start)


def test_a_plane_that_is_a_line_has_a_best_step() -> None:
    """With one parameter the last step is parallel to the gradient.

    For predictions w x and squared errors the quadratic model is the loss, and without damping to
    speak of one step ends at its minimum, where nothing is left to do.
    """
    model = nn.Linear(1, 1, bias=False).double()
    optimizer = KFAC(model, None, damping=1e-14, burn_in=1, loss="mse")
    x, y = torch.randn(2, 20, 1, generator=torch.Generator().manual_seed(0)).double()
    for _ in range(6):
        optimizer.zero_grad()
        outputs = model(x)
        optimizer.curvature(outputs)
        F.mse_loss(outputs, y).backward()
        optimizer.step()
    torch.testing.assert_close(model.weight.detach(), torch.linalg.lstsq(x, y).solution)


def sampled_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return F.cross_entropy(model(inputs), labels).item()


def orthogonal(depth: int, width: int, activation: Callable[[], nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(64, width)]
    for _ in range(depth - 2):
        layers += [activation(), nn.Linear(width, width)]
    layers.append(nn.Linear(width, 10))
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def test_fifty_layers_learn_digits() -> None:
    images, digits = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(images).float() / 8.0 - 1.0, torch.tensor(digits)
    model = orthogonal(50, 24, nn.Tanh)
    optimizer = KFAC(model, 0.1, damping=1e-2, norm_constraint=1e-4, inverse_period=10)
    start = sampled_loss(model, inputs, labels)
    chance = torch.Generator().manual_seed(0)
    for _ in range(60):
        rows = torch.randint(len(inputs), (64,), generator=chance)
        train(model, optimizer, [(inputs[rows], labels[rows])])
    assert finite(model)
    assert sampled_loss(model, inputs, labels) < start

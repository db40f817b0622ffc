"""LARS takes the steps that Optax's does, in whatever groups, layouts and types."""

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skipless.optim.lars import LARS

Array = NDArray[np.float64]

RATES = (1.0, 3.0, 0.3, 0.0, 2.0, 0.1)


def optax_lars(
    w: Array,
    grads: Sequence[Array],
    rates: Sequence[float],
    *,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    trust_coefficient: float | None = 0.001,
    eps: float = 0.0,
    nesterov: bool = False,
) -> Array:
    """`optax.lars` for one parameter: its chain of transformations, one line or block for each."""
    trace = np.zeros_like(w)
    for g, lr in zip(grads, rates, strict=True):
        u = g + weight_decay * w  # add_decayed_weights
        if trust_coefficient is not None:  # scale_by_trust_ratio, unless masked
            w_norm = math.sqrt(sum(x * x for x in w.ravel().tolist()))
            u_norm = math.sqrt(sum(x * x for x in u.ravel().tolist()))
            if w_norm != 0.0 and u_norm != 0.0:
                u = u * (trust_coefficient * w_norm / (u_norm + eps))
        u = -lr * u  # scale_by_learning_rate
        trace = u + momentum * trace  # trace
        u = u + momentum * trace if nesterov else trace
        w = w + u  # apply_updates
    return w


def arrays(*shapes: tuple[int, ...], seed: int) -> list[Array]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape) for shape in shapes]


def stepped(
    optimizer: torch.optim.Optimizer, params: Sequence[Tensor], grads: Sequence[Sequence[Array]]
) -> list[Array]:
    """The parameters after one step for each of `RATES`."""
    for step, lr in enumerate(RATES):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for param, own in zip(params, grads, strict=True):
            param.grad = torch.tensor(own[step], dtype=param.dtype)
        optimizer.step()
    return [param.detach().double().numpy() for param in params]


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("trust_coefficient", [None, 0.001, 0.3])
@pytest.mark.parametrize(("weight_decay", "eps"), [(0.0, 0.0), (0.05, 0.0), (0.05, 0.7)])
def test_steps_are_those_of_optax_while_the_learning_rate_changes(
    weight_decay: float,
    eps: float,
    trust_coefficient: float | None,
    momentum: float,
    nesterov: bool,
) -> None:
    shapes = [(4, 3), (2, 3, 3, 3), (5,), ()]
    start = arrays(*shapes, seed=0)
    grads = [arrays(*[shape] * len(RATES), seed=i + 1) for i, shape in enumerate(shapes)]
    params = [nn.Parameter(torch.tensor(w)) for w in start]
    optimizer = LARS(params, 1.0, momentum, weight_decay, trust_coefficient, eps, nesterov)
    for found, w, own in zip(stepped(optimizer, params, grads), start, grads, strict=True):
        expected = optax_lars(
            w,
            own,
            RATES,
            momentum=momentum,
            weight_decay=weight_decay,
            trust_coefficient=trust_coefficient,
            eps=eps,
            nesterov=nesterov,
        )
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_groups_have_their_own_settings() -> None:
    w, b = arrays((4, 3), (4,), seed=0)
    gw, gb = arrays(*[(4, 3)] * len(RATES), seed=1), arrays(*[(4,)] * len(RATES), seed=2)
    params = [nn.Parameter(torch.tensor(w)), nn.Parameter(torch.tensor(b))]
    optimizer = LARS(
        [
            {"params": [params[0]], "weight_decay": 0.1},
            {"params": [params[1]], "trust_coefficient": None},
        ],
        lr=1.0,
    )
    found = stepped(optimizer, params, [gw, gb])
    np.testing.assert_allclose(found[0], optax_lars(w, gw, RATES, weight_decay=0.1), rtol=1e-12)
    expected = optax_lars(b, gb, RATES, trust_coefficient=None)
    np.testing.assert_allclose(found[1], expected, rtol=1e-12)


@pytest.mark.parametrize("zero", ["parameter", "gradient"])
def test_a_length_of_zero_has_a_trust_ratio_of_1(zero: str) -> None:
    w = nn.Parameter(torch.zeros(2) if zero == "parameter" else torch.ones(2))
    w.grad = torch.tensor([1.0, 2.0]) if zero == "parameter" else torch.zeros(2)
    LARS([w], lr=0.5).step()
    assert w.tolist() == ([-0.5, -1.0] if zero == "parameter" else [1.0, 1.0])


def test_types_may_differ_within_a_group_and_half_precision_takes_exact_lengths() -> None:
    # The length, 3000 · √1024, is beyond float16's 65,504.
    half = nn.Parameter(torch.full((1024,), 3000.0, dtype=torch.float16))
    whole = nn.Parameter(torch.full((1024,), 3000.0, dtype=torch.float64))
    half.grad, whole.grad = torch.ones_like(half), torch.ones_like(whole)
    LARS([half, whole], lr=1.0, trust_coefficient=0.5).step()
    assert torch.equal(half, torch.full_like(half, 1500.0))
    assert torch.allclose(whole, torch.full_like(whole, 1500.0), rtol=1e-14)


def test_layouts_do_not_matter() -> None:
    start = arrays((4, 3, 3, 3), seed=0)[0]
    grads = [arrays(*[(4, 3, 3, 3)] * len(RATES), seed=1)]
    plain = nn.Parameter(torch.tensor(start))
    last = nn.Parameter(torch.tensor(start).to(memory_format=torch.channels_last))
    found = [stepped(LARS([p], lr=1.0), [p], grads)[0] for p in (plain, last)]
    assert last.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-13)


def test_parameters_without_gradients_stay_and_have_no_state() -> None:
    moved, left = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    moved.grad = torch.ones(3)
    optimizer = LARS([left, moved], lr=1.0, weight_decay=0.1)
    optimizer.step()
    assert left.tolist() == [1.0, 1.0, 1.0]
    assert moved.tolist() != [1.0, 1.0, 1.0]
    assert list(optimizer.state) == [moved]


def test_gradients_are_left_as_they_are() -> None:
    w = nn.Parameter(torch.ones(3))
    w.grad = torch.tensor([1.0, 2.0, 3.0])
    optimizer = LARS([w], lr=1.0, weight_decay=0.1, nesterov=True)
    optimizer.step()
    optimizer.step()
    assert w.grad.tolist() == [1.0, 2.0, 3.0]


def test_a_closure_is_called_with_gradients_on_and_its_loss_comes_back() -> None:
    w = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = LARS([w], lr=1.0, trust_coefficient=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = w.square().sum() / 2.0
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 12.5
    assert torch.allclose(w, torch.tensor([2.7, 3.6]))


def test_sparse_gradients_are_refused() -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match=r"sparse gradient .* \(4, 2\)"):
        LARS(embedding.parameters(), lr=1.0).step()


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda w: LARS([w], lr=-1.0), "lr"),
        (lambda w: LARS([w], lr=math.nan), "lr"),
        (lambda w: LARS([w], lr=1.0, momentum=-0.1), "momentum"),
        (lambda w: LARS([w], lr=1.0, weight_decay=-0.1), "weight_decay"),
        (lambda w: LARS([w], lr=1.0, trust_coefficient=-0.1), "trust_coefficient"),
        (lambda w: LARS([w], lr=1.0, eps=-0.1), "eps"),
    ],
)
def test_settings_below_zero_are_refused_by_name(
    build: Callable[[nn.Parameter], LARS], name: str
) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be (finite and >= 0|in \[0, 1\)), got "):
        build(nn.Parameter(torch.ones(2)))


def test_a_scheduler_of_torch_sets_its_learning_rate() -> None:
    w = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = LARS([w], lr=1.0, momentum=0.0, trust_coefficient=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(2):
        w.grad = w.detach().clone()
        optimizer.step()
        scheduler.step()
    # Along w itself, each step takes the part lr · 0.1 of it away.
    assert torch.allclose(w, torch.tensor([3.0, 4.0]) * 0.9 * 0.95)


def test_a_copy_goes_on_like_the_original() -> None:
    w = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = LARS([w], lr=1.0)
    w.grad = torch.tensor([1.0, -1.0])
    optimizer.step()
    other = copy.deepcopy(optimizer)
    (twin,) = other.param_groups[0]["params"]
    twin.grad = w.grad.clone()
    optimizer.step()
    other.step()
    assert twin is not w
    assert torch.equal(twin, w)

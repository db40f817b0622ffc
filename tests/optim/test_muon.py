"""Muon for whole networks takes the steps of torch's own Muon and AdamW, in any layout."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from skipless.optim.muon import MuonAdamW

LAYOUTS = [torch.contiguous_format, torch.channels_last]


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def torch_muon(start: Tensor, grads: list[Tensor]) -> Tensor:
    """A weight after steps of `torch.optim.Muon`, on the matrix from all that its kernel covers."""
    matrix = nn.Parameter(start.reshape(start.shape[0], -1).clone())
    optimizer = torch.optim.Muon(
        [matrix],
        lr=0.01,
        momentum=0.8,
        nesterov=False,
        weight_decay=0.3,
        adjust_lr_fn="match_rms_adamw",
    )
    for grad in grads:
        matrix.grad = grad.reshape(start.shape[0], -1).clone()
        optimizer.step()
    return matrix.detach().reshape(start.shape)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(6, 4, 3, 3), (30, 2, 3, 3), (6, 4, 1, 1), (6, 1, 3, 3)])
def test_a_convolution_steps_like_its_matrix_under_torchs_muon(
    shape: tuple[int, ...], layout: torch.memory_format
) -> None:
    start, grads = draw(*shape, seed=0), [draw(*shape, seed=i) for i in (1, 2, 3)]
    weight = nn.Parameter(start.clone().to(memory_format=layout))
    optimizer = MuonAdamW([weight], lr=0.01, momentum=0.8, nesterov=False, weight_decay=0.3)
    for grad in grads:
        weight.grad = grad.clone().to(memory_format=layout)
        optimizer.step()
    assert torch.equal(weight, torch_muon(start, grads))
    assert weight.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("shape", [(8,), (), (8, 4)])
def test_what_is_not_made_orthogonal_steps_like_torchs_adamw(shape: tuple[int, ...]) -> None:
    found, expected = (nn.Parameter(draw(*shape, seed=0)) for _ in range(2))
    settings = {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-3, "weight_decay": 0.3}
    ours = MuonAdamW([found], **settings, orthogonalize=False)
    theirs = torch.optim.AdamW([expected], **settings)
    for i in (1, 2, 3):
        found.grad, expected.grad = draw(*shape, seed=i), draw(*shape, seed=i)
        ours.step()
        theirs.step()
    assert torch.equal(found, expected)


def test_steps_have_the_size_of_adamws_and_are_orthogonal() -> None:
    weight = nn.Parameter(torch.zeros(32, 8, 2, 2))
    weight.grad = draw(32, 8, 2, 2, seed=0) * 1e-4
    MuonAdamW([weight], lr=1.0).step()
    # A 32 x 32 orthogonal matrix times 0.2 √32 has entries of mean square 0.2². Newton-Schulz takes
    # singular values to between 0.68 and 1.13 (Jordan et al., 2024), but for the very smallest.
    sizes = torch.linalg.svdvals(weight.detach().flatten(1)) / (0.2 * 32**0.5)
    assert sizes.max() < 1.2
    assert sizes[:-2].min() > 0.6
    assert 0.6 * 0.2 < weight.detach().square().mean().sqrt() < 1.2 * 0.2


def test_a_learning_rate_that_a_scheduler_sets_holds_for_both_parts() -> None:
    weight, bias = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3))
    groups = [{"params": [weight]}, {"params": [bias], "orthogonalize": False}]
    optimizer = MuonAdamW(groups, lr=0.5, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
    moved: list[tuple[bool, bool]] = []
    for _ in range(2):
        before = weight.detach().clone(), bias.detach().clone()
        weight.grad, bias.grad = torch.ones(3, 2), torch.ones(3)
        optimizer.step()
        scheduler.step()
        moved.append((not torch.equal(weight, before[0]), not torch.equal(bias, before[1])))
    assert moved == [(True, True), (False, False)]


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(24, 5))


def over(model: nn.Module) -> MuonAdamW:
    weights = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": weights}, {"params": others, "orthogonalize": False}]
    return MuonAdamW(groups, lr=0.01, weight_decay=0.1)


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    optimizer.zero_grad()
    model(draw(8, 3, 4, 4, seed=seed)).square().mean().backward()
    optimizer.step()


def test_a_model_may_change_its_layout_between_steps() -> None:
    plain, changed = small_network(), small_network()
    optimizers = over(plain), over(changed)
    for seed in range(6):
        if seed == 3:
            changed.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        for model, optimizer in zip((plain, changed), optimizers, strict=True):
            for p in model.parameters():
                p.grad = torch.empty_like(p).copy_(draw(*p.shape, seed=seed))
            optimizer.step()
    assert not next(changed.parameters()).is_contiguous()
    assert all(map(torch.equal, plain.parameters(), changed.parameters()))


def test_a_copy_goes_on_like_the_original_and_by_itself() -> None:
    model = small_network()
    optimizer = over(model)
    take_step(model, optimizer, 0)
    twin, twins = copy.deepcopy((model, optimizer))
    take_step(model, optimizer, 1)
    assert not torch.equal(next(model.parameters()), next(twin.parameters()))
    take_step(twin, twins, 1)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


def test_parameters_without_gradients_stay_and_have_no_state() -> None:
    parameters = [nn.Parameter(torch.ones(3, 2)) for _ in range(4)]
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], "orthogonalize": False}]
    optimizer = MuonAdamW(groups, lr=0.1, weight_decay=0.1)
    for moved in (parameters[1], parameters[3]):
        moved.grad = torch.ones(3, 2)
    optimizer.step()
    assert [torch.equal(p, torch.ones(3, 2)) for p in parameters] == [True, False, True, False]
    assert list(optimizer.state) == [parameters[1], parameters[3]]


def test_a_closure_is_called_with_gradients_on_and_its_loss_comes_back() -> None:
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = MuonAdamW([weight], lr=0.1)

    def closure() -> float:
        loss = weight.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 6.0
    assert not torch.equal(weight, torch.ones(3, 2))


def test_a_vector_is_refused_where_a_matrix_is_needed() -> None:
    with pytest.raises(ValueError, match=r"2 or more dimensions, got shape \(3,\)"):
        MuonAdamW([nn.Parameter(torch.ones(3))], lr=0.1)
    optimizer = MuonAdamW([nn.Parameter(torch.ones(3, 2))], lr=0.1)
    with pytest.raises(ValueError, match="2 or more dimensions"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    assert len(optimizer.param_groups) == 1


def test_sparse_gradients_are_refused() -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse gradient"):
        MuonAdamW(embedding.parameters(), lr=0.1).step()


@pytest.mark.parametrize(
    "build",
    [
        lambda w: MuonAdamW([w], lr=-0.1),
        lambda w: MuonAdamW([w], lr=0.1, momentum=-0.1),
        lambda w: MuonAdamW([w], lr=0.1, weight_decay=-0.1),
        lambda w: MuonAdamW([w], lr=0.1, betas=(0.9, -0.1)),
    ],
)
def test_settings_below_zero_are_refused(build: Callable[[nn.Parameter], MuonAdamW]) -> None:
    with pytest.raises(ValueError, match=r"-0\.1"):
        build(nn.Parameter(torch.ones(3, 2)))

"""Optimisers by name: which parameters they take, how L2 acts, and that runs resume exactly."""

import copy
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from skipless import optim
from skipless.optim import KFAC, LARS, KFACSettings, MuonAdamW, create_optimizer, optimizer_names
from skipless.optim.settings import KFACOptions

NAMES = ("sgd", "lars", "adamw", "muon", "kfac", "soap")
RATES = {"sgd": 0.02, "lars": 2.0, "adamw": 0.003, "muon": 0.003, "kfac": 0.1, "soap": 0.003}


class Network(nn.Module):
    """Every kind of parameter: convolutions, normalisation, slopes, shared and frozen ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norms = nn.Sequential(
            nn.BatchNorm2d(6), nn.LayerNorm([6, 4, 4]), nn.GroupNorm(2, 6), nn.RMSNorm([4, 4])
        )
        self.act = nn.PReLU(6)
        self.linear = nn.Linear(96, 10)
        self.twin = nn.Linear(96, 10, bias=False)
        self.twin.weight = self.linear.weight
        self.frozen = nn.Linear(10, 10)
        self.frozen.requires_grad_(False)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norms(self.conv(x))).flatten(1)
        return self.frozen(self.linear(x) + self.twin(x)) * self.temperature


WEIGHTS = {"conv.weight", "linear.weight"}


def network() -> Network:
    torch.manual_seed(0)
    return Network()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """The losses of those steps, each on a batch of its own number."""
    losses: list[float] = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(16, 3, 6, 6, generator=generator)
        y = (x.mean(dim=(1, 2, 3)) > 0).long()
        optimizer.zero_grad()
        logits = model(x)
        if isinstance(optimizer, KFAC):
            optimizer.curvature(logits)
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def resume(name: str, folder: Path) -> None:
    """Ten more steps from the checkpoint in `folder`, and the weights after them."""
    torch.manual_seed(1)
    model = Network()
    optimizer = create_optimizer(name, model, lr=0.5)
    checkpoint = torch.load(folder / f"{name}.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    train(model, optimizer, range(10, 20))
    torch.save(model.state_dict(), folder / f"{name}-after.pt")


def test_the_names_are_known() -> None:
    assert optimizer_names() == NAMES
    kinds = [type(create_optimizer(name, network(), lr=0.1)) for name in NAMES[:5]]
    assert kinds == [torch.optim.SGD, LARS, torch.optim.AdamW, MuonAdamW, KFAC]
    assert type(create_optimizer("soap", network(), lr=0.1)).__name__ == "SOAP"


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_taken_once_in_two_named_groups_without_the_frozen(name: str) -> None:
    model = network()
    groups = create_optimizer(name, model, lr=0.1).param_groups
    names = {parameter: key for key, parameter in model.named_parameters()}
    found = {group["name"]: [names[p] for p in group["params"]] for group in groups}
    assert set(found) == {"weights", "others"}
    assert sorted(found["weights"]) == sorted(WEIGHTS)
    trainable = {key for key in names.values() if not key.startswith("frozen")}
    assert sorted(found["others"]) == sorted(trainable - WEIGHTS)


def kept(name: str, lr: float, l2: float) -> float:
    """The part of a weight that L2 alone leaves in one step, by the definition of the optimiser."""
    # LARS: the update l2 · w, of length l2 ‖w‖, is scaled to length 0.001 ‖w‖.
    return 1.0 - lr * (0.001 if name == "lars" else l2)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "kfac"])
def test_l2_shrinks_the_weights_only(name: str) -> None:
    model = network()
    optimizer = create_optimizer(name, model, lr=0.1, l2=0.02)
    if name == "soap":  # whose first step does nothing
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for key, parameter in model.named_parameters():
        factor = kept(name, 0.1, 0.02) if key in WEIGHTS else 1.0
        assert torch.allclose(parameter, factor * before[key], rtol=1e-6, atol=0.0), key


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_in_channels_last_as_well(name: str) -> None:
    model = network().to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    losses = train(model, create_optimizer(name, model, lr=RATES[name]), range(40))
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


@pytest.mark.parametrize("name", NAMES[:5])  # pytorch_optimizer 4.1 forgets settings in copies
def test_a_copy_goes_on_like_the_original(name: str) -> None:
    model = network()
    optimizer = create_optimizer(name, model, lr=RATES[name])
    train(model, optimizer, range(3))
    twin, twins = copy.deepcopy((model, optimizer))
    assert train(model, optimizer, range(3, 6)) == train(twin, twins, range(3, 6))


def test_a_run_goes_on_in_another_process_to_the_very_same_weights(tmp_path: Path) -> None:
    expected: dict[str, dict[str, Tensor]] = {}
    for name in NAMES:
        model = network()
        optimizer = create_optimizer(name, model, lr=RATES[name], l2=0.01)
        train(model, optimizer, range(10))
        checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(checkpoint, tmp_path / f"{name}.pt")
        train(model, optimizer, range(10, 20))
        expected[name] = model.state_dict()
    command = [sys.executable, "-W", "error", __file__, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert all(line.startswith("K-FAC uses only") for line in result.stderr.splitlines())
    for name in NAMES:
        found = torch.load(tmp_path / f"{name}-after.pt")
        assert {k for k, v in found.items() if not torch.equal(v, expected[name][k])} == set()


def test_momentum_is_the_usual_one_unless_asked_for() -> None:
    def momentum(name: str, asked: float | None) -> float:
        group = create_optimizer(name, network(), lr=0.1, momentum=asked).param_groups[0]
        return group["betas"][0] if name in ("adamw", "soap") else group["momentum"]

    # Appendix D for SGD, LARS and K-FAC; the defaults of their authors for the others.
    assert [momentum(name, None) for name in NAMES] == [0.9, 0.9, 0.9, 0.95, 0.9, 0.95]
    assert [momentum(name, 0.7) for name in NAMES] == [0.7] * 6
    assert [momentum(name, 0.0) for name in NAMES] == [0.0] * 6


def test_nesterov_is_usual_for_muon_only_and_refused_where_there_is_none() -> None:
    def nesterov(name: str, asked: bool | None) -> bool:
        groups = create_optimizer(name, network(), lr=0.1, nesterov=asked).param_groups
        return groups[0]["nesterov"]

    own = ("sgd", "lars", "muon")
    assert [nesterov(name, None) for name in own] == [False, False, True]
    assert [nesterov(name, True) for name in own] == [True, True, True]
    assert [nesterov(name, False) for name in own] == [False, False, False]
    for name in ("adamw", "kfac", "soap"):
        with pytest.raises(ValueError, match=f"{name} does not support nesterov; use it with sgd"):
            nesterov(name, True)


def test_nesterov_momentum_of_sgd_is_that_of_optax() -> None:
    """`optax.sgd`: the trace of gradients, a step ahead, times the learning rate."""
    model = nn.Linear(3, 2, bias=False)
    optimizer = create_optimizer("sgd", model, lr=0.0, momentum=0.9, nesterov=True)
    w, trace = model.weight.detach().clone().double(), torch.zeros(2, 3).double()
    generator = torch.Generator().manual_seed(0)
    for lr in (0.1, 0.3, 0.02, 0.5):
        for group in optimizer.param_groups:
            group["lr"] = lr
        model.weight.grad = torch.randn(2, 3, generator=generator)
        g = model.weight.grad.double()
        trace = g + 0.9 * trace
        w -= lr * (g + 0.9 * trace)
        optimizer.step()
    assert torch.allclose(model.weight.detach().double(), w, atol=1e-6)


def test_every_group_has_a_trust_ratio_as_in_optax_with_the_coefficient_of_the_paper() -> None:
    groups = create_optimizer("lars", network(), lr=0.1).param_groups
    assert [group["trust_coefficient"] for group in groups] == [0.001, 0.001]


@pytest.mark.parametrize("name", NAMES)
def test_a_group_without_parameters_is_left_out(name: str) -> None:
    only_weights, only_others = nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3)
    for model, expected in ((only_weights, "weights"), (only_others, "others")):
        groups = create_optimizer(name, model, lr=0.1).param_groups
        assert [group["name"] for group in groups] == [expected]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_without_anything_to_train_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"Linear has no trainable parameters\. Set"):
        create_optimizer(name, nn.Linear(3, 3).requires_grad_(False), lr=0.1)


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"one of sgd, lars, adamw, .*, got 'adam'"):
        create_optimizer("adam", network(), lr=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -0.1}, "lr must be finite and >= 0, got -0.1"),
        ({"lr": float("nan")}, "lr must be finite and >= 0, got nan"),
        ({"lr": float("inf")}, "lr must be finite and >= 0, got inf"),
        ({"l2": -0.1}, "l2 must be finite and >= 0, got -0.1"),
        ({"momentum": 1.0}, "momentum must be in [0, 1), got 1.0"),
        ({"momentum": -0.1}, "momentum must be in [0, 1), got -0.1"),
        ({"momentum": 0.0, "nesterov": True}, "nesterov needs a momentum > 0, got 0"),
    ],
)
def test_the_one_setting_that_is_out_of_range_is_named(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        create_optimizer("sgd", network(), **dict[str, Any](lr=0.1) | settings)


@pytest.mark.parametrize("name", NAMES)
def test_every_optimiser_checks_its_settings(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape("l2 must be finite and >= 0, got nan")):
        create_optimizer(name, network(), lr=0.1, l2=float("nan"))


def test_a_missing_library_names_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(ImportError, match=r"pytorch_optimizer.*pip install .*\[train\]'"):
        create_optimizer("soap", network(), lr=0.1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert "pytorch_optimizer" not in sys.modules  # a second of imports that only SOAP needs
    for each in NAMES:
        resume(each, Path(sys.argv[1]))


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_one_kernel_does_a_step_where_memory_lies_in_order(name: str) -> None:
    def trained(layout: torch.memory_format, **fused: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 4))
        model.to(memory_format=layout)  # pyright: ignore[reportCallIssue]
        optimizer = create_optimizer(name, model, lr=0.01)
        assert optimizer.defaults["fused"] is (layout is torch.contiguous_format)
        optimizer.param_groups[0].update(fused)
        optimizer.param_groups[1].update(fused)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3, 4, 4)).square().sum().backward()
            optimizer.step()
        return [p.detach().contiguous() for p in model.parameters()]

    wanted = trained(torch.contiguous_format, fused=False)
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.testing.assert_close(trained(layout), wanted)


def test_keywords_of_kfac_are_the_fields_of_its_settings() -> None:
    assert set(KFACOptions.__annotations__) == {own.name for own in fields(KFACSettings)}
    by_keywords = KFAC(network(), 0.1, preset="cifar10", burn_in=1, norm_constraint=None)
    settings = KFACSettings(preset="cifar10", burn_in=1)
    by_object = KFAC(network(), 0.1, settings=settings, norm_constraint=None)
    assert by_keywords._arguments == by_object._arguments
    assert (by_keywords.damping, by_keywords.norm_constraint) == (0.01, None)
    with pytest.raises(TypeError, match="dampening"):
        KFAC(network(), 0.1, dampening=1.0)  # pyright: ignore[reportCallIssue]


def test_the_old_name_of_the_presets_still_works() -> None:
    with pytest.warns(DeprecationWarning, match=r"skipless\.optim\.PRESETS .* preset="):
        found = optim.PRESETS  # pyright: ignore[reportAttributeAccessIssue]
    assert found["imagenet"]["damping"] == 0.001

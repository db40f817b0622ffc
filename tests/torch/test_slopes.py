"""TReLUs whose slopes are trained: TReLUs at first, PReLUs to optimisers, and foldable."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipless import DKS, TAT, Graph, UnsupportedModelError, solve
from skipless.models import create_model
from skipless.optim import KFAC, create_optimizer
from skipless.torch import ShapedActivation, TrainableTReLU, TReLU, convert, fold, load, save

SOLUTION = solve(Graph.chain(40), TAT(eta=0.9))
IMAGES = torch.randn(6, 2, 5, 5, generator=torch.Generator().manual_seed(0))


class Reused(nn.Module):
    """One module and one function, each called twice, behind different numbers of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(n, n + 1, 1) for n in range(2, 7))
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.convs[0](x))
        x = F.relu(self.convs[1](x))
        x = self.act(self.convs[2](x))
        return self.convs[4](F.relu(self.convs[3](x))).mean((2, 3))


def slopes_of(model: nn.Module) -> list[Tensor]:
    return [m.weight for m in model.modules() if isinstance(m, TrainableTReLU)]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_it_computes_what_trelu_does_and_half_precision_rounds_once(dtype: torch.dtype) -> None:
    trained = TrainableTReLU.of(SOLUTION, 3).to(dtype)
    x = torch.randn(4, 3, 50, generator=seeded()).to(dtype)
    slope = float(trained.weight.detach()[0])  # rounded to the model's own type
    assert torch.equal(trained(x), TReLU(slope, SOLUTION.output_scale)(x))
    if dtype is torch.float32:
        assert torch.equal(trained(x), ShapedActivation.from_solution(SOLUTION)(x))


def test_the_slope_of_each_channel_has_the_gradient_of_a_prelu() -> None:
    trained, plain = TrainableTReLU(0.3, 2.0, 3).double(), nn.PReLU(3, 0.3).double()
    x = torch.randn(4, 3, 5, dtype=torch.float64, generator=seeded())
    trained(x).square().sum().backward()
    (2.0 * plain(x)).square().sum().backward()
    assert trained.weight.grad is not None
    torch.testing.assert_close(trained.weight.grad, plain.weight.grad)


@pytest.mark.parametrize("which", ["channel", "layer"])
def test_networks_with_trained_slopes_start_as_those_without(which) -> None:
    options = {"num_classes": 4, "in_chans": 2, "img_size": 5, "width": 1 / 8}
    plain = create_model("wide_resnet16", shortcut_weight=0.0, generator=seeded(), **options)
    model = create_model(
        "wide_resnet16", shortcut_weight=0.0, trainable_slope=which, generator=seeded(), **options
    )
    assert torch.equal(model(IMAGES), plain(IMAGES))
    assert len(slopes_of(model)) == 13
    sizes = [p.numel() for p in slopes_of(model)]
    assert sizes == ([1] * 13 if which == "layer" else [16] + [2] * 4 + [4] * 4 + [8] * 4)


@pytest.mark.parametrize("which", [True, "layer"])
def test_conversion_gives_every_activation_slopes_of_its_own(which) -> None:
    plain = convert(Reused(), IMAGES, generator=seeded())
    model = convert(Reused(), IMAGES, trainable_slope=which, generator=seeded())
    assert torch.allclose(model(IMAGES), plain(IMAGES), rtol=1e-6, atol=1e-7)
    sizes = sorted(p.numel() for p in slopes_of(model))
    assert sizes == ([3, 4, 5, 6] if which is True else [1, 1, 1, 1])
    assert model.skipless_report.untouched == ()
    assert "activation replaced by TReLU, its slope trained" in str(model.skipless_report)


@pytest.mark.parametrize("name", ["sgd", "lars", "adamw", "kfac"])
def test_optimisers_train_slopes_without_weight_decay(name: str) -> None:
    model = convert(Reused(), IMAGES, trainable_slope="layer", generator=seeded())
    if name == "kfac":
        optimizer = KFAC(model, 0.1, l2=1e-3, burn_in=1)
    else:
        optimizer = create_optimizer(name, model, lr=0.1, l2=1e-3)
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert {groups[id(p)]["name"] for p in slopes_of(model)} == {"others"}
    before = torch.cat(slopes_of(model)).detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        outputs = model(IMAGES)
        if isinstance(optimizer, KFAC):
            optimizer.curvature(outputs)
        F.cross_entropy(outputs, torch.arange(6)).backward()
        optimizer.step()
    assert (torch.cat(slopes_of(model)) != before).all()


def test_trained_slopes_are_saved_copied_and_folded_into_prelus(tmp_path: Path) -> None:
    model = convert(Reused(), IMAGES, trainable_slope=True, generator=seeded()).eval()
    for slopes in slopes_of(model):
        nn.init.uniform_(slopes, -0.5, 1.5, generator=seeded())
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", Reused)
    folded = fold(model)
    for other in (again, copy.deepcopy(model), folded):
        torch.testing.assert_close(other(IMAGES), model(IMAGES))
    kinds = [type(m) for m in folded.modules()]
    assert kinds.count(nn.PReLU) == 4
    assert not any(issubclass(kind, ShapedActivation) for kind in kinds)
    assert folded.meta["remaining"] == ()


def test_only_leaky_relu_without_shifts_has_a_slope_to_train() -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.zeros(2, 4)
    for method, activation in ((TAT(), "tanh"), (DKS(), "leaky_relu")):
        with pytest.raises(ValueError, match="trainable_slope needs a leaky ReLU"):
            convert(layers, x, method, activation=activation, trainable_slope=True)
    with pytest.raises(ValueError, match="'channel' or 'layer', got 'all'"):
        convert(layers, x, trainable_slope="all")  # pyright: ignore[reportArgumentType]
    for options in ({}, {"shortcut_weight": 0.0, "activation": "prelu"}):
        with pytest.raises(ValueError, match=r"needs method=TAT\(\)"):
            create_model("resnet18", width=1 / 32, trainable_slope=True, **options)
    with pytest.raises(UnsupportedModelError, match="trainable_slope='layer'"):
        convert(layers, torch.zeros(2, 3, 4), trainable_slope="channel")

"""Converted networks have the kernel that the theory predicts: measured at width 128."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

import user_models as models
from skipless import DKS, TAT
from skipless.core.solution import Method
from skipless.torch import check, convert

WIDTH = 128
IMAGE, SMALL, SIGNAL = torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 4, 4), torch.zeros(2, 2, 32)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "mlp": (partial(models.mlp, WIDTH, depth=8), IMAGE),
    "resnet": (
        partial(models.ResNet, models.BasicBlock, (2, 2), WIDTH),
        SMALL,
    ),
    "bottleneck": (partial(models.ResNet, models.Bottleneck, (1, 2), WIDTH), SMALL),
    "pre-activation": (partial(models.PreActivation, WIDTH), SMALL),
    "densenet": (partial(models.DenseNet, 2 * WIDTH), SMALL),
    "vgg": (partial(models.vgg, WIDTH), IMAGE),
    "unet": (partial(models.UNet, WIDTH), SMALL),
    "conv1d": (partial(models.conv1d, WIDTH), SIGNAL),
    "separable": (partial(models.separable, WIDTH), SMALL),
    "depthwise": (partial(models.depthwise, WIDTH), SMALL),
}
TRELU, TAT_GELU, DKS_TANH = (
    (TAT(eta=0.3), "leaky_relu"),
    (TAT(tau=0.2), "gelu"),
    (DKS(zeta=1.2), "tanh"),
)


def assert_agreement(name: str, method: Method, activation: str, weight: float) -> None:
    build, example = NETWORKS[name]
    model = convert(build(), example, method, shortcut_weight=weight, activation=activation)
    found = check(model, example, seeds=8, pairs=4)
    assert found.agrees, str(found)
    assert {row.cosine for row in found.comparisons} == {0.0}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_node_of_a_converted_network_has_the_predicted_kernel(name: str) -> None:
    assert_agreement(name, *TRELU, weight=0.0)


@pytest.mark.parametrize("name", ["bottleneck", "pre-activation"])
@pytest.mark.parametrize("shaping", [TRELU, TAT_GELU, DKS_TANH], ids=["TReLU", "GELU", "tanh"])
def test_so_has_every_node_of_a_residual_network(name: str, shaping) -> None:
    assert_agreement(name, *shaping, weight=0.6)


@pytest.mark.parametrize("name", ["mlp", "vgg", "depthwise", "densenet"])
@pytest.mark.parametrize("shaping", [TAT_GELU, DKS_TANH], ids=["GELU", "tanh"])
def test_so_has_every_node_behind_smooth_activations(name: str, shaping) -> None:
    assert_agreement(name, *shaping, weight=0.0)


def test_shortcuts_that_start_behind_an_activation_would_not_have_it() -> None:
    """Why `convert` moves them: q grows where an activation reads another one's output."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu((x + self.layer(x)) / 2**0.5)

    naive = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), *(Block() for _ in range(10)))
    model = convert(naive, torch.zeros(2, WIDTH), TAT(eta=0.3))
    phi = next(m for m in model.modules() if type(m).__name__ == "TReLU")
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(0))
    assert model(x).square().mean().item() == pytest.approx(1.0, abs=0.3)
    y = phi(layers[0](x))
    for layer in layers[1:]:
        y = phi((y + layer(y)) / 2**0.5)
    assert y.square().mean().item() > 3.0

"""BatchNorm becomes part of the layer before it, and says where it cannot."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from skipless.torch.activations import TReLU
from skipless.torch.fold import fold


def with_statistics(model: nn.Module) -> nn.Module:
    """The model in evaluation mode, as if it had been trained: no statistic is the usual one."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert isinstance(module.running_mean, Tensor)
            assert isinstance(module.running_var, Tensor)
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.2, 3.0, generator=generator)
            if module.affine:
                nn.init.normal_(module.weight, generator=generator)  # of either sign
                nn.init.normal_(module.bias, generator=generator)
    return model.double().eval()


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), (5,)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4, affine=False)), (3, 9)),
    "eps": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4, 0.1, None)), (3, 9)),
    "grouped": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(6)
        ),
        (4, 7, 7),
    ),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, 2, groups=2), nn.BatchNorm2d(6)),
        (4, 5, 5),
    ),
    "shaped": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), TReLU(0.3), nn.Conv2d(4, 2, 1)
        ),
        (3, 6, 6),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_layer_before_takes_a_batch_norm_in(name: str) -> None:
    make, shape = LAYERS[name]
    model = with_statistics(make())
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(3, *shape, dtype=torch.float64)
    folded = fold(model, x)
    torch.testing.assert_close(folded(x), model(x), rtol=0.0, atol=1e-12)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in folded.modules())
    assert folded.meta["remaining"] == ()
    torch.testing.assert_close(model.state_dict(), before, rtol=0.0, atol=0.0)


class Shortcut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.before, self.inner = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x + self.inner(self.second(torch.relu(self.before(x))))


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.norm(self.layer(x)))


@pytest.mark.parametrize(
    ("model", "shape", "said"),
    [
        (Shortcut(), (3, 4, 4), "before stays a BatchNorm: first has other readers"),
        (Shared(), (3,), "norm stays a BatchNorm: the weights of layer are used elsewhere"),
        (
            nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(3)),
            (3, 4),
            "1 stays a BatchNorm: it does not normalise the outputs of 0",
        ),
    ],
)
def test_a_batch_norm_that_others_would_notice_stays_and_is_listed(model, shape, said) -> None:
    model = with_statistics(model)
    x = torch.randn(3, *shape, dtype=torch.float64)
    folded = fold(model, x)
    torch.testing.assert_close(folded(x), model(x), rtol=0.0, atol=1e-12)
    assert folded.meta["remaining"] == (said,)


def test_a_batch_norm_over_another_dimension_than_the_layers_stays() -> None:
    model = with_statistics(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    x = torch.randn(3, 6, 4, dtype=torch.float64)  # (batch, channels of the norm, features)
    for folded in (fold(model, x), fold(model)):
        torch.testing.assert_close(folded(x), model(x), rtol=0.0, atol=1e-12)
        assert len(folded.meta["remaining"]) == 1


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2.0 * weight


class Tied(nn.Module):
    """Of two layers that share a weight, or a sum of the weight, one is normalised."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)
        self.how = how
        if how == "layer":
            self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(torch.relu(self.norm(self.first(x))))
        return y + self.first.weight.sum() if self.how == "read" else y


class Function(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.batch_norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        norm = self.batch_norm
        mean, variance = norm.running_mean, norm.running_var
        return nn.functional.batch_norm(self.layer(x), mean, variance, norm.weight, norm.bias)


def computed(how: str) -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    if how == "hook":
        nn.utils.spectral_norm(model[0])
    else:
        parametrize.register_parametrization(model[0], "weight", Doubled())
    return model


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Tied("layer"), "norm stays a BatchNorm: the weights of first are used elsewhere"),
        (Tied("read"), "norm stays a BatchNorm: the weights of first are used elsewhere"),
        (computed("hook"), "1 stays a BatchNorm: no layer comes right before it"),
        (computed("parametrisation"), "1 stays a BatchNorm: no layer comes right before it"),
        (Function(), "batch_norm stays a BatchNorm: it is a function, not a module"),
    ],
    ids=["tied", "read", "hook", "parametrisation", "function"],
)
def test_weights_that_are_not_a_layers_own_absorb_no_batch_norm(model, said: str) -> None:
    model = with_statistics(model)
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    folded = fold(model, x)
    torch.testing.assert_close(folded(x), model(x), rtol=0.0, atol=1e-12)
    assert folded.meta["remaining"] == (said,)


def test_a_batch_norm_without_statistics_stays() -> None:
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), norm).double().eval()
    x = torch.randn(3, 3, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(fold(model, x)(x), model(x), rtol=0.0, atol=1e-12)
    said = ("1 stays a BatchNorm: it normalises by each batch's own statistics",)
    assert fold(model, x).meta["remaining"] == said

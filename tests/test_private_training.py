"""Converted networks train under Opacus, sample by sample, where BatchNorm is refused."""

import re
import runpy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import skipless as sk

opacus = pytest.importorskip("opacus", reason="Opacus is not installed: skipless[private]")

EXAMPLE = Path(__file__).parents[1] / "examples" / "private_training.py"

# Of Opacus itself: random numbers that are not for production, and images without a gradient.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Secure RNG turned off", "ignore:Full backward hook is firing"
)


class Block(nn.Module):
    """With everything in place that can be, which hooks on layers do not take well."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, groups=2)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Conv2d(inputs, width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return F.relu_(out)


def resnet() -> nn.Module:
    torch.manual_seed(0)
    blocks = (Block(4, 4, 1), Block(4, 8, 2), Block(8, 8, 1))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), *blocks, *head)


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(5, 1, 8, 8, generator=generator)
    return sk.torch.normalize_per_sample(images), torch.tensor([3, 1, 4, 1, 5])


def converted(method: sk.TAT | sk.DKS, activation: str, weight: float) -> nn.Module:
    example = samples()[0][:2]
    return sk.torch.convert(
        resnet(), example, method, activation=activation, shortcut_weight=weight
    )


CONVERTED = [
    (sk.TAT(eta=0.5), "leaky_relu", 0.0),
    (sk.TAT(eta=0.3), "leaky_relu", 0.8),
    (sk.DKS(zeta=1.5), "tanh", 0.0),
]


@pytest.mark.parametrize(("method", "activation", "weight"), CONVERTED)
def test_gradients_of_samples_are_those_of_each_sample_by_itself(method, activation, weight):
    model, (images, labels) = converted(method, activation, weight), samples()
    parameters = list(model.parameters())
    alone = [
        torch.autograd.grad(F.cross_entropy(model(image[None]), label[None]), parameters)
        for image, label in zip(images, labels, strict=True)
    ]
    per_sample = opacus.GradSampleModule(model)
    F.cross_entropy(per_sample(images), labels).backward()
    for number, parameter in enumerate(parameters):
        wanted = torch.stack([gradients[number] for gradients in alone])
        found = parameter.grad_sample  # pyright: ignore[reportAttributeAccessIssue]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5 * wanted.abs().max().item())


def private(model: nn.Module, noise: float, norm: float):
    images, labels = samples()
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(images, labels), batch_size=5
    )
    return opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=noise,
        max_grad_norm=norm,
        poisson_sampling=False,
    )


def test_a_network_with_batchnorm_is_refused():
    with pytest.raises(ValueError, match="BatchNorm cannot support training with differential"):
        private(resnet(), 1.0, 1.0)


def test_without_noise_and_clipping_private_steps_are_those_of_sgd():
    (images, labels), start = samples(), CONVERTED[0]
    plain, model = converted(*start), converted(*start)
    model.load_state_dict(plain.state_dict())
    usual = torch.optim.SGD(plain.parameters(), lr=0.1)
    model, optimiser, batches = private(model, 0.0, 1e6)
    losses = []
    for _ in range(3):
        usual.zero_grad()
        F.cross_entropy(plain(images), labels).backward()
        usual.step()
        for x, y in batches:
            optimiser.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0]
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)


def test_the_example_shows_the_refusal_and_trains(capsys: pytest.CaptureFixture[str]):
    runpy.run_path(str(EXAMPLE))["main"](epochs=2, depth=10)
    refused, start, *epochs = capsys.readouterr().out.splitlines()
    assert "BatchNorm cannot support training with differential privacy" in refused
    losses = [float(re.search(r"loss ([\d.]+)", line)[1]) for line in (start, *epochs)]  # pyright: ignore
    spent = [float(re.search(r"ε = ([\d.]+)", line)[1]) for line in epochs]  # pyright: ignore
    assert losses[2] < losses[1] < losses[0]
    assert 0 < spent[0] < spent[1] < 20

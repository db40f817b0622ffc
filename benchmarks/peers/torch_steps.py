"""Seconds of steps of our K-FAC and of singd's, and of torch's SGD between them, as JSON."""

# pyright: reportMissingImports=false

import json
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from tasks import CLASSES, CONVNET, MLP, NETWORKS, SLOPE, medians
from torch import Tensor, nn

from skipless.optim import KFAC, KFACSettings

RATE = 1e-6


def task(kind: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    if kind == "mlp":
        batch, width, depth = MLP
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.LeakyReLU(SLOPE)]
        inputs = torch.randn(batch, width)
    else:
        batch, pixels, width, depth = CONVNET
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.LeakyReLU(SLOPE)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        inputs = torch.randn(batch, width, pixels, pixels)
    labels = torch.randint(CLASSES, (batch,))
    return nn.Sequential(*layers, nn.Linear(width, CLASSES)), inputs, labels


def by_sgd(kind: str) -> Callable[[], None]:
    model, inputs, labels = task(kind)
    return stepping(model, inputs, labels, torch.optim.SGD(model.parameters(), RATE, momentum=0.9))


def by_skipless(kind: str) -> Callable[[], None]:
    model, inputs, labels = task(kind)
    settings = KFACSettings(
        "imagenet", burn_in=0, curvature_period=2, inverse_period=4, early_inverses=False
    )
    own = KFAC(model, lr=RATE, settings=settings)
    return stepping(model, inputs, labels, own)


def by_singd(kind: str) -> Callable[[], None]:
    from singd.optim.optimizer import SINGD

    model, inputs, labels = task(kind)
    # T is the period of its factors, whose inverses it updates without inverting.
    own = SINGD(model, lr=RATE, momentum=0.9, alpha1=0.0, T=2, kfac_like=True, lr_cov=1e-4)
    return stepping(model, inputs, labels, own)


def stepping(
    model: nn.Module, inputs: Tensor, labels: Tensor, optimizer: torch.optim.Optimizer
) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        outputs = model(inputs)
        if isinstance(optimizer, KFAC):
            optimizer.curvature(outputs)
        F.cross_entropy(outputs, labels).backward()
        optimizer.step()

    return step


OPTIMIZERS = {"sgd": by_sgd, "skipless": by_skipless, "singd": by_singd}


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    told = {
        network: medians({name: by(kind) for name, by in OPTIMIZERS.items()})
        for kind, network in NETWORKS.items()
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()

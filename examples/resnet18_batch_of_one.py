"""A ResNet-18 trained on one image at a time: with BatchNorm, and converted.

    python examples/resnet18_batch_of_one.py [SEED]

1,000 of scikit-learn's digits, 8 x 8 pixels, each seen once. The last stage has one pixel, and on a
single one PyTorch refuses to train BatchNorm. All have a rate of 0.03, better than 0.01 (and, with
BatchNorm, than 0.1), and gradients clipped at norm 1. About 20 s on one core. Accuracy on 500 other
digits for seeds 0, 1 and 2:

    with BatchNorm, batches of 1    refused
    with BatchNorm, batches of 2    0.242, 0.330, 0.256
    converted, batches of 1         0.820, 0.844, 0.858

Small feature maps are the point. Enlarged to 16 x 16 pixels, the same digits leave four pixels in
the last stage, and with batches of 1 the two are level: BatchNorm 0.808, 0.882 and 0.832, converted
0.836, 0.844 and 0.830.
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import skipless as sk

RUNS = (("with BatchNorm", 1), ("with BatchNorm", 2), ("converted", 1))


class Block(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, width // inputs, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        down = (nn.Conv2d(inputs, width, 1, 2, bias=False), nn.BatchNorm2d(width))
        self.down = nn.Identity() if inputs == width else nn.Sequential(*down)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.down(x))


def resnet18() -> nn.Module:
    stem = (nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    widths = ((8, 8), (8, 8), (8, 16), (16, 16), (16, 32), (32, 32), (32, 64), (64, 64))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return nn.Sequential(*stem, *(Block(*pair) for pair in widths), *head)


def train(model: nn.Module, x: Tensor, y: Tensor, batch: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    batches = torch.randperm(len(x)).split(batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(batches))
    for chosen in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def main(seed: int = 0) -> None:
    images, labels = (torch.tensor(a) for a in load_digits(return_X_y=True))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:1_500]
    x, y = sk.torch.normalize_per_sample(images[order].float().reshape(-1, 1, 8, 8)), labels[order]
    for name, batch in RUNS:
        torch.manual_seed(seed)
        model = resnet18()
        if name == "converted":
            model = sk.convert(model, x[:2])  # the line that removes BatchNorm
        try:
            train(model, x[:1_000], y[:1_000], batch)
        except ValueError as error:
            print(f"{name}, batches of {batch}: {error}")
            continue
        with torch.no_grad():
            right = model.eval()(x[1_000:]).argmax(1) == y[1_000:]
        print(f"{name}, batches of {batch}: accuracy {right.float().mean():.3f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

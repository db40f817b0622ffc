"""A ResNet as its users write it, made trainable without shortcuts and without BatchNorm.

python examples/convert_resnet.py
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

import skipless as sk


class Block(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != width:
            self.shortcut = nn.Conv2d(inputs, width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


def resnet(blocks: int, width: int) -> nn.Sequential:
    stages = [Block(width, width, 1) for _ in range(blocks)]
    stages += [Block(width, 2 * width, 2), *(Block(2 * width, 2 * width, 1) for _ in range(blocks))]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10))
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *stages, *head)


def main(blocks: int = 8, width: int = 32) -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(32, 3, 16, 16), torch.randint(0, 10, (32,))
    images = sk.torch.normalize_per_location(images, homogeneous=None)

    model = resnet(blocks, width)
    model = sk.torch.convert(model, images[:2], sk.TAT(eta=0.9), shortcut_weight=0.0)
    print(model.skipless_report)
    print(sk.torch.check(model, images[:2], seeds=5))

    optimiser = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    for step in range(6):
        loss = F.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        print(f"step {step}: loss {loss.item():.4f}")

    plain = sk.torch.fold(model)
    kinds = {type(m).__name__ for m in plain.modules()} & {"TReLU", "LeakyReLU", "BatchNorm2d"}
    with torch.no_grad():
        error = (plain(images) - model.eval()(images)).abs().max().item()
    print(f"folded, its activations are {', '.join(kinds)}; outputs differ by {error:.1e}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

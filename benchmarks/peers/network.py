"""The network that both conversions start from: a pre-activation ResNet as its users write it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.project = None
        if stride != 1 or inputs != width:
            self.project = nn.Conv2d(inputs, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        shortcut = x if self.project is None else self.project(out)
        out = self.conv1(out)
        out = self.conv2(F.relu(self.bn2(out)))
        return out + shortcut


class ResNet(nn.Module):
    def __init__(self, blocks: tuple[int, ...] = (6, 6, 6), width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, width, 3, 1, 1, bias=False)
        stages: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            for number in range(count):
                outputs, stride = width * 2**stage, 2 if stage and number == 0 else 1
                stages.append(Block(inputs, outputs, stride))
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.bn = nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        return self.head(F.relu(self.bn(x)).mean(dim=(2, 3)))


def images() -> Tensor:
    """Images of three channels, before they are normalised for each location."""
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))

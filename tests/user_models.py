"""Networks as their users write them: functions and modules mixed, in place, shapes inspected."""

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """The block of a ResNet-18: one ReLU module used twice, a sum in place."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or inputs != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    """The block of a ResNet-50, with functional ReLUs and an identity for a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)))
        return torch.relu(torch.add(self.bn3(self.conv3(out)), self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, block: type[BasicBlock] | type[Bottleneck], depths, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        stages, inputs = [], width
        for stage, depth in enumerate(depths):
            blocks = []
            for number in range(depth):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(block(inputs, width * 2**stage, stride))
                inputs = width * 2**stage * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inputs, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in self.stages:
            x = stage(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class PreActivation(nn.Module):
    """Two rescaled pre-activation blocks, the factors a number and a buffer."""

    factor: torch.Tensor

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.register_buffer("factor", torch.tensor(0.6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for first, second in (self.convs[:2], self.convs[2:]):
            x = 0.8 * x + self.factor * second(F.relu(first(F.relu(x))))
        return x


class DenseNet(nn.Module):
    """Every layer reads all earlier ones."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        growth = width // 2
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.convs = nn.ModuleList(
            nn.Conv2d(width + growth * k, growth, 3, padding=1) for k in range(3)
        )
        self.fc = nn.Linear(width + 3 * growth, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [self.stem(x)]
        for conv in self.convs:
            features.append(conv(F.relu(torch.cat(features, dim=1))))
        return self.fc(torch.cat(features, 1).mean((2, 3)))


class UNet(nn.Module):
    """One level down and up; pads if the shapes do not fit."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(3, width, 3, padding=1)
        self.down2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join = nn.Conv2d(2 * width, width, 3, padding=1)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = F.relu(self.down1(x))
        deep = self.up(F.relu(self.down2(F.max_pool2d(skip, 2))))
        if deep.shape[-1] != skip.shape[-1]:
            missing = skip.shape[-1] - deep.shape[-1]
            deep = F.pad(deep, (0, missing, 0, missing))
        return self.out(F.relu(self.join(torch.cat([deep, skip], 1))))


def mlp(width: int = 8, depth: int = 4) -> nn.Sequential:
    hidden = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(192, width), *hidden, nn.Linear(width, 10))


def vgg(width: int = 8) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * width, 2 * width), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(2 * width, 10),
    )


def conv1d(width: int = 8) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv1d(2, width, 5, padding=2), nn.GELU()),
        *(nn.Conv1d(width, width, 3, stride=2, dilation=2), nn.SiLU()),
        *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 3)),
    )


def depthwise(width: int = 8) -> nn.Sequential:
    """Separable convolutions as in MobileNet: normalised and activated after each of the two."""
    return nn.Sequential(
        *(nn.Conv2d(3, width, 1), nn.ReLU6()),
        nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
        *(nn.BatchNorm2d(width), nn.Hardswish(), nn.Conv2d(width, width, 1)),
    )


def separable(width: int = 8) -> nn.Sequential:
    """Separable convolutions as in Xception: no activation between the two."""
    layers = [nn.Conv2d(3, width, 1), nn.ReLU()]
    for _ in range(3):
        layers.append(nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False))
        layers += [nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attend(x, x, x)[0]


class Recurrent(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.cell(x)
        return out[0] if isinstance(out, tuple) else out

r"""ResNet V2 (He et al. 2016), in the standard form and in those of the paper.

A block has a branch $R$ of two or three layers, each an activation followed by a convolution. Its
first activation, called `pre`, is also what a projection reads:

| form     | `shortcut_weight` | a block puts out                             |
|----------|-------------------|----------------------------------------------|
| standard | None              | $x + R(x)$                                   |
| rescaled | $w$               | $w\,x + \sqrt{1-w^2}\,R(x)$ (equation 6)     |
| vanilla  | 0                 | $R(x)$, and there are no projections         |

Blocks that change the number of channels or the resolution have a projection, a convolution of
size 1, in place of $x$. A bottleneck has its stride in the middle, as in Haiku, which the paper
used. Normalisation, where there is any, comes before every activation.

The curvature of B blocks with n layers each, T of them with projections, and of the activation that
follows the last block, is $n B (1 - w^2) + T w^2 + 1$ times $C''(1)$ (appendix B.5):

| networks                       | n | L        | T | curvature over $C''(1)$  |
|--------------------------------|---|----------|---|--------------------------|
| `resnet50`, 101, 152, 200      | 3 | 3 B + 2  | 4 | $(L - 6)(1 - w^2) + 5$   |
| `resnet18`, 34                 | 2 | 2 B + 2  | 3 | $(L - 5)(1 - w^2) + 4$   |
| `wide_resnet`, widened         | 2 | 2 B + 4  | 3 | $(L - 7)(1 - w^2) + 4$   |

B.5 calls L the number of nonlinear layers, but it is the depth in the network's name. This counts
the stem and the logits, so that ResNet-50 has 49 activations: 48 in its blocks, one behind them.

Numbers of parameters, for 1000 classes:

| network     | V1, as published | standard   | vanilla    |
|-------------|------------------|------------|------------|
| `resnet18`  | 11,689,512       | 11,687,720 | 11,511,784 |
| `resnet34`  | 21,797,672       | 21,795,880 | 21,616,232 |
| `resnet50`  | 25,557,032       | 25,549,352 | 22,757,736 |
| `resnet101` | 44,549,160       | 44,541,480 | 41,723,752 |
| `resnet152` | 60,192,808       | 60,185,128 | 57,344,360 |
| `resnet200` |                  | 64,666,152 | 61,813,096 |

The published ones are of V1 (torchvision), which has the same convolutions, but normalises what
they put out, and not what they read. A bottleneck that takes `inputs` channels to 4 c normalises
c + c + 4 c in V1 and `inputs` + c + c here. Over all blocks V1 thus has 2048 - 64 channels more,
which is what its norm behind the stem (64) lacks against ours at the end (2048). What remains are
V1's norms behind projections: two parameters for each of 256 + 512 + 1024 + 2048 channels, 7680
in all; without bottlenecks, for 128 + 256 + 512 channels, 1792.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

from .layers import ActivationFactory, convolution, pre_activation
from .plans import Interface, ResNetPlan
from .shaping import Shaping

_EXPANSION = 4  # of a bottleneck


class Block(nn.Module):
    """A residual block with its activation first; see the top of this module."""

    def __init__(
        self,
        plan: ResNetPlan,
        inputs: int,
        channels: int,
        stride: int,
        activation: ActivationFactory,
    ) -> None:
        super().__init__()
        weight, norm = plan.shortcut_weight, plan.norm
        if plan.bottleneck:
            outputs = _EXPANSION * channels
            layers = [(channels, 1, 1), (channels, 3, stride), (outputs, 1, 1)]
        else:
            outputs = channels
            layers = [(channels, 3, stride), (channels, 3, 1)]
        self.pre = nn.Sequential(OrderedDict(pre_activation(inputs, norm, activation, images=True)))
        branch: OrderedDict[str, nn.Module] = OrderedDict()
        before = inputs
        for number, (after, kernel, step) in enumerate(layers, start=1):
            if number > 1:
                suffix = str(number)
                branch |= pre_activation(before, norm, activation, images=True, suffix=suffix)
            branch[f"conv{number}"] = convolution(before, after, kernel, step, norm=norm)
            before = after
        self.branch = nn.Sequential(branch)
        self.shortcut_weight = weight
        self.projection = None
        if weight != 0.0 and (stride != 1 or inputs != outputs):
            self.projection = convolution(inputs, outputs, 1, stride, norm=norm)
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        pre = self.pre(x)
        branch, weight = self.branch(pre), self.shortcut_weight
        if weight == 0.0:
            return branch
        shortcut = x if self.projection is None else self.projection(pre)
        if weight is None:
            return shortcut + branch
        return torch.add(weight * shortcut, branch, alpha=math.sqrt(1.0 - weight**2))


class ResNet(nn.Module):
    """Stem, stages of blocks, a last activation, the mean over locations, dropout, logits."""

    shaping: Shaping | None = None

    def __init__(
        self, plan: ResNetPlan, interface: Interface, activation: ActivationFactory
    ) -> None:
        super().__init__()
        self.stem = _stem(plan, interface.inputs)
        stages, inputs = [], plan.stem_channels
        for stage, count in enumerate(plan.blocks):
            blocks = []
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                block = Block(plan, inputs, plan.channels * 2**stage, stride, activation)
                blocks.append(block)
                inputs = block.outputs
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.post = nn.Sequential(
            OrderedDict(pre_activation(inputs, plan.norm, activation, images=True))
        )
        self.dropout = nn.Dropout(interface.dropout)
        self.fc = nn.Linear(inputs, interface.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.post(self.stages(self.stem(x)))
        return self.fc(self.dropout(x.mean((2, 3))))


def _stem(plan: ResNetPlan, inputs: int) -> nn.Sequential:
    """The first convolution; V2 has no activation behind it, for the first block begins with one.

    That of ImageNet leaves an image of 224 with 56 locations a side; small images keep theirs.
    """
    channels, norm = plan.stem_channels, plan.norm
    stem: OrderedDict[str, nn.Module] = OrderedDict()
    if plan.stem == "imagenet":
        stem["conv"] = convolution(inputs, channels, 7, 2, norm=norm)
        stem["pool"] = nn.MaxPool2d(3, 2, 1)
    else:
        stem["conv"] = convolution(inputs, channels, 3, norm=norm)
    return nn.Sequential(stem)

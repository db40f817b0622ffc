r"""Networks: pre-activation (v2) ResNets (He et al. 2016) in the paper's forms, and MLPs.

A block has a branch $R$ of two or three layers, each an activation followed by a convolution. A
projection reads the block's first activation, `pre`:

| form     | `shortcut_weight` | output of a block                            |
|----------|-------------------|----------------------------------------------|
| standard | None              | $x + R(x)$                                   |
| rescaled | $w$               | $w\,x + \sqrt{1-w^2}\,R(x)$ (equation 6)     |
| vanilla  | 0                 | $R(x)$, and there are no projections         |

Blocks that change the number of channels or the resolution have a projection, a 1x1 convolution,
instead of $x$. A bottleneck has its stride in the middle, as in Haiku, which the paper used.
Normalisation, if any, comes before every activation.

The curvature of B blocks with n layers each, T of them with projections, and of the activation that
follows the last block, is $n B (1 - w^2) + T w^2 + 1$ times $C''(1)$ (appendix B.5):

| networks                       | n | L        | T | curvature over $C''(1)$  |
|--------------------------------|---|----------|---|--------------------------|
| `resnet50`, 101, 152, 200      | 3 | 3 B + 2  | 4 | $(L - 6)(1 - w^2) + 5$   |
| `resnet18`, 34                 | 2 | 2 B + 2  | 3 | $(L - 5)(1 - w^2) + 4$   |
| `wide_resnet`, widened         | 2 | 2 B + 4  | 3 | $(L - 7)(1 - w^2) + 4$   |

B.5 calls L the number of nonlinear layers, but it is the depth in the network's name, which counts
the stem and the logits: ResNet-50 has 49 activations, 48 in its blocks and one after them.

For 1000 classes, a standard `resnet50` has 25,549,352 parameters and a vanilla one 22,757,736. The
published 25,557,032 are of a post-activation (v1) ResNet, which has two more for each channel that
a projection outputs, because it normalises outputs and not inputs.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from skipless.core.graph import Graph
from skipless.core.solution import Method, Solution
from skipless.torch.activations import TrainableTReLU

Norm = Literal["none", "batch", "layer"]
Stem = Literal["imagenet", "cifar"]

ActivationFactory = Callable[[int], nn.Module]
"""Makes a new activation for a number of channels."""


@dataclass(frozen=True)
class ResNetPlan:
    """Stages of residual blocks; each stage but the first halves the resolution.

    The first stage has `channels`, and each later one twice as many; bottlenecks output four times
    that number. A `shortcut_weight` of None is an ordinary sum, 0 is no shortcut.
    """

    blocks: tuple[int, ...]
    bottleneck: bool
    stem_channels: int
    channels: int
    stem: Stem
    shortcut_weight: float | None
    norm: Norm

    def thin(self) -> ResNetPlan:
        """The smallest plan with the same graph, which is the quickest to trace."""
        channels = 1 if self.channels == self.stem_channels else 2
        return replace(self, stem_channels=1, channels=channels, stem="cifar", norm="none")


@dataclass(frozen=True)
class MLPPlan:
    """`depth` layers of `width` units, each followed by an activation."""

    depth: int
    width: int
    norm: Norm

    def thin(self) -> MLPPlan:
        """The smallest plan with the same graph."""
        return replace(self, width=1, norm="none")


Plan = ResNetPlan | MLPPlan


@dataclass(frozen=True)
class Shaping:
    """How a model was shaped, in `model.shaping`; not part of its state_dict."""

    method: Method
    graph: Graph
    solution: Solution

    def __deepcopy__(self, memo: dict[int, object]) -> Shaping:
        return self  # immutable, and the graph of a deep network is large


def _pre_activation(
    width: int, norm: Norm, activation: ActivationFactory, *, images: bool = True, suffix: str = ""
) -> OrderedDict[str, nn.Module]:
    """Normalisation, if any, and the activation, by their names."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if norm == "batch":
        # Torch's usual momentum of 0.1 is the paper's decay by 0.9 a step (appendix D).
        layers[f"norm{suffix}"] = nn.BatchNorm2d(width) if images else nn.BatchNorm1d(width)
    elif norm == "layer":
        # All channels and locations of an image are normalised together, whatever its size.
        layers[f"norm{suffix}"] = nn.GroupNorm(1, width) if images else nn.LayerNorm(width)
    layers[f"activation{suffix}"] = activation(width)
    return layers


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, norm: Norm
) -> nn.Conv2d:
    """A convolution, without bias if BatchNorm would subtract it."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=norm != "batch")


class Block(nn.Module):
    """A pre-activation residual block; see the module's docstring."""

    def __init__(
        self,
        plan: ResNetPlan,
        inputs: int,
        channels: int,
        stride: int,
        activation: ActivationFactory,
    ) -> None:
        super().__init__()
        norm = plan.norm
        layers = [(channels, 3, stride), (channels, 3, 1)]
        if plan.bottleneck:
            layers = [(channels, 1, 1), (channels, 3, stride), (4 * channels, 1, 1)]
        self.outputs: int = layers[-1][0]
        self.pre: nn.Sequential = nn.Sequential(_pre_activation(inputs, norm, activation))
        branch: OrderedDict[str, nn.Module] = OrderedDict()
        before = inputs
        for number, (after, kernel, step) in enumerate(layers, start=1):
            if number > 1:
                branch |= _pre_activation(before, norm, activation, suffix=str(number))
            branch[f"conv{number}"] = _convolution(before, after, kernel, step, norm=norm)
            before = after
        self.branch: nn.Sequential = nn.Sequential(branch)
        self.shortcut_weight: float | None = plan.shortcut_weight
        self.projection: nn.Conv2d | None = None
        if self.shortcut_weight != 0.0 and (stride != 1 or inputs != self.outputs):
            self.projection = _convolution(inputs, self.outputs, 1, stride, norm=norm)

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
        self,
        plan: ResNetPlan,
        activation: ActivationFactory,
        *,
        in_chans: int,
        num_classes: int,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.stem: nn.Sequential = _stem(plan, in_chans)
        stages, inputs = [], plan.stem_channels
        for stage, count in enumerate(plan.blocks):
            blocks = []
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                block = Block(plan, inputs, plan.channels * 2**stage, stride, activation)
                blocks.append(block)
                inputs = block.outputs
            stages.append(nn.Sequential(*blocks))
        self.stages: nn.Sequential = nn.Sequential(*stages)
        self.post: nn.Sequential = nn.Sequential(_pre_activation(inputs, plan.norm, activation))
        self.dropout: nn.Dropout = nn.Dropout(drop_rate)
        self.fc: nn.Linear = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.post(self.stages(self.stem(x)))
        return self.fc(self.dropout(x.mean((2, 3))))


def _stem(plan: ResNetPlan, inputs: int) -> nn.Sequential:
    """The first convolution, without an activation: the first block begins with one.

    The ImageNet stem reduces an image of 224 to 56 locations a side; "cifar" keeps the size.
    """
    large = plan.stem == "imagenet"
    kernel, stride = (7, 2) if large else (3, 1)
    conv = _convolution(inputs, plan.stem_channels, kernel, stride, norm=plan.norm)
    pool = [("pool", nn.MaxPool2d(3, 2, 1))] if large else []
    return nn.Sequential(OrderedDict([("conv", conv), *pool]))


class MLP(nn.Module):
    """Flattening, `depth` layers, each followed by an activation, dropout, logits."""

    shaping: Shaping | None = None

    def __init__(
        self,
        plan: MLPPlan,
        activation: ActivationFactory,
        *,
        in_features: int,
        num_classes: int,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        layers, inputs = [], in_features
        for _ in range(plan.depth):
            linear = nn.Linear(inputs, plan.width, bias=plan.norm != "batch")
            after = _pre_activation(plan.width, plan.norm, activation, images=False)
            layers.append(nn.Sequential(OrderedDict(linear=linear, **after)))
            inputs = plan.width
        self.layers: nn.Sequential = nn.Sequential(*layers)
        self.dropout: nn.Dropout = nn.Dropout(drop_rate)
        self.fc: nn.Linear = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.dropout(self.layers(x.flatten(1))))


def build_network(
    plan: Plan,
    activation: ActivationFactory,
    *,
    inputs: int,
    num_classes: int,
    drop_rate: float = 0.0,
) -> ResNet | MLP:
    """The network of `plan` on torch's default device, its weights allocated but not drawn.

    The `inputs` are channels of a ResNet, features of an MLP.
    """
    device = torch.get_default_device()
    ends = {"num_classes": num_classes, "drop_rate": drop_rate}
    with torch.device("meta"):
        if isinstance(plan, ResNetPlan):
            network = ResNet(plan, activation, in_chans=inputs, **ends)
        else:
            network = MLP(plan, activation, in_features=inputs, **ends)
    network.to_empty(device=device)
    for module in network.modules():
        if isinstance(module, nn.PReLU | TrainableTReLU):  # initialised here, not drawn
            module.reset_parameters()
    return network

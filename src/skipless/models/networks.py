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

Plans of networks: all that decides how layers are joined, and how many channels they have.

The layers that networks of all families are made of.

What shaped a network: the method, the graph that it was solved for, and the solution.

Chains of linear layers, of any depth.

built: a plan as a module, whose weights are still to be drawn.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from skipless.core.graph import Graph
from skipless.core.solution import Method, Solution

Norm = Literal["none", "batch", "layer"]
Stem = Literal["imagenet", "cifar"]

# Blocks of each stage, and whether they are bottlenecks (He et al. 2015, table 1; He et al. 2016).
RESNETS: dict[int, tuple[tuple[int, ...], bool]] = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
    200: ((3, 24, 36, 3), True),
}
_RESNET_CHANNELS = 64
_WIDE_RESNET_CHANNELS = 16
_USUAL_WIDENING = 2  # of the paper's experiments on CIFAR-10 (appendix E)
_USUAL_UNITS = 256
_FEWEST_WIDE_LAYERS = 10  # with one block a stage
_MOST_CHANNELS = 2**24  # of a first stage: the bytes of any later layer still fit 63 bits


@dataclass(frozen=True)
class ResNetPlan:
    """Stages of residual blocks; each stage but the first halves the resolution.

    The first stage has `channels`, and each one after it twice as many; bottlenecks put out four
    times that number. A `shortcut_weight` of None is an ordinary sum, one of 0 no shortcut at all.
    """

    blocks: tuple[int, ...]
    bottleneck: bool
    stem_channels: int
    channels: int
    stem: Stem
    shortcut_weight: float | None
    norm: Norm

    def thin(self) -> ResNetPlan:
        """The smallest plan with the same graph: one that is as quick to trace as can be."""
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
class Interface:
    """What a network reads and puts out: channels or features, classes, and dropout before them."""

    inputs: int
    classes: int
    dropout: float = 0.0


def resnet_plan(
    depth: int, width: float | None, stem: Stem, shortcut_weight: float | None, norm: Norm
) -> ResNetPlan:
    """The plan of an ImageNet ResNet with `width` times the usual channels in all its layers."""
    blocks, bottleneck = RESNETS[depth]
    channels = _times(_RESNET_CHANNELS, 1 if width is None else width)
    return ResNetPlan(blocks, bottleneck, channels, channels, stem, shortcut_weight, norm)


def wide_resnet_plan(
    depth: int, width: float | None, stem: Stem, shortcut_weight: float | None, norm: Norm
) -> ResNetPlan:
    """The plan of a Wide ResNet (Zagoruyko & Komodakis 2016) with the widening factor `width`.

    Its depth of 6n + 4 counts the stem, 6n layers in blocks, and three projections.
    """
    blocks = ((depth - 4) // 6,) * 3
    channels = _times(_WIDE_RESNET_CHANNELS, _USUAL_WIDENING if width is None else width)
    return ResNetPlan(blocks, False, _WIDE_RESNET_CHANNELS, channels, stem, shortcut_weight, norm)


def mlp_plan(depth: int, width: float | None, norm: Norm) -> MLPPlan:
    """The plan of a chain of `depth` layers with `width` units each."""
    units = _USUAL_UNITS if width is None else width
    if not 1 <= units <= _MOST_CHANNELS or units != int(units):
        raise ValueError(
            f"width={units} was asked for, but the width of an MLP is its number of units a "
            f"layer. Give a whole number up to {_MOST_CHANNELS}, such as 256."
        )
    return MLPPlan(depth, int(units), norm)


def nearest_wide_depths(depth: int) -> tuple[int, ...]:
    """`depth` itself if a Wide ResNet can have it, else the depths next to it that one can.

    >>> nearest_wide_depths(100), nearest_wide_depths(101), nearest_wide_depths(3)
    ((100,), (100, 106), (10,))
    """
    below = depth - (depth - 4) % 6
    if below < _FEWEST_WIDE_LAYERS:
        return (_FEWEST_WIDE_LAYERS,)
    return (below,) if below == depth else (below, below + 6)


def _times(channels: int, width: float) -> int:
    """`channels` times `width`, rounded."""
    if not 0.5 <= channels * width <= _MOST_CHANNELS:
        raise ValueError(
            f"width={width} was asked for, but it multiplies {channels} channels, of which at "
            f"least one has to be left, and {_MOST_CHANNELS} at most. Give a number such as 1, 2 "
            "or 0.25."
        )
    return max(1, round(channels * width))


ActivationFactory = Callable[[int], nn.Module]
"""A new activation for so many channels."""

_BATCH_MOMENTUM = 0.1  # torch's word for statistics that decay by 0.9 a step (appendix D)


def pre_activation(
    channels: int, norm: Norm, activation: ActivationFactory, *, images: bool, suffix: str = ""
) -> Iterator[tuple[str, nn.Module]]:
    """Normalisation, if there is any, and the activation, with their names."""
    if norm == "batch":
        kind = nn.BatchNorm2d if images else nn.BatchNorm1d
        yield f"norm{suffix}", kind(channels, momentum=_BATCH_MOMENTUM)
    elif norm == "layer":
        # Of an image, all channels and locations are normalised together, whatever its size.
        yield f"norm{suffix}", nn.GroupNorm(1, channels) if images else nn.LayerNorm(channels)
    yield f"activation{suffix}", activation(channels)


def convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, norm: Norm
) -> nn.Conv2d:
    """A convolution; it has no bias where normalisation layers have shifts of their own."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=norm == "none")


@dataclass(frozen=True)
class Shaping:
    """The account that a shaped model carries as `model.shaping`, beside its state_dict."""

    method: Method
    graph: Graph
    solution: Solution

    def __deepcopy__(self, memo: dict[int, object]) -> Shaping:
        return self  # nothing in it changes, and the graph of a deep network is large


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


class MLP(nn.Module):
    """Flattens its input; then `depth` layers, each followed by an activation; then the logits."""

    shaping: Shaping | None = None

    def __init__(self, plan: MLPPlan, interface: Interface, activation: ActivationFactory) -> None:
        super().__init__()
        layers, inputs = [], interface.inputs
        for _ in range(plan.depth):
            linear = nn.Linear(inputs, plan.width, bias=plan.norm == "none")
            after = pre_activation(plan.width, plan.norm, activation, images=False)
            layers.append(nn.Sequential(OrderedDict([("linear", linear), *after])))
            inputs = plan.width
        self.layers = nn.Sequential(*layers)
        self.dropout = nn.Dropout(interface.dropout)
        self.fc = nn.Linear(inputs, interface.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.dropout(self.layers(x.flatten(1))))


def built(plan: Plan, interface: Interface, activation: ActivationFactory) -> ResNet | MLP:
    """The network of `plan` on torch's default device, with memory for its weights, but no values.

    So nothing is drawn twice, and torch's random numbers are left for what is drawn in the end.
    """
    device = torch.get_default_device()
    with torch.device("meta"):
        match plan:
            case ResNetPlan():
                network = ResNet(plan, interface, activation)
            case MLPPlan():
                network = MLP(plan, interface, activation)
    network.to_empty(device=device)
    for module in network.modules():
        if isinstance(module, nn.PReLU):  # which is not drawn
            module.reset_parameters()
    return network

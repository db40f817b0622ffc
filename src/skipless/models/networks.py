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

B.5 calls L the number of nonlinear layers, but it is the depth in the network's name. This counts
the stem and the logits, so that ResNet-50 has 49 activations: 48 in its blocks, one after them.

Parameters for 1000 classes:

| network     | v1, as published | standard   | vanilla    |
|-------------|------------------|------------|------------|
| `resnet18`  | 11,689,512       | 11,687,720 | 11,511,784 |
| `resnet34`  | 21,797,672       | 21,795,880 | 21,616,232 |
| `resnet50`  | 25,557,032       | 25,549,352 | 22,757,736 |
| `resnet101` | 44,549,160       | 44,541,480 | 41,723,752 |
| `resnet152` | 60,192,808       | 60,185,128 | 57,344,360 |
| `resnet200` |                  | 64,666,152 | 61,813,096 |

Post-activation (v1) ResNets (torchvision) have the same convolutions, but normalise their outputs,
not their inputs. A bottleneck that takes `inputs` channels to 4 c normalises c + c + 4 c in v1 and
`inputs` + c + c here. Over all blocks v1 has 2048 - 64 channels more, which is what its norm after
the stem (64) lacks against ours at the end (2048). What remains are v1's norms after projections:
two parameters for each of 256 + 512 + 1024 + 2048 channels, 7680 in all; without bottlenecks, for
128 + 256 + 512 channels, 1792.
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
_DEFAULT_WIDENING = 2  # of the paper's experiments on CIFAR-10 (appendix E)
_DEFAULT_UNITS = 256
_MIN_WIDE_DEPTH = 10  # with one block per stage
_MAX_CHANNELS = 2**24  # of a first stage: the bytes of any later layer still fit 63 bits
_EXPANSION = 4  # of a bottleneck
_BATCH_MOMENTUM = 0.1  # torch's convention for statistics that decay by 0.9 a step (appendix D)

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


def resnet_plan(
    depth: int, width: float | None, stem: Stem, shortcut_weight: float | None, norm: Norm
) -> ResNetPlan:
    """The plan of an ImageNet ResNet whose layers have `width` times the standard channels."""
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
    channels = _times(_WIDE_RESNET_CHANNELS, _DEFAULT_WIDENING if width is None else width)
    return ResNetPlan(blocks, False, _WIDE_RESNET_CHANNELS, channels, stem, shortcut_weight, norm)


def mlp_plan(depth: int, width: float | None, norm: Norm) -> MLPPlan:
    """The plan of a chain of `depth` layers with `width` units each."""
    units = _DEFAULT_UNITS if width is None else width
    if not 1 <= units <= _MAX_CHANNELS or units != int(units):
        raise ValueError(
            f"width of an MLP is its units per layer: it must be an integer from 1 to "
            f"{_MAX_CHANNELS}, such as 256, got {units}"
        )
    return MLPPlan(depth, int(units), norm)


def nearest_wide_depths(depth: int) -> tuple[int, ...]:
    """`depth` itself if a Wide ResNet can have it, else its valid neighbours.

    >>> nearest_wide_depths(100), nearest_wide_depths(101), nearest_wide_depths(3)
    ((100,), (100, 106), (10,))
    """
    below = depth - (depth - 4) % 6
    if below < _MIN_WIDE_DEPTH:
        return (_MIN_WIDE_DEPTH,)
    return (below,) if below == depth else (below, below + 6)


def _times(channels: int, width: float) -> int:
    if not 0.5 <= channels * width <= _MAX_CHANNELS:
        raise ValueError(
            f"width multiplies {channels} channels: at least 1 and at most {_MAX_CHANNELS} must "
            f"result, got {width} (try 1, 2 or 0.25)"
        )
    return max(1, round(channels * width))


def _pre_activation(
    channels: int, norm: Norm, activation: ActivationFactory, *, images: bool, suffix: str = ""
) -> Iterator[tuple[str, nn.Module]]:
    """Normalisation, if any, and the activation, with their names."""
    if norm == "batch":
        kind = nn.BatchNorm2d if images else nn.BatchNorm1d
        yield f"norm{suffix}", kind(channels, momentum=_BATCH_MOMENTUM)
    elif norm == "layer":
        # All channels and locations of an image are normalised together, whatever its size.
        yield f"norm{suffix}", nn.GroupNorm(1, channels) if images else nn.LayerNorm(channels)
    yield f"activation{suffix}", activation(channels)


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, norm: Norm
) -> nn.Conv2d:
    """A convolution, without bias if normalisation layers have shifts of their own."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=norm == "none")


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
        weight, norm = plan.shortcut_weight, plan.norm
        if plan.bottleneck:
            outputs = _EXPANSION * channels
            layers = [(channels, 1, 1), (channels, 3, stride), (outputs, 1, 1)]
        else:
            outputs = channels
            layers = [(channels, 3, stride), (channels, 3, 1)]
        self.pre: nn.Sequential = nn.Sequential(
            OrderedDict(_pre_activation(inputs, norm, activation, images=True))
        )
        branch: OrderedDict[str, nn.Module] = OrderedDict()
        before = inputs
        for number, (after, kernel, step) in enumerate(layers, start=1):
            if number > 1:
                suffix = str(number)
                branch |= _pre_activation(before, norm, activation, images=True, suffix=suffix)
            branch[f"conv{number}"] = _convolution(before, after, kernel, step, norm=norm)
            before = after
        self.branch: nn.Sequential = nn.Sequential(branch)
        self.shortcut_weight: float | None = weight
        self.projection: nn.Conv2d | None = None
        if weight != 0.0 and (stride != 1 or inputs != outputs):
            self.projection = _convolution(inputs, outputs, 1, stride, norm=norm)
        self.outputs: int = outputs

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
        self.post: nn.Sequential = nn.Sequential(
            OrderedDict(_pre_activation(inputs, plan.norm, activation, images=True))
        )
        self.dropout: nn.Dropout = nn.Dropout(drop_rate)
        self.fc: nn.Linear = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.post(self.stages(self.stem(x)))
        return self.fc(self.dropout(x.mean((2, 3))))


def _stem(plan: ResNetPlan, inputs: int) -> nn.Sequential:
    """The first convolution, without an activation: the first block begins with one.

    The ImageNet stem reduces an image of 224 to 56 locations a side; "cifar" keeps the size.
    """
    channels, norm = plan.stem_channels, plan.norm
    stem: OrderedDict[str, nn.Module] = OrderedDict()
    if plan.stem == "imagenet":
        stem["conv"] = _convolution(inputs, channels, 7, 2, norm=norm)
        stem["pool"] = nn.MaxPool2d(3, 2, 1)
    else:
        stem["conv"] = _convolution(inputs, channels, 3, norm=norm)
    return nn.Sequential(stem)


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
            linear = nn.Linear(inputs, plan.width, bias=plan.norm == "none")
            after = _pre_activation(plan.width, plan.norm, activation, images=False)
            layers.append(nn.Sequential(OrderedDict([("linear", linear), *after])))
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
    """The network of `plan` on torch's default device, its weights allocated but not initialised.

    So nothing is drawn twice, and the random numbers are left for the final weights. `inputs` are
    channels of a ResNet, features of an MLP.
    """
    device = torch.get_default_device()
    ends = {"num_classes": num_classes, "drop_rate": drop_rate}
    with torch.device("meta"):
        match plan:
            case ResNetPlan():
                network = ResNet(plan, activation, in_chans=inputs, **ends)
            case MLPPlan():
                network = MLP(plan, activation, in_features=inputs, **ends)
    network.to_empty(device=device)
    for module in network.modules():
        if isinstance(module, nn.PReLU):  # initialised here, not drawn
            module.reset_parameters()
    return network

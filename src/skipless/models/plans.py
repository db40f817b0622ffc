"""Plans of networks: all that decides how layers are joined, and how many channels they have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

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

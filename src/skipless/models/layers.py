"""The layers that networks of all families are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn

from .plans import Norm

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

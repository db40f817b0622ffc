"""How convolutions read their inputs, and which products of pixels their patches share."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Window:
    """How a convolution reads its input, with one entry for each spatial dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # before, after
    dilation: tuple[int, ...]
    groups: int = 1
    padding_mode: str = "zeros"

    @classmethod
    def of(cls, conv: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> Window:
        """The window of `conv`; padding that keeps an even kernel's size has one more after.

        >>> Window.of(nn.Conv1d(1, 1, 4, padding="same")).padding
        ((1, 2),)
        """
        extents = [d * (k - 1) for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
        match conv.padding:
            case "same":
                padding = tuple((extent // 2, extent - extent // 2) for extent in extents)
            case "valid":
                padding = tuple((0, 0) for _ in extents)
            case sizes:
                padding = tuple((int(size), int(size)) for size in sizes)
        return cls(
            conv.kernel_size, conv.stride, padding, conv.dilation, conv.groups, conv.padding_mode
        )

    def positions(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The spatial sizes of the output where `sizes` are those of the input."""
        return tuple(
            (size + sum(padding) - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, padding, dilation in zip(
                sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )


@dataclass(frozen=True)
class Stretch:
    """Pixels of a phase, along one dimension, and as many of another phase, `lag` further on.

    They meet in the products of each tap in `taps` with the tap that is `apart` further on.
    """

    phases: tuple[int, int]
    start: int
    stop: int
    lag: int
    taps: tuple[int, ...]
    apart: int

    def of(self, side: int) -> slice:
        """The pixels of the first (`side` 0) or second (1) phase."""
        return slice(self.start + side * self.lag, self.stop + side * self.lag)


@lru_cache(maxsize=4096)
def _stretches(
    kernel: int, stride: int, padding: tuple[int, int], dilation: int, size: int
) -> tuple[Stretch, ...]:
    """All that pairs of taps sum over along one dimension, each piece once for all who share it."""
    (positions,) = Window((kernel,), (stride,), (padding,), (dilation,)).positions((size,))
    reads = [divmod(tap * dilation - padding[0], stride) for tap in range(kernel)]
    lengths = [len(range(phase, size, stride)) for phase in range(stride)]
    spans: dict[tuple[int, int, int, int], dict[int, tuple[int, int]]] = {}
    for tap, other in itertools.product(range(kernel), repeat=2):
        (shift, phase), (other_shift, other_phase) = reads[tap], reads[other]
        lag = other_shift - shift
        start = max(shift, 0, -lag)
        stop = min(shift + positions, lengths[phase], lengths[other_phase] - lag)
        if start < stop:
            spans.setdefault((phase, other_phase, lag, other - tap), {})[tap] = (start, stop)
    return tuple(
        Stretch((phase, other_phase), start, stop, lag, taps, apart)
        for (phase, other_phase, lag, apart), ends in spans.items()
        for start, stop in itertools.pairwise(sorted(set(itertools.chain(*ends.values()))))
        if (taps := tuple(tap for tap, (a, b) in ends.items() if a <= start and stop <= b))
    )


def axes(window: Window, sizes: Sequence[int]) -> list[tuple[Stretch, ...]]:
    settings = (window.kernel, window.stride, window.padding, window.dilation, sizes)
    return [_stretches(*axis) for axis in zip(*settings, strict=True)]


@dataclass(frozen=True)
class Box:
    """A stretch along each dimension."""

    stretches: tuple[Stretch, ...]

    @property
    def apart(self) -> tuple[int, ...]:
        """How far the taps are apart whose products are summed over the box."""
        return tuple(stretch.apart for stretch in self.stretches)

    def phase(self, side: int) -> tuple[int, ...]:
        """The phase that the pixels of one side are of."""
        return tuple(stretch.phases[side] for stretch in self.stretches)

    def of(self, side: int) -> tuple[slice, ...]:
        """The pixels of one side."""
        return tuple(stretch.of(side) for stretch in self.stretches)


@dataclass(frozen=True)
class Plan:
    """Which products are computed, and which blocks of the moment each of them is a part of.

    Blocks are those of pairs of taps, the first not after the second: `shares` says which boxes
    they sum over, `places` which block, or beyond them which transposed one, goes where.
    """

    boxes: tuple[Box, ...]
    shares: Tensor  # (blocks, boxes)
    places: Tensor  # (taps · taps)


@lru_cache(maxsize=512)
def planned(window: Window, sizes: tuple[int, ...]) -> Plan:
    none = (0,) * len(sizes)
    boxes = [Box(stretches) for stretches in itertools.product(*axes(window, sizes))]
    boxes = [box for box in boxes if box.apart >= none]
    taps = math.prod(window.kernel)
    steps = [math.prod(window.kernel[axis + 1 :]) for axis in range(len(sizes))]
    pairs = list(itertools.combinations_with_replacement(range(taps), 2))
    number = {pair: index for index, pair in enumerate(pairs)}
    shares = torch.zeros(len(pairs), len(boxes))
    for column, box in enumerate(boxes):
        apart = sum(map(operator.mul, box.apart, steps))
        for own in itertools.product(*(stretch.taps for stretch in box.stretches)):
            first = sum(map(operator.mul, own, steps))
            shares[number[first, first + apart], column] = 1.0
    places = [
        number[i, j] if i <= j else len(pairs) + number[j, i]
        for i, j in itertools.product(range(taps), repeat=2)
    ]
    return Plan(tuple(boxes), shares, torch.tensor(places))

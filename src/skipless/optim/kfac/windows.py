"""How convolutions read their inputs, and which products of pixels their patches share."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

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

    def of_rows(self) -> Window:
        """The same window for images in place of signals, which reads each row by itself."""
        return replace(
            self,
            kernel=(1, *self.kernel),
            stride=(1, *self.stride),
            padding=((0, 0), *self.padding),
            dilation=(1, *self.dilation),
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


@lru_cache(maxsize=256)
def readers(
    window: Window, sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """For each dimension, (pixels, taps): 1 where a tap reads a pixel at one of its positions."""
    found: list[Tensor] = []
    for axis, (size, positions) in enumerate(zip(sizes, window.positions(sizes), strict=True)):
        taps = torch.arange(window.kernel[axis]) * window.dilation[axis] - window.padding[axis][0]
        pixels = torch.arange(positions).unsqueeze(1) * window.stride[axis] + taps
        position, tap = ((pixels >= 0) & (pixels < size)).nonzero(as_tuple=True)
        reads = torch.zeros(size, len(taps), dtype=dtype)
        reads[pixels[position, tap], tap] = 1.0
        found.append(reads.to(device))
    return tuple(found)


@dataclass(frozen=True)
class Box:
    """A stretch along each dimension."""

    stretches: tuple[Stretch, ...]

    @property
    def apart(self) -> tuple[int, ...]:
        """How far the taps are apart whose products are summed over the box."""
        return tuple(stretch.apart for stretch in self.stretches)

    def side(self, number: int) -> Side:
        """The pixels of the first (`number` 0) or second (1) side."""
        return Side(
            tuple(stretch.phases[number] for stretch in self.stretches),
            tuple(stretch.of(number) for stretch in self.stretches),
        )


class Side(NamedTuple):
    """The phase that pixels are of, and which of its pixels, along each dimension."""

    phase: tuple[int, ...]
    pixels: tuple[slice, ...]


@dataclass(frozen=True)
class Band:
    """Boxes that differ in nothing but where they lie along the first dimension.

    Rows of pixels are multiplied one by one, so it costs nothing to tell them apart.
    """

    sides: tuple[Side, Side]  # from the first box to the last
    rows: tuple[slice, ...]  # of these, for each box
    sums: Tensor  # (boxes, rows): 1 where a row is one of a box


@dataclass(frozen=True)
class Plan:
    """Which products are computed, and which pairs of taps each of them is a part of.

    Products are those of all boxes of all bands. In them the first tap is not after the second: a
    pair in the other order has the shares of its mirror image, and the transposed products.
    """

    bands: tuple[Band, ...]
    shares: Tensor  # (boxes, taps · taps)
    ordered: Tensor  # (taps, taps), whether the first tap is not after the second


@lru_cache(maxsize=256)  # one of 7x7 taps has 5 MB
def planned(
    window: Window, sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Plan:
    none = (0,) * len(sizes)
    first, *others = axes(window, sizes)
    alike: dict[tuple[object, ...], list[Stretch]] = {}
    for stretch in first:
        alike.setdefault((stretch.phases, stretch.lag, stretch.apart), []).append(stretch)
    bands: list[Band] = []
    boxes: list[Box] = []
    for along, across in itertools.product(alike.values(), itertools.product(*others)):
        own = [Box((stretch, *across)) for stretch in along]
        if own[0].apart >= none:
            bands.append(_band(along, across, dtype, device))
            boxes += own
    taps = math.prod(window.kernel)
    steps = [math.prod(window.kernel[axis + 1 :]) for axis in range(len(sizes))]
    found: list[tuple[int, int, int]] = []  # a box, and two taps
    for index, box in enumerate(boxes):
        apart = sum(map(operator.mul, box.apart, steps))
        for own in itertools.product(*(stretch.taps for stretch in box.stretches)):
            tap = sum(map(operator.mul, own, steps))
            found.append((index, tap, tap + apart))
    index, tap, other = torch.tensor(found, dtype=torch.int64).view(-1, 3).unbind(1)
    shares = torch.zeros(len(boxes), taps, taps, dtype=dtype)
    shares[index, tap, other] = shares[index, other, tap] = 1.0
    ordered = torch.ones(taps, taps, dtype=torch.bool).triu()
    return Plan(tuple(bands), shares.flatten(1).to(device), ordered.to(device))


def _band(
    along: Sequence[Stretch], across: Sequence[Stretch], dtype: torch.dtype, device: torch.device
) -> Band:
    """The boxes that stretches along the first dimension make with one along each other."""
    start, stop = along[0].start, along[-1].stop
    whole = Box((replace(along[0], stop=stop), *across))
    # Those of three dimensions are of planes, each with its own rows.
    each = math.prod(stretch.stop - stretch.start for stretch in across[:-1])
    rows = [slice((s.start - start) * each, (s.stop - start) * each) for s in along]
    sums = torch.zeros(len(rows), rows[-1].stop, dtype=dtype, device=device)
    for own, part in zip(sums, rows, strict=True):
        own[part] = 1.0
    return Band((whole.side(0), whole.side(1)), tuple(rows), sums)

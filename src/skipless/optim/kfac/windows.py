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

from .spectrum import LARGEST, Spectrum, spectrum


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

    Their products are added to those of each tap in `taps` with the tap that is `apart` further on,
    as many times as `taps` says. It is `whole` if it has all pixels for which there is another.
    """

    phases: tuple[int, int]
    start: int
    stop: int
    lag: int
    taps: dict[int, int]
    apart: int
    whole: bool

    def of(self, side: int) -> slice:
        """The pixels of the first (`side` 0) or second (1) phase."""
        return slice(self.start + side * self.lag, self.stop + side * self.lag)


@lru_cache(maxsize=4096)
def _stretches(
    kernel: int, stride: int, padding: tuple[int, int], dilation: int, size: int, wholes: bool
) -> tuple[Stretch, ...]:
    """All that pairs of taps sum over along one dimension, each piece once for all who share it.

    If `wholes`, the longest piece is made whole, and the others are taken off where that is too
    much, or added where it still is not enough.
    """
    (positions,) = Window((kernel,), (stride,), (padding,), (dilation,)).positions((size,))
    reads = [divmod(tap * dilation - padding[0], stride) for tap in range(kernel)]
    lengths = [len(range(phase, size, stride)) for phase in range(stride)]
    spans: dict[tuple[int, int, range, int, int], dict[int, range]] = {}
    for tap, other in itertools.product(range(kernel), repeat=2):
        (shift, phase), (other_shift, other_phase) = reads[tap], reads[other]
        lag = other_shift - shift
        whole = range(max(0, -lag), min(lengths[phase], lengths[other_phase] - lag))
        read = range(max(shift, whole.start), min(shift + positions, whole.stop))
        if read:
            spans.setdefault((phase, other_phase, whole, lag, other - tap), {})[tap] = read
    found: list[Stretch] = []
    for (phase, other_phase, whole, lag, apart), read in spans.items():
        cuts = {cut for span in (whole, *read.values()) for cut in (span.start, span.stop)}
        pieces = {
            range(*ends): {tap: 1 for tap, span in read.items() if ends[0] in span}
            for ends in itertools.pairwise(sorted(cuts))
        }
        if wholes:
            longest = pieces.pop(max(pieces, key=len))
            pieces = {piece: _less(taps, longest) for piece, taps in pieces.items()}
            pieces[whole] = longest
        found += [
            Stretch((phase, other_phase), piece.start, piece.stop, lag, taps, apart, piece == whole)
            for piece, taps in pieces.items()
            if taps
        ]
    return tuple(found)


def _less(taps: dict[int, int], others: dict[int, int]) -> dict[int, int]:
    differences = {tap: taps.get(tap, 0) - others.get(tap, 0) for tap in taps | others}
    return {tap: number for tap, number in differences.items() if number}


def axes(window: Window, sizes: Sequence[int], wholes: bool = False) -> list[tuple[Stretch, ...]]:
    settings = (window.kernel, window.stride, window.padding, window.dilation, sizes)
    return [_stretches(*axis, wholes) for axis in zip(*settings, strict=True)]


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

    @property
    def pixels(self) -> int:
        """How many pixels of an example are multiplied."""
        return math.prod(span.stop - span.start for span in self.sides[0].pixels)


@dataclass(frozen=True)
class Plan:
    """Which products are computed, and which pairs of taps each of them is a part of.

    Products are those of whole images at the lags of the spectrum, if there is one, and of all
    boxes of all bands. In them the first tap is not after the second: a pair in the other order has
    the shares of its mirror image, and the transposed products.
    """

    spectrum: Spectrum | None
    bands: tuple[Band, ...]
    shares: Tensor  # (products, taps · taps)
    ordered: Tensor  # (taps, taps), whether the first tap is not after the second

    @property
    def phases(self) -> set[tuple[int, ...]]:
        """Those that pixels are read from; a spectrum is of the only one that there is."""
        whole = {(0, 0)} if self.spectrum else set[tuple[int, ...]]()
        return whole.union(side.phase for band in self.bands for side in band.sides)

    def multiplications(self, batch: int, channels: int) -> int:
        """What the products of a group take."""
        pixels = sum(band.pixels for band in self.bands)
        by_frequency = self.spectrum.multiplications(batch, channels) if self.spectrum else 0
        return batch * channels**2 * pixels + by_frequency


def cheapest_plan(
    window: Window,
    sizes: tuple[int, ...],
    batch: int,
    channels: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Plan:
    """By way of the spectrum where the images of a layer without groups or strides make it pay."""
    plans = [planned(window, sizes, dtype, device, wholes=False)]
    is_plain = len(sizes) == 2 and window.groups == 1 and set(window.stride) == {1}
    if is_plain and max(sizes) <= LARGEST:
        plans.append(planned(window, sizes, dtype, device, wholes=True))
    return min(plans, key=lambda plan: plan.multiplications(batch, channels))


@lru_cache(maxsize=256)  # one of 7x7 taps has 5 to 11 MB
def planned(
    window: Window, sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device, wholes: bool
) -> Plan:
    none = (0,) * len(sizes)
    first, *others = axes(window, sizes, wholes)
    alike: dict[tuple[object, ...], list[Stretch]] = {}
    for stretch in first:
        alike.setdefault((stretch.phases, stretch.lag, stretch.apart), []).append(stretch)
    bands: list[Band] = []
    images: list[Box] = []
    boxes: list[Box] = []
    for along, across in itertools.product(alike.values(), itertools.product(*others)):
        if Box((along[0], *across)).apart < none:
            continue
        groups = [along]
        if wholes and all(stretch.whole for stretch in across):
            images += [Box((stretch, *across)) for stretch in along if stretch.whole]
            # A band of several would multiply all the rows that lie between them.
            groups = [[stretch] for stretch in along if not stretch.whole]
        for own in groups:
            bands.append(_band(own, across, dtype, device))
            boxes += [Box((stretch, *across)) for stretch in own]
    lags = tuple(tuple(stretch.lag for stretch in box.stretches) for box in images)
    by_frequency = spectrum(sizes, lags, dtype, device) if lags else None
    boxes = images + boxes
    taps = math.prod(window.kernel)
    steps = [math.prod(window.kernel[axis + 1 :]) for axis in range(len(sizes))]
    found: list[tuple[int, int, int, int]] = []  # a box, two taps, and how many times
    for index, box in enumerate(boxes):
        apart = sum(map(operator.mul, box.apart, steps))
        for own in itertools.product(*(stretch.taps.items() for stretch in box.stretches)):
            tap = sum(map(operator.mul, (tap for tap, _ in own), steps))
            found.append((index, tap, tap + apart, math.prod(times for _, times in own)))
    index, tap, other, times = torch.tensor(found, dtype=torch.int64).view(-1, 4).unbind(1)
    shares = torch.zeros(len(boxes), taps, taps, dtype=dtype)
    shares[index, tap, other] = shares[index, other, tap] = times.to(dtype)
    ordered = torch.ones(taps, taps, dtype=torch.bool).triu()
    return Plan(by_frequency, tuple(bands), shares.flatten(1).to(device), ordered.to(device))


def _band(
    along: Sequence[Stretch], across: Sequence[Stretch], dtype: torch.dtype, device: torch.device
) -> Band:
    """The boxes that stretches along the first dimension make with one along each other."""
    start, stop = min(s.start for s in along), max(s.stop for s in along)
    all_rows = Box((replace(along[0], start=start, stop=stop), *across))
    # Those of three dimensions are of planes, each with its own rows.
    each = math.prod(stretch.stop - stretch.start for stretch in across[:-1])
    rows = [slice((s.start - start) * each, (s.stop - start) * each) for s in along]
    sums = torch.zeros(len(rows), (stop - start) * each, dtype=dtype, device=device)
    for own, part in zip(sums, rows, strict=True):
        own[part] = 1.0
    return Band((all_rows.side(0), all_rows.side(1)), tuple(rows), sums)

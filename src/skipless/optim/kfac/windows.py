r"""How convolutions read their inputs, and which products of pixels their patches share.

Products of pixels over whole images, at many lags at once, by way of the Fourier transform.

With pixels $x_q \in \mathbb{R}^C$ that are zero outside of the image, and their transform $X_f$,

$$\sum_q x_q\, x_{q+\delta}^\top
  = \frac{1}{M} \sum_f \mathrm{Re}\bigl(\overline{X_f}\, X_f^\top e^{2\pi i f \cdot \delta}\bigr)$$

where the transform is of $M$ pixels, so many that no lag wraps around. One product of matrices for
each frequency serves all lags, of which patches of 3x3 have 13. Images of layers are small: their
transforms are products with matrices, too, and no frequency is computed that follows from its
conjugate.

Rounding is relative to the sum of all squares. Where nearly all of it lies in the rows that a pair
of taps does not read, what is left for that pair has few digits of its own, and may be negative by
a few 1e-7 of the largest moment, which is much less than usual damping.
"""

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

LARGEST = 128  # side of an image; beyond, transforms by matrices take more than they save
PRODUCT_BYTES = 16 * 2**20  # at most, of the products of some frequencies
KEEPING = 64  # multiplications in the time that it takes to write a number and to read it again


class Spectrum(NamedTuple):
    """Matrices to the frequencies of images of one size, and back to products at some lags."""

    down: Tensor  # (2 · frequencies, height): real parts, then imaginary ones
    along: Tensor  # (frequencies · 2, width · 2), of complex numbers to complex numbers
    even: Tensor  # (lags, frequencies): shares of what is the same in both orders of channels
    odd: Tensor  # (lags, frequencies): and of what changes its sign

    def sizes(self, numbers: int) -> tuple[int, int]:
        """Of the images after one transform and after both, where a pixel has so many numbers."""
        width = self.along.shape[1] // 2
        return len(self.down) * width * numbers, 2 * self.even.shape[1] * numbers

    def multiplications(self, batch: int, channels: int) -> int:
        """What `lagged_products` of that many images takes, with the keeping of products."""
        once, twice = self.sizes(batch * channels)
        lags, frequencies = self.even.shape
        transforms = once * self.down.shape[1] + twice * self.along.shape[1]
        return transforms + frequencies * channels**2 * (3 * batch + 2 * (lags + KEEPING))


@lru_cache(maxsize=256)
def spectrum(
    sizes: tuple[int, ...],
    lags: tuple[tuple[int, ...], ...],
    dtype: torch.dtype,
    device: torch.device,
) -> Spectrum:
    height, width = sizes
    rows, columns = (size + max(abs(lag[axis]) for lag in lags) for axis, size in enumerate(sizes))
    half = rows // 2 + 1  # the others are conjugates of these
    angles = _angles(half, rows) * torch.arange(height)
    down = torch.cat([angles.cos(), -angles.sin()])
    angles = _angles(columns, columns) * torch.arange(width)
    real = torch.stack([angles.cos(), angles.sin()], dim=2)
    imaginary = torch.stack([-angles.sin(), angles.cos()], dim=2)
    along = torch.stack([real, imaginary], dim=1).flatten(2).flatten(0, 1)
    weights = torch.full((half, 1), 2.0, dtype=torch.float64)
    weights[0] = 1.0
    weights[rows - rows // 2 :] = 1.0  # in the middle, if any, is one that is its own conjugate
    shares = (weights / (rows * columns)).expand(-1, columns).flatten()
    turns = [_angles(half, rows) * a + _angles(columns, columns).mT * b for a, b in lags]
    turned = torch.stack(turns).flatten(1)
    found = (down, along, turned.cos() * shares, -turned.sin() * shares)
    return Spectrum(*(matrix.to(device, dtype) for matrix in found))


def lagged_products(pixels: Tensor, spectrum: Spectrum, batch: int, scratch: Tensor) -> Tensor:
    """For each lag, the sum of x_q x_{q + lag}ᵀ over all `pixels` (H, W · N, C) of images.

    `scratch` has room for the two transforms.
    """
    channels, numbers = pixels.shape[2], batch * pixels.shape[2]
    lags, frequencies = spectrum.even.shape
    half, width = len(spectrum.down) // 2, spectrum.along.shape[1] // 2
    once, twice = scratch.split(spectrum.sizes(numbers))
    columns = pixels.view(-1, width, numbers).transpose(0, 1)
    down = spectrum.down.expand(width, -1, -1)
    torch.bmm(down, columns, out=once.view(width, 2 * half, numbers))
    rows = once.view(2 * width, half, numbers).transpose(0, 1)
    along = spectrum.along.expand(half, -1, -1)
    torch.bmm(along, rows, out=twice.view(half, -1, numbers))
    waves = twice.view(frequencies, 2, batch, channels)
    even, odd = pixels.new_zeros(2, lags, channels * channels)
    step = max(1, PRODUCT_BYTES // (2 * channels * channels * pixels.itemsize))
    for start in range(0, frequencies, step):
        some = slice(start, start + step)
        both, (real, imaginary) = waves[some].flatten(1, 2), waves[some].unbind(1)
        even.addmm_(spectrum.even[:, some], torch.bmm(both.mT, both).flatten(1))
        odd.addmm_(spectrum.odd[:, some], torch.bmm(real.mT, imaginary).flatten(1))
    even, odd = (sums.view(lags, channels, channels) for sums in (even, odd))
    return even + odd - odd.mT


def _angles(number: int, period: int) -> Tensor:
    return torch.arange(number, dtype=torch.float64).unsqueeze(1) * (2.0 * math.pi / period)


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

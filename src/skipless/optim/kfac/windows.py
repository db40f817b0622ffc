r"""Which products of pixels the patches of a convolution share, and a plan to compute each once.

Along one axis, a tap of the kernel reads a range of pixels, one at each output position. Two taps
multiply pixels that are `lag` apart; `apart` is their distance in taps. All pairs of taps at the
same distance multiply the same pixels, but near the edges some of them stop earlier. So the range
is cut where one of them starts or stops. With kernel 3, padding 1 and 6 pixels:

    pixels               0   1   2   3   4   5
    taps 0 and 1 sum     x0x1 ........... x4x5          x_q x_{q+1} for q in [0, 5)
    taps 1 and 2 sum     x0x1 ........... x4x5          the same: one product for both pairs
    tap 0 with itself    x0x0 ...... x4x4               stops one earlier than
    tap 1 with itself    x0x0 ........... x5x5          and so on: three pieces, [0, 1), [1, 5),
    tap 2 with itself         x1x1 ...... x5x5          [5, 6), each multiplied once

Each piece is a `Stretch`. A stretch along each axis makes a box, and boxes that differ only along
the first axis make a `Band`, computed as one batch of products. With a stride, a tap reads only
every stride-th pixel: the pixels of one phase.

Where it is cheaper, products over whole images come from the Fourier transform. With pixels $x_q
\in \mathbb{R}^C$ that are zero outside of the image, and their transform $X_f$,

$$\sum_q x_q\, x_{q+\delta}^\top
  = \frac{1}{M} \sum_f \mathrm{Re}\bigl(\overline{X_f}\, X_f^\top e^{2\pi i f \cdot \delta}\bigr)$$

where the transform has $M$ pixels, enough that no lag wraps around. One matrix product per
frequency serves all lags, of which patches of 3x3 have 13. Transforms are matrix products, too, as
images of layers are small, and skip frequencies that follow from their conjugates. Then only what
some pairs leave out at the edges is multiplied as above. Rounding is relative to the sum of all
squares: where a pair of taps reads little of it, its moment may be negative by a few 1e-7 of the
largest, which is much less than usual damping.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

LARGEST = 128  # side of an image; beyond, transforms by matrices cost more than they save
PRODUCT_BYTES = 16 * 2**20  # at most, of the products of some frequencies
KEEPING = 64  # multiplications in the time that it takes to write a number and read it again


@dataclass(frozen=True)
class Window:
    """How a convolution reads its input, with one entry per spatial axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # before, after
    dilation: tuple[int, ...]
    groups: int = 1
    padding_mode: str = "zeros"

    @classmethod
    def of(cls, conv: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> Window:
        """The window of `conv`; padding "same" of an even kernel has one more after.

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
        """The window that reads each row of an image as this one reads a signal."""
        return replace(
            self,
            kernel=(1, *self.kernel),
            stride=(1, *self.stride),
            padding=((0, 0), *self.padding),
            dilation=(1, *self.dilation),
        )

    def positions(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The spatial sizes of the output for an input of `sizes`."""
        return tuple(
            (size + sum(padding) - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, padding, dilation in zip(
                sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )


@lru_cache(maxsize=256)
def tap_masks(
    window: Window, sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """For each axis, (pixels, taps): 1 where a tap reads a pixel at one of its positions."""
    masks: list[Tensor] = []
    for axis, (size, positions) in enumerate(zip(sizes, window.positions(sizes), strict=True)):
        (before, after), taps = window.padding[axis], torch.arange(window.kernel[axis])
        mask = torch.zeros(before + size + after, len(taps), dtype=dtype)
        starts = torch.arange(positions).unsqueeze(1) * window.stride[axis]
        mask[starts + taps * window.dilation[axis], taps] = 1.0
        masks.append(mask[before : before + size].to(device))
    return tuple(masks)


class Spectrum(NamedTuple):
    """Matrices to the frequencies of images of one size, and back to products at some lags."""

    down: Tensor  # (2 · frequencies, height): real parts, then imaginary ones
    along: Tensor  # (frequencies · 2, width · 2), from complex numbers to complex numbers
    even: Tensor  # (lags, frequencies): shares of what is the same in both orders of channels
    odd: Tensor  # (lags, frequencies): and of what changes its sign

    def sizes(self, numbers: int) -> tuple[int, int]:
        """Of the images after one transform and after both, with that many numbers per pixel."""
        width = self.along.shape[1] // 2
        return len(self.down) * width * numbers, 2 * self.even.shape[1] * numbers

    def multiplications(self, batch: int, channels: int) -> int:
        """The cost of `lagged_products`, including reading and writing its products."""
        once, twice = self.sizes(batch * channels)
        lags, frequencies = self.even.shape
        transforms = once * self.down.shape[1] + twice * self.along.shape[1]
        return transforms + frequencies * channels**2 * (3 * batch + 2 * (lags + KEEPING))


def _spectrum(
    sizes: tuple[int, ...],
    lags: Sequence[tuple[int, ...]],
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
    phases = [_angles(half, rows) * a + _angles(columns, columns).mT * b for a, b in lags]
    stacked = torch.stack(phases).flatten(1)
    matrices = (down, along, stacked.cos() * shares, -stacked.sin() * shares)
    return Spectrum(*(matrix.to(device, dtype) for matrix in matrices))


def _angles(number: int, period: int) -> Tensor:
    return torch.arange(number, dtype=torch.float64).unsqueeze(1) * (2.0 * math.pi / period)


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


@dataclass(frozen=True)
class Stretch:
    """Pixels of a phase, along one axis, and as many of another phase, `lag` further on.

    Their products are added to those of each tap with the tap that is `apart` further on, as many
    times as `times` says. It is `whole` if it has all pixels that have a partner.
    """

    phases: tuple[int, int]
    start: int
    stop: int
    lag: int
    apart: int
    times: Tensor  # (taps,)
    whole: bool


@lru_cache(maxsize=4096)
def _stretches(
    kernel: int, stride: int, padding: tuple[int, int], dilation: int, size: int, wholes: bool
) -> tuple[Stretch, ...]:
    """All that pairs of taps sum over along one axis, each piece once for all pairs that share it.

    If `wholes`, the longest piece is made whole; the others then subtract what is too much, or add
    what is missing.
    """
    (positions,) = Window((kernel,), (stride,), (padding,), (dilation,)).positions((size,))
    reads = [divmod(tap * dilation - padding[0], stride) for tap in range(kernel)]
    lengths = [len(range(phase, size, stride)) for phase in range(stride)]
    ranges: dict[tuple[tuple[int, int], range, int, int], dict[int, range]] = {}
    for tap, other in itertools.product(range(kernel), repeat=2):
        (shift, phase), (other_shift, other_phase) = reads[tap], reads[other]
        lag = other_shift - shift
        whole = range(max(0, -lag), min(lengths[phase], lengths[other_phase] - lag))
        read = range(max(shift, whole.start), min(shift + positions, whole.stop))
        if read:
            kind = (phase, other_phase), whole, lag, other - tap
            ranges.setdefault(kind, {})[tap] = read
    found: list[Stretch] = []
    for (phases, whole, lag, apart), read in ranges.items():
        cuts = {cut for span in (whole, *read.values()) for cut in (span.start, span.stop)}
        pieces: dict[range, Tensor] = {}
        for start, stop in itertools.pairwise(sorted(cuts)):
            spans = (read.get(tap, ()) for tap in range(kernel))
            pieces[range(start, stop)] = torch.tensor([int(start in span) for span in spans])
        if wholes:
            longest = pieces.pop(max(pieces, key=len))
            pieces = {piece: times - longest for piece, times in pieces.items()}
            pieces[whole] = longest
        found += [
            Stretch(phases, piece.start, piece.stop, lag, apart, times, piece == whole)
            for piece, times in pieces.items()
            if times.any()
        ]
    return tuple(found)


def stretches_by_axis(
    window: Window, sizes: Sequence[int], wholes: bool = False
) -> list[tuple[Stretch, ...]]:
    """The stretches along each spatial axis."""
    settings = (window.kernel, window.stride, window.padding, window.dilation, sizes)
    return [_stretches(*axis, wholes) for axis in zip(*settings, strict=True)]


@dataclass(frozen=True)
class Band:
    """Boxes, of a stretch along each axis, that differ only in their range along the first axis.

    Rows of pixels are multiplied one by one, so telling the boxes apart costs nothing. The `sides`
    are the first and the second pixels of the products: their phase and range along each axis.
    """

    sides: list[tuple[tuple[int, ...], tuple[slice, ...]]]  # from the first box to the last
    rows: list[slice]  # of these, for each box
    sums: Tensor  # (boxes, rows): 1 where a row belongs to a box


@dataclass(frozen=True)
class PatchPlan:
    """Which products are computed, and which pairs of taps each of them is part of.

    Products are those of whole images at the lags of the spectrum, if there is one, then of all
    boxes of all bands. The first tap is never after the second: a pair in the other order has the
    shares of its mirror image, and the transposed products.
    """

    spectrum: Spectrum | None
    bands: list[Band]
    shares: Tensor  # (products, taps · taps)
    ordered: Tensor  # (taps, taps), whether the first tap is not after the second

    @property
    def phases(self) -> set[tuple[int, ...]]:
        """The phases that pixels are read from; with a spectrum there is only one."""
        whole = {(0, 0)} if self.spectrum else set[tuple[int, ...]]()
        return whole.union(phase for band in self.bands for phase, _ in band.sides)

    def multiplications(self, batch: int, channels: int) -> int:
        """The cost of the products of one group."""
        ranges = (pixels for band in self.bands for _, pixels in band.sides[:1])
        pixels = sum(math.prod(own.stop - own.start for own in pixels) for pixels in ranges)
        by_frequency = self.spectrum.multiplications(batch, channels) if self.spectrum else 0
        return batch * channels**2 * pixels + by_frequency


def cheapest_plan(
    window: Window,
    sizes: tuple[int, ...],
    batch: int,
    channels: int,
    dtype: torch.dtype,
    device: torch.device,
) -> PatchPlan:
    """With the spectrum where it pays, for images without groups or strides."""
    plans = [_plan(window, sizes, dtype, device, wholes=False)]
    is_plain = len(sizes) == 2 and window.groups == 1 and set(window.stride) == {1}
    if is_plain and max(sizes) <= LARGEST:
        plans.append(_plan(window, sizes, dtype, device, wholes=True))
    return min(plans, key=lambda plan: plan.multiplications(batch, channels))


@lru_cache(maxsize=256)  # one of 7x7 taps has 5 to 11 MB
def _plan(
    window: Window, sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device, wholes: bool
) -> PatchPlan:
    """The products of all pairs of taps; if `wholes`, those over whole images by the spectrum."""
    first, *others = stretches_by_axis(window, sizes, wholes)
    alike: dict[tuple[object, ...], list[Stretch]] = {}
    for stretch in first:
        alike.setdefault((stretch.phases, stretch.lag, stretch.apart), []).append(stretch)
    bands: list[Band] = []
    images: list[tuple[Stretch, ...]] = []
    boxes: list[tuple[Stretch, ...]] = []
    for along, across in itertools.product(alike.values(), itertools.product(*others)):
        if (along[0].apart, *(stretch.apart for stretch in across)) < (0,) * len(sizes):
            continue  # the mirror image of another one
        groups = [along]
        if wholes and all(stretch.whole for stretch in across):
            images += [(stretch, *across) for stretch in along if stretch.whole]
            # A band of several would multiply all the rows that lie between them.
            groups = [[stretch] for stretch in along if not stretch.whole]
        for own in groups:
            bands.append(_band(own, across, dtype, device))
            boxes += [(stretch, *across) for stretch in own]
    lags = [tuple(stretch.lag for stretch in box) for box in images]
    spectrum = _spectrum(sizes, lags, dtype, device) if lags else None
    shares = _shares([*images, *boxes], window.kernel, dtype)
    ordered = torch.ones(shares.shape[1:], dtype=torch.bool).triu()
    return PatchPlan(spectrum, bands, shares.flatten(1).to(device), ordered.to(device))


def _band(
    along: Sequence[Stretch], across: Sequence[Stretch], dtype: torch.dtype, device: torch.device
) -> Band:
    """The boxes that stretches along the first axis make with one along each other axis."""
    start, stop = min(s.start for s in along), max(s.stop for s in along)
    box = (replace(along[0], start=start, stop=stop), *across)
    sides = [
        (
            tuple(s.phases[side] for s in box),
            tuple(slice(s.start + side * s.lag, s.stop + side * s.lag) for s in box),
        )
        for side in (0, 1)
    ]
    # With three axes, rows are those of planes.
    each = math.prod(stretch.stop - stretch.start for stretch in across[:-1])
    rows = [slice((s.start - start) * each, (s.stop - start) * each) for s in along]
    sums = torch.zeros(len(rows), (stop - start) * each, dtype=dtype, device=device)
    for own, part in zip(sums, rows, strict=True):
        own[part] = 1.0
    return Band(sides, rows, sums)


def _shares(
    boxes: Sequence[Sequence[Stretch]], kernel: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """(boxes, taps, taps): how often the product of a box is part of that of a pair of taps."""
    taps = math.prod(kernel)
    shares = torch.zeros(len(boxes), taps, taps, dtype=dtype)
    for own, box in zip(shares, boxes, strict=True):
        apart = 0
        for size, stretch in zip(kernel, box, strict=True):
            apart = apart * size + stretch.apart
        times = reduce(torch.kron, [stretch.times for stretch in box])
        own.diagonal(apart).copy_(times[: taps - apart])
    return shares + shares.triu(1).mT

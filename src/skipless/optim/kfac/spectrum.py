r"""Products of pixels over whole images, at many lags at once, by way of the Fourier transform.

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

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

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

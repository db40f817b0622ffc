r"""Second moments of the inputs of layers, and of gradients at their outputs, as sums over rows.

A row is the input of a layer, or the gradient at its output, at one position of one example. The
patches of a convolution overlap, and most of $\sum p\,p^\top$ would be computed many times over.
So patches are not materialised. With pixels $x_q \in \mathbb{R}^C$, all pairs of taps at a distance
$\delta$ share $\sum_q x_q\, x_{q+\delta}^\top$, except at the edges of the image: `windows` plans
which sums to compute. Rows of pixels are multiplied one by one, in one batch: a kernel of 3x3 takes
19 batches instead of 81 products, all of them on views of one copy of the inputs.

Sums are in float32, or in float64 where the tensors are. Extra memory is at most about that of the
result, of a product for each row of an image, or of `PRODUCT_BYTES`, and of six copies (nine where
kernels are nearly as large as images) of `CHUNK_BYTES` of the batch or of one example; and one copy
of the whole batch for padding other than zeros.

Axes: N = examples, C = channels, H and W = height and width, n = rows, d = entries of a row.
"""

import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from .windows import (
    Band,
    PatchPlan,
    Window,
    cheapest_plan,
    lagged_products,
    stretches_by_axis,
    tap_masks,
)

CHUNK_BYTES = 32 * 2**20
MOST_PRODUCTS = 512  # beyond, as in patches of 16x16 side by side, calls cost more than they save
WIDE = 128  # a product of this many columns or more keeps the cores busy on its own
CORES = 8  # a long product of fewer columns is split for this many


def at_least_float32(tensor: Tensor) -> torch.dtype:
    """The dtype of sums over `tensor`, and of everything computed from them."""
    return torch.promote_types(tensor.dtype, torch.float32)


@contextmanager
def _full_precision(tensor: Tensor) -> Iterator[None]:
    """Without autograd, and without autocast, which rounds products."""
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        yield


def row_moment(rows: Tensor, homogeneous: bool) -> Tensor:
    """The sum of r rᵀ over `rows` (n, d); if `homogeneous`, each row ends with a 1 for the bias.

    >>> row_moment(torch.tensor([[2.0], [3.0]]), homogeneous=True)
    tensor([[13.,  5.],
            [ 5.,  2.]])
    """
    with _full_precision(rows):
        width = rows.shape[1]
        moments = _zero_moments(rows, 1, width, homogeneous)
        first, *others = _chunks(rows, width)
        _gram(first.to(moments.dtype), out=moments[0, :width, :width])
        for part in others:
            moments[0, :width, :width] += _gram(part.to(moments.dtype))
        if homogeneous:
            _set_bias_(moments, rows.sum(0, dtype=moments.dtype), len(rows))
        return moments[0]


def output_moments(grads: Tensor, groups: int) -> Tensor:
    """Sums of g gᵀ over examples and positions of `grads` (N, C, *spatial), for each group."""
    with _full_precision(grads):
        channels = grads.shape[1]
        moments = _zero_moments(grads, groups, channels // groups, homogeneous=False)
        values = grads.flatten(2)
        # Channels_last has rows already, and copying wide ones costs little.
        by_rows = groups == 1 and (values.stride(1) == 1 or values.shape[2] < channels)
        for part in _chunks(values, values[0].numel()):
            part = part.to(moments.dtype)
            if by_rows:
                moments[0] += _gram(part.mT.reshape(-1, channels))
            else:
                for example in part.contiguous().unflatten(1, (groups, -1)):
                    moments.baddbmm_(example, example.mT)
        return moments


class Scratch:
    """Memory that all layers reuse: getting fresh pages for each would take longer."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0)

    def numbers(self, number: int, like: Tensor) -> Tensor:
        """Uninitialised memory for that many numbers, of the dtype and device of `like`."""
        buffer = self._buffer
        if (buffer.dtype, buffer.device) != (like.dtype, like.device) or len(buffer) < number:
            self._buffer = buffer = like.new_empty(number)
        return buffer[:number]


def patch_moments(
    inputs: Tensor, window: Window, homogeneous: bool, scratch: Scratch | None = None
) -> tuple[Tensor, int]:
    """Sums of p pᵀ over all patches of `inputs` (N, C, *spatial), for each group; and their number.

    Entries of a patch are in the order of `weight.flatten(1)`. If `homogeneous`, each patch ends
    with a 1 for the bias. Share one `scratch` across layers.
    """
    with _full_precision(inputs):
        if inputs.ndim == 3:  # a signal is an image of one row
            inputs, window = inputs.unsqueeze(2), window.of_rows()
        if window.padding_mode != "zeros":
            inputs = F.pad(inputs, _torch_padding(window), mode=window.padding_mode)
            window = replace(window, padding=((0, 0),) * len(window.padding), padding_mode="zeros")
        sizes = tuple(inputs.shape[2:])
        width = inputs.shape[1] // window.groups * math.prod(window.kernel)
        moments = _zero_moments(inputs, window.groups, width, homogeneous)
        moment = moments[:, :width, :width]
        products = math.prod(map(len, stretches_by_axis(window, sizes))) // 2  # by symmetry
        if math.prod(window.kernel) == 1 and not any(map(sum, window.padding)):
            moment += output_moments(
                _phase(inputs, window.stride, (0,) * len(sizes)), window.groups
            )
        elif products <= MOST_PRODUCTS:
            _add_shared_products_(moment, inputs, window, scratch or Scratch())
        else:
            _add_patches_(moment, inputs, window)
        number = len(inputs) * math.prod(window.positions(sizes))
        if homogeneous:
            _set_bias_(moments, _patch_sum(inputs, window, moments.dtype), number)
        return moments, number


def _zero_moments(like: Tensor, groups: int, width: int, homogeneous: bool) -> Tensor:
    size = width + homogeneous
    return like.new_zeros(groups, size, size, dtype=at_least_float32(like))


def _set_bias_(moments: Tensor, total: Tensor, number: int) -> None:
    moments[:, -1, :-1] = moments[:, :-1, -1] = total.view(len(moments), -1)
    moments[:, -1, -1] = number


def _chunks(values: Tensor, entries: int) -> Sequence[Tensor]:
    """The batch in chunks of `CHUNK_BYTES`, if `entries` numbers are copied per example."""
    return values.split(max(1, CHUNK_BYTES // (entries * at_least_float32(values).itemsize)))


def _gram(rows: Tensor, out: Tensor | None = None) -> Tensor:
    """`rows.mT @ rows`, symmetric to rounding; of a wide one, up to 3/8 are mirrored."""
    number, width = rows.shape
    gram = rows.new_empty(width, width) if out is None else out
    if width < WIDE and number >= CORES * width and number % CORES == 0:
        parts = rows.unflatten(0, (CORES, -1))
        return torch.sum(torch.bmm(parts.mT, parts), 0, out=gram)
    step = width if width < 4 * WIDE else max(2 * WIDE, -(-width // 4))
    for i in range(0, width, step):
        here = slice(i, i + step)
        torch.mm(rows[:, here].mT, rows[:, : i + step], out=gram[here, : i + step])
        gram[:i, here] = gram[here, :i].mT
    return gram


def _torch_padding(window: Window) -> list[int]:
    """`window.padding` in the order of `F.pad`."""
    return [width for pair in reversed(window.padding) for width in pair]


def _phase(inputs: Tensor, stride: Sequence[int], start: Sequence[int]) -> Tensor:
    """Every `stride`-th pixel of `inputs` (N, C, *spatial), starting at `start`."""
    return inputs[(..., *(slice(a, None, s) for a, s in zip(start, stride, strict=True)))]


def _patch_sum(inputs: Tensor, window: Window, dtype: torch.dtype) -> Tensor:
    """The sum over all patches, as (C, taps)."""
    if inputs.stride(1) == 1:  # in the order of memory, which is ten times faster
        image = inputs.movedim(1, -1).sum(0, dtype=dtype).movedim(-1, 0)
    else:
        image = inputs.sum(0, dtype=dtype)
    for mask in tap_masks(window, tuple(inputs.shape[2:]), dtype, inputs.device):
        image = image.movedim(1, -1) @ mask
    return image.flatten(1)


def _patches(inputs: Tensor, window: Window) -> Tensor:
    """Patches of `inputs` (N, C, *spatial), as a view (N, C, *positions, *kernel) of a copy."""
    positions = window.positions(inputs.shape[2:])
    inputs = F.pad(inputs, _torch_padding(window))
    strides = inputs.stride()[2:]
    return inputs.as_strided(
        (*inputs.shape[:2], *positions, *window.kernel),
        (
            *inputs.stride()[:2],
            *map(operator.mul, strides, window.stride),
            *map(operator.mul, strides, window.dilation),
        ),
    )


def _add_patches_(moment: Tensor, inputs: Tensor, window: Window) -> None:
    """Adds the products of materialised patches, a chunk of the batch at a time."""
    groups, width, _ = moment.shape
    positions = window.positions(inputs.shape[2:])
    for part in _chunks(inputs, math.prod(positions) * groups * width):
        patches = _patches(part.to(moment.dtype), window).unflatten(1, (groups, -1))
        rows = patches.movedim((1, 2), (0, 2 + len(positions))).reshape(groups, -1, width)
        moment.baddbmm_(rows.mT, rows)


def _add_shared_products_(moment: Tensor, inputs: Tensor, window: Window, scratch: Scratch) -> None:
    """Adds the products of patches from those of pixels, which many pairs of taps share."""
    groups, channels = window.groups, inputs.shape[1] // window.groups
    sizes, parts = tuple(inputs.shape[2:]), _chunks(inputs, inputs[0].numel())
    plan = cheapest_plan(window, sizes, len(parts[0]), channels, moment.dtype, moment.device)
    totals = moment.new_zeros(len(plan.shares), groups, channels, channels)
    for part in parts:
        _add_products_(totals, part.to(moment.dtype), window, plan, scratch)
    taps = math.prod(window.kernel)
    blocks = (totals.flatten(1).mT @ plan.shares).view(groups, channels, channels, taps, taps)
    by_taps = moment.unflatten(2, (channels, taps)).unflatten(1, (channels, taps)).transpose(2, 3)
    torch.where(plan.ordered, blocks, blocks.transpose(1, 2), out=by_taps)


def _add_products_(
    totals: Tensor, inputs: Tensor, window: Window, plan: PatchPlan, scratch: Scratch
) -> None:
    """Adds products of pixels, as products of matrices that are views of one copy of the inputs."""
    batch, channels, spectrum = len(inputs), inputs.shape[1], plan.spectrum
    transformed = sum(spectrum.sizes(batch * channels)) if spectrum else 0
    free = scratch.numbers(inputs.numel() + transformed, inputs)
    phases: dict[tuple[int, ...], Tensor] = {}
    for phase in plan.phases:
        pixels = _phase(inputs, window.stride, phase)
        own, free = free.split([pixels.numel(), len(free) - pixels.numel()])
        phases[phase] = _by_position(pixels, window.groups, own)
    if spectrum:
        of_images, totals = totals.tensor_split([len(spectrum.even)])
        (pixels,) = phases.values()
        of_images[:, 0] += lagged_products(pixels, spectrum, batch, free)
    by_band = totals.split([len(band.rows) for band in plan.bands])
    for band, own in zip(plan.bands, by_band, strict=True):
        left, right = (
            _pixels(phases[phase], pixels, window.groups, batch) for phase, pixels in band.sides
        )
        _add_product_(own, band, left, right)


def _by_position(inputs: Tensor, groups: int, out: Tensor) -> Tensor:
    """`inputs` (N, C, ..., H, W) in memory as (..., H · groups, W · N, C / groups).

    There the pixels of a stretch along W, of all examples, are consecutive rows.
    """
    channels_last = inputs.movedim(1, -1).contiguous()  # two simple copies are faster than one
    by_group = channels_last.unflatten(-1, (groups, -1)).movedim((0, -3, -2), (-2, -3, -4))
    return out.view(by_group.shape).copy_(by_group).flatten(-3, -2).flatten(-4, -3)


def _pixels(values: Tensor, slices: Sequence[slice], groups: int, batch: int) -> Tensor:
    """The pixels of a box as (... · H · groups, W · N, C / groups), a view but in 3-D."""
    *others, rows, columns = slices
    own = (*others, _multiply_slice(rows, groups), _multiply_slice(columns, batch))
    return values[own].flatten(0, -3)


def _multiply_slice(span: slice, factor: int) -> slice:
    return slice(span.start * factor, span.stop * factor)


def _add_product_(totals: Tensor, band: Band, left: Tensor, right: Tensor) -> None:
    """Adds products of the pixels of a band to the totals of its boxes, each over its own rows."""
    _, groups, channels, _ = totals.shape
    if channels >= WIDE:
        for total, rows in zip(totals, band.rows, strict=True):
            own = _multiply_slice(rows, groups)
            for a, b in zip(left[own].split(groups), right[own].split(groups), strict=True):
                total.baddbmm_(a.mT, b)
    elif len(left) == 1 and left.shape[1] % CORES == 0:  # a row that is long, as in `_gram`
        left, right = (side.view(CORES, -1, channels) for side in (left, right))
        totals += torch.bmm(left.mT, right).sum(0)
    else:
        products = torch.bmm(left.mT, right).view(-1, groups * channels * channels)
        totals.flatten(1).addmm_(band.sums, products)

r"""How training images are cropped, as a function of uniform numbers in [0, 1) drawn for each.

| crop        | image files                                    | images in memory             |
|-------------|------------------------------------------------|------------------------------|
| `window`    | scaled to 256/224 of the size, a square of it  | shifted over black           |
| `inception` | a box of 8 to 100 % of the area, scaled        | the same                     |

"Random crop" in the paper (appendix D) may be either. The authors' released example, LReLUNet-101
in kfac-jax, has Inception's (Szegedy et al., 2015), resized bicubically; so has `inception`. Its
boxes are those of torchvision's `RandomResizedCrop`: the area is uniform and the aspect ratio
log-uniform, drawn again until the box fits, ten times at most. TensorFlow, in the example, draws
the ratio and the height uniformly. If no box fits, both take a central one; here it is the
evaluation's, as in the example.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from .settings import CropName

if TYPE_CHECKING:
    from PIL.Image import Image

_AREA, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a box: of the image's area, width over height
_ATTEMPTS = 10
# Uniform numbers that augment an image: row, column, mirror, and then area and ratio for each box.
DRAWS: dict[CropName, int] = {"window": 3, "inception": 3 + 2 * _ATTEMPTS}

_SHORTER_SIDE = 256 / 224  # of an image file when a window of it is taken, relative to the window


def crop_offset(draws: Tensor, margin: int | Tensor) -> Tensor:
    """Integers from 0 to `margin`, all equally likely, from uniform numbers in [0, 1)."""
    # In double precision the product of a float32 below 1 stays below margin + 1.
    return (draws.double() * (margin + 1)).long()


def shift_and_flip(images: Tensor, draws: Tensor, pad: int, flip: bool) -> Tensor:
    """Windows of `images` padded by `pad` zeros on every side, of the images' own size.

    The columns of `draws` give the window's first row, its first column, and whether it is
    mirrored.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]])
    >>> shift_and_flip(image, torch.tensor([[0.5, 0.5, 0.0]]), pad=1, flip=True).tolist()
    [[[[2, 1], [4, 3]]]]
    >>> shift_and_flip(image, torch.tensor([[0.0, 0.0, 0.9]]), pad=1, flip=True).tolist()
    [[[[0, 0], [0, 1]]]]
    """
    n, channels, height, width = images.shape
    top, left = crop_offset(draws[:, :2], 2 * pad).unbind(1)
    rows = top[:, None] + torch.arange(height)
    columns = left[:, None] + torch.arange(width)
    if flip:
        columns = torch.where(draws[:, 2:] < 0.5, columns.flip(1), columns)
    padded_width = width + 2 * pad
    pixels = (rows[:, :, None] * padded_width + columns[:, None, :]).view(n, 1, height * width)
    padded = F.pad(images, (pad, pad, pad, pad)).flatten(2)
    return padded.gather(2, pixels.expand(n, channels, -1)).view_as(images)


def inception_boxes(draws: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Top left corners and sizes (n, 2) of boxes in images of one size, and whether each fits.

    The first two columns of `draws` place a box, the pairs behind the third give its area and its
    ratio; the first pair whose box fits counts. With an area of 1 a square image has only one box:

    >>> draws = torch.tensor([[0.3, 0.9, 0.0, *[1.0, 0.5] * 10]])
    >>> [part.tolist() for part in inception_boxes(draws, 28, 28)]
    [[[0, 0]], [[28, 28]], [True]]
    """
    areas, ratios = draws[:, 3:].double().unflatten(1, (_ATTEMPTS, 2)).unbind(2)
    area = (_AREA[0] + (_AREA[1] - _AREA[0]) * areas) * (height * width)
    low, high = map(math.log, _RATIO)
    ratio = torch.exp(low + (high - low) * ratios)
    sizes = torch.stack([(area / ratio).sqrt(), (area * ratio).sqrt()], dim=2).round().long()
    whole = torch.tensor([height, width])
    fitting = ((sizes >= 1) & (sizes <= whole)).all(dim=2)
    first = fitting.int().argmax(dim=1)  # the first of several
    size = sizes[torch.arange(len(draws)), first].minimum(whole)
    return crop_offset(draws[:, :2], whole - size), size, fitting.any(dim=1)


def resize_boxes(images: Tensor, draws: Tensor, flip: bool) -> Tensor:
    """Boxes of `images` by `inception_boxes`, resized to the images' own size and mirrored.

    Where none fits, the whole image is taken. Interpolation is Pillow's bicubic one, without
    rounding.
    """
    height, width = images.shape[2:]
    corners, sizes, fits = inception_boxes(draws, height, width)
    corners = torch.where(fits[:, None], corners, 0)
    sizes = torch.where(fits[:, None], sizes, torch.tensor([height, width]))
    rows, columns = (
        _bicubic_weights(corners[:, axis], sizes[:, axis], length)
        for axis, length in enumerate((height, width))
    )
    if flip:
        columns = torch.where(draws[:, 2, None, None] < 0.5, columns.flip(1), columns)
    resized = rows[:, None] @ images.float() @ columns[:, None].transpose(2, 3)
    return resized.clamp_(0.0, 255.0)  # bicubic interpolation overshoots


def _bicubic_weights(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Weights (n, size, size) of pixels, the columns, in `size` values that span part of them.

    The kernel is Keys' with a = -1/2, as in Pillow. A part is never longer than `size`, so that
    values are interpolated and need not be averaged.
    """
    scale = length[:, None, None] / size
    centres = (torch.arange(size)[:, None] + 0.5) * scale  # within the part
    pixels = torch.arange(size) - start[:, None, None]
    x = (pixels + 0.5 - centres).abs()
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    weights = torch.where(x < 1.0, near, torch.where(x < 2.0, far, 0.0))
    weights = torch.where((pixels >= 0) & (pixels < length[:, None, None]), weights, 0.0)
    return weights / weights.sum(dim=2, keepdim=True)


def crop_image(image: Image, size: int, draws: Tensor | None, crop: CropName) -> Image:
    """A training image of `size` x `size` in colour, cropped according to `draws`.

    Without them it is the evaluation's: the middle of the image, of 224/256 of its shorter side.
    """
    if crop == "inception" and draws is not None:
        corners, sizes, fits = inception_boxes(draws[None], image.height, image.width)
        if fits:
            return _resize_box(image, size, corners[0].tolist(), sizes[0].tolist())
        draws = None
    return _resize_window(image, size, draws, bicubic=crop == "inception")


def _resize_box(image: Image, size: int, corner: list[int], sides: list[int]) -> Image:
    from PIL.Image import Resampling

    wide, high = image.size
    (top, left), (tall, broad) = corner, sides
    # As below, a large JPEG is decoded at a fraction of its size.
    image.draft(None, (2 * size * wide // broad, 2 * size * high // tall))
    image = image.convert("RGB")
    if image.size == (wide, high):  # no pixel outside the box counts
        part = image.crop((left, top, left + broad, top + tall))
        return part.resize((size, size), Resampling.BICUBIC)
    x, y = image.width / wide, image.height / high
    box = (left * x, top * y, (left + broad) * x, (top + tall) * y)
    return image.resize((size, size), Resampling.BICUBIC, box)


def _resize_window(image: Image, size: int, draws: Tensor | None, *, bicubic: bool) -> Image:
    from PIL.Image import Resampling

    shorter = round(size * _SHORTER_SIDE)
    wide, high = (shorter * side // min(image.size) for side in image.size)
    if draws is None:
        left, top = (wide - size) // 2, (high - size) // 2
    else:
        top, left = crop_offset(draws[:2], torch.tensor([high - size, wide - size])).tolist()
    # A JPEG four times as large or more is decoded at half its size or less, which is much
    # faster. Twice the needed size keeps the result close to that of the whole image.
    image.draft(None, (2 * wide, 2 * high))
    image = image.convert("RGB")
    # Scaling only the window gives the same pixels as cropping the scaled image.
    x, y = image.width / wide, image.height / high
    right, bottom = min((left + size) * x, image.width), min((top + size) * y, image.height)
    method = Resampling.BICUBIC if bicubic else Resampling.BILINEAR
    return image.resize((size, size), method, (left * x, top * y, right, bottom))

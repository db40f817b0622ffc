"""Parts of a data set that are held in memory, and the arithmetic of their pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, eq=False)
class ArraySplit:
    """Images held as bytes, cropped and flipped a whole batch at a time.

    Augmentation shifts an image by up to `pad` pixels each way, over black, and, if `flip`, mirrors
    it half of the time.
    """

    images: Tensor  # uint8 (n, channels, height, width)
    labels: Tensor  # int64 (n,)
    mean: Tensor  # float32 (channels,), of bytes
    std: Tensor
    pad: int = 0
    flip: bool = False
    slow = False

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Sequence[int], chances: Tensor | None) -> tuple[Tensor, Tensor]:
        """Standardised images, augmented as `chances` say, and their labels."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        images = self.images[chosen]
        if chances is not None and (self.pad or self.flip):
            images = shifted_and_flipped(images, chances, self.pad, self.flip)
        return standardised(images, self.mean, self.std), self.labels[chosen]


def shifted_and_flipped(images: Tensor, chances: Tensor, pad: int, flip: bool) -> Tensor:
    """Windows of `images` padded by `pad` zeros on every side, of the images' own size.

    The columns of `chances` place the window's first row and column, and decide on the mirror.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]])
    >>> shifted_and_flipped(image, torch.tensor([[0.5, 0.5, 0.0]]), pad=1, flip=True).tolist()
    [[[[2, 1], [4, 3]]]]
    >>> shifted_and_flipped(image, torch.tensor([[0.0, 0.0, 0.9]]), pad=1, flip=True).tolist()
    [[[[0, 0], [0, 1]]]]
    """
    n, channels, height, width = images.shape
    top, left = window(chances[:, :2], 2 * pad).unbind(1)
    rows = top[:, None] + torch.arange(height)
    columns = left[:, None] + torch.arange(width)
    if flip:
        columns = torch.where(mirrored(chances)[:, None], columns.flip(1), columns)
    padded_width = width + 2 * pad
    places = (rows[:, :, None] * padded_width + columns[:, None, :]).view(n, 1, height * width)
    padded = F.pad(images, (pad, pad, pad, pad)).flatten(2)
    return padded.gather(2, places.expand(n, channels, -1)).view_as(images)


def window(chances: Tensor, room: int | Tensor) -> Tensor:
    """Whole numbers from 0 to `room`, all of them equally likely, from uniform ones in [0, 1)."""
    # In double precision the product of a float32 below 1 stays below room + 1.
    return (chances.double() * (room + 1)).long()


def mirrored(chances: Tensor) -> Tensor:
    """Which images are mirrored: half of them."""
    return chances[..., 2] < 0.5


def standardised(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Float32 images less `mean`, over `std`, channel by channel."""
    return images.float().sub_(mean[:, None, None]).div_(std[:, None, None])


def shrunk(images: Tensor, size: int) -> Tensor:
    """Square images of bytes brought to `size` pixels a side, each the mean of a square of theirs.

    >>> shrunk(torch.tensor([[[[1, 3], [5, 7]]]], dtype=torch.uint8), 1)
    tensor([[[[4]]]], dtype=torch.uint8)
    """
    own = images.shape[-1]
    if not 1 <= size <= own or own % size:
        raise ValueError(
            f"An image size of {size} was asked for, but images of {own} x {own} can only be "
            f"brought to a divisor of {own}. Give one, such as {own // 2}."
        )
    pooled = [F.avg_pool2d(some.float(), own // size) for some in images.split(1000)]
    return torch.cat(pooled).round().to(torch.uint8)


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every channel over all images and pixels.

    >>> channel_statistics(torch.tensor([[[[0, 2], [0, 2]]], [[[4, 6], [4, 6]]]]))
    (tensor([3.]), tensor([2.2361]))
    """
    total = torch.zeros(2, images.shape[1], dtype=torch.float64)
    for some in images.split(1000):  # or doubles would take eight times the memory of the bytes
        wide = some.double()
        total += torch.stack([wide.sum(dim=(0, 2, 3)), wide.square().sum(dim=(0, 2, 3))])
    mean, mean_square = total / (images.numel() / images.shape[1])
    std = (mean_square - mean.square()).clamp(min=0).sqrt()
    # A channel that never changes is left as it is, less its mean.
    return mean.float(), std.masked_fill(std == 0, 1.0).float()

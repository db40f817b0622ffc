"""Random images that cost nothing to keep, for benchmarks and tests."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

_PLACES = 2**20
_SHARE = 0.5  # of the class's own pattern in every image of it; the rest is noise


@dataclass(frozen=True, eq=False)
class SyntheticSplit:
    """Images of Gaussian noise, each with a pattern that its class shares.

    A pattern, and the noise of an image, are windows of one long run of random numbers, so that an
    image follows from its index, and a million images take no more memory than one. Every number
    has mean 0 and variance 1.
    """

    shape: tuple[int, int, int]
    num_classes: int
    size: int
    first: int = 0  # number of the first sample: those of two parts differ
    slow = False
    patterns: Tensor = field(init=False, repr=False)
    noise: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        numbers = torch.randn(_PLACES + math.prod(self.shape), generator=generator)
        object.__setattr__(self, "patterns", numbers * _SHARE)
        object.__setattr__(self, "noise", numbers * math.sqrt(1 - _SHARE**2))

    def __len__(self) -> int:
        return self.size

    @property
    def labels(self) -> Tensor:
        """They come in turn."""
        return torch.arange(self.size) % self.num_classes

    def load(self, indices: Sequence[int], chances: Tensor | None) -> tuple[Tensor, Tensor]:
        """Images and labels; labels come in turn, and nothing is left to chance."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        labels = chosen % self.num_classes
        noise = _scattered(chosen + self.first + self.num_classes).tolist()
        patterns = _scattered(labels).tolist()
        size = math.prod(self.shape)
        images = torch.empty(len(chosen), size)
        for image, i, j in zip(images, noise, patterns, strict=True):
            torch.add(self.noise[i : i + size], self.patterns[j : j + size], out=image)
        return images.view(-1, *self.shape), labels


def _scattered(numbers: Tensor) -> Tensor:
    """A place for each number, by a multiplication that takes neighbours far apart."""
    # An odd factor makes this a permutation of the places: up to 2^20 numbers never collide.
    return (numbers * 0x9E3779B1) % _PLACES


def synthetic(description: str) -> tuple[SyntheticSplit, SyntheticSplit]:
    """Training and validation parts for SHAPE[:CLASSES[:SAMPLES]], such as 3x32x32:10:10000.

    There is a tenth as many validation samples beside the training samples.

    >>> train, validation = synthetic("3x8x8:4:100")
    >>> len(train), len(validation), train.load([0, 5], None)[1].tolist()
    (100, 10, [0, 1])
    """
    shape_text, *rest = description.split(":")
    sizes = re.split(r"[x,]", shape_text)
    numbers = [*sizes, *rest]
    positive = all(re.fullmatch("[1-9][0-9]*", number) for number in numbers)
    if len(sizes) != 3 or len(rest) > 2 or not positive:
        raise ValueError(
            f"synthetic:{description} was asked for, but it is synthetic:SHAPE[:CLASSES[:SAMPLES]] "
            "in positive whole numbers, such as synthetic:3x32x32 or synthetic:3x224x224:1000:5000."
        )
    channels, height, width = (int(size) for size in sizes)
    classes, samples = [*map(int, rest), *(10, 10_000)[len(rest) :]]
    shape = (channels, height, width)
    train = SyntheticSplit(shape, classes, samples)
    return train, SyntheticSplit(shape, classes, max(1, samples // 10), first=samples)

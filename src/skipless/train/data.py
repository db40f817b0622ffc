r"""Data sets by name: `load_data("cifar10")` has a training and a validation split.

| name                                     | images                                              |
|------------------------------------------|-----------------------------------------------------|
| `digits`                                 | 8 x 8, grey, 10 classes; comes with scikit-learn    |
| `fashion-mnist`                          | 28 x 28, grey, 10 classes                           |
| `cifar10`                                | 32 x 32, colour, 10 classes                         |
| `imagefolder:PATH`                       | image files PATH/train/CLASS/\*, PATH/val/CLASS/\*  |
| `parquet:PATH`                           | Parquet files PATH/train-\*, PATH/validation-\*     |
| `hf:NAME`                                | a Hugging Face data set, by name or by folder       |
| `synthetic:SHAPE[:CLASSES[:SAMPLES]]`    | random images, such as `synthetic:3x32x32`          |
"""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skipless.files import user_path

from .arrays import cifar10, digits, fashion_mnist
from .crops import DRAWS
from .images import DEFAULT_SIZE, hugging_face, image_folder, parquet
from .settings import CropName

_NOISE_POSITIONS = 2**20
_MOST_PIXELS, _MOST_SIZE = 2**26, 2**13  # of an image, of its sides
_PATTERN_SCALE = 0.5  # of the class's own pattern in each of its images; the rest is noise


class Split(Protocol):
    """The training or the validation part of a data set."""

    @property
    def slow(self) -> bool: ...  # enough for worker processes to help

    @property
    def draws(self) -> int: ...  # how many numbers augment a sample

    @property
    def labels(self) -> Tensor | NDArray[np.int64]: ...  # of all samples, without loading any

    def __len__(self) -> int: ...

    def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
        """Images, float32 (n, channels, height, width), standardised, and labels, int64 (n,).

        `draws`, so many for each, are uniform numbers in [0, 1) that decide on crops and mirrors;
        without them nothing is augmented.
        """
        ...


@dataclass(frozen=True)
class Data:
    """A data set; `shape` is that of a loaded sample: channels, height, width."""

    name: str
    num_classes: int
    shape: tuple[int, int, int]
    train: Split
    validation: Split


@dataclass(frozen=True, eq=False)
class Subset:
    """Some of the samples of a split."""

    whole: Split
    indices: Tensor

    @property
    def slow(self) -> bool:
        return self.whole.slow

    @property
    def draws(self) -> int:
        return self.whole.draws

    @property
    def labels(self) -> Tensor:
        return torch.as_tensor(self.whole.labels)[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.whole.load(self.indices[torch.as_tensor(indices)].tolist(), draws)


def data_names() -> tuple[str, ...]:
    """Every name that `load_data` takes; capitals are placeholders."""
    in_memory = ("digits", "fashion-mnist", "cifar10")
    return (*in_memory, "imagefolder:PATH", "parquet:PATH", "hf:NAME", "synthetic:SHAPE")


def load_data(
    name: str,
    *,
    folder: Path | None = None,
    image_size: int | None = None,
    augment: bool | None = None,
    crop: CropName = "window",
    train_size: int | None = None,
    validation_size: int | None = None,
    held_out: int | None = None,
) -> Data:
    """The data set of that name.

    Args:
        name: One of `data_names()`.
        folder: Where the files of `fashion-mnist` and `cifar10` are; by default $SKIPLESS_DATA,
            ~/.cache/skipless, or where the system keeps them.
        image_size: Side of the window cropped from image files (224 by default); the small data
            sets are averaged down to it.
        augment: Whether training images are shifted and mirrored; by default those of CIFAR-10
            and image files are.
        crop: How they are cropped then: "inception" also turns `augment` on.
        train_size: Keep only so many training samples, always the same ones.
        validation_size: The same for validation.
        held_out: Validate on so many training samples, which are not trained on. So settings can be
            chosen without a look at the images that judge the result.

    >>> data = load_data("digits", train_size=100)
    >>> data.num_classes, data.shape, len(data.train), len(data.validation)
    (10, (1, 8, 8), 100, 360)
    """
    kind, _, rest = name.partition(":")
    _require_known(name, kind, rest)
    if crop == "inception":
        if augment is False:
            raise ValueError(
                "crop inception augments images, but augment is off. Drop one of them."
            )
        augment = True
    _require_applicable(name, kind, folder, image_size, augment)
    size = image_size or DEFAULT_SIZE
    match kind:
        case "digits":
            train, validation = digits(augment, image_size, crop)
        case "fashion-mnist":
            train, validation = fashion_mnist(folder, augment, image_size, crop)
        case "cifar10":
            train, validation = cifar10(folder, augment, image_size, crop)
        case "imagefolder":
            train, validation = image_folder(user_path(rest), size, augment, crop)
        case "parquet":
            train, validation = parquet(user_path(rest), size, augment, crop)
        case "hf":
            train, validation = hugging_face(rest, size, augment, crop)
        case _:
            train, validation = synthetic(rest)
    classes, shape = train.num_classes, train.shape
    if held_out is not None:
        if validation_size is not None:
            raise ValueError("held_out replaces the validation images: leave validation_size out")
        train, validation = _hold_out(train, held_out, train_size, name)
    train_part = _subset(train, train_size, f"train_size of {name}")
    validation_part = _subset(validation, validation_size, f"validation_size of {name}")
    return Data(name, classes, shape, train_part, validation_part)


def _require_known(name: str, kind: str, rest: str) -> None:
    forms = {form.split(":")[0]: form for form in data_names()}
    if (form := forms.get(kind)) is None:
        near = difflib.get_close_matches(kind.lower(), forms, n=1, cutoff=0.5)
        hint = f"Did you mean {forms[near[0]]}? " if near else ""
        raise ValueError(
            f"There is no data set {name!r}. {hint}The names are {', '.join(data_names())}."
        )
    if (":" in form) != bool(rest):
        raise ValueError(f"The data set {kind!r} is named {form}, got {name!r}")


def _require_applicable(
    name: str, kind: str, folder: Path | None, image_size: int | None, augment: bool | None
) -> None:
    if folder is not None and kind not in ("fashion-mnist", "cifar10"):
        raise ValueError(
            f"folder applies only to fashion-mnist and cifar10, got {folder} for {name}"
        )
    if image_size is not None and kind == "synthetic":
        raise ValueError(f"Leave image_size out, got {image_size}: {name} gives the size already")
    if image_size is not None:
        require_image_size(image_size)
    if augment and kind == "synthetic":
        raise ValueError("Synthetic images are random already. Leave augment and crop out.")


def require_image_size(size: int) -> None:
    """Raise unless images can be of `size` x `size` pixels."""
    if not 1 <= size <= _MOST_SIZE:
        raise ValueError(f"image_size must be from 1 to {_MOST_SIZE}, got {size}")


def _subset(split: Split, size: int | None, what: str) -> Split:
    """`size` samples of `split`, the same ones every time."""
    if size is None or size == len(split):
        return split
    if not 0 < size < len(split):
        raise ValueError(f"{what} must be from 1 to {len(split)}, got {size}")
    generator = torch.Generator().manual_seed(0)
    return Subset(split, torch.randperm(len(split), generator=generator)[:size].sort().values)


def _hold_out(train: Split, held_out: int, size: int | None, name: str) -> tuple[Split, Split]:
    """What is left of the training samples, and those held out, the same ones every time.

    With a `size`, the training samples are those that `_subset` chooses without anything held out.
    """
    most = len(train) - (size or 1)
    if not 0 < held_out <= most:
        rest = "" if size is None else f" beside train_size {size}"
        raise ValueError(f"held_out of {name} must be from 1 to {most}{rest}, got {held_out}")
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    kept = order[: len(train) - held_out] if size is None else order[:size]
    return Subset(train, kept.sort().values), Subset(train, order[-held_out:].sort().values)


@dataclass(frozen=True, eq=False)
class SyntheticSplit:
    """Images of Gaussian noise, each with a pattern that its class shares; mean 0, variance 1.

    Noise and patterns are windows of one long row of random numbers, so an image follows from its
    index, and a million images take no more memory than one.
    """

    shape: tuple[int, int, int]
    num_classes: int
    size: int
    first: int  # index of the first sample: those of two splits differ
    patterns: Tensor = field(repr=False)
    noise: Tensor = field(repr=False)
    slow = False
    draws = DRAWS["window"]

    def __len__(self) -> int:
        return self.size

    @property
    def labels(self) -> Tensor:
        return torch.arange(self.size) % self.num_classes

    def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
        """Images and labels; `draws` change nothing."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        labels = chosen % self.num_classes
        starts = _scatter(chosen + self.first + self.num_classes).tolist()
        size = math.prod(self.shape)
        images = torch.empty(len(chosen), size)
        for image, i, j in zip(images, starts, _scatter(labels).tolist(), strict=True):
            torch.add(self.noise[i : i + size], self.patterns[j : j + size], out=image)
        return images.view(-1, *self.shape), labels


def _scatter(numbers: Tensor) -> Tensor:
    """A position for each number; neighbours end up far apart."""
    # An odd factor makes this a permutation: up to 2^20 numbers never collide.
    return (numbers * 0x9E3779B1) % _NOISE_POSITIONS


def synthetic(description: str) -> tuple[SyntheticSplit, SyntheticSplit]:
    """Training split for SHAPE[:CLASSES[:SAMPLES]], and a validation split a tenth of its size.

    >>> train, validation = synthetic("3x8x8:4:100")
    >>> len(train), len(validation), train.load([0, 5], None)[1].tolist()
    (100, 10, [0, 1])
    """
    number = "([1-9][0-9]{0,8})"
    pattern = f"{number}[x,]{number}[x,]{number}(?::{number})?(?::{number})?"
    if (found := re.fullmatch(pattern, description)) is None:
        raise ValueError(
            "Expected synthetic:SHAPE[:CLASSES[:SAMPLES]] in positive integers below 10^9, such as "
            f"synthetic:3x32x32 or synthetic:3x224x224:1000:5000, got synthetic:{description}"
        )
    channels, height, width, *rest = found.groups()
    shape = (int(channels), int(height), int(width))
    if math.prod(shape) > _MOST_PIXELS:
        raise ValueError(
            f"An image must have at most 2^26 numbers in all, got synthetic:{description}"
        )
    classes, samples = int(rest[0] or 10), int(rest[1] or 10_000)
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(_NOISE_POSITIONS + math.prod(shape), generator=generator)
    rows = (numbers * _PATTERN_SCALE, numbers * math.sqrt(1 - _PATTERN_SCALE**2))
    train = SyntheticSplit(shape, classes, samples, 0, *rows)
    return train, SyntheticSplit(shape, classes, max(1, samples // 10), samples, *rows)

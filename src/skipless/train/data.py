r"""Data sets by name: `load_data("cifar10")` has a training part and a validation part.

| name                                     | images                                              |
|------------------------------------------|-----------------------------------------------------|
| `digits`                                 | 8 x 8, grey, 10 classes; comes with scikit-learn    |
| `fashion-mnist`                          | 28 x 28, grey, 10 classes                           |
| `cifar10`                                | 32 x 32, colour, 10 classes                         |
| `imagefolder:PATH`                       | image files PATH/train/CLASS/\*, PATH/val/CLASS/\*  |
| `parquet:PATH`                           | Parquet files PATH/train-\*, PATH/validation-\*     |
| `hf:NAME`                                | a data set of Hugging Face, by name or by folder    |
| `synthetic:SHAPE[:CLASSES[:SAMPLES]]`    | random images, such as `synthetic:3x32x32`          |

Random images that cost nothing to keep, for benchmarks and tests.
"""

from __future__ import annotations

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

from .arrays import cifar10, digits, fashion_mnist
from .images import DEFAULT_SIZE, ImageSplit, hugging_face, image_folder, parquet

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

    def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
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


AUGMENT_DRAWS = 3  # numbers that decide on a sample's augmentation: row, column, mirror
_STANDARD = ("digits", "fashion-mnist", "cifar10")


class Split(Protocol):
    """One part of a data set."""

    @property
    def slow(self) -> bool:
        """Whether loading takes so long that worker processes help."""
        ...

    @property
    def labels(self) -> Tensor | NDArray[np.int64]:
        """The labels of all samples, without loading any."""
        ...

    def __len__(self) -> int: ...

    def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
        """Images, float32 (n, channels, height, width), standardised, and labels, int64 (n,).

        `draws` (n, AUGMENT_DRAWS) are uniform numbers in [0, 1) that decide on crops and mirrors;
        without them nothing is augmented.
        """
        ...


@dataclass(frozen=True)
class Data:
    """A data set; `shape` is that of a sample as delivered: channels, height, width."""

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
    def labels(self) -> Tensor:
        return torch.as_tensor(self.whole.labels)[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.whole.load(self.indices[torch.as_tensor(indices)].tolist(), draws)


def data_names() -> tuple[str, ...]:
    """Every name that `load_data` takes; what is in capitals is to be filled in."""
    return (*_STANDARD, "imagefolder:PATH", "parquet:PATH", "hf:NAME", "synthetic:SHAPE")


def load_data(
    name: str,
    *,
    folder: Path | None = None,
    image_size: int | None = None,
    augment: bool | None = None,
    train_size: int | None = None,
    validation_size: int | None = None,
) -> Data:
    """The data set of that name.

    `folder` is where the files of `fashion-mnist` and `cifar10` are; otherwise they are looked for
    in $SKIPLESS_DATA, in ~/.cache/skipless, and where the system keeps them. `image_size` is the
    side of the window that is taken from image files, and what the small data sets are averaged
    down to. `augment` overrides what is usual: CIFAR-10 and image files are shifted and mirrored,
    the others are not. With `train_size` or
    `validation_size` only so many samples are kept, drawn once and for all.

    >>> data = load_data("digits", train_size=100)
    >>> data.num_classes, data.shape, len(data.train), len(data.validation)
    (10, (1, 8, 8), 100, 360)
    """
    kind, colon, rest = name.partition(":")
    _demand_known(name, kind, bool(colon), rest)
    _demand_fitting(name, kind, folder, image_size, augment)
    if kind in _STANDARD:
        classes, shape, train, validation = _standard(kind, folder, augment, image_size)
    elif kind == "synthetic":
        train, validation = synthetic(rest)
        classes, shape = train.num_classes, train.shape
    else:
        size = image_size or DEFAULT_SIZE
        classes, train, validation = _images(kind, rest, size, augment)
        shape = (3, size, size)
    return Data(
        name,
        classes,
        shape,
        _kept(train, train_size, f"training samples of {name}"),
        _kept(validation, validation_size, f"validation samples of {name}"),
    )


def _standard(
    kind: str, folder: Path | None, augment: bool | None, size: int | None
) -> tuple[int, tuple[int, int, int], Split, Split]:
    match kind:
        case "digits":
            channels, (train, validation) = 1, digits(augment, size)
        case "fashion-mnist":
            channels, (train, validation) = 1, fashion_mnist(folder, augment, size)
        case _:
            channels, (train, validation) = 3, cifar10(folder, augment, size)
    side = train.images.shape[-1]
    return 10, (channels, side, side), train, validation


def _images(
    kind: str, rest: str, size: int, augment: bool | None
) -> tuple[int, ImageSplit, ImageSplit]:
    match kind:
        case "imagefolder":
            return image_folder(Path(rest).expanduser(), size, augment)
        case "parquet":
            return parquet(Path(rest).expanduser(), size, augment)
        case _:
            return hugging_face(rest, size, augment)


def _demand_known(name: str, kind: str, colon: bool, rest: str) -> None:
    forms = {form.split(":")[0]: form for form in data_names()}
    form = forms.get(kind)
    if form is None:
        near = difflib.get_close_matches(kind.lower(), forms, n=1, cutoff=0.5)
        hint = f"Did you mean {forms[near[0]]}? " if near else ""
        raise ValueError(
            f"There is no data set {name!r}. {hint}The names are {', '.join(data_names())}."
        )
    if (":" in form) != bool(colon and rest):
        raise ValueError(f"The data set {name!r} was asked for, but its name has the form {form}.")


def _demand_fitting(
    name: str, kind: str, folder: Path | None, image_size: int | None, augment: bool | None
) -> None:
    """Raise if an option was given that does not belong to this kind of data set."""
    if folder is not None and kind not in ("fashion-mnist", "cifar10"):
        raise ValueError(
            f"The folder {folder} was given for {name}, but only fashion-mnist and cifar10 are "
            "looked for in a folder. Leave it out."
        )
    if image_size is not None and kind == "synthetic":
        raise ValueError(
            f"An image size of {image_size} was asked for, but the name {name} says it already. "
            "Leave it out."
        )
    if image_size is not None and image_size < 1:
        raise ValueError(f"An image size of {image_size} was asked for; give a positive one.")
    if augment and kind == "synthetic":
        raise ValueError("Synthetic images are random already, and not augmented: leave it out.")


def _kept(split: Split, size: int | None, what: str) -> Split:
    """`split`, or `size` of its samples, which are the same ones every time."""
    if size is None or size == len(split):
        return split
    if not 0 < size < len(split):
        raise ValueError(f"{size} {what} were asked for, but there are {len(split)}.")
    generator = torch.Generator().manual_seed(0)
    return Subset(split, torch.randperm(len(split), generator=generator)[:size].sort().values)

"""Parts of a data set that are image files, decoded and cropped when they are asked for.

As in the paper ("a random crop of size 224 x 224 to each image, and a random horizontal flip"), a
training image is scaled until its shorter side is 256, and a window of 224 x 224 is taken from
anywhere in it; a validation image gives its middle. Another size keeps the proportion 256 : 224.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .arrays import mirrored, window

if TYPE_CHECKING:
    from PIL.Image import Image

USUAL_SIZE = 224
_SHORTER_SIDE = 256 / 224  # of the scaled image, in sides of the window
_ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}

# Of ImageNet's training set, as everybody uses them; other photographs are much the same.
_MEAN = np.float32(255) * np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
_STD = np.float32(255) * np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]


class Encoded(Protocol):
    """Image files, one by one, wherever they are kept."""

    def name(self, index: int) -> str:
        """What to call an image when it is damaged."""
        ...

    def file(self, index: int) -> Path | BinaryIO:
        """Where its bytes are."""
        ...


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """Image files with their labels, as windows of `size` x `size` in colour."""

    encoded: Encoded
    labels: NDArray[np.int64]
    size: int = USUAL_SIZE
    augment: bool = False
    slow = True

    @property
    def mean(self) -> Tensor:
        """Of each channel, in bytes: what is subtracted."""
        return torch.from_numpy(_MEAN).flatten()

    @property
    def std(self) -> Tensor:
        """Of each channel, in bytes: what is divided by."""
        return torch.from_numpy(_STD).flatten()

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Sequence[int], chances: Tensor | None) -> tuple[Tensor, Tensor]:
        """Standardised windows, placed and mirrored as `chances` say, and their labels."""
        images = np.empty((len(indices), 3, self.size, self.size), dtype=np.float32)
        free = chances if self.augment else None
        for place, index in enumerate(indices):
            pixels = self._window(index, None if free is None else free[place])
            # Image by image, while its pixels are still close at hand.
            np.subtract(pixels.transpose(2, 0, 1), _MEAN, out=images[place])
            images[place] /= _STD
        return torch.from_numpy(images), torch.from_numpy(self.labels[np.asarray(indices)])

    def _window(self, index: int, chances: Tensor | None) -> NDArray[np.uint8]:
        from PIL import Image

        file = self.encoded.file(index)
        try:
            with Image.open(file) as image:
                pixels = np.asarray(cropped(image, self.size, chances))
        except Exception as error:  # Pillow's own, and whatever damaged bytes make of its readers
            raise ValueError(
                f"{self.encoded.name(index)} cannot be read as an image: {error}. Put a whole one "
                "in its place, or delete it."
            ) from None
        return pixels if chances is None or not mirrored(chances) else pixels[:, ::-1]


def cropped(image: Image, size: int, chances: Tensor | None) -> Image:
    """A window of `size` x `size` of the image, scaled until its shorter side is 256/224 `size`.

    The first two of `chances`, in [0, 1), place it; without them it is in the middle.
    """
    from PIL.Image import Resampling

    shorter = round(size * _SHORTER_SIDE)
    wide, high = (shorter * side // min(image.size) for side in image.size)
    if chances is None:
        left, top = (wide - size) // 2, (high - size) // 2
    else:
        top, left = window(chances[:2], torch.tensor([high - size, wide - size])).tolist()
    # A JPEG of four times that size or more is decoded at half of its own, or less, which is far
    # quicker. To be left with twice what is needed keeps the result close to that of the whole.
    image.draft(None, (2 * wide, 2 * high))
    image = image.convert("RGB")
    # Scaling only what the window shows gives the same pixels as cutting it out afterwards.
    x, y = image.width / wide, image.height / high
    right, bottom = min((left + size) * x, image.width), min((top + size) * y, image.height)
    return image.resize((size, size), Resampling.BILINEAR, (left * x, top * y, right, bottom))


@dataclass(frozen=True)
class Files:
    """Image files under a folder."""

    folder: Path
    names: tuple[str, ...]

    def name(self, index: int) -> str:
        return str(self.file(index))

    def file(self, index: int) -> Path:
        return self.folder / self.names[index]


def image_folder(path: Path, size: int, augment: bool | None) -> tuple[int, ImageSplit, ImageSplit]:
    """Number of classes, training and validation part of PATH/train/CLASS/* and PATH/val/CLASS/*.

    Classes are numbered in the order of their names in the training part.
    """
    demand_pillow()
    held_out = next((path / name for name in ("val", "validation") if (path / name).is_dir()), None)
    train = path / "train"
    if not train.is_dir() or held_out is None:
        missing = path / "val" if train.is_dir() else train
        raise FileNotFoundError(
            f"An image folder was asked for, but there is no {missing}. "
            f"Put one folder for each class, with its images, into {train} and {path / 'val'}."
        )
    classes = sorted(entry.name for entry in train.iterdir() if entry.is_dir())
    strange = sorted({entry.name for entry in held_out.iterdir() if entry.is_dir()} - set(classes))
    if strange:
        raise ValueError(
            f"{held_out / strange[0]} is the folder of a class that {train} does not have. Train "
            "on that class too, or delete the folder."
        )
    return (
        len(classes),
        _listed(train, classes, size, augment is not False, every_class=True),
        _listed(held_out, classes, size, False, every_class=False),
    )


def _listed(
    folder: Path, classes: list[str], size: int, augment: bool, every_class: bool
) -> ImageSplit:
    names: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = list(_images_under(folder / name))
        if every_class and not found:
            raise FileNotFoundError(
                f"{folder / name} holds no images. Put some there, or delete the folder."
            )
        names += (os.path.relpath(file, folder) for file in found)
        labels += [label] * len(found)
    if not names:
        raise FileNotFoundError(
            f"{folder} holds no images. Put one folder for each class there, with its images: "
            f"files that end in {', '.join(sorted(_ENDINGS))}."
        )
    return ImageSplit(Files(folder, tuple(names)), np.array(labels), size, augment)


def _images_under(folder: Path) -> Iterator[str]:
    """Image files at any depth, in an order that does not depend on the file system."""
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        for file in sorted(files):
            # A name with a dot in front is a file that some file system hides beside the image.
            if Path(file).suffix.lower() in _ENDINGS and not file.startswith("."):
                yield str(Path(parent, file))


def demand_pillow() -> None:
    """Raise if image files cannot be decoded here."""
    try:
        import PIL.Image  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "Image files are decoded by Pillow, which is not installed: "
            "pip install 'skipless[train]'"
        ) from None

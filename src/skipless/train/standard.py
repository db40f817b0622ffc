"""The small data sets that everybody knows: digits, Fashion-MNIST, CIFAR-10; each in memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from .arrays import ArraySplit, channel_statistics, shrunk
from .formats import Bytes, Labelled, read_cifar, read_idx
from .places import CIFAR10, CIFAR10_PARTS, FASHION_MNIST, Place

T = TypeVar("T")
DIGITS_FILE = "datasets/data/digits.csv.gz"
DIGITS_ORDER = Path(__file__).with_name("digits_order.txt")  # in training, then in validation
DIGITS_TRAIN = 1_437
FASHION_MNIST_TRAIN, FASHION_MNIST_TEST = 60_000, 10_000  # images


@dataclass(frozen=True)
class Augmentation:
    """How far images are shifted, whether they are mirrored, and whether that is usual."""

    pad: int
    flip: bool
    usual: bool


def digits(augment: bool | None, size: int | None = None) -> tuple[ArraySplit, ArraySplit]:
    """1,437 training and 360 validation images of 8 x 8 handwritten digits, from scikit-learn.

    The validation part holds a fifth of every class, drawn once and for all: by scikit-learn's
    `train_test_split`, stratified, with `random_state=0`.
    """
    images, numbers = _handwritten()
    order = np.array(DIGITS_ORDER.read_text(encoding="ascii").split(), dtype=np.int64)
    train, validation = np.split(order, [DIGITS_TRAIN])
    return _splits(
        (images[train], numbers[train]),
        (images[validation], numbers[validation]),
        Augmentation(pad=1, flip=False, usual=False),  # a mirrored digit is none
        augment,
        size,
    )


def _handwritten() -> Labelled:
    """All digits, from scikit-learn's file: to import it takes longer than to train on them."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            "digits come with scikit-learn, which is not installed: pip install 'skipless[train]'"
        )
    file = Path(found.origin).parent / DIGITS_FILE
    if file.exists():
        table = np.loadtxt(file, dtype=np.uint8, delimiter=",")
        pixels, labels = table[:, :-1], table[:, -1]
    else:  # scikit-learn does not promise where it is
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
    images = np.asarray(pixels, dtype=np.uint8).reshape(-1, 1, 8, 8)  # 17 shades of grey
    return images, np.asarray(labels, dtype=np.int64)


def fashion_mnist(
    folder: Path | None, augment: bool | None, size: int | None = None
) -> tuple[ArraySplit, ArraySplit]:
    """60,000 training and 10,000 validation images of 28 x 28 pieces of clothing."""
    there = FASHION_MNIST.folder(folder)
    arrays = [_read(FASHION_MNIST, there, file, folder, read_idx) for file in FASHION_MNIST.files]
    return _splits(
        _clothing(arrays[:2], FASHION_MNIST_TRAIN, f"The train files in {there}", folder),
        _clothing(arrays[2:], FASHION_MNIST_TEST, f"The t10k files in {there}", folder),
        Augmentation(pad=4, flip=True, usual=False),
        augment,
        size,
    )


def _clothing(arrays: list[Bytes], count: int, files: str, given: Path | None) -> Labelled:
    images, labels = arrays
    if labels.shape != (count,) or images.shape != (count, 28, 28):
        found = f"images of shape {images.shape} and labels of shape {labels.shape}"
    elif labels.max() > 9:
        found = f"the label {labels.max()}"
    else:
        return images[:, None], labels.astype(np.int64)
    raise ValueError(
        f"{files} hold {found}, not {count} images of 28 x 28 with as many labels from 0 to 9. "
        f"Repair them: {FASHION_MNIST.command(given)}"
    )


def cifar10(
    folder: Path | None, augment: bool | None, size: int | None = None
) -> tuple[ArraySplit, ArraySplit]:
    """50,000 training and 10,000 validation images of 32 x 32 in colour."""
    there = CIFAR10.folder(folder)
    batches = [_read(CIFAR10, there, file, folder, read_cifar) for file in CIFAR10_PARTS]
    images, labels = zip(*batches[:-1], strict=True)
    return _splits(
        (np.concatenate(images), np.concatenate(labels)),
        batches[-1],
        Augmentation(pad=4, flip=True, usual=True),
        augment,
        size,
    )


def _read(
    place: Place, folder: Path, name: str, given: Path | None, reader: Callable[[Path], T]
) -> T:
    path = place.file(folder, name, given)
    try:
        return reader(path)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}. Repair it: {place.command(given)}") from None


def _splits(
    train: Labelled,
    validation: Labelled,
    augmentation: Augmentation,
    augment: bool | None,
    size: int | None,
) -> tuple[ArraySplit, ArraySplit]:
    images, held_out = (torch.from_numpy(part[0]) for part in (train, validation))
    labels, held_out_labels = (torch.from_numpy(part[1]) for part in (train, validation))
    on = augmentation.usual if augment is None else augment
    pad, flip = (augmentation.pad, augmentation.flip) if on else (0, False)
    if size is not None:
        pad = round(pad * size / images.shape[-1])
        images, held_out = shrunk(images, size), shrunk(held_out, size)
    mean, std = channel_statistics(images)
    return (
        ArraySplit(images, labels, mean, std, pad, flip),
        ArraySplit(held_out, held_out_labels, mean, std),
    )

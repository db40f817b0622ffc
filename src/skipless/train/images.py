"""Image files, Parquet files and Hugging Face data sets, decoded and cropped on demand.

As in the paper ("a random crop of size 224 x 224 to each image, and a random horizontal flip"), a
training image is cropped and mirrored at random (see `crops`). For validation it is scaled so that
its shorter side is 256, and its centre of 224 x 224 is taken; other sizes keep that proportion.

Parquet can only be read a hundred images or more at a time, but training reads them in random
order: Hugging Face's `datasets` converts the files once to others that can be mapped into memory,
in a process of its own (`conversion`).
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skipless._install import not_installed
from skipless.files import leads_out, open_regular, real_path

from .conversion import convert
from .crops import DRAWS, crop_image
from .settings import CropName

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

DEFAULT_SIZE = 224
_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}
# Pillow opens others too, whatever the name says, and reads PostScript by running Ghostscript.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "PPM", "TIFF")
_MOST_PIXELS = 89_478_485  # from which on Pillow warns of a bomb
_MOST_CLASSES = 1_000_000
_HELD_OUT = ("validation", "val", "valid", "test")

# Of ImageNet's training set, as is usual; other photographs are similar.
_MEAN = np.float32(255) * np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
_STD = np.float32(255) * np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """Encoded images with their labels, as windows of `size` x `size` in colour."""

    source: ImageFiles | TableRows
    labels: NDArray[np.int64]
    size: int = DEFAULT_SIZE
    augment: bool = False
    crop: CropName = "window"
    slow = True
    mean = torch.from_numpy(_MEAN).flatten()  # subtracted from each channel, in bytes
    std = torch.from_numpy(_STD).flatten()  # divides each channel

    @property
    def draws(self) -> int:
        return DRAWS[self.crop]

    @property
    def num_classes(self) -> int:
        return int(self.labels.max()) + 1

    @property
    def shape(self) -> tuple[int, int, int]:
        return (3, self.size, self.size)

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
        """Standardised windows, cropped and mirrored according to `draws`, and their labels."""
        images = np.empty((len(indices), 3, self.size, self.size), dtype=np.float32)
        draws = draws if self.augment else None
        for place, index in enumerate(indices):
            pixels = self._decode(index, None if draws is None else draws[place])
            # Image by image, while its pixels are still in the cache.
            np.subtract(pixels.transpose(2, 0, 1), _MEAN, out=images[place])
            images[place] /= _STD
        return torch.from_numpy(images), torch.from_numpy(self.labels[np.asarray(indices)])

    def _decode(self, index: int, draws: Tensor | None) -> NDArray[np.uint8]:
        from PIL import Image

        name, file = self.source.file(index)
        try:
            if isinstance(file, Path):
                file = open(file, "rb", opener=open_regular)  # noqa: SIM115 - closed by the next
            with file, Image.open(file, formats=_FORMATS) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise ValueError(f"it has more than {_MOST_PIXELS:,} pixels")
                pixels = np.asarray(crop_image(image, self.size, draws, self.crop))
        except Exception as error:  # Pillow's own, and whatever its readers raise on damaged bytes
            raise ValueError(
                f"{name} cannot be read as an image: {error}. Replace it, or delete it."
            ) from None
        return pixels if draws is None or draws[2] >= 0.5 else pixels[:, ::-1]


@dataclass(frozen=True)
class ImageFiles:
    """Image files under a folder."""

    folder: Path
    names: tuple[str, ...]

    def file(self, index: int) -> tuple[str, Path]:
        """What an error calls the file, and the file."""
        path = self.folder / self.names[index]
        return str(path), path


def image_folder(
    path: Path, size: int, augment: bool | None, crop: CropName = "window"
) -> tuple[ImageSplit, ImageSplit]:
    """Training and validation split of PATH/train/CLASS/* and PATH/val/CLASS/*, classes by name."""
    _require_pillow()
    train, held_out = path / "train", path / "val"
    if not held_out.is_dir() and (path / "validation").is_dir():
        held_out = path / "validation"
    for folder in (train, held_out):
        _require_inside(folder, path)
        if not folder.is_dir():
            raise FileNotFoundError(
                f"There is no {folder}. An image folder has one folder of images for each class in "
                f"{train} and {path / 'val'}."
            )
    classes, others = (
        sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        for folder in (train, held_out)
    )
    if unknown := [name for name in others if name not in classes]:
        raise ValueError(
            f"{held_out / unknown[0]} is a class that {train} does not have. Add it there, or "
            "delete the folder."
        )
    training = _folder_split(path, train, classes, size, augment is not False, crop)
    return training, _folder_split(path, held_out, classes, size, False, crop)


def _folder_split(
    top: Path, folder: Path, classes: list[str], size: int, augment: bool, crop: CropName
) -> ImageSplit:
    real = Path(os.path.realpath(top))
    found = ((folder / name, {str(real)}) for name in classes)
    files = [list(_images_under(own, real, above)) if own.exists() else [] for own, above in found]
    if not any(files) or ([] in files and folder.name == "train"):
        empty = folder / classes[files.index([])] if any(files) else folder
        raise FileNotFoundError(
            f"{empty} holds no images. Each class needs a folder of files that end in "
            f"{', '.join(sorted(_SUFFIXES))}; delete the folders of others."
        )
    names = tuple(os.path.relpath(file, folder) for own in files for file in own)
    labels = np.repeat(np.arange(len(classes)), [len(own) for own in files])
    return ImageSplit(ImageFiles(folder, names), labels, size, augment, crop)


def _images_under(folder: Path, top: Path, above: set[str]) -> Iterator[str]:
    """Image files at any depth, in an order that does not depend on the file system.

    Links are followed within `top`, but not into the folders `above`.
    """
    _require_inside(folder, top)
    if (real := os.path.realpath(folder)) in above:
        raise ValueError(f"{folder} is a link to a folder that holds it. Delete it.")
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        # A leading dot marks a file that some file systems hide beside the image.
        image = Path(entry.name).suffix.lower() in _SUFFIXES and not entry.name.startswith(".")
        if not image or entry.is_dir():
            continue
        if entry.is_symlink():
            _require_inside(Path(entry.path), top)
        if not entry.is_file():
            raise ValueError(f"{entry.path} is not a regular file. Delete it.")
        yield entry.path
    for entry in found:
        if entry.is_dir():
            yield from _images_under(Path(entry.path), top, above | {real})


def _require_inside(path: Path, top: Path) -> None:
    if leads_out(path, top):
        raise ValueError(
            f"{path} is a link to {real_path(path)}, and only what is in {top} is read. Copy it "
            "there, or name the folder that holds all images."
        )


@dataclass(frozen=True, eq=False)
class TableRows:
    """Image files in the rows of a table, as bytes or as paths."""

    table: Dataset  # of one column
    column: str
    title: str

    def file(self, index: int) -> tuple[str, Path | BinaryIO]:
        image: dict[str, bytes | str | None] = self.table[index][self.column] or {}
        content, path = image.get("bytes"), image.get("path")
        if content is None and path is None:
            raise ValueError(f"{self.title}, row {index}, has no image. Choose another data set.")
        file = io.BytesIO(content) if isinstance(content, bytes) else Path(str(path))
        return f"{self.title}, row {index},", file


def parquet(
    path: Path, size: int, augment: bool | None, crop: CropName = "window"
) -> tuple[ImageSplit, ImageSplit]:
    """Training and validation split of train-*.parquet and validation-*.parquet, or under data/."""
    files = {}
    for part, names in (("train", ("train",)), ("validation", _HELD_OUT)):
        for folder, name in ((f, n) for n in names for f in (path, path / "data")):
            found = sorted(str(file) for file in folder.glob(f"{name}-*.parquet") if file.is_file())
            if found:
                files[part] = found
                break
        else:
            raise FileNotFoundError(
                f"There is no {path / f'{part}-*.parquet'}. Name a folder with files such as "
                "train-00000-of-00294.parquet and validation-00000-of-00014.parquet."
            )
    load = partial(_load_converted, "parquet", files)
    return _table_splits(load, f"The Parquet files in {path}", str(path), size, augment, crop)


def hugging_face(
    name: str, size: int, augment: bool | None, crop: CropName = "window"
) -> tuple[ImageSplit, ImageSplit]:
    """Training and validation split of a data set on the hub, in a folder, or saved to disk."""
    library = _require_datasets()
    saved = Path(name, "dataset_dict.json").is_file()
    load = partial(library.load_from_disk if saved else _load_converted, name)
    return _table_splits(load, f"The data set {name!r}", name, size, augment, crop)


def _load_converted(name: str, files: Mapping[str, Sequence[str]] | None = None) -> object:
    """A data set of the library, once another process has read its files."""
    library = _require_datasets()
    from datasets import config

    cache = str(config.HF_DATASETS_CACHE)
    convert(name, files, cache)
    return library.load_dataset(name, data_files=files, cache_dir=cache)


def _table_splits(
    load: Callable[[], object],
    what: str,
    title: str,
    size: int,
    augment: bool | None,
    crop: CropName,
) -> tuple[ImageSplit, ImageSplit]:
    # They log what they raise; the hub warns at each of its retries.
    loggers = [logging.getLogger(library) for library in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        tables = cast("DatasetDict", load())
    except Exception as error:  # of the library, of the network, or of its readers
        cause = error.__cause__ or error  # the library wraps what its readers say
        reason = " ".join(str(cause).split()).rstrip(".") or type(cause).__name__
        raise ValueError(
            f"{what} cannot be loaded by the library datasets: {reason}. Check the name and the "
            "network, or download a damaged file again."
        ) from None
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    held_out = next((name for name in _HELD_OUT if name in tables), None)
    if "train" not in tables or held_out is None:
        raise ValueError(
            f"{title} has the splits {', '.join(map(str, tables)) or 'none'}; training needs "
            f"train and one of {', '.join(_HELD_OUT)}. Choose another data set."
        )
    train = _table_split(tables["train"], f"{title}, train", size, augment is not False, crop)
    validation = _table_split(tables[held_out], f"{title}, {held_out}", size, False, crop)
    if validation.num_classes > train.num_classes:
        raise ValueError(
            f"{title} has the label {validation.num_classes - 1} in {held_out}, but no more than "
            f"{train.num_classes - 1} in train. Choose splits with the same classes."
        )
    return train, validation


def _table_split(
    table: Dataset, title: str, size: int, augment: bool, crop: CropName
) -> ImageSplit:
    from datasets import Image

    columns = table.column_names
    names = (("image", "img"), ("label", "labels", "fine_label"))
    image, label = (next((name for name in some if name in columns), None) for some in names)
    if image is None or label is None:
        needed = " and ".join(f"one of {', '.join(some)}" for some in names)
        raise ValueError(
            f"{title} has the columns {', '.join(columns)}; it needs {needed}. Rename them."
        )
    found = np.asarray(table.with_format("numpy")[label][:])
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ValueError(f"{title} has labels that are not integers, or missing. Choose another.")
    labels = found.astype(np.int64)
    if not len(labels) or labels.min() < 0 or labels.max() >= _MOST_CLASSES:
        raise ValueError(
            f"{title} has no images, some without a label (-1), or a label of {_MOST_CLASSES:,} or "
            "more. Choose another."
        )
    try:
        undecoded = table.select_columns([image]).cast_column(image, Image(decode=False))
    except Exception as error:  # of Arrow
        raise ValueError(
            f"{title} has no images in its column {image!r} ({' '.join(str(error).split())[:200]})."
            " Choose another."
        ) from None
    return ImageSplit(TableRows(undecoded, image, title), labels, size, augment, crop)


def _require_datasets():
    _require_pillow()
    try:
        import datasets
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            not_installed("Data of parquet: or hf:", "datasets", "datasets")
        ) from None
    return datasets


def _require_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError(not_installed("Reading image files", "Pillow", "train")) from None

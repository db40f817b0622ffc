"""Parts of a data set that are image files, decoded and cropped when they are asked for.

As in the paper ("a random crop of size 224 x 224 to each image, and a random horizontal flip"), a
training image is scaled until its shorter side is 256, and a window of 224 x 224 is taken from
anywhere in it; a validation image gives its middle. Another size keeps the proportion 256 : 224.

Images in Parquet files, or in any data set of the Hugging Face `datasets` library.

Both are opened by that library, which once turns Parquet into files that can be mapped into memory:
a Parquet file itself can only be read a hundred images or more at a time, and training reads them
in random order.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .arrays import crop_offset, is_flipped

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT_SIZE = 224
_SHORTER_SIDE = 256 / 224  # of the scaled image, in sides of the window
_ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}

# Of ImageNet's training set, as everybody uses them; other photographs are much the same.
_MEAN = np.float32(255) * np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
_STD = np.float32(255) * np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]


class ImageSource(Protocol):
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

    source: ImageSource
    labels: NDArray[np.int64]
    size: int = DEFAULT_SIZE
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

    def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
        """Standardised windows, placed and mirrored as `draws` say, and their labels."""
        images = np.empty((len(indices), 3, self.size, self.size), dtype=np.float32)
        free = draws if self.augment else None
        for place, index in enumerate(indices):
            pixels = self._window(index, None if free is None else free[place])
            # Image by image, while its pixels are still close at hand.
            np.subtract(pixels.transpose(2, 0, 1), _MEAN, out=images[place])
            images[place] /= _STD
        return torch.from_numpy(images), torch.from_numpy(self.labels[np.asarray(indices)])

    def _window(self, index: int, draws: Tensor | None) -> NDArray[np.uint8]:
        from PIL import Image

        file = self.source.file(index)
        try:
            with Image.open(file) as image:
                pixels = np.asarray(crop(image, self.size, draws))
        except Exception as error:  # Pillow's own, and whatever damaged bytes make of its readers
            raise ValueError(
                f"{self.source.name(index)} cannot be read as an image: {error}. Put a whole one "
                "in its place, or delete it."
            ) from None
        return pixels if draws is None or not is_flipped(draws) else pixels[:, ::-1]


def crop(image: Image, size: int, draws: Tensor | None) -> Image:
    """A window of `size` x `size` of the image, scaled until its shorter side is 256/224 `size`.

    The first two of `draws`, in [0, 1), place it; without them it is in the middle.
    """
    from PIL.Image import Resampling

    shorter = round(size * _SHORTER_SIDE)
    wide, high = (shorter * side // min(image.size) for side in image.size)
    if draws is None:
        left, top = (wide - size) // 2, (high - size) // 2
    else:
        top, left = crop_offset(draws[:2], torch.tensor([high - size, wide - size])).tolist()
    # A JPEG of four times that size or more is decoded at half of its own, or less, which is far
    # quicker. To be left with twice what is needed keeps the result close to that of the whole.
    image.draft(None, (2 * wide, 2 * high))
    image = image.convert("RGB")
    # Scaling only what the window shows gives the same pixels as cutting it out afterwards.
    x, y = image.width / wide, image.height / high
    right, bottom = min((left + size) * x, image.width), min((top + size) * y, image.height)
    return image.resize((size, size), Resampling.BILINEAR, (left * x, top * y, right, bottom))


@dataclass(frozen=True)
class ImageFiles:
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
    require_pillow()
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
    return ImageSplit(ImageFiles(folder, tuple(names)), np.array(labels), size, augment)


def _images_under(folder: Path) -> Iterator[str]:
    """Image files at any depth, in an order that does not depend on the file system."""
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        for file in sorted(files):
            # A name with a dot in front is a file that some file system hides beside the image.
            if Path(file).suffix.lower() in _ENDINGS and not file.startswith("."):
                yield str(Path(parent, file))


def require_pillow() -> None:
    """Raise if image files cannot be decoded here."""
    try:
        import PIL.Image  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "Image files are decoded by Pillow, which is not installed: "
            "pip install 'skipless[train]'"
        ) from None


if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

_HELD_OUT = ("validation", "val", "valid", "test")
_IMAGES = ("image", "img")
_LABELS = ("label", "labels", "fine_label")


@dataclass(frozen=True, eq=False)
class TableRows:
    """Image files in the rows of a table: its bytes, or a path where there are none."""

    table: Dataset  # of one column
    column: str
    title: str

    def name(self, index: int) -> str:
        return f"{self.title}, row {index},"

    def file(self, index: int) -> Path | BinaryIO:
        image: dict[str, bytes | str | None] = self.table[index][self.column]
        content = image["bytes"]
        return io.BytesIO(content) if isinstance(content, bytes) else Path(str(image["path"]))


def parquet(path: Path, size: int, augment: bool | None) -> tuple[int, ImageSplit, ImageSplit]:
    """Number of classes, training and validation part of the Parquet files in a folder.

    They are called train-*.parquet and validation-*.parquet, as those of ImageNet are, and lie in
    the folder or in its subfolder `data`.
    """
    load_dataset = _library().load_dataset
    files = {}
    for part, names in (("train", ("train",)), ("validation", _HELD_OUT)):
        for folder, name in ((f, n) for n in names for f in (path, path / "data")):
            if found := sorted(str(file) for file in folder.glob(f"{name}-*.parquet")):
                files[part] = found
                break
        else:
            raise FileNotFoundError(
                f"Parquet files were asked for, but there is no {path / f'{part}-*.parquet'}. Name "
                "the folder that holds files such as train-00000-of-00294.parquet and "
                "validation-00000-of-00014.parquet."
            )
    try:
        tables = load_dataset("parquet", data_files=files)
    except Exception as error:  # of that library, or of the readers beneath it
        raise ValueError(_not_loaded(f"The Parquet files in {path}", error)) from None
    return _parts(cast("DatasetDict", tables), str(path), size, augment)


def hugging_face(name: str, size: int, augment: bool | None) -> tuple[int, ImageSplit, ImageSplit]:
    """Number of classes, training and validation part of a data set of Hugging Face.

    `name` is a name on their hub, or a folder, as `save_to_disk` writes it or of files.
    """
    library = _library()
    saved = Path(name, "dataset_dict.json").is_file()
    try:
        with _quiet_hub():
            tables = library.load_from_disk(name) if saved else library.load_dataset(name)
    except Exception as error:  # of that library, of the network, or of the readers beneath
        raise ValueError(_not_loaded(f"The data set {name!r}", error)) from None
    return _parts(cast("DatasetDict", tables), name, size, augment)


def _library():
    require_pillow()
    try:
        import datasets
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "parquet: and hf: are read by the library datasets, which is not installed: "
            "pip install 'skipless[datasets]'"
        ) from None
    return datasets


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Keeps to itself what the hub's library warns of at every attempt; an error says it all.

    How often it tries cannot be set.
    """
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _not_loaded(what: str, error: Exception) -> str:
    cause = error.__cause__ or error  # the library wraps what its readers say
    reason = " ".join(str(cause).split()) or type(cause).__name__
    return (
        f"{what} could not be loaded by the library datasets: {reason}. Check the name and the "
        "network, or fetch a damaged file anew."
    )


def _parts(
    tables: DatasetDict, title: str, size: int, augment: bool | None
) -> tuple[int, ImageSplit, ImageSplit]:
    held_out = next((name for name in _HELD_OUT if name in tables), None)
    if "train" not in tables or held_out is None:
        raise ValueError(
            f"{title} has the parts {', '.join(map(str, tables)) or 'none'}, but training needs "
            f"train and one of {', '.join(_HELD_OUT)}. Choose a data set that has them."
        )
    train = _part(tables["train"], f"{title}, train", size, augment is not False)
    validation = _part(tables[held_out], f"{title}, {held_out}", size, False)
    classes = int(train.labels.max()) + 1
    if validation.labels.max() >= classes:
        raise ValueError(
            f"{title} has the label {validation.labels.max()} in {held_out}, but no more than "
            f"{classes - 1} in train. Choose a data set whose parts have the same classes."
        )
    return classes, train, validation


def _part(table: Dataset, title: str, size: int, augment: bool) -> ImageSplit:
    from datasets import Image

    columns = table.column_names
    image = next((name for name in _IMAGES if name in columns), None)
    label = next((name for name in _LABELS if name in columns), None)
    if image is None or label is None:
        raise ValueError(
            f"{title} has the columns {', '.join(columns)}, but one of {', '.join(_IMAGES)} and "
            f"one of {', '.join(_LABELS)} are needed. Rename them first."
        )
    labels = np.asarray(table.with_format("numpy")[label][:], dtype=np.int64)
    if not len(labels) or labels.min() < 0:
        raise ValueError(
            f"{title} holds no images, or some without a label (-1). Choose parts with labels."
        )
    undecoded = table.select_columns([image]).cast_column(image, Image(decode=False))
    return ImageSplit(TableRows(undecoded, image, title), labels, size, augment)

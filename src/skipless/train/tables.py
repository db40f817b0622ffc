"""Images in Parquet files, or in any data set of the Hugging Face `datasets` library.

Both are opened by that library, which once turns Parquet into files that can be mapped into memory:
a Parquet file itself can only be read a hundred images or more at a time, and training reads them
in random order.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np

from .images import ImageSplit, demand_pillow

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

_HELD_OUT = ("validation", "val", "valid", "test")
_IMAGES = ("image", "img")
_LABELS = ("label", "labels", "fine_label")


@dataclass(frozen=True, eq=False)
class Rows:
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
    demand_pillow()
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
    return ImageSplit(Rows(undecoded, image, title), labels, size, augment)

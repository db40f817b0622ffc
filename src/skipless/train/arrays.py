"""Data sets held in memory: digits, Fashion-MNIST and CIFAR-10, with their files and augmentation.

A reader's `ValueError` says what is wrong with a file; `DataFiles.read` adds the file's name and
the command that repairs it.
"""

import gzip
import importlib.util
import io
import os
import pickle
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from skipless._install import not_installed
from skipless.files import read_bytes, user_path

from .crops import DRAWS, resize_boxes, shift_and_flip
from .settings import CropName

T = TypeVar("T")
Bytes = NDArray[np.uint8]
Labelled = tuple[Bytes, NDArray[np.int64]]

CACHE = Path("~/.cache/skipless")
DIGITS_FILE = "datasets/data/digits.csv.gz"
# Training, then validation images: stratified by `train_test_split` with `random_state=0`.
DIGITS_ORDER = Path(__file__).with_name("digits_order.txt")
DIGITS_TRAIN = 1_437
FASHION_MNIST_TRAIN, FASHION_MNIST_TEST = 60_000, 10_000  # images
CIFAR10_BATCH = 10_000  # images in each of the six files
_CIFAR10_RECORD = 1 + 3 * 32 * 32  # bytes of a label and an image
_MOST_BYTES = 50_000_000  # of a file, unpacked: the largest has 47,040,016


@dataclass(frozen=True, eq=False)
class ArraySplit:
    """Images held as bytes, cropped and flipped a whole batch at a time."""

    images: Tensor  # uint8 (n, channels, height, width)
    labels: Tensor  # int64 (n,)
    mean: Tensor  # float32 (channels,), of bytes
    std: Tensor
    pad: int = 0  # by which images are shifted each way at most, over black
    flip: bool = False  # whether half of them are mirrored
    crop: CropName = "window"  # or boxes of Inception instead of shifts
    slow = False
    num_classes = 10

    @property
    def draws(self) -> int:
        return DRAWS[self.crop]

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
        """Standardised images, augmented according to `draws`, and their labels."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        images = self.images[chosen]
        if draws is not None and self.crop == "inception":
            images = resize_boxes(images, draws, self.flip)
        elif draws is not None and (self.pad or self.flip):
            images = shift_and_flip(images, draws, self.pad, self.flip)
        images = images.float().sub_(self.mean[:, None, None]).div_(self.std[:, None, None])
        return images, self.labels[chosen]


Splits = tuple[ArraySplit, ArraySplit]  # for training and validation


def digits(augment: bool | None, size: int | None, crop: CropName = "window") -> Splits:
    """1,437 training and 360 validation images of 8 x 8 handwritten digits, from scikit-learn."""
    images, labels = _read_digits()
    order = np.array(DIGITS_ORDER.read_text(encoding="ascii").split(), dtype=np.int64)
    train, validation = ((images[i], labels[i]) for i in np.split(order, [DIGITS_TRAIN]))
    # A mirrored digit is no digit.
    return _splits(train, validation, 1 if augment else 0, False, size, crop)


def fashion_mnist(
    folder: Path | None, augment: bool | None, size: int | None, crop: CropName = "window"
) -> Splits:
    """60,000 training and 10,000 validation images of 28 x 28 pieces of clothing."""
    arrays = FASHION_MNIST.read(folder, read_idx)
    parts: list[Labelled] = []
    for part, count in (("train", FASHION_MNIST_TRAIN), ("t10k", FASHION_MNIST_TEST)):
        images, labels = arrays[2 * len(parts) :][:2]
        if images.shape != (count, 28, 28) or labels.shape != (count,) or labels.max() > 9:
            raise ValueError(
                f"The {part} files in {FASHION_MNIST.find_folder(folder)} hold images of shape "
                f"{images.shape} and labels of shape {labels.shape} up to "
                f"{labels.max(initial=0)}; expected {count} images of 28 x 28 and as many labels "
                f"from 0 to 9. Repair them: {FASHION_MNIST.command(folder)}"
            )
        parts.append((images[:, None], labels.astype(np.int64)))
    train, test = parts
    return _splits(train, test, 4 if augment else 0, bool(augment), size, crop)


def cifar10(
    folder: Path | None,
    augment: bool | None,
    size: int | None = None,
    crop: CropName = "window",
) -> Splits:
    """50,000 training and 10,000 validation images of 32 x 32 in colour; augmented by default."""
    *batches, validation = CIFAR10.read(folder, read_cifar10)
    images, labels = map(np.concatenate, zip(*batches, strict=True))
    flip = augment is not False
    return _splits((images, labels), validation, 4 if flip else 0, flip, size, crop)


def _splits(
    train: Labelled,
    validation: Labelled,
    pad: int,
    flip: bool,
    size: int | None,
    crop: CropName = "window",
) -> Splits:
    images, labels, held_out, held_out_labels = map(torch.from_numpy, (*train, *validation))
    if size is not None:
        pad = round(pad * size / images.shape[-1])
        images, held_out = downscale(images, size), downscale(held_out, size)
    statistics = channel_statistics(images)
    training = ArraySplit(images, labels, *statistics, pad, flip, crop)
    return training, ArraySplit(held_out, held_out_labels, *statistics)


def downscale(images: Tensor, size: int) -> Tensor:
    """Square images of bytes at `size` x `size` pixels, each the mean of a square of pixels.

    >>> downscale(torch.tensor([[[[1, 3], [5, 7]]]], dtype=torch.uint8), 1)
    tensor([[[[4]]]], dtype=torch.uint8)
    """
    own = images.shape[-1]
    if not 1 <= size <= own or own % size:
        raise ValueError(f"image_size must divide {own}, got {size} (try {own // 2})")
    pooled = [F.avg_pool2d(some.float(), own // size) for some in images.split(1000)]
    return torch.cat(pooled).round().to(torch.uint8)


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every channel over all images and pixels.

    >>> channel_statistics(torch.tensor([[[[0, 2], [0, 2]]], [[[4, 6], [4, 6]]]]))
    (tensor([3.]), tensor([2.2361]))
    """
    total = torch.zeros(2, images.shape[1], dtype=torch.float64)
    for some in images.split(1000):  # all at once, doubles take eight times the memory of bytes
        wide = some.double()
        total += torch.stack([wide.sum(dim=(0, 2, 3)), wide.square().sum(dim=(0, 2, 3))])
    mean, mean_square = total / (images.numel() / images.shape[1])
    std = (mean_square - mean.square()).clamp(min=0).sqrt()
    # A constant channel is only centred.
    return mean.float(), std.masked_fill(std == 0, 1.0).float()


@dataclass(frozen=True)
class DataFiles:
    """The names of a data set's files, the folders they may be in, and how to get them."""

    name: str
    files: tuple[str, ...]
    suffixes: tuple[str, ...]  # all files have the same one
    subfolders: tuple[str, ...]  # of a folder of the data set, which may have the files itself
    system_folders: tuple[Path, ...]
    repair: str

    def find_folder(self, folder: Path | None) -> Path:
        """The folder that holds the data set."""
        searched = self.search_path(folder)
        for place in searched:
            if self.suffix_in(place) is not None:
                return place
        missing = searched[0] / (self.files[0] + self.suffixes[0])
        elsewhere = "" if folder else ", nor in any usual place"
        raise FileNotFoundError(
            f"{self.name} is not here: no {missing}{elsewhere}. Get it: {self.command(folder)}"
        )

    def read(self, folder: Path | None, reader: Callable[[Path], T]) -> list[T]:
        """What `reader` makes of each file; errors say how to repair it."""
        contents, repair = [], f"Repair it: {self.command(folder)}"
        for path in self.paths(folder):
            if not path.is_file():
                raise FileNotFoundError(f"{self.name} is incomplete: {path} is missing. {repair}")
            try:
                contents.append(reader(path))
            except ValueError as error:
                raise ValueError(f"{path} is damaged: {error}. {repair}") from None
        return contents

    def paths(self, folder: Path | None) -> list[Path]:
        """All files in the folder that holds the data set, even those that are missing."""
        found = self.find_folder(folder)
        return [found / (name + (self.suffix_in(found) or "")) for name in self.files]

    def search_path(self, folder: Path | None) -> list[Path]:
        """`folder`, or else $SKIPLESS_DATA/NAME, ~/.cache/skipless/NAME, and the system's."""
        own = (default_folder(self.name), CACHE.expanduser() / self.name)
        tops = [user_path(folder)] if folder else [*dict.fromkeys(own), *self.system_folders]
        return [top / sub for top in tops for sub in ("", *self.subfolders)]

    def suffix_in(self, folder: Path) -> str | None:
        """The suffix of the files in `folder`; None if there are none."""
        found = (s for s in self.suffixes for f in self.files if (folder / (f + s)).is_file())
        return next(found, None)

    def command(self, folder: Path | None) -> str:
        """The command that fetches or repairs the data set, in `folder` if one is given."""
        return self.repair if folder is None else f"skipless data {self.name} --folder {folder}"


def default_folder(name: str) -> Path:
    """Where a data set is stored by default: in $SKIPLESS_DATA, or in the cache."""
    return Path(os.environ.get("SKIPLESS_DATA") or CACHE).expanduser() / name


FASHION_MNIST = DataFiles(
    name="fashion-mnist",
    files=(
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ),
    suffixes=(".gz", ""),
    subfolders=(),
    system_folders=(Path("/usr/share/datasets/fashion-mnist"),),
    repair="skipless data fashion-mnist, or apt-get install --reinstall dataset-fashion-mnist",
)
CIFAR10 = DataFiles(
    name="cifar10",
    files=(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"),
    suffixes=(".bin", ""),  # the binary batches, or the Python ones
    subfolders=("cifar-10-batches-bin", "cifar-10-batches-bin22", "cifar-10-batches-py"),
    system_folders=(),
    repair="skipless data cifar10",
)


def _read_digits() -> Labelled:
    """All digits, from scikit-learn's file: importing it takes longer than training on them."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise ModuleNotFoundError(not_installed("digits", "scikit-learn", "train"))
    file = Path(found.origin).parent / DIGITS_FILE
    if file.exists():
        table = np.loadtxt(file, dtype=np.uint8, delimiter=",")
        pixels, labels = table[:, :-1], table[:, -1]
    else:  # scikit-learn does not promise where it is
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
    images = np.asarray(pixels, dtype=np.uint8).reshape(-1, 1, 8, 8)  # 17 shades of grey
    return images, np.asarray(labels, dtype=np.int64)


def read_unpacked(path: Path) -> bytes:
    """The content of a file, without the compression of a .gz file; no file of ours has more."""
    if path.suffix != ".gz":
        return read_bytes(path, _MOST_BYTES)
    try:
        with gzip.open(io.BytesIO(read_bytes(path, _MOST_BYTES))) as file:
            content = file.read(_MOST_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"it cannot be unpacked ({error})") from None
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it unpacks to more than {_MOST_BYTES:,} bytes")
    return content


def read_idx(path: Path) -> Bytes:
    """The array in an IDX file (http://yann.lecun.com/exdb/mnist): 00 00 08, rank, sizes, bytes."""
    content = read_unpacked(path)
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError(f"an IDX file of bytes starts with 00 00 08, not {content[:3].hex(' ')}")
    start = 4 + 4 * content[3]
    sizes = tuple(np.frombuffer(content[4:start], dtype=">u4").tolist())
    if len(content) - start != np.prod(sizes, dtype=np.int64):
        raise ValueError(f"{len(content) - start} bytes follow a header for {sizes}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(sizes).copy()


def read_cifar10(path: Path) -> Labelled:
    """Images (n, 3, 32, 32) and labels of a batch, in the binary (.bin) or the Python format."""
    if path.suffix == ".bin":
        content = np.frombuffer(read_bytes(path, _MOST_BYTES), dtype=np.uint8)
        if not len(content) or len(content) % _CIFAR10_RECORD:
            raise ValueError(f"its {len(content)} bytes are not records of {_CIFAR10_RECORD}")
        records = content.reshape(-1, _CIFAR10_RECORD)
        pixels, labels = records[:, 1:], records[:, 0].astype(np.int64)
    else:
        pixels, labels = _read_pickled_cifar10(path)
    if not ((labels >= 0) & (labels < 10)).all():
        raise ValueError("its labels are not all from 0 to 9")
    if len(labels) != CIFAR10_BATCH:  # a file may be cut between two records
        raise ValueError(f"it has {len(labels)} images, not {CIFAR10_BATCH}")
    return pixels.reshape(-1, 3, 32, 32).copy(), labels


def _read_pickled_cifar10(path: Path) -> Labelled:
    try:
        content = io.BytesIO(read_bytes(path, _MOST_BYTES))
        batch = _SafeUnpickler(content, encoding="bytes").load()
    except Exception as error:  # a truncated pickle can fail in any way
        raise ValueError(f"it cannot be unpickled ({error})") from None
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= set(batch):
        raise ValueError("it lacks `data` or `labels`")
    data, labels = batch[b"data"], batch[b"labels"]
    if isinstance(labels, list) and all(type(label) is int for label in labels):
        labels = np.array(labels)
    if not (isinstance(data, np.ndarray) and isinstance(labels, np.ndarray)):
        raise ValueError("its `data` are no array, or its `labels` no integers")
    if labels.dtype.kind not in "iu" or labels.ndim != 1:  # as those above 2^64 - 1
        raise ValueError(f"its `labels` are {labels.dtype} {labels.shape}")
    if data.dtype != np.uint8 or data.shape != (len(labels), _CIFAR10_RECORD - 1):
        raise ValueError(f"it has {len(labels)} labels for data of {data.dtype} {data.shape}")
    return data, labels.astype(np.int64)


class _SafeUnpickler(pickle._Unpickler):  # pyright: ignore[reportAttributeAccessIssue]
    """Reads arrays and Python's built-in types: any other pickle may run arbitrary code.

    That in C would fill as much memory as an index in the file says.
    """

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module.replace('numpy.core', 'numpy._core')}.{name}"
        if path not in _ALLOWED:
            raise ValueError(f"it refers to {module}.{name}, which no CIFAR-10 batch needs")
        return _ALLOWED[path]


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":  # others can make it longer, again and again
        raise ValueError(f"it has bytes as {encoding}, which no CIFAR-10 batch needs")
    return text.encode(encoding)


_ALLOWED: dict[str, Any] = {
    # An array comes empty, whatever the file says, and then gets its shape with its bytes.
    "numpy._core.multiarray._reconstruct": lambda *_: np.empty(0, np.uint8),
    "numpy.ndarray": None,
    "numpy.dtype": np.dtype,
    "_codecs.encode": _encode,  # old protocols write bytes by it
}

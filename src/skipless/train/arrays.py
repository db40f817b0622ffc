"""Parts of a data set that are held in memory, and the arithmetic of their pixels.

Arrays of bytes from the files in which MNIST and CIFAR-10 come.

Whatever is wrong with a file is a `ValueError` that says what; its reader adds the file's name.

Where the files of a data set are looked for, and the command that brings them.

The small data sets that everybody knows: digits, Fashion-MNIST, CIFAR-10; each in memory.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import os
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
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

    def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
        """Standardised images, augmented as `draws` say, and their labels."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        images = self.images[chosen]
        if draws is not None and (self.pad or self.flip):
            images = shift_and_flip(images, draws, self.pad, self.flip)
        return standardize(images, self.mean, self.std), self.labels[chosen]


def shift_and_flip(images: Tensor, draws: Tensor, pad: int, flip: bool) -> Tensor:
    """Windows of `images` padded by `pad` zeros on every side, of the images' own size.

    The columns of `draws` place the window's first row and column, and decide on the mirror.

    >>> image = torch.tensor([[[[1, 2], [3, 4]]]])
    >>> shift_and_flip(image, torch.tensor([[0.5, 0.5, 0.0]]), pad=1, flip=True).tolist()
    [[[[2, 1], [4, 3]]]]
    >>> shift_and_flip(image, torch.tensor([[0.0, 0.0, 0.9]]), pad=1, flip=True).tolist()
    [[[[0, 0], [0, 1]]]]
    """
    n, channels, height, width = images.shape
    top, left = crop_offset(draws[:, :2], 2 * pad).unbind(1)
    rows = top[:, None] + torch.arange(height)
    columns = left[:, None] + torch.arange(width)
    if flip:
        columns = torch.where(is_flipped(draws)[:, None], columns.flip(1), columns)
    padded_width = width + 2 * pad
    places = (rows[:, :, None] * padded_width + columns[:, None, :]).view(n, 1, height * width)
    padded = F.pad(images, (pad, pad, pad, pad)).flatten(2)
    return padded.gather(2, places.expand(n, channels, -1)).view_as(images)


def crop_offset(draws: Tensor, room: int | Tensor) -> Tensor:
    """Whole numbers from 0 to `room`, all of them equally likely, from uniform ones in [0, 1)."""
    # In double precision the product of a float32 below 1 stays below room + 1.
    return (draws.double() * (room + 1)).long()


def is_flipped(draws: Tensor) -> Tensor:
    """Which images are mirrored: half of them."""
    return draws[..., 2] < 0.5


def standardize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Float32 images less `mean`, over `std`, channel by channel."""
    return images.float().sub_(mean[:, None, None]).div_(std[:, None, None])


def downscale(images: Tensor, size: int) -> Tensor:
    """Square images of bytes brought to `size` pixels a side, each the mean of a square of theirs.

    >>> downscale(torch.tensor([[[[1, 3], [5, 7]]]], dtype=torch.uint8), 1)
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


Bytes = NDArray[np.uint8]
Labelled = tuple[Bytes, NDArray[np.int64]]

_RECORD = 1 + 3 * 32 * 32  # a label and a picture
CIFAR10_BATCH = 10_000  # images in each of the six files


def read_idx(path: Path) -> Bytes:
    """The array in an IDX file, which may be compressed: 00 00 08, the rank, the sizes, the bytes.

    The format is described at http://yann.lecun.com/exdb/mnist; 08 stands for bytes.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"it cannot be unpacked ({error})") from None
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError(f"an IDX file of bytes starts with 00 00 08, not {content[:3].hex(' ')}")
    rank = content[3]
    start = 4 + 4 * rank
    sizes = tuple(np.frombuffer(content[4:start], dtype=">u4").tolist())
    if len(content) - start != np.prod(sizes, dtype=np.int64):
        raise ValueError(f"{len(content) - start} bytes follow a header that announces {sizes}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(sizes).copy()


def read_cifar(path: Path) -> Labelled:
    """Images (n, 3, 32, 32) and labels of a batch, in the binary (.bin) or the Python format."""
    if path.suffix != ".bin":
        return _read_pickled_cifar(path)
    content = np.fromfile(path, dtype=np.uint8)
    if not len(content) or len(content) % _RECORD:
        raise ValueError(f"its {len(content)} bytes are not records of {_RECORD}")
    records = content.reshape(-1, _RECORD)
    return _labelled(records[:, 1:], records[:, 0])


def _read_pickled_cifar(path: Path) -> Labelled:
    try:
        batch = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except ValueError:
        raise
    except Exception as error:  # a pickle that is cut short can fail in any way at all
        raise ValueError(f"it cannot be unpickled ({error})") from None
    if not isinstance(batch, Mapping) or not {b"data", b"labels"} <= set(batch):
        raise ValueError("a batch has `data` and `labels`, and this has not")
    data, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    if data.dtype != np.uint8 or data.shape != (len(labels), _RECORD - 1):
        raise ValueError(f"{len(labels)} labels stand beside data of {data.dtype} {data.shape}")
    return _labelled(data, labels)


def _labelled(pictures: Bytes, labels: NDArray[np.generic]) -> Labelled:
    numbers = labels.astype(np.int64)
    if not ((numbers >= 0) & (numbers < 10)).all():
        raise ValueError("its labels are not all among 0 to 9")
    if len(numbers) != CIFAR10_BATCH:  # a file may be cut between two records
        raise ValueError(f"it has {len(numbers)} images, not {CIFAR10_BATCH}")
    return pictures.reshape(-1, 3, 32, 32).copy(), numbers


class _ArraysOnly(pickle.Unpickler):
    """Reads arrays and what Python has built in: a pickle may otherwise call anything at all."""

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        try:
            return _HARMLESS[module.replace("numpy.core", "numpy._core"), name]
        except KeyError:
            raise ValueError(
                f"it asks for {module}.{name}, which no CIFAR-10 batch needs"
            ) from None


def _latin1(text: str, encoding: str) -> bytes:
    """`_codecs.encode`, by which old protocols write bytes, for the one encoding that they use."""
    if encoding != "latin1":
        raise ValueError(f"it asks for the encoding {encoding}, which no CIFAR-10 batch needs")
    return text.encode("latin1")


_RECONSTRUCT = np.empty(0).__reduce__()[0]  # private to numpy
_HARMLESS: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy._core.multiarray", "_reconstruct"): cast("Callable[..., object]", _RECONSTRUCT),
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}


CIFAR10_PARTS = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


@dataclass(frozen=True)
class DataFiles:
    """What the files of a data set are called, where they may be, and how to get them.

    Any of `endings` may follow a file's name, the same for all; the files are in the folder of the
    data set itself, or in one of `subfolders`.
    """

    name: str
    files: tuple[str, ...]
    endings: tuple[str, ...]
    subfolders: tuple[str, ...]
    installed: tuple[Path, ...]
    repair: str

    def folder(self, folder: Path | None) -> Path:
        """The folder that holds the data set; if none does, an error names the first file."""
        candidates = self.candidates(folder)
        for candidate in candidates:
            if self.ending(candidate) is not None:
                return candidate
        missing = candidates[0] / (self.files[0] + self.endings[0])
        raise FileNotFoundError(
            f"{self.name} was asked for, but {missing} is not there"
            f"{'' if folder else ', nor in any usual place'}. Bring it: {self.command(folder)}"
        )

    def file(self, folder: Path, name: str, given: Path | None) -> Path:
        """One file in `folder`, which holds others; if it is missing, an error says so."""
        path = folder / (name + (self.ending(folder) or ""))
        if not path.is_file():
            raise FileNotFoundError(
                f"{self.name} is not complete: {path} is missing. Repair it: {self.command(given)}"
            )
        return path

    def candidates(self, folder: Path | None) -> list[Path]:
        """Folders in which to look, first things first; a `folder` that is given is the only one.

        Otherwise $SKIPLESS_DATA/NAME, ~/.cache/skipless/NAME, and where the system keeps it.
        """
        if folder is not None:
            tops = [folder.expanduser()]
        else:
            tops = [*dict.fromkeys((home(self.name), cache() / self.name)), *self.installed]
        return [top / sub for top in tops for sub in ("", *self.subfolders)]

    def ending(self, folder: Path) -> str | None:
        """The ending of the files in `folder`; None if there are none."""
        for ending in self.endings:
            if any((folder / (file + ending)).is_file() for file in self.files):
                return ending
        return None

    def command(self, folder: Path | None) -> str:
        """What to type to have the data set whole, in `folder` if one was given."""
        return self.repair if folder is None else f"skipless data {self.name} --folder {folder}"


def home(name: str) -> Path:
    """Where a data set is put unless another folder is named: $SKIPLESS_DATA, or the cache."""
    data = os.environ.get("SKIPLESS_DATA")
    return (Path(data).expanduser() if data else cache()) / name


def cache() -> Path:
    return Path("~/.cache/skipless").expanduser()


FASHION_MNIST = DataFiles(
    name="fashion-mnist",
    files=(
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ),
    endings=(".gz", ""),
    subfolders=(),
    installed=(Path("/usr/share/datasets/fashion-mnist"),),
    repair="skipless data fashion-mnist, or apt-get install --reinstall dataset-fashion-mnist",
)
CIFAR10 = DataFiles(
    name="cifar10",
    files=CIFAR10_PARTS,
    endings=(".bin", ""),  # the binary batches, or the Python ones
    subfolders=("cifar-10-batches-bin", "cifar-10-batches-bin22", "cifar-10-batches-py"),
    installed=(),
    repair="skipless data cifar10",
)


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
    place: DataFiles, folder: Path, name: str, given: Path | None, reader: Callable[[Path], T]
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
        images, held_out = downscale(images, size), downscale(held_out, size)
    mean, std = channel_statistics(images)
    return (
        ArraySplit(images, labels, mean, std, pad, flip),
        ArraySplit(held_out, held_out_labels, mean, std),
    )

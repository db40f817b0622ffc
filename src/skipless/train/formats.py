"""Arrays of bytes from the files in which MNIST and CIFAR-10 come.

Whatever is wrong with a file is a `ValueError` that says what; its reader adds the file's name.
"""

from __future__ import annotations

import gzip
import io
import pickle
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

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

"""Where the files of a data set are looked for, and the command that brings them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CIFAR10_PARTS = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


@dataclass(frozen=True)
class Place:
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


FASHION_MNIST = Place(
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
CIFAR10 = Place(
    name="cifar10",
    files=CIFAR10_PARTS,
    endings=(".bin", ""),  # the binary batches, or the Python ones
    subfolders=("cifar-10-batches-bin", "cifar-10-batches-bin22", "cifar-10-batches-py"),
    installed=(),
    repair="skipless data cifar10",
)

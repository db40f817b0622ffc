"""Fashion-MNIST and CIFAR-10 from their files, wherever they are, or a line that says why not."""

import codecs
import gzip
import os
import pickle
import re
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from skipless.train import arrays
from skipless.train.arrays import CIFAR10, FASHION_MNIST
from skipless.train.data import load_data

CIFAR_NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
FASHION_NAMES = ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"]
REAL = {place.name: [f for f in place.search_path(None) if place.suffix_in(f)]
        for place in (CIFAR10, FASHION_MNIST)}  # fmt: skip


@pytest.fixture(autouse=True)
def no_other_place(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tests of the real files see the files of this machine."""
    if "real" not in request.node.name:
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.delenv("SKIPLESS_DATA", raising=False)
        elsewhere = replace(FASHION_MNIST, system_folders=())
        monkeypatch.setattr("skipless.train.arrays.FASHION_MNIST", elsewhere)


@pytest.fixture(autouse=True)
def small_files(request, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with as many images as the functions below write, but for tests of the real files."""
    if "real" not in request.node.name:
        monkeypatch.setattr(arrays, "CIFAR10_BATCH", 4)
        monkeypatch.setattr(arrays, "FASHION_MNIST_TRAIN", 12)
        monkeypatch.setattr(arrays, "FASHION_MNIST_TEST", 12)


def cifar_batches(seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Six small batches: images as rows of bytes, red, green, blue, and labels."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.integers(0, 256, (4, 3072), dtype=np.uint8), rng.integers(0, 10, 4))
        for name in CIFAR_NAMES
    }


def write_binary(folder: Path, batches: dict) -> None:
    folder.mkdir(parents=True)
    for name, (images, labels) in batches.items():
        content = b"".join(
            bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True)
        )
        (folder / f"{name}.bin").write_bytes(content)


def write_pickled(folder: Path, batches: dict, protocol: int) -> None:
    folder.mkdir(parents=True)
    for name, (images, labels) in batches.items():
        batch = {b"data": images, b"labels": labels.tolist(), b"batch_label": b"a batch"}
        content = pickle.dumps(batch, protocol)
        if protocol == 2:  # as numpy called its module when CIFAR-10 was published
            content = content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        (folder / name).write_bytes(content)


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
    content = header + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_fashion(folder: Path, ending: str = "-ubyte.gz") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.integers(0, 256, (12, 28, 28), dtype=np.uint8)
        if "images" in name
        else rng.integers(0, 10, 12, dtype=np.uint8)
        for name in FASHION_NAMES
    }
    for name, array in arrays.items():
        write_idx(folder / f"{name}{ending}", array)
    return arrays


def check_cifar(data, batches: dict) -> None:
    assert (data.num_classes, data.shape) == (10, (3, 32, 32))
    for split, names in ((data.train, CIFAR_NAMES[:5]), (data.validation, CIFAR_NAMES[5:])):
        raw = np.concatenate([batches[name][0] for name in names]).reshape(-1, 3, 32, 32)
        images, labels = split.load(range(len(split)), None)
        trained_on = np.concatenate([batches[name][0] for name in CIFAR_NAMES[:5]])
        channels = trained_on.reshape(-1, 3, 1024).astype(np.float64)
        mean, std = (f(axis=(0, 2)).reshape(3, 1, 1) for f in (channels.mean, channels.std))
        assert np.allclose(images.numpy(), (raw - mean) / std, atol=1e-5)
        assert images.dtype == torch.float32
        assert labels.dtype == torch.int64
        assert labels.tolist() == np.concatenate([batches[name][1] for name in names]).tolist()


@pytest.mark.parametrize("sub", ["", "cifar-10-batches-bin", "cifar-10-batches-bin22"])
def test_binary_batches_are_read_from_the_folder_or_its_usual_subfolder(
    tmp_path: Path, sub: str
) -> None:
    write_binary(tmp_path / "there" / sub, batches := cifar_batches())
    check_cifar(load_data("cifar10", folder=tmp_path / "there"), batches)


@pytest.mark.parametrize("protocol", [2, 4])
def test_python_batches_say_the_same(tmp_path: Path, protocol: int) -> None:
    batches = cifar_batches()
    write_pickled(tmp_path / "there" / "cifar-10-batches-py", batches, protocol)
    check_cifar(load_data("cifar10", folder=tmp_path / "there"), batches)


def test_a_folder_that_is_given_comes_first_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (cifar_batches(seed) for seed in (1, 2, 3))
    write_binary(tmp_path / "home" / ".cache" / "skipless" / "cifar10", first)
    check_cifar(load_data("cifar10"), first)
    monkeypatch.setenv("SKIPLESS_DATA", str(tmp_path / "data"))
    check_cifar(load_data("cifar10"), first)
    write_binary(tmp_path / "data" / "cifar10", second)
    check_cifar(load_data("cifar10"), second)
    write_binary(tmp_path / "given", third)
    check_cifar(load_data("cifar10", folder=tmp_path / "given"), third)


def test_training_images_of_cifar_are_augmented_unless_that_is_switched_off(tmp_path: Path) -> None:
    write_binary(tmp_path / "there", cifar_batches())
    draws = torch.tensor([[0.5, 0.5, 0.1]])
    for augment in (None, True, False):
        data = load_data("cifar10", folder=tmp_path / "there", augment=augment)
        plain, free = (data.train.load([3], c)[0] for c in (None, draws))
        assert torch.equal(free, plain if augment is False else plain.flip(3))
        assert torch.equal(*(data.validation.load([3], c)[0] for c in (None, draws)))


@pytest.mark.parametrize("ending", ["-ubyte.gz", "-ubyte"])
def test_fashion_mnist_is_read_packed_or_not(tmp_path: Path, ending: str) -> None:
    arrays = write_fashion(tmp_path / "there", ending)
    data = load_data("fashion-mnist", folder=tmp_path / "there")
    assert (data.num_classes, data.shape) == (10, (1, 28, 28))
    raw = arrays["train-images-idx3"].astype(np.float64)
    for part, split in (("train", data.train), ("t10k", data.validation)):
        images, labels = split.load(range(12), None)
        expected = (arrays[f"{part}-images-idx3"] - raw.mean()) / raw.std()
        assert np.allclose(images[:, 0].numpy(), expected, atol=1e-5)
        assert labels.tolist() == arrays[f"{part}-labels-idx1"].tolist()


def test_missing_files_are_named_with_the_command_that_brings_them(tmp_path: Path) -> None:
    for name, file in (("cifar10", "data_batch_1.bin"), ("fashion-mnist", "train-images-idx3")):
        with pytest.raises(FileNotFoundError, match=rf"{file}.*Get it: skipless data {name}"):
            load_data(name)
        with pytest.raises(FileNotFoundError, match=f"there/{file}.*skipless data {name} --folder"):
            load_data(name, folder=tmp_path / "there")


def test_one_missing_batch_is_named(tmp_path: Path) -> None:
    write_binary(tmp_path / "there", cifar_batches())
    (tmp_path / "there" / "data_batch_4.bin").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"there/data_batch_4\.bin is missing\. Repair it: "
    ):
        load_data("cifar10", folder=tmp_path / "there")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "its 0 bytes are not records of 3073"),
        (b"\0" * 3072, "its 3072 bytes are not records of 3073"),
        (b"\x0a" * 3073, "its labels are not all from 0 to 9"),
    ],
)
def test_a_damaged_binary_batch_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    write_binary(tmp_path / "there", cifar_batches())
    (tmp_path / "there" / "data_batch_2.bin").write_bytes(content)
    with pytest.raises(ValueError, match=rf"there/data_batch_2\.bin is damaged: {reason}\. Repair"):
        load_data("cifar10", folder=tmp_path / "there")


@pytest.mark.parametrize("ending", [".bin", ""])
def test_a_batch_that_lost_whole_records_is_damaged(tmp_path: Path, ending: str) -> None:
    batches = cifar_batches()
    batches["test_batch"] = tuple(array[:3] for array in batches["test_batch"])  # pyright: ignore
    if ending:
        write_binary(tmp_path / "there", batches)
    else:
        write_pickled(tmp_path / "there", batches, 2)
    said = f"there/test_batch{ending} is damaged: it has 3 images, not 4. Repair it: skipless data"
    with pytest.raises(ValueError, match=re.escape(said)):
        load_data("cifar10", folder=tmp_path / "there")


def test_files_need_as_many_images_as_the_real_ones_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_binary(tmp_path / "there", cifar_batches())
    with pytest.raises(ValueError, match=r"data_batch_1\.bin is damaged: it has 4 .* not 10000\."):
        load_data("cifar10", folder=tmp_path / "there")
    write_fashion(tmp_path / "there")
    with pytest.raises(
        ValueError, match=r"The train files .*\(12, 28, 28\).* expected 60000 images"
    ):
        load_data("fashion-mnist", folder=tmp_path / "there")
    monkeypatch.setattr(arrays, "FASHION_MNIST_TRAIN", 12)
    with pytest.raises(
        ValueError, match=r"The t10k files .* expected 10000 images.*: skipless data"
    ):
        load_data("fashion-mnist", folder=tmp_path / "there")


class Evil:
    """Would leave a file behind if it were unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("kind", ["evil", "short", "other", "narrow"])
def test_a_python_batch_can_do_nothing_but_hold_arrays(tmp_path: Path, kind: str) -> None:
    write_pickled(tmp_path / "there", cifar_batches(), 2)
    file, trace = tmp_path / "there" / "data_batch_3", tmp_path / "trace"
    good = file.read_bytes()
    bad = {
        "evil": (pickle.dumps(Evil(trace)), r"refers to posix\.mkdir"),
        "short": (good[:5000], "cannot be unpickled"),
        "other": (pickle.dumps([1, 2]), "lacks `data` or `labels`"),
        "narrow": (pickle.dumps({b"data": np.zeros((1, 9)), b"labels": [1]}), r"float64 \(1, 9\)"),
    }
    content, reason = bad[kind]
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"data_batch_3 is damaged: .*{reason}.*Repair it: "):
        load_data("cifar10", folder=tmp_path / "there")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda good: good[:-20], "is damaged: it cannot be unpacked"),
        (lambda good: b"not gzip", "is damaged: it cannot be unpacked"),
        (
            lambda good: gzip.compress(b"\0\0\x0d\3" + bytes(12)),
            "starts with 00 00 08, not 00 00 0d",
        ),
        (lambda good: gzip.compress(gzip.decompress(good)[:-1]), "9407 bytes follow a header"),
        (lambda good: gzip.compress(gzip.decompress(good)[:8]), "bytes follow a header"),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, change, reason: str) -> None:
    write_fashion(tmp_path / "there")
    file = tmp_path / "there" / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ValueError, match=rf"{file}.*{reason}.*Repair it: skipless data"):
        load_data("fashion-mnist", folder=tmp_path / "there")


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("train-labels-idx1", np.zeros(11, dtype=np.uint8)),
        ("train-labels-idx1", np.full(12, 10, dtype=np.uint8)),
        ("train-images-idx3", np.zeros((12, 27, 28), dtype=np.uint8)),
    ],
)
def test_files_that_do_not_fit_together_are_refused(tmp_path: Path, name: str, array) -> None:
    write_fashion(tmp_path / "there")
    write_idx(tmp_path / "there" / f"{name}-ubyte.gz", array)
    with pytest.raises(
        ValueError, match=r"The train files in .* hold .*Repair them: skipless data"
    ):
        load_data("fashion-mnist", folder=tmp_path / "there")


@pytest.mark.skipif(not REAL["fashion-mnist"], reason="Fashion-MNIST is not here: apt-get install "
                    "dataset-fashion-mnist")  # fmt: skip
def test_the_real_fashion_mnist_has_as_many_of_each_class() -> None:
    data = load_data("fashion-mnist")
    for split, each in ((data.train, 6000), (data.validation, 1000)):
        assert torch.bincount(split.labels).tolist() == [each] * 10  # pyright: ignore
    # As everybody standardises it: 0.2860 and 0.3530.
    assert data.train.mean.item() / 255 == pytest.approx(0.2860, abs=5e-5)  # pyright: ignore
    assert data.train.std.item() / 255 == pytest.approx(0.3530, abs=5e-5)  # pyright: ignore


@pytest.mark.skipif(not REAL["cifar10"], reason="CIFAR-10 is not here: skipless data cifar10")
def test_the_real_cifar10_has_as_many_of_each_class() -> None:
    data = load_data("cifar10")
    for split, each in ((data.train, 5000), (data.validation, 1000)):
        assert torch.bincount(split.labels).tolist() == [each] * 10  # pyright: ignore
    # As everybody standardises it.
    mean, std = (data.train.mean / 255).tolist(), (data.train.std / 255).tolist()  # pyright: ignore
    assert mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    assert std == pytest.approx([0.2470, 0.2435, 0.2616], abs=1e-4)


class Calls:
    """Pickled as a call of something."""

    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self) -> tuple[object, ...]:
        return self.call[0], self.call[1:]  # pyright: ignore[reportReturnType]


def doubled(times: int) -> object:
    """Text that grows with each of its encodings."""
    text: object = "a" * 1000
    for _ in range(times):
        text = Calls(codecs.encode, Calls(codecs.encode, text, "utf-16"), "hex")
    return text


IMAGES = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({b"data": IMAGES, b"labels": None}, 2),
        pickle.dumps({b"data": IMAGES, b"labels": [0, None]}, 2),
        pickle.dumps({b"data": IMAGES, b"labels": [0.5, 1]}, 2),
        pickle.dumps({b"data": IMAGES, b"labels": [0, 2**80]}, 2),
        pickle.dumps({b"data": IMAGES, b"labels": [-1, 0]}, 2),
        pickle.dumps({b"data": IMAGES.tolist(), b"labels": [0, 0]}, 2),
        pickle.dumps({b"data": None, b"labels": [0, 0]}, 2),
        pickle.dumps(None),
        b"\x80\x02" + b"r\xff\xff\xff\x7f" * 3 + b".",  # a note of its number 2147483647
        b"\x80\x05\x96" + b"\xff" * 7 + b"\x7f.",  # of 2^63 bytes
        pickle.dumps(doubled(20), 2),
        pickle.dumps(Calls(np.ndarray, (2**31,), "O"), 2),
    ],
)
def test_a_hostile_python_batch_is_damaged_and_takes_no_memory(
    tmp_path: Path, content: bytes
) -> None:
    write_pickled(tmp_path / "there", cifar_batches(), 2)
    (tmp_path / "there" / "data_batch_3").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"data_batch_3 is damaged: .*Repair it: ") as raised:
        load_data("cifar10", folder=tmp_path / "there")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(raised.value)
    assert peak < 2e7


@pytest.mark.parametrize("name", ["data_batch_2.bin", "train-images-idx3-ubyte.gz"])
def test_a_file_that_is_or_unpacks_to_more_than_any_of_ours_is_not_read(
    tmp_path: Path, name: str
) -> None:
    there = tmp_path / "there"
    if name.endswith(".gz"):
        write_fashion(there)
        with gzip.open(there / name, "wb") as bomb:
            for _ in range(400):
                bomb.write(bytes(2**20))
    else:
        write_binary(there, cifar_batches())
        with (there / name).open("wb") as sparse:
            sparse.truncate(2**36)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"(unpacks to|has) more than 50,000,000 bytes"):
        load_data("cifar10" if name.endswith("bin") else "fashion-mnist", folder=there)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e8

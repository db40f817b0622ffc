"""Image files: decoded, cropped and mirrored as Pillow does it step by step, from three homes."""

import io
import logging
import os
import re
import sys
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from skipless.train import conversion, images
from skipless.train.conversion import convert, fill_cache
from skipless.train.data import Data, load_data

MEAN = np.array([0.485, 0.456, 0.406])  # of ImageNet, as everybody uses them
STD = np.array([0.229, 0.224, 0.225])


def photo(width: int, height: int, seed: int, mode: str = "RGB") -> Image.Image:
    """A smooth random image."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 10, width // 10, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


PHOTOS = {
    "train/cat/a.png": encoded(photo(90, 60, 0)),
    "train/cat/deeper/b.jpg": encoded(photo(61, 83, 1), "JPEG"),
    "train/dog/a.jpeg": encoded(photo(70, 70, 2), "JPEG"),
    "train/dog/grey.PNG": encoded(photo(50, 80, 3, "L")),
    "val/dog/c.jpg": encoded(photo(99, 64, 4), "JPEG"),
    "val/dog/cmyk.jpg": encoded(photo(64, 64, 5, "CMYK"), "JPEG"),
}
LABELS = [0, 0, 1, 1]
TRAIN = [name for name in PHOTOS if name.startswith("train")]
VALIDATION = [name for name in PHOTOS if name.startswith("val")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in PHOTOS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "cat" / "._a.png").write_text("no image either")
    return tmp_path


def step_by_step(content: bytes, size: int, draws: list[float] | None) -> np.ndarray:
    """The whole image scaled, then cut, then mirrored: 256 for the shorter side if size is 224."""
    image = Image.open(io.BytesIO(content)).convert("RGB")
    shorter = round(size * 256 / 224)
    if image.width <= image.height:
        scaled = image.resize((shorter, shorter * image.height // image.width), 2)
    else:
        scaled = image.resize((shorter * image.width // image.height, shorter), 2)
    rows, columns = scaled.height - size, scaled.width - size
    if draws is None:
        top, left = rows // 2, columns // 2
    else:
        top, left = int(draws[0] * (rows + 1)), int(draws[1] * (columns + 1))
    window = np.asarray(scaled.crop((left, top, left + size, top + size)))
    if draws is not None and draws[2] < 0.5:
        window = window[:, ::-1]
    return window


def grey_levels(images: torch.Tensor) -> np.ndarray:
    """Standardised images as they were: (n, height, width, 3) from 0 to 255."""
    return (images.permute(0, 2, 3, 1).double().numpy() * STD + MEAN) * 255


@pytest.mark.parametrize("size", [28, 42])
def test_windows_are_those_of_the_whole_image_scaled_and_then_cut(folder: Path, size: int) -> None:
    data = load_data(f"imagefolder:{folder}", image_size=size)
    assert (data.num_classes, data.shape) == (2, (3, size, size))
    draws = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    draws[:, 2] = torch.tensor([0.1, 0.9, 0.6, 0.4])
    for split, names, free in (
        (data.train, TRAIN, draws),
        (data.train, TRAIN, None),
        (data.validation, VALIDATION, None),
        (data.validation, VALIDATION, draws[:2]),
    ):
        images, _ = split.load(range(len(names)), free)
        assert images.dtype == torch.float32
        for i, name in enumerate(names):
            used = free[i].tolist() if free is not None and split is data.train else None
            # Pillow rounds the edges of what it scales to float32, and results to bytes.
            truth = step_by_step(PHOTOS[name], size, used)
            assert np.abs(grey_levels(images)[i] - truth).max() < 1.01


def test_labels_number_the_classes_by_name_also_where_validation_has_only_some(
    folder: Path,
) -> None:
    data = load_data(f"imagefolder:{folder}", image_size=8)
    assert data.train.load([0, 1, 2, 3], None)[1].tolist() == LABELS
    assert data.validation.load([0, 1], None)[1].tolist() == [1, 1]
    (folder / "val").rename(folder / "validation")
    assert len(load_data(f"imagefolder:{folder}").validation) == 2


def test_windows_are_224_wide_unless_asked_otherwise(folder: Path) -> None:
    data = load_data(f"imagefolder:{folder}")
    assert data.train.load([0], torch.rand(1, 3))[0].shape == (1, 3, *data.shape[1:])
    assert data.shape == (3, 224, 224)


def test_a_large_jpeg_decoded_at_a_fraction_of_its_size_shows_the_same(folder: Path) -> None:
    content = encoded(photo(800, 600, 6), "JPEG")
    (folder / "val" / "dog" / "c.jpg").write_bytes(content)
    data = load_data(f"imagefolder:{folder}", image_size=56)
    ours = grey_levels(data.validation.load([0], None)[0])[0]
    # Pixels are averaged by other weights, so that levels differ, but not by much.
    assert np.abs(ours - step_by_step(content, 56, None)).mean() < 3


def test_without_augmentation_training_images_show_their_middle(folder: Path) -> None:
    data = load_data(f"imagefolder:{folder}", image_size=28, augment=False)
    free, plain = (data.train.load([0, 1], c)[0] for c in (torch.zeros(2, 3), None))
    assert torch.equal(free, plain)


@pytest.mark.parametrize("content", [b"", b"nonsense", PHOTOS["train/dog/a.jpeg"][:700]])
def test_a_damaged_image_is_named_in_one_line(folder: Path, content: bytes) -> None:
    (folder / "train" / "dog" / "a.jpeg").write_bytes(content)
    data = load_data(f"imagefolder:{folder}")
    with pytest.raises(ValueError, match=r"train/dog/a\.jpeg cannot be read as an image: ") as said:
        data.train.load([0, 1, 2], None)
    assert "\n" not in str(said.value)
    assert "delete it" in str(said.value)


def test_a_folder_without_its_parts_is_told_what_to_put_there(folder: Path) -> None:
    (folder / "val").rename(folder / "old")
    with pytest.raises(FileNotFoundError, match=rf"There is no {folder}/val\. .* one folder"):
        load_data(f"imagefolder:{folder}")
    (folder / "train").rename(folder / "new")
    with pytest.raises(FileNotFoundError, match=rf"There is no {folder}/train\. .* one folder"):
        load_data(f"imagefolder:{folder}")


def test_classes_that_only_one_part_has_are_refused(folder: Path) -> None:
    (folder / "train" / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="train/empty holds no images"):
        load_data(f"imagefolder:{folder}")
    (folder / "train" / "empty").rename(folder / "val" / "mouse")
    with pytest.raises(ValueError, match=r"val/mouse is a class that .* not have"):
        load_data(f"imagefolder:{folder}")


@pytest.fixture
def library(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    """Hugging Face's library, offline and quiet, with a cache of its own, in this process."""
    datasets = pytest.importorskip("datasets", reason="pip install 'skipless[datasets]'")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(images, "convert", fill_cache)  # a process takes two seconds to start
    datasets.disable_progress_bars()
    yield datasets
    datasets.enable_progress_bars()


def write_parquet(folder: Path, files: dict[str, list[tuple[str, int]]]) -> None:
    """Parquet files as ImageNet's are: columns `image`, of bytes and path, and `label`."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        images = [{"bytes": PHOTOS.get(photo, b"bad"), "path": photo} for photo, _ in rows]
        table = pyarrow.table({"image": images, "label": [label for _, label in rows]})
        parquet.write_table(table, folder / name)


def assert_same(ours: Data, theirs: Data) -> None:
    assert (ours.num_classes, ours.shape) == (theirs.num_classes, theirs.shape)
    for split, other in ((ours.train, theirs.train), (ours.validation, theirs.validation)):
        draws = torch.rand(len(other), other.draws, generator=torch.Generator().manual_seed(0))
        indices = range(len(other))
        for part, truth in zip(split.load(indices, draws), other.load(indices, draws), strict=True):
            assert torch.equal(part, truth)


def test_parquet_files_and_saved_data_sets_deliver_what_the_files_do(
    folder: Path, library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert_alone(*arguments) -> None:
        convert(*arguments)
        # From here on, no Parquet file is opened.
        monkeypatch.setattr("pyarrow.parquet.ParquetFile", None)
        monkeypatch.setattr("pyarrow.parquet.read_metadata", None)

    monkeypatch.setattr(images, "convert", convert_alone)
    write_parquet(
        folder / "tables",
        {
            "train-00000-of-00002.parquet": list(zip(TRAIN, LABELS, strict=True))[:3],
            "train-00001-of-00002.parquet": list(zip(TRAIN, LABELS, strict=True))[3:],
            "validation-00000-of-00001.parquet": [(name, 1) for name in VALIDATION],
        },
    )
    files = load_data(f"imagefolder:{folder}", image_size=28)
    assert_same(load_data(f"parquet:{folder / 'tables'}", image_size=28), files)
    boxes = load_data(f"imagefolder:{folder}", image_size=28, crop="inception")
    tables = f"parquet:{folder / 'tables'}"
    assert_same(load_data(tables, image_size=28, crop="inception"), boxes)
    monkeypatch.setattr(images, "convert", None)  # what is saved is Arrow's own already
    parts = {"train": (TRAIN, LABELS), "test": (VALIDATION, [1, 1])}
    saved = library.DatasetDict(
        {
            part: library.Dataset.from_dict(
                {"img": [str(folder / name) for name in names], "label": labels}
            ).cast_column("img", library.Image())
            for part, (names, labels) in parts.items()
        }
    )
    saved.save_to_disk(folder / "saved")
    assert_same(load_data(f"hf:{folder / 'saved'}", image_size=28), files)
    assert_same(load_data(f"hf:{folder / 'saved'}", image_size=28, crop="inception"), boxes)
    assert boxes.train.draws > files.train.draws


def test_a_data_set_of_hugging_face_may_name_files_instead_of_holding_them(
    folder: Path, library
) -> None:
    (folder / "train" / "cat" / "deeper" / "b.jpg").rename(folder / "train" / "cat" / "b.jpg")
    (folder / "train" / "cat" / "notes.txt").unlink()
    files = load_data(f"imagefolder:{folder}", image_size=28)
    assert_same(load_data(f"hf:{folder}", image_size=28), files)


def test_a_damaged_row_a_missing_part_and_a_damaged_table_are_named(folder: Path, library) -> None:
    tables = folder / "tables"
    with pytest.raises(FileNotFoundError, match=re.escape(f"no {tables}/train-*.parquet")):
        load_data(f"parquet:{tables}")
    write_parquet(tables, {"train-0.parquet": [("train/cat/a.png", 0), ("missing", 1)]})
    with pytest.raises(FileNotFoundError, match=re.escape(f"no {tables}/validation-*.parquet")):
        load_data(f"parquet:{tables}")
    write_parquet(tables, {"validation-0.parquet": [("val/dog/c.jpg", 1)]})
    data = load_data(f"parquet:{tables}", image_size=8)
    with pytest.raises(ValueError, match="tables, train, row 1, cannot be read as an image"):
        data.train.load([0, 1], None)
    (tables / "train-0.parquet").write_bytes(b"PAR1 no table PAR1")
    with pytest.raises(ValueError, match=rf"The Parquet files in {tables} cannot be loaded") as e:
        load_data(f"parquet:{tables}")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("columns", "parts", "message"),
    [
        ({"picture": ["x"], "label": [0]}, ("train", "test"), "has the columns picture, label"),
        ({"image": ["x"], "label": [-1]}, ("train", "test"), r"without a label \(-1\)"),
        ({"image": ["x"], "label": [0]}, ("train",), "has the splits train; training needs"),
    ],
)
def test_a_data_set_of_another_make_is_told_apart(
    tmp_path: Path, library, columns: dict, parts: tuple[str, ...], message: str
) -> None:
    table = library.Dataset.from_dict(columns)
    library.DatasetDict(dict.fromkeys(parts, table)).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match=message):
        load_data(f"hf:{tmp_path / 'saved'}")


def test_a_reader_that_crashes_or_fails_is_an_error_of_one_line(
    folder: Path, library, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("train/cat/a.png", 0)]
    write_parquet(folder, {"train-0.parquet": rows, "validation-0.parquet": rows})
    monkeypatch.setattr(images, "convert", convert)
    (folder / "validation-0.parquet").write_bytes(b"PAR1 no table PAR1")
    start = rf"The Parquet files in {folder} cannot be loaded by the library datasets: "
    with pytest.raises(ValueError, match=start + r"\S.* a damaged file again\.$") as raised:
        load_data(f"parquet:{folder}")
    assert "\n" not in str(raised.value)
    (folder / "reader.py").write_text("import os; os.abort()")
    monkeypatch.setattr(conversion, "__file__", str(folder / "reader.py"))
    with pytest.raises(ValueError, match=start + r"a damaged file crashed .* \(Aborted\)\. Check"):
        load_data(f"parquet:{folder}")


def test_a_hub_out_of_reach_is_told_once_and_not_at_every_attempt(
    library, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logger = logging.getLogger("huggingface_hub.utils._http")
    logger.addHandler(handler)

    def unreachable(name: str) -> None:
        logger.warning("Retrying in 1s [Retry 1/5].")
        raise ConnectionError(f"Couldn't reach {name!r} on the Hub")

    monkeypatch.setattr(images, "convert", lambda name, *_: unreachable(name))
    try:
        with pytest.raises(ValueError, match=r"Couldn't reach 'some/name' .* and the network"):
            load_data("hf:some/name")
        assert heard == []
        logger.warning("afterwards")
        assert heard == ["afterwards"]
    finally:
        logger.removeHandler(handler)


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install .*\[datasets\]'"):
        load_data("hf:some/name")


posix = pytest.mark.skipif(sys.platform == "win32", reason="needs links, pipes and a shell")


@posix
def test_a_pipe_among_images_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "train" / "cat" / "x.png")
    with pytest.raises(ValueError, match=r"cat/x\.png is not a regular file\. Delete it"):
        load_data(f"imagefolder:{folder}")
    (folder / "train" / "cat" / "x.png").unlink()
    data = load_data(f"imagefolder:{folder}", image_size=28)
    (folder / "train" / "cat" / "a.png").unlink()
    os.mkfifo(folder / "train" / "cat" / "a.png")  # since the folder was read
    with pytest.raises(ValueError, match="Not a regular file"):
        data.train.load([0], None)


@posix
@pytest.mark.parametrize("place", ["train/cat/all", "train/cat/x.png", "train/other", "val"])
def test_links_out_of_an_image_folder_are_refused(folder: Path, place: str) -> None:
    (folder / "data").mkdir()
    for part in ("train", "val"):
        (folder / part).rename(folder / "data" / part)
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "x.png").write_bytes(PHOTOS[TRAIN[0]])
    link = folder / "data" / place
    if place == "val":
        link.rename(folder / "val")
    link.symlink_to(folder / "val" if place == "val" else folder / "elsewhere")
    if place.endswith("png"):
        link.unlink()
        link.symlink_to(folder / "elsewhere" / "x.png")
    with pytest.raises(ValueError, match=rf"{place} is a link to .*, and only what is in .*/data"):
        load_data(f"imagefolder:{folder / 'data'}")
    alias = folder / "alias"  # that the folder itself is a link is up to its user
    alias.symlink_to(folder / "data")
    link.unlink()
    if place == "val":
        (folder / "val").rename(link)
    assert len(load_data(f"imagefolder:{alias}").train) == 4


@posix
def test_links_within_an_image_folder_are_followed_but_not_around(folder: Path) -> None:
    (folder / "train" / "cat" / "more").symlink_to(folder / "train" / "dog")
    (folder / "train" / "cat" / "b.png").symlink_to(folder / "train" / "cat" / "a.png")
    assert len(load_data(f"imagefolder:{folder}").train) == 7
    (folder / "train" / "cat" / "around").symlink_to(folder / "train")
    with pytest.raises(ValueError, match=r"cat/around/cat is a link to a folder that holds it|"
                       r"around/cat/around is a link to a folder that holds it"):  # fmt: skip
        load_data(f"imagefolder:{folder}")


@posix
def test_no_other_program_reads_an_image_whatever_its_name_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = folder / "bin" / "gs"  # Ghostscript, which Pillow runs for PostScript
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\ntouch '{folder}/ran'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=os.pathsep)
    page = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    (folder / "train" / "cat" / "a.png").write_bytes(page)
    data = load_data(f"imagefolder:{folder}", image_size=28)
    with pytest.raises(ValueError, match=r"cat/a\.png cannot be read as an image"):
        data.train.load([0], None)
    assert not (folder / "ran").exists()


def test_an_image_of_more_pixels_than_any_photo_is_not_decoded(folder: Path) -> None:
    Image.new("1", (10_000, 9_000)).save(folder / "train" / "cat" / "a.png")  # 12 kB
    data = load_data(f"imagefolder:{folder}", image_size=28)
    tracemalloc.start()
    with (
        pytest.raises(ValueError, match=r"cat/a\.png cannot be read as an image: .*pixels"),
        warnings.catch_warnings(action="ignore"),
    ):
        data.train.load([0], None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e7


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": [5], "label": [0]}, r"has no images in its column 'image'"),
        ({"image": ["x"], "label": [0.5]}, "labels that are not integers"),
        ({"image": ["x", "y"], "label": [0, None]}, "labels that are not integers, or missing"),
        ({"image": ["x"], "label": ["cat"]}, "labels that are not integers"),
        ({"image": ["x"], "label": [[0]]}, "labels that are not integers"),
        ({"image": ["x"], "label": [2**40]}, "or a label of 1,000,000 or more"),
    ],
)
def test_a_table_of_the_wrong_types_is_named_in_one_line(
    tmp_path: Path, library, columns: dict, message: str
) -> None:
    for part in ("train", "validation"):
        library.Dataset.from_dict(columns).to_parquet(tmp_path / f"{part}-0.parquet")
    with pytest.raises(ValueError, match=message) as raised:
        load_data(f"parquet:{tmp_path}")
    assert "\n" not in str(raised.value)


@posix
def test_a_row_without_an_image_or_of_a_pipe_is_named(tmp_path: Path, library) -> None:
    os.mkfifo(tmp_path / "pipe")
    for part in ("train", "validation"):
        rows = {"image": [str(tmp_path / "pipe"), None], "label": [0, 1]}
        library.Dataset.from_dict(rows).to_parquet(tmp_path / f"{part}-0.parquet")
    data = load_data(f"parquet:{tmp_path}")
    with pytest.raises(ValueError, match=r"train, row 0, cannot be read as an image: .*regular"):
        data.train.load([0], None)
    with pytest.raises(ValueError, match=r"train, row 1, has no image\."):
        data.train.load([1], None)


def test_a_table_that_says_it_has_billions_of_rows_is_refused(tmp_path: Path, library) -> None:
    from pyarrow import parquet

    for part in ("train", "validation"):
        rows = {"image": ["x", "y"], "label": [0, 1]}
        library.Dataset.from_dict(rows).to_parquet(tmp_path / f"{part}-0.parquet")
    file = tmp_path / "train-0.parquet"
    whole = file.read_bytes()
    many = []
    for place in range(len(whole)):  # a byte of a number of rows, which Arrow would make room for
        file.write_bytes(whole[:place] + b"\x7e" + whole[place + 1 :])
        try:
            about = parquet.read_metadata(file)
            if about.row_group(0).num_rows > 50:
                many.append(place)
        except (OSError, ValueError):
            continue
    for place in many:
        file.write_bytes(whole[:place] + b"\x7e" + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"train-0\.parquet says that it has \d+ rows"):
            load_data(f"parquet:{tmp_path}")
    assert many

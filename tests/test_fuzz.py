"""Every reader of files, on thousands of damaged ones: a value or an error of one line, no more.

Each test takes a few seconds. For longer, and for other files each time, say how many per test:

    SKIPLESS_FUZZ=5000 python -m pytest tests/test_fuzz.py
"""

import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import tomllib
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from html_pages import fetched
from skipless.cli import _describe
from skipless.files import parse
from skipless.paper.reproduce import read_sections
from skipless.record import METRICS, RUN, Record
from skipless.report.page import sections_page
from skipless.runs.configuration import Configuration, read_options
from skipless.runs.kernels import report_runs
from skipless.runs.outcome import Outcome
from skipless.runs.training import read_configuration
from skipless.train import arrays
from skipless.train.checkpoint import Checkpoints, load_weights
from skipless.train.engine import Engine
from skipless.train.images import ImageFiles, ImageSplit, parquet
from skipless.train.settings import Settings
from toy_training import toy_engine

COUNT = os.environ.get("SKIPLESS_FUZZ")
MOST_MEMORY = 3e8  # bytes that Python, numpy and Pillow's callers hold


def fuzz(share: float = 1.0) -> Callable:
    """Settings of a test with a `share` of the usual number of examples."""
    return settings(
        max_examples=max(1, round(share * int(COUNT or 100))),
        derandomize=COUNT is None,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


@contextmanager
def harmless(folder: Path | None = None, *, bounded: bool = True) -> Iterator[None]:
    """Whatever happens is an error that a user gets as one line; `folder` stays as it is.

    If `bounded`, which takes time, memory is too.
    """
    before, peak = snapshot(folder), 0
    if bounded:
        tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        if _describe(error) is None:
            raise
    finally:
        if bounded:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert peak < MOST_MEMORY
    assert snapshot(folder) == before


def snapshot(folder: Path | None) -> list[tuple[str, int]]:
    found = () if folder is None else folder.rglob("*")
    return sorted((str(path), path.lstat().st_mtime_ns) for path in found)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The bytes of a file with up to four kinds of damage."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([1, 2, 4, 8, 64])))
        extreme = st.sampled_from([b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\x7f"])
        match draw(st.sampled_from(["change", "delete", "insert", "repeat", "cut", "flip"])):
            case "change":
                content[start:end] = draw(extreme) * (end - start)
            case "delete":
                del content[start:end]
            case "insert":
                content[start:start] = draw(st.binary(max_size=20) | extreme)
            case "repeat":
                content[start:start] = content[start:end] * draw(st.integers(1, 50))
            case "cut":
                del content[start:]
            case _ if start < len(content):
                content[start] ^= 1 << draw(st.integers(0, 7))
    return bytes(content)


SCRIPT = "<script>alert(1)</script>"
NAMES = [
    "</style>",
    SCRIPT,
    "<img src=//x onerror=a>",
    '"><b>',
    "&lt;",
    "\0",
    "\ud800",
    "😀",
    "a\nb",
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2**31, -(2**63), 10**400, 0.0, 1e308, -1e-320, 1e999, float("nan")]),
    st.sampled_from([*NAMES, "", "mlp:3", "tat", "hf:x", "run", "1e5", "../..", "/dev/zero"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*NAMES, "kind", "step", "a"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def altered(draw: st.DrawFn, document: Any) -> Any:
    """A document in which up to three values or names are others, or missing."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        at, holder, name = document, None, None
        while isinstance(at, dict | list) and at and (holder is None or draw(st.integers(0, 3))):
            holder, name = (
                at,
                draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at)))),
            )
            at = holder[name]
        match draw(st.sampled_from(["value", "value", "value", "delete", "add"])):
            case _ if holder is None or name is None:
                return draw(VALUES)
            case "value":
                holder[name] = draw(VALUES)
            case "delete":
                del holder[name]
            case _ if isinstance(holder, dict):
                holder[draw(st.sampled_from([*NAMES, "step", "model"]))] = draw(VALUES)
            case _:
                holder += [draw(VALUES)]
    return document


GIVEN = {"model": "mlp:7", "method": "tat", "eta": 0.9, "steps": 4, "data": "digits", "lr": 0.1}
SAID = {
    "configuration": GIVEN, "resolved": {"lr": 0.1}, "parameters": 10, "shape": [1, 8, 8],
    "classes": 10, "teacher": None, "solution": {"activation": "leaky_relu"}, "processes": 1,
    "seed": 0, "started": "2026-01-01", "versions": {"torch": "2"}, "git_commit": "a" * 40,
    "machine": {"system": "Linux", "cores": 2, "gpus": []}, "command": ["skipless"], "before": [],
}  # fmt: skip
ROWS = [
    {"kind": "train", "step": 2, "epoch": 0.5, "loss": 2.0, "accuracy": 0.1, "seconds": 1.0},
    {"kind": "validation", "step": 4, "epoch": 1.0, "top1": 0.5, "loss": 1.0, "seconds": 2.0},
    {"kind": "diverged", "step": 4, "epoch": 1.0, "loss": 1.0, "learning_rate": 0.1},
]


def page_of(sections: list) -> str:
    """The page of sections, which runs and fetches nothing whatever names are on it."""
    text = sections_page("Fuzz", sections)
    assert fetched(text.replace("//x", "")) == []
    assert "<script" not in text
    assert "<img" not in text
    return text


@fuzz(0.2)
@given(said=altered(SAID), rows=altered(ROWS))
def test_records_become_a_page_or_an_error(tmp_path_factory, said: Any, rows: Any) -> None:
    folder = fresh(tmp_path_factory)
    (folder / RUN).write_text(json.dumps(said))
    rows = rows if isinstance(rows, list) else [rows]
    (folder / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    with harmless(folder, bounded=False):
        page_of([report_runs([replace(Record.read(folder), folder=folder / SCRIPT)])])
    with harmless(folder):
        read_configuration(Record.read(folder)).build_method()


@fuzz()
@given(
    run=damaged(json.dumps(SAID).encode()),
    metrics=damaged("".join(json.dumps(row) + "\n" for row in ROWS).encode()),
)
def test_damaged_records_are_read_or_refused(tmp_path_factory, run: bytes, metrics: bytes) -> None:
    folder = fresh(tmp_path_factory)
    (folder / RUN).write_bytes(run)
    (folder / METRICS).write_bytes(metrics)
    with harmless(folder):
        Record.read(folder)


def fresh(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("fuzz")


TOML = "\n".join(f"{name} = {json.dumps(value)}" for name, value in GIVEN.items()).encode()
YAML_PARTS = st.lists(
    st.sampled_from(
        "a:_|-_|?_|:_|&a_|*a_|<<:_|!!int_|!!python/object/apply:os.system_|!!binary_|!!timestamp_|"
        "!!python/name:os.system_|!!set_|!!omap_|!!bool_|{|}|[|]|,|_|'|\"|1|lr|%YAML 9.9\n|---\n|"
        "\t|\n|__".replace("_", " ").split("|")
    ),
    max_size=15,
).map("".join)


@fuzz()
@given(st.data())
def test_configurations_are_read_or_refused(tmp_path_factory, data: st.DataObject) -> None:
    folder = fresh(tmp_path_factory)
    kind = data.draw(st.sampled_from(["json", "toml", "yaml", "objects"]))
    path = folder / f"run.{'yaml' if kind == 'objects' else kind}"
    if kind == "yaml":
        path.write_text(data.draw(YAML_PARTS))
    elif kind == "objects":
        path.write_text(json.dumps(data.draw(altered(GIVEN))))
    else:
        path.write_bytes(data.draw(damaged(TOML if kind == "toml" else json.dumps(GIVEN).encode())))
    with harmless(folder):
        Configuration.of_new_run(read_options(path)).build_method()


@fuzz(3)
@given(st.text(alphabet='{}[]":,.0123456789eE-+\\u "ntrfa\n', max_size=60), YAML_PARTS)
def test_documents_in_three_languages_are_parsed_or_refused(text: str, parts: str) -> None:
    for parser, content in ((json.loads, text), (tomllib.loads, text), (yaml.safe_load, parts)):
        with harmless():
            parse(content, parser)


CURVE = {"epochs": [1.0], "top1": [0.5], "seconds": [1.0]}
OUTCOME = {
    "diverged": False, "top1": 0.5, "train_loss": 1.0, "train_accuracy": 0.5, "seconds": 1.0,
    "parameters": 1, "validation": CURVE, "started": "2026", "machine": {}, "versions": {},
    "training": {"epochs": [1.0], "loss": [1.0], "accuracy": [0.5], "seconds": [1.0]},
}  # fmt: skip
RESULTS = [
    {"kind": "item", "item": "table5", "scale": "smoke", "started": "2026", "seconds": 3.0},
    {
        "kind": "trial", "row": "wide_resnet16", "column": "TAT", "chosen": {"lr": 0.1}, "seed": 0,
        "outcome": OUTCOME,
    },
    {"kind": "value", "row": "a", "column": "b", "value": 1.0, "wanted": 2.0},
    {"kind": "line", "panel": "a", "label": "b", "x": [1.0], "y": [2.0], "bars": [0.1]},
]  # fmt: skip


@fuzz()
@given(rows=altered(RESULTS), item=st.sampled_from(["table5", "figure1", "figure5", "table1"]))
def test_results_become_a_page_or_an_error(tmp_path_factory, rows: Any, item: str) -> None:
    path = fresh(tmp_path_factory) / "item.jsonl"
    rows = rows if isinstance(rows, list) else [rows]
    if rows and isinstance(rows[0], dict) and rows[0].get("item") == "table5":
        rows[0]["item"] = item
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with harmless(path.parent):
        page_of(read_sections([path]))


@fuzz()
@given(altered(OUTCOME))
def test_outcomes_are_read_or_refused(values: Any) -> None:
    with harmless():
        Outcome.of(parse(json.dumps(values)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a checkpoint after two of four steps."""
    folder = tmp_path_factory.mktemp("trained")
    trained_engine().run(folder, progress=False)
    (newest,) = (folder / "checkpoints").glob("*4")
    return {path.name: path.read_bytes() for path in newest.iterdir()}


def trained_engine(steps: int = 4) -> Engine:
    return toy_engine(Settings(batch_size=16, steps=steps, average=0.9, log_every=1))


def lay_out(factory: pytest.TempPathFactory, files: dict[str, bytes], seal: bool = True) -> Path:
    run = fresh(factory)
    folder = run / "checkpoints" / "step-00000004"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if seal:
        own = {name: content for name, content in files.items() if name != "manifest.json"}
        sums = {name: hashlib.sha256(content).hexdigest() for name, content in own.items()}
        (folder / "manifest.json").write_text(json.dumps({"sha256": sums}))
    return run


@fuzz(0.3)
@given(st.data())
def test_checkpoints_whose_sums_match_are_restored_or_refused(
    tmp_path_factory, trained: dict[str, bytes], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["model.safetensors", "average.safetensors", "state.pt"]))
    run = lay_out(tmp_path_factory, trained | {name: data.draw(damaged(trained[name]))})
    with harmless(bounded=False):
        trained_engine(5).run(run, resume=True, progress=False)
    with harmless(run):
        load_weights(run / "checkpoints" / "step-00000004")


def places_in(at: Any) -> Iterator[tuple[Any, Any]]:
    """Every value of nested dicts and lists, as its holder and its name there."""
    for name in list(at)[:20] if isinstance(at, dict) else range(min(2, len(at))):
        yield at, name
        if isinstance(at[name], dict | list):
            yield from places_in(at[name])


@fuzz(0.5)
@given(st.data())
def test_states_of_other_values_are_restored_or_refused(
    tmp_path_factory, trained: dict[str, bytes], data: st.DataObject
) -> None:
    state = torch.load(io.BytesIO(trained["state.pt"]), weights_only=True)
    places = list(places_in(state))
    holder, name = places[data.draw(st.integers(0, len(places) - 1))]
    values = [None, 0, -1, 1e308, "text", [], {}, True, torch.zeros(3), torch.ones(2, 2).long()]
    holder[name] = values[data.draw(st.integers(0, len(values) - 1))]
    written = io.BytesIO()
    torch.save(state, written)
    run = lay_out(tmp_path_factory, trained | {"state.pt": written.getvalue()})
    with harmless(bounded=False):
        trained_engine(5).run(run, resume=True, progress=False)


@fuzz()
@given(st.data())
def test_manifests_are_believed_or_refused(
    tmp_path_factory, trained: dict[str, bytes], data: st.DataObject
) -> None:
    whole = json.loads(trained["manifest.json"])
    text = data.draw(
        altered(whole).map(lambda value: json.dumps(value).encode())
        | damaged(trained["manifest.json"])
    )
    run = lay_out(tmp_path_factory, trained | {"manifest.json": text}, seal=False)
    with harmless(run):
        Checkpoints(run).load_newest()
        Checkpoints(run).settings()


BATCH = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1], b"filenames": [b"a", b"b"]}
IDX = struct.pack(">I3I", 0x803, 2, 28, 28) + bytes(2 * 28 * 28)


@fuzz(3)
@given(st.data())
def test_files_of_arrays_are_read_or_refused(
    tmp_path_factory, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr(arrays, "CIFAR10_BATCH", 2)
    folder = fresh(tmp_path_factory)
    kind = data.draw(st.sampled_from(["pickle", "opcodes", "binary", "idx", "gz", "in gz"]))
    pickled = pickle.dumps(BATCH, data.draw(st.integers(0, 5)))
    content = {
        "pickle": damaged(pickled),
        "opcodes": st.lists(
            st.sampled_from([bytes([op]) for op in range(256)]) | st.sampled_from([b"\x80\x02"]),
            max_size=12,
        ).map(lambda ops: b"".join(ops) + pickled),
        "binary": damaged(bytes(2 * 3073)),
        "idx": damaged(IDX),
        "gz": damaged(gzip.compress(IDX, mtime=0)),
        "in gz": damaged(IDX).map(lambda raw: gzip.compress(raw, mtime=0)),
    }[kind]
    path = folder / ("images.gz" if "gz" in kind else "batch.bin" if kind == "binary" else "batch")
    path.write_bytes(data.draw(content))
    with harmless(folder):
        (arrays.read_idx if "gz" in kind or kind == "idx" else arrays.read_cifar10)(path)


def image_bytes(kind: str, mode: str) -> bytes:
    content = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(content, kind)
    return content.getvalue()


IMAGES = [
    image_bytes(kind, mode)
    for kind, modes in {
        "PNG": ("RGB", "RGBA", "P", "1", "L", "I;16"), "JPEG": ("RGB", "CMYK", "L"),
        "GIF": ("P",), "BMP": ("RGB", "1"), "WEBP": ("RGB", "RGBA"), "PPM": ("RGB", "L"),
        "TIFF": ("RGB", "CMYK", "LAB", "F", "I"),
    }.items()
    for mode in modes
]  # fmt: skip


@fuzz(3)
@given(st.data())
def test_images_are_decoded_or_refused(tmp_path_factory, data: st.DataObject) -> None:
    folder = fresh(tmp_path_factory)
    whole = data.draw(st.sampled_from(IMAGES))
    (folder / "a.png").write_bytes(data.draw(damaged(whole)))
    split = ImageSplit(ImageFiles(folder, ("a.png",)), np.zeros(1, np.int64), 14, augment=True)
    with harmless(folder):
        images, _ = split.load([0], torch.rand(1, 3))
        assert images.shape == (1, 3, 14, 14)


@fuzz(0.04)  # a process for each
@given(st.data())
def test_tables_are_read_or_refused(
    tmp_path_factory, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", fresh(tmp_path_factory))
    library.disable_progress_bars()
    folder = fresh(tmp_path_factory)
    rows = data.draw(
        st.sampled_from(
            [
                {"image": [{"bytes": IMAGES[0], "path": "a.png"}] * 2, "label": [0, 1]},
                {"image": ["a.png", None], "label": [0, 1]},
                {"image": [[1], [2]], "label": [0, 1]},
                {"image": [{"bytes": b"", "path": None}] * 2, "label": [0, None]},
            ]
        )
    )
    library.Dataset.from_dict(rows).to_parquet(folder / "whole")
    whole = (folder / "whole").read_bytes()
    for part in ("train", "validation"):
        content = data.draw(st.just(whole) | damaged(whole))
        (folder / f"{part}-0.parquet").write_bytes(content)
    (folder / "whole").unlink()
    with harmless(folder):
        split, _ = parquet(folder, 14, None)
        split.load(range(len(split)), None)

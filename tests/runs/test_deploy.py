"""A report of a deployment says what its figures say, and the figures are those of the files."""

from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch

import onnx
from onnx import TensorProto, helper, numpy_helper
from skipless.runs import deploy
from skipless.runs.candidates import Candidate, baseline, load_candidate
from skipless.runs.deploy import (
    BASELINE,
    FOLDED,
    INT8,
    ORIGINAL,
    Accuracy,
    Deployment,
    DeployRequest,
    FileMetrics,
    deployment_section,
    load_batches,
    measure_accuracy,
    write_report,
)
from skipless.train.arrays import ArraySplit
from skipless.train.data import Data, load_data
from skipless.train.images import ImageSplit

MEBIBYTE = 2**20


def figures(name: str, *, peak: int | None, latency: float, disk: int = MEBIBYTE) -> FileMetrics:
    return FileMetrics(
        name, 1000, {"Conv": 1}, disk, {1: latency}, 5000, peak, peak, best_order=peak is not None
    )


REPORTED = Deployment(  # as of a network without the shortcuts of its baseline
    "net",
    (3, 8, 8),
    "bytes",
    1,
    {
        ORIGINAL: figures("as it is", peak=3_000_000, latency=0.004),
        FOLDED: figures("folded", peak=3_000_000, latency=0.002, disk=1500),
        INT8: figures("INT8", peak=None, latency=0.001),
        BASELINE: replace(figures("peer", peak=4_000_000, latency=0.003), joins=8),
    },
    (),
    2e-6,
    1.0,
    {FOLDED: Accuracy(0.9, 1.0, 200), INT8: Accuracy(0.89, 0.95, 200)},
    {},
)


def changed(kind: str, **to: object) -> Deployment:
    figures = {**REPORTED.figures, kind: replace(REPORTED.figures[kind], **to)}
    return replace(REPORTED, figures=figures)


def rows(given: Deployment) -> dict[str, list[str]]:
    return {label.strip(): cells for label, *cells in deployment_section(given).rows}


def verdicts(given: Deployment) -> dict[str, str]:
    return {verdict.claim: verdict.word for verdict in deployment_section(given).verdicts}


def verdict(given: Deployment, words: str) -> str:
    (found,) = (word for claim, word in verdicts(given).items() if words in claim)
    return found


def test_cells_are_the_figures_of_their_columns() -> None:
    found = rows(REPORTED)
    assert found["parameters"] == ["1,000"] * 4
    assert found["peak activation memory"] == ["3 MB", "3 MB", "-", "4 MB"]
    assert found["measured"] == ["3 MB", "3 MB", "-", "4 MB"]
    assert found["latency, 1 thread"] == ["4 ms", "2 ms", "1 ms", "3 ms"]
    assert found["relative to folded"] == ["2.00", "1.00", "0.50", "1.50"]
    assert found["size on disk"] == ["1.05 MB", "1.5 kB", "1.05 MB", "1.05 MB"]
    assert found["top-1, 200 samples"] == ["-", "90.00%", "89.00%", "-"]
    assert found["agrees with folded"] == ["-", "100.00%", "95.00%", "-"]


def test_every_verdict_depends_on_its_figures() -> None:
    assert set(verdicts(REPORTED).values()) == {"holds"}
    off = changed(BASELINE, measured_peak_memory=4_050_000)
    assert verdict(off, "computed peak") == "does not hold"
    assert verdict(changed(BASELINE, measured_peak_memory=4_030_000), "computed peak") == "holds"
    assert (
        verdict(changed(FOLDED, measured_peak_memory=2_900_000), "computed peak") == "does not hold"
    )
    assert (
        verdict(changed(FOLDED, peak_memory=5_000_000), "less activation memory") == "does not hold"
    )
    assert (
        verdict(replace(REPORTED, difference=2e-4), "reproduces the network's outputs")
        == "does not hold"
    )
    assert (
        verdict(replace(REPORTED, remaining=("2 reads 1 plus 3",)), "are folded") == "does not hold"
    )
    worse = {**REPORTED.accuracy, INT8: Accuracy(0.885, 0.95, 200)}
    assert verdict(replace(REPORTED, accuracy=worse), "INT8 loses") == "does not hold"


def test_verdicts_are_there_only_where_they_apply() -> None:
    memory, int8 = "less activation memory", "INT8 loses"
    both = changed(FOLDED, joins=8)  # an MLP and its peer have none, two ResNets as many
    assert not any(memory in claim for claim in verdicts(both))
    assert not any(memory in claim for claim in verdicts(changed(BASELINE, joins=0)))
    assert verdict(changed(FOLDED, joins=3), memory) == "holds"
    without = replace(REPORTED, accuracy={FOLDED: Accuracy(0.9, 1.0, 200)})
    assert not any(int8 in claim for claim in verdicts(without))
    unknown = {"peak_memory": None, "measured_peak_memory": None}
    known = [replace(own, **unknown) for own in REPORTED.figures.values()]  # pyright: ignore
    nothing = replace(REPORTED, figures=dict(zip(REPORTED.figures, known, strict=True)))
    assert not any("memory" in claim for claim in verdicts(nothing))
    assert "not run" not in verdicts(nothing).values()


def test_the_pages_have_every_verdict_once_and_the_text_is_short(tmp_path: Path) -> None:
    text = write_report(REPORTED, tmp_path)
    page = unescape((tmp_path / "report.html").read_text(encoding="utf-8"))
    for claim in verdicts(REPORTED):
        for shown in (text, page, (tmp_path / "report.md").read_text(encoding="utf-8")):
            assert " ".join(shown.split()).count(claim) == 1
    assert "Peak activation memory is that of the best order" in page
    assert "Peak activation memory is that of the best order" not in text


def test_the_report_names_files_whose_orders_were_not_searched() -> None:
    for kind in (FOLDED, BASELINE):
        found = deployment_section(changed(kind, best_order=False)).verdicts
        shown = " ".join(verdict.evidence for verdict in found)
        assert (
            f"Too many orders to search, so the file's own is used: {REPORTED.figures[kind].name}."
            in shown
        )
    assert "search" not in " ".join(v.evidence for v in deployment_section(REPORTED).verdicts)


def linear_file(path: Path, weights: np.ndarray) -> Path:
    """A file whose answer is the place of the largest entry of x @ weights."""
    value = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["x"], ["f"]),
            helper.make_node("MatMul", ["f", "w"], ["y"]),
        ],
        "g",
        [value("x", ["batch", 3, 1, 1])],
        [value("y", ["batch", 3])],
        [numpy_helper.from_array(weights.astype(np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path)
    return path


def hot(places: list[int], labels: list[int]) -> ArraySplit:
    images = torch.eye(3)[places][:, :, None, None].to(torch.uint8)
    return ArraySplit(images, torch.tensor(labels), torch.zeros(3), torch.ones(3))


def test_accuracy_is_against_labels_and_agreement_against_the_first_file(tmp_path: Path) -> None:
    # The first file answers with the place of the one, the second swaps places 0 and 1.
    swap = np.eye(3)[[1, 0, 2]]
    paths = {
        "first": linear_file(tmp_path / "a.onnx", np.eye(3)),
        "second": linear_file(tmp_path / "b.onnx", swap),
    }
    split = hot([0, 1, 2, 2, 2], labels=[0, 0, 2, 2, 1])
    found = measure_accuracy(paths, load_batches(split, None, 10))
    assert found["first"] == Accuracy(3 / 5, 1.0, 5)
    assert found["second"] == Accuracy(3 / 5, 3 / 5, 5)
    # With places rolled before they are read, the second file answers 0 -> 0, 1 -> 2, 2 -> 1.
    rolled = measure_accuracy(paths, load_batches(split, lambda images: images.roll(1, 1), 10))
    assert rolled["second"].top1 == 2 / 5


def test_calibration_uses_a_limited_number_of_training_samples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[np.ndarray] = []
    monkeypatch.setattr(deploy, "_CALIBRATION", 40)
    monkeypatch.setattr(deploy, "quantize", lambda before, path, batches: seen.extend(batches))
    monkeypatch.setattr(deploy, "measure_accuracy", lambda paths, batches: {})
    train, validation = hot([0] * 90, labels=[0] * 90), hot([1] * 90, labels=[1] * 90)
    candidate = replace(
        load_candidate("mlp:3", {"method": "eoc"}, (3, 1, 1)),
        data=Data("hot", 3, (3, 1, 1), train, validation),
        normalize=None,
    )
    files = deploy._Files(candidate, DeployRequest(tmp_path), tmp_path, print)
    files.paths[FOLDED] = tmp_path
    files._quantize(candidate.model)
    assert sum(map(len, seen)) == 40
    assert all((batch[:, 0] == 1.0).all() for batch in seen)


def test_the_baseline_has_the_same_classes_width_and_samples() -> None:
    given = {"width": 1.0, "method": "tat", "eta": 0.6}
    own = load_candidate("wide_resnet10", given, (4, 16, 8))
    other = baseline(own, None)
    assert isinstance(other, Candidate)
    shapes = [
        {name: p.shape for name, p in c.model.named_parameters() if name.startswith("fc.weight")}
        for c in (own, other)
    ]
    assert shapes[0] == shapes[1]
    assert other.model(other.examples(2)).shape == own.model(own.examples(2)).shape == (2, 10)


def test_a_network_normalised_per_location_reads_one_channel_more() -> None:
    found = load_candidate("mlp:3", {"method": "eoc", "data": "digits", "normalize": "location"})
    assert found.shape == (2, 8, 8)
    assert found.model(found.examples(3)).shape == (3, 10)
    assert found.preparation.endswith("then normalised per location")


def test_the_preparation_has_mean_and_deviation_for_subsets_and_image_files_too() -> None:
    whole, part = (
        load_candidate("mlp:3", {"method": "eoc", "data": "digits", **some}).preparation
        for some in ({}, {"train_size": 100})
    )
    assert whole == part
    assert "minus the mean" in whole
    split = ImageSplit(source=None, labels=np.zeros(1, np.int64))  # pyright: ignore
    data = Data("imagefolder:x", 10, (3, 224, 224), split, split)
    shown = replace(load_candidate("mlp:3", {"method": "eoc"}), data=data).preparation
    # 0.485, 0.456, 0.406 and 0.229, 0.224, 0.225, of bytes.
    assert "mean 123.675, 116.28, 103.53, divided by 58.395, 57.12, 57.375" in shown


def test_samples_are_prepared_as_in_training() -> None:
    from skipless.torch import normalize_per_sample

    found = load_candidate("mlp:3", {"method": "eoc", "data": "digits"})
    images, _ = load_data("digits").validation.load([0, 1, 2], None)
    torch.testing.assert_close(found.examples(3), normalize_per_sample(images))

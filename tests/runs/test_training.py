"""A configuration reaches every part of a run."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from skipless.record import Json, Record
from skipless.runs.configuration import Configuration, options
from skipless.runs.training import (
    DEFAULT_RATES,
    build_run,
    load_images,
    read_configuration,
    train,
)
from skipless.train.checkpoint import Checkpoints
from skipless.train.engine import Engine, RunStatus
from skipless.train.process import Process, cores
from skipless.train.settings import Settings

SMALL = Configuration(model="mlp:14", width=8, norm="batch", steps=3, device="cpu")


def test_every_setting_reaches_the_engine() -> None:
    other = {
        "epochs": 3, "batch_size": 24, "steps": 5, "schedule": "step", "marks": "75/200, 0.75",
        "warmup": 0.5,
        "label_smoothing": 0.3, "accumulate": 2, "precision": "bfloat16", "channels_last": True,
        "compile": True, "average": 0.7, "clip": 2.0, "seed": 9, "workers": 3, "log_every": 4,
        "evaluate_every": 2, "checkpoint_every": 6, "keep": 8, "classes_per_batch": 4,
        "tf32": True, "cudnn_benchmark": False, "sync_batch_norm": True,
        "log_kernel": 2, "log_layers": "fc",
    }  # fmt: skip
    assert other.keys() == {own.name for own in fields(Settings)}
    given = Configuration.of(SMALL.as_mapping(), other)
    settings = build_run(given, Process()).settings
    assert {name: getattr(settings, name) for name in other} == other
    assert settings.mark_fractions == (0.375, 0.75)
    assert build_run(SMALL, Process()).settings.mark_fractions == (4 / 9, 7 / 9)


@pytest.mark.parametrize("marks", ["half", "1/0", "", "0.5,", "0.7,0.3", "0,0.5", "1.5"])
def test_marks_must_be_rising_fractions(marks: str) -> None:
    with pytest.raises(ValueError, match=r"marks must be (fractions|increasing fractions in)"):
        replace(SMALL, schedule="step", marks=marks)


def test_marks_belong_to_the_step_schedule() -> None:
    with pytest.raises(ValueError, match=r"the schedule is cosine\. Drop --marks 0\.5"):
        replace(SMALL, marks="0.5")


def test_a_run_computes_on_gpus_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def ends(*_: object, **__: object) -> RunStatus:
        cudnn: Any = torch.backends.cudnn
        seen.append((cudnn.conv.fp32_precision, cudnn.benchmark))
        return RunStatus(3, 3, True)

    monkeypatch.setattr(Engine, "run", ends)
    train(replace(SMALL, tf32=False), tmp_path / "a")
    train(replace(SMALL, tf32=True, cudnn_benchmark=False), tmp_path / "b")
    assert seen == [("ieee", True), ("tf32", False)]


def test_data_has_the_given_sizes() -> None:
    given = replace(SMALL, model="wide_resnet10", width=1.0, train_size=30, validation_size=7)
    parts = build_run(replace(given, image_size=4), Process())
    assert (len(parts.data.train), len(parts.data.validation)) == (30, 7)
    assert parts.data.shape == (1, 4, 4)


def test_without_delta_the_whole_kernel_is_initialised() -> None:
    given = replace(SMALL, model="wide_resnet10", width=1.0, distribution="gaussian")
    for delta, drawn in ((True, 1), (False, 9)):
        weight = next(
            p for p in build_run(replace(given, delta=delta), Process()).model.parameters()
            if p.dim() == 4 and p.shape[2:] == (3, 3)
        )  # fmt: skip
        assert int((weight != 0).any(dim=(0, 1)).sum()) == drawn


def test_convolutions_are_laid_out_channels_last_and_others_are_not() -> None:
    for model, width, wanted in (("wide_resnet10", 1.0, True), ("mlp:14", 8.0, False)):
        given = replace(SMALL, model=model, width=width)
        parts = build_run(given, Process())
        assert parts.settings.channels_last is wanted
        weights = [p for p in parts.model.parameters() if p.dim() == 4 and p.shape[2] > 1]
        assert all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)


def test_a_layout_that_pytorch_gets_wrong_on_cpus_is_not_used() -> None:
    # Conv2d(4, 8, 1, stride=2), channels last: the backward pass corrupts memory.
    given = replace(SMALL, model="resnet18", width=0.0625)
    assert not build_run(given, Process()).settings.channels_last
    assert build_run(replace(given, width=0.125), Process()).settings.channels_last
    with pytest.raises(ValueError, match="strided 1x1 convolutions with fewer than 8 inputs"):
        build_run(replace(given, channels_last=True), Process())


def test_image_files_are_decoded_by_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("train", "val"):
        for label in ("a", "b"):
            (tmp_path / part / label).mkdir(parents=True)
            Image.new("RGB", (40, 40)).save(tmp_path / part / label / "0.jpg")
    given = replace(SMALL, data=f"imagefolder:{tmp_path}", image_size=8, batch_size=2)
    assert build_run(given, Process()).settings.workers == max(1, cores() - 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert build_run(given, Process()).settings.workers == 1
    assert build_run(SMALL, Process()).settings.workers == 0


@pytest.mark.parametrize(("slope", "eta"), [(0.0, 0.9), (0.19, None)])
def test_runs_that_were_clamped_before_eta_had_a_default_stay_relu(slope, eta) -> None:
    stored = {"model": "mlp:5", "method": "tat", "clamp": True}
    run: dict[str, Json] = {"configuration": stored, "solution": {"negative_slope": slope}}
    assert read_configuration(Record(Path(), run, ())).eta == eta


def test_options_that_do_not_change_the_numbers_may_change_on_resuming() -> None:
    values = {"data_folder": "x", "workers": 2, "device": "cuda", "keep": 9, "checkpoint_every": 4}
    values |= {"tf32": True, "cudnn_benchmark": False, "log_kernel": 5, "log_layers": "fc"}
    assert values.keys() == {name for name, own in options().items() if own.resumable}
    assert SMALL.resume_with(values) == replace(SMALL, **values)


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": "kfac", "kfac_burn_in": 1, "model": "wide_resnet10", "width": 0.25},
        {"optimizer": "kfac", "kfac_burn_in": 1, "norm": "batch"},
        {"optimizer": "lars", "norm": "layer"},
        {"optimizer": "sgd", "activation": "prelu", "clip": 1.0},
        {"optimizer": "sgd", "method": "tat", "trainable_slope": "channel"},
    ],
)
def test_bfloat16_trains_nearly_as_float32_and_resumes_exactly(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    small = {"model": "mlp:14", "width": 8, "data": "synthetic:1x8x8", "validation_size": 50}
    small |= {"steps": 4, "log_every": 1, "checkpoint_every": 2, "keep": 9, "device": "cpu"}
    runs: dict[str, Record] = {}
    for precision in ("float32", "bfloat16"):
        configuration = Configuration.of(small, given, {"precision": precision})
        _, record = train(configuration, tmp_path / precision, progress=False)
        assert record is not None
        runs[precision] = record
    losses = {name: record.series("train", "loss")[1] for name, record in runs.items()}
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.03)
    assert losses["bfloat16"] != losses["float32"]
    evaluated = [record.series("validation", "loss")[1] for record in runs.values()]
    assert evaluated[1] == pytest.approx(evaluated[0], rel=0.03)
    weights = Checkpoints(tmp_path / "bfloat16").load_newest()
    assert weights is not None
    assert {t.dtype for t in weights.weights.values() if t.is_floating_point()} <= {
        torch.float32,
        torch.float64,  # constants of activations
    }
    (tmp_path / "bfloat16" / "checkpoints" / "step-00000004").rename(tmp_path / "last")
    _, again = train(configuration, tmp_path / "bfloat16", resume=True, progress=False)
    assert again is not None
    assert again.series("train", "loss")[1] == losses["bfloat16"]
    assert again.series("validation", "loss")[1] == evaluated[1]


def test_a_resumed_run_remembers_its_earlier_starts(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(SMALL, folder, progress=False)
    train(replace(SMALL, keep=7), folder, resume=True, progress=False)
    run = Record.read(folder).run
    before = run["before"]
    assert isinstance(before, list)
    assert len(before) == 1
    keeps = [record["configuration"]["keep"] for record in (before[0], run)]  # pyright: ignore
    assert keeps == [3, 7]


def test_a_record_has_the_defaults_that_were_taken_and_how_many_images_judged(
    tmp_path: Path,
) -> None:
    train(replace(SMALL, lr=None), tmp_path, progress=False)
    run = Record.read(tmp_path).run
    assert run["configuration"]["lr"] is None  # pyright: ignore
    assert run["resolved"]["lr"] == DEFAULT_RATES[SMALL.optimizer]  # pyright: ignore
    assert run["validation_images"] == len(load_images(SMALL).validation)


def test_a_file_instead_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        train(SMALL, tmp_path / "run", progress=False)


def test_per_location_normalisation_adds_a_channel(tmp_path: Path) -> None:
    given = replace(SMALL, model="wide_resnet10", width=1.0, normalize="location")
    parts = build_run(given, Process())
    first = next(iter(parts.model.parameters()))
    assert first.shape[1] == 2
    assert parts.normalize is not None
    images = parts.normalize(parts.data.train.load([0, 1], None)[0])
    torch.testing.assert_close(images.square().mean(dim=1), torch.ones(2, 8, 8))

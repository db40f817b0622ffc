"""A configuration reaches every part of a run."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from skipless.record import Record
from skipless.runs.configuration import CHANGEABLE, Configuration
from skipless.runs.training import assembled, train
from skipless.train.process import Process, cores
from skipless.train.settings import Settings

SMALL = Configuration(model="mlp:14", width=8, norm="batch", steps=3, device="cpu")


def test_what_the_engine_can_be_told_it_is_told() -> None:
    other = {
        "epochs": 3, "batch_size": 24, "steps": 5, "schedule": "step", "marks": "75/200, 0.75",
        "warmup": 0.5,
        "label_smoothing": 0.3, "accumulate": 2, "precision": "bfloat16", "channels_last": True,
        "compile": True, "average": 0.7, "clip": 2.0, "seed": 9, "workers": 3, "log_every": 4,
        "evaluate_every": 2, "checkpoint_every": 6, "keep": 8, "classes_per_batch": 4,
    }  # fmt: skip
    assert other.keys() == {own.name for own in fields(Settings)}
    given = Configuration.of(SMALL.as_mapping(), other)
    told = replace(Settings(), **{**other, "marks": (0.375, 0.75)})
    assert assembled(given, Process()).settings == told


def test_usual_values_of_engine_and_command_line_are_the_same() -> None:
    usual = Configuration()
    for own in fields(Settings):
        if own.name == "marks":
            assert assembled(SMALL, Process()).settings.marks == own.default == (4 / 9, 7 / 9)
        elif own.name not in ("channels_last", "workers"):  # which network and data decide
            assert getattr(usual, own.name) == own.default


@pytest.mark.parametrize("marks", ["half", "1/0", "", "0.5,", "0.7,0.3", "0,0.5", "1.5"])
def test_marks_that_are_no_rising_fractions_are_refused(marks: str, tmp_path: Path) -> None:
    given = replace(SMALL, schedule="step", marks=marks)
    with pytest.raises(ValueError, match=r"--marks|fall at"):
        train(given, tmp_path / "run", progress=False)


def test_marks_belong_to_the_step_schedule() -> None:
    with pytest.raises(ValueError, match="the schedule is cosine"):
        assembled(replace(SMALL, marks="0.5"), Process())


def test_data_is_as_small_as_asked_for() -> None:
    given = replace(SMALL, model="wide_resnet10", width=1.0, train_size=30, validation_size=7)
    parts = assembled(replace(given, image_size=4), Process())
    assert (len(parts.data.train), len(parts.data.validation)) == (30, 7)
    assert parts.data.shape == (1, 4, 4)


def test_all_of_a_kernel_is_drawn_without_delta() -> None:
    given = replace(SMALL, model="wide_resnet10", width=1.0, distribution="gaussian")
    for delta, drawn in ((True, 1), (False, 9)):
        weight = next(
            p for p in assembled(replace(given, delta=delta), Process()).model.parameters()
            if p.dim() == 4 and p.shape[2:] == (3, 3)
        )  # fmt: skip
        assert int((weight != 0).any(dim=(0, 1)).sum()) == drawn


def test_convolutions_are_laid_out_channels_last_and_others_are_not() -> None:
    for model, width, wanted in (("wide_resnet10", 1.0, True), ("mlp:14", 8.0, False)):
        given = replace(SMALL, model=model, width=width)
        parts = assembled(given, Process())
        assert parts.settings.channels_last is wanted
        weights = [p for p in parts.model.parameters() if p.dim() == 4 and p.shape[2] > 1]
        assert all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)


def test_a_layout_that_pytorch_gets_wrong_on_cpus_is_not_taken() -> None:
    # Conv2d(4, 8, 1, stride=2), channels last: the backward pass corrupts memory.
    given = replace(SMALL, model="resnet18", width=0.0625)
    assert not assembled(given, Process()).settings.channels_last
    assert assembled(replace(given, width=0.125), Process()).settings.channels_last
    with pytest.raises(ValueError, match="1x1 convolutions with a stride"):
        assembled(replace(given, channels_last=True), Process())


def test_image_files_are_decoded_by_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("train", "val"):
        for label in ("a", "b"):
            (tmp_path / part / label).mkdir(parents=True)
            Image.new("RGB", (40, 40)).save(tmp_path / part / label / "0.jpg")
    given = replace(SMALL, data=f"imagefolder:{tmp_path}", image_size=8, batch_size=2)
    assert assembled(given, Process()).settings.workers == max(1, cores() - 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert assembled(given, Process()).settings.workers == 1
    assert assembled(SMALL, Process()).settings.workers == 0


@pytest.mark.parametrize("name", CHANGEABLE)
def test_what_does_not_change_the_numbers_may_change(name: str) -> None:
    values = {"data_folder": "x", "workers": 2, "device": "cuda", "keep": 9, "checkpoint_every": 4}
    assert getattr(SMALL.changed({name: values[name]}), name) == values[name]


def test_a_run_that_goes_on_remembers_how_it_was_started(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(SMALL, folder, progress=False)
    train(replace(SMALL, keep=7), folder, resume=True, progress=False)
    run = Record.read(folder).run
    before = run["before"]
    assert isinstance(before, list)
    assert len(before) == 1
    keeps = [record["configuration"]["keep"] for record in (before[0], run)]  # pyright: ignore
    assert keeps == [3, 7]


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        train(SMALL, tmp_path / "run", progress=False)


def test_per_location_normalisation_brings_a_channel(tmp_path: Path) -> None:
    given = replace(SMALL, model="wide_resnet10", width=1.0, normalize="location")
    parts = assembled(given, Process())
    first = next(iter(parts.model.parameters()))
    assert first.shape[1] == 2
    assert parts.normalize is not None
    images = parts.normalize(parts.data.train.load([0, 1], None)[0])
    torch.testing.assert_close(images.square().mean(dim=1), torch.ones(2, 8, 8))

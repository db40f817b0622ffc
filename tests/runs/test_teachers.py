"""A run of `skipless train` teaches another one: whole, resumed, or in several processes."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from skipless.cli import main
from skipless.paper import ITEMS
from skipless.paper.reproduce import Request, run_item
from skipless.record import Record
from skipless.runs import search
from skipless.runs.candidates import load_candidate
from skipless.runs.configuration import Configuration
from skipless.runs.place import Place
from skipless.runs.training import build_run, dry_run, train
from skipless.train.batches import Batches
from skipless.train.checkpoint import Checkpoints
from skipless.train.engine import evaluate
from skipless.train.process import Process

TEACHER = Configuration(
    model="mlp:3", width=12, norm="batch", lr=0.1, epochs=2, batch_size=96, average=0.5,
    device="cpu", threads=1,
)  # fmt: skip
STUDENT = Configuration(
    model="mlp:14", width=8, method="tat", steps=8, batch_size=48, log_every=1, checkpoint_every=4,
    device="cpu", threads=1, teacher_weight=0.7, teacher_temperature=2.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "run"
    train(TEACHER, folder, progress=False)
    return folder


@pytest.fixture
def copied(teacher: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(teacher, tmp_path / "copied"))


def taught_by(path: Path, **other: object) -> Configuration:
    return Configuration.of(STUDENT.as_mapping(), {"teacher": str(path), **other})


def curve(folder: Path) -> list[dict[str, object]]:
    timed = ("seconds", "images_per_second")
    return [{k: v for k, v in r.items() if k not in timed} for r in Record.read(folder).metrics]


def losses(folder: Path) -> list[float]:
    return Record.read(folder).series("train", "loss")[1]


@pytest.mark.parametrize(
    ("place", "kind", "step"),
    [
        ("", "average", 28),
        ("checkpoints/step-00000014", "average", 14),
        ("checkpoints/step-00000014/model.safetensors", "validation", 14),
    ],
)
def test_the_teacher_is_the_network_that_its_run_evaluated(
    teacher: Path, place: str, kind: str, step: int
) -> None:
    parts = build_run(taught_by(teacher / place), Process())
    assert parts.teacher is not None
    batches = Batches(parts.data.validation, 90, normalize=parts.normalize).in_order()
    found = evaluate(parts.teacher.network, batches, Process(), lambda net, x: net(x))
    record = Record.read(teacher)
    steps, wanted = record.series(kind, "loss")
    assert found is not None
    assert found["loss"] == pytest.approx(wanted[steps.index(step)], rel=1e-5)
    assert (parts.teacher.weight, parts.teacher.temperature) == (0.7, 2.0)


def refused(given: Configuration, message: str) -> None:
    with pytest.raises((ValueError, OSError), match=message) as error:
        build_run(given, Process())
    assert "\n" not in str(error.value)


def test_a_wrong_teacher_is_named_with_a_remedy(copied: Path, tmp_path: Path) -> None:
    refused(taught_by(tmp_path / "nothing"), r"--teacher: .*nothing does not exist. Name")
    (tmp_path / "empty").mkdir()
    refused(taught_by(tmp_path / "empty"), r"--teacher: .*has no checkpoint. Name")
    refused(replace(STUDENT, teacher=""), r"--teacher: .*, got ''. Name")
    refused(replace(STUDENT, teacher=None), r"--teacher-weight needs a trained network: --teacher")
    newest = copied / "checkpoints" / "step-00000028"
    refused(taught_by(copied / "metrics.jsonl"), r"metrics.jsonl is not a trained network")
    (newest / "average.safetensors").write_bytes(b"damaged")
    refused(taught_by(copied), r"step-00000028 is damaged .*mismatch for average.safetensors")
    (newest / "manifest.json").unlink()
    refused(taught_by(copied), r"step-00000028 is damaged")
    (copied / "run.json").unlink()
    refused(taught_by(copied), r"--teacher: .*copied has no run.json, .* Name")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged: "),
        ('{"configuration": null}', "has no configuration with a model"),
        ('{"configuration": {"lr": 0.1}}', "has no configuration with a model"),
        ('{"configuration": {"model": 3}}', "is damaged: model must be a string, got 3"),
        ('{"configuration": {"model": "vgg"}}', "is damaged: There is no model 'vgg'"),
        ('{"configuration": {"model": "mlp:3", "activation": "odd"}}', "describes another netw"),
    ],
)
def test_a_damaged_run_json_is_named_for_a_teacher_and_for_deployment(
    copied: Path, text: str, message: str
) -> None:
    (copied / "run.json").write_text(text)
    refused(taught_by(copied), rf"copied/run.json {message}.*(Restore it|Name another)")
    with pytest.raises(ValueError, match=r"copied/run.json .*Restore it"):
        load_candidate(str(copied), {})


def test_options_of_another_version_are_ignored_with_a_note(copied: Path) -> None:
    run = json.loads((copied / "run.json").read_text())
    run["configuration"]["of_tomorrow"] = 1
    (copied / "run.json").write_text(json.dumps(run))
    with pytest.warns(
        UserWarning,
        match=r"copied/run.json has options of another version, which are ignored: of_tomorrow",
    ):
        assert build_run(taught_by(copied), Process()).teacher is not None


@pytest.mark.parametrize("place", ["nothing", "empty", "metrics.jsonl", "step-00000028", ""])
def test_a_path_without_a_run_gives_the_same_error_for_a_teacher_and_for_deployment(
    copied: Path, place: str
) -> None:
    (copied / "empty").mkdir()
    shutil.copytree(copied / "checkpoints" / "step-00000028", copied / "step-00000028")
    named = str(copied / place) if place else ""
    errors = []
    for use in (
        lambda: build_run(replace(STUDENT, teacher=named), Process()),
        lambda: load_candidate(named, {}),
    ):
        with pytest.raises((ValueError, OSError)) as caught:
            use()
        errors.append(str(caught.value))
    shared = errors[0].removeprefix("--teacher: ")
    assert (
        errors[1]
        == f"{shared} Or name a network (skipless models), or package.module:factory of your own."
    )


def test_a_teacher_of_other_images_or_classes_is_refused(teacher: Path, copied: Path) -> None:
    refused(
        taught_by(teacher, data="synthetic:1x8x8:7"),
        r"same number of classes: 10 for the teacher in .*, 7 for the student",
    )
    refused(taught_by(teacher, image_size=4), r"image shape: \[1, 8, 8\] .*, \[1, 4, 4\] for")
    refused(taught_by(teacher, normalize="dataset"), r"same --normalize: sample .*, dataset for")
    run = json.loads((copied / "run.json").read_text())  # as an older version wrote it
    older = {k: v for k, v in run.items() if k not in ("shape", "classes", "teacher")}
    (copied / "run.json").write_text(json.dumps(older))
    assert build_run(taught_by(copied), Process()).teacher is not None
    refused(taught_by(copied, data="synthetic:1x8x8:7"), r"does not fit these images and classes")


def test_a_teacher_of_other_data_is_worth_a_note(teacher: Path) -> None:
    with pytest.warns(UserWarning, match=r"was trained on digits, the student on synthetic:1x8x8"):
        build_run(taught_by(teacher, data="synthetic:1x8x8:10:100"), Process())


@pytest.mark.parametrize("optimizer", ["sgd", "kfac"])
def test_a_resumed_student_is_the_same_and_its_teacher_may_have_moved(
    teacher: Path, copied: Path, tmp_path: Path, optimizer: str
) -> None:
    given = taught_by(copied, optimizer=optimizer, lr=0.01, average=0.9)
    whole = tmp_path / "whole"
    train(given, whole, progress=False)
    cut = Path(shutil.copytree(whole, tmp_path / "cut"))
    shutil.rmtree(Checkpoints(cut).paths()[-1])
    shutil.rmtree(copied)
    with pytest.raises(FileNotFoundError, match=r"--teacher: .*copied does not exist"):
        train(given, cut, resume=True, progress=False)
    moved = given.resume_with({"teacher": str(teacher)})
    train(moved, cut, resume=True, progress=False)
    assert curve(cut) == curve(whole)
    origin = Record.read(cut).run["teacher"]
    assert isinstance(origin, dict)
    assert (origin["run"], origin["step"]) == (str(teacher), 28)


def test_k_fac_measures_curvature_beside_a_teacher(teacher: Path, tmp_path: Path) -> None:
    options = {"optimizer": "kfac", "kfac_burn_in": 1, "kfac_inverse_period": 2}
    for name, weight in (("none", 0.0), ("much", 0.9)):
        train(taught_by(teacher, teacher_weight=weight, **options), tmp_path / name, progress=False)
    alone = replace(STUDENT, teacher_weight=0.9, teacher_temperature=4.0)
    train(Configuration.of(alone.as_mapping(), options), tmp_path / "alone", progress=False)
    assert losses(tmp_path / "none") == losses(tmp_path / "alone") != losses(tmp_path / "much")


def test_a_run_does_not_resume_with_another_teacher(
    teacher: Path, copied: Path, tmp_path: Path
) -> None:
    given = taught_by(teacher)
    train(given, tmp_path / "run", progress=False)
    other = given.resume_with({"teacher": str(copied / "checkpoints" / "step-00000014")})
    with pytest.raises(
        ValueError, match=r"started with step 28 of .* as its teacher, got step 14 of"
    ):
        train(other, tmp_path / "run", resume=True, progress=False)
    untaught = replace(STUDENT, teacher_weight=0.9, teacher_temperature=4.0)
    with pytest.raises(ValueError, match=r"the run started without --teacher"):
        untaught.resume_with({"teacher": str(teacher)})
    with pytest.raises(ValueError, match=r"are of a run with --teacher-weight 0\.7"):
        train(untaught, tmp_path / "run", resume=True, progress=False)
    with pytest.raises(
        ValueError, match=r"--teacher-weight 0\.5: the run started with --teacher-weight 0\.7"
    ):
        given.resume_with({"teacher_weight": 0.5})


def test_a_dry_run_shows_the_memory_of_the_teacher(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = taught_by(teacher, batch_size=1440, accumulate=2)
    parts, memory = dry_run(given)
    assert parts.teacher is not None
    own = [*parts.teacher.network.parameters(), *parts.teacher.network.buffers()]
    weights = sum(t.numel() * t.element_size() for t in own)
    # The first layer, or the flattening before it, reads 64 numbers and writes 12, or 64.
    assert memory.teacher - weights in (720 * 4 * (64 + 12), 720 * 4 * (64 + 64))
    command = ["train", "--model", "mlp:14", "--method", "tat", "--dry-run", "--teacher"]
    assert main([*command, str(teacher)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^teacher +\d+\.\d MiB$", shown, re.MULTILINE)
    assert re.search(r"^teacher_temperature +4\.0$", shown, re.MULTILINE)
    assert main([*command, str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_two_processes_have_the_losses_of_one(teacher: Path, tmp_path: Path) -> None:
    options = "--model mlp:14 --width 8 --method tat --steps 8 --batch-size 48 --log-every 1"
    options += f" --accumulate 2 --classes-per-batch 2 --device cpu --teacher {teacher}"
    command = ["-m", "skipless.cli", "train", *options.split(), "--output"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # As torchrun starts them, whose own process would import torch, too.
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, *command, str(tmp_path / "two")],
            env={**os.environ, **world, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    assert main([*command[2:], str(tmp_path / "one")]) == 0
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    assert Record.read(tmp_path / "two").run["processes"] == 2
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=2e-4)


@pytest.mark.filterwarnings("ignore:C_f:skipless.core.solution.ClampedTargetWarning")
def test_an_item_trains_the_teacher_of_its_runs_once_and_keeps_it(tmp_path: Path) -> None:
    item, request = ITEMS["distillation"], Request("smoke")
    taught = [cell for cell in item.cells if cell.teacher is not None]
    found = run_item(replace(item, cells=tuple(taught[:2])), request, Place(tmp_path, workers=1))
    assert len(found.trials) == 2
    (own,) = (tmp_path / "teachers").iterdir()
    started = Record.read(own).run["started"]
    saved = Checkpoints(own).load_newest()
    assert saved is not None
    for run in (tmp_path / "runs").iterdir():
        origin = Record.read(run).run["teacher"]
        assert isinstance(origin, dict)
        assert (origin["run"], origin["step"]) == (str(own.resolve()), saved.step)
    run_item(replace(item, cells=(taught[2],)), request, Place(tmp_path, workers=1))
    assert Record.read(own).run["started"] == started
    # Runs are known by what their teacher is, not by where it is.
    elsewhere = tmp_path / "elsewhere"
    run_item(replace(item, cells=(taught[2],)), request, Place(elsewhere, workers=1))
    assert {path.name for path in (elsewhere / "runs").iterdir()} < {
        path.name for path in (tmp_path / "runs").iterdir()
    }


def test_only_the_first_process_decides_whether_a_teacher_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may not see its outcome yet, on a shared disk; to train it alone, they would hang."""
    trained: list[Path] = []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(search, "train_to_end", lambda given, folder: trained.append(folder))
    work = search._Runs("study", Place(tmp_path), 60, {}, {})
    for told, times in ((False, 0), (True, 1)):
        monkeypatch.setattr(search, "broadcast", lambda _, told=told: told)
        work._train_teacher(Configuration())
        assert len(trained) == times


def test_a_teacher_does_not_change_the_students_random_numbers(
    teacher: Path, tmp_path: Path
) -> None:
    """Building the teacher's network draws random numbers, which must not affect the student."""
    alone = replace(STUDENT, teacher_weight=0.9, teacher_temperature=4.0, dropout=0.5)
    weights = [
        torch.cat([p.detach().flatten() for p in build_run(given, Process()).model.parameters()])
        for given in (alone, taught_by(teacher, dropout=0.5))
    ]
    assert torch.equal(*weights)
    train(alone, tmp_path / "alone", progress=False)
    train(taught_by(teacher, dropout=0.5, teacher_weight=0.0), tmp_path / "taught", progress=False)
    assert losses(tmp_path / "alone") == losses(tmp_path / "taught")

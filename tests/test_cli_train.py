"""`skipless train` and `skipless data`, as users call them."""

import json
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from skipless.cli import main
from skipless.record import Record

TINY = ["--model", "mlp:14", "--width", "8", "--steps", "4", "--device", "cpu"]


def test_a_run_leaves_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main(["train", *TINY, "--seed", "3", "--log-every", "2", "--output", str(folder)]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("note: gradients are clipped at norm 1")
    assert len(shown.err.splitlines()) == 1
    assert "Finished after 4 steps" in shown.out
    record = Record.read(folder)
    configuration = record.run["configuration"]
    assert isinstance(configuration, dict)
    assert (configuration["model"], configuration["epochs"]) == ("mlp:14", 90)
    assert (configuration["clip"], configuration["lr"]) == (1.0, 0.03)
    assert record.run["seed"] == 3
    assert {"git_commit", "versions", "machine", "command", "started"} <= record.run.keys()
    assert record.series("train", "loss")[0] == [2, 4]
    assert record.series("validation", "top5")[0] == [4]
    assert list((folder / "tensorboard").iterdir())
    assert (folder / "checkpoints" / "step-00000004" / "model.safetensors").is_file()


def test_tensorboards_events_are_those_of_the_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # TensorBoard reads events by its own means then, and does not import TensorFlow.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "run"
    main(["train", *TINY, "--log-every", "1", "--output", str(folder)])
    board = EventAccumulator(str(folder / "tensorboard")).Reload()
    steps, losses = Record.read(folder).series("train", "loss")
    events = board.Scalars("train/loss")
    assert [event.step for event in events] == steps
    assert [event.value for event in events] == pytest.approx(losses)


def test_the_command_line_wins_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = "mlp:14"\nwidth = 8\nsteps = 90\noptimizer = "adamw"\n')
    folder = tmp_path / "run"
    options = ["--config", str(file), "--steps", "2", "--device", "cpu", "--output", str(folder)]
    assert main(["train", *options]) == 0
    configuration = Record.read(folder).run["configuration"]
    assert isinstance(configuration, dict)
    assert (configuration["steps"], configuration["optimizer"]) == (2, "adamw")


def test_a_dry_run_says_what_would_be_done_and_does_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--model", "mlp:20", "--width", "16", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    # 64 x 16 + 16 into the first layer, 19 x (16 x 16 + 16) further on, 16 x 10 + 10 at the end
    assert f"{64 * 16 + 16 + 19 * (16 * 16 + 16) + 170:,} parameters" in shown
    assert re.search(r"C_f\(0\) +0\.9000", shown)
    assert re.search(r"lr +0\.03", shown)
    assert "note: gradients are clipped at norm 1, as by default" in shown
    assert "990 steps, 11 per epoch" in shown  # 90 epochs of 1,437 // 128
    assert re.search(r"activations +[\d.]+ MiB", shown)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_counts_the_curvature_of_kfac(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["train", "--model", "mlp:14", "--width", "16", "--optimizer", "kfac", "--dry-run"]
    assert main(options) == 0
    # Momentum; factors and inverses of 65 and 16, 13 times of 17 and 16, and of 17 and 10.
    weights = 65 * 16 + 13 * 17 * 16 + 17 * 10
    factors = 65**2 + 16**2 + 13 * (17**2 + 16**2) + 17**2 + 10**2
    expected = 4 * (weights + 2 * factors) / 2**20
    assert re.search(rf"optimiser +{expected:.1f} MiB", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--clip", "none"], None),
        (["--clip", "1"], None),
        (["--norm", "batch"], None),
        (["--optimizer", "adamw"], None),
        (["--lr", "0.5"], "learning rate 0.5"),
    ],
)
def test_clipping_is_announced_only_where_it_is_a_default(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str | None
) -> None:
    assert main(["train", *TINY, *options, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert ("note: gradients are clipped" in shown) == (words is not None)
    assert words is None or words in shown


def test_a_run_whose_record_has_no_clipping_resumes_without(tmp_path: Path) -> None:
    """As those that earlier versions left, by default or with `"clip": null`."""
    folder = tmp_path / "run"
    assert main(["train", *TINY, "--clip", "none", "--output", str(folder)]) == 0
    run, before = json.loads((folder / "run.json").read_text()), Record.read(folder).metrics
    for given in ({"clip": None}, {}):
        run["configuration"] = {
            k: v for k, v in run["configuration"].items() if k != "clip"
        } | given
        (folder / "run.json").write_text(json.dumps(run))
        shutil.rmtree(folder / "checkpoints")
        assert main(["train", "--resume", "--output", str(folder)]) == 0
        after = Record.read(folder)
        assert [r.get("loss") for r in after.metrics] == [r.get("loss") for r in before]
        configuration = after.run["configuration"]
        assert isinstance(configuration, dict)
        assert (configuration["clip"], configuration["lr"]) == (None, None)


def test_a_run_is_neither_overwritten_nor_resumed_with_other_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    assert main(["train", *TINY, "--output", folder]) == 0
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    capsys.readouterr()
    assert main(["train", *TINY, "--output", folder]) == 2
    assert "already holds a run. Resume it with --resume" in capsys.readouterr().err
    assert main(["train", "--resume", "--output", folder, "--lr", "0.7"]) == 2
    assert "Cannot resume with --lr 0.7: the run started with --lr 0.03" in capsys.readouterr().err
    assert main(["train", "--resume", "--output", folder]) == 0
    assert "Finished after 4 steps" in capsys.readouterr().out
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_runs_of_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    now = SimpleNamespace(now=lambda: datetime(2026, 1, 2, 3, 4, 5))
    monkeypatch.setattr(sys.modules["skipless.cli.train"], "datetime", now)
    for number in range(3):
        assert main(["train", *TINY, "--steps", "1", "--seed", str(number)]) == 0
    first = "2026-01-02T03-04-05-mlp14-digits"
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names == [first, f"{first}-2", f"{first}-3"]


def test_resuming_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", "--output", str(tmp_path / "typo")]) == 2
    assert "There is no run in" in capsys.readouterr().err


def test_a_run_that_resume_starts_says_that_it_clips(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", *TINY, "--resume", "--output", str(tmp_path / "run")]
    assert main(arguments) == 0
    assert "note: gradients are clipped at norm 1" in capsys.readouterr().err
    assert main(arguments) == 0
    assert "note: gradients are clipped" not in capsys.readouterr().err


def test_a_run_that_diverges_ends_with_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    options = ["--lr", "1e6", "--schedule", "constant", "--warmup", "0", "--steps", "30"]
    assert main(["train", *TINY, *options, "--output", str(folder)]) == 1
    shown = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"The loss is (nan|inf) at step \d+ of 30, with learning rate 1e\+06", shown)


def test_data_sets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == 0
    shown = capsys.readouterr().out
    for name in ("digits", "fashion-mnist", "cifar10", "imagefolder", "synthetic"):
        assert name in shown


def test_networks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "resnet*"]) == 0
    wanted = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet200"]
    assert sorted(capsys.readouterr().out.split()) == sorted(wanted)


def test_running_out_of_memory_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")

    monkeypatch.setattr("skipless.train.engine.Engine._train_step", refuse)
    assert main(["train", *TINY, "--output", str(tmp_path / "run")]) == 2
    shown = capsys.readouterr().err
    assert "Out of memory (" in shown
    assert len(shown.splitlines()) == 2  # with the note


def test_missing_files_do_not_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "cifar10", "--verify", "--folder", str(tmp_path)]) == 2
    assert f"skipless data cifar10 --folder {tmp_path}" in capsys.readouterr().err


def test_without_torch_one_line_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['torch'] = None; from skipless.cli import main; "
        "print(main(['train']), main(['data']))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "2 2\n"
    lines = result.stderr.splitlines()
    assert len(lines) == 2
    assert all("needs torch, which" in x and "[train]'" in x for x in lines), lines


def test_every_option_is_in_the_help_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for option in ("--model", "--data", "--method", "--optimizer", "--epochs", "--batch-size"):
        assert option in shown
    for option in ("--lr", "--seed", "--output", "--resume", "--config", "--dry-run"):
        assert option in shown
    assert "[default: mlp:50]" in shown


def test_the_record_is_plain_json(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    main(["train", *TINY, "--lr", "1e9", "--output", str(folder)])

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for line in (folder / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    json.loads((folder / "run.json").read_text(), parse_constant=refuse)

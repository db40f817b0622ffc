"""Hostile files and folders at the command line: one line, exit code 2, nothing else touched."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from skipless.cli import main
from skipless.record import METRICS, RUN

TINY = ["--model", "mlp:14", "--width", "8", "--steps", "4", "--device", "cpu"]
DEEP = '{"configuration":' * 100_000
Cli = Callable[..., tuple[int, str]]

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs links, pipes and locks")


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command; returns its exit code and its errors."""

    def run(*arguments: str | Path) -> tuple[int, str]:
        code = main([str(argument) for argument in arguments])
        return code, capfd.readouterr().err

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of its steps 2 and 4."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert main(["train", *TINY, "--checkpoint-every", "2", "--output", str(folder)]) == 0
    return folder


def only_line(found: tuple[int, str]) -> str:
    """The one line of a command that fails."""
    code, shown = found
    assert code == 2
    (line,) = shown.splitlines()
    assert "Traceback" not in line
    return line


@pytest.mark.parametrize("name", ["run.json", "run.toml", "run.yaml"])
def test_a_configuration_that_is_nested_too_deeply_is_refused(
    tmp_path: Path, cli: Cli, name: str
) -> None:
    text = {"run.toml": "a = " + "[" * 90_000, "run.yaml": "[" * 20_000}.get(name, '{"a":' * 40_000)
    (tmp_path / name).write_text(text)
    line = only_line(cli("train", "--config", tmp_path / name, "--output", tmp_path / "run"))
    assert f"Cannot read the configuration {tmp_path / name}: it is nested" in line


def test_a_report_skips_runs_that_cannot_be_read_with_a_note_each(tmp_path: Path, cli: Cli) -> None:
    damage = {
        "deep": (RUN, DEEP.encode()),
        "latin": (RUN, b'{"a": "\xff"}'),
        "row": (METRICS, b'{"kind": "train", "step": 1}\n7\n{"kind": "train", "step": 2}\n'),
        "rowlatin": (METRICS, b'{"kind": "\xff"}\n{"kind": "train", "step": 2}\n'),
    }
    for name in ("good", *damage):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / RUN).write_text('{"configuration": {"model": "mlp:50"}}')
        if name in damage:
            (folder / damage[name][0]).write_bytes(damage[name][1])
    code, shown = cli("report", tmp_path / "runs", "-o", tmp_path / "page.html")
    assert code == 0
    notes = shown.splitlines()
    assert [note.split(": ")[1].rpartition("/")[2] for note in notes] == sorted(damage)
    for note, (file, _) in zip(notes, map(damage.get, sorted(damage)), strict=True):  # pyright: ignore
        assert f"{file}" in note
    assert "row 2, is damaged: it is not an object with a kind" in notes[2]
    assert "row 1, is damaged: it is not UTF-8: byte 11 is 0xff" in notes[3]
    for name in damage:  # where the user names it, it is an error
        only_line(cli("report", tmp_path / "runs" / name, "-o", tmp_path / "page.html"))


ITEM = {"kind": "item", "item": "table4", "scale": "smoke", "seconds": 1}
CURVE = {"epochs": [1], "top1": [0.5], "seconds": [1]}
OUTCOME = {
    "diverged": False, "top1": 0.5, "train_loss": 1.0, "train_accuracy": 0.5, "seconds": 1.0,
    "parameters": 1, "validation": CURVE, "started": "", "machine": {}, "versions": {},
    "training": {"epochs": [1], "loss": [1], "accuracy": [1], "seconds": [1]},
}  # fmt: skip
TRIAL = {"kind": "trial", "row": "a", "column": "b", "chosen": {}, "seed": 0, "outcome": OUTCOME}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({**TRIAL, "outcome": {**OUTCOME, "top1": "high"}}, "row 2: top1 cannot be 'high'"),
        ({**TRIAL, "outcome": {**OUTCOME, "top1": True}}, "top1 cannot be True"),
        ({**TRIAL, "outcome": {**OUTCOME, "validation": {**CURVE, "top1": [1, 2]}}}, "differ in"),
        ({**TRIAL, "outcome": 3}, "Outcome cannot be 3"),
        ({**TRIAL, "chosen": []}, r"chosen cannot be []"),
        ({**TRIAL, "seed": 1.5}, "seed cannot be 1.5"),
        ({**TRIAL, "more": 1}, "Trial has no 'more'"),
        ({"kind": "trial"}, "missing 5 required"),
        ({"kind": "value", "row": "a", "column": "b", "value": 10**400}, "too large"),
        ({"kind": "line", "panel": "", "label": "", "x": [1], "y": "1"}, "y cannot be '1'"),
        ({"kind": "line", "panel": "", "label": "", "x": [1], "y": [1, 2]}, "differ in length"),
        ({"kind": "other"}, "row 2: its kind is 'other'"),
        (7, "row 2, is damaged: it is not an object"),
    ],
)
def test_results_of_a_wrong_type_name_their_row(
    tmp_path: Path, cli: Cli, row: object, says: str
) -> None:
    path = tmp_path / "table4.jsonl"
    path.write_text(f"{json.dumps(ITEM)}\n{json.dumps(row)}\n")
    line = only_line(cli("report", path, "-o", tmp_path / "page.html"))
    assert str(path) in line
    assert says in line
    assert not (tmp_path / "page.html").exists()


@posix
def test_a_record_that_is_a_pipe_or_a_device_does_not_hang_a_report(
    tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / RUN).write_text("{}")
    os.mkfifo(tmp_path / METRICS)
    line = only_line(cli("report", tmp_path, "-o", tmp_path / "page.html"))
    assert f"Not a regular file: '{tmp_path / METRICS}'" in line

"""Hostile files and folders at the command line: one line, exit code 2, nothing else touched."""

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from skipless.cli import main
from skipless.files import lock
from skipless.record import METRICS, RUN, RUN_LOCK
from skipless.runs.place import Place

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
    (line,) = (line for line in shown.splitlines() if not line.startswith("note: "))
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


@posix
def test_a_second_process_in_the_folder_of_a_run_that_is_going_on_is_refused(
    tmp_path: Path, cli: Cli
) -> None:
    folder = tmp_path / "run"
    many = [*TINY[:4], "--steps", "1000000", "--checkpoint-every", "5", "--output", str(folder)]
    first = subprocess.Popen([sys.executable, "-m", "skipless.cli", "train", *many])
    try:
        while not list(folder.glob("checkpoints/step-*[05]")):
            assert first.poll() is None
            time.sleep(0.05)
        before = (folder / RUN).read_bytes()
        for how in ([*TINY, "--seed", "1"], ["--resume"]):
            line = only_line(cli("train", *how, "--output", folder))
            assert f"A run is going on in {folder}. Wait until it ends, or choose" in line
        assert (folder / RUN).read_bytes() == before
    finally:
        first.kill()
        first.wait()
    steps = int(max(folder.glob("checkpoints/step-*[05]")).name.removeprefix("step-"))
    with lock(folder / RUN_LOCK, wait=False):  # free, as its process is dead
        assert steps % 5 == 0


def test_a_mistake_leaves_no_folder_and_no_lock(tmp_path: Path, cli: Cli) -> None:
    only_line(cli("train", *TINY, "--data", "parquet:/no/such", "--output", tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


@posix
@pytest.mark.parametrize("name", [f"{RUN}.partial", f"{METRICS}.partial", METRICS])
def test_training_does_not_write_through_links_in_its_folder(
    tmp_path: Path, cli: Cli, name: str
) -> None:
    (tmp_path / "victim").write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / name).symlink_to(tmp_path / "victim")
    if name == METRICS:  # which is read first
        (tmp_path / "victim").write_text("")
    assert cli("train", *TINY, "--output", folder)[0] == 0
    assert (tmp_path / "victim").read_text() == ("" if name == METRICS else "mine")


@posix
@pytest.mark.parametrize("name", ["checkpoints", "tensorboard", RUN_LOCK])
def test_a_link_out_of_a_run_is_refused(tmp_path: Path, cli: Cli, name: str) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    folder.mkdir()
    (other / "keep.partial").mkdir(parents=True)
    (folder / name).symlink_to(other)
    line = only_line(cli("train", *TINY, "--output", folder))
    assert ("Too many levels" if name == RUN_LOCK else f"{name} is a link to {other}") in line
    assert [path.name for path in other.iterdir()] == ["keep.partial"]


@posix
def test_links_that_lead_to_themselves_are_refused(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "checkpoints").symlink_to("checkpoints")
    line = only_line(cli("train", *TINY, "--output", folder))
    assert f"{folder / 'checkpoints'} is a link to nothing. Remove it." in line


def test_a_run_that_begins_anew_for_want_of_a_checkpoint_says_so(
    tmp_path: Path, cli: Cli, finished: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "checkpoints")
    code, shown = cli("train", "--resume", "--output", folder)
    assert code == 0
    assert f"note: {folder / 'checkpoints'} has no checkpoint to resume from: training" in shown
    assert read_measured(folder / METRICS) == read_measured(finished / METRICS)
    shutil.rmtree(folder)
    code, shown = cli("train", *TINY, "--resume", "--output", folder)
    assert code == 0
    assert "to resume from" not in shown  # there was nothing to lose


@posix
def test_links_among_checkpoints_are_removed_and_not_followed(
    tmp_path: Path, cli: Cli, finished: Path
) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(finished, folder)
    (other / "kept").mkdir(parents=True)
    checkpoints = folder / "checkpoints"
    shutil.rmtree(checkpoints / "step-00000004")
    for name in ("step-00000004", "step-00000004.partial"):
        (checkpoints / name).symlink_to(other)
    code, shown = cli("train", "--resume", "--output", folder)
    assert code == 0, shown
    assert "step-00000004 is damaged" in shown
    assert (other / "kept").is_dir()
    assert not (checkpoints / "step-00000004").is_symlink()
    assert not (checkpoints / "step-00000004.partial").exists()


def test_a_run_whose_folder_is_deleted_says_so(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skipless.train.engine import Engine

    folder, step = tmp_path / "run", Engine._train_step
    for every in ("1", "100"):  # of the log: either a row or a checkpoint is next

        def step_then_delete(engine: Engine, parts) -> None:
            step(engine, parts)
            shutil.rmtree(folder, ignore_errors=True)

        monkeypatch.setattr(Engine, "_train_step", step_then_delete)
        options = ["--checkpoint-every", "2", "--log-every", every, "--output", folder]
        code, shown = cli("train", *TINY, *options)
        assert code == 2
        assert f"{folder} was deleted during its run, and with it all" in shown.splitlines()[-1]
        assert not folder.exists()


def harm_state(harm: Callable[[dict], object]) -> Callable[[Path], object]:
    """Changes the state in a checkpoint, and its checksum."""

    def change(folder: Path) -> None:
        state = torch.load(folder / "state.pt", weights_only=True)
        harm(state)
        torch.save(state, folder / "state.pt")

    return change


def compressed(folder: Path) -> None:
    """A zip bomb: 100 MB of zeros in 100 kB."""
    state = torch.load(folder / "state.pt", weights_only=True)
    torch.save({**state, "zeros": torch.zeros(25_000_000)}, folder / "big.pt")
    with (
        zipfile.ZipFile(folder / "big.pt") as big,
        zipfile.ZipFile(folder / "state.pt", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for name in big.namelist():
            small.writestr(name, big.read(name))
    (folder / "big.pt").unlink()


HARM: dict[str, Callable[[Path], object]] = {
    "text instead of weights": lambda f: (f / "model.safetensors").write_text("weights"),
    "weights of another network": lambda f: save_file(
        {"a": torch.zeros(3)}, f / "model.safetensors"
    ),
    "text instead of a state": lambda f: (f / "state.pt").write_text("state"),
    "a pickle that runs code": lambda f: (f / "state.pt").write_bytes(
        pickle.dumps(Opens(f / "ran"))
    ),
    "a zip bomb": compressed,
    "no step": harm_state(lambda s: s.pop("step")),
    "no optimiser": harm_state(lambda s: s.pop("optimizer")),
    "an optimiser without groups": harm_state(lambda s: s["optimizer"].pop("param_groups")),
    "a rate of text": harm_state(lambda s: s["optimizer"]["param_groups"][0].update(lr="fast")),
    "no momentum": harm_state(lambda s: s["optimizer"]["param_groups"][0].pop("momentum")),
    "a moment of another shape": harm_state(
        lambda s: s["optimizer"]["state"][0].update(momentum_buffer=torch.zeros(3))
    ),
    "a moment of text": harm_state(
        lambda s: s["optimizer"]["state"][0].update(momentum_buffer="fast")
    ),
    "an average that the run has not": lambda f: save_file(
        {"a": torch.zeros(3)}, f / "average.safetensors"
    ),
    "seconds of text": harm_state(lambda s: s.update(seconds="long")),
    "no processes": harm_state(lambda s: s.pop("processes")),
    "processes of a number": harm_state(lambda s: s.update(processes=7)),
    "a random state of another length": harm_state(
        lambda s: s["processes"][0]["random"].update(torch=torch.zeros(3, dtype=torch.uint8))
    ),
    "a random state of text": harm_state(
        lambda s: s["processes"][0]["random"].update(python="random")
    ),
    "a window of text": harm_state(lambda s: s["processes"][0].update(window="losses")),
}  # fmt: skip


class Opens:
    """Runs `open` when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


def seal(folder: Path) -> None:
    """Make the manifest of a checkpoint match its files."""
    names = [path.name for path in folder.iterdir() if path.suffix in (".pt", ".safetensors")]
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    (folder / "manifest.json").write_text(json.dumps({"sha256": sums}))


@pytest.mark.parametrize("harm", HARM)
def test_a_checkpoint_that_does_not_fit_gives_way_to_the_one_before(
    tmp_path: Path, cli: Cli, finished: Path, harm: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    newest = folder / "checkpoints" / "step-00000004"
    shutil.rmtree(folder / "checkpoints" / "step-00000002")
    shutil.copytree(finished / "checkpoints" / "step-00000002", newest.with_name("step-00000002"))
    HARM[harm](newest)
    seal(newest)
    code, shown = cli("train", "--resume", "--output", folder)
    assert code == 0, shown
    assert f"note: The checkpoint {newest} is damaged (" in shown
    assert "step-00000002." in shown
    assert not (newest / "ran").exists()
    for name in (METRICS, "checkpoints/step-00000004/model.safetensors"):
        ours, theirs = (read_measured(top / name) for top in (folder, finished))
        assert ours == theirs


def read_measured(path: Path) -> object:
    """The content of a file, without times."""
    if path.name != METRICS:
        return path.read_bytes()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{n: v for n, v in row.items() if "second" not in n} for row in rows]


def test_where_no_checkpoint_fits_none_is_replaced(
    tmp_path: Path, cli: Cli, finished: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    said = json.loads((folder / RUN).read_text())
    said["configuration"]["width"] = 9.0
    (folder / RUN).write_text(json.dumps(said))
    before = sorted(folder.glob("checkpoints/*/*"))
    code, shown = cli("train", "--resume", "--output", folder)
    assert code == 2
    assert "Traceback" not in shown
    assert sorted(folder.glob("checkpoints/*/*")) == before


@posix
@pytest.mark.parametrize("name", ["/dev/zero", "../../run.json", "model.safetensors"])
def test_a_manifest_names_no_other_file_and_no_device_is_read(
    tmp_path: Path, cli: Cli, finished: Path, name: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    newest = folder / "checkpoints" / "step-00000004"
    manifest = json.loads((newest / "manifest.json").read_text())
    if name == "model.safetensors":
        (newest / name).unlink()
        (newest / name).symlink_to("/dev/zero")
    else:
        manifest["sha256"][name] = "0" * 64
        (newest / "manifest.json").write_text(json.dumps(manifest))
    code, shown = cli("train", "--resume", "--output", folder)
    assert code == 0, shown
    wanted = "Not a regular file" if name == "model.safetensors" else f"manifest.json names {name}"
    assert wanted in shown


@pytest.mark.parametrize("command", [["train", "--resume", "--output"], ["deploy"]])
def test_data_on_the_network_that_a_record_names_is_announced_first(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    finished: Path,
    command: list[str],
) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    said = json.loads((folder / RUN).read_text())
    said["configuration"]["data"] = "hf:some/name"
    (folder / RUN).write_text(json.dumps(said))
    for path in folder.glob("checkpoints/*/manifest.json"):
        manifest = json.loads(path.read_text())
        manifest["settings"]["data"] = "hf:some/name"
        path.write_text(json.dumps(manifest))
    before: list[str] = []

    def reach(*_: object, **__: object) -> None:
        before.append(capfd.readouterr().err)
        raise ConnectionError("no network")

    monkeypatch.setattr("skipless.train.images.convert", reach)
    assert main([*command, str(folder)]) == 2
    (shown,) = before
    assert f"note: {folder / RUN} names the data hf:some/name, which is fetched" in shown
    assert "HF_HUB_OFFLINE=1" in shown


def test_an_empty_storage_is_no_storage(tmp_path: Path, cli: Cli) -> None:
    line = only_line(cli("reproduce", "figure1", "--storage", "", "--output", tmp_path / "out"))
    assert "--storage" in line
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="storage must be a URL such as postgresql"):
        Place(tmp_path, storage=" ")


def test_a_module_in_the_current_folder_does_not_stand_in_for_others(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import wave\nfrom torch import nn\n\ndef net():\n    return nn.Linear(3, 3)\n"
    )
    (tmp_path / "wave.py").write_text("open('ran', 'w')\n")
    script = "from skipless.runs.factories import import_factory as f; print(f('mine:net'))"
    path = os.pathsep.join(own for own in sys.path if own)
    environment = os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("<function net")
    assert not (tmp_path / "ran").exists()


@posix
@pytest.mark.parametrize("name", ["studies.db", "runs", "runs/0123456789ab"])
def test_a_search_does_not_write_through_links_in_its_folder(
    tmp_path: Path, cli: Cli, name: str
) -> None:
    link = tmp_path / "out" / name
    link.parent.mkdir(parents=True)
    (tmp_path / "other").mkdir()
    link.symlink_to(tmp_path / "other")
    options = ["--scale", "smoke", "--seeds", "1", "--workers", "1", "--output", tmp_path / "out"]
    line = only_line(cli("reproduce", "table5", *options))
    assert f"{link} is a link to {tmp_path / 'other'}, and nothing outside of" in line
    assert list((tmp_path / "other").iterdir()) == []

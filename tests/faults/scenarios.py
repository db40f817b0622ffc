"""The commands that meet faults, and what must be the same after them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from faults import trials
from faults.trials import Mode, Scenario
from skipless.cli import main
from skipless.record import Record
from skipless.runs.configuration import Configuration
from skipless.runs.place import Place
from skipless.runs.search import Experiment, Range, Sweep, results_so_far, run_all, search_all

SMALL = {
    "model": "mlp:6",
    "width": 8,
    "data": "synthetic:3x4x4",
    "train-size": 200,
    "validation-size": 50,
    "batch-size": 50,
    "threads": 1,
    "steps": 8,
    "checkpoint-every": 3,
    "keep": 2,
    "log-every": 2,
    "average": 0.9,
    "device": "cpu",
}
KFAC = {"optimizer": "kfac", "kfac-burn-in": 2, "kfac-curvature-period": 2}
TIMES = {
    "description",
    "commit",
    "commits",
    "seconds",
    "images_per_second",
    "started",
    "latency",
    "machine",
    "machines",
    "before",
}


def arguments(options: dict[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def train(options: dict[str, Any], *more: str) -> Callable[[Path], int]:
    return lambda folder: main(
        ["train", *arguments(options), *more, "--output", str(folder / "run")]
    )


def untimed(value: Any) -> Any:
    """A JSON value without what a clock or a machine says."""
    if isinstance(value, dict):
        return {name: untimed(own) for name, own in value.items() if name not in TIMES}
    return [untimed(own) for own in value] if isinstance(value, list) else value


def run_outcome(folder: Path) -> dict[str, Any]:
    """Metrics, checkpoints, and every bit of the newest of them."""
    run = folder / "run"
    record = Record.read(run)
    checkpoints = sorted((run / "checkpoints").iterdir())
    state = torch.load(checkpoints[-1] / "state.pt", weights_only=True)
    names = ("model.safetensors", "average.safetensors")
    return {
        "configuration": record.run["configuration"],
        "metrics": untimed(list(record.metrics)),
        "checkpoints": [path.name for path in checkpoints],
        "weights": {name: digest(checkpoints[-1] / name) for name in names},
        "optimizer": {name: bits(state[name]) for name in ("optimizer", "averaged")},
        "files": files(run, but=("tensorboard",)),
    }


def bits(value: Any) -> Any:
    """A value in which tensors are bytes: saved, equal ones can share memory or not."""
    if isinstance(value, torch.Tensor):
        return hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()
    if isinstance(value, dict):
        return {name: bits(own) for name, own in value.items()}
    return [bits(own) for own in value] if isinstance(value, list | tuple) else value


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files(folder: Path, but: tuple[str, ...] = ()) -> list[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if path.parts[0] not in but)


@functools.cache
def trained(scratch: Path) -> Path:
    """A finished run, trained once."""
    folder = scratch / "trained"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(["train", *arguments(SMALL), "--output", str(folder)]) == 0
    return folder


def report(folder: Path) -> int:
    return main(["report", str(folder / "run"), "--output", str(folder / "page.html")])


def deploy(folder: Path) -> int:
    named = [str(folder / "run"), "--output", str(folder / "deployed")]
    return main(["deploy", *named, "--seconds", "0", "--quiet"])


def deployed(folder: Path) -> dict[str, Any]:
    out = folder / "deployed"
    return {
        "files": files(out),
        "models": {path.name: digest(path) for path in out.glob("*.onnx")},
        "report": untimed(json.loads((out / "report.json").read_text())),
    }


GRACE = 5.0  # seconds before SIGKILL; torchrun waits for 30
THREE = SMALL | {"batch-size": 48, "checkpoint-every": 2}


def train_in_three(folder: Path) -> int:
    """Three processes train together; if one fails, the others are stopped, as by torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = [fork_rank(rank, port, folder) for rank in range(3)]
    first, end = 0, math.inf
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            running.remove(process)
            code = os.waitstatus_to_exitcode(status)
            if code and not first:
                first, end = code, time.monotonic() + GRACE
                for other in running:
                    os.kill(other, signal.SIGTERM)
        elif time.monotonic() > end:
            for other in running:
                os.kill(other, signal.SIGKILL)
        time.sleep(0.005)
    return first


def fork_rank(rank: int, port: int, folder: Path) -> int:
    if process := os.fork():
        return process
    own = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    own |= {"WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3}
    os.environ |= {name: str(value) for name, value in own.items()}
    # Its threads, in a fork, sometimes never end; the process does.
    torch.distributed.destroy_process_group = lambda: None
    if rank == 0:
        trials.arm()
    code = 1
    try:
        code = train(THREE, "--resume")(folder)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def search(folder: Path) -> int:
    """Two runs through the data base of a search, in this process."""
    options = {name.replace("-", "_"): value for name, value in SMALL.items()} | {"steps": 3}
    runs = {f"rate {lr}": Configuration.of({**options, "lr": lr}) for lr in (0.01, 0.02)}
    try:
        run_all("faults", runs, Place(folder / "search", workers=1))
    except (OSError, ValueError) as error:  # as `skipless.cli.main` does
        sys.stderr.write(f"skipless: {' '.join(str(error).split())}\n")
        return 2
    return 0


def tune(folder: Path) -> int:
    """A setting chosen among three, and a run with it, through the data base of a search."""
    options = {name.replace("-", "_"): value for name, value in SMALL.items()}
    final = Configuration.of({**options, "steps": None, "validation_size": None, "epochs": 2})
    sweep = Sweep(replace(final, held_out=20), {"lr": Range(0.001, 0.1)}, 3, {"lr": 0.01}, 1)
    try:
        place = Place(folder / "search", workers=1)
        search_all("faults", {"": Experiment(sweep, final, seeds=(0,))}, place)
    except (OSError, ValueError) as error:  # as `skipless.cli.main` does
        sys.stderr.write(f"skipless: {' '.join(str(error).split())}\n")
        return 2
    return 0


def searched(folder: Path) -> dict[str, Any]:
    runs = folder / "search" / "runs"
    return {
        str(path.relative_to(runs)): untimed(json.loads(path.read_text()))
        for path in runs.glob("*/outcome.json")
    }


def reproduce(folder: Path) -> int:
    command = ["reproduce", "figure5", "--scale", "smoke", "--workers", "1"]
    return main([*command, "--output", str(folder / "items")])


def reproduced(folder: Path) -> dict[str, Any]:
    items = folder / "items"
    lines = (items / "figure5.jsonl").read_text().splitlines()
    return {
        "results": [untimed(json.loads(line)) for line in lines],
        "files": files(items, but=("runs", "studies.db")),
    }


def scenarios(scratch: Path) -> list[Scenario]:
    """All of them; commands that need a run share one under `scratch`."""

    def copy_run(folder: Path) -> None:
        shutil.copytree(trained(scratch), folder / "run")

    resumed = functools.partial(train, SMALL, "--resume")
    few = (Mode.ERROR, Mode.FULL, Mode.KILL)
    return [
        Scenario("train", train(SMALL), resumed(), run_outcome, usual=200),
        Scenario(
            "train, K-FAC",
            train(SMALL | KFAC),
            train(SMALL | KFAC, "--resume"),
            run_outcome,
            modes=few,
            stride=2,
            usual=40,
        ),
        Scenario(
            "3 processes",
            train_in_three,
            train_in_three,
            run_outcome,
            modes=(Mode.KILL, Mode.ERROR, Mode.FULL),
            stride=50,
            usual=12,
            processes=3,
        ),
        Scenario("report", report, report, lambda f: (f / "page.html").read_text(), copy_run),
        Scenario("deploy", deploy, deploy, deployed, copy_run, few, stride=6, usual=16),
        Scenario("search", search, search, searched, modes=few, stride=20, usual=40),
        Scenario("tuning", tune, tune, searched, modes=few, stride=40, usual=20),
        Scenario("reproduce", reproduce, reproduce, reproduced, modes=few, stride=200, usual=16),
    ]


def warm_up(scratch: Path, chosen: list[Scenario]) -> None:
    """Import what the commands import, once for all forks."""
    # A worker that was killed before its first sign of life is waited for; here, not for minutes.
    for own in (run_all, search_all, results_so_far):
        assert own.__kwdefaults__ is not None
        own.__kwdefaults__["seconds_until_dead"] = 2
    quiet = io.StringIO()
    for scenario in chosen:
        if scenario.processes > 1:
            continue
        folder = Path(tempfile.mkdtemp(dir=scratch))
        scenario.prepare(folder)
        os.chdir(folder)
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            code = scenario.run(folder)
        assert code == 0, scenario.name

"""Runs as users start them: killed and resumed, and shared by several processes."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skipless.cli import main
from skipless.record import Record
from skipless.runs.configuration import Configuration
from skipless.runs.training import build_run
from skipless.train.batches import Batches
from skipless.train.checkpoint import Checkpoints
from skipless.train.engine import evaluate
from skipless.train.process import Process

TRAIN = [sys.executable, "-m", "skipless.cli", "train"]
SMALL = ["--model", "mlp:14", "--width", "12", "--batch-size", "96", "--device", "cpu"]
SMALL += ["--data", "synthetic:3x6x6"]  # which imports nothing
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}


RUNNING: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    """A test that fails leaves nothing behind that trains."""
    yield
    while RUNNING:
        RUNNING.pop().kill()


def running(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    RUNNING.append(process)
    return process


def started(folder: Path, *options: str) -> subprocess.Popen[str]:
    return running([*TRAIN, *SMALL, *options, "--output", str(folder)], ENVIRONMENT)


def finished(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output


def curve(folder: Path) -> list[dict[str, object]]:
    timed = ("seconds", "images_per_second")
    return [{k: v for k, v in r.items() if k not in timed} for r in Record.read(folder).metrics]


def lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


KFAC = "--optimizer kfac --kfac-burn-in 3 --kfac-curvature-period 2 --kfac-inverse-period 7"


def trained_here(folder: Path, *options: str) -> None:
    """Train in this process, undisturbed."""
    assert main(["train", *SMALL, *options, "--threads", "1", "--output", str(folder)]) == 0


def test_a_run_killed_and_then_stopped_ends_as_one_left_alone(tmp_path: Path) -> None:
    options = ["--steps", "150", "--log-every", "1", "--checkpoint-every", "9", "--norm", "batch"]
    options += ["--dropout", "0.3", "--average", "0.9", *KFAC.split()]
    chance = random.Random(7)
    folder = tmp_path / "killed"
    for sent in (signal.SIGKILL, signal.SIGINT):
        process = started(folder, *options, "--resume")
        wanted = lines(folder) + chance.randrange(5, 50)
        while process.poll() is None and lines(folder) < wanted:
            time.sleep(0.005)
        time.sleep(chance.random() * 0.05)
        process.send_signal(sent)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == (-signal.SIGKILL if sent == signal.SIGKILL else 0)
    last = output.splitlines()[-1]
    assert last.endswith(f"Resume with: skipless train --resume --output {folder}")
    step = int(last.split("after step ")[1].split()[0])
    assert Checkpoints(folder).paths()[-1].name == f"step-{step:08d}"
    assert main(["train", *SMALL, *options, "--resume", "--output", str(folder)]) == 0
    trained_here(tmp_path / "whole", *options)
    assert curve(folder) == curve(tmp_path / "whole")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torchrun(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), "-m", "skipless.cli", "train"]
    command += [*SMALL, *options, "--output", str(folder)]
    environment = {k: v for k, v in ENVIRONMENT.items() if k != "PYTHONWARNINGS"}
    return running(command, environment)


def two_ranks(folder: Path, *options: str) -> list[subprocess.Popen[str]]:
    """What torchrun starts, without its own process, which would import torch, too."""
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [*TRAIN, *SMALL, *options, "--output", str(folder)]
    environment = {k: v for k, v in ENVIRONMENT.items() if k != "PYTHONWARNINGS"} | world
    return [running(command, environment | {"RANK": r, "LOCAL_RANK": r}) for r in ("0", "1")]


def test_two_processes_that_were_stopped_have_the_losses_of_one(tmp_path: Path) -> None:
    options = ["--steps", "60", "--log-every", "1", *KFAC.split(), "--lr", "0.003"]
    options += ["--accumulate", "2", "--average", "0.9", "--checkpoint-every", "10"]
    folder = tmp_path / "two"
    first = two_ranks(folder, *options)
    while first[0].poll() is None and lines(folder) < 5:
        time.sleep(0.005)
    for process in first:
        process.send_signal(signal.SIGTERM)
    for process in first:
        process.communicate(timeout=120)
    assert lines(folder) < 60, "it ended before it could be stopped"
    second = two_ranks(folder, *options, "--resume")
    trained_here(tmp_path / "one", *options)
    for process in second:
        finished(process)
    one, two = Record.read(tmp_path / "one"), Record.read(folder)
    assert two.run["processes"] == 2
    for kind, name in (("train", "loss"), ("train", "accuracy"), ("average", "loss")):
        steps, values = one.series(kind, name)
        assert two.series(kind, name) == (steps, pytest.approx(values, rel=2e-4))
    losses = one.series("train", "loss")[1]
    # Not the same numbers because one process did it all: each had half of every batch.
    assert losses != two.series("train", "loss")[1]
    assert losses[-1] < 0.95 * losses[0]  # it trains: 57 steps with a small rate


def test_two_processes_evaluate_the_network_that_they_save(tmp_path: Path) -> None:
    """Each has statistics of BatchNorm of its own, but one set of them is the network's."""
    folder = tmp_path / "two"
    options = ["--norm", "batch", "--steps", "6", "--lr", "0.1", "--log-every", "1"]
    options += ["--log-kernel", "3", "--log-layers", "fc,layers.0.*"]
    process = torchrun(folder, *options)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors.count("note: BatchNorm takes its statistics over each of the 2 processes") == 1
    record, saved = Record.read(folder), Checkpoints(folder).load_newest()
    given = record.run["configuration"]
    assert isinstance(given, dict)
    parts = build_run(Configuration.of(given), Process())
    assert saved is not None
    parts.model.load_state_dict(saved.weights)
    batches = Batches(parts.data.validation, 90, normalize=parts.normalize).in_order()
    found = evaluate(parts.model, batches, Process(), lambda network, images: network(images))
    assert found is not None
    assert record.series("validation", "loss")[1] == [pytest.approx(found["loss"], rel=1e-5)]
    # One process that takes each batch in two parts normalises the same halves.
    trained_here(tmp_path / "parts", *options, "--accumulate", "2")
    halves = Record.read(tmp_path / "parts").series("train", "loss")[1]
    assert record.series("train", "loss")[1] == pytest.approx(halves, rel=1e-4)
    # Gradients are those of the whole batch, averaged over processes; the outputs are a share's.
    name, one = "gradient/layers.0.linear", Record.read(tmp_path / "parts")
    steps, norms = one.series("layers", name)
    assert steps == [1, 3, 6]
    assert record.series("layers", name) == (steps, pytest.approx(norms, rel=1e-3))
    assert len(record.series("layers", "q/fc")[1]) == 3
    trained_here(tmp_path / "whole", *options)
    whole = Record.read(tmp_path / "whole").series("train", "loss")[1]
    assert max(abs(a / b - 1) for a, b in zip(halves, whole, strict=True)) > 0.01

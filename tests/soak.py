"""A long run under all that goes wrong in long runs: `python tests/soak.py --minutes 120`.

One run trains for the whole time, on a disk that stalls and under a clock that jumps by an hour. In
the first half nobody touches it; in the second half it is killed, asked to stop, and given batches
of NaN in turn, and resumes. Watched are memory, file handles, the number of checkpoints, and that
every step has one row in the metrics. In the end, an undisturbed run of the first steps must have
the same numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

OPTIONS = (
    "--model mlp:14 --width 16 --data synthetic:3x6x6 --batch-size 96 --device cpu --threads 1"
)
OPTIONS += (
    " --optimizer kfac --log-every 1 --checkpoint-every 100 --keep 3 --average 0.99 --lr 0.0001"
)
STEPS = "1000000000"
COMPARED = 500  # rows of the undisturbed run
GROWTH = 0.05  # of the memory that a process may gain from its second to its last quarter
BETWEEN = 20.0  # seconds between disturbances
SLOW_DISK = "6:-25:0:20000"  # of the shim: every 25th call takes 20 ms longer


@dataclass
class Watched:
    """What was seen of one process, every second."""

    memory: list[float] = field(default_factory=list)  # MB
    handles: list[int] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    size: int = sys.maxsize  # of the metrics
    is_training: bool = False

    def look(self, process: int, run: Path) -> None:
        with contextlib.suppress(OSError):  # it has just ended
            status = Path(f"/proc/{process}/status").read_text()
            resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
            handles = len(list(Path(f"/proc/{process}/fd").iterdir()))
            self.memory.append(int(resident.split()[1]) / 1024)
            self.handles.append(handles)
            self.checkpoints.append(len(list((run / "checkpoints").glob("step-????????"))))
            size = (run / "metrics.jsonl").stat().st_size
            self.is_training = self.is_training or size > self.size
            self.size = size

    @property
    def growth(self) -> float:
        quarter = len(self.memory) // 4
        early, late = self.memory[quarter : 2 * quarter], self.memory[-quarter:]
        return statistics.median(late) / statistics.median(early) - 1.0


def train(nan_file: str, *arguments: str) -> int:
    """`skipless train`, whose batches are NaN while the file `nan_file` exists."""
    from skipless.cli import main
    from skipless.train.engine import Engine

    move = Engine._to_device

    def poisoned(self: Engine, images: Tensor) -> Tensor:
        moved = move(self, images)
        return moved * float("nan") if os.path.exists(nan_file) else moved  # noqa: PTH110

    Engine._to_device = poisoned
    return main(["train", *arguments])


def start(run: Path, nan_file: Path, shim: Path | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--train", str(nan_file), *OPTIONS.split()]
    command += ["--steps", STEPS, "--resume", "--output", str(run)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if shim is not None:
        environment |= {"LD_PRELOAD": str(shim), "FAULT": f"{SLOW_DISK}:{run}", "CLOCK_JUMPS": "7"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def rows(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def untimed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    timed = ("seconds", "images_per_second")
    return [{k: v for k, v in row.items() if k not in timed} for row in found]


def disturb(process: subprocess.Popen[str], how: str, nan_file: Path) -> tuple[int, str]:
    """How the process ends, and what it says."""
    if how == "nan":
        nan_file.touch()
    else:
        process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    nan_file.unlink(missing_ok=True)
    return process.returncode, said


EXPECTED = {"kill": -signal.SIGKILL, "stop": 0, "nan": 1}


def soak(minutes: float, folder: Path) -> list[str]:
    """Print what was seen; returns what is wrong with it."""
    shim, source = folder / "shim.so", Path(__file__).parent / "faults" / "shim.c"
    compiler = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"]
    subprocess.run(compiler, check=True)
    run, nan_file, chance = folder / "run", folder / "nan", random.Random(0)
    began, end = time.monotonic(), time.monotonic() + 60 * minutes
    wrong, lives, counts = [], [Watched()], dict.fromkeys(EXPECTED, 0)
    process, next_disturbance = start(run, nan_file, shim=shim), began + 30 * minutes
    while time.monotonic() < end or not lives[-1].is_training:
        time.sleep(1.0)
        lives[-1].look(process.pid, run)
        if process.poll() is not None:
            wrong.append(f"it ended by itself: {process.communicate()[1][-500:]}")
            break
        if time.monotonic() > next_disturbance and lives[-1].is_training:
            how = list(EXPECTED)[sum(counts.values()) % len(EXPECTED)]
            code, said = disturb(process, how, nan_file)
            counts[how] += 1
            if code != EXPECTED[how] or "Traceback" in said:
                wrong.append(f"{how}: it ends with {code} and says {said[-500:]}")
            process = start(run, nan_file, shim=shim)
            lives.append(Watched())
            next_disturbance = time.monotonic() + BETWEEN * (0.5 + chance.random())
    code, _ = disturb(process, "stop", nan_file)
    if code:
        wrong.append(f"in the end it stops with {code}")
    return wrong + judge(run, folder / "short", nan_file, lives, counts, time.monotonic() - began)


def judge(
    run: Path,
    short: Path,
    nan_file: Path,
    lives: list[Watched],
    counts: dict[str, int],
    seconds: float,
) -> list[str]:
    wrong: list[str] = []
    found = rows(run)
    steps = [row["step"] for row in found if row["kind"] == "train"]
    times = [row["seconds"] for row in found if row["kind"] == "train"]
    if steps != list(range(1, len(steps) + 1)):
        wrong.append("steps are missing or there twice")
    if times != sorted(times) or times[-1] > seconds:
        wrong.append("seconds go back, or are more than have passed")
    first = lives[0]
    most = max(max(life.checkpoints, default=0) for life in lives)
    handles = [(min(own), max(own)) for own in (life.handles[5:] for life in lives) if own]
    print(f"{seconds / 60:.1f} minutes, {len(steps)} steps, {counts} and resumed")
    print(f"memory of the undisturbed half: {first.memory[-1]:.0f} MB, {first.growth:+.1%}")
    print(f"file handles: {min(h[0] for h in handles)} to {max(h[1] for h in handles)}")
    print(f"checkpoints: {most} at most; left: {len(list((run / 'checkpoints').iterdir()))}")
    if first.growth > GROWTH:
        wrong.append(f"memory grows by {first.growth:.1%}")
    if most > 4:  # three, and the newest before the oldest is removed
        wrong.append(f"there were {most} checkpoints")
    process = start(short, nan_file)
    while len(rows(short)) < COMPARED and process.poll() is None:
        time.sleep(0.2)
    disturb(process, "stop", nan_file)
    if (again := untimed(rows(short))[:COMPARED]) != untimed(found)[:COMPARED]:
        wrong.append("an undisturbed run has other numbers")
    print(f"undisturbed, the first {len(again)} rows are the same")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--train", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.train:
        return train(*options.train)
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        wrong = soak(options.minutes, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(wrong) or "nothing is wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

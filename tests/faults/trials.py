"""Trials: a command meets a fault at one of its calls, is run again, and must end undisturbed.

All commands run in processes forked from this one, which has imported everything and has the shim
preloaded, so that a trial takes a fraction of a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

PATIENCE = 100  # seconds, after which a command counts as hanging
HANGS = 10_000  # as an exit code
_LOG, _OUTPUT, _ERRORS = "points.log", "stdout", "stderr"  # beside the folder that meets faults
_REMOVING = ("unlink", "opendir")  # what cannot be removed stays, until the next run
_UNFINISHED = (".partial", ".unverified-", ".unfinished-", ".new-")


class Mode(IntEnum):
    """What happens at a fault point; the numbers are those of shim.c."""

    COUNT = 1
    ERROR = 2  # the call fails, once
    FULL = 3  # a write stops halfway; from there on nothing that takes space works
    KILL = 4  # SIGKILL; in the middle, if it is a write
    POWER = 5  # the same, and what was not synced is lost
    STALL = 6
    TERM = 7  # SIGTERM, which asks to save and stop


@dataclass(frozen=True)
class Point:
    """A call that can fail."""

    number: int
    call: str
    path: str


@dataclass(frozen=True)
class Scenario:
    """A command, how to run it again, and what it leaves.

    `prepare` fills the folder before, outside of the faults; `outcome` is compared with that of an
    undisturbed run. Of each mode, only every `stride`-th point is tried, and of these trials an
    even sample of `usual`, or all of them.
    """

    name: str
    run: Callable[[Path], int]
    again: Callable[[Path], int]
    outcome: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda folder: None
    modes: tuple[Mode, ...] = tuple(mode for mode in Mode if mode is not Mode.COUNT)
    stride: int = 1
    usual: int | None = None
    processes: int = 1  # if there are several, one of them arms itself


@dataclass
class Report:
    """What came of the trials of a scenario."""

    scenario: str
    points: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=dict)  # by mode
    failures: list[str] = field(default_factory=list)


def errors(point: Point) -> tuple[int, ...]:
    """The errors that a call may meet; one after the other is tried."""
    return {
        "write": (errno.EIO, errno.EDQUOT),
        "open": (errno.EACCES, errno.EMFILE),
        "opendir": (errno.EACCES, errno.EMFILE),
        "create": (errno.EACCES, errno.EMFILE),
        "mkdir": (errno.EACCES, errno.ENOSPC),
        "rename": (errno.EACCES, errno.EIO),
        "unlink": (errno.EACCES, errno.EIO),
        "lock": (errno.ENOLCK,),
        "fork": (errno.EAGAIN, errno.ENOMEM),
        "socket": (errno.EMFILE,),
        "connect": (errno.ECONNREFUSED, errno.ETIMEDOUT),
    }.get(point.call, (errno.EIO,))


def _wait(process: int) -> int:
    """The exit code of a child, or minus the signal that ended it; a child that hangs is killed."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return HANGS


arm: Callable[[], None] = lambda: None  # of a command that runs now, for one of its processes


def _run(
    scenario: Scenario,
    command: Callable[[Path], int],
    place: Path,
    fault: tuple[int, ...] | None = None,
) -> int:
    """The exit code of `command` in a child, with its output in files and a fault."""
    global arm
    if process := os.fork():
        return _wait(process)
    code = 1
    try:
        os.setpgid(0, 0)
        folder = place / "work"
        for name, descriptor in ((_OUTPUT, 1), (_ERRORS, 2)):
            file = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, descriptor)
        tempfile.tempdir = str(folder / "tmp")
        os.chdir(folder)
        if fault is not None:
            mode, number, error = fault
            log = os.open(place / _LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            own = log if mode == Mode.COUNT else -1
            arm = lambda: SHIM.fault_arm(str(folder).encode(), mode, number, error, 30_000, own)
        if scenario.processes == 1:
            arm()
        code = command(folder)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _begin(scenario: Scenario, place: Path) -> Path:
    folder = place / "work"
    (folder / "tmp").mkdir(parents=True)
    scenario.prepare(folder)
    return folder


def _leftovers(folder: Path, *, and_temporary: bool) -> list[str]:
    # SQLite rolls a journal back when the data base is opened again.
    unfinished = _UNFINISHED if and_temporary else (*_UNFINISHED, "-journal")
    found = [
        path.relative_to(folder)
        for path in folder.rglob("*")
        if any(mark in path.name for mark in unfinished) or path.parent == folder / "tmp"
    ]
    return [str(path) for path in sorted(found) if and_temporary or path.parts[0] != "tmp"]


def count_points(scenario: Scenario, scratch: Path) -> tuple[list[Point], object]:
    """The fault points of a scenario, and the outcome of an undisturbed run."""
    place = Path(tempfile.mkdtemp(dir=scratch))
    folder = _begin(scenario, place)
    if code := _run(scenario, scenario.run, place, (Mode.COUNT, 0, 0)):
        raise RuntimeError(f"{scenario.name} fails undisturbed ({code}): {_read(place, _ERRORS)}")
    points = []
    for line in _read(place, _LOG).splitlines():
        number, call, path = line.split("\t")
        points.append(Point(int(number), call, path.replace(str(folder), "")))
    outcome = scenario.outcome(folder)
    shutil.rmtree(place)
    return points, outcome


def try_point(scenario: Scenario, place: Path, mode: Mode, point: Point, expected: Any) -> str:
    """What went wrong at this point; nothing if the scenario survives."""
    folder = _begin(scenario, place)
    choices = errors(point)
    fault = (mode, point.number, choices[point.number % len(choices)])
    code = _run(scenario, scenario.run, place, fault)
    said = _read(place, _ERRORS)
    problem = _judge(scenario, mode, point, code, said, folder)
    if problem:
        return problem
    if code or point.call in _REMOVING or mode is Mode.TERM:
        code = _run(scenario, scenario.again, place)
        if code or "Traceback" in _read(place, _ERRORS):
            return f"run again, it ends with {code}: {_read(place, _ERRORS)[-600:]}"
        if left := _leftovers(folder, and_temporary=False):
            return f"run again, it leaves {left}"
    found: Any = scenario.outcome(folder)
    if mode is Mode.TERM and isinstance(found, dict):  # it has saved one more checkpoint
        expected = {**expected, **{name: found[name] for name in ("checkpoints", "files")}}
    if found != expected:
        return f"the outcome differs: {_difference(found, expected)}"
    return ""


def _judge(scenario: Scenario, mode: Mode, point: Point, code: int, said: str, folder: Path) -> str:
    """What is wrong with the ending of a command that met a fault."""
    if code == HANGS:
        return f"it hangs; so far it said {said[-300:]!r}"
    if "Traceback" in said or "Exception ignored" in said:
        return f"a traceback: {said[-1500:]}"
    if mode in (Mode.KILL, Mode.POWER) or code == -signal.SIGTERM:
        return ""
    left = _leftovers(folder, and_temporary=True)
    if left and point.call not in _REMOVING:
        return f"it leaves {left}; it said {said[-300:]!r}"
    if mode is Mode.STALL and code:
        return f"it ends with {code} after a delay: {said[-300:]}"
    if not code:
        return ""
    lines = [line for line in said.splitlines() if not line.startswith("note: ")]
    ours = all(line.startswith("skipless: ") for line in lines)
    if code != 2 or not ours or not 1 <= len(lines) <= scenario.processes:
        return f"it ends with {code} and says {said[-600:]!r}"
    # Of several processes, each run makes other calls, and what meets the fault may be a message.
    about_file = mode is not Mode.TERM and point.path and scenario.processes == 1
    if about_file and str(folder) not in lines[0]:
        return f"its message names no path: {lines[0]!r}"
    return ""


def _difference(found: Any, expected: Any, where: str = "") -> str:
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in {**expected, **found}:
            if found.get(key) != expected.get(key):
                return _difference(found.get(key), expected.get(key), f"{where}/{key}")
    return f"{where}: {str(found)[:300]}, not {str(expected)[:300]}"


def _read(place: Path, name: str) -> str:
    return (place / name).read_text(errors="replace")


def plan(
    scenario: Scenario, points: list[Point], sample: int | None
) -> Iterator[tuple[Mode, Point]]:
    """The trials: every mode at every point where it means something, or an even sample of them."""
    tasks = [
        (mode, point)
        for mode in scenario.modes
        for point in points[:: scenario.stride]
        if mode is not Mode.FULL or point.call in ("write", "mkdir", "create")
        if mode is not Mode.POWER or point.call in ("write", "fsync", "rename", "unlink")
        if mode is not Mode.STALL or point.call in ("write", "fsync", "lock", "connect")
    ]
    if sample is None or sample >= len(tasks):
        return iter(tasks)
    return iter(tasks[(2 * place + 1) * len(tasks) // (2 * sample)] for place in range(sample))


def run_trials(
    scenario: Scenario, scratch: Path, workers: int, sample: int | None = None
) -> Report:
    """Every trial of a scenario, `workers` at a time."""
    points, expected = count_points(scenario, scratch)
    report = Report(scenario.name, len(points))
    for point in points:
        report.calls[point.call] = report.calls.get(point.call, 0) + 1
    tasks: Iterable[tuple[Mode, Point]] = plan(scenario, points, sample)
    running: dict[int, tuple[Path, Mode, Point]] = {}

    def collect() -> None:
        process, _ = os.wait()
        place, mode, point = running.pop(process)
        answer = place / "answer.json"
        problem = json.loads(answer.read_text()) if answer.exists() else "the trial itself died"
        report.tried[mode.name] = report.tried.get(mode.name, 0) + 1
        if problem:
            where = f"{scenario.name}, {mode.name} at {point.number} {point.call} {point.path}"
            report.failures.append(f"{where}: {problem}")
        shutil.rmtree(place, ignore_errors=True)

    for mode, point in tasks:
        while len(running) >= workers:
            collect()
        place = Path(tempfile.mkdtemp(dir=scratch))
        if not (process := os.fork()):
            try:
                problem = try_point(scenario, place, mode, point, expected)
            except BaseException:
                problem = traceback.format_exc()
            (place / "answer.json").write_text(json.dumps(problem))
            os._exit(0)
        running[process] = place, mode, point
    while running:
        collect()
    return report


SHIM: Any = ctypes.CDLL(os.environ["LD_PRELOAD"]) if "LD_PRELOAD" in os.environ else None

"""Faults at every call by which a run touches the outside: `python tests/faults/run.py`.

Compiles shim.c, preloads it, and tries every scenario at every point: the call fails, the disk is
full from there on, the process is killed or loses its power, is delayed, or asked to stop. Then the
command is run again, and must leave the same numbers and weights as an undisturbed run, to the bit.
Prints how many points were tried and survived, as docs/reliability.md has it. Long scenarios are
tried at an even sample of their points, or with --full at many more.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent


def preload(folder: Path) -> None:
    """Start this script again, with the shim in front of libc."""
    library = folder / "shim.so"
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / "shim.c"), "-ldl"]
    subprocess.run(command, check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library), "FAULTS_SCRATCH": str(folder)}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment |= {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    environment.pop("PYTHONWARNINGS", None)
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="scenarios by name")
    parser.add_argument("--sample", type=int, help="trials per scenario, evenly chosen")
    parser.add_argument("--full", action="store_true", help="all trials: half an hour or more")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--show", type=int, default=20, help="failures to show")
    options = parser.parse_args()
    if "FAULTS_SCRATCH" not in os.environ:
        shared = Path("/dev/shm")  # where syncing costs nothing
        preload(Path(tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else None)))
    scratch = Path(os.environ["FAULTS_SCRATCH"])
    try:
        return try_all(options, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def cpu_seconds() -> float:
    """Of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def try_all(options: argparse.Namespace, scratch: Path) -> int:
    """Print a row for each scenario, and what failed; returns the exit code."""
    sys.path.insert(0, str(HERE.parent))
    from faults.scenarios import scenarios, warm_up
    from faults.trials import Mode, run_trials

    began = time.monotonic()
    chosen = [s for s in scenarios(scratch) if options.only is None or s.name in options.only]
    warm_up(scratch, chosen)
    modes = [mode for mode in Mode if mode is not Mode.COUNT]
    names = "".join(f" {mode.name.lower()} |" for mode in modes)
    print(f"| command | calls |{names} tried | survived | seconds of CPU |")
    print(f"|---------|------:|{'---:|' * len(modes)}---:|---:|---:|", flush=True)
    tried, failures = 0, []
    for scenario in chosen:
        busy = cpu_seconds()
        sample = None if options.full else scenario.usual
        if options.sample:
            sample = max(2, options.sample // scenario.processes**2)
        found = run_trials(scenario, scratch, options.workers, sample)
        own = sum(found.tried.values())
        counts = "".join(f" {found.tried.get(mode.name, 0)} |" for mode in modes)
        kept = f"{own} | {own - len(found.failures)} | {cpu_seconds() - busy:.0f}"
        print(f"| {scenario.name} | {found.points:,} |{counts} {kept} |", flush=True)
        tried, failures = tried + own, failures + found.failures
    for failure in failures[: options.show]:
        print(failure)
    took = f"{time.monotonic() - began:.0f} s"
    print(f"{tried - len(failures)} of {tried} faults survived, in {took}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())

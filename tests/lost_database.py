"""A search loses its data base for a minute: `python tests/lost_database.py [--storage URL]`.

Without a URL, the data base is the SQLite file of the search, which another process locks. For a
PostgreSQL server of your own, --stop and --start are the commands that stop and start it. The
search may wait or end with one line; run again, it must end as one that lost nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ITEM = ["figure5", "--scale", "smoke", "--workers", "1"]


def start(output: Path, storage: str | None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "skipless.cli", "reproduce", *ITEM, "--output", str(output)]
    command += [] if storage is None else ["--storage", storage]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def outcomes(output: Path) -> dict[str, object]:
    found = {}
    for path in sorted(output.glob("runs/*/outcome.json")):
        own = json.loads(path.read_text())
        found[path.parent.name] = [own[name] for name in ("top1", "train_loss", "diverged")]
    return found


def lose(output: Path, seconds: float, stop: str | None, begin: str | None) -> None:
    if stop is None or begin is None:
        with sqlite3.connect(output / "studies.db", timeout=60, isolation_level=None) as held:
            held.execute("BEGIN EXCLUSIVE")
            time.sleep(seconds)
            held.execute("ROLLBACK")
        return
    subprocess.run(shlex.split(stop), check=True, stdout=subprocess.DEVNULL)
    time.sleep(seconds)
    subprocess.run(shlex.split(begin), check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", help="URL of another data base")
    parser.add_argument("--stop", help="command that stops its server")
    parser.add_argument("--start", dest="begin", help="command that starts it again")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        whole, broken = Path(name) / "whole", Path(name) / "broken"
        assert start(whole, None).wait() == 0
        search = start(broken, options.storage)
        while not outcomes(broken) and search.poll() is None:
            time.sleep(0.05)
        lose(broken, options.seconds, options.stop, options.begin)
        _, said = search.communicate(timeout=600)
        lines = [line for line in said.splitlines() if not line.startswith("note: ")]
        print(
            f"after {options.seconds:.0f} s without its data base it ends with {search.returncode}"
        )
        print("\n".join(lines))
        survived = search.returncode == 0
        if not survived:
            again = start(broken, options.storage)
            _, said = again.communicate(timeout=900)
            print(f"run again, it ends with {again.returncode}")
            survived = again.returncode == 0 and len(lines) == 1 and "Traceback" not in said
        same = outcomes(broken) == outcomes(whole)
        print(f"{len(outcomes(broken))} outcomes, {'the same' if same else 'OTHERS'}")
    return not (survived and same)


if __name__ == "__main__":
    sys.exit(main())

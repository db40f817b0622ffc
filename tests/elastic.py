"""torchrun restarts a run whose processes die: `python tests/elastic.py`.

Two processes train with K-FAC under `torchrun --max-restarts`; one of them is killed, twice, in
mid-epoch. torchrun starts all of them again, and they resume by themselves. In the end, metrics and
weights must be those of an undisturbed run of two processes, to the bit.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

OPTIONS = (
    "--model mlp:14 --width 12 --data synthetic:3x6x6 --batch-size 96 --device cpu --steps 150"
)
OPTIONS += " --optimizer kfac --lr 0.003 --log-every 1 --checkpoint-every 10"
KILLS = 2


def start(output: Path) -> subprocess.Popen[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(KILLS), "--monitor-interval", "0.1"]
    command += ["--master-port", str(port), "-m", "skipless.cli", "train", *OPTIONS.split()]
    command += ["--resume", "--output", str(output)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def rows(output: Path) -> list[dict[str, Any]]:
    path = output / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    timed = ("seconds", "images_per_second")
    whole = (json.loads(line) for line in lines if line.endswith("\n"))
    return [{k: v for k, v in row.items() if k not in timed} for row in whole]


def ranks(launcher: int) -> list[int]:
    """The processes that train, which torchrun has started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(child) for child in children]


def result(output: Path) -> tuple[list[dict[str, Any]], str]:
    newest = max((output / "checkpoints").iterdir())
    sums = json.loads((newest / "manifest.json").read_text())["sha256"]
    return rows(output), sums["model.safetensors"]


def main() -> int:
    chance = random.Random(int(sys.argv[1]) if sys.argv[1:] else 0)
    with tempfile.TemporaryDirectory() as name:
        whole, killed = Path(name) / "whole", Path(name) / "killed"
        _, said = (undisturbed := start(whole)).communicate()
        assert undisturbed.returncode == 0, said
        launcher, reached = start(killed), 0
        for _ in range(KILLS):
            wanted = reached + chance.randrange(15, 50)
            while len(rows(killed)) < wanted and launcher.poll() is None:
                time.sleep(0.002)
            os.kill(chance.choice(ranks(launcher.pid)), signal.SIGKILL)
            reached = len(rows(killed))
            print(f"killed one of two processes after {reached} rows", flush=True)
            time.sleep(2.0)
        _, said = launcher.communicate(timeout=300)
        if launcher.returncode:
            print(said)
        same = result(killed) == result(whole)
        print(f"torchrun ends with {launcher.returncode}; metrics and weights are", end=" ")
        print("the same" if same else "OTHERS")
    return not same or launcher.returncode


if __name__ == "__main__":
    sys.exit(main())

"""Processes that do not use the same layers still end with the same weights."""

import os
import subprocess
import sys
from pathlib import Path

import torch


def test_processes_that_use_different_layers_keep_the_same_weights(tmp_path: Path) -> None:
    script = Path(__file__).with_name("uneven_processes.py")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(script), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert set(one) == {"called", "axes", "read"}
    for name, weights in one.items():
        assert weights.isfinite().all()
        torch.testing.assert_close(weights, other[name], rtol=0.0, atol=0.0)

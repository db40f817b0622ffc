"""A sample of `make faults`: what fails, or kills the process, costs nothing but time."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent / "faults" / "run.py"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="preloads a library into libc")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles that library")
def test_faults_in_calls_of_the_system_change_no_bit_of_a_run() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    chosen = ["train", "report", "3 processes"]
    command = [sys.executable, str(RUN), "--only", *chosen, "--sample", "8"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "18 of 18 faults survived" in found.stdout

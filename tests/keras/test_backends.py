"""Keras fixes its backend when it is imported, so each other one gets a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

HERE = Path(__file__).parent
FILES = ("test_activations.py", "test_trace.py")


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="is run by the one that is not")
def test_activations_and_traces_are_the_same_on_jax() -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = ["--quiet", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(str(HERE / file) for file in FILES)],
        env=own | {"KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

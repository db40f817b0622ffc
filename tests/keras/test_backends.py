"""Keras fixes its backend when it is imported, so each other one gets a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

HERE = Path(__file__).parent
FILES = ("test_activations.py", "test_trace.py")
# What is missing or refused is told before the backend computes anything; PyTorch takes its time.
ALIKE = "not what_is_missing and not mistake_is_named and not refused and not same_network_in"
# Keras imports TensorFlow, if it is there, to read a configuration: 9 s that those on JAX may lack.
WITHOUT_TENSORFLOW = (
    "import sys; sys.modules['tensorflow'] = None; import pytest; sys.exit(pytest.main())"
)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="is run by the one that is not")
def test_activations_and_traces_are_the_same_on_jax_without_tensorflow() -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = ["--quiet", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", ALIKE]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, *options, *(str(HERE / f) for f in FILES)],
        env=own | {"KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

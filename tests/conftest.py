"""Small tensors are quickest on one thread, above all on a busy machine."""

import logging
import os

import pytest
import torch

os.environ.setdefault("KERAS_BACKEND", "tensorflow")  # one a process; others by this variable
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Tests compile much and compute little.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

# torch.export writes a log of its every thought, which pytest would collect: a third of the time.
logging.getLogger("torch.__trace").propagate = False


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

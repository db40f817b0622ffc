"""What makes tests quick on a busy machine: one thread for small tensors, and little collecting."""

import gc
import logging
import os

import pytest

os.environ.setdefault("KERAS_BACKEND", "tensorflow")  # one a process; others by this variable
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Tests compile much and compute little.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
# Threads of OpenBLAS wait by turning in circles, at the expense of the tests beside them: products
# of matrices with a hundred rows took ten times as long. NumPy reads it when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch

# torch.export writes a log of its every thought, which pytest would collect: a third of the time.
logging.getLogger("torch.__trace").propagate = False

# With three frameworks loaded, each look at all that lives takes half a second, every few tests.
gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

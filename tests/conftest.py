"""What makes tests quick on a busy machine: one thread for small arrays, and little collecting."""

import gc
import logging
import os

import pytest

os.environ.setdefault("KERAS_BACKEND", "tensorflow")  # one a process; others by this variable
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Tests compile much and compute little.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
# Threads of OpenBLAS wait by turning in circles, at the expense of the tests beside them: products
# of matrices with a hundred rows took ten times as long. NumPy and torch read these when they are
# imported.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

# torch.export writes a log of its every thought, which pytest would collect: a third of the time.
logging.getLogger("torch.__trace").propagate = False

# With three frameworks loaded, each look at all that lives takes half a second, every few tests.
gc.set_threshold(20_000, 20, 20)

collect_ignore = ["elastic.py", "faults", "lost_database.py", "soak.py"]  # scripts for minutes

# A minute each: begun first, so that no process is left alone with one of them at the end.
LONGEST = (
    "torch/test_convert.py",
    "train/test_processes.py",
    "test_docs.py",
    "torch/test_kernels.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(item.path.match(f"tests/{file}") for file in LONGEST))

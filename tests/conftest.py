"""Small tensors are quickest on one thread, above all on a busy machine."""

import logging

import pytest
import torch

# torch.export writes a log of its every thought, which pytest would collect: a third of the time.
logging.getLogger("torch.__trace").propagate = False


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

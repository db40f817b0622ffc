"""How long networks take in onnxruntime, beside each other in one run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from .onnx_steps import output, session

_WARM_UP = 2
_FEWEST, _MOST = 7, 100  # rounds


def latencies(
    paths: Mapping[str, Path], batch: np.ndarray, *, threads: int, seconds: float = 20.0
) -> dict[str, float]:
    """The median time of each file for `batch`, in seconds, on so many threads.

    All take turns, so that whatever else the machine does falls on all of them: the ratio of two of
    these numbers says more than each by itself. After `seconds`, and seven rounds, it ends.
    """
    sessions = {name: session(path, threads) for name, path in paths.items()}
    times: dict[str, list[float]] = {name: [] for name in paths}
    start = perf_counter()
    for number in range(_WARM_UP + _MOST):
        for name, running in sessions.items():
            before = perf_counter()
            output(running, batch)
            if number >= _WARM_UP:
                times[name].append(perf_counter() - before)
        if number >= _WARM_UP + _FEWEST - 1 and perf_counter() - start > seconds:
            break
    return {name: median(taken) for name, taken in times.items()}

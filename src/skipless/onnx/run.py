"""ONNX files run in onnxruntime: timed side by side, and with the memory of activations measured.

To measure memory, each operation becomes a model of its own, which reads and writes arrays that are
allocated and freed here. numpy reports all its memory to `tracemalloc`, so the measurement knows
nothing of the computed peak in `graph`.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from .graph import VIEWS, MemoryPlan, MemorySchedule, OnnxGraph, OnnxOperation, read

if TYPE_CHECKING:
    import onnxruntime
    from onnx.utils import Extractor

    import onnx

_TOLERANCE = 1e-4  # relative to the largest output
_WARM_UP = 2  # rounds
_MIN_ROUNDS, _MAX_ROUNDS = 7, 100


def open_session(model: Path | bytes, threads: int = 1) -> onnxruntime.InferenceSession:
    """A session of onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only
    # Spinning threads would take the cores from another session.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run_session(running: onnxruntime.InferenceSession, batch: np.ndarray) -> np.ndarray:
    """The output of a network with one input and one output."""
    return np.asarray(running.run(None, {running.get_inputs()[0].name: batch})[0])


def measure_latencies(
    paths: Mapping[str, Path], batch: np.ndarray, *, threads: int, seconds: float = 20.0
) -> dict[str, float]:
    """The median time of each file for `batch`, in seconds.

    Files take turns, so that whatever else the machine does slows all of them: ratios of these
    numbers say more than each of them. It ends after `seconds`, and at least seven rounds.
    """
    sessions = {name: open_session(path, threads) for name, path in paths.items()}
    times: dict[str, list[float]] = {name: [] for name in paths}
    start = perf_counter()
    for number in range(_WARM_UP + _MAX_ROUNDS):
        for name, running in sessions.items():
            before = perf_counter()
            run_session(running, batch)
            if number >= _WARM_UP:
                times[name].append(perf_counter() - before)
        if number >= _WARM_UP + _MIN_ROUNDS - 1 and perf_counter() - start > seconds:
            break
    return {name: median(taken) for name, taken in times.items()}


def measure_peak_memory(path: Path, schedule: MemorySchedule, batch: np.ndarray) -> int:
    """The most bytes that activations take at once in a pass over `batch`, by `schedule`.

    The output must be that of the whole file, so that nothing is overwritten or freed too early.
    """
    import onnx

    graph = read(path, len(batch))
    found, peak = _run_by_schedule(graph, _extractor(onnx.load(path), graph), schedule, batch)
    expected = run_session(open_session(path), batch)
    error = float(np.abs(found - expected).max())
    if not error <= _TOLERANCE * np.abs(expected).max():
        raise RuntimeError(
            f"Running {path} one operation at a time changes its output by {error:.2g}: an "
            "operation cannot overwrite its input. Please report which network this is."
        )
    return peak


def _run_by_schedule(
    graph: OnnxGraph, parts: Extractor, schedule: MemorySchedule, batch: np.ndarray
) -> tuple[np.ndarray, int]:
    """The output, and the most bytes that arrays take at once."""
    memory = MemoryPlan(graph)
    last = {n: i for i in schedule.order for n in graph.operations[i].reads}
    last |= dict.fromkeys(graph.outputs, -1)
    done, peak = 0, 0
    with _count_allocations() as taken:
        arrays = {graph.inputs[0]: batch.copy()}
        for number in schedule.order:
            operation = graph.operations[number]
            view = operation.kind in VIEWS
            held = operation.reads[0] if view else memory.overwritten(number, done)
            for name in operation.writes:
                shape, dtype = graph.activations[name].shape, graph.activations[name].dtype
                arrays[name] = arrays[held].reshape(shape) if held else np.empty(shape, dtype)
            peak = max(peak, taken())
            if not view:
                _run_operation(parts, operation, arrays)
            done |= 1 << number
            for name in {*operation.reads, *operation.writes}:
                if last.get(name, number) == number:
                    del arrays[name]
        return arrays[graph.outputs[0]], peak


def _extractor(model: onnx.ModelProto, graph: OnnxGraph) -> Extractor:
    """Makes models of parts of `model`, whose activations have the shapes that `graph` knows."""
    import onnx.utils

    model.graph.ClearField("value_info")
    for name, like in graph.activations.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(like.dtype)
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, kind, like.shape))
    return onnx.utils.Extractor(model)


def _run_operation(
    parts: Extractor, operation: OnnxOperation, arrays: Mapping[str, np.ndarray]
) -> None:
    """Run a single operation on its arrays among `arrays`."""
    single = parts.extract_model(list(operation.reads), list(operation.writes))
    running = open_session(single.SerializeToString())
    binding = running.io_binding()
    ends = (binding.bind_input, operation.reads), (binding.bind_output, operation.writes)
    for bind, names in ends:
        for name in names:
            array = arrays[name]
            bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    running.run_with_iobinding(binding)


@contextmanager
def _count_allocations() -> Iterator[Callable[[], int]]:
    """A function that returns the bytes that numpy has allocated since."""
    only_numpy = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)

    def taken() -> int:
        traces = tracemalloc.take_snapshot().filter_traces([only_numpy]).traces
        return sum(trace.size for trace in traces)

    running = tracemalloc.is_tracing()
    if not running:
        tracemalloc.start()
    try:
        before = taken()
        yield lambda: taken() - before
    finally:
        if not running:
            tracemalloc.stop()

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

from .graph import VIEWS, MemoryPlan, MemorySchedule, OnnxGraph, input_dependent_nodes, read

if TYPE_CHECKING:
    import onnxruntime

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

    graph, model = read(path, len(batch)), onnx.load(path)
    found, peak = _run_by_schedule(graph, model, schedule, batch)
    expected = run_session(open_session(path), batch)
    error = float(np.abs(found - expected).max())
    if not error <= _TOLERANCE * np.abs(expected).max():
        raise RuntimeError(
            f"Running {path} one operation at a time changes its output by {error:.2g}: an "
            "operation cannot overwrite its input. Please report which network this is."
        )
    return peak


def _run_by_schedule(
    graph: OnnxGraph, model: onnx.ModelProto, schedule: MemorySchedule, batch: np.ndarray
) -> tuple[np.ndarray, int]:
    """The output, and the most bytes that arrays take at once."""
    memory, single = MemoryPlan(graph), _SingleOperation(graph, model)
    last = {n: i for i in schedule.order for n in graph.operations[i].reads}
    last |= dict.fromkeys(graph.outputs, -1)
    done, peak = 0, 0
    with _count_allocations() as taken:
        arrays = {graph.inputs[0]: batch.copy()}
        for number in schedule.order:
            operation = graph.operations[number]
            over = memory.overwritten(number, done)
            for name in operation.writes:
                like = graph.activations[name]
                if operation.kind in VIEWS:
                    arrays[name] = arrays[operation.reads[0]].reshape(like.shape)
                elif over is not None:
                    arrays[name] = arrays[over].reshape(like.shape)
                else:
                    arrays[name] = np.empty(like.shape, like.dtype)
            peak = max(peak, taken())
            if operation.kind not in VIEWS:
                single.run(number, arrays)
            done |= 1 << number
            for name in {*operation.reads, *operation.writes}:
                if last.get(name, number) == number:
                    del arrays[name]
        return arrays[graph.outputs[0]], peak


class _SingleOperation:
    """Runs single operations of a file."""

    def __init__(self, graph: OnnxGraph, model: onnx.ModelProto) -> None:
        self._graph, self._model, self._protos = graph, model, list(input_dependent_nodes(model))
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        dependent = {id(node) for node in self._protos}
        computed = (node for node in model.graph.node if id(node) not in dependent)
        self._constants = {name: node for node in computed for name in node.output}

    def run(self, number: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Run an operation on its arrays among `arrays`."""
        operation = self._graph.operations[number]
        running = open_session(self._model_of(number).SerializeToString())
        binding = running.io_binding()
        for name in operation.reads:
            _bind(binding.bind_input, name, arrays[name])
        for name in operation.writes:
            _bind(binding.bind_output, name, arrays[name])
        running.run_with_iobinding(binding)

    def _model_of(self, number: int) -> onnx.ModelProto:
        from onnx import helper

        operation, node = self._graph.operations[number], self._protos[number]
        constants = list(self._constants_of(node))
        weights = [self._weights[n] for n in _inputs(node, *constants) if n in self._weights]
        reads, writes = (
            [self._value_info(name) for name in names]
            for names in (operation.reads, operation.writes)
        )
        graph = helper.make_graph([*constants, node], "single", reads, writes, weights)
        return helper.make_model(
            graph,
            opset_imports=self._model.opset_import,
            ir_version=self._model.ir_version,
            functions=self._model.functions,
        )

    def _constants_of(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """The nodes that `node` needs and that do not depend on the input."""
        for source in (self._constants[n] for n in _inputs(node) if n in self._constants):
            yield from self._constants_of(source)
            yield source

    def _value_info(self, name: str) -> onnx.ValueInfoProto:
        from onnx import helper

        like = self._graph.activations[name]
        kind = helper.np_dtype_to_tensor_dtype(like.dtype)
        return helper.make_tensor_value_info(name, kind, like.shape)


def _inputs(*several: onnx.NodeProto) -> list[str]:
    return list(dict.fromkeys(name for node in several for name in node.input))


def _bind(bind: Callable[..., None], name: str, array: np.ndarray) -> None:
    bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


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

"""An ONNX file run operation by operation, with every byte counted that its activations take.

Each operation becomes a model of its own for onnxruntime, which reads and writes arrays that are
made and dropped here. numpy reports all memory that it takes to `tracemalloc`, so that the count
knows nothing of the figures in `footprint`.

How long networks take in onnxruntime, beside each other in one run.
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

from .graph import VIEWS, Memory, OnnxGraph, Schedule, nodes, read_onnx

if TYPE_CHECKING:
    import onnxruntime

    import onnx

_TOLERANCE = 1e-4  # relative to the largest output


def measured_peak(path: Path, schedule: Schedule, batch: np.ndarray) -> int:
    """The most bytes that the arrays of one pass over `batch` took, in the order of `schedule`.

    The outputs have to be those of the file as a whole, so that nothing was overwritten or dropped
    too early.
    """
    graph, model = read_onnx(path, len(batch))
    found, peak = _run(graph, model, schedule, batch)
    wanted = output(session(path), batch)
    error = float(np.abs(found - wanted).max())
    if not error <= _TOLERANCE * np.abs(wanted).max():
        raise RuntimeError(
            f"{path} was run operation by operation, but gives other numbers than as a whole, off "
            f"by {error:.2g}: one of its operations cannot write over what it reads. Please report "
            "which network this is."
        )
    return peak


def session(model: Path | bytes, threads: int = 1) -> onnxruntime.InferenceSession:
    """A model as onnxruntime runs it on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only
    # Threads that wait busily would take the cores from another session.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def output(running: onnxruntime.InferenceSession, batch: np.ndarray) -> np.ndarray:
    """What a network of one input and one output gives."""
    return np.asarray(running.run(None, {running.get_inputs()[0].name: batch})[0])


def _run(
    graph: OnnxGraph, model: onnx.ModelProto, schedule: Schedule, batch: np.ndarray
) -> tuple[np.ndarray, int]:
    """The output, and the most bytes that arrays took."""
    memory, alone = Memory(graph), _Alone(graph, model)
    last = {n: i for i in schedule.order for n in graph.operations[i].reads}
    last |= dict.fromkeys(graph.outputs, -1)
    done, peak = 0, 0
    with _counting() as taken:
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
                alone.run(number, arrays)
            done |= 1 << number
            for name in {*operation.reads, *operation.writes}:
                if last.get(name, number) == number:
                    del arrays[name]
        return arrays[graph.outputs[0]], peak


class _Alone:
    """Runs any one operation of a file by itself."""

    def __init__(self, graph: OnnxGraph, model: onnx.ModelProto) -> None:
        self._graph, self._model, self._protos = graph, model, list(nodes(model))
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        computed = (node for node in model.graph.node if not _among(node, self._protos))
        self._constants = {name: node for node in computed for name in node.output}

    def run(self, number: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Let an operation read and write its arrays among `arrays`."""
        operation = self._graph.operations[number]
        running = session(self._model_of(number).SerializeToString())
        binding = running.io_binding()
        for name in operation.reads:
            _bind(binding.bind_input, name, arrays[name])
        for name in operation.writes:
            _bind(binding.bind_output, name, arrays[name])
        running.run_with_iobinding(binding)

    def _model_of(self, number: int) -> onnx.ModelProto:
        from onnx import helper

        operation, node = self._graph.operations[number], self._protos[number]
        constants = list(self._needed(node))
        weights = [self._weights[n] for n in _inputs(node, *constants) if n in self._weights]
        reads, writes = (
            [self._described(name) for name in names]
            for names in (operation.reads, operation.writes)
        )
        graph = helper.make_graph([*constants, node], "alone", reads, writes, weights)
        return helper.make_model(
            graph,
            opset_imports=self._model.opset_import,
            ir_version=self._model.ir_version,
            functions=self._model.functions,
        )

    def _needed(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """The nodes that `node` needs, but which do not depend on the input."""
        for source in (self._constants[n] for n in _inputs(node) if n in self._constants):
            yield from self._needed(source)
            yield source

    def _described(self, name: str) -> onnx.ValueInfoProto:
        from onnx import helper

        like = self._graph.activations[name]
        kind = helper.np_dtype_to_tensor_dtype(like.dtype)
        return helper.make_tensor_value_info(name, kind, like.shape)


def _inputs(*several: onnx.NodeProto) -> list[str]:
    return list(dict.fromkeys(name for node in several for name in node.input))


def _among(node: onnx.NodeProto, others: list[onnx.NodeProto]) -> bool:
    return any(node is other for other in others)


def _bind(bind: Callable[..., None], name: str, array: np.ndarray) -> None:
    bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


@contextmanager
def _counting() -> Iterator[Callable[[], int]]:
    """A function that gives the bytes that numpy has taken since."""
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

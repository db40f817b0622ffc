"""An ONNX file as a graph of operations, and the least memory that its activations need.

A tensor is an activation if it depends on the input; weights do not count. The rules of memory are
the same for every network:

- An activation is held from the operation that writes it to the last one that reads it; so is the
  network's input, and the output to the end. What a kernel needs while it runs does not count.
- A reshape holds nothing: it is the same memory under another shape.
- An elementwise operation overwrites an activation of the same size that nothing else will read,
  unless that is the network's input.

If paths run side by side, as a branch and its shortcut do, all orders are searched.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skipless.core.arguments import whole_number

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class TensorInfo:
    """Shape and type of an activation."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class UnknownShapeError(ValueError):
    """A result depends on a shape that the file does not give."""

    def __init__(self, node: str) -> None:
        super().__init__(
            f"The shapes of {node} depend on more than the shape of the input. Make them fixed."
        )
        self.node = node


@dataclass(frozen=True)
class OnnxOperation:
    """A node of the file, with the names of the activations that it reads and writes.

    `multiply_adds` is None if they depend on shapes that the file does not give.
    """

    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    multiply_adds: int | None = 0
    name: str = ""


@dataclass(frozen=True)
class OnnxGraph:
    """All operations that depend on the input, for batches of one size.

    `activations` has those whose shape is known.
    """

    operations: tuple[OnnxOperation, ...]
    activations: Mapping[str, TensorInfo]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @cached_property
    def kinds(self) -> dict[str, int]:
        """Number of operations by kind, the most frequent first."""
        return dict(Counter(operation.kind for operation in self.operations).most_common())

    @cached_property
    def joins(self) -> int:
        """Sums and concatenations of activations, where shortcuts and branches end."""
        ends = (o for o in self.operations if o.kind in ("Add", "Sum", "Concat"))
        return sum(len(operation.reads) > 1 for operation in ends)

    @cached_property
    def multiply_adds(self) -> int:
        """Those of convolutions, matrix products and recurrent layers; sums do not count."""
        total = 0
        for operation in self.operations:
            if operation.multiply_adds is None:
                raise UnknownShapeError(f"{operation.kind} {operation.name}")
            total += operation.multiply_adds
        return total


def require_file(path: str | Path) -> Path:
    """The path of a file that is there."""
    if not isinstance(path, str | Path):
        raise TypeError(f"path must be that of an ONNX file, got {path!r}")
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {str(path)!r}. Name one that `export` wrote.")
    return Path(path)


def read(path: str | Path, batch_size: int = 1) -> OnnxGraph:
    """The graph in the file at `path`, for batches of that size."""
    import onnx

    whole_number("batch_size", batch_size, 1)
    require_file(path)
    try:
        return _graph(onnx.load(path, load_external_data=False), batch_size)
    except OSError:
        raise
    except Exception as error:  # of protobuf, of ONNX, or of a graph that is none
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise ValueError(
            f"{path} cannot be read as an ONNX network ({type(error).__name__}: {reason}). Export "
            "it again."
        ) from None


def _graph(model: onnx.ModelProto, batch_size: int) -> OnnxGraph:
    if not (model.graph.input and model.graph.output):
        raise ValueError("it has no input or no output")
    shapes = _shapes(model, batch_size)
    constants = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    sizes = {**{name: known.shape for name, known in shapes.items()}, **constants}
    inputs = tuple(value.name for value in model.graph.input if value.name not in constants)
    known, operations = set(inputs), []
    for node in model.graph.node:
        reads = tuple(dict.fromkeys(name for name in node.input if name in known))
        if not reads:
            continue
        writes = tuple(name for name in node.output if name)
        known |= set(writes)
        count = _multiply_adds(node, sizes)
        operations.append(OnnxOperation(node.op_type, reads, writes, count, node.name or writes[0]))
    outputs = tuple(value.name for value in model.graph.output)
    if unknown := [name for name in outputs if name not in known]:
        raise ValueError(f"no operation on the input gives its output {unknown[0]}")
    activations = {name: shapes[name] for name in sorted(known & set(shapes))}
    return OnnxGraph(tuple(operations), activations, inputs, outputs)


def peak_memory(path: str | Path, batch_size: int = 1) -> int:
    """The bytes that activations of the file at `path` take at least, in the best order."""
    return best_schedule(read(path, batch_size)).peak


def _shapes(model: onnx.ModelProto, batch_size: int) -> dict[str, TensorInfo]:
    """Every tensor whose shape ONNX can infer from the batch size, which `model` is given."""
    import onnx

    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if size.HasField("dim_param"):
                if size.dim_param == model.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
                    size.dim_value = batch_size
                else:
                    size.Clear()  # such as 2*batch, which is inferred again
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return {
        value.name: TensorInfo(
            tuple(size.dim_value for size in value.type.tensor_type.shape.dim),
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
        )
        for value in (*inferred.input, *inferred.output, *inferred.value_info)
        if value.type.tensor_type.HasField("shape")  # a scalar has one, too
        and all(size.HasField("dim_value") for size in value.type.tensor_type.shape.dim)
    }


def _multiply_adds(node: onnx.NodeProto, sizes: Mapping[str, tuple[int, ...]]) -> int | None:
    try:
        match node.op_type:
            case "Conv":  # of weights (outputs, inputs of a group, *kernel)
                return math.prod(sizes[node.output[0]]) * math.prod(sizes[node.input[1]][1:])
            case "ConvTranspose":  # (inputs, outputs of a group, *kernel)
                return math.prod(sizes[node.input[0]]) * math.prod(sizes[node.input[1]][1:])
            case "Gemm":
                transposed = any(a.name == "transA" and a.i for a in node.attribute)
                inner = sizes[node.input[0]][0 if transposed else 1]
                return math.prod(sizes[node.output[0]]) * inner
            case "MatMul":
                return math.prod(sizes[node.output[0]]) * sizes[node.input[0]][-1]
            case "Einsum":
                equation = next(a.s.decode() for a in node.attribute if a.name == "equation")
                return _einsum_multiply_adds(equation, [sizes[name] for name in node.input])
            case "LSTM" | "GRU" | "RNN":  # of weights for the input, and for the state
                steps, batch, _ = sizes[node.input[0]]
                return steps * batch * sum(math.prod(sizes[name]) for name in node.input[1:3])
            case _:
                return 0
    except KeyError:  # an unknown shape
        return None


def _einsum_multiply_adds(equation: str, shapes: Sequence[tuple[int, ...]]) -> int:
    """The multiply-adds of pairwise products from left to right, as onnxruntime computes them.

    >>> _einsum_multiply_adds("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)])  # 2 products of matrices
    120
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    terms = []
    for term, shape in zip(left.split(","), shapes, strict=True):
        hidden = len(shape) - len(term.replace("...", ""))  # dimensions under the dots
        names = term.replace("...", "987654321"[9 - hidden :])
        for name, size in zip(names, shape, strict=True):
            sizes[name] = max(size, sizes.get(name, 1))
        terms.append(set(names))
    kept = set(right) if arrow else {name for name in sizes if left.count(name) == 1}
    kept |= set(filter(str.isdigit, sizes))
    total, running = 0, terms[0]
    for number, term in enumerate(terms[1:], 1):
        total += math.prod(sizes[name] for name in running | term)
        running = (running | term) & kept.union(*terms[number + 1 :])
    return total


VIEWS = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"))
IN_PLACE = frozenset((
    "Abs", "Add", "BatchNormalization", "Celu", "Clip", "Div", "Elu", "HardSigmoid", "HardSwish",
    "LeakyRelu", "Mul", "Neg", "PRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sub",
    "Tanh",
))  # fmt: skip
_MAX_STATES = 100_000


@dataclass(frozen=True)
class MemorySchedule:
    """An order of operations, and the most bytes that it holds at once.

    It is the best order if `optimal`; otherwise there were too many to search, and it is that of
    the file.
    """

    order: tuple[int, ...]
    peak: int
    optimal: bool


def best_schedule(graph: OnnxGraph, max_states: int = _MAX_STATES) -> MemorySchedule:
    """The order of the operations of `graph` with the lowest peak.

    It is a shortest path from nothing to everything in the graph of sets of finished operations,
    where the length of a path is its peak.

    >>> sizes = {"x": 1, "short": 1, "long": 9, "end": 1, "y": 1}
    >>> tensors = {n: TensorInfo((s,), np.dtype("int8")) for n, s in sizes.items()}
    >>> steps = ("Conv", "x", "short"), ("Conv", "x", "long"), ("Conv", "long", "end")
    >>> convs = [OnnxOperation(kind, (source,), (target,)) for kind, source, target in steps]
    >>> add = OnnxOperation("Add", ("end", "short"), ("y",))
    >>> best_schedule(OnnxGraph((*convs, add), tensors, ("x",), ("y",)))
    MemorySchedule(order=(0, 1, 2, 3), peak=11, optimal=True)
    """
    for operation in graph.operations:
        if any(name not in graph.activations for name in operation.writes):
            raise UnknownShapeError(f"{operation.kind} {operation.name}")
    memory = MemoryPlan(graph)
    ties = count()
    start = _State(0, memory.held_at_start, memory.ready_at_start, None)
    waiting = [(0, 0, next(ties), start)]
    visited: set[int] = set()
    while waiting and len(visited) < max_states:
        peak, steps, _, state = heapq.heappop(waiting)
        if not state.ready:
            order = []
            while state.before is not None:
                state, operation = state.before
                order.append(operation)
            return MemorySchedule(tuple(reversed(order)), peak, optimal=True)
        if state.done in visited:
            continue
        visited.add(state.done)
        for longest, after in memory.successors(state, peak):
            # Of equal peaks, the path nearest to the end comes first.
            heapq.heappush(waiting, (longest, steps - 1, next(ties), after))
    order = range(len(graph.operations))
    done, held, peak = 0, memory.held_at_start, 0
    for number in order:
        during, held = memory.step(number, done, held)
        done |= 1 << number
        peak = max(peak, during)
    return MemorySchedule(tuple(order), peak, optimal=False)


@dataclass(frozen=True, eq=False)
class _State:
    done: int  # a bit for every finished operation
    held: int
    ready: tuple[int, ...]
    before: tuple[_State, int] | None


class MemoryPlan:
    """Which activations share memory, and when it is free again."""

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph = graph
        # The tensor that owns the memory of each.
        self.place: dict[str, str] = {name: name for name in graph.inputs}
        self._readers: dict[str, int] = defaultdict(int)
        self._needs, self._next = [], defaultdict(list)
        writer: dict[str, int] = {}
        for number, operation in enumerate(graph.operations):
            for name in operation.writes:
                view = operation.kind in VIEWS
                self.place[name] = self.place[operation.reads[0]] if view else name
            for name in operation.reads:
                self._readers[self.place[name]] |= 1 << number
            sources = {writer[name] for name in operation.reads if name in writer}
            self._needs.append(sum(1 << source for source in sources))
            for source in sources:
                self._next[source].append(number)
            writer |= dict.fromkeys(operation.writes, number)
        self._kept = {self.place[name] for name in graph.outputs}
        self.held_at_start: int = sum(self._size(name) for name in graph.inputs)
        self.ready_at_start: tuple[int, ...] = tuple(
            n for n, needs in enumerate(self._needs) if not needs
        )

    def step(self, number: int, done: int, held: int) -> tuple[int, int]:
        """Bytes held while an operation runs and after it, given those `held` before."""
        operation = self.graph.operations[number]
        new = sum(self._size(name) for name in operation.writes if self.place[name] == name)
        over = self.overwritten(number, done)
        during = held + new - (0 if over is None else new)
        places = {self.place[name] for name in (*operation.reads, *operation.writes)}
        freed = sum(self._size(p) for p in places if self.free(p, done | 1 << number))
        return during, held + new - freed

    def overwritten(self, number: int, done: int) -> str | None:
        """The activation that an operation may overwrite, if all in `done` are finished."""
        operation = self.graph.operations[number]
        if operation.kind not in IN_PLACE or len(operation.writes) != 1:
            return None
        for name in operation.reads:
            place = self.place[name]
            alike = self.graph.activations[name] == self.graph.activations[operation.writes[0]]
            if alike and place not in self.graph.inputs and self.free(place, done | 1 << number):
                return name
        return None

    def free(self, place: str, done: int) -> bool:
        """Whether nothing reads this memory after all in `done`."""
        return place not in self._kept and self._readers[place] & ~done == 0

    def successors(self, state: _State, peak: int) -> list[tuple[int, _State]]:
        """The possible next states, each with the peak until then."""
        found = []
        for operation in state.ready:
            during, held = self.step(operation, state.done, state.held)
            done = state.done | 1 << operation
            others = (other for other in state.ready if other != operation)
            unblocked = (n for n in self._next[operation] if self._needs[n] & ~done == 0)
            after = max(peak, during), _State(done, held, (*others, *unblocked), (state, operation))
            if during <= peak and held <= state.held:
                # It never leaves more than there was, so now is as good as later.
                return [after]
            found.append(after)
        return found

    def _size(self, place: str) -> int:
        return self.graph.activations[place].size

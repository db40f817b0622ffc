"""An ONNX file as what it computes: its operations, and the shapes of what passes between them.

Weights are no part of that: a tensor is an activation if it depends on the input.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Activation:
    """Shape and type of a tensor on its way through the network."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class UnknownShapeError(ValueError):
    """A number was asked for that depends on a shape which the file does not tell."""

    def __init__(self, node: str) -> None:
        super().__init__(
            f"The shapes of all activations were asked for, but those of {node} depend on more "
            "than the shape of the input. Make them fixed."
        )
        self.node = node


@dataclass(frozen=True)
class Operation:
    """A node of the file: the activations that it reads and writes, by name.

    `multiply_adds` is None if they depend on shapes that the file does not tell.
    """

    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    multiply_adds: int | None = 0
    name: str = ""


@dataclass(frozen=True)
class OnnxGraph:
    """Everything that depends on the input, for batches of one size.

    `activations` are those whose shape is known.
    """

    operations: tuple[Operation, ...]
    activations: Mapping[str, Activation]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @cached_property
    def kinds(self) -> dict[str, int]:
        """How many operations there are of each kind, the most frequent first."""
        return dict(Counter(operation.kind for operation in self.operations).most_common())

    @cached_property
    def multiply_adds(self) -> int:
        """Of convolutions, matrix products and recurrent layers' own; sums do not count."""
        total = 0
        for operation in self.operations:
            if operation.multiply_adds is None:
                raise UnknownShapeError(f"{operation.kind} {operation.name}")
            total += operation.multiply_adds
        return total

    def demand_shapes(self) -> None:
        """Raise if the shape of an activation is not known."""
        for operation in self.operations:
            if not set(operation.writes) <= set(self.activations):
                raise UnknownShapeError(f"{operation.kind} {operation.name}")


def read_onnx(path: Path, batch_size: int = 1) -> tuple[OnnxGraph, onnx.ModelProto]:
    """The graph in the file at `path`, for batches of that size, and the file's own content."""
    import onnx

    model = onnx.load(path)
    return _graph(model, _shapes(path, batch_size)), model


def _shapes(path: Path, batch_size: int) -> dict[str, Activation]:
    """Every tensor whose shape ONNX can tell, once the size of the batch is known."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if size.HasField("dim_param"):
                if size.dim_param == model.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
                    size.dim_value = batch_size
                else:
                    size.Clear()  # such as 2*batch, which is inferred anew
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return {
        value.name: Activation(
            tuple(size.dim_value for size in value.type.tensor_type.shape.dim),
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
        )
        for value in (*inferred.input, *inferred.output, *inferred.value_info)
        if value.type.tensor_type.HasField("shape")  # which a scalar has, too
        and all(size.HasField("dim_value") for size in value.type.tensor_type.shape.dim)
    }


def _graph(model: onnx.ModelProto, shapes: Mapping[str, Activation]) -> OnnxGraph:
    graph = model.graph
    constants = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    sizes = {**{name: known.shape for name, known in shapes.items()}, **constants}
    inputs = tuple(value.name for value in graph.input if value.name not in constants)
    known, operations = set(inputs), []
    for node in nodes(model):
        reads = tuple(dict.fromkeys(name for name in node.input if name in known))
        writes = tuple(name for name in node.output if name)
        known |= set(writes)
        count = _multiply_adds(node, sizes)
        operations.append(Operation(node.op_type, reads, writes, count, node.name or writes[0]))
    outputs = tuple(value.name for value in graph.output)
    activations = {name: shapes[name] for name in sorted(known & set(shapes))}
    return OnnxGraph(tuple(operations), activations, inputs, outputs)


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes that depend on the input, in the order of `OnnxGraph.operations`."""
    constants = {tensor.name for tensor in model.graph.initializer}
    known = {value.name for value in model.graph.input if value.name not in constants}
    for node in model.graph.node:
        if known & set(node.input):
            known |= set(node.output) - {""}
            yield node


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
            case "LSTM" | "GRU" | "RNN":  # of weights for what is read, and for the state
                steps, batch, _ = sizes[node.input[0]]
                return steps * batch * sum(math.prod(sizes[name]) for name in node.input[1:3])
            case _:
                return 0
    except KeyError:  # a shape that is not known
        return None


def _einsum_multiply_adds(equation: str, shapes: Sequence[tuple[int, ...]]) -> int:
    """Of products of two at a time, from left to right, as onnxruntime takes them.

    >>> _einsum_multiply_adds("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)])  # 2 products of matrices
    120
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    terms = []
    for term, shape in zip(left.split(","), shapes, strict=True):
        hidden = len(shape) - len(term.replace("...", ""))  # dimensions that the dots stand for
        dots = [f".{number}" for number in range(hidden, 0, -1)]
        before, _, after = term.partition("...")
        names = [*before, *dots, *after] if "..." in term else list(term)
        for name, size in zip(names, shape, strict=True):
            sizes[name] = max(size, sizes.get(name, 1))
        terms.append(set(names))
    kept = set(right) if arrow else {name for name in sizes if left.count(name) == 1}
    kept |= {name for name in sizes if name.startswith(".")}
    total, running = 0, terms[0]
    for number, term in enumerate(terms[1:], 1):
        total += math.prod(sizes[name] for name in running | term)
        running = (running | term) & kept.union(*terms[number + 1 :])
    return total

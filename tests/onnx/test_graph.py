"""The memory that activations take: searched, brute-forced, and counted in a run."""

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import onnx
from onnx import TensorProto, helper, numpy_helper
from skipless.onnx import export, read
from skipless.onnx import run as timing
from skipless.onnx.graph import (
    IN_PLACE,
    OnnxGraph,
    OnnxOperation,
    TensorInfo,
    UnknownShapeError,
    best_schedule,
)
from skipless.onnx.run import measure_peak_memory, open_session, run_session
from skipless.onnx.writer import rewrite_pools

KINDS = ("Conv", "Relu", "Add", "Flatten")


@st.composite
def graphs(draw) -> OnnxGraph:
    """Up to seven operations, each reading one or two of those before; sizes of 1 to 4 bytes."""
    sizes, operations = {"x": draw(st.integers(1, 4))}, []
    for number in range(draw(st.integers(1, 7))):
        kind, earlier = draw(st.sampled_from(KINDS)), list(sizes)
        count = 2 if kind == "Add" else 1
        reads = draw(st.lists(st.sampled_from(earlier), min_size=count, max_size=count))
        name = f"t{number}"
        sizes[name] = sizes[reads[0]] if kind == "Flatten" else draw(st.integers(1, 4))
        operations.append(OnnxOperation(kind, tuple(dict.fromkeys(reads)), (name,)))
    tensors = {name: TensorInfo((size,), np.dtype("int8")) for name, size in sizes.items()}
    return OnnxGraph(tuple(operations), tensors, ("x",), (operations[-1].writes[0],))


def orders(graph: OnnxGraph) -> Iterator[tuple[int, ...]]:
    """Every order in which nothing is read before it is written."""
    for order in permutations(range(len(graph.operations))):
        known = {"x"}
        for number in order:
            if not set(graph.operations[number].reads) <= known:
                break
            known |= set(graph.operations[number].writes)
        else:
            yield order


def peak(graph: OnnxGraph, order: tuple[int, ...]) -> int:
    """The rules once more, with buffers that names point at, as an interpreter would have them."""
    size = lambda name: graph.activations[name].size
    buffers, names, most = {0: size("x")}, {"x": 0}, 0
    for position, number in enumerate(order):
        operation = graph.operations[number]
        later = {n for i in order[position + 1 :] for n in graph.operations[i].reads}
        later |= set(graph.outputs)
        needed = lambda buffer, later=later: any(names[n] == buffer for n in later & set(names))
        (written,) = operation.writes
        reusable = [
            names[n]
            for n in operation.reads
            if size(n) == size(written) and names[n] != 0 and not needed(names[n])
        ]
        if operation.kind == "Flatten":
            names[written] = names[operation.reads[0]]
        elif operation.kind in ("Relu", "Add") and reusable:
            names[written] = reusable[0]
        else:
            names[written] = len(buffers) + 100 * number
            buffers[names[written]] = size(written)
        most = max(most, sum(buffers.values()))
        kept = {names[n] for n in later & set(names)}
        buffers = {buffer: bytes_ for buffer, bytes_ in buffers.items() if buffer in kept}
    return most


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_no_order_holds_less_than_the_schedule_that_was_found(graph: OnnxGraph) -> None:
    found = best_schedule(graph)
    assert found.optimal
    assert found.peak == min(peak(graph, order) for order in orders(graph))
    assert found.peak == peak(graph, found.order)


def test_where_there_are_too_many_orders_the_files_own_is_taken_and_said_so() -> None:
    writes = [OnnxOperation("Conv", ("x",), (f"t{n}",)) for n in range(9)]
    end = OnnxOperation("Concat", tuple(f"t{n}" for n in range(9)), ("y",))
    names = ("x", "y", *(f"t{n}" for n in range(9)))
    tensors = {name: TensorInfo((1,), np.dtype("int8")) for name in names}
    found = best_schedule(OnnxGraph((*writes, end), tensors, ("x",), ("y",)), max_states=5)
    assert not found.optimal
    assert found.order == tuple(range(10))


def saved(path: Path, nodes, weights, shape, outputs) -> Path:
    value = lambda name, size: helper.make_tensor_value_info(name, TensorProto.FLOAT, size)
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(
        nodes, "g", [value("x", ["batch", *shape])], [value("y", ["batch", *outputs])], tensors
    )
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def weights_for(kind: str) -> dict[str, np.ndarray]:
    ones = np.linspace(0.5, 1.5, 4, dtype=np.float32)
    return {
        "BatchNormalization": dict.fromkeys(("scale", "bias", "mean", "var"), ones),
        "Clip": {"low": np.array(-0.5, np.float32), "high": np.array(0.5, np.float32)},
        "PRelu": {"slope": ones.reshape(4, 1, 1)},
        **{k: {"other": ones.reshape(4, 1, 1)} for k in ("Add", "Sub", "Mul", "Div")},
    }.get(kind, {})


@pytest.mark.parametrize("kind", sorted(IN_PLACE))
def test_onnxruntime_computes_in_place_what_is_said_to_be(kind: str, tmp_path: Path) -> None:
    weights = weights_for(kind)
    convolve = helper.make_node("Conv", ["x", "w"], ["a"])
    apply = helper.make_node(kind, ["a", *weights], ["y"])
    weights = {"w": np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1), **weights}
    path = saved(tmp_path / "m.onnx", [convolve, apply], weights, (4, 33, 9), (4, 33, 9))
    batch = np.random.default_rng(0).normal(size=(2, 4, 33, 9)).astype(np.float32)
    graph = read(path, 2)
    schedule = best_schedule(graph)
    assert measure_peak_memory(path, schedule, batch) == schedule.peak == 2 * batch.nbytes


def test_a_run_takes_what_was_computed_for_a_block_with_its_shortcut(tmp_path: Path) -> None:
    # V2 block of c channels with a branch to d and back: x, its activation, and d are held at once.
    c, d = 8, 2
    nodes = [
        helper.make_node("Conv", ["x", "stem"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "down"], ["n"]),
        helper.make_node("Conv", ["n", "up"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("GlobalAveragePool", ["s"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    shapes = {"stem": (c, 1), "down": (d, c), "up": (c, d)}
    rng = np.random.default_rng(0)
    weights = {n: rng.normal(size=(*s, 1, 1)).astype(np.float32) for n, s in shapes.items()}
    path = saved(tmp_path / "m.onnx", nodes, weights, (1, 10, 10), (c,))
    graph = read(path, 3)
    schedule = best_schedule(graph)
    assert schedule.peak == 3 * 100 * 4 * (c + c + d)
    batch = rng.normal(size=(3, 1, 10, 10)).astype(np.float32)
    assert measure_peak_memory(path, schedule, batch) == schedule.peak


@pytest.mark.parametrize(
    ("axes", "keep", "kinds"),
    [
        ([2, 3], 0, {"GlobalAveragePool": 1, "Flatten": 1}),
        ([-1, -2], 1, {"GlobalAveragePool": 1}),
        ([1, 2], 1, {"ReduceMean": 1}),
    ],
)
def test_a_mean_over_all_locations_becomes_a_pool(axes, keep, kinds, tmp_path: Path) -> None:
    node = helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=keep)
    outputs = {0: (4,), 1: (4, 1, 1) if 3 in axes or -1 in axes else (1, 1, 6)}[keep]
    path = saved(tmp_path / "m.onnx", [node], {"axes": np.array(axes)}, (4, 5, 6), outputs)
    batch = np.random.default_rng(0).normal(size=(2, 4, 5, 6)).astype(np.float32)
    rewrite_pools(path)
    graph = read(path, 2)
    assert graph.kinds == kinds
    expected = batch.mean(tuple(axes), keepdims=bool(keep))
    np.testing.assert_allclose(run_session(open_session(path), batch), expected, atol=1e-6)


def test_only_a_reshape_that_keeps_the_batch_becomes_a_flattening(tmp_path: Path) -> None:
    reshape = helper.make_node("Reshape", ["x", "sizes"], ["y"])
    for sizes, rows, kind in (([-1, 3], "rows", "Reshape"), ([-1, 12], "batch", "Flatten")):
        weights = {"sizes": np.array(sizes)}
        path = saved(tmp_path / "m.onnx", [reshape], weights, (4, 3), (sizes[1],))
        model = onnx.load(path)
        model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = rows
        onnx.save(model, path)
        rewrite_pools(path)
        assert [node.op_type for node in onnx.load(path).graph.node] == [kind]
        batch = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
        np.testing.assert_array_equal(run_session(open_session(path), batch), batch.reshape(sizes))


def test_where_a_shape_is_not_known_no_schedule_is_made_up(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"], "where"),  # as many columns as numbers
        helper.make_node("Cast", ["n"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["c", "w"], ["m"], "product"),
        helper.make_node("ReduceSum", ["m"], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    weights = {"w": np.ones((6, 1), np.float32)}
    graph = read(saved(tmp_path / "m.onnx", nodes, weights, (3,), (3,)), 2)
    assert graph.kinds == dict.fromkeys(("NonZero", "Cast", "MatMul", "ReduceSum", "Add"), 1)
    with pytest.raises(UnknownShapeError, match="shapes of NonZero where depend"):
        best_schedule(graph)
    with pytest.raises(UnknownShapeError, match="shapes of MatMul product depend"):
        _ = graph.multiply_adds


def test_a_tensor_of_unknown_rank_is_not_taken_for_a_scalar(tmp_path: Path) -> None:
    reshape = helper.make_node("Reshape", ["x", "sizes"], ["r"], "to")
    total = helper.make_node("ReduceSum", ["r"], ["s"], keepdims=0)
    add = helper.make_node("Add", ["x", "s"], ["y"])
    cast = helper.make_node("Cast", ["x"], ["c"], to=TensorProto.INT64)
    some = helper.make_node("Compress", ["c", "which"], ["sizes"])
    which = {"which": np.array([True, False])}
    path = saved(tmp_path / "m.onnx", [cast, some, reshape, total, add], which, (2,), (2,))
    with pytest.raises(UnknownShapeError):
        best_schedule(read(path, 1))
    assert "r" not in read(path, 1).activations


class Mixed(nn.Module):
    """Grouped, strided and transposed convolutions, a sum, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2)
        self.fc = nn.Linear(6 * 8 * 8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.fc(self.up(x + torch.relu(self.grouped(x))).flatten(1))


def test_multiply_adds_are_half_of_what_pytorch_counts_as_flops(tmp_path: Path) -> None:
    model, x = Mixed().eval(), torch.randn(1, 3, 8, 8)
    graph = read(export(model, x, tmp_path / "mixed.onnx"))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    assert 2 * graph.multiply_adds == counter.get_total_flops()
    assert graph.kinds["Flatten"] == 1


@pytest.mark.parametrize(
    ("equation", "shapes", "wanted"),
    [
        # Each entry of the output is a sum over what the output does not have.
        (None, [(3, 5), (5, 7)], 2 * 3 * 5 * 7),
        ("bti,io->bto", [(3, 5), (5, 7)], 2 * 3 * 5 * 7),
        ("...i,oi->...o", [(3, 5), (7, 5)], 2 * 3 * 5 * 7),
        ("bti,bsi", [(3, 5), None], 2 * 3 * 3 * 5),
        ("bti->bit", [(3, 5)], 0),
        # To 2 x 3 x 7 first, and from there to 2 x 3 x 4.
        ("bti,io,op->btp", [(3, 5), (5, 7), (7, 4)], 2 * 3 * 5 * 7 + 2 * 3 * 7 * 4),
        ("bti,io,op", [(3, 5), (5, 7), (7, 4)], 2 * 3 * 5 * 7 + 2 * 3 * 7 * 4),
        ("...i,io,op->...p", [(3, 5), (5, 7), (7, 4)], 2 * 3 * 5 * 7 + 2 * 3 * 7 * 4),
    ],
)
def test_products_of_any_dimensions_are_counted(equation, shapes, wanted, tmp_path: Path) -> None:
    names = ["x", *("x" if s is None else f"w{n}" for n, s in enumerate(shapes[1:]))]
    weights = {n: np.ones(s, np.float32) for n, s in zip(names[1:], shapes[1:], strict=True) if s}
    attributes = {} if equation is None else {"equation": equation}
    product = helper.make_node(
        "MatMul" if equation is None else "Einsum", names, ["p"], **attributes
    )
    total = helper.make_node("ReduceSum", ["p"], ["s"], keepdims=0)
    add = helper.make_node("Add", ["x", "s"], ["y"])
    path = saved(tmp_path / "m.onnx", [product, total, add], weights, shapes[0], shapes[0])
    assert run_session(open_session(path), np.ones((2, *shapes[0]), np.float32)).shape == (
        2,
        *shapes[0],
    )
    assert read(path, 2).multiply_adds == wanted


def test_memory_of_another_type_is_not_written_over() -> None:
    # A float of 2 x 2 bytes is no place for four bytes, though both take as many.
    tensors = {
        "x": TensorInfo((1,), np.dtype("int8")),
        "a": TensorInfo((2,), np.dtype("int16")),
        "y": TensorInfo((2,), np.dtype("int8")),
    }
    steps = OnnxOperation("Conv", ("x",), ("a",)), OnnxOperation("Relu", ("a",), ("y",))
    assert best_schedule(OnnxGraph(steps, tensors, ("x",), ("y",))).peak == 4 + 2


def test_each_thread_is_one_that_was_asked_for(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {}, (3,), (3,))
    for threads in (1, 3):
        assert open_session(path, threads).get_session_options().intra_op_num_threads == threads


def test_latency_is_the_median_of_rounds_in_turn_after_the_first_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, ran = [0.0], []
    takes = {"a": [90.0, 90.0, 1, 9, 2, 3, 1, 9, 4], "b": [80.0, 80.0, 5, 5, 5, 5, 5, 5, 5]}
    left = {name: iter(times) for name, times in takes.items()}

    def run(running: tuple[str, int], _: np.ndarray) -> None:
        ran.append(running)
        clock[0] += next(left[running[0]])

    monkeypatch.setattr(timing, "open_session", lambda path, threads=1: (str(path), threads))
    monkeypatch.setattr(timing, "run_session", run)
    monkeypatch.setattr(timing, "perf_counter", lambda: clock[0])
    paths = {f"file {name}": Path(name) for name in takes}
    found = timing.measure_latencies(paths, np.zeros(1), threads=4, seconds=0.0)
    assert found == {"file a": 3.0, "file b": 5.0}
    assert ran == [("a", 4), ("b", 4)] * 9

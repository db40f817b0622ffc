"""read: what an adapter says of single operations becomes the graph that one would draw by hand."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from skipless import Graph, GraphBuilder
from skipless.core.activations import Array
from skipless.core.graph import Sum
from skipless.core.record import (
    AxisMap,
    Bias,
    Concatenation,
    Layer,
    Move,
    Norm,
    Operation,
    Pointwise,
    Preparation,
    Recorded,
    ShapedCall,
    Unsupported,
    UnsupportedModelError,
)
from skipless.core.trace import Axes, read


class Listed(Recorded[str]):
    """A record that is written down: tensors of two axes, the last one output."""

    def __init__(
        self, operations: Mapping[str, Operation[str]], **functions: Callable[..., Array | None]
    ):
        self.input, self.operations, self._functions = "x", dict(operations), functions

    @property
    def outputs(self) -> Sequence[str]:
        return list(self.operations)[-1:]

    def origin(self, tensor: str) -> str:
        return f"line {tensor}"

    def shape(self, tensor: str) -> Sequence[int | None]:
        return (4, 8)

    def channel_candidates(self, rank: int) -> Sequence[int]:
        return range(1, rank)

    def values(self, tensor: str, sources: Mapping[str, Array]) -> Array | None:
        operation = self.operations[tensor]
        return self._functions[tensor](*(sources[s] for s in operation.sources if s is not None))


def layer(source: str, weights: str | None = None, **options) -> Layer[str]:
    return Layer((source,), weights, summed=(1,), made=(1,), **options)


def function(*sources: str, affine: bool = False, weights=None) -> Pointwise[str]:
    return Pointwise(sources, "mul", weights, affine)


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def sums(graph: Graph) -> list[tuple[float, ...]]:
    return [node.weights for node in graph.nodes if isinstance(node, Sum)]


def test_a_function_is_recognised_by_its_values_however_many_operations_it_is() -> None:
    silu = {"a": layer("x"), "s": function("a"), "y": function("a", "s")}
    reading = read(Listed(silu, s=sigmoid, y=np.multiply))
    assert reading.graph == Graph.chain(1)
    assert reading.activations == {"y": "silu"}
    assert reading.steps["y"].inputs == ("a",)


def test_activations_in_a_row_are_cut_where_all_of_the_later_one_goes_through() -> None:
    operations = {"a": layer("x"), "r": function("a"), "s": function("r"), "y": function("r", "s")}
    reading = read(Listed(operations, r=lambda x: np.maximum(x, 0.0), s=sigmoid, y=np.multiply))
    assert reading.graph.depth == 2
    assert reading.activations == {"r": "relu", "y": "silu"}


def test_an_unknown_function_is_refused_where_it_first_becomes_unknown() -> None:
    operations = {"a": layer("x"), "u": function("a"), "v": function("u"), "b": layer("v")}
    with pytest.raises(
        UnsupportedModelError, match=r"line u computes a pointwise.*\(used at line v"
    ):
        read(Listed(operations, u=np.cosh, v=np.tanh))


def test_a_sum_over_places_is_a_mean_once_it_is_divided() -> None:
    total = Move(("a",), "sum", AxisMap.identity(2), factor=64.0)
    operations = {"a": layer("x"), "t": total, "m": function("t", affine=True), "b": layer("m")}
    divided = read(Listed(operations, m=lambda x: x / 64.0)).graph
    assert sums(divided) == []
    again = Move(("t",), "sum", AxisMap.identity(2), factor=0.5)
    left = read(Listed({"a": layer("x"), "t": total, "u": again, "b": layer("u")})).graph
    assert sums(left) == [(32.0,)]


def test_constants_before_the_network_standardise_its_input() -> None:
    operations = {"m": function("x", affine=True), "n": function("m", affine=True), "a": layer("n")}
    unequal = lambda x: None  # a mean for each channel
    reading = read(Listed(operations, m=unequal, n=lambda x: x / 4.0))
    assert len(reading.graph.nodes) == 2
    assert reading.tensors()[0] == ("n", 1.0)


def test_an_activation_of_a_standardised_input_has_no_factor() -> None:
    operations = {"m": function("x", affine=True), "r": function("m"), "a": layer("r")}
    half, relu = lambda x: x / 2.0, lambda x: np.maximum(x, 0.0)
    builder = GraphBuilder()
    builder.affine(builder.activation(builder.input()))
    assert read(Listed(operations, m=half, r=relu)).graph == builder.build()


def test_a_factor_of_an_input_that_others_read_is_the_weight_of_a_branch() -> None:
    flip = Move(("m",), "flip", AxisMap.identity(2))
    total = function("f", "a", weights=(1.0, 1.0))
    operations = {"m": function("x", affine=True), "f": flip, "a": layer("x"), "y": total}
    assert sums(read(Listed(operations, m=lambda x: 0.6 * x)).graph) == [(0.6,), (1.0, 1.0)]


def test_what_prepares_the_input_may_not_stand_inside_the_network() -> None:
    assert len(read(Listed({"p": Preparation(("x",)), "a": layer("p")})).graph.nodes) == 2
    with pytest.raises(UnsupportedModelError, match="line p normalises per location inside"):
        read(Listed({"a": layer("x"), "p": Preparation(("a",))}))
    with pytest.raises(UnsupportedModelError, match=r"^no flips"):
        read(Listed({"a": layer("x"), "p": Preparation(("a",), "no flips")}))


def test_norms_biases_and_shaped_activations_have_their_steps() -> None:
    operations = {"a": layer("x"), "b": Bias(("a",)), "n": Norm(("b",)), "y": ShapedCall(("n",))}
    reading = read(Listed(operations))
    assert reading.graph == Graph.chain(1)
    assert reading.notes.norms == ["line n"]
    assert [step.kind for step in reading.steps.values()][1:] == [
        *("affine", "affine", "norm", "activation")
    ]
    assert reading.tensors()[1] == ("b", 1.0)


def test_what_a_shaped_activation_computes_inside_is_no_node() -> None:
    operations = {
        "a": layer("x"),
        "inside": ShapedCall(("a",)),
        "y": ShapedCall(("a",)),
        "b": layer("y"),
    }
    assert read(Listed(operations)).graph.activations == 1


def test_shared_weights_and_narrow_groups_are_noted() -> None:
    operations = {"a": layer("x", "w", channels=3), "y": function("a"), "b": layer("y", "w")}
    assert read(Listed(operations, y=np.tanh)).notes.approximate == [
        "few weights an output before line y",
        "weights used again at line b",
    ]


def test_refusals_come_in_the_order_of_the_network() -> None:
    gate = {"a": layer("x"), "b": layer("x"), "g": function("a", "b"), "u": Unsupported("sorts")}
    with pytest.raises(UnsupportedModelError, match="line g combines two branches by mul"):
        read(Listed(gate))
    with pytest.raises(UnsupportedModelError, match=r"^sorts"):
        read(Listed({"u": gate["u"], "a": gate["a"]}))
    with pytest.raises(UnsupportedModelError, match="line y multiplies two tensors"):
        read(Listed({"a": gate["a"], "y": Layer(("a", "x"), None, (1,), (1,))}))
    with pytest.raises(UnsupportedModelError, match="line y concatenates the signal with a const"):
        read(Listed({"y": Concatenation(("x", None), (1.0, 1.0), 1)}))


def test_axes_are_followed_wherever_samples_and_channels_go() -> None:
    swap = Move(("x",), "transpose", AxisMap(((1,), (0,))))
    rows = Layer(("t",), None, summed=(0,), made=(1,), axes=AxisMap(((), (0,))))
    columns = Layer(("r",), None, summed=(1,), made=(0,), axes=AxisMap(((1,), ())))
    operations = {"t": swap, "r": rows, "y": columns}
    axes = read(Listed(operations)).axes
    assert (axes["x"], axes["t"]) == (Axes(0, (1,)), Axes(1, (0,)))
    assert (axes["r"], axes["y"]) == (Axes(0, (1,)), Axes(1, (0,)))
    mean = Move(("y",), "mean", AxisMap(((), (0,)), pooled=frozenset({0})))
    with pytest.raises(UnsupportedModelError, match="line m computes mean over channels"):
        read(Listed({**operations, "m": mean, "b": layer("m")}))

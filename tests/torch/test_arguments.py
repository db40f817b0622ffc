"""Models with several inputs, with arguments by name, and with several outputs."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import skipless as sk
from skipless.core.graph import Affine, Concat, Graph, Input, Nonlinearity, Sum
from skipless.core.maps import leaky_relu_c_map
from skipless.core.network import fold, max_c_value, max_curvature
from skipless.torch import check, convert, measure, pair_inputs, trace

WIDTH = 32


class Pair(nn.Module):
    """Two inputs with layers of their own, whose results are added."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, WIDTH), nn.Linear(6, WIDTH)
        self.c, self.phi = nn.Linear(WIDTH, 4), nn.ReLU()

    def forward(self, x: Tensor, cond: Tensor, scale: float = 1.0) -> Tensor:
        return self.c(self.phi(self.a(x) + self.b(cond))) * scale


X, Y = torch.zeros(2, 8), torch.zeros(2, 6)
GIVEN = {"tuple": (X, Y), "list": [X, Y], "by name": {"x": X, "cond": Y}}


@pytest.mark.parametrize("how", GIVEN)
def test_several_inputs_are_given_as_the_model_is_called(how: str) -> None:
    example, model = GIVEN[how], Pair()
    expected = [Input(), Concat((0,)), Affine(0), Affine(1), Sum((2, 3), (1.0, 1.0))]
    assert trace(model, example) == Graph([*expected, Nonlinearity(4), Affine(5)])
    converted = convert(model, example)
    assert check(converted, example, seeds=4).agrees
    x, y = torch.randn(5, 8), torch.randn(5, 6)
    assert torch.equal(converted(x, y), converted(x=x, cond=y))
    assert converted(x, y).shape == (5, 4)


def test_every_input_of_a_check_has_pairs_of_that_cosine() -> None:
    model = convert(Pair(), (X, Y))
    (found,) = [c for c in check(model, (X, Y), seeds=2, cosines=[0.6]).comparisons
                if c.measured.node == 1]  # fmt: skip
    assert found.measured.c.mean == pytest.approx(0.6, abs=1e-6)
    assert found.measured.q.mean == pytest.approx(1.0, abs=1e-6)


def test_several_inputs_are_measured() -> None:
    x, y = (pair_inputs((n,), pairs=4, cosine=0.25) for n in (8, 6))
    found = measure(Pair(), {"x": x, "cond": y}).nodes
    assert [node.c.mean for node in found[:2]] == pytest.approx([0.25, 0.25], abs=1e-6)


def test_an_input_alone_may_be_in_a_tuple() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
    assert sk.trace(model, (X,)) == trace(model, {"input": X}) == trace(model, X)


def test_products_of_inputs_and_modulation_by_another_one_are_read() -> None:
    class Modulated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.film = nn.Linear(8, WIDTH), nn.Linear(6, 2 * WIDTH)
            self.b = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, cond: Tensor) -> Tensor:
            scale, shift = self.film(cond).chunk(2, 1)
            return self.b(torch.relu(self.a(x) * (1.0 + scale) + shift))

    assert check(convert(Modulated(), (X, Y)), (X, Y), seeds=4).agrees


def test_indices_are_no_signal() -> None:
    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 4)

        def forward(self, x: Tensor, places: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(x).index_select(0, places)))

    example = (torch.zeros(4, 8), torch.tensor([0, 1, 2, 3, 3]))
    model = convert(Picks(), example)
    assert model.skipless_report.graph.activations == 1
    assert model(torch.randn(4, 8), torch.tensor([3, 1, 0, 2, 2])).shape == (5, 4)


@dataclass
class Results:
    logits: Tensor
    hidden: list[Tensor]


pytree.register_dataclass(Results, serialized_type_name="tests.torch.test_arguments.Results")


class Backbone(nn.Module):
    def __init__(self, wrap) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.wrap = wrap

    def forward(self, x: Tensor) -> object:
        hidden = []
        for layer in self.layers:
            x = torch.relu(layer(x))
            hidden.append(x)
        return self.wrap(hidden)


STRUCTURES = {
    "list": lambda h: h,
    "tuple": tuple,
    "dict": lambda h: {"first": h[0], "rest": h[1:]},
    "dataclass": lambda h: Results(h[-1], h[:-1]),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_results_keep_their_structure(name: str) -> None:
    model, x = Backbone(STRUCTURES[name]), torch.zeros(2, WIDTH)
    converted = convert(model, x)
    old, new = model(x), converted(x)
    assert type(old) is type(new)
    assert type(copy.deepcopy(converted)(x)) is type(new)
    leaves = [pytree.tree_flatten(each) for each in (old, new)]
    assert leaves[0][1] == leaves[1][1]
    assert check(converted, x, seeds=3).agrees


class Deep(nn.Module):
    """A head behind every layer, all but the last for training alone."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        results = []
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = torch.relu(layer(x))
            results.append(head(x))
        return results if self.training else results[-1]


def test_targets_hold_for_the_output_in_which_they_are_largest() -> None:
    graph = trace(Deep(3), torch.zeros(2, WIDTH))
    chain, end = Graph.chain(3), graph.nodes[-1]

    def r(c: float) -> float:
        return leaky_relu_c_map(c, 0.1)

    assert max_c_value(graph, r) == pytest.approx(fold(chain, r, 0.0))
    assert max_curvature(graph, 0.5) == pytest.approx(1.5)
    assert isinstance(end, Concat)
    joined = Graph([*graph.nodes[:-1], Concat(end.inputs)])
    assert max_curvature(joined, 0.5) < 1.5


def test_heads_for_training_alone_are_read_in_training() -> None:
    x = torch.zeros(2, WIDTH)
    train, evaluate = (trace(Deep(2).train(mode), x) for mode in (True, False))
    assert [isinstance(g.nodes[-1], Concat) for g in (train, evaluate)] == [True, False]
    assert len(convert(Deep(2), x)(x)) == 2


def test_what_cannot_be_called_so_is_said_in_one_line() -> None:
    with pytest.raises(TypeError, match=r"Expected a model and an example .* got \(Pair, str\)"):
        trace(Pair(), "x")
    with pytest.raises(ValueError, match=r"torch\.export failed on Pair with input shape"):
        trace(Pair(), X)

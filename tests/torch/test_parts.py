"""Parts that no formula covers: measured on their own, kept, and counted by `solve`."""

import math

import pytest
import torch
from torch import nn

from skipless.core.graph import Affine, Graph, Measured, Sum
from skipless.core.maps import leaky_relu_c_map
from skipless.torch import (
    convert,
    initialize_,
    measure,
    pair_inputs,
    trace,
)

SEQUENCES = torch.zeros(2, 5, 32)


class Hidden(nn.Module):
    """A module behind an operation that the theory does not know, and that changes nothing."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.inner(x)
        return first + 0.0 * torch.tan(x)


def parts_of(graph: Graph) -> list[Measured]:
    return [node for node in graph.nodes if isinstance(node, Measured)]


class Residual(nn.Module):
    """w x + √(1 - w²) R(x), with leaky ReLU in R."""

    def __init__(self, width: int, w: float) -> None:
        super().__init__()
        self.a, self.b, self.w = nn.Linear(width, width), nn.Linear(width, width), w

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = math.sqrt(2.0 / (1.0 + 0.2**2))
        branch = self.b(scale * nn.functional.leaky_relu(self.a(x), 0.2))
        return self.w * x + math.sqrt(1.0 - self.w**2) * branch


@pytest.mark.parametrize("w", [0.0, 0.6])
def test_a_hidden_residual_block_has_the_curve_that_is_derived(w: float) -> None:
    model = nn.Sequential(nn.Linear(256, 256), Hidden(Residual(256, w)), nn.Linear(256, 4))
    initialize_(model, generator=torch.Generator().manual_seed(0))
    (part,) = parts_of(trace(model, torch.zeros(2, 256)))
    maps = part.curve
    assert maps.is_measured
    for c, value, error in zip(maps.cosines, maps.values, maps.errors, strict=True):
        derived = w**2 * c + (1.0 - w**2) * leaky_relu_c_map(c, 0.2)
        assert abs(value - derived) <= 4.0 * error + 1e-9, c
    assert 0.0 < max(maps.errors) < 0.02
    assert abs(maps.gain - 1.0) <= 4.0 * maps.gain_error


class Attention(nn.Module):
    """Attention written out; all positions look at themselves alike if they are alike."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (
            m(x).view(b, t, self.heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v)
        )
        weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(d / self.heads), dim=-1)
        return self.o((weights @ v).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(width), Attention(width, 4)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm(x))
        return x + self.mlp(x)


def test_attention_is_the_smallest_part_with_one_signal_in_and_one_out() -> None:
    graph = trace(nn.Sequential(Block(), nn.Linear(32, 3)), SEQUENCES)
    kinds = [type(node) for node in graph.nodes]
    assert kinds.count(Measured) == 1
    assert kinds.count(Affine) == 4  # the projection behind it, the MLP and the last layer
    (part,) = parts_of(graph)
    assert isinstance(graph.nodes[part.input], type(graph.nodes[0]))  # norms are no nodes


def test_attention_to_equal_positions_is_a_linear_map() -> None:
    model = nn.Sequential(nn.Linear(64, 64), Attention(64, 4))
    initialize_(model, generator=torch.Generator().manual_seed(0))
    (part,) = parts_of(trace(model, torch.zeros(2, 3, 64)))
    for c, value, error in zip(
        part.curve.cosines, part.curve.values, part.curve.errors, strict=True
    ):
        assert abs(value - c) <= 4.0 * error + 1e-6
    assert part.curve.gain == pytest.approx(1.0, abs=1e-5)  # orthogonal values


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.cell = nn.Linear(32, 32), nn.GRU(32, 48, batch_first=True)
        self.last = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.cell(torch.relu(self.first(x)))[0])


@pytest.mark.parametrize("make", [lambda: nn.Sequential(Block(), nn.Linear(32, 3)), Recurrent])
def test_a_converted_model_keeps_its_parts_with_q_of_one_behind(make) -> None:
    torch.manual_seed(0)
    model = make()
    converted = convert(model, SEQUENCES, generator=torch.Generator().manual_seed(1))
    report = converted.skipless_report
    assert len(report.measured) == 1
    before, after = model.state_dict(), converted.state_dict()
    assert report.kept
    assert all(torch.equal(before[name], after[name]) for name in report.kept)
    assert "part kept, measured, with a factor behind it" in str(report)
    assert f"± {report.target_error:.2g}" in str(report)
    graph = trace(converted, torch.zeros(48, 5, 32))
    pairs = pair_inputs((5, 32), pairs=24, cosine=0.0, channel_axis=1)
    behind = [
        node
        for node in measure(converted, pairs).nodes
        if isinstance(own := graph.nodes[node.node], Sum)
        and isinstance(graph.nodes[own.inputs[0]], Measured)
    ]
    assert behind
    assert all(abs(math.log(node.q.mean)) < 0.3 for node in behind)
    initialize_(converted)
    assert all(torch.equal(before[name], converted.state_dict()[name]) for name in report.kept)
    assert converted(torch.randn(7, 5, 32)).shape[0] == 7  # batches of any size

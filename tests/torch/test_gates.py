"""Gated models: read, converted so that q = 1, and measured by brute force."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipless import predict
from skipless.core.graph import Fixed, Product
from skipless.core.network import Point
from skipless.torch import check, convert, initialize_, measure, pair_inputs, trace
from skipless.torch.trace import UnsupportedModelError

WIDTH = 64


class GLU(nn.Module):
    """Feed-forward blocks whose hidden units are gated by others (Shazeer, 2020)."""

    def __init__(self, act, blocks: int = 2) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(blocks))
        self.down = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(blocks))
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            signal, gate = up(x).chunk(2, -1)
            x = x + down(signal * self.act(gate))
        return x


class Squeeze(nn.Module):
    """Squeeze and excitation (Hu et al., 2018) in a residual block."""

    def __init__(self, gate=torch.sigmoid) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH)
        self.reduce, self.expand = nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH // 2, WIDTH)
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(F.relu(x)))
        squeezed = F.relu(self.reduce(y.mean((2, 3))))
        gate = self.gate(self.expand(squeezed))
        return x + y * gate.view(*gate.shape, 1, 1).expand_as(y)


class AttentionGate(nn.Module):
    """The additive gate of an Attention U-Net (Oktay et al., 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.g = (nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)) for _ in range(2))
        self.psi = nn.Sequential(nn.Conv2d(8, 1, 1), nn.BatchNorm2d(1), nn.Sigmoid())
        self.first, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        g = self.first(x)
        return self.last(x * self.psi(F.relu(self.x(x) + self.g(g))))


class Modulated(nn.Module):
    """Scale and shift from a layer (FiLM; Perez et al., 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.film = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self.film(torch.relu(x)).split(WIDTH, 1)
        return torch.relu(self.layer(x)) * (1 + scale) + shift


GATED = {
    "SwiGLU": (lambda: GLU(F.silu), (2, WIDTH)),
    "GLU": (lambda: nn.Sequential(*(m for _ in range(2) for m in (
        nn.Linear(WIDTH, 2 * WIDTH), nn.GLU(1), nn.Linear(WIDTH, WIDTH), nn.ReLU()))), (2, WIDTH)),
    "GEGLU": (lambda: GLU(nn.GELU()), (2, 5, WIDTH)),
    "bilinear": (lambda: nn.Sequential(GLU(nn.Identity()), nn.ReLU(), nn.Linear(64, 4)), (2, 64)),
    "SE": (lambda: nn.Sequential(nn.Conv2d(3, 64, 1), Squeeze(), Squeeze()), (2, 3, 4, 4)),
    "SE, hard": (lambda: nn.Sequential(
        nn.Conv2d(3, 64, 1), Squeeze(lambda x: F.relu6(x + 3.0) / 6.0)), (2, 3, 4, 4)),
    "SE, 2 sigmoid": (lambda: nn.Sequential(
        nn.Conv2d(3, 64, 1), Squeeze(lambda x: 2.0 * torch.sigmoid(x))), (2, 3, 4, 4)),
    "attention gate": (AttentionGate, (2, 8, 4, 4)),
    "FiLM": (lambda: nn.Sequential(nn.Linear(8, WIDTH), Modulated()), (2, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", GATED)
def test_gated_models_are_converted_with_q_1_everywhere_and_check_agrees(name: str) -> None:
    build, shape = GATED[name]
    converted = convert(build(), torch.zeros(shape))
    report = converted.skipless_report
    points = [report.predicted[i] for i in report.graph.live]
    assert [point.q for point in points] == pytest.approx([1.0] * len(points))
    assert any(isinstance(node, Product) for node in report.graph.nodes)
    found = check(converted, torch.zeros(shape), seeds=6)
    assert found.agrees, str(found)


def test_a_glu_is_the_product_that_it_stands_for() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.layer(x).chunk(2, 1)
            return a * torch.sigmoid(b)

    layer = Written()
    glu = nn.Sequential(layer.layer, nn.GLU(1))
    x = torch.randn(3, 8)
    assert trace(glu, x) == trace(layer, x)


def test_the_kernel_of_a_gated_model_is_that_of_forward_hooks() -> None:
    """q and c behind every block, by hooks on a model that nobody replays."""
    model = convert(nn.Sequential(nn.Conv2d(32, 64, 1), Squeeze(), nn.Conv2d(64, 64, 1)),
                    torch.zeros(2, 32, 3, 3))  # fmt: skip
    seen: list[Tensor] = []
    model.get_submodule("2").register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x = pair_inputs((32, 3, 3), pairs=4, cosine=0.3, generator=torch.Generator().manual_seed(0))
    graph = model.skipless_report.graph
    draws = 60
    with torch.no_grad():
        for seed in range(draws):
            initialize_(model, generator=torch.Generator().manual_seed(seed))
            model(x)
    y = torch.stack(seen).flatten(3)  # (draw, sample, channel, place)
    q = y.square().mean((1, 2, 3))
    c = (y[:, 0::2] * y[:, 1::2]).mean((1, 2, 3)) / q
    point = predict(graph, model.skipless_report.solution, Point(1.0, 0.3))[-2]
    for measured, expected in ((q, point.q), (c, point.c)):
        error = measured.std().item() / math.sqrt(draws)
        assert abs(measured.mean().item() - expected) < 4.0 * error + 2.0 / WIDTH


def test_the_gate_of_pooled_signals_is_approximate_and_its_size_is_said() -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 1), Squeeze())
    converted = convert(model, torch.zeros(2, 3, 8, 8))
    report = converted.skipless_report
    assert "gate of pooled signals (q up to 15 % lower)" in report.approximate[0]
    (place,) = [i for i, n in enumerate(report.graph.nodes) if isinstance(n, Product)]
    assert report.predicted[place].basis == "approximate"
    # Where places differ, what is pooled is smaller, and the gate nearer to one half.
    x = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    q = {n.node: n.q.mean for n in measure(converted, x, seeds=40).nodes}
    (product,) = [n for n in report.graph.nodes if isinstance(n, Product)]
    assert 0.852 < q[place] / q[product.inputs[0]] < 0.98


def test_gates_keep_their_function_and_activations_are_shaped() -> None:
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), GLU(torch.sigmoid))
    converted = convert(model, torch.zeros(2, 8))
    fixed = [n for n in converted.skipless_report.graph.nodes if isinstance(n, Fixed)]
    assert [n.phi.name for n in fixed] == ["sigmoid", "sigmoid"]
    assert "gate kept, times 1.846" in str(converted.skipless_report)
    x = torch.randn(2, 8)
    assert torch.equal(copy.deepcopy(converted)(x), converted(x))
    swiglu = convert(GLU(F.silu), torch.zeros(2, WIDTH))
    assert not any(isinstance(n, Fixed) for n in swiglu.skipless_report.graph.nodes)


class Combined(nn.Module):
    def __init__(self, combine) -> None:
        super().__init__()
        self.a, self.b, self.combine = nn.Linear(8, 8), nn.LazyLinear(8), combine

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.b(self.combine(self.a(x))))


@pytest.mark.parametrize(
    "combine",
    [
        lambda x: x * x.flip(1),
        lambda x: x * torch.sigmoid(x.mean(0, keepdim=True)),
        lambda x: x[:, :4] * torch.relu(x[:, 2:6]),  # with channels in common
        lambda x: x.chunk(2, 0)[0] * torch.tanh(x.chunk(2, 0)[1]),  # of samples
        lambda x: F.glu(torch.cat([x, x], 1)),
    ],
)
def test_factors_that_depend_on_each_other_have_no_product_rule(combine) -> None:
    with pytest.raises(UnsupportedModelError, match="combines two branches by mul"):
        trace(Combined(combine), torch.zeros(2, 8), strict=True)


def test_factors_of_the_same_weights_are_not_independent() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) * torch.tanh(self.a(x))

    with pytest.raises(UnsupportedModelError, match="combines two branches by mul"):
        trace(Shared(), torch.zeros(2, 8), strict=True)


def test_a_power_is_an_activation_and_no_product_of_branches() -> None:
    graph = trace(Combined(lambda x: x * x), torch.zeros(2, 8))
    assert not any(isinstance(node, Product) for node in graph.nodes)


def test_gated_networks_learn() -> None:
    torch.manual_seed(0)
    network = convert(nn.Sequential(nn.Linear(8, 64), GLU(F.silu, 4), nn.Linear(64, 1)),
                      torch.zeros(2, 8))  # fmt: skip
    x = torch.randn(64, 8)
    y = x[:, :1] * x[:, 1:2]
    optimizer = torch.optim.SGD(network.parameters(), 0.02, momentum=0.9)
    losses = []
    for _ in range(30):
        loss = F.mse_loss(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]

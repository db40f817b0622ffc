"""What counts for nothing in the theory, however it is written, is kept or removed."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipless.torch import check, convert, trace
from skipless.torch.convert import DropPath

WIDTH = 16


class Between(nn.Module):
    """Two layers with something between them, and an activation."""

    def __init__(self, function, **parts) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(WIDTH, WIDTH, 1) for _ in range(3))
        self.function = function
        for name, part in parts.items():
            fixed = isinstance(part, Tensor) and not isinstance(part, nn.Parameter)
            self.register_buffer(name, part) if fixed else setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.function(self, self.a(x))))


def branch(model: Between, x: Tensor) -> Tensor:
    return model.b(torch.relu(x))


def plain(function) -> Between:
    return Between(function)


NOTHING = plain(lambda m, x: x)
RESIDUAL = plain(lambda m, x: x + branch(m, x))
NUMBERS = torch.linspace(0.5, 2.0, WIDTH).view(1, WIDTH, 1, 1)


def learned() -> nn.Parameter:
    return nn.Parameter(NUMBERS.clone())


def autocast(m: Between, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return x.float() * 1.0


class Standardised(nn.Conv2d):
    """Weights of mean 0 and variance 1 for each output (Qiao et al., 2019)."""

    def forward(self, input: Tensor) -> Tensor:
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        spread = self.weight.var((1, 2, 3), keepdim=True)
        return F.conv2d(input, (self.weight - mean) / (spread + 1e-5).sqrt(), self.bias)


SAME = {
    "learned factors": (lambda m, x: x * m.g, NOTHING, {"g": learned()}),
    "affine": (lambda m, x: x * m.g + m.h, NOTHING, {"g": learned(), "h": learned()}),
    "frozen statistics": (lambda m, x: x * m.g + m.h, NOTHING, {"g": NUMBERS, "h": NUMBERS}),
    "addcmul": (lambda m, x: torch.addcmul(m.h, m.g, x), NOTHING,
                {"g": learned(), "h": nn.Parameter(torch.zeros(1, WIDTH, 1, 1))}),
    "layer scale": (lambda m, x: x + m.g * branch(m, x), RESIDUAL, {"g": learned()}),
    "stack, sum": (lambda m, x: torch.stack([x, branch(m, x)], 1).sum(1), RESIDUAL, {}),
    "stack, mean": (lambda m, x: 2.0 * torch.stack([x, branch(m, x)], 0).mean(0), RESIDUAL, {}),
    "expand_as": (lambda m, x: x + branch(m, x).expand_as(x), RESIDUAL, {}),
    "reshape_as": (lambda m, x: x.flatten(1).reshape_as(x), NOTHING, {}),
    "swapdims": (lambda m, x: x.swapdims(2, 3), NOTHING, {}),
    "autocast": (autocast, NOTHING, {}),
    "position embeddings": (lambda m, x: x + m.p, NOTHING,
                            {"p": nn.Parameter(0.02 * torch.randn(1, WIDTH, 4, 4))}),
    "standardised weights": (lambda m, x: m.s(x), plain(lambda m, x: m.b(x)),
                             {"s": Standardised(WIDTH, WIDTH, 1)}),
    "blur": (lambda m, x: F.conv2d(x, m.f, padding=1, groups=WIDTH), NOTHING,
             {"f": torch.full((WIDTH, 1, 3, 3), 1.0 / 9.0)}),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_harmless_operations_leave_the_graph_as_it_is(name: str) -> None:
    function, same, parts = SAME[name]
    model, x = Between(function, **parts), torch.zeros(2, WIDTH, 4, 4)
    assert trace(model, x) == trace(same, x)


@pytest.mark.parametrize("name", ["affine", "layer scale", "stack, sum", "standardised weights"])
def test_models_with_harmless_operations_are_converted(name: str) -> None:
    function, _, parts = SAME[name]
    x = torch.randn(2, WIDTH, 4, 4)
    converted = convert(Between(function, **parts), x)
    assert check(converted, x, seeds=4).agrees
    other = convert(SAME[name][1], x)
    source = {k: v for k, v in converted.state_dict().items() if k in other.state_dict()}
    if name == "standardised weights":
        source |= {f"b.{k}": converted.state_dict()[f"s.{k}"] for k in ("weight", "bias")}
    other.load_state_dict(source)
    assert torch.allclose(converted(x), other(x), atol=1e-6)


def rows(m: Between, x: Tensor) -> Tensor:
    random = x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(0.75)
    random.div_(0.75)
    return x * random


def floored(m: Between, x: Tensor) -> Tensor:
    random = 0.75 + torch.rand((x.shape[0], 1, 1, 1), dtype=x.dtype, device=x.device)
    random.floor_()
    return x.div(0.75) * random


def whole_batch(m: Between, x: Tensor) -> Tensor:
    return x * torch.empty((1, 1, 1, 1)).bernoulli_(0.75) / 0.75


@pytest.mark.parametrize("drop", [rows, floored, whole_batch])
def test_stochastic_depth_is_kept_in_training_and_counts_for_nothing(drop) -> None:
    def function(m: Between, x: Tensor) -> Tensor:
        y = branch(m, x)
        return x + (drop(m, y) if m.training else y)

    x = torch.zeros(2, WIDTH, 4, 4)
    model = plain(function).train()
    assert trace(model, x) == trace(RESIDUAL, x)
    converted = convert(model, x)
    assert check(converted.eval(), x, seeds=3).agrees
    y = torch.randn(2, WIDTH, 4, 4)
    assert torch.equal(converted(y), converted(y))
    converted.train()
    assert not all(torch.equal(converted(y), converted(y)) for _ in range(20))
    (found,) = [m for m in converted.modules() if isinstance(m, DropPath)]
    assert found.keep == 0.75


def test_dropped_paths_keep_their_mean() -> None:
    drop = DropPath(0.75)
    y = drop(torch.ones(4000, 3))
    assert torch.equal(y.std(dim=1), torch.zeros(4000))
    assert abs(y.mean().item() - 1.0) < 4.0 * math.sqrt(0.25 / 0.75 / 4000)


def test_tokens_beside_the_signal_are_noted() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
            self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), self.a(x)], 1)
            return self.b(torch.relu(x))[:, 0]

    converted = convert(Tokens(), torch.zeros(2, 9, WIDTH))
    assert converted.skipless_report.approximate[0].startswith("constants joined at")

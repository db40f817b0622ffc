"""K-FAC with whatever networks are made of: shared, frozen, unused, read and unknown layers."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from skipless.optim import KFAC

Forward = Callable[[nn.Module, Tensor], Tensor]


def plain(model: nn.Module, x: Tensor) -> Tensor:
    return model(x)


def data(count: int, *shape: int, classes: int = 3) -> list[tuple[Tensor, Tensor]]:
    chance = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, *shape, generator=chance, dtype=torch.float64)
    labels = torch.randint(classes, (count, shape[0]), generator=chance)
    return list(zip(inputs, labels, strict=True))


def run(
    optimizer: KFAC,
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    forward: Forward = plain,
) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        outputs = forward(model, x)
        optimizer.curvature(outputs)
        F.cross_entropy(outputs, y).backward()
        optimizer.step()


def mlp(*between: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 6), *(between or (nn.Tanh(),)), nn.Linear(6, 3)]
    return nn.Sequential(*layers).double()


def values(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_close(found: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def state_of(optimizer: KFAC, layer: str) -> dict[str, Any]:
    return optimizer.state_dict()["kfac"]["layers"][layer]


def factor(optimizer: KFAC, layer: str, name: str) -> Tensor:
    return state_of(optimizer, layer)[name][0]


def on_the_diagonal(optimizer: KFAC) -> set[str]:
    return set(optimizer.state_dict()["kfac"]["others"])


def moved(model: nn.Module, before: Sequence[Tensor]) -> dict[str, bool]:
    return {
        name: not torch.equal(parameter, old)
        for (name, parameter), old in zip(model.named_parameters(), before, strict=True)
    }


def notes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "skipless.optim"]


# Frozen and unused layers


@pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "0", "2.weight", "2"])
def test_what_is_frozen_stays_and_everything_else_is_trained(frozen: str) -> None:
    model = mlp()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    start = values(model)
    optimizer = KFAC(model, 0.1, burn_in=1)
    run(optimizer, model, data(4, 8, 5))
    assert moved(model, start) == {
        name: not name.startswith(frozen) for name, _ in model.named_parameters()
    }
    factored = set(optimizer.state_dict()["kfac"]["layers"])
    assert factored == {"0", "2"} - {frozen.removesuffix(".weight")}
    alone = {frozen.replace("weight", "bias")} if frozen.endswith("weight") else set()
    assert on_the_diagonal(optimizer) == alone


def test_a_frozen_bias_is_no_column_of_the_layer() -> None:
    model, ((x, y),) = mlp(), data(1, 8, 5)
    model[0].bias.requires_grad_(False)
    optimizer = KFAC(model, 0.1)
    run(optimizer, model, [(x, y)])
    assert_close([factor(optimizer, "0", "inputs")], [x.mT @ x / 8])


@pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "0", "1", "2.weight", "2"])
@pytest.mark.parametrize(
    "settings",
    [{"lr": 0.1}, {"lr": 0.1, "eigenbasis": True}, {"lr": None}, {"lr": 0.1, "damping_period": 1}],
    ids=["plain", "eigenbasis", "adaptive", "damping"],
)
@pytest.mark.parametrize("after", [0, 3])
def test_layers_can_be_frozen_on_the_way(frozen: str, settings: dict[str, Any], after: int) -> None:
    model, batches = mlp(nn.PReLU()), data(8, 8, 5)
    optimizer = KFAC(model, **settings, momentum=0.0, burn_in=1)

    def step(x: Tensor, y: Tensor) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            outputs = model(x)
            optimizer.curvature(outputs)
            loss = F.cross_entropy(outputs, y)
            loss.backward()
            return loss

        optimizer.step(closure)  # pyright: ignore

    for x, y in batches[:after]:
        step(x, y)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    before = values(model)
    for x, y in batches[after:]:
        step(x, y)
    assert moved(model, before) == {
        name: not name.startswith(frozen) for name, _ in model.named_parameters()
    }
    assert all(parameter.isfinite().all() for parameter in model.parameters())


class Optional(nn.Module):
    """One layer is used only on request, and one never."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.middle, self.never = nn.Linear(6, 6), nn.Linear(2, 2)
        self.asked = False
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        return self.last(self.middle(x).tanh() if self.asked else x)


@pytest.mark.parametrize("spread", [False, True])
def test_a_layer_is_trained_from_its_first_use_on(
    spread: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model, batches = Optional(), data(9, 8, 5)
    optimizer = KFAC(model, 0.1, burn_in=1, spread_inverses=spread)
    start = values(model)
    run(optimizer, model, batches[:7])
    unused = ("middle", "never")
    assert moved(model, start) == {
        name: not name.startswith(unused) for name, _ in model.named_parameters()
    }
    model.asked = True
    run(optimizer, model, batches[7:8])
    assert moved(model, start)["middle.weight"]
    with torch.no_grad():  # its factors are means from there on
        rows = F.pad(model.first(batches[8][0]).tanh(), (0, 1), value=1.0)
    first = factor(optimizer, "middle", "inputs").clone()
    run(optimizer, model, batches[8:])
    expected = (0.99 * first + rows.mT @ rows / 8) / 1.99
    assert_close([factor(optimizer, "middle", "inputs")], [expected])
    assert not notes(caplog)


@pytest.mark.parametrize("eigenbasis", [False, True])
def test_the_curvature_of_a_layer_rests_while_it_is_not_used(eigenbasis: bool) -> None:
    model, batches = Optional(), data(9, 8, 5)
    optimizer = KFAC(model, 0.1, burn_in=1, eigenbasis=eigenbasis)
    model.asked = True
    run(optimizer, model, batches[:4])
    kept = {k: torch.as_tensor(v).clone() for k, v in state_of(optimizer, "middle").items()}
    model.asked = False
    run(optimizer, model, batches[4:])
    found = {k: torch.as_tensor(v) for k, v in state_of(optimizer, "middle").items()}
    assert_close(found.values(), kept.values())


def test_a_layer_that_is_used_several_times_has_the_rows_of_all_uses() -> None:
    """The exact Fisher matrix by the Jacobian of the logits with respect to the layer's outputs."""
    model, ((x, y),) = mlp(), data(1, 8, 5)
    shared = nn.Linear(6, 6).double()

    def forward(_: nn.Module, x: Tensor) -> Tensor:
        x = model[0](x).tanh()
        return model[2](shared(shared(x).tanh()).tanh())

    whole = nn.ModuleList([model, shared])
    optimizer = KFAC(whole, 0.1, fisher="exact")
    run(optimizer, whole, [(x, y)], forward)
    with torch.no_grad():
        inner = model[0](x).tanh()
        middle = shared(inner).tanh()
    rows = F.pad(torch.cat([inner, middle]), (0, 1), value=1.0)
    assert_close([factor(optimizer, "1", "inputs")], [rows.mT @ rows / 16])
    total = torch.zeros(6, 6, dtype=torch.float64)
    for one in inner:

        def logits(first: Tensor, second: Tensor, one: Tensor = one) -> Tensor:
            out = (shared((shared(one) + first).tanh()) + second).tanh()
            return model[2](out)

        zeros = torch.zeros(6, dtype=torch.float64)
        likely = logits(zeros, zeros).softmax(0).detach()
        fisher = likely.diag() - likely.outer(likely)
        jacobians = torch.autograd.functional.jacobian(logits, (zeros, zeros))
        total += sum(j.mT @ fisher @ j for j in jacobians)
    assert_close([factor(optimizer, "1", "outputs")], [total / 8])


# Layers that K-FAC does not factor


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.last = nn.Linear(4, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.attention(x, x, x)[0].mean(1))


class Read(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.read, self.called = nn.Linear(5, 6), nn.Linear(6, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.called(F.linear(x, self.read.weight, self.read.bias).tanh())


@pytest.mark.parametrize(
    ("make", "shape", "read"),
    [
        (Attention, (8, 5, 4), ["attention.out_proj.weight", "attention.out_proj.bias"]),
        (Read, (8, 5), ["read.weight", "read.bias"]),
    ],
)
@pytest.mark.parametrize("eigenbasis", [False, True])
def test_weights_that_are_read_fall_to_the_diagonal_with_one_note(
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    read: list[str],
    eigenbasis: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = make()
    optimizer = KFAC(model, 0.1, burn_in=1, eigenbasis=eigenbasis)
    start = values(model)
    run(optimizer, model, data(4, *shape))
    assert all(moved(model, start).values())
    assert set(read) <= on_the_diagonal(optimizer)
    warned = [note for note in notes(caplog) if "read without a call" in note]
    assert [note.split(": ")[1] for note in warned] == [", ".join(read) + "."]


def test_the_damping_adapts_by_the_curvature_of_weights_that_are_read() -> None:
    """The promise of a step is g·v + v·F v / 2, with the diagonal for F."""
    torch.manual_seed(0)
    model, (x, y) = Read(), data(1, 8, 5)[0]
    for parameter in model.called.parameters():
        parameter.requires_grad_(False)
    model.called = nn.Linear(6, 3).double()
    optimizer = KFAC(model, 0.1, burn_in=1)
    run(optimizer, model, [(x, y)] * 2)
    ones = {p: torch.ones_like(p) for p in model.read.parameters()}
    means = optimizer.state_dict()["kfac"]["others"]
    for (name, _), product in zip(
        model.read.named_parameters(), optimizer._estimate.products(ones).values(), strict=True
    ):
        assert means[f"read.{name}"]["mean"].any()
        assert_close([product], [means[f"read.{name}"]["mean"]])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.middle = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight
        self.double()

    def forward(self, codes: Tensor) -> Tensor:
        return self.output(self.middle(self.embedding(codes)).tanh())


def test_a_weight_that_two_kinds_of_layers_share_falls_to_the_diagonal() -> None:
    model = Tied()
    optimizer = KFAC(model, 0.1, burn_in=1)
    start = values(model)
    codes = torch.arange(8) % 7
    run(optimizer, model, [(codes, codes.roll(1))] * 3)
    assert all(moved(model, start).values())
    assert on_the_diagonal(optimizer) == {"embedding.weight"}


@pytest.mark.parametrize("computed", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parameters_that_weights_are_computed_from_fall_to_the_diagonal(
    computed: Callable[[nn.Module], nn.Module],
) -> None:
    model = mlp()
    computed(model[0])
    names = {name for name, _ in model.named_parameters() if name.startswith("0.")}
    optimizer = KFAC(model, 0.1, burn_in=1)
    start = values(model)
    run(optimizer, model, data(4, 8, 5))
    assert all(moved(model, start).values())
    assert on_the_diagonal(optimizer) == names


class Standardised(nn.Linear):
    """Multiplies by something else than its weight, and calls its input something else."""

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore
        weight = self.weight - self.weight.mean(1, keepdim=True)
        return F.linear(x, weight, self.bias)


def test_layers_with_a_forward_pass_of_their_own_fall_to_the_diagonal() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Standardised(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    optimizer = KFAC(model, 0.1, burn_in=1)
    start = values(model)
    run(optimizer, model, data(3, 8, 5), lambda net, x: model[1:](model[0](x=x)))
    assert all(moved(model, start).values())
    assert on_the_diagonal(optimizer) == {"0.weight", "0.bias"}


def test_kinds_that_are_not_factored_are_told_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.manual_seed(0)
    layers = [nn.ConvTranspose2d(1, 2, 2), nn.BatchNorm2d(2), nn.PReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.LayerNorm(18), nn.Linear(18, 3)).double()
    optimizer = KFAC(model, 0.1, burn_in=1)
    start = values(model)
    run(optimizer, model, data(4, 8, 1, 2, 2))
    assert all(moved(model, start).values())
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "4.weight", "4.bias"]
    expected = ", ".join(names) + "."
    assert [note.split(": ")[1] for note in notes(caplog)] == [expected]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert optimizer.diagonal_names == names


@pytest.mark.parametrize(
    "settings",
    [{"lr": 0.1}, {"lr": None}, {"lr": 0.1, "eigenbasis": True, "spread_inverses": True}],
)
def test_a_network_without_any_layer_is_trained_by_the_diagonal(settings: dict[str, Any]) -> None:
    model = nn.Sequential(nn.PReLU(), nn.PReLU(3)).double()
    optimizer = KFAC(model, **settings, burn_in=1)
    start = values(model)
    run(optimizer, model, data(3, 8, 3))
    assert all(moved(model, start).values())


def test_a_network_without_trained_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="Tanh has no trainable parameters"):
        KFAC(nn.Tanh(), 0.1)
    with pytest.raises(ValueError, match="Set requires_grad"):
        KFAC(mlp().requires_grad_(False), 0.1)


def test_lazy_layers_have_to_be_called_before() -> None:
    model = nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.Linear(6, 3)).double()
    with pytest.raises(ValueError, match="Call the model once before"):
        KFAC(model, 0.1)
    batches = data(3, 8, 5)
    model(batches[0][0])
    optimizer = KFAC(model, 0.1, burn_in=1)
    start = values(model)
    run(optimizer, model, batches)
    assert all(moved(model, start).values())
    assert not on_the_diagonal(optimizer)


# Ways to write the same network


def by_keyword(model: nn.Module, x: Tensor) -> Tensor:
    for layer in model.children():
        x = layer(input=x)
    return x


def checkpointed(model: nn.Module, x: Tensor) -> Tensor:
    first, *rest = model.children()
    x = checkpoint(lambda x: first(x).tanh(), x, use_reentrant=False)
    return rest[-1](x)


def shuffled(model: nn.Module, x: Tensor) -> Tensor:
    """Three dimensions, in which examples are first as they were."""
    return model(x.unsqueeze(1)).squeeze(1)


def one_by_one(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(example[None]) for example in x])


@pytest.mark.parametrize("forward", [by_keyword, checkpointed, shuffled, one_by_one])
@pytest.mark.parametrize("settings", [{"lr": 0.1}, {"lr": None}, {"lr": 0.1, "eigenbasis": True}])
def test_however_the_layers_are_called_the_steps_are_the_same(
    forward: Forward, settings: dict[str, Any]
) -> None:
    usual, model, batches = mlp(), mlp(), data(5, 8, 5)
    run(KFAC(usual, **settings, burn_in=1), usual, batches)
    run(KFAC(model, **settings, burn_in=1), model, batches, forward)
    assert_close(values(model), values(usual))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.ELU, nn.SiLU])
def test_activations_in_place_make_no_difference(activation: Any) -> None:
    found: list[list[Tensor]] = []
    for inplace in (False, True):
        torch.manual_seed(0)  # of the layer in between
        model = mlp(activation(inplace=inplace), nn.Linear(6, 6), activation(inplace=inplace))
        run(KFAC(model, 0.1, burn_in=1), model, data(5, 8, 5))
        found.append(values(model))
    assert_close(*found)


@pytest.mark.parametrize("shape", [(8, 3, 5), (5, 7)])
def test_nor_do_they_behind_layers_that_give_views(shape: tuple[int, ...]) -> None:
    """As a Linear does for more than two dimensions, and a convolution without a batch."""
    found: list[list[Tensor]] = []
    for inplace in (False, True):
        torch.manual_seed(0)
        first = nn.Linear(5, 6) if len(shape) == 3 else nn.Conv1d(5, 6, 3)
        last = nn.Linear(6 if len(shape) == 3 else 5, 4)
        model = nn.Sequential(first, nn.ReLU(inplace=inplace), last, nn.Flatten(0, -2))
        before = first.weight.detach().clone()
        rows = len(model(torch.zeros(shape)))
        batches = [(torch.randn(shape), torch.arange(rows) % 4) for _ in range(3)]
        run(KFAC(model, 0.1, burn_in=1), model, batches)
        assert (first.weight - before).abs().max() > 1e-6
        found.append(values(model))
    assert_close(*found)


def first_unbatched(model: nn.Module, x: Tensor) -> Tensor:
    first, *rest = model.children()
    x = first(x[0])[None]
    for layer in rest:
        x = layer(x)
    return x


def test_examples_without_a_batch_are_batches_of_one() -> None:
    found: list[list[Tensor]] = []
    for forward in (plain, first_unbatched):
        torch.manual_seed(0)
        conv = nn.Conv2d(2, 3, 2, padding=1)
        model = nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)).double()
        run(KFAC(model, 0.1, burn_in=1), model, data(4, 1, 2, 3, 3), forward)
        found.append(values(model))
    assert_close(*found)


def test_parameters_that_no_curvature_reaches_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """The reentrant checkpoint computes its layers only in the backward pass."""
    model = mlp()

    def forward(net: nn.Module, x: Tensor) -> Tensor:
        del net
        return model[1:](checkpoint(model[0], x.requires_grad_(), use_reentrant=True))

    start = values(model)
    run(KFAC(model, 0.1, burn_in=1), model, data(3, 8, 5), forward)
    assert moved(model, start)["2.weight"]
    assert not moved(model, start)["0.weight"]
    assert len(notes(caplog)) == 1
    assert "0.weight, 0.bias" in notes(caplog)[0]
    assert "use_reentrant=False" in notes(caplog)[0]


def test_a_compiled_model_is_refused() -> None:
    model = mlp()
    compiled = torch.compile(model, backend="eager")
    for optimizer in (KFAC(model, 0.1), KFAC(compiled, 0.1)):  # pyright: ignore
        with pytest.raises(RuntimeError, match="not compiled"):
            run(optimizer, compiled, data(1, 8, 5))  # pyright: ignore

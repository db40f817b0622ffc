"""A real network has the kernel that it was given; what is measured is what hooks see."""

import copy
import itertools
import math
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from skipless import DKS, EOC, TAT, Graph, solve
from skipless.torch import (
    PerLocationNormalization,
    ShapedActivation,
    check,
    convert,
    initialize_,
    measure,
    pair_inputs,
)
from user_models import DenseNet, PreActivation


def batch(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_hand(x: torch.Tensor, channel_axis: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """q and c of every pair, with one loop over pairs and numpy for the rest."""
    values = np.moveaxis(x.detach().double().numpy(), channel_axis, -1)
    q, c = [], []
    for a, b in zip(values[::2], values[1::2], strict=True):
        lengths = np.linalg.norm(a, axis=-1), np.linalg.norm(b, axis=-1)
        q.append((np.mean(a**2) + np.mean(b**2)) / 2)
        c.append(np.mean(np.sum(a * b, axis=-1) / (lengths[0] * lengths[1])))
    return np.array(q), np.array(c)


def hooked(model: nn.Module, x: torch.Tensor, *layers: nn.Module) -> list[torch.Tensor]:
    """What the layers return, seen by forward hooks."""
    seen: list[torch.Tensor] = []
    hooks = [m.register_forward_hook(lambda *a: seen.append(a[2].clone())) for m in layers]
    model(x)
    for hook in hooks:
        hook.remove()
    return seen


def shaped_chain(depth: int, width: int, solution) -> nn.Sequential:
    phi = partial(ShapedActivation.from_solution, solution)
    return nn.Sequential(*(m for _ in range(depth) for m in (nn.Linear(width, width), phi())))


def agree(found, tensor: torch.Tensor, channel_axis: int = 1) -> None:
    q, c = by_hand(tensor, channel_axis)
    assert (found.q.mean, found.c.mean) == pytest.approx((q.mean(), c.mean()), abs=1e-5)
    if len(q) > 1:
        errors = [np.std(v, ddof=1) / math.sqrt(len(v)) for v in (q, c)]
        assert (found.q.error, found.c.error) == pytest.approx(errors, abs=1e-5)


@pytest.mark.parametrize("inplace", [False, True])
def test_the_values_are_those_that_hooks_see(inplace: bool) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 9), nn.ReLU(inplace), nn.Linear(9, 4), nn.ReLU(inplace)]
    model, x = nn.Sequential(*layers), batch(10, 6)
    found = measure(model, x)
    assert [m.kind for m in found.nodes] == ["Input", *["Affine", "Activation"] * 2]
    assert (found.seeds, found.pairs) == (1, 5)
    for node, tensor in zip(found.nodes, [x, *hooked(model, x, *layers)], strict=True):
        agree(node, tensor)


def test_an_activation_in_place_on_the_input_leaves_the_users_tensor_alone() -> None:
    x = batch(4, 5)
    kept = x.clone()
    found = measure(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 5)), x)
    assert torch.equal(x, kept)
    agree(found.nodes[0], kept)
    agree(found.nodes[1], F.relu(kept))


def test_a_convolution_is_measured_at_every_location() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 7, 3), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(7, 5, 2)]
    model, x = nn.Sequential(*layers), batch(6, 3, 8, 8)
    found = measure(model, x).nodes
    first, phi, _, last = hooked(model, x, *layers)
    for node, tensor in zip(found, [x, first, phi, last], strict=True):
        agree(node, tensor)


class Branches(nn.Module):
    """A weighted sum, a concatenation, and a factor on an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(12, 5)

    def parts(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        a = self.a(x)
        phi = F.relu(a)
        b = self.b(1.5 * phi)
        total = 0.8 * a + 0.6 * b
        joined = torch.cat([total, b], 1)
        return {"phi": phi, "sum": total, "joined": joined, "out": self.c(joined)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts(x)["out"]


def test_sums_concatenations_and_factors_are_measured_where_the_graph_has_them() -> None:
    torch.manual_seed(0)
    model, x = Branches(), batch(8, 6)
    nodes, parts = measure(model, x).nodes, model.parts(x)
    last = {m.kind: m for m in nodes}
    agree(last["Activation"], parts["phi"])
    agree(last["Concat"], parts["joined"])
    agree(nodes[-1], parts["out"])
    sums = [m for m in nodes if m.kind == "Sum"]
    agree(sums[0], 1.5 * parts["phi"])
    agree(sums[-1], parts["sum"])


class Tokens(nn.Module):
    """Channels first, then last, as in ConvNeXt; and locations taken for samples."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mix, self.out = nn.Conv1d(4, 6, 1), nn.Linear(6, 6), nn.Linear(6, 3)

    def parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        conv = self.conv(x)
        phi = torch.tanh(conv.transpose(1, 2))
        mixed = self.mix(phi)
        return [conv, phi, mixed, self.out(torch.relu(mixed).reshape(-1, 6))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts(x)[-1]


def test_channels_are_found_wherever_they_are() -> None:
    torch.manual_seed(0)
    model, x = Tokens(), batch(6, 4, 7)
    nodes = measure(model, x).nodes
    conv, phi, mixed, out = model.parts(x)
    agree(nodes[0], x)
    agree(nodes[1], conv)
    agree(nodes[2], phi, channel_axis=2)
    agree(nodes[3], mixed, channel_axis=2)
    agree(nodes[5], out.unflatten(0, (6, 7)), channel_axis=2)


def test_the_input_of_a_linear_layer_has_its_channels_last() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8)), batch(4, 3, 5)
    for node, tensor in zip(measure(model, x).nodes, [x, *hooked(model, x, *model)], strict=True):
        agree(node, tensor, channel_axis=2)


def test_seeds_are_averaged_and_give_the_standard_error() -> None:
    model, x = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)), batch(8, 6)
    draw = partial(initialize_, sigma_w=1.3, sigma_b=0.4, distribution="gaussian")
    found = measure(model, x, seeds=(3, 4, 9), draw=draw).nodes[-1]
    means = []
    for seed in (3, 4, 9):
        again = copy.deepcopy(model)
        draw(again, generator=torch.Generator().manual_seed(seed))
        means.append([v.mean() for v in by_hand(again(x))])
    q, c = np.array(means).T
    assert (found.q.mean, found.c.mean) == pytest.approx((q.mean(), c.mean()), abs=1e-5)
    errors = [np.std(v, ddof=1) / math.sqrt(3) for v in (q, c)]
    assert (found.q.error, found.c.error) == pytest.approx(errors, abs=1e-5)


def test_a_number_of_seeds_means_the_first_ones() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), batch(4, 4)
    assert measure(model, x, seeds=3) == measure(model, x, seeds=iter(range(3)))
    assert measure(model, x, seeds=3) != measure(model, x, seeds=(5, 6, 7))


def test_the_model_is_left_as_it_was_and_dropout_does_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 6))
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    x, state = batch(4, 6), torch.get_rng_state()
    first = measure(model, x)
    assert measure(model, x) == first
    measure(model, x, seeds=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model] == [True, False, True, True]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    agree(first.nodes[-1], copy.deepcopy(model).eval()(x))


def test_samples_that_die_have_q_zero_and_no_cosine() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(3, 3))
    x = torch.tensor([[-1.0, -1.0, -1.0], [1.0, 2.0, 2.0], [1.0, 0.0, 0.0], [1.0, 0.0, -5.0]])
    phi = measure(model, x).nodes[1]
    assert phi.q.mean == pytest.approx((0 + 3 + 1 / 3 + 1 / 3) / 4)
    assert phi.c.mean == pytest.approx(1.0)  # of the second pair, which alone has one


def test_locations_of_zeros_count_for_q_and_have_no_cosine() -> None:
    x = batch(4, 3, 5)
    model = nn.Sequential(nn.ConstantPad1d((0, 5), 0.0), nn.Conv1d(3, 3, 1, bias=False), nn.ReLU())
    padded, bare = measure(model, x, seeds=2).nodes[1], measure(model[1:], x, seeds=2).nodes[1]
    assert padded.kind == bare.kind == "Affine"
    assert padded.q.mean == pytest.approx(bare.q.mean / 2.0)
    assert padded.c.mean == pytest.approx(bare.c.mean, abs=1e-6)


@pytest.mark.parametrize("shape", [(6,), (5, 0), (1, 4)])
def test_a_batch_that_is_no_batch_of_pairs_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="even number"):
        measure(nn.Linear(4, 4), torch.zeros(shape))


@pytest.mark.parametrize("cosine", [-1.0, -0.3, 0.0, 0.8, 1.0])
@pytest.mark.parametrize(("shape", "channel_axis"), [((2,), 0), ((3, 4, 5), 0), ((7, 16), 1)])
def test_pairs_are_exact_at_every_location_and_differ(cosine, shape, channel_axis) -> None:
    x = pair_inputs(shape, 3, cosine, channel_axis=channel_axis)
    assert x.shape == (6, *shape)
    x = x.movedim(channel_axis + 1, -1)
    assert torch.allclose(x.square().mean(-1), torch.ones(()), atol=1e-6)
    assert torch.allclose((x[::2] * x[1::2]).mean(-1), torch.tensor(cosine), atol=1e-6)
    assert torch.equal(x, x[(slice(None), *[slice(0, 1)] * (x.dim() - 2))].expand(x.shape))
    assert not torch.allclose(x[0], x[2])


def test_pairs_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="alike or opposite"):
        pair_inputs((1, 8, 8), 2, 0.5)
    with pytest.raises(ValueError, match=r"in \[-1, 1\], got 1.5"):
        pair_inputs((3,), 2, 1.5)
    opposite = pair_inputs((1,), 2, -1.0)
    assert torch.equal(opposite[0::2], -opposite[1::2])


def test_pairs_come_from_the_generator() -> None:
    draw = lambda seed: pair_inputs((4,), 2, 0.1, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


@pytest.mark.parametrize("distribution", ["orthogonal", "gaussian"])
@pytest.mark.parametrize(
    ("method", "activation"), [(TAT(eta=0.9), "leaky_relu"), (DKS(zeta=1.5), "tanh")]
)
def test_a_shaped_chain_has_the_predicted_kernel(method, activation, distribution) -> None:
    solution = solve(Graph.chain(20), method, activation)
    model = shaped_chain(20, 300, solution)
    found = check(
        model, torch.zeros(1, 300), solution, cosines=(0.0, 0.6), seeds=8, distribution=distribution
    )
    assert found.agrees, str(found)
    ends = [row for row in found.comparisons if row.measured.node == 40]
    assert [row.cosine for row in ends] == [0.0, 0.6]
    assert ends[0].predicted.c == pytest.approx(solution.targets.get("mu0", 0.0), abs=1e-9)


def test_a_chain_at_the_edge_of_chaos_has_the_predicted_q_values_too() -> None:
    solution = solve(Graph.chain(6), EOC(sigma_b=0.3), "tanh")
    found = check(shaped_chain(6, 300, solution), torch.zeros(1, 300), solution, seeds=10)
    assert found.agrees, str(found)
    # The first layer: σ_w² + σ_b², of which σ_b² is common to the pair.
    q = solution.sigma_w**2 + 0.09
    first = found.comparisons[1]
    assert (first.predicted.q, first.predicted.c) == pytest.approx((q, 0.09 / q))
    assert first.measured.q.mean == pytest.approx(q, rel=0.02)


@pytest.mark.parametrize("error", [-0.1, 0.1])
def test_a_wrong_solution_does_not_agree(error: float) -> None:
    solution = solve(Graph.chain(20), TAT(eta=0.9))
    model = shaped_chain(20, 300, solution)
    assert solution.negative_slope is not None
    slope = solution.negative_slope + error
    scale = math.sqrt(2.0 / (1.0 + slope**2))
    wrong = replace(solution, negative_slope=slope, output_scale=scale)
    found = check(model, torch.zeros(1, 300), wrong, seeds=8)
    assert not found.agrees
    assert found.worst in found.disagreements
    assert np.sign(found.worst.c_difference) == np.sign(error)


def test_a_wrong_weight_scale_does_not_agree_in_q() -> None:
    solution = solve(Graph.chain(5), TAT(eta=0.5))
    model = nn.Sequential(nn.Linear(200, 200), nn.LeakyReLU(solution.negative_slope or 0.0))
    found = check(model, torch.zeros(1, 200), solution, seeds=5)  # φ without its output scale
    assert not found.agrees
    assert found.worst.measured.kind == "Activation"
    assert abs(found.worst.c_difference) < 0.05


@pytest.mark.parametrize("network", [PreActivation, DenseNet])
def test_convolutional_networks_with_sums_and_concatenations_have_the_kernel(network) -> None:
    # Their ReLUs are on the edge of chaos with σ_w = √2; sums and widths are as they are.
    torch.manual_seed(0)
    model = network(64) if network is PreActivation else network()
    solution = solve(Graph.chain(2), EOC(), "relu")
    found = check(model, torch.zeros(1, 3, 8, 8), solution, seeds=40)
    assert found.agrees, str(found)
    assert {"Sum", "Concat"} & {row.measured.kind for row in found.comparisons}


def bottleneck() -> nn.Module:
    """An autoencoder whose code is a single number, so that all pairs behind it are alike."""
    pairs = itertools.pairwise([64, 32, 1, 32, 64])
    return nn.Sequential(*(m for a, b in pairs for m in (nn.Linear(a, b), nn.ReLU())))[:-1]


def multiplier() -> nn.Module:
    """Two channels from each one, with nothing between the activations that mixes channels."""
    conv = partial(nn.Conv2d, kernel_size=3, padding=1)
    layers = [conv(3, 32), nn.ReLU(), conv(32, 32, groups=32), nn.ReLU(), conv(32, 32), nn.ReLU()]
    return nn.Sequential(*layers, conv(32, 64, groups=32), nn.ReLU(), nn.Conv2d(64, 10, 1))


@pytest.mark.parametrize(
    ("model", "shape", "method", "activation", "distribution"),
    [
        (bottleneck(), (64,), DKS(zeta=1.5), "tanh", "orthogonal"),
        (bottleneck(), (64,), TAT(eta=0.6), "leaky_relu", "gaussian"),
        (multiplier(), (3, 8, 8), EOC(), "relu", "orthogonal"),  # plain ReLUs: half of them die
    ],
)
def test_networks_with_few_or_dead_or_unmixed_channels_agree(
    model: nn.Module, shape: tuple[int, ...], method, activation: str, distribution
) -> None:
    converted = convert(model, torch.zeros(2, *shape), method, activation=activation)
    assert "nan" not in str(converted.skipless_report)
    for seeds in (range(5, 10), range(10, 15)):
        example = torch.zeros(2, *shape)
        check(converted, example, seeds=seeds, distribution=distribution).assert_ok()


def test_a_network_that_normalises_its_inputs_is_checked_from_behind_that() -> None:
    solution = solve(Graph.chain(2), EOC(), "relu")
    model = nn.Sequential(PerLocationNormalization(), nn.Conv2d(2, 300, 1), nn.ReLU())
    found = check(model, torch.zeros(1, 1, 4, 4), solution, cosines=(0.5,), seeds=10)
    assert found.comparisons[0].measured.c.mean == pytest.approx(0.5, abs=1e-6)
    assert found.agrees, str(found)


def test_a_model_that_knows_its_solution_need_not_be_told_it() -> None:
    class Report:
        solution = solve(Graph.chain(4), TAT(eta=0.5))

    model = shaped_chain(4, 50, Report.solution)
    with pytest.raises(ValueError, match="Pass solution="):
        check(model, torch.zeros(1, 50))
    told = check(model, torch.zeros(1, 50), Report.solution, seeds=2)
    model.skipless_report = Report  # pyright: ignore[reportArgumentType]
    assert check(model, torch.zeros(1, 50), seeds=2) == told


def test_the_model_that_is_checked_keeps_its_weights_and_the_result_can_be_kept() -> None:
    solution = solve(Graph.chain(4), TAT(eta=0.5))
    model = shaped_chain(4, 50, solution)
    before = copy.deepcopy(model.state_dict())
    found = check(model, torch.zeros(3, 50), solution, seeds=2)
    assert all(torch.equal(v, before[k]) for k, v in model[0].state_dict(prefix="0.").items())
    assert pickle.loads(pickle.dumps(found)) == found
    assert "inputs with c = 0" in str(found)


@pytest.mark.parametrize(
    "wrong", [{"cosines": ()}, {"pairs": 0}, {"tolerance": -1.0}, {"seeds": 0}, {"cosines": (2.0,)}]
)
def test_a_check_of_nothing_is_refused(wrong) -> None:
    solution = solve(Graph.chain(4), TAT(eta=0.5))
    with pytest.raises((TypeError, ValueError), match=r"must be .*got (\(\)|-1|0|2)"):
        check(shaped_chain(4, 8, solution), torch.zeros(1, 8), solution, **wrong)


def test_channels_are_found_again_after_a_shuffle_by_hand() -> None:
    class Shuffle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n, _, h, w = x.shape
            x = self.conv(x).view(n, 2, 8, h, w).transpose(1, 2).reshape(n, 16, h, w)
            return self.last(torch.relu(x))

    model, x = Shuffle(), batch(4, 3, 5, 6)
    found = measure(model, x)
    agree(found.nodes[2], torch.relu(model.conv(x)))  # a permutation of channels changes neither

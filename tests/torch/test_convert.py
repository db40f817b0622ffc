"""convert: real networks, written the usual ways, come out shaped, whole and under their names."""

import copy
import io
import math
import pickle
import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import user_models as models
from skipless import DKS, EOC, TAT, Activation, UnreachableTargetError
from skipless.core.graph import GraphError, Nonlinearity, Sum
from skipless.onnx import export
from skipless.torch import (
    ConvertedModel,
    PerLocationNormalization,
    ShapedActivation,
    TReLU,
    UnsupportedModelError,
    check,
    convert,
    fold,
    measure,
    trace,
)

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
SIGNAL = torch.randn(2, 2, 32, generator=torch.Generator().manual_seed(0))
# A target that networks of any depth reach.
SHALLOW = TAT(eta=0.3)
USERS = {
    "mlp": (models.mlp, IMAGE, SHALLOW),
    "resnet18": (lambda: models.ResNet(models.BasicBlock, (2, 2, 2, 2)), IMAGE, TAT(eta=0.5)),
    "bottleneck": (lambda: models.ResNet(models.Bottleneck, (1, 2)), IMAGE, SHALLOW),
    "pre-activation": (models.PreActivation, IMAGE, SHALLOW),
    "densenet": (models.DenseNet, IMAGE, SHALLOW),
    "vgg": (models.vgg, IMAGE, SHALLOW),
    "unet": (models.UNet, IMAGE, SHALLOW),
    "conv1d": (models.conv1d, SIGNAL, SHALLOW),
    "separable": (models.separable, IMAGE, SHALLOW),
    "depthwise": (models.depthwise, IMAGE, SHALLOW),
}
every_model = pytest.mark.parametrize("name", USERS)


def converted(name: str, weight: float | None = None) -> ConvertedModel:
    """A copy of its own; conversions themselves take seconds."""
    return copy.deepcopy(_converted(name, weight))


@cache
def _converted(name: str, weight: float | None) -> ConvertedModel:
    build, example, method = USERS[name]
    torch.manual_seed(0)
    return convert(build(), example, method, shortcut_weight=weight)


def activations_of(model: nn.Module, example: torch.Tensor) -> int:
    graph = trace(model, example)
    return sum(isinstance(graph.nodes[i], Nonlinearity) for i in graph.live)


@cache
def activations_before(name: str) -> int:
    build, example, _ = USERS[name]
    return activations_of(build(), example)


def calls_of(model: nn.Module) -> fx.Graph:
    """What `model` calls, in one graph, as PyTorch's own tracer sees it."""

    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return isinstance(m, ShapedActivation) or super().is_leaf_module(
                m, module_qualified_name
            )

    return model.graph if isinstance(model, fx.GraphModule) else Tracer().trace(model)


def norms_of(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if type(m).__name__.endswith("Norm2d")]


@every_model
@pytest.mark.parametrize("weight", [None, 0.0, 0.6])
def test_no_activation_is_lost_and_no_normalisation_is_left(name: str, weight) -> None:
    before = activations_before(name)
    model = converted(name, weight)
    assert activations_of(model, USERS[name][1]) == before
    assert norms_of(model) == []
    graph = calls_of(model)
    calls = [n for n in graph.nodes if n.op == "call_module"]
    shaped = [n for n in calls if isinstance(model.get_submodule(n.target), TReLU)]
    assert len(shaped) == before


@every_model
def test_what_remains_keeps_its_name_and_shape_and_the_old_model_its_numbers(name: str) -> None:
    build, example, method = USERS[name]
    torch.manual_seed(0)
    old = build()
    state = {key: value.clone() for key, value in old.state_dict().items()}
    new = convert(old, example, method)
    assert all(torch.equal(value, state[key]) for key, value in old.state_dict().items())
    shapes = {key: value.shape for key, value in old.named_parameters()}
    norms = {key for key in shapes if ".bn" in key or key.startswith("bn")}
    norms |= {f"{path}.{end}" for path, m in old.named_modules() if isinstance(m, nn.BatchNorm2d)
              for end in ("weight", "bias")}  # fmt: skip
    found = {key: value.shape for key, value in new.named_parameters()}
    gained = set(found) - set(shapes)
    assert set(shapes) - set(found) == norms
    assert all(found[key] == shapes[key] for key in set(found) - gained)
    assert all(key.endswith(".bias") for key in gained)
    assert not {value.data_ptr() for value in new.parameters()} & {
        value.data_ptr() for value in old.parameters()
    }


@every_model
def test_a_converted_model_trains_a_step_and_saves_and_loads(name: str) -> None:
    _, example, _ = USERS[name]
    model = converted(name).train()
    before = copy.deepcopy(model).eval()
    optimiser = torch.optim.SGD(model.parameters(), 0.01)
    model(example).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())
    optimiser.step()
    model.eval()
    assert not torch.equal(model(example), before(example))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    before.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(before(example), model(example))
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(example), model(example))
    assert str(again.skipless_report) == str(model.skipless_report)


@every_model
def test_a_converted_model_compiles_and_exports(name: str) -> None:
    _, example, _ = USERS[name]
    model = converted(name).eval()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(example), model(example))
    exported = torch.export.export(model, (example,))
    torch.testing.assert_close(exported.module()(example), model(example))


@every_model
def test_a_converted_model_takes_batches_of_every_size(name: str) -> None:
    _, example, _ = USERS[name]
    model, many = converted(name).eval(), torch.cat([example] * 3)
    torch.testing.assert_close(model(many)[:2], model(example))
    torch.testing.assert_close(model(many[:1]), model(example)[:1])


def test_an_example_of_one_sample_does_not_fix_the_batch() -> None:
    model = convert(models.vgg(), IMAGE[:1], SHALLOW).eval()
    torch.testing.assert_close(model(IMAGE)[:1], model(IMAGE[:1]))


@every_model
@pytest.mark.parametrize("weight", [0.0, 0.6])
def test_a_folded_model_is_plain_and_gives_the_same_outputs(name: str, weight: float) -> None:
    _, example, _ = USERS[name]
    model = converted(name, weight).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # a fresh model has no biases to speak of
            parameter.add_(0.1 * torch.randn_like(parameter))
    folded = fold(model)
    assert not [m for m in folded.modules() if isinstance(m, ShapedActivation)]
    assert folded.meta["remaining"] == ()
    assert len(folded.graph.nodes) <= len(calls_of(model).nodes)
    expected, found = model(example), folded(example)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_images_of_other_sizes_pass_where_the_model_lets_them() -> None:
    model = converted("resnet18").eval()
    assert model(torch.zeros(3, 3, 40, 24)).shape == (3, 10)
    with pytest.raises(RuntimeError, match="shapes"):
        converted("vgg")(torch.zeros(2, 3, 16, 16))


@pytest.mark.parametrize("homogeneous", [None, 1.0])
def test_a_layer_that_normalises_the_input_stays_one(homogeneous) -> None:
    first = PerLocationNormalization(homogeneous=homogeneous)
    layers = [nn.Conv2d(first.out_channels(3), 16, 1), nn.ReLU(), nn.Conv2d(16, 4, 1), nn.ReLU()]
    model = convert(nn.Sequential(first, *layers), IMAGE, SHALLOW)
    assert isinstance(model.get_submodule("0"), PerLocationNormalization)
    shaped = nn.Sequential(*(model.get_submodule(str(k)) for k in range(5)))
    torch.testing.assert_close(model(IMAGE), shaped(IMAGE))


def test_a_residual_block_is_the_normalised_sum_of_shortcut_and_branch() -> None:
    """Against the block of eq. 6 written by hand, with a ResNet of the second kind."""
    torch.manual_seed(0)
    old = models.PreActivation()
    model = convert(old, IMAGE, SHALLOW, shortcut_weight=0.28).eval()
    phi = ShapedActivation.from_solution(model.skipless_report.solution)
    layers = dict(model.named_modules())
    x = layers["stem"](IMAGE)
    for k in (0, 2):
        branch = layers[f"convs.{k + 1}"](phi(layers[f"convs.{k}"](phi(x))))
        x = 0.28 * x + 0.96 * branch
    torch.testing.assert_close(model(IMAGE), x)


def test_a_block_that_ends_in_its_activation_takes_its_shortcut_from_before_the_last_one() -> None:
    torch.manual_seed(0)
    model = convert(models.ResNet(models.BasicBlock, (2,)), IMAGE, SHALLOW, shortcut_weight=0.6)
    phi = ShapedActivation.from_solution(model.skipless_report.solution)
    layer = lambda name: model.get_submodule(name)
    stem = layer("conv1")(IMAGE)
    u, x = F.max_pool2d(stem, 3, 2, 1), F.max_pool2d(phi(stem), 3, 2, 1)
    for k in range(2):
        u = 0.6 * u + 0.8 * layer(f"stages.0.{k}.conv2")(phi(layer(f"stages.0.{k}.conv1")(x)))
        x = phi(u)
    torch.testing.assert_close(model(IMAGE), layer("fc")(x.mean((2, 3))))


def test_a_resnet_50_and_more_layers_than_calls_can_be_nested_are_converted_whole() -> None:
    model = convert(models.ResNet(models.Bottleneck, (3, 4, 6, 3)), IMAGE, TAT(), shortcut_weight=0)
    assert activations_of(model, IMAGE) == 49
    assert model.skipless_report.predicted[-1].c == pytest.approx(0.9)
    depth = sys.getrecursionlimit() // 2 + 1  # with an activation each
    layers = [m for _ in range(depth) for m in (nn.Linear(4, 4), nn.ReLU())]
    model = convert(nn.Sequential(*layers), torch.zeros(2, 4))
    assert model.skipless_report.graph.depth == depth


def test_factors_and_normalisation_on_the_shortcut_are_not_applied_before_the_activation() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(F.relu(self.a(x)) / 3.0).unsqueeze(1)
            return F.relu((self.b(x) + 2.0 * x) / 5.0)

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    model = convert(Net(), x, SHALLOW, shortcut_weight=0.6)
    phi, a, b = (model.get_submodule(name) for name in ("activation", "a", "b"))
    u = a(x)
    torch.testing.assert_close(model(x), phi(0.6 * u + 0.8 * b(phi(u))).unsqueeze(1))


def test_without_shortcuts_what_only_they_need_is_gone() -> None:
    model = converted("bottleneck", 0.0)
    assert not [name for name, _ in model.named_modules() if "downsample" in name]
    assert not [n for n in calls_of(model).nodes if n.target in (torch.add, torch.mul)]
    assert not any(len(n.weights) > 1 for n in trace(model, IMAGE).nodes if isinstance(n, Sum))
    dropped = [c for c in model.skipless_report.changes if c.what == "layer of a shortcut removed"]
    assert [c.where.split(" ")[0] for c in dropped] == [
        "stages.0.0.downsample.0",
        "stages.1.0.downsample.0",
    ]


def test_without_a_shortcut_weight_the_terms_keep_their_proportions() -> None:
    model = converted("pre-activation")
    sums = [n for n in model.skipless_report.graph.nodes if isinstance(n, Sum)]
    assert [n.weights for n in sums if len(n.weights) > 1] == [pytest.approx((0.8, 0.6))] * 2


class OwnLinear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.linear(input, self.weight)


@pytest.mark.parametrize(
    ("layer", "norm", "shape"),
    [
        (
            nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect", bias=False),
            nn.BatchNorm2d(8),
            (2, 3, 8, 8),
        ),
        (OwnLinear(8, 8, bias=False), nn.LayerNorm(8), (2, 8)),
    ],
)
def test_a_layer_that_is_no_plain_call_gains_no_bias(layer, norm, shape) -> None:
    model = convert(nn.Sequential(layer, norm, nn.ReLU()), torch.randn(shape))
    assert not any(name.endswith("bias") for name, _ in model.named_parameters())


def test_convolutions_next_to_a_normalisation_gain_biases_and_no_others() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(4, 4, bias=False) for _ in range(4))
            self.norm = nn.LayerNorm(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.relu(self.norm(self.b(F.relu(self.a(x)))))
            return self.d(F.relu(self.c(x)))

    model = convert(Net(), torch.zeros(2, 4), SHALLOW)
    biased = {name for name, _ in model.named_parameters() if name.endswith("bias")}
    assert biased == {"b.bias", "c.bias"}


def test_dropout_follows_train_and_eval_and_copies_are_independent() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(50, 50), nn.Linear(50, 50)
            self.drop = nn.Dropout(0.5, inplace=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.dropout(F.relu(self.a(x)), 0.25, self.training)
            return self.drop(F.relu(self.b(x)))

    x = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    model = convert(Net(), x, SHALLOW)
    assert sorted(m.p for m in model.modules() if isinstance(m, nn.Dropout)) == [0.25, 0.5]
    zeros = lambda: (model.train()(x) == 0).double().mean().item()
    assert zeros() == pytest.approx(0.5, abs=0.2)
    assert torch.equal(model.eval()(x), model(x))
    assert not (model(x) == 0).any()


def test_layers_written_as_functions_are_drawn_too() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 32, 3, padding=1, padding_mode="reflect")
            self.kernel = nn.Parameter(torch.zeros(64, 16, 3, 3))
            self.weight, self.bias = nn.Parameter(torch.zeros(10, 64)), nn.Parameter(torch.ones(10))
            self.matrix = nn.Parameter(torch.zeros(10, 7))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.relu(F.conv2d(F.relu(self.stem(x)), self.kernel, groups=2))
            return F.relu(F.linear(x.mean((2, 3)), self.weight, self.bias)) @ self.matrix

    model = convert(Net(), IMAGE, SHALLOW)
    state = dict(model.named_parameters())
    eye = torch.eye(10)
    torch.testing.assert_close(state["weight"] @ state["weight"].T, eye)
    torch.testing.assert_close(state["matrix"].T @ state["matrix"], eye[:7, :7])
    assert torch.equal(state["bias"], torch.zeros(10))
    taps = state["stem.weight"].abs().sum((0, 1))
    assert int(taps.count_nonzero()) == 1
    halves = state["kernel"][:, :, 1, 1].unflatten(0, (2, 32))
    for half in halves:
        torch.testing.assert_close(half.T @ half, 2 * torch.eye(16))
    assert model.skipless_report.untouched == ()


def test_weights_are_drawn_as_the_method_says() -> None:
    example = torch.zeros(2, 64)
    build = lambda: nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    model = convert(build(), example, EOC(sigma_b=0.3), activation="tanh")
    solution = model.skipless_report.solution
    weight = model.get_parameter("0.weight")
    torch.testing.assert_close(weight.T @ weight, solution.sigma_w**2 * torch.eye(64))
    biases = torch.cat([model.get_parameter("0.bias"), model.get_parameter("2.bias")])
    assert biases.std().item() == pytest.approx(0.3, abs=4 * 0.3 / math.sqrt(2 * 128))
    one, two = (
        convert(
            build(), example, EOC(), activation="relu", generator=torch.Generator().manual_seed(s)
        )
        for s in (1, 1)
    )
    assert torch.equal(one.get_parameter("0.weight"), two.get_parameter("0.weight"))


@pytest.mark.parametrize("method", [TAT(tau=0.2), DKS(zeta=1.3)])
def test_smooth_activations_are_shaped_too(method) -> None:
    model = convert(models.mlp(), IMAGE, method, activation="tanh")
    shaped = [m for m in model.modules() if isinstance(m, ShapedActivation)]
    assert {m.name for m in shaped} == {"tanh"}
    assert len(shaped) == 4


def test_an_activation_of_the_users_own_comes_with_its_function_of_tensors() -> None:
    own = Activation(np.sin, np.cos, lambda x: -np.sin(x), name="wave", period=2 * math.pi)
    with pytest.raises(ValueError, match="Pass its function of tensors"):
        convert(models.mlp(), IMAGE, TAT(), activation=own)
    model = convert(models.mlp(), IMAGE, TAT(), activation=own, function=torch.sin)
    assert activations_of(model, IMAGE) == 4


def test_two_activations_at_one_path_and_a_name_that_is_taken() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.activation = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.activation(x)
            return self.activation(F.relu(1.5 * x * torch.sigmoid(x)))

    model = convert(Net(), torch.randn(2, 4), SHALLOW)
    assert isinstance(model.activation, nn.Linear)
    assert isinstance(model.activation_, TReLU)


def test_factors_on_activations_are_gone_and_signs_are_kept() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = 1.4 * F.relu(self.a(x / 4.0 - 1.0))
            return x - 2.0 * self.b(-x)

    x = torch.randn(3, 4)
    model = convert(Net(), x, TAT(eta=0.1), clamp=False)
    phi = model.get_submodule("activation")
    a, b = model.get_submodule("a"), model.get_submodule("b")
    y = phi(a(x / 4.0 - 1.0))
    scale = math.hypot(1.4, 2.0)
    torch.testing.assert_close(model(x), 1.4 / scale * y - 2.0 / scale * b(-y))


def test_the_report_tells_what_was_done() -> None:
    model = converted("resnet18", 0.6)
    text = str(model.skipless_report)
    assert "TAT(eta=0.5" in text
    for line in (
        r"normalisation removed +bn1 … stages\.3\.1\.bn2 \(20\)",
        r"activation replaced by TReLU +relu … .* \(17\)",
        r"sum weighted by 0\.8 and 0\.6 instead of 1 and 1 .* \(8\)",
        r"shortcut taken from before the activation .* \(5\)",
        r"bias added +conv1 … .* \(20\)",
        r"mu0 +0\.5",
        r"fc \(user_models\.py:\d+\)",
        r"max_pool2d at maxpool",
    ):
        assert re.search(line, text), line
    assert max(len(line) for line in text.splitlines()) <= 100
    counts = len(model.skipless_report.predicted), len(model.skipless_report.graph.nodes)
    assert counts[0] == counts[1]


def test_the_report_of_a_deep_sequential_names_its_layers_by_kind_and_index_in_one_row() -> None:
    blocks = [m for _ in range(50) for m in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    text = str(convert(nn.Sequential(*blocks), torch.zeros(2, 8)).skipless_report)
    assert re.search(r"^normalisation removed +BatchNorm1d 1-148 \(50\)$", text, re.MULTILINE)
    assert re.search(r"^activation replaced by TReLU +ReLU 2-149 \(50\)$", text, re.MULTILINE)
    pattern = r"^Linear 0-147 \(50\) +1\.000 +\S+…\S+ +0\.000…0\.900 +\S+…\S+$"
    assert re.search(pattern, text, re.MULTILINE)
    assert len(text.splitlines()) < 25
    assert "None" not in text


def test_targets_out_of_reach_and_impossible_weights_are_refused() -> None:
    with pytest.raises(UnreachableTargetError, match="clamp=True"):
        convert(models.vgg(), IMAGE, TAT(eta=0.9))
    with pytest.raises(GraphError, match=r"must be in \[0, 1\), got"):
        convert(models.PreActivation(), IMAGE, SHALLOW, shortcut_weight=1.0)
    with pytest.raises(TypeError, match="shortcut_weight must be a number"):
        convert(models.PreActivation(), IMAGE, SHALLOW, shortcut_weight="0.8")  # pyright: ignore


def test_weights_that_are_computed_become_plain_ones() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(32, 32))
    converted = convert(nn.Sequential(layer, nn.ReLU()), torch.zeros(2, 32), TAT(eta=0.1))
    assert check(converted, torch.zeros(2, 32), seeds=3).agrees
    twice = nn.Linear(4, 4)
    halves = lambda x: nn.functional.linear(x, torch.cat([twice.weight[:2]] * 2))
    twice.forward = halves  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(UnsupportedModelError, match="Remove weight normalisation"):
        convert(nn.Sequential(twice, nn.ReLU()), torch.zeros(2, 4), TAT(eta=0.1))


def test_a_module_registered_under_two_names_is_the_module_that_is_called() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4)
            self.act = nn.ReLU()
            self.net = nn.Sequential(self.conv, self.norm, self.act)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    model = convert(Block(), IMAGE, TAT(eta=0.1))
    assert sorted(dict(model.named_parameters())) == ["conv.bias", "conv.weight"]
    assert isinstance(model.get_submodule("net.2"), TReLU)


@pytest.mark.parametrize("wrap", [lambda y: {"out": y}, lambda y: [y], lambda y: (y, 3.0)])
def test_the_output_keeps_its_structure(wrap) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = models.mlp()

        def forward(self, x: torch.Tensor):
            return wrap(self.net(x))

    plain = convert(models.mlp(), IMAGE, SHALLOW, generator=torch.Generator().manual_seed(1))
    model = convert(Wrapped(), IMAGE, SHALLOW, generator=torch.Generator().manual_seed(1))
    found, expected = model(IMAGE), wrap(plain(IMAGE))
    torch.testing.assert_close(found, expected)


class Nested(nn.Module):
    """Groups of residual blocks with a shortcut over each group."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.stem = nn.Linear(3, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for first, second in (self.layers[:2], self.layers[2:]):
            y = x + first(F.relu(x))
            x = x + (y + second(F.relu(y)))
        return x


def test_shortcuts_over_shortcuts_are_normalised_together_and_removed_together() -> None:
    x = torch.randn(2, 3)
    model = convert(Nested(), x, TAT(eta=0.3), shortcut_weight=0.0)
    assert not [n for n in calls_of(model).nodes if n.target in (torch.add, torch.mul)]
    for weight in (None, 0.6):
        model = convert(Nested(), x, TAT(eta=0.2), shortcut_weight=weight)
        assert all(p.q == pytest.approx(1.0) for p in model.skipless_report.predicted)
        found = check(model, x, seeds=8)
        assert found.agrees
        differences = [(r.measured.c.mean - r.predicted.c, r.measured.c) for r in found.comparisons]
        assert all(abs(off) <= 4.0 * c.error + 1e-5 for off, c in differences)


@pytest.mark.parametrize("start", [torch.zeros(1), torch.full((4,), 1e-6)])  # ReZero, LayerScale
def test_a_branch_that_starts_near_zero_is_a_branch(start: torch.Tensor) -> None:
    class ReZero(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.layer = nn.Linear(4, 4), nn.Linear(4, 4)
            self.alpha = nn.Parameter(start)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            return x + self.alpha * self.layer(F.relu(x))

    x = torch.randn(3, 4)
    assert getattr(trace(ReZero(), x).nodes[-1], "weights", ()) == (1.0, 1.0)
    model = convert(ReZero(), x, TAT(eta=0.1), shortcut_weight=0.6)
    stem, layer, phi = (model.get_submodule(n) for n in ("stem", "layer", "activation"))
    u = stem(x)
    torch.testing.assert_close(model(x), 0.6 * u + 0.8 * layer(phi(u)))


def test_what_only_approximates_is_listed() -> None:
    def listed(forward) -> tuple[str, ...]:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.c(forward(self, x))

        report = convert(Net(), torch.randn(2, 4), TAT(eta=0.05)).skipless_report
        return tuple(note.split(" at ")[0] for note in report.approximate)

    relu = torch.relu
    assert listed(lambda m, x: relu(m.a(x)) + relu(m.b(x))) == ("sum of dependent terms",)
    assert listed(lambda m, x: m.a(x) + 0.5 * m.b(relu(m.a(x)))) == ("weights used again",)
    assert listed(lambda m, x: 0.8 * x + 0.6 * m.b(relu(m.a(x)))) == ()
    assert listed(lambda m, x: relu(x)) == ("activation of unweighted input",)
    assert listed(lambda m, x: relu(relu(m.a(x)) + m.b(x))) == ("activation of unweighted input",)


def test_layers_written_as_functions_are_drawn_for_every_seed_of_a_check() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(64, 64))
            self.matrix, self.bias = nn.Parameter(torch.zeros(64, 64)), nn.Parameter(torch.ones(64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.addmm(self.bias, F.relu(F.linear(x, self.weight)), self.matrix)
            return torch.relu(x)

    x = torch.randn(2, 64)
    model = convert(Net(), x, EOC(), activation="relu")
    weight = model.get_parameter("weight")
    torch.testing.assert_close(weight.T @ weight, 2.0 * torch.eye(64))
    assert not model.get_parameter("bias").any()
    with torch.no_grad():
        weight.mul_(5.0)
    found = check(model, x, seeds=5)
    assert found.agrees
    assert found.comparisons[2].measured.c.error > 0.0
    assert measure(model, torch.randn(4, 64), seeds=3).nodes[1].q.mean == pytest.approx(
        2.0, rel=0.5
    )


def test_sizes_that_the_model_computes_stay_computed() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, 1)
            self.fc = nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = F.relu(self.a(x))
            b = F.interpolate(F.relu(self.b(a)), size=a.shape[-2:], mode="nearest")
            x = torch.cat([a, b], 1)
            return self.fc(F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1))

    model = convert(Net(), IMAGE, SHALLOW)
    phi, conv_a, conv_b, fc = (model.get_submodule(n) for n in ("activation", "a", "b", "fc"))
    for x in (IMAGE, torch.randn(3, 3, 12, 20), torch.randn(1, 3, 6, 6)):
        a = phi(conv_a(x))
        b = F.interpolate(phi(conv_b(a)), size=a.shape[-2:])
        torch.testing.assert_close(model(x), fc(torch.cat([a, b], 1).mean((2, 3))))


class Reshapes(nn.Module):
    """Flattens as most people do, by a size that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(144, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv(x))
        return torch.relu(self.fc(x.view(x.size(0), -1)))


@pytest.mark.parametrize(
    ("build", "times"),
    [(models.mlp, 1), (lambda: models.ResNet(models.BasicBlock, (1,)), 1), (Reshapes, 2)],
)
def test_a_model_is_exported_once_unless_its_own_code_that_reads_sizes_has_to_go(
    build, times, monkeypatch
) -> None:
    shapes = []
    export = torch.export.export

    def counted(*arguments, **options):
        shapes.append(options["dynamic_shapes"])
        return export(*arguments, **options)

    monkeypatch.setattr(torch.export, "export", counted)
    model = convert(build(), IMAGE, TAT(eta=0.1))
    assert len(shapes) == times
    assert model(torch.cat([IMAGE] * 2)).shape[0] == 4


class PaddedToItsSkip(nn.Module):
    """A U-Net of one step, which pads what it enlarged by numbers that it computes from sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.last = nn.Conv2d(32, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = torch.relu(self.down(x))
        enlarged = F.interpolate(torch.relu(self.up(F.max_pool2d(skip, 2))), scale_factor=2)
        high, wide = skip.size(2) - enlarged.size(2), skip.size(3) - enlarged.size(3)
        padding = [wide // 2, wide - wide // 2, high // 2, high - high // 2]
        return torch.relu(self.last(torch.cat([skip, F.pad(enlarged, padding)], 1)))


def test_padding_by_computed_amounts_is_converted_for_every_size() -> None:
    model = convert(PaddedToItsSkip(), torch.zeros(2, 3, 31, 29), TAT(eta=0.1))
    assert model(torch.zeros(3, 3, 17, 19)).shape == (3, 16, 17, 19)


class Duelling(nn.Module):
    """A Q-network with a policy beside it, whose sums must stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.value, self.advantage = nn.Linear(64, 1), nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.body(x)
        value, advantage = self.value(x), self.advantage(x)
        q = value + advantage - advantage.mean(1, keepdim=True)
        return {"q": q, "policy": torch.softmax(advantage, 1)}


def test_what_is_computed_after_the_network_stays(tmp_path: Path) -> None:
    new = convert(Duelling(), torch.randn(4, 6), TAT(eta=0.3))
    assert sum(isinstance(module, TReLU) for module in new.modules()) == 2
    x = torch.randn(5, 6)
    hidden = new.get_submodule("body.2")(
        new.get_submodule("body.1")(new.get_submodule("body.0")(x))
    )
    hidden = new.get_submodule("body.3")(hidden)
    value, advantage = (new.get_submodule(name)(hidden) for name in ("value", "advantage"))
    assert torch.allclose(new(x)["q"].mean(1, keepdim=True), value, atol=1e-6)
    assert torch.allclose(new(x)["policy"], advantage.softmax(1), atol=1e-6)
    found = measure(new, torch.randn(8, 6))
    (*_, first, second, both) = found.nodes
    assert both.q.mean == pytest.approx((first.q.mean + second.q.mean) / 2, rel=1e-6)
    assert check(new, torch.randn(2, 6), seeds=3).comparisons
    with pytest.raises(ValueError, match=r"must return one tensor, got dict\. Wrap"):
        export(new, torch.randn(2, 6), tmp_path / "model.onnx")
    assert "computed after the network, kept" in str(new.skipless_report)


@pytest.mark.parametrize("end", [nn.Sigmoid(), nn.Tanh(), nn.Softmax(1), nn.LogSoftmax(1)])
def test_the_range_of_the_outputs_stays_also_in_folded_networks(end) -> None:
    layers = [m for _ in range(3) for m in (nn.Linear(8, 8), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(8, 3), end)
    new, x = convert(model, torch.randn(2, 8), TAT(eta=0.3)), torch.randn(16, 8)
    assert sum(isinstance(module, TReLU) for module in new.modules()) == 3
    logits = new.get_submodule("6")(nn.Sequential(*list(new.children())[:6])(x))
    assert torch.allclose(new(x), end(logits), atol=1e-6)
    assert torch.allclose(fold(new)(x), new(x), atol=1e-5)


def test_lazy_layers_make_their_weights_in_the_new_model_alone() -> None:
    parts = (nn.LazyConv2d(16, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(9), nn.BatchNorm1d(9))
    model = nn.Sequential(*parts, nn.ReLU(), nn.LazyLinear(2))
    new = convert(model, torch.randn(2, 3, 8, 8))
    assert new.get_submodule("3").weight.shape == (9, 16 * 36)
    assert isinstance(model[3], nn.LazyLinear)
    assert trace(model, torch.randn(2, 3, 8, 8)) == new.skipless_report.graph
    with pytest.raises(UnsupportedModelError, match=r"lazy .* Call model\(example\) first"):
        convert(nn.Sequential(*parts, nn.LazyBatchNorm1d()), torch.randn(2, 3, 8, 8))

"""fold: the plain network gives what the shaped one gives, with nothing beside its activations."""

import copy
import logging
import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

import skipless
from skipless.core import activations as core
from skipless.onnx import export, writer
from skipless.torch.activations import ShapedActivation, TReLU
from skipless.torch.fold import _Tracer, fold
from skipless.torch.gauges import Equations
from skipless.torch.operations import plain_operation

Activations = Callable[[], ShapedActivation]

METHODS = {"TAT": skipless.TAT(), "DKS": skipless.DKS()}
SMOOTH = [(name, method) for name in ("tanh", "softplus", "gelu") for method in METHODS]


@cache
def solution(name: str, method: str) -> skipless.Solution:
    return skipless.solve(skipless.Graph.chain(30), METHODS[method], name)


def smooth(name: str = "softplus", method: str = "DKS") -> ShapedActivation:
    return ShapedActivation.from_solution(solution(name, method))


def trelu() -> ShapedActivation:
    return TReLU(0.3)


def random_biases(model: nn.Module, seed: int = 1) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model.eval()


def error(model: nn.Module, folded: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        expected, found = model(x), folded(x)
    return float((found - expected).abs().max() / expected.abs().max())


def folded_alike(model: nn.Module, x: Tensor) -> fx.GraphModule:
    """`fold(model)`, once its outputs were seen to be the same in both precisions."""
    assert error(model, fold(model), x) <= 1e-5
    wide = copy.deepcopy(model).double()
    assert error(wide, fold(wide), x.double()) <= 1e-12
    return fold(model)


def count(model: fx.GraphModule, *names: str) -> int:
    return sum(plain_operation(node) in names for node in model.graph.nodes)


def traced(model: nn.Module) -> fx.GraphModule:
    tracer = _Tracer()
    return fx.GraphModule(model, tracer.trace(model))


class Operators(TorchDispatchMode):
    """Counts the kernels that PyTorch is asked for."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is not torch.ops.aten.detach.default
        return func(*args, **(kwargs or {}))


def operators(model: nn.Module, x: Tensor) -> int:
    with torch.no_grad(), Operators() as mode:
        model(x)
    return mode.count


def mlp(act: Activations) -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(6, 8), act(), nn.Linear(8, 8, bias=False), act()),
        *(nn.Dropout(0.5), nn.Linear(8, 8), act(), nn.Linear(8, 3)),
    )


def vgg(act: Activations) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), act(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, padding=1), act(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(8 * 9, 16), act(), nn.Dropout(0.5), nn.Linear(16, 10)),
    )


def convolutions(act: Activations) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2, padding=1), act()),
        *(nn.Conv2d(8, 12, 3, groups=4), act(), nn.AvgPool2d(3, 1, 1)),
        *(nn.Conv2d(12, 8, 1, padding=1), act(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Conv2d(8, 4, 3, padding=1, padding_mode="replicate"), act()),
        *(nn.Conv2d(4, 4, 3, padding="same", bias=False), act(), nn.Conv2d(4, 2, 1)),
    )


def one_dimensional(act: Activations) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv1d(3, 8, 3), act(), nn.MaxPool1d(2), nn.Conv1d(8, 6, 3, dilation=2), act()),
        *(nn.Upsample(scale_factor=2), nn.ConvTranspose1d(6, 4, 3, padding=2, groups=2), act()),
        *(nn.ConvTranspose1d(4, 4, 3, stride=2), act(), nn.Flatten(), nn.LazyLinear(4)),
    )


class ResNet(nn.Module):
    """Activations after weighted sums, one of them used twice in every block."""

    def __init__(self, act: Activations, blocks: int = 3) -> None:
        super().__init__()
        self.stem, self.act = nn.Conv2d(3, 8, 3, padding=1), act()
        self.first = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(blocks))
        self.second = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(blocks))
        self.acts, self.fc = nn.ModuleList(act() for _ in range(blocks)), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        for first, second, act in zip(self.first, self.second, self.acts, strict=True):
            x = act(0.8 * x + 0.6 * second(act(first(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class PreActivation(nn.Module):
    """Sums that are not activated, whose factors are a number and a buffer."""

    factor: Tensor

    def __init__(self, act: Activations, kernel: int = 3) -> None:
        super().__init__()
        convolution = lambda inputs: nn.Conv2d(inputs, 8, kernel, padding=kernel // 2)
        self.stem = convolution(3)
        self.layers = nn.ModuleList(nn.Sequential(act(), convolution(8)) for _ in range(6))
        self.last, self.fc = act(), nn.Linear(8, 5)
        self.register_buffer("factor", torch.tensor(0.6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i in range(0, 6, 2):
            x = 0.8 * x + self.factor * self.layers[i + 1](self.layers[i](x))
        return self.fc(self.last(x).mean((2, 3)))


class DenseNet(nn.Module):
    def __init__(self, act: Activations, kernel: int = 3) -> None:
        super().__init__()
        convolution = lambda i, o: nn.Conv2d(i, o, kernel, padding=kernel // 2)
        self.stem = convolution(3, 8)
        self.convs = nn.ModuleList(convolution(8 + 4 * k, 4) for k in range(3))
        self.acts, self.fc = nn.ModuleList(act() for _ in range(4)), nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for conv, act in zip(self.convs, self.acts[:3], strict=True):
            features.append(conv(act(torch.cat(features, dim=1))))
        y = self.acts[3](torch.cat(features, 1))
        y = F.max_pool2d(y, 3)
        return self.fc(y.view(y.size(0), y.shape[1], -1).mean(-1))


class UNet(nn.Module):
    def __init__(self, act: Activations) -> None:
        super().__init__()
        self.down1, self.act1 = nn.Conv2d(3, 8, 3, padding=1), act()
        self.down2, self.act2 = nn.Conv2d(8, 16, 3, padding=1), act()
        self.up, self.join = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 8, 3, padding=1)
        self.act3, self.out = act(), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.act1(self.down1(x))
        deep = self.up(self.act2(self.down2(F.max_pool2d(skip, 2))))
        return self.out(self.act3(self.join(torch.cat([deep, skip], 1))))


class Shared(nn.Module):
    """A layer that is called twice, and an activation that is called three times."""

    def __init__(self, act: Activations) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(6, 8), nn.Linear(8, 8)
        self.last, self.act = nn.Linear(8, 3), act()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x))
        return self.last(self.act(self.middle(self.act(self.middle(x)))))


def functional(act: Activations) -> nn.Module:
    """As `convert` leaves a network that was written with functions: ATen calls and weights."""
    aten, graph, root = torch.ops.aten, fx.Graph(), nn.Module()
    root.act, root.weights = act(), nn.ParameterDict()
    for name, shape in {"a": (8, 3, 3, 3), "b": (8, 8, 1, 1), "c": (5, 16)}.items():
        root.weights[name] = nn.Parameter(0.3 * torch.randn(shape))
    root.weights["a_bias"] = nn.Parameter(torch.randn(8))
    x = graph.placeholder("x")
    a, b, c, bias = (graph.get_attr(f"weights.{name}") for name in ("a", "b", "c", "a_bias"))
    y = graph.call_function(aten.conv2d.default, (x, a, bias, [1, 1], [1, 1]))
    y = graph.call_module("act", (y,))
    z = graph.call_module("act", (graph.call_function(aten.conv2d.default, (y, b)),))
    weighed = [graph.call_function(aten.mul.Tensor, term) for term in ((y, 0.8), (z, 0.6))]
    total = graph.call_function(aten.add.Tensor, tuple(weighed))
    both = graph.call_function(aten.cat.default, ([total, z], 1))
    pooled = graph.call_function(aten.adaptive_avg_pool2d.default, (both, [1, 1]))
    flat = graph.call_function(aten.flatten.using_ints, (pooled, 1))
    graph.output(graph.call_function(aten.linear.default, (flat, c)))
    return fx.GraphModule(root, graph)


VECTOR, IMAGE, SIGNAL = (2, 6), (2, 3, 12, 12), (2, 3, 20)
NETWORKS: dict[str, tuple[Callable[[Activations], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, VECTOR),
    "vgg": (vgg, IMAGE),
    "convolutions": (convolutions, IMAGE),
    "one_dimensional": (one_dimensional, SIGNAL),
    "resnet": (ResNet, IMAGE),
    "pre_activation": (PreActivation, IMAGE),
    "densenet": (DenseNet, IMAGE),
    "unet": (UNet, IMAGE),
    "shared": (Shared, VECTOR),
    "functional": (functional, IMAGE),
}
# In which no shift meets a border, so that no constant needs to remain.
UNPADDED: dict[str, tuple[Callable[[Activations], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, VECTOR),
    "pre_activation": (lambda act: PreActivation(act, kernel=1), IMAGE),
    "densenet": (lambda act: DenseNet(act, kernel=1), IMAGE),
}


def network(build: Callable[[Activations], nn.Module], shape: tuple[int, ...], act: Activations):
    torch.manual_seed(0)
    model, x = build(act).eval(), torch.randn(shape)
    model(x)  # which gives lazy layers their shapes
    return random_biases(model), x


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("phi", "method"), SMOOTH)
def test_a_folded_smooth_network_gives_the_same_outputs(name: str, phi: str, method: str) -> None:
    model, x = network(*NETWORKS[name], lambda: smooth(phi, method))
    folded = folded_alike(model, x)
    assert not any(isinstance(module, ShapedActivation) for module in folded.modules())
    assert operators(folded, x) < operators(model, x)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_folded_rectifier_network_gives_the_same_outputs(name: str) -> None:
    model, x = network(*NETWORKS[name], trelu)
    folded = folded_alike(model, x)
    assert not any(isinstance(module, ShapedActivation) for module in folded.modules())
    assert operators(folded, x) <= operators(model, x)


@pytest.mark.parametrize("name", sorted(set(NETWORKS) - {"shared"}))
def test_of_a_tailored_rectifier_nothing_is_left_but_a_leaky_one(name: str) -> None:
    model, _ = network(*NETWORKS[name], trelu)
    before = model if isinstance(model, fx.GraphModule) else traced(model)
    folded = fold(model)
    assert folded.meta["remaining"] == ()
    assert count(folded, "add") == count(before, "add")
    assert count(folded, "mul") <= count(before, "mul")
    assert any(isinstance(module, nn.LeakyReLU) for module in folded.modules())
    # A factor right after a convolution goes into it, so that one of two is left in a block.
    assert count(folded, "mul") in (0, count(before, "mul") / 2, count(before, "mul"))


@pytest.mark.parametrize("name", UNPADDED)
@pytest.mark.parametrize(("phi", "method"), SMOOTH)
def test_without_padding_no_constant_remains(name: str, phi: str, method: str) -> None:
    model, x = network(*UNPADDED[name], lambda: smooth(phi, method))
    folded = folded_alike(model, x)
    assert folded.meta["remaining"] == ()
    assert count(folded, "add") == count(traced(model), "add")
    assert count(folded, "mul") <= count(traced(model), "mul")


def test_a_shift_before_padding_with_zeros_remains_and_is_listed() -> None:
    act = ShapedActivation("softplus", 0.5, 0.2, 2.0, -0.75)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), act, nn.Conv2d(4, 4, 3, padding=1))
    folded = folded_alike(model, torch.randn(2, 3, 5, 5))
    assert folded.meta["remaining"] == ("2 reads 1 plus -0.75",)


def test_a_shift_before_a_transposed_convolution_remains_and_is_listed() -> None:
    act = ShapedActivation("softplus", 0.5, 0.2, 2.0, -0.75)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), act, nn.ConvTranspose2d(4, 4, 2, 2))
    folded = folded_alike(model, torch.randn(2, 3, 5, 5))
    assert folded.meta["remaining"] == ("2 reads 1 plus -0.75",)


@pytest.mark.parametrize("act", [trelu, smooth])
def test_at_the_outputs_of_a_network_only_smooth_constants_remain(act: Activations) -> None:
    model = nn.Sequential(nn.Linear(6, 4), act())
    folded = folded_alike(model, torch.randn(3, 6))
    assert len(folded.meta["remaining"]) == (act is smooth)


def test_one_tensor_that_many_need_as_it_is_is_converted_once() -> None:
    class Exponentials(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act = nn.Linear(6, 4), smooth()

        def forward(self, x: Tensor) -> Tensor:
            y = self.act(self.first(x))
            return torch.exp(y) + torch.cos(y)

    folded = folded_alike(Exponentials(), torch.randn(3, 6))
    assert (count(folded, "mul"), count(folded, "add")) == (1, 2)


def test_the_model_is_left_as_it_is_and_names_are_kept() -> None:
    model, _ = network(*NETWORKS["unet"], smooth)
    model.train()
    before = copy.deepcopy(model.state_dict())
    folded = fold(model)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.training
    assert not folded.training
    assert {name for name, _ in folded.named_parameters()} == dict(model.named_parameters()).keys()


def test_a_layer_without_bias_gains_one_only_where_it_has_to() -> None:
    layers = [nn.Linear(4, 4, bias=False) for _ in range(2)]
    shaped = fold(nn.Sequential(layers[0], smooth(), layers[1]))
    rectified = fold(nn.Sequential(layers[0], trelu(), layers[1]))
    assert {name for name, _ in rectified.named_parameters()} == {"0.weight", "2.weight"}
    assert {name for name, _ in shaped.named_parameters()} == {
        *("0.weight", "0.bias", "2.weight", "2.bias")
    }


def test_many_weighted_sums_neither_overflow_nor_fade() -> None:
    model, x = network(lambda act: ResNet(act, blocks=60), IMAGE, lambda: TReLU(0.0))
    folded = folded_alike(model, x)
    largest = lambda m: max(float(p.detach().abs().max()) for p in m.parameters())
    assert largest(folded) < 2.0 * largest(model)


NATIVE = {
    "celu": nn.CELU, "elu": nn.ELU, "gelu": nn.GELU, "gelu_tanh": nn.GELU,
    "hard_sigmoid": nn.Hardsigmoid, "hard_swish": nn.Hardswish, "hard_tanh": nn.Hardtanh,
    "identity": nn.Identity, "leaky_relu": nn.LeakyReLU, "log_sigmoid": nn.LogSigmoid,
    "mish": nn.Mish, "relu": nn.ReLU, "relu6": nn.ReLU6, "selu": nn.SELU, "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU, "soft_shrink": nn.Softshrink, "softplus": nn.Softplus,
    "softsign": nn.Softsign, "tanh": nn.Tanh, "tanh_shrink": nn.Tanhshrink,
}  # fmt: skip
MEMBERS = [
    *(skipless.activation(name) for name in skipless.activation_names()),
    *(core.elu(0.3), core.celu(0.7)),
    *(core.softplus(2.5), core.soft_shrink(1e-05)),
    *(skipless.activation("leaky_relu", 0.0), skipless.activation("leaky_relu", -0.4)),
]


@pytest.mark.parametrize("phi", MEMBERS, ids=lambda phi: phi.name)
def test_every_activation_becomes_pytorchs_own_where_there_is_one(phi: skipless.Activation) -> None:
    act = ShapedActivation(phi, 0.7, 0.3, 1.4, -0.2)
    model = nn.Sequential(nn.Linear(5, 5), act, nn.Linear(5, 5))
    folded = folded_alike(model, torch.randn(20, 5))
    found = folded.get_submodule("1")
    if (family := phi.name.split("(")[0]) in NATIVE:
        assert type(found) is (nn.ReLU if phi.negative_slope == 0.0 else NATIVE[family])
        assert folded.meta["remaining"] == ()
    else:
        assert isinstance(found, ShapedActivation)
        assert set(found.constants.values()) == {0.0, 1.0}
        assert folded.meta["remaining"] == (f"1 stays a ShapedActivation of {phi.name}, unscaled",)


def test_a_function_of_the_users_own_is_not_taken_for_its_namesake() -> None:
    def tanh(x: Tensor) -> Tensor:
        return torch.tanh(x) + 0.1 * x

    def relu(x: Tensor) -> Tensor:
        return F.relu(x) + x**2

    for function in (tanh, relu):
        act = ShapedActivation(function, 0.7, 0.3, 1.4, -0.2)
        model = nn.Sequential(nn.Linear(5, 5), act, nn.Linear(5, 5))
        folded = folded_alike(model, torch.randn(4, 5))
        assert isinstance(folded.get_submodule("1"), ShapedActivation)


def test_negative_scales_stay_where_they_are() -> None:
    act = ShapedActivation("gelu", -0.7, 0.3, -1.4, -0.2)
    model = nn.Sequential(
        *(nn.Conv2d(3, 4, 1), act, nn.MaxPool2d(2), nn.Conv2d(4, 4, 1), trelu(), nn.Conv2d(4, 1, 1))
    )
    folded = folded_alike(model, torch.randn(2, 3, 6, 6))
    assert folded.meta["remaining"] == ("1 keeps its constants: one of its scales is not positive",)


def test_loaded_constants_are_the_ones_that_are_folded() -> None:
    build = lambda slope: nn.Sequential(nn.Linear(5, 5), TReLU(slope), nn.Linear(5, 5))
    model, other = build(0.2), build(0.7)
    model.load_state_dict(other.state_dict())
    x = torch.randn(4, 5)
    assert error(other, fold(model), x) <= 1e-5


def test_weights_that_others_use_too_are_left_alone() -> None:
    tied = nn.Sequential(nn.Linear(5, 5), smooth(), nn.Linear(5, 5), smooth(), nn.Linear(5, 5))
    tied[2].weight = tied[4].weight
    folded = folded_alike(tied, torch.randn(4, 5))
    assert torch.equal(folded.get_parameter("2.weight"), tied.get_parameter("2.weight"))


@pytest.mark.parametrize("how", ["parametrization", "hook", "subclass"])
def test_weights_that_are_computed_are_left_alone(how: str) -> None:
    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2.0 * weight

    class Squared(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return F.linear(input, self.weight**2, self.bias)

    Squared.__module__ = "torch.nn"  # so that torch.fx does not look inside
    layer = Squared(5, 5) if how == "subclass" else nn.Linear(5, 5)
    if how == "parametrization":
        parametrize.register_parametrization(layer, "weight", Doubled())
    elif how == "hook":
        nn.utils.spectral_norm(layer)
    model = nn.Sequential(nn.Linear(5, 5), smooth(), layer, smooth(), nn.Linear(5, 5)).eval()
    folded_alike(model, torch.randn(4, 5))


def test_plain_rectifiers_let_a_scale_pass_but_no_shift() -> None:
    for act in (trelu, smooth):
        model = nn.Sequential(
            *(nn.Linear(5, 5), act(), nn.LeakyReLU(0.1), nn.Linear(5, 5), act(), nn.Linear(5, 5))
        )
        folded = folded_alike(random_biases(model), torch.randn(4, 5))
        assert len(folded.meta["remaining"]) == (act is smooth)


class Functions(nn.Module):
    """What users write between layers, each with its own way with a shift."""

    def __init__(self, function: Callable[[Tensor], Tensor], act: Activations) -> None:
        super().__init__()
        self.first, self.act1, self.act2 = nn.Conv2d(3, 4, 1), act(), act()
        self.last, self.function = nn.LazyConv2d(4, 1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act2(self.function(self.act1(self.first(x)))))


def halves(x: Tensor) -> Tensor:
    one, two = x.chunk(2, dim=1)
    return torch.cat([two, one, x], dim=1)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "twice": lambda x: x + x,
    "difference": lambda x: x - 0.3 * x.flip(1),
    "alpha": lambda x: torch.add(x, x.relu(), alpha=0.7),
    "from_one": lambda x: 1.0 - x,
    "plus": lambda x: x + 0.7,
    "minus": lambda x: (x - 0.7) / 2.0,
    "negative": lambda x: -x,
    "nothing": lambda x: 0.0 * x,
    "product": lambda x: x * x,
    "halves": halves,
    "index": lambda x: x[:, 1:3],
    "mask": lambda x: torch.where(x > 0.5, x, -x),
    "zeros_around": lambda x: F.pad(x, (1, 1, 1, 1)),
    "ones_around": lambda x: F.pad(x, (1, 1), value=1.0),
    "mirror": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "padded_mean": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "mean": lambda x: F.avg_pool2d(x, 2),
    "divided": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "total": lambda x: x.sum((2, 3), keepdim=True),
    "larger": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "softmax": lambda x: torch.softmax(x, 1),
    "made": lambda x: x + torch.zeros(x.shape, dtype=x.dtype),
    "sized": lambda x: x + x.size(1) / 3,
    "shape": lambda x: x.reshape(x.shape[0], 2 * x.size(1), -1, x.size(3)),
    "in_place": lambda x: x.mul_(2.0).add_(1.0),
    "overwritten_copy": lambda x: torch.cat([(1.0 * x).add_(0.3), x], 1),
    "norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "maximum": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
}


@pytest.mark.parametrize("act", [trelu, smooth])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_whatever_lies_between_two_layers_the_outputs_stay(name: str, act: Activations) -> None:
    model, x = network(lambda act: Functions(FUNCTIONS[name], act), (2, 3, 6, 6), act)
    folded_alike(model, x)


class Random(nn.Module):
    """A network of random steps, each on tensors that were made before it."""

    def __init__(self, steps: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleDict()
        kinds = {"conv": (3, 1), "point": (1, 0)}
        acts = {"trelu": lambda: TReLU(0.2), "smooth": smooth, "half": lambda: SHIFTED}
        self.layers["shared"] = nn.Conv2d(3, 3, 1)
        for i, (kind, _, _) in enumerate(steps):
            if kind in kinds:
                kernel, padding = kinds[kind]
                self.layers[str(i)] = nn.Conv2d(3, 3, kernel, padding=padding)
            elif kind in acts:
                self.layers[str(i)] = acts[kind]()
            elif kind == "cat":
                self.layers[str(i)] = nn.Conv2d(6, 3, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made = [x]
        for i, (kind, left, right) in enumerate(self.steps):
            one, two = made[left % len(made)], made[right % len(made)]
            match kind:
                case "sum":
                    y = 0.8 * one + 0.6 * two
                case "bare_sum":
                    y = one - two
                case "cat":
                    y = self.layers[str(i)](torch.cat([one, two], 1))
                case "max":
                    y = F.max_pool2d(one, 3, 1, 1)
                case "mean":
                    y = F.avg_pool2d(one, 3, 1, 1)
                case "number":
                    y = 0.5 - (one + 0.3) * -0.7
                case "relu":
                    y = F.relu(one)
                case "shared":
                    y = self.layers["shared"](one)
                case _:
                    y = self.layers[str(i)](one)
            made.append(y)
        return sum(made[-3:], torch.zeros(1, dtype=x.dtype))


SHIFTED = ShapedActivation("leaky_relu", 0.5, 0.4, 1.5, -0.3)
KINDS = [
    *("conv", "point", "trelu", "smooth", "half", "sum", "bare_sum", "cat", "max", "mean"),
    *("number", "relu", "shared"),
]
STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 20), st.integers(0, 20))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(STEPS, min_size=1, max_size=16))
def test_any_network_gives_the_same_outputs(steps: list[tuple[str, int, int]]) -> None:
    torch.manual_seed(0)
    model = random_biases(Random(steps)).double()
    x = torch.randn(1, 3, 4, 4, dtype=torch.float64)
    assert error(model, fold(model), x) <= 1e-11


def test_contradicting_equations_are_refused_and_the_others_hold() -> None:
    equations = Equations()
    asked = [
        (1.0, ((1.0, "a"), (2.0, "b"), (-1.0, "c"))),
        (2.0, ((1.0, "b"), (1.0, "c"))),
        (0.5, ((3.0, "a"),)),
        (4.0, ((1.0, "a"), (3.0, "b"))),
        (7.0, ((1.0, "d"), (1.0, "d"))),
    ]
    assert [equations.add(value, *terms) for value, terms in asked] == [True] * 3 + [False, True]
    values = equations.values()
    for value, terms in (*asked[:3], asked[4]):
        assert math.isclose(sum(c * values[u] for c, u in terms), value)


def test_a_model_that_looks_at_its_input_asks_to_be_converted_first() -> None:
    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ValueError, match=r"torch\.fx failed on Looks: .*the result of `convert`"):
        fold(Looks())


@pytest.mark.parametrize("how", ["module", "method", "view"])
def test_a_tensor_that_is_read_after_it_was_overwritten_is_an_error(how: str) -> None:
    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act, self.relu = nn.Linear(5, 5), trelu(), nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            if how == "module":
                y = self.relu(x)
            else:
                y = x.add_(1.0) if how == "method" else x.view(-1, 5).add_(1.0)
            return self.act(x) + y

    with pytest.raises(
        ValueError, match=r"overwrites first in place before act reads it\. Use inplace=False"
    ):
        fold(Overwrites())


@pytest.mark.parametrize(("name", "act"), [("resnet", trelu), ("unet", smooth), ("mlp", smooth)])
def test_the_onnx_file_gives_the_same_at_every_batch_size(
    name: str,
    act: Activations,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, x = network(*NETWORKS[name], act)
    path = export(model, x[:1], tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = session.get_inputs()[0].name
    for batch in (x[:1], torch.cat([x, x, -x])):
        found = torch.from_numpy(session.run(None, {feed: batch.numpy()})[0])
        assert error(model, lambda _, found=found: found, batch) <= 1e-5  # pyright: ignore


def test_an_onnx_file_of_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = network(*NETWORKS["mlp"], trelu)
    wrong = fold(model)
    with torch.no_grad():
        wrong.get_parameter("7.bias").add_(0.01)
    monkeypatch.setattr(writer, "fold", lambda model, example: wrong)
    with pytest.raises(RuntimeError, match=r"differs from \w+ by .* on a batch of 2"):
        export(model, x, tmp_path / "model.onnx")


def test_a_batch_size_that_is_written_out_is_an_error(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 4), trelu(), nn.Unflatten(0, (2, 1)))
    with pytest.raises(ValueError, match=r"batches of any size.*put -1 there"):
        export(model, torch.randn(2, 6), tmp_path / "model.onnx")


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0)


class Unbound(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(torch.unbind(x))


def test_a_file_that_takes_one_batch_size_only_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"cannot run model\.onnx on a batch of 1"):
        export(Unbound(), torch.randn(1, 6), tmp_path / "model.onnx")


def test_a_file_that_onnxruntime_cannot_read_is_an_error_of_one_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")

    def write(_: nn.Module, __: Tensor, path: Path) -> None:
        value = lambda name: onnx.helper.make_tensor_value_info(name, 1, ["batch", 6])
        nodes = [onnx.helper.make_node("NoSuchOperator", ["x"], ["y"])]
        graph = onnx.helper.make_graph(nodes, "g", [value("x")], [value("y")])
        opsets = [onnx.helper.make_opsetid("", 20)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)

    monkeypatch.setattr(writer, "write", write)
    with pytest.raises(RuntimeError, match=r"torch\.onnx wrote of .*NoSuchOperator") as error:
        export(mlp(trelu), torch.zeros(1, 6), tmp_path / "model.onnx")
    assert "\n" not in str(error.value)


class One(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(1, 6)


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_what_fails_while_it_is_exported_is_raised_and_not_logged_beside(tmp_path: Path) -> None:
    heard, loggers = Heard(), [logging.getLogger(n) for n in ("torch", "torch._guards")]
    levels = [own.level for own in loggers]
    for own in loggers:
        own.addHandler(heard)
    try:
        with pytest.raises(RuntimeError, match=r"torch\.onnx cannot write model\.onnx"):
            writer.write(One().eval(), torch.randn(2, 6), tmp_path / "model.onnx")
    finally:
        for own in loggers:
            own.removeHandler(heard)
    assert heard.records == []
    assert [own.level for own in loggers] == levels


@pytest.mark.parametrize(
    ("model", "shape", "said"),
    [
        (nn.Linear(6, 2), (6,), r"example \(6,\) it raises"),
        (nn.Conv2d(3, 4, 3), (3, 8, 8), r"example \(3, 8, 8\) it raises"),
        (nn.Tanh(), (), r"got an example of rank 0"),
        (Mean(), (5, 6), r"it returns \(6,\), and \(6,\) on the example"),
    ],
)
def test_an_example_without_a_batch_is_refused(
    model: nn.Module, shape: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"{said}.*sample.unsqueeze\(0\)"):
        export(model, torch.zeros(shape), tmp_path / "model.onnx")


def test_an_example_that_does_not_fit_is_refused_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ValueError, match=r"Sequential fails on the example of shape \(2, 5\): "):
        fold(nn.Sequential(nn.Linear(6, 2)), torch.zeros(2, 5))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_names_the_extra_that_brings_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"needs {name}.*pip install .*\[deploy\]'"):
        export(mlp(trelu), torch.zeros(1, 6), tmp_path / "model.onnx")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("act", [trelu, smooth], ids=["TReLU", "smooth"])
def test_a_transposed_convolution_written_as_a_function_is_folded(act, bias: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.act = nn.Conv1d(3, 4, 1), act()
            self.weight = nn.Parameter(torch.randn(4, 3, 3))
            self.bias = nn.Parameter(torch.randn(6)) if bias else None
            self.last = nn.Conv1d(6, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.act(self.linear(x))
            x = F.conv_transpose1d(x, self.weight, self.bias, stride=2, groups=2)
            return self.last(self.act(x))

    x = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    folded_alike(random_biases(Net()), x)

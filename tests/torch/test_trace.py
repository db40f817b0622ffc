"""trace: real networks, written the usual ways, become the graphs that one would draw by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import user_models as models
from skipless.core.activations import Activation, activation_names
from skipless.core.graph import Graph, GraphBuilder, Nonlinearity, Sum
from skipless.core.network import fold, max_curvature
from skipless.core.recognise import PROBE, recognise
from skipless.torch.trace import UnsupportedModelError, read, trace

IMAGE = torch.zeros(2, 3, 32, 32)

# Every activation of core, in the ways in which people write it.
FORMS = {
    "abs": [torch.abs],
    "asinh": [torch.asinh],
    "atan": [torch.atan],
    "bent_identity": [lambda x: (torch.sqrt(x * x + 1) - 1) / 2 + x],
    "celu": [F.celu, nn.CELU(0.7)],
    "cos": [torch.cos],
    "elu": [F.elu, nn.ELU(0.5), lambda x: F.elu_(x)],
    "erf": [torch.erf, torch.special.erf],
    "gaussian": [lambda x: torch.exp(-x * x / 2)],
    "gelu": [F.gelu, nn.GELU(), lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))],
    "gelu_tanh": [lambda x: F.gelu(x, approximate="tanh"), nn.GELU("tanh")],
    "hard_sigmoid": [F.hardsigmoid, nn.Hardsigmoid()],
    "hard_swish": [F.hardswish, nn.Hardswish()],
    "hard_tanh": [F.hardtanh, nn.Hardtanh(), lambda x: x.clamp(-1, 1)],
    "leaky_relu": [F.leaky_relu, nn.LeakyReLU(0.2, inplace=True), nn.PReLU()],
    "log_sigmoid": [F.logsigmoid, nn.LogSigmoid()],
    "mish": [F.mish, nn.Mish(), lambda x: x * torch.tanh(F.softplus(x))],
    "quick_gelu": [lambda x: x * torch.sigmoid(1.702 * x)],
    "relu": [
        *(F.relu, torch.relu, F.relu_, nn.ReLU(inplace=True), nn.ReLU()),
        *(lambda x: x.relu(), lambda x: x.clamp(min=0)),
        lambda x: torch.maximum(x, torch.zeros_like(x)),
    ],
    "relu6": [F.relu6, nn.ReLU6()],
    "relu_squared": [lambda x: F.relu(x) ** 2],
    "selu": [F.selu, nn.SELU()],
    "sigmoid": [torch.sigmoid, nn.Sigmoid(), lambda x: 1 / (1 + torch.exp(-x))],
    "silu": [F.silu, nn.SiLU(), lambda x: x * torch.sigmoid(x), lambda x: x.sigmoid().mul_(x)],
    "sin": [torch.sin],
    "soft_shrink": [F.softshrink, nn.Softshrink(0.3)],
    "softplus": [F.softplus, nn.Softplus(beta=2)],
    "softsign": [F.softsign, nn.Softsign()],
    "square": [torch.square, lambda x: x * x, lambda x: x**2],
    "squareplus": [lambda x: (x + torch.sqrt(x * x + 4)) / 2],
    "tanh": [torch.tanh, nn.Tanh(), lambda x: x.tanh_()],
    "tanh_shrink": [F.tanhshrink, nn.Tanhshrink(), lambda x: x - x.tanh()],
}


class Layer(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(5, 5), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x))


def inside(function) -> nn.Module:
    return nn.Sequential(Layer(function), nn.Linear(5, 5))


def test_every_activation_has_its_forms() -> None:
    assert {*FORMS, "identity"} == set(activation_names())


@pytest.mark.parametrize("name", sorted(FORMS))
def test_an_activation_is_recognised_however_it_is_written(name: str) -> None:
    for function in FORMS[name]:
        assert trace(Layer(function), torch.zeros(2, 5)) == Graph.chain(1)


@pytest.mark.parametrize("name", sorted(FORMS))
def test_the_recognised_activation_is_the_right_one(name: str) -> None:
    for function in FORMS[name]:
        if isinstance(function, nn.Module):
            function = function.double()
        found = recognise(function(torch.tensor(PROBE)).detach().numpy())
        assert found is not None
        assert isinstance(found.phi, Activation)
        assert found.scale == 1.0
        same = {"celu": ("celu", "elu")}  # at their default parameters
        assert found.phi.name.startswith(same.get(name, name))


def test_a_multiple_of_an_activation_is_one_activation_and_a_factor() -> None:
    graph = trace(Layer(lambda x: 1.5 * F.relu(x) / 3), torch.zeros(2, 5))
    assert [type(n).__name__ for n in graph.nodes] == ["Input", "Affine", "Nonlinearity", "Sum"]
    assert isinstance(graph.nodes[-1], Sum)
    assert graph.nodes[-1].weights == pytest.approx((0.5,))


def test_an_input_may_be_standardised_and_slopes_may_be_many_if_they_are_equal() -> None:
    class Standardised(nn.Module):
        mean: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.rand(5))
            self.layer, self.scale = Layer(nn.PReLU(5)), nn.Parameter(torch.full((5,), 0.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer((x.float() - self.mean) / 0.3)

    assert trace(Standardised(), torch.zeros(2, 5)) == Graph.chain(1)


def test_two_activations_in_a_row_are_two() -> None:
    assert trace(Layer(lambda x: torch.tanh(F.relu(x))), torch.zeros(2, 5)).depth == 2


@pytest.mark.parametrize("depth", [1, 5])
def test_an_mlp_is_a_chain(depth: int) -> None:
    layers = [m for _ in range(depth) for m in (nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.1))]
    assert trace(nn.Sequential(*layers), torch.zeros(2, 4)) == Graph.chain(depth)


def test_a_rescaled_pre_activation_resnet_is_the_one_of_the_paper() -> None:
    graph = trace(models.PreActivation(), IMAGE)
    expected = Graph.residual(2, branch_depth=2, shortcut_weight=0.8)
    for r, x in ((lambda k: 1 + k, 0.0), (lambda c: (c + 1) / 2, 0.1), (lambda s: 2 * s, 1.0)):
        assert fold(graph, r, x) == pytest.approx(fold(expected, r, x), rel=1e-6)
    assert graph.activations == expected.activations


def test_a_resnet_50_has_its_49_activations_and_53_normalisations() -> None:
    reading = read(models.ResNet(models.Bottleneck, (3, 4, 6, 3)), IMAGE)
    graph, notes = reading.graph, reading.notes
    assert (graph.activations, graph.depth, len(notes.norms)) == (49, 49, 53)
    assert len(notes.approximate) == 1
    assert notes.approximate[0].startswith("max_pool2d at maxpool (user_models.py:")
    sums = [n for n in graph.nodes if isinstance(n, Sum)]
    assert len(sums) == 16
    assert all(n.weights == (1.0, 1.0) for n in sums)


def test_poolings_that_count_padded_zeros_are_approximate() -> None:
    for pool, zeros in (
        (nn.AvgPool2d(3, 2, padding=1), True),
        (nn.AvgPool2d(3, 2, 1, count_include_pad=False), False),
        (nn.AvgPool2d(2), False),
    ):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), pool, nn.Conv2d(8, 8, 1))
        assert (
            read(model, IMAGE).notes.approximate
            == ["avg_pool2d of padded zeros at AvgPool2d 2"] * zeros
        )


def test_a_resnet_18_is_the_graph_drawn_by_hand() -> None:
    graph = trace(models.ResNet(models.BasicBlock, (2, 2, 2, 2)), IMAGE)
    b = GraphBuilder()
    x = b.activation(b.affine(b.input()))
    for stage in range(4):
        for block in range(2):
            branch = b.affine(b.activation(b.affine(x)))
            shortcut = b.affine(x) if stage > 0 and block == 0 else x
            x = b.activation(b.sum([branch, shortcut]))
    b.affine(x)
    expected = b.build()
    assert graph.activations == expected.activations
    assert max_curvature(graph, 1.0) == pytest.approx(max_curvature(expected, 1.0))
    assert fold(graph, lambda c: (1 + c) / 2, 0.0) == fold(expected, lambda c: (1 + c) / 2, 0.0)


def test_a_dense_net_concatenates_by_channels() -> None:
    b = GraphBuilder()
    features = [b.affine(b.input())]
    widths = [8.0]
    for _ in range(3):
        features.append(b.affine(b.activation(b.concat(features, widths))))
        widths.append(4.0)
    b.affine(b.concat(features, widths))
    expected = b.build()
    graph = trace(models.DenseNet(), IMAGE)
    assert graph == expected


def test_a_u_net_joins_its_skip_and_the_branch_from_below() -> None:
    for size in (8, 9):  # the second takes the branch that pads
        graph = trace(models.UNet(), torch.zeros(1, 3, size, size))
        assert (graph.activations, graph.depth) == (3, 3)


@pytest.mark.parametrize(
    ("build", "example", "depth"),
    [
        (models.vgg, torch.zeros(2, 3, 8, 8), 3),
        (models.conv1d, torch.zeros(2, 2, 32), 2),
        (models.depthwise, torch.zeros(2, 3, 8, 8), 2),
    ],
)
def test_convolutional_chains_are_chains(build, example, depth) -> None:
    graph = trace(build(), example)
    assert (graph.activations, graph.depth) == (depth, depth)
    assert not any(isinstance(n, Sum) for n in graph.nodes)


def test_every_node_knows_where_it_came_from() -> None:
    graph = trace(models.ResNet(models.BasicBlock, (1, 1, 1, 1)), IMAGE)
    acts = [n.origin for n in graph.nodes if isinstance(n, Nonlinearity)]
    assert acts[1].startswith("stages.0.0.relu (user_models.py:")
    assert all("user_models.py:" in origin for origin in acts)


def test_the_model_is_left_as_it_was() -> None:
    model = models.ResNet(models.BasicBlock, (1, 1, 1, 1)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    trace(model, IMAGE)
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_writing_in_place_changes_what_later_lines_read() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            F.relu_(y)  # y itself is rectified now
            return self.b(y)

    graph = trace(InPlace(), torch.zeros(1, 4))
    assert graph.depth == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda h: h.view(-1, 5).relu_(),
        lambda h: h[:, :3].relu_(),
        lambda h: h.t().mul_(2.0),
    ],
)
def test_writing_into_a_view_of_what_is_read_later_is_refused(write) -> None:
    def function(h: torch.Tensor) -> torch.Tensor:
        write(h)
        return torch.tanh(h)

    with pytest.raises(UnsupportedModelError, match="in place, and what it changes is read later"):
        trace(Layer(function), torch.zeros(2, 5))


@pytest.mark.parametrize("example", [None, (2, 5), [], {"x": None}])
def test_an_example_has_a_tensor(example) -> None:
    with pytest.raises(TypeError, match=r"\(nn\.Module, Tensor\), got \(Linear, "):
        trace(nn.Linear(5, 5), example)


def test_a_model_that_cannot_be_recorded_gives_one_error_and_no_log(capfd) -> None:
    with pytest.raises(UnsupportedModelError, match=r"mat1 and mat2|size|shape"):
        trace(nn.Sequential(nn.Linear(3, 3)), torch.zeros(1, 5))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (models.Attention(), torch.zeros(1, 4, 8), r"^attend \(user_models\.py:\d+\) computes"),
        (
            inside(lambda x: x * x.roll(1, 1)),
            torch.zeros(1, 5),
            r"py:\d+\) combines two branches by",
        ),
        (
            models.Recurrent(nn.LSTM(8, 8)),
            torch.zeros(1, 4, 8),
            r"^cell .*lstm in a recurrent cell",
        ),
        (
            models.Recurrent(nn.GRUCell(8, 8)),
            torch.zeros(1, 8),
            r"^cell .*computes gru_cell in a recurrent cell",
        ),
        (
            inside(lambda x: torch.softmax(x, -1)),
            torch.zeros(1, 5),
            "softmax inside the network, as attention does, which has no Q and C maps",
        ),
        (inside(lambda x: torch.tan(x)), torch.zeros(1, 5), "computes tan, which has no"),
        (inside(lambda x: x + torch.arange(5)), torch.zeros(1, 5), "none of the known activations"),
        (inside(lambda x: x * x.mean(1, keepdim=True).sigmoid()), torch.zeros(1, 5), "by mul"),
        (
            inside(lambda x: x + x.mean(1, keepdim=True)),
            torch.zeros(1, 5),
            "rearrangement of itself",
        ),
        (Layer(lambda x: F.glu(torch.cat([x, x], 1))), torch.zeros(1, 5), "branches by mul"),
        (
            Layer(lambda x: x if x.sum() > 0 else -x),
            torch.zeros(1, 5),
            "torch.export failed on Layer",
        ),
        (
            nn.Linear(3, 3),
            torch.zeros(1, 5),
            r"torch\.export failed on Linear with input shape \(1, 5\): ",
        ),
    ],
)
def test_what_the_theory_does_not_cover_is_refused_by_name(model, example, message) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        trace(model, example, strict=True)


def test_an_output_without_the_signal_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"returns 2 tensors, 1 of which depend"):
        trace(Layer(lambda x: (x, torch.ones(3))), torch.zeros(1, 5))


def after(function, *last: nn.Module) -> nn.Module:
    """A network of one activation, with `function` of the results of its last layers."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(5, 5), nn.ModuleList(last or [nn.Linear(5, 4)])

        def forward(self, x: torch.Tensor):
            x = torch.relu(self.first(x))
            return function(*(layer(x) for layer in self.last))

    return Network()


@pytest.mark.parametrize(
    "function",
    [
        lambda y: torch.softmax(y, 1),
        lambda y: F.log_softmax(y, dim=1).view(-1, 2, 2),
        torch.sigmoid,
        lambda y: torch.sigmoid(y)[:, 0],
        lambda y: 2.0 * torch.tanh(y),
        lambda y: y * torch.arange(4) + 3.0,
        lambda y: torch.exp(y.clamp(-20.0, 2.0)),
        lambda y: F.normalize(y, dim=1),
        lambda y: y - y.mean(1, keepdim=True),
        lambda y: (torch.softmax(y, 1), y),
        lambda y: {"best": y.max(1)[0], "which": y.argmax(1)},
    ],
)
def test_a_network_ends_before_what_makes_the_form_of_its_outputs(function) -> None:
    graph = trace(after(function), torch.zeros(2, 5))
    assert graph == trace(after(lambda y: y), torch.zeros(2, 5))


def test_heads_stand_side_by_side_where_more_than_a_sum_is_made_of_them() -> None:
    heads = (nn.Linear(5, 1), nn.Linear(5, 3))
    for function in (
        lambda v, a: v + a - a.mean(1, keepdim=True),
        lambda v, a: v + (a - a.max(1, keepdim=True)[0]),
        lambda v, a: (torch.softmax(a, 1), v),
    ):
        graph = trace(after(function, *heads), torch.zeros(2, 5))
        kinds = [type(node).__name__ for node in graph.nodes]
        assert kinds == ["Input", "Affine", "Nonlinearity", "Affine", "Affine", "Concat"]


def test_an_activation_that_the_network_has_elsewhere_belongs_to_it_at_the_end() -> None:
    for end, depth in ((nn.ReLU(), 3), (nn.Tanh(), 2), (nn.GELU(), 3)):
        layers = (nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5), end)
        assert trace(nn.Sequential(*layers), torch.zeros(2, 5)).depth == depth
    tanh = (nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh())
    assert trace(nn.Sequential(*tanh), torch.zeros(2, 5)) == Graph.chain(2)


def test_a_factor_of_a_shortcut_from_the_input_is_kept_wherever_it_goes() -> None:
    class Shortcut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
            self.drop = nn.Dropout(0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(0.6 * x) + 0.8 * self.second(torch.tanh(self.first(x)))

    graph = trace(Shortcut(), torch.zeros(2, 8))
    weights = [node.weights for node in graph.nodes if isinstance(node, Sum)]
    assert sorted(weights) == [(0.6,), (1.0, 0.8)]


class Head(nn.Module):
    def __init__(self, pool, first: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.pool = first or nn.Conv2d(3, 8, 3, padding=1), pool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(torch.relu(self.first(x)))


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: nn.AdaptiveAvgPool2d(1)(x).flatten(1),
        lambda x: x.mean((2, 3)),
        lambda x: x.mean([-2, -1], keepdim=True),
        lambda x: x.mean(2).mean(2),
        lambda x: x.flatten(2).mean(2),
        lambda x: x.flatten(2).mean(-1),
        lambda x: x.flatten(2).transpose(1, 2).mean(1),
        lambda x: x.permute(0, 2, 3, 1).mean((1, 2)),
        lambda x: x[:, :, 0].mean(2),
        lambda x: F.avg_pool2d(x, 32)[..., 0, 0],
        lambda x: F.max_pool1d(x.flatten(2), 4),
        lambda x: F.adaptive_max_pool2d(x, 1),
        lambda x: x.amax((2, 3)),
        lambda x: x.flatten(2).max(2)[0],
        lambda x: F.channel_shuffle(x, 2).mean((2, 3)),
        lambda x: x.unflatten(1, (2, 4)).transpose(1, 2).reshape(2, 8, -1).mean(2),
    ],
)
def test_locations_may_be_pooled_however_it_is_written(pool) -> None:
    assert trace(Head(pool), IMAGE) == Graph.chain(1)


def test_tokens_and_what_an_mlp_reads_may_be_pooled() -> None:
    tokens = torch.zeros(2, 7, 5)
    assert trace(Head(lambda x: x.mean(1), nn.Linear(5, 5)), tokens) == Graph.chain(1)
    shrunk = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(3 * 16 * 16, 4), nn.ReLU())
    assert trace(shrunk, IMAGE) == Graph.chain(1)
    series = nn.Sequential(nn.AvgPool1d(2), nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 4, 2), nn.ReLU())
    assert trace(series, torch.zeros(2, 16)) == Graph.chain(1)
    weights = torch.ones(4, 3)
    assert trace(Head(lambda x: (weights @ x).mean(2), nn.Conv1d(3, 3, 1)), torch.zeros(2, 3, 9))


@pytest.mark.parametrize(
    ("pool", "name"),
    [
        (lambda x: x.mean(1), "mean"),
        (lambda x: x.mean(-3, keepdim=True), "mean"),
        (lambda x: x.mean(), "mean"),
        (lambda x: x.flatten(1).mean(1), "mean"),
        (lambda x: x.permute(0, 2, 3, 1).mean(-1), "mean"),
        (lambda x: x.unflatten(1, (2, 4)).mean(2), "mean"),
        (lambda x: torch.cat([x.unsqueeze(1), F.relu(-x).unsqueeze(1)], 1).mean(1), "mean"),
        (lambda x: F.pixel_shuffle(x, 2).mean((2, 3)), "mean"),
        (lambda x: F.avg_pool2d(F.pixel_shuffle(x, 2), (1, 2)), "avg_pool2d"),
        (lambda x: F.avg_pool2d(F.pixel_shuffle(x, 2), (2, 1)), "avg_pool2d"),
        (lambda x: F.max_pool1d(x.flatten(2).transpose(1, 2), 2), "max_pool1d"),
        (lambda x: x.amax(1), "amax"),
        (lambda x: x.max(1)[0], "max"),
        (lambda x: F.max_pool3d(x, (2, 1, 1)), "max_pool3d"),
        (lambda x: F.adaptive_avg_pool1d(x.mean((2, 3)), 4), "adaptive_avg_pool1d"),
    ],
)
def test_pooling_of_channels_or_branches_is_refused(pool, name) -> None:
    says = rf"test_trace\.py:\d+\) computes {name} over channels or branches, as maxout does"
    with pytest.raises(UnsupportedModelError, match=says):
        trace(Head(pool), IMAGE, strict=True)


def test_features_and_inputs_are_channels_too() -> None:
    over_features = Head(lambda x: x.mean(-1), nn.Linear(5, 5))
    for example in (torch.zeros(2, 5), torch.zeros(2, 7, 5)):
        with pytest.raises(UnsupportedModelError, match="mean over channels"):
            trace(over_features, example, strict=True)
    grey = nn.Sequential(nn.AvgPool3d((3, 1, 1)), nn.Conv2d(1, 4, 3))
    with pytest.raises(UnsupportedModelError, match="avg_pool3d over channels"):
        trace(grey, IMAGE, strict=True)


def test_the_mean_of_a_single_channel_is_itself() -> None:
    assert trace(Head(lambda x: x.mean(1), nn.Conv2d(3, 1, 3)), IMAGE) == Graph.chain(1)
    assert trace(Head(lambda x: x.mean(-1), nn.Linear(5, 1)), torch.zeros(2, 5)) == Graph.chain(1)


def test_locations_of_a_single_image_without_a_batch_may_be_pooled() -> None:
    assert trace(Head(lambda x: x.mean((1, 2))), IMAGE[0]) == Graph.chain(1)
    signal = nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(0))
    assert trace(signal, torch.zeros(3, 20)) == Graph.chain(1)
    with pytest.raises(UnsupportedModelError, match="mean over channels"):
        trace(Head(lambda x: x.mean(0)), IMAGE[0], strict=True)


def test_a_sum_over_places_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"computes sum, .* Sum over places by their"):
        trace(Head(lambda x: x.sum(1)), IMAGE, strict=True)


@pytest.mark.parametrize(
    "pad",
    [
        lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)),
        lambda x: F.pad(x, (0, 0, 0, 0, 0, 8)),
        lambda x: F.pad(x.permute(0, 2, 3, 1), (0, 4)),
        lambda x: F.pad(x.mean((2, 3)), (0, 4), value=1.0),
        lambda x: nn.ConstantPad3d((0, 0, 0, 0, 4, 4), 0.0)(x),
    ],
)
def test_channels_that_are_filled_up_are_refused(pad) -> None:
    with pytest.raises(UnsupportedModelError, match=r"test_trace.*fills up channels by .*pad.*1x1"):
        trace(Head(pad), IMAGE, strict=True)


@pytest.mark.parametrize(
    "pad",
    [
        lambda x: F.pad(x, (1, 1, 1, 1)),
        lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
        lambda x: F.pad(x, (0, 1, 0, 1, 0, 0)),
        lambda x: F.pad(x, (0, 0, 0, 0, -2, -2)),
        lambda x: F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1)),
        lambda x: F.pad(F.pixel_shuffle(x, 2), (1, 1, 1, 1)),
        lambda x: F.pad(F.pixel_shuffle(x, 2), (1, 1, 1, 1), mode="reflect"),
        lambda x: F.pad(x.mean((2, 3)).view(2, 2, 2, 2), (1, 1, 1, 1)),
    ],
)
def test_locations_may_be_padded_and_channels_left_out(pad) -> None:
    assert trace(Head(pad), IMAGE) == Graph.chain(1)

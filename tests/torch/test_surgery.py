"""A converted model stays the user's: its class, methods, blocks; and computes what was written."""

import copy
import io
import pickle
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from skipless import EOC, TAT
from skipless.torch import ConvertedModel, ShapedActivation, convert
from skipless.torch.replay import replay, same_function

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """As many people write them, with a function and a module that is called in place."""

    def __init__(self, width: int, new: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, new, 3, padding=1, bias=False), nn.BatchNorm2d(new)
        self.conv2, self.bn2 = nn.Conv2d(new, new, 3, padding=1, bias=False), nn.BatchNorm2d(new)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Conv2d(width, new, 1) if width != new else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


class Net(nn.Module):
    """A network with the methods and attributes that timm's have."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn, self.act = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.layer1 = nn.Sequential(Block(4, 4), Block(4, 4))
        self.layer2 = nn.Sequential(Block(4, 6), Block(6, 6))
        self.fc = nn.Linear(6, 10)
        self.default_cfg = {"input_size": (3, 8, 8)}

    def reset_classifier(self, classes: int) -> None:
        self.fc = nn.Linear(self.fc.in_features, classes)

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.act(self.bn(self.stem(x))))
        return self.layer2(self.layer1(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.forward_features(x).mean((2, 3)))


class Chained(nn.Module):
    """Nothing but modules: no block has to be written out."""

    def __init__(self) -> None:
        super().__init__()
        layers = [
            m
            for _ in range(3)
            for m in (nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.SiLU())
        ]
        self.features, self.head = nn.Sequential(*layers), nn.Linear(3 * 64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).reshape(x.shape[0], -1))


class Functional(nn.Module):
    """Its own forward computes an activation, so that it has to be written out."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.fc = Block(3, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(F.relu(self.block(x)).mean((2, 3)))


@pytest.fixture(scope="module")
def shaped() -> Net:
    torch.manual_seed(0)
    return convert(Net(), IMAGE, TAT(eta=0.2))  # pyright: ignore[reportReturnType]


def report_of(model: object) -> str:
    assert isinstance(model, nn.Module)
    return model.skipless_report.form  # pyright: ignore


def test_the_class_its_methods_and_attributes_remain(shaped: Net) -> None:
    model = copy.deepcopy(shaped)
    assert type(model) is Net
    assert report_of(model) == (
        "The model is still a Net; written out as graphs: layer1.0 … layer2.1 (4)."
    )
    assert model.default_cfg == {"input_size": (3, 8, 8)}
    features = model.forward_features(IMAGE)
    assert torch.equal(model(IMAGE), model.fc(features.mean((2, 3))))
    model.reset_classifier(5)
    assert model(torch.cat([IMAGE] * 2)).shape == (4, 5)


def test_blocks_can_be_indexed_and_called(shaped: Net) -> None:
    x = torch.randn(1, 4, 5, 5)
    between = shaped.layer1[0](x)
    assert isinstance(shaped.layer1[0].conv1, nn.Conv2d)
    assert torch.equal(shaped.layer1(x), shaped.layer1[1](between))


def test_no_normalisation_or_plain_activation_is_left(shaped: Net) -> None:
    assert not [m for m in shaped.modules() if isinstance(m, nn.BatchNorm2d | nn.ReLU)]
    activations = [m for m in shaped.modules() if isinstance(m, ShapedActivation)]
    assert len(activations) == shaped.skipless_report.graph.activations  # pyright: ignore
    assert isinstance(shaped.bn, nn.Identity)


def test_a_model_of_modules_alone_has_no_graph_in_it() -> None:
    model = convert(Chained(), IMAGE, TAT(tau=0.1), activation="silu")
    assert type(model).__name__ == "Chained"
    assert report_of(model) == "The model is still a Chained."
    assert not [m for m in model.modules() if isinstance(m, fx.GraphModule)]
    assert model(IMAGE[:1]).shape == (1, 2)


def test_a_forward_that_must_change_is_written_out_and_the_report_says_so() -> None:
    model = convert(Functional(), IMAGE, EOC())
    assert isinstance(model, fx.GraphModule)
    assert isinstance(model, ConvertedModel)
    assert report_of(model).startswith("The model is a torch.fx graph")


@pytest.mark.parametrize("weight", [None, 0.0, 0.6])
@pytest.mark.parametrize("build", [Net, Chained])
def test_the_model_computes_what_the_written_graph_does_number_by_number(
    build, weight, monkeypatch
) -> None:
    module = sys.modules[convert.__module__]
    graphs = []

    def noted(written, *rest):
        graphs.append(written.flat.module)  # which shares its layers with the result
        return in_own_class(written, *rest)

    in_own_class = module._in_own_class
    monkeypatch.setattr(module, "_in_own_class", noted)
    torch.manual_seed(0)
    model = convert(build().eval(), IMAGE, EOC(), shortcut_weight=weight)
    assert not isinstance(model, fx.GraphModule)
    assert torch.equal(model(IMAGE), graphs[0](IMAGE))


def test_without_shortcuts_what_only_they_need_is_gone() -> None:
    model = convert(Net(), IMAGE, TAT(eta=0.2), shortcut_weight=0.0)
    assert type(model).__name__ == "Net"
    assert not [name for name, _ in model.named_modules() if name.endswith("down")]


def test_it_survives_copies_pickles_and_files(shaped: Net) -> None:
    expected = shaped(IMAGE)
    file = io.BytesIO()
    torch.save(shaped, file)
    file.seek(0)
    copies = (
        copy.deepcopy(shaped),
        pickle.loads(pickle.dumps(shaped)),
        torch.load(file, weights_only=False),
    )
    for model in copies:
        assert type(model) is Net
        assert torch.equal(model(IMAGE), expected)
        assert str(model.skipless_report) == str(shaped.skipless_report)  # pyright: ignore
    shaped.load_state_dict(copies[0].state_dict())


def test_every_parameter_gets_a_gradient_and_each_sample_its_own(shaped: Net) -> None:
    from torch.func import functional_call, grad, vmap

    model = copy.deepcopy(shaped)
    model(IMAGE).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    weights = {name: p.detach() for name, p in model.named_parameters()}
    loss = lambda w, x: functional_call(model, w, (x[None],)).square().sum()
    each = vmap(grad(loss), in_dims=(None, 0))(weights, IMAGE)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(each[name].sum(0), parameter.grad, atol=1e-5, rtol=1e-4)


def test_it_can_be_exported_compiled_and_cast(shaped: Net) -> None:
    model = copy.deepcopy(shaped).eval()
    expected = model(IMAGE)
    program = torch.export.export(model, (IMAGE,))
    torch.testing.assert_close(program.module()(IMAGE), expected)
    torch.testing.assert_close(torch.compile(model, backend="eager")(IMAGE), expected)
    last = model.to(memory_format=torch.channels_last)  # pyright: ignore
    torch.testing.assert_close(last(IMAGE), expected)
    assert model.bfloat16()(IMAGE.bfloat16()).dtype == torch.bfloat16


def test_two_records_differ_if_one_weight_or_number_does() -> None:
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    x = (torch.zeros(2, 3),)
    first = replay(nn.Sequential(a, nn.ReLU(), b), x)
    assert same_function(first, replay(nn.Sequential(a, nn.ReLU(inplace=True), b), x))
    assert not same_function(first, replay(nn.Sequential(b, nn.ReLU(), a), x))
    assert not same_function(first, replay(nn.Sequential(a, nn.LeakyReLU(0.0), b), x))
    leaky = [nn.Sequential(a, nn.LeakyReLU(slope), b) for slope in (0.1, 0.2)]
    assert not same_function(*(replay(model, x) for model in leaky))


class Same(nn.Conv2d):
    """A convolution that pads as TensorFlow does, by amounts that depend on the size."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows, columns = (max((size - 1) + 2 - size, 0) for size in input.shape[-2:])
        return super().forward(F.pad(input, (0, columns, 0, rows)))


class Splits(nn.Module):
    """A block whose sum changes; what reads sizes is inside a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = Same(2, 2, 2), Same(2, 2, 2), Same(4, 4, 2)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = torch.split(x, 2, dim=1)
        both = torch.cat([self.left(left), self.right(right)], dim=1)
        return self.act(x + self.last(both))


class Views(nn.Module):
    """A block whose sum changes, and that is given a size that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(64, 64), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x + self.layer(x.reshape(x.shape[0], -1)).view(x.shape))


def test_blocks_that_need_no_sizes_are_exported_once_and_take_any(monkeypatch) -> None:
    calls = []
    export = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *a, **k: calls.append(k) or export(*a, **k))
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), Splits(), nn.Conv2d(4, 4, 1), nn.ReLU())
    model = convert(net, IMAGE, EOC())
    assert report_of(model) == "The model is still a Sequential; written out as graphs: 2."
    assert len(calls) == 1
    assert model(torch.randn(3, 3, 5, 6)).shape == (3, 4, 5, 6)


def test_a_block_that_is_given_the_size_of_the_example_stays_open() -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), Views(), nn.Linear(64, 2))
    model = convert(net, torch.randn(2, 64), EOC())
    assert model(torch.randn(5, 64)).shape == (5, 2)

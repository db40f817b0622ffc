"""What create_model returns in each form, and what it refuses."""

import copy
import io
import math
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from skipless import DKS, EOC, TAT, ClampedTargetWarning, UnreachableTargetError
from skipless.models import create_model, list_models
from skipless.models.create import _graph
from skipless.models.networks import Norm
from skipless.torch import ShapedActivation, TReLU

SMALL: dict[str, Any] = {"num_classes": 4, "in_chans": 2, "img_size": 8}
# PReLU needs no solution, so that deep networks are not traced for it.
FORMS: dict[str, dict[str, Any]] = {
    "standard": {},
    "rescaled": {"shortcut_weight": 0.8, "activation": "prelu"},
    "vanilla": {"shortcut_weight": 0.0, "activation": "prelu"},
    "batch": {"shortcut_weight": 0.0, "norm": "batch"},
    "layer": {"shortcut_weight": 0.0, "norm": "layer"},
}
FAMILIES = ("mlp20", "resnet18", "resnet50", "wide_resnet16")


def thin(name: str) -> float:
    return 8 if name.startswith("mlp") else 1 / 32 if name.startswith("resnet") else 1 / 8


def kinds(model: nn.Module) -> set[str]:
    return {type(m).__name__ for m in model.modules()}


@pytest.mark.parametrize(
    ("name", "form"),
    [(name, "standard") for name in list_models()]
    + [(name, form) for name in FAMILIES for form in FORMS if form != "standard"],
)
def test_every_network_runs_and_every_family_does_in_every_form(name: str, form: str) -> None:
    options = dict(FORMS[form])
    if name.startswith("mlp"):
        options.pop("shortcut_weight", None)
        options |= {"activation": "prelu"} if form == "standard" else {}
    model = create_model(name, **SMALL, **options, width=thin(name))
    y = model(torch.randn(2, 2, 8, 8))
    assert y.shape == (2, 4)
    assert y.isfinite().all()


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
@pytest.mark.parametrize("size", [1, 8, 33])
def test_small_images_survive_all_strides_behind_either_stem(stem, size: int) -> None:
    model = create_model("resnet50", width=1 / 32, stem=stem, num_classes=4).eval()
    assert model(torch.randn(2, 3, size, size)).shape == (2, 4)


def test_small_images_get_the_stem_that_keeps_their_size() -> None:
    def side(name: str = "resnet18", **options: Any) -> int:
        """What the stem leaves of an image of 64 locations a side."""
        stem = create_model(name, width=1 / 32, **options).get_submodule("stem")
        return stem(torch.zeros(1, 3, 64, 64)).shape[-1]

    assert side() == side(img_size=65) == side(stem="imagenet", img_size=(8, 8)) == 16
    assert side(img_size=64) == side(stem="cifar") == 64
    assert side("wide_resnet16") == side("wide_resnet16", img_size=224) == 64


def test_an_mlp_flattens_its_input_and_has_as_many_layers_as_its_depth() -> None:
    options: dict[str, Any] = {"in_chans": 2, "img_size": (4, 5), "num_classes": 3, "width": 7}
    count = lambda model: sum(p.numel() for p in model.parameters())
    layers, logits, each = 40 * 7 + 7 * 7 + 7 * 7, 7 * 3 + 3, 3 * 7
    plain = create_model("mlp:3", **options, activation="prelu")
    assert count(plain) == layers + each + each + logits  # biases and slopes
    norms: dict[Norm, str] = {"batch": "BatchNorm1d", "layer": "LayerNorm"}
    for norm, kind in norms.items():
        model = create_model("mlp:3", **options, norm=norm)
        biases = 0 if norm == "batch" else each
        assert count(model) == layers + biases + 2 * each + logits
        assert kind in kinds(model)
    assert plain(torch.zeros(6, 2, 4, 5)).shape == (6, 3)


def test_the_usual_activation_is_that_of_the_form_and_of_the_method() -> None:
    wide = lambda **options: create_model("wide_resnet16", **SMALL, width=0.5, **options)
    assert {"ReLU", "BatchNorm2d"} < kinds(wide())
    assert {"ReLU", "GroupNorm"} < kinds(wide(norm="layer"))
    vanilla = wide(shortcut_weight=0.0)
    assert "TReLU" in kinds(vanilla)
    assert not {"BatchNorm2d", "GroupNorm", "ReLU"} & kinds(vanilla)
    for method, name in ((DKS(), "softplus"), (EOC(), "relu")):
        model = wide(shortcut_weight=0.0, method=method)
        shaped = [m for m in model.modules() if isinstance(m, ShapedActivation)]
        assert {m.name for m in shaped} == {name}
        assert model.shaping is not None
        assert model.shaping.method == method


def test_without_a_method_tat_is_taken_and_its_account_kept() -> None:
    model = create_model("wide_resnet16", **SMALL, width=0.5, shortcut_weight=0.0)
    assert model.shaping is not None
    assert model.shaping.method == TAT()
    slope, c = model.shaping.solution.negative_slope, 0.0
    assert slope is not None
    kappa = (1 - slope) ** 2 / (1 + slope**2)
    for _ in range(13):  # lemma 1 of the paper, as many times as there are activations
        c += kappa / math.pi * (math.sqrt(1 - c * c) - c * math.acos(c))
    assert c == pytest.approx(0.9, abs=1e-9)
    slopes = {m.constants["negative_slope"] for m in model.modules() if isinstance(m, TReLU)}
    assert slopes == {slope}
    assert create_model("resnet18", **SMALL, width=1 / 32).shaping is None


def test_a_target_out_of_reach_is_refused_unless_clamped() -> None:
    make = lambda **options: create_model("mlp12", **SMALL, width=8, **options)
    with pytest.raises(UnreachableTargetError, match="clamp=True"):
        make(method=TAT(eta=0.9))
    with pytest.warns(UserWarning, match="nearest reachable target.* activations are plain ReLU"):
        model = make(method=TAT(eta=0.9), clamp=True)
    assert model.shaping is not None
    assert model.shaping.solution.negative_slope == pytest.approx(0.0, abs=1e-12)


def test_the_eta_of_the_papers_grid_that_shortcuts_put_out_of_reach_is_not_taken_silently() -> None:
    """With w = 0.8, plain ReLU reaches 0.9398 at depth 50, and more at depth 101 (erratum 4)."""
    given: dict[str, Any] = {"shortcut_weight": 0.8, "width": 1 / 32, "method": TAT(eta=0.95)}
    with pytest.raises(UnreachableTargetError, match=r"plain ReLU, .* has 0\.940"):
        create_model("resnet50", **SMALL, **given)
    with pytest.warns(ClampedTargetWarning, match="using 0.939821, .* activations are plain ReLU"):
        clamped = create_model("resnet50", **SMALL, **given, clamp=True).shaping
    assert clamped is not None
    assert clamped.solution.negative_slope == 0.0
    deep = create_model("resnet101", **SMALL, **given).shaping
    assert deep is not None
    assert deep.solution.targets["mu0"] == 0.95


@pytest.mark.parametrize("slope", [0.0, 0.25])
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_prelu_has_slopes_to_train_and_the_weights_of_he(slope: float, norm) -> None:
    options: dict[str, Any] = {"shortcut_weight": 0.0, "norm": norm, "num_classes": 8}
    model = create_model("wide_resnet16", activation="prelu", negative_slope=slope, **options)
    rectifiers = [m for m in model.modules() if isinstance(m, nn.PReLU)]
    assert len(rectifiers) == 13
    assert [m.num_parameters for m in rectifiers][-1] == 128  # one for each channel
    assert all((m.weight == slope).all() and m.weight.requires_grad for m in rectifiers)
    gram = model.fc.weight @ model.fc.weight.T
    assert torch.allclose(gram, 2 / (1 + slope**2) * torch.eye(8), atol=1e-5)
    assert model.shaping is None


def test_weights_of_normalised_networks_are_orthogonal_delta_ones_scaled_by_root_2() -> None:
    model = create_model("wide_resnet16", num_classes=10)
    weight = model.get_parameter("stages.2.1.branch.conv2.weight")
    centre = weight[:, :, 1, 1]
    assert torch.allclose(centre @ centre.T, 2.0 * torch.eye(128), atol=1e-5)
    assert weight.count_nonzero() == centre.count_nonzero()
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {m.momentum for m in norms} == {0.1}
    assert all((m.running_var == 1.0).all() and (m.weight == 1.0).all() for m in norms)


@pytest.mark.parametrize("name", ["resnet18", "mlp:8"])
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_layers_have_biases_where_normalisation_does_not_undo_them(name: str, norm: Norm) -> None:
    weight = 0.0 if name == "resnet18" else None
    model = create_model(name, **SMALL, width=thin(name), shortcut_weight=weight, norm=norm)
    images = torch.randn(16, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)][:-1]
    before = model(images)
    for layer in layers:
        assert (layer.bias is None) == (norm == "batch")
        shift = torch.linspace(-1.0, 1.0, len(layer.weight))
        if layer.bias is not None:
            assert not layer.bias.any()
            layer.bias.data += shift
        else:
            shift = shift.view(-1, *(1,) * (layer.weight.ndim - 2))
            layer.register_forward_hook(lambda *own, b=shift: own[-1] + b)
    assert torch.allclose(model(images), before, atol=1e-3) == (norm == "batch")


def test_other_activations_of_normalised_networks_keep_q_too() -> None:
    make = lambda **options: create_model("mlp1", norm="layer", img_size=8, width=64, **options)
    tanh = make(activation="tanh", num_classes=16)
    z = torch.randn(10**6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = 1.0 / z.tanh().square().mean().item()
    found = (tanh.fc.weight @ tanh.fc.weight.T).diagonal()
    assert torch.allclose(found, torch.full((16,), expected), rtol=5e-3)
    leaky = make(activation="leaky_relu", negative_slope=0.5)
    phi = leaky.get_submodule("layers.0.activation")
    assert phi(torch.tensor([-2.0, 2.0])).tolist() == [-1.0, 2.0]


def test_gaussian_weights_fill_the_centre_of_kernels() -> None:
    options: dict[str, Any] = {"shortcut_weight": 0.0, "method": EOC(), "num_classes": 10}
    model = create_model("wide_resnet16", **options, distribution="gaussian")
    weight = model.get_parameter("stages.2.1.branch.conv2.weight")
    centre = weight[:, :, 1, 1]
    assert weight.count_nonzero() == centre.count_nonzero()
    assert not torch.allclose(centre @ centre.T, 2.0 * torch.eye(128), atol=0.1)
    # A mean of 128² squares has a standard error of √2 / 128 = 1.1 %.
    assert 128 * centre.square().mean().item() == pytest.approx(2.0, rel=0.045)


def test_biases_are_drawn_as_the_method_asks() -> None:
    method = EOC(sigma_b=0.2)
    model = create_model("mlp20", img_size=8, method=method, activation="tanh")
    # A standard deviation of 1000 numbers has a standard error of 1 / √2000 = 2.2 %.
    assert model.fc.bias.std().item() == pytest.approx(0.2, rel=0.09)
    without = create_model("mlp20", img_size=8, width=8)
    assert not any(p.any() for n, p in without.named_parameters() if n.endswith("bias"))


def test_one_generator_gives_one_network_whatever_was_traced_before() -> None:
    make = lambda: create_model("mlp20", **SMALL, width=8, generator=torch.Generator())
    _graph.cache_clear()
    state = torch.get_rng_state()
    first, second = make().state_dict(), make().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), state)
    _graph.cache_clear()
    weights = []
    for _ in range(2):  # without and with a graph at hand
        torch.manual_seed(3)
        weights.append(create_model("mlp20", **SMALL, width=8).fc.weight)
    assert torch.equal(*weights)


def test_copies_and_pickles_keep_the_account_and_state_dicts_do_not_have_it() -> None:
    model = create_model("mlp20", **SMALL, width=8)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    x = torch.randn(2, 2, 8, 8)
    copies = (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(stored, weights_only=False),
    )
    for other in copies:
        assert other.shaping == model.shaping
        assert other.shaping is not None
        assert torch.equal(other(x), model(x))
    assert not any("shaping" in name for name in model.state_dict())
    fresh = create_model("mlp20", **SMALL, width=8)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(x), model(x))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp20", {"width": 8}),
        ("resnet18", {"width": 0.25, "activation": "softplus"}),
        ("wide_resnet16", {"width": 0.25, "activation": "softplus"}),
    ],
)
def test_dropout_acts_on_what_the_logits_read(name: str, options: dict[str, Any]) -> None:
    model = create_model(name, **SMALL, **options, drop_rate=0.3)
    read: list[torch.Tensor] = []
    model.fc.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    x = torch.randn(64, 2, 8, 8)
    model.train()(x)
    model.eval()(x)
    dropped, kept = ((y == 0.0).float().mean().item() for y in read)
    error = math.sqrt(0.3 * 0.7 / read[0].numel())
    assert dropped == pytest.approx(0.3, abs=4.0 * error)
    assert kept == 0.0  # none of these activations is ever zero


def test_gradients_reach_every_parameter() -> None:
    for options in ({}, {"shortcut_weight": 0.8, "method": TAT(eta=0.5)}):
        model = create_model("resnet18", **SMALL, width=1 / 4, **options)
        model(torch.randn(4, 2, 8, 8)).square().sum().backward()
        without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert without == []


def test_channels_last_and_bfloat16_compute_the_same() -> None:
    options: dict[str, Any] = {"shortcut_weight": 0.8, "method": TAT(eta=0.5)}
    model = create_model("resnet18", **SMALL, width=1 / 4, **options).eval()
    x = torch.randn(3, 2, 8, 8)
    with torch.no_grad():
        expected = model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = model(x)
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        last = model(x.to(memory_format=torch.channels_last))
    assert half.dtype == torch.bfloat16
    assert torch.allclose(half.float(), expected, atol=0.05 * expected.abs().max().item())
    assert torch.allclose(last, expected, atol=1e-5)


def test_numbers_of_numpy_are_numbers() -> None:
    counts: dict[str, Any] = {"num_classes": np.int64(4), "in_chans": np.uint8(2)}
    sizes: dict[str, Any] = {"img_size": (np.uint8(16), 16), "width": np.float32(8)}
    model = create_model("mlp20", **counts, **sizes, drop_rate=np.float64(0.1))
    assert model(torch.zeros(3, 2, 16, 16)).shape == (3, 4)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "resnet18",
            {"norm": "none"},
            "q grows with every block of resnet18. Give a shortcut_weight",
        ),
        ("resnet18", {"shortcut_weight": 1.5}, "must be in [0, 1), got 1.5"),
        ("resnet18", {"shortcut_weight": math.nan}, "must be in [0, 1), got nan"),
        ("resnet18", {"norm": "group"}, "must be one of none, batch, layer, got 'group'"),
        ("resnet18", {"stem": "mnist"}, "stem must be one of imagenet, cifar, got 'mnist'"),
        ("resnet18", {"method": TAT()}, "TAT cannot shape a network with ordinary sums"),
        (
            "resnet18",
            {"shortcut_weight": 0.0, "norm": "batch", "method": DKS()},
            "DKS cannot shape a network with batch normalisation",
        ),
        ("resnet18", {"width": 0.001}, "at least 1 and at most 16777216 must res"),
        ("resnet18", {"width": math.nan}, "must result, got nan"),
        ("resnet18", {"width": 1e7}, "must result, got 10000000.0"),
        (
            "resnet18",
            {"norm": "batch", "method": TAT()},
            "(0 for none) with norm='none' or 'layer'",
        ),
        ("resnet18", {"num_classes": 0}, "num_classes must be >= 1, got 0"),
        ("resnet18", {"drop_rate": 1.0}, "drop_rate must be in [0, 1), got 1"),
        ("resnet18", {"img_size": 0}, "a positive height and width"),
        ("resnet18", {"activation": "rulu"}, "rulu"),
        ("resnet18", {"activation": "PReLU"}, "Did you mean 'prelu'?"),
        ("resnet18", {"method": "tat"}, "method must be a method, such as TAT(eta=0.9), got 'tat'"),
        ("resnet18", {"method": TAT}, "must be a method, such as TAT(eta=0.9), got <class"),
        ("resnet18", {"activation": "prelu", "method": "tat"}, "such as TAT(eta=0.9), got"),
        ("resnet18", {"num_classes": 2.5}, "num_classes must be an integer, such as 10, got 2.5"),
        ("resnet18", {"num_classes": "10"}, "num_classes must be an integer, such as 10, got '10'"),
        ("resnet18", {"num_classes": None}, "must be an integer, such as 10, got None"),
        ("resnet18", {"in_chans": True}, "in_chans must be an integer, such as 3, got True"),
        (
            "resnet18",
            {"img_size": "32"},
            "img_size must be an integer for both sides, such as 224, or",
        ),
        ("resnet18", {"img_size": (8, 8.5), "stem": "cifar"}, "or a pair, got 8.5"),
        ("resnet18", {"img_size": (8, 8, 8), "stem": "cifar"}, "a positive height and width"),
        (
            "resnet18",
            {"shortcut_weight": "0"},
            "must be a number in [0, 1), such as 0.8, or None, got '0'",
        ),
        (
            "resnet18",
            {"drop_rate": "a"},
            "drop_rate must be a probability below 1, such as 0.2, got 'a'",
        ),
        ("resnet18", {"width": "x"}, "width must be a number, such as 2, or None, got 'x'"),
        ("resnet18", {"negative_slope": "0.1"}, "such as 0.25, or None, got '0.1'"),
        (
            "resnet18",
            {"width": 0.1, "distribution": "uniform"},
            "'orthogonal', 'gaussian' or 'looks_linear'",
        ),
        ("mlp20", {}, "Give the size of the images"),
        (
            "mlp20",
            {"img_size": 8, "shortcut_weight": 0.0},
            "mlp20 has no shortcut_weight: it is a chain",
        ),
        ("mlp20", {"img_size": 8, "stem": "cifar"}, "mlp20 has no stem: it is a chain"),
        ("mlp20", {"img_size": 8, "width": 0.5}, "is its units per layer"),
        ("mlp20", {"img_size": 8, "width": math.nan}, "such as 256, got nan"),
        ("mlp20", {"img_size": 8, "width": math.inf}, "such as 256, got inf"),
        (
            "mlp20",
            {"img_size": 8, "width": 1e12},
            "must be an integer from 1 to 16777216, such as 256",
        ),
        (
            "mlp20",
            {"img_size": 8, "activation": "prelu", "method": TAT()},
            "prelu trains its slopes, so TAT cannot",
        ),
        (
            "mlp20",
            {"img_size": 8, "negative_slope": 0.2},
            "TAT solves for the slope itself, got negative_slope=0.2",
        ),
    ],
)
def test_mistakes_are_named_with_a_remedy(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        create_model(name, **options)


def test_old_names_of_arguments_work_and_warn() -> None:
    old: dict[str, Any] = {"in_channels": 2, "input_size": 8, "dropout": 0.3}
    with pytest.warns(DeprecationWarning, match="is deprecated, use") as caught:
        model = create_model("mlp20", num_classes=4, width=8, **old)
    said = {str(warning.message).rpartition(" ")[2] for warning in caught}
    assert said == {"in_chans", "img_size", "drop_rate"}
    assert model(torch.zeros(3, 2, 8, 8)).shape == (3, 4)
    assert model.dropout.p == 0.3

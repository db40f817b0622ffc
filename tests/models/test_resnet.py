"""The structure of ResNets: their curvature, their parameters, what their forms leave out."""

import math
from typing import Any, get_args

import pytest
import torch
from torch import nn

from skipless import EOC, TAT, Graph
from skipless.core.graph import GraphBuilder
from skipless.core.network import fold, max_curvature
from skipless.models import MLP, ResNet, create_model
from skipless.models.create import resnet_plan, wide_resnet_plan
from skipless.models.networks import Norm, Plan, build_network
from skipless.torch import convert, trace

# He et al. (2015), table 1, and He et al. (2016).
STAGES = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
# torchvision.models, docs: "num_params" of each set of weights.
TORCHVISION = {18: 11689512, 34: 21797672, 50: 25557032, 101: 44549160, 152: 60192808}


def graph_of(name: str, shortcut_weight: float, width: float = 1 / 64) -> Graph:
    """The graph that a network was shaped by, under a method that is within reach at any depth."""
    model = create_model(name, width=width, shortcut_weight=shortcut_weight, method=EOC())
    assert model.shaping is not None
    return model.shaping.graph


@pytest.mark.parametrize(
    ("L", "w"),
    [(50, 0.0), (50, 0.5), (50, 0.95), (101, 0.0), (101, 0.8), (200, 0.8)],
)
def test_curvature_of_bottlenecks_is_that_of_appendix_b5(L: int, w: float) -> None:
    graph = graph_of(f"resnet{L}", w)
    assert sum(STAGES[L]) == (L - 2) / 3
    # B.5 calls L the number of nonlinear layers; that is the depth in the name, with the stem and
    # the logits among the layers that it counts, and L - 1 activations.
    assert graph.activations == graph.depth == L - 1
    expected = (L - 6) * (1 - w * w) + 5
    assert fold(graph, lambda k: 1.0 + k, 0.0) == pytest.approx(expected)
    assert max_curvature(graph, 1.0) == pytest.approx(expected)


@pytest.mark.parametrize(("L", "w"), [(18, 0.0), (18, 0.8), (34, 0.6)])
def test_curvature_of_basic_resnets_has_two_layers_a_block_and_three_projections(
    L: int, w: float
) -> None:
    blocks = sum(STAGES[L])
    plain, transition = 2 * (1 - w * w), w * w + 2 * (1 - w * w)
    expected = (blocks - 3) * plain + 3 * transition + 1
    assert expected == pytest.approx((L - 5) * (1 - w * w) + 4)
    assert max_curvature(graph_of(f"resnet{L}", w), 1.0) == pytest.approx(expected)


@pytest.mark.parametrize(("w", "widening", "projections"), [(0.0, 2, 3), (0.8, 2, 3), (0.8, 1, 2)])
def test_curvature_of_a_wide_resnet_counts_a_projection_only_where_channels_change(
    w: float, widening: int, projections: int
) -> None:
    L, n = 28, 4
    plain, transition = 2 * (1 - w * w), w * w + 2 * (1 - w * w)
    expected = (3 * n - projections) * plain + projections * transition + 1
    if projections == 3:
        assert expected == pytest.approx((L - 7) * (1 - w * w) + 4)
    graph = graph_of("wide_resnet28", w, widening)
    assert max_curvature(graph, 1.0) == pytest.approx(expected)


def test_the_graph_of_a_rescaled_resnet_is_the_one_drawn_by_hand() -> None:
    w = 0.8
    g = GraphBuilder()
    x = g.affine(g.input())
    for stage in range(4):
        for block in range(2):
            pre = g.activation(x)
            branch = g.affine(g.activation(g.affine(pre)))
            shortcut = g.affine(pre) if stage and not block else x
            x = g.sum([shortcut, branch], [w, math.sqrt(1 - w * w)])
    g.affine(g.activation(x))
    # Whichever branch comes first, the number of nodes and both readings are the same.
    found, drawn = graph_of("resnet18", w), g.build()
    assert len(found.nodes) == len(drawn.nodes)
    for c_map in (lambda c: 0.9 * c + 0.1, lambda c: (c + c * c) / 2):
        assert fold(found, c_map, 0.3) == pytest.approx(fold(drawn, c_map, 0.3), abs=1e-14)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {"shortcut_weight": 0.8, "width": 0.125, "stem": "imagenet"}),
        ("wide_resnet16", {"shortcut_weight": 0.5, "width": 1, "norm": "layer"}),
        ("wide_resnet16", {"shortcut_weight": 0.0, "width": 0.5}),
    ],
)
def test_the_network_that_is_returned_has_the_graph_that_it_was_shaped_for(
    name: str, options: dict[str, Any]
) -> None:
    model = create_model(name, **options, method=EOC(), in_chans=2)
    assert model.shaping is not None
    assert trace(model, torch.zeros(2, 2, 16, 16)) == model.shaping.graph


def test_a_standard_resnet_is_converted_to_the_rescaled_one() -> None:
    small: dict[str, Any] = {"width": 0.125, "img_size": 8, "num_classes": 10}
    standard = create_model("resnet18", **small)
    converted = convert(standard, torch.zeros(2, 3, 8, 8), TAT(eta=0.5), shortcut_weight=0.8)
    ours = create_model("resnet18", **small, shortcut_weight=0.8, method=TAT(eta=0.5))
    assert ours.shaping is not None
    expected = converted.skipless_report.solution.negative_slope
    assert ours.shaping.solution.negative_slope == pytest.approx(expected, abs=1e-9)
    count = lambda model: sum(p.numel() for p in model.parameters())
    assert count(ours) == count(converted)


def counted(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def skeleton(plan: Plan, classes: int = 1000) -> ResNet | MLP:
    """A network without memory, which is enough to be counted."""
    with torch.device("meta"):
        return build_network(plan, lambda _: nn.ReLU(), inputs=3, num_classes=classes)


def by_hand(depth: int, vanilla: bool) -> int:
    """Parameters of ResNet V2, layer by layer: without norms if `vanilla`, else without biases."""
    expansion = 4 if depth >= 50 else 1
    total, inputs = 7 * 7 * 3 * 64 + (64 if vanilla else 0), 64
    for stage, blocks in enumerate(STAGES[depth]):
        c = 64 * 2**stage
        for block in range(blocks):
            if depth >= 50:
                convs = inputs * c + 3 * 3 * c * c + c * 4 * c
                biases, normalised = c + c + 4 * c, inputs + c + c
            else:
                convs = 3 * 3 * inputs * c + 3 * 3 * c * c
                biases, normalised = c + c, inputs + c
            total += convs + (biases if vanilla else 2 * normalised)
            if block == 0 and inputs != expansion * c and not vanilla:
                total += inputs * expansion * c
            inputs = expansion * c
    return total + (0 if vanilla else 2 * inputs) + 1000 * inputs + 1000


@pytest.mark.parametrize("depth", STAGES)
def test_parameters_are_those_counted_by_hand(depth: int) -> None:
    forms: tuple[tuple[float | None, Norm], ...] = ((None, "batch"), (0.0, "none"))
    for weight, norm in forms:
        plan = resnet_plan(depth, None, "imagenet", weight, norm)
        assert counted(skeleton(plan)) == by_hand(depth, vanilla=weight == 0.0)


@pytest.mark.parametrize("depth", TORCHVISION)
def test_parameters_are_the_published_ones_less_the_norms_of_projections(depth: int) -> None:
    projected = (256, 512, 1024, 2048) if depth >= 50 else (128, 256, 512)
    plan = resnet_plan(depth, None, "imagenet", None, "batch")
    assert counted(skeleton(plan)) == TORCHVISION[depth] - 2 * sum(projected)


@pytest.mark.parametrize(
    ("depth", "widening", "millions"), [(40, 1, 0.6), (40, 2, 2.2), (16, 8, 11.0), (28, 10, 36.5)]
)
def test_wide_resnets_have_the_published_parameters(
    depth: int, widening: int, millions: float
) -> None:
    # Zagoruyko & Komodakis (2016), tables 4 and 5, for ten classes.
    plan = wide_resnet_plan(depth, widening, "cifar", None, "batch")
    assert round(counted(skeleton(plan, classes=10)) / 1e6, 1) == millions


def test_a_model_of_that_name_is_what_was_counted() -> None:
    assert counted(create_model("resnet50")) == 25_549_352


def test_width_multiplies_the_channels_of_every_layer() -> None:
    sizes = lambda model: [p.shape[0] for n, p in model.named_parameters() if n[:2] != "fc"]
    usual = sizes(skeleton(resnet_plan(50, None, "imagenet", 0.8, "none")))
    for width in (2, 0.25):
        found = sizes(skeleton(resnet_plan(50, width, "imagenet", 0.8, "none")))
        assert found == [int(width * channels) for channels in usual]


def test_a_vanilla_network_has_no_projections_and_the_others_do() -> None:
    kernels = lambda plan: [m for m in skeleton(plan).modules() if isinstance(m, nn.Conv2d)]
    blocks = sum(STAGES[50])
    for weight, projections in ((None, 4), (0.8, 4), (0.0, 0)):
        plan = resnet_plan(50, None, "imagenet", weight, "batch")
        assert len(kernels(plan)) == 1 + 3 * blocks + projections


def test_convolutions_have_biases_unless_batchnorm_undoes_them() -> None:
    for norm in get_args(Norm):
        network = skeleton(resnet_plan(18, None, "imagenet", 0.8, norm))
        convs = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
        assert {conv.bias is not None for conv in convs} == {norm != "batch"}


def test_the_stride_of_a_bottleneck_is_in_its_middle() -> None:
    network = skeleton(resnet_plan(50, None, "imagenet", None, "batch"))
    strided = [n for n, m in network.named_modules() if getattr(m, "stride", 1) in (2, (2, 2))]
    stages = [f"stages.{s}.0.{part}" for s in (1, 2, 3) for part in ("branch.conv2", "projection")]
    assert strided == ["stem.conv", "stem.pool", *stages]

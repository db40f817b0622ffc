"""Initial weights: orthogonal, uniformly distributed, and of a scale that keeps q values at 1."""

import math
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from skipless.torch.init import (
    Distribution,
    delta_,
    gaussian_fan_in_,
    initialize_,
    scaled_uniform_orthogonal_,
    transposed_delta_,
)
from skipless.torch.normalize import normalize_per_location, normalize_per_sample

SEEDS = 60
SHAPES = [(5, 5), (3, 5), (5, 3), (1, 4), (4, 1)]  # (m, k)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def q_values(module: nn.Module, x: Tensor, **options) -> Tensor:
    """Mean square over the channels of `module(x)`, a row for each of `SEEDS` initialisations."""
    rows = []
    for seed in range(SEEDS):
        assert initialize_(module, generator=generator(seed), **options) == []
        rows.append(module(x).detach().double().square().mean(dim=1).flatten())
    return torch.stack(rows)


def assert_mean(samples: Tensor, expected: float) -> None:
    """Each column of `samples`, a row for each independent draw, has the `expected` mean."""
    error = samples.std(dim=0) / math.sqrt(len(samples))
    assert ((samples.mean(dim=0) - expected).abs() <= 4 * error + 1e-5).all()


def image(channels: int, size: int = 4) -> Tensor:
    return normalize_per_location(
        torch.randn(2, channels, size, size, generator=generator(1)), homogeneous=None
    )


@pytest.mark.parametrize("distribution", ["orthogonal", "gaussian"])
@pytest.mark.parametrize(("k", "m"), [(784, 256), (512, 10), (64, 512), (256, 256)])
def test_q_stays_1_through_a_linear_layer(k: int, m: int, distribution: Distribution) -> None:
    x = normalize_per_sample(torch.rand(3, k, generator=generator(1)))
    assert_mean(q_values(nn.Linear(k, m), x, distribution=distribution), 1.0)


@pytest.mark.parametrize("distribution", ["orthogonal", "gaussian"])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 64, 3, padding=1),
        nn.Conv2d(64, 16, 3, padding=1, stride=2),
        nn.Conv2d(32, 32, 3, padding=1, groups=32),  # depthwise
        nn.Conv2d(32, 64, 3, padding=1, groups=32),  # depthwise, two outputs of each input
        nn.Conv2d(32, 32, 3, padding=2, groups=4, dilation=2),
        nn.Conv2d(32, 12, 3, padding=1, groups=4),
        nn.Conv2d(12, 32, 1, groups=4),
        nn.Conv2d(16, 8, 4, padding="same"),
        nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1, groups=2),
        nn.ConvTranspose2d(8, 16, 3, stride=2, padding=1, output_padding=1),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_q_stays_1_at_every_location_of_a_convolution(
    layer: nn.Conv2d | nn.ConvTranspose2d, distribution: Distribution
) -> None:
    x = image(layer.in_channels)
    assert_mean(q_values(layer, x, distribution=distribution), 1.0)


def test_q_stays_1_through_the_first_layer_after_normalisation() -> None:
    pixels = torch.rand(2, 3, 6, 6, generator=generator(1))
    pixels[0, :, :3] = 0.0
    assert_mean(q_values(nn.Conv2d(4, 64, 3, padding=1), normalize_per_location(pixels)), 1.0)


def test_no_width_increase_or_depthwise_convolution_changes_any_q_value() -> None:
    for layer in (nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1, groups=16)):
        q = q_values(layer, image(layer.in_channels))
        assert torch.allclose(q, torch.ones_like(q), atol=1e-5)


@pytest.mark.parametrize("distribution", ["orthogonal", "gaussian"])
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(6, 4, 2, groups=2),
        nn.Conv2d(2, 16, 3),
        nn.ConvTranspose2d(6, 4, 4, stride=2, padding=3, groups=2),
        nn.ConvTranspose2d(4, 4, 3, stride=2, padding=2),  # 1, 2 or 4 taps reach a location
        nn.ConvTranspose2d(4, 4, 3, stride=2, padding=4, dilation=3),
    ],
    ids=str,
)
def test_without_delta_q_stays_1_where_no_padding_is_read(
    layer: nn.Conv2d | nn.ConvTranspose2d, distribution: Distribution
) -> None:
    x = torch.ones(1, layer.in_channels, 8, 8)
    q = q_values(layer, x, distribution=distribution, delta=False)
    if layer.dilation == (3, 3):  # the taps at the border reach beyond it
        q = q.unflatten(1, (-1, math.isqrt(q.shape[1])))[:, 4:-4, 4:-4].flatten(1)
    assert q.numel()
    assert_mean(q, 1.0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("m", "k"), [(64, 64), (32, 100), (100, 32), (300, 1)])
def test_rows_or_columns_are_orthogonal(m: int, k: int, dtype, tolerance: float) -> None:
    w = scaled_uniform_orthogonal_(torch.empty(m, k, dtype=dtype), 1.5, generator=generator())
    gram, scale = (w @ w.T, 1.0) if m <= k else (w.T @ w, m / k)
    identity = 1.5**2 * scale * torch.eye(min(m, k), dtype=dtype)
    assert (gram - identity).abs().max() <= tolerance * 1.5**2 * scale


def draws(m: int, k: int, count: int = 20_000, gain: float = 1.0) -> Tensor:
    """Independent orthogonal matrices: the groups of one weight."""
    weight = torch.empty(count * m, k, dtype=torch.float64)
    scaled_uniform_orthogonal_(weight, gain, groups=count, generator=generator())
    return weight.unflatten(0, (count, m))


@pytest.mark.parametrize(("m", "k"), SHAPES)
def test_entries_have_mean_0_and_mean_square_gain_squared_over_k(m: int, k: int) -> None:
    w = draws(m, k, gain=1.7)
    assert_mean(w, 0.0)
    assert_mean(w.square(), 1.7**2 / k)


@pytest.mark.parametrize(("m", "k"), SHAPES)
def test_matrices_have_the_fourth_moments_of_haar_measure_in_every_direction(
    m: int, k: int
) -> None:
    # A row or column of a Haar matrix is uniform on the sphere in n dimensions, whose coordinates
    # have E[u⁴] = 3 / (n (n + 2)); and so has any other direction.
    n, scale = max(m, k), max(m / k, 1.0)
    w = draws(m, k)
    left, right = (F.normalize(torch.randn(d, generator=generator(d)), dim=0) for d in (m, k))
    across = torch.einsum("i,nij,j->n", left.double(), w, right.double())[:, None]
    for entries in (w.flatten(1), across):
        assert_mean(entries.square(), 1.0 / k)
        assert_mean(entries.pow(4), scale**2 * 3.0 / (n * (n + 2)))


def test_rotations_and_reflections_are_equally_likely() -> None:
    for size in (1, 2, 5):
        assert_mean(torch.linalg.det(draws(size, size))[:, None], 0.0)


def test_groups_are_drawn_independently() -> None:
    first, second = draws(2, 3).unflatten(0, (-1, 2)).unbind(1)
    assert_mean(first * second, 0.0)
    assert_mean(first.square() * second.square(), 1.0 / 9)


def test_gaussian_entries_are_normal_with_variance_gain_squared_over_fan_in() -> None:
    w = gaussian_fan_in_(torch.empty(40_000, 2, 3), 1.7, generator=generator()).double()
    assert_mean(w, 0.0)
    assert_mean(w.square(), 1.7**2 / 6)
    assert_mean(w.pow(4), 3 * (1.7**2 / 6) ** 2)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kernel", [(1,), (3,), (3, 5), (3, 1, 3)])
def test_delta_has_weights_at_the_centre_only(kernel: tuple[int, ...], groups: int) -> None:
    weight = torch.full((6, 4, *kernel), math.nan)
    assert delta_(weight, 2.0, groups=groups, generator=generator()) is weight
    centre = weight[(..., *(size // 2 for size in kernel))]
    matrix = scaled_uniform_orthogonal_(
        torch.empty(6, 4), 2.0, groups=groups, generator=generator()
    )
    assert torch.equal(centre, matrix)
    assert weight.count_nonzero() == 24


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [2, 4, 6])
def test_an_even_kernel_reads_the_location_itself_under_half_padding(
    size: int, stride: int
) -> None:
    x = torch.randn(2, 5, 12, generator=generator(1))
    weight = delta_(torch.empty(7, 5, size), generator=generator())
    y = F.conv1d(x, weight, stride=stride, padding=(size - 1) // 2)
    # Reads x[i], x[i + stride], ..., and as many as fit.
    local = torch.einsum("oi,bil->bol", weight.sum(dim=2), x[..., ::stride])
    assert torch.allclose(y, local[..., : y.shape[-1]], atol=1e-6)
    assert (y.square().mean(dim=1) > 0).all()


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_an_even_kernel_reads_the_location_itself_under_same_padding() -> None:
    x = torch.randn(2, 5, 12, generator=generator(1))
    for size in (2, 4):
        weight = delta_(torch.empty(7, 5, size), generator=generator())
        local = torch.einsum("oi,bil->bol", weight.sum(dim=2), x)
        assert torch.allclose(F.conv1d(x, weight, padding="same"), local, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "stride", "padding", "output_padding"),
    [
        *((1, 1, 0, 0), (3, 1, 1, 0), (4, 1, 2, 0), (5, 1, 2, 0)),
        *((2, 2, 0, 0), (3, 2, 1, 0), (3, 2, 1, 1), (4, 2, 1, 0), (5, 2, 2, 1), (6, 2, 2, 0)),
        *((3, 3, 0, 0), (4, 3, 1, 1), (5, 3, 1, 0), (7, 4, 2, 1), (8, 4, 2, 0)),
    ],
)
@pytest.mark.parametrize("groups", [1, 3])
def test_transposed_delta_copies_every_location(
    size: int, stride: int, padding: int, output_padding: int, groups: int
) -> None:
    x = torch.randn(2, 6, 5, generator=generator(1))
    weight = torch.full((6, 9 // groups, size), math.nan)
    transposed_delta_(weight, stride=stride, groups=groups, generator=generator())
    y = F.conv_transpose1d(x, weight, None, stride, padding, output_padding, groups)
    tap = weight[..., (size - stride + 1) // 2, None].contiguous()
    local = F.conv_transpose1d(x, tap, groups=groups).repeat_interleave(stride, dim=2)
    shift = padding - (size - stride + 1) // 2
    assert y.shape[2] <= local.shape[2]
    assert torch.allclose(y, local[..., shift : shift + y.shape[2]], atol=1e-6)
    assert torch.allclose(tap.square().sum(), torch.tensor(9.0))  # m/k times k


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_types_are_drawn_in_float32_and_rounded(dtype: torch.dtype) -> None:
    for draw_ in (scaled_uniform_orthogonal_, gaussian_fan_in_, delta_, transposed_delta_):
        short = draw_(torch.empty(6, 4, 3, dtype=dtype), generator=generator())
        assert short.dtype == dtype
        full = draw_(torch.empty(6, 4, 3), generator=generator())
        assert torch.equal(short, full.to(dtype))


@pytest.mark.parametrize(
    "draw_", [scaled_uniform_orthogonal_, gaussian_fan_in_, delta_, transposed_delta_]
)
def test_a_generator_decides_alone(draw_: Callable[..., Tensor]) -> None:
    weight = nn.Parameter(torch.empty(6, 4, 3))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert draw_(weight, generator=generator(5)) is weight
    assert torch.equal(before, torch.get_rng_state())
    assert weight.requires_grad
    assert weight.is_leaf
    again = draw_(torch.empty(6, 4, 3), generator=generator(5))
    assert torch.equal(weight, again)
    assert not torch.equal(weight, draw_(torch.empty(6, 4, 3), generator=generator(6)))
    assert not torch.equal(draw_(torch.empty(6, 4, 3)), draw_(torch.empty(6, 4, 3)))


def test_a_long_row_costs_its_short_side() -> None:
    # A QR decomposition on the long side would need 160 GB.
    start = time.process_time()
    scaled_uniform_orthogonal_(torch.empty(8, 200_000))
    scaled_uniform_orthogonal_(torch.empty(200_000, 8))
    assert time.process_time() - start < 5.0


def test_the_number_of_threads_is_left_as_it_was() -> None:
    torch.set_num_threads(2)
    scaled_uniform_orthogonal_(torch.empty(8, 8))
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_empty_weights_stay_empty() -> None:
    for shape in ((0, 4), (4, 0)):
        assert scaled_uniform_orthogonal_(torch.empty(shape)).shape == shape
        assert gaussian_fan_in_(torch.empty(shape)).shape == shape


@pytest.mark.parametrize(
    ("weight", "options", "message"),
    [
        (torch.empty(4, 4, device="meta"), {}, "meta device, call model.to_empty"),
        (nn.LazyLinear(3).weight, {}, "lazy, run the model once"),
        (torch.empty(4), {}, r"shape \(out, in, \*kernel\).*of shape \(4,\)"),
        (torch.empty(4, 4, dtype=torch.int64), {}, "floating-point.*int64"),
        (torch.empty(4, 4), {"groups": 3}, "multiple of groups=3"),
        (torch.empty(4, 4), {"groups": 0}, "groups must be >= 1, got 0"),
    ],
)
def test_a_tensor_that_is_no_weight_is_refused(weight: Tensor, options, message: str) -> None:
    for draw_ in (scaled_uniform_orthogonal_, delta_, transposed_delta_):
        with pytest.raises(ValueError, match=message):
            draw_(weight, **options)


def test_a_stride_beyond_the_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kernel \(1, 1\), stride \(2, 2\)"):
        transposed_delta_(torch.empty(3, 3, 1, 1), stride=2)


def test_an_unknown_distribution_is_refused() -> None:
    with pytest.raises(
        ValueError, match="'orthogonal', 'gaussian' or 'looks_linear', got 'uniform'"
    ):
        delta_(torch.empty(3, 3), distribution="uniform")  # pyright: ignore[reportArgumentType]


class Everything(nn.Module):
    """One of each kind of layer; never run."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.Linear(8, 6),
                nn.Conv1d(8, 6, 3),
                nn.Conv2d(8, 6, 3, groups=2),
                nn.Conv3d(8, 6, 3, bias=False),
                nn.ConvTranspose1d(8, 6, 2, stride=2),
                nn.ConvTranspose2d(8, 6, 4, stride=2),
                nn.ConvTranspose3d(8, 6, 3),
            ]
        )
        self.norms = nn.ModuleList(
            [
                nn.BatchNorm2d(8),
                nn.InstanceNorm1d(8, affine=True),
                nn.LayerNorm(8),
                nn.GroupNorm(2, 8),
                nn.RMSNorm(8),
            ]
        )
        self.slope = nn.PReLU()
        self.embedding = nn.Embedding(5, 8)
        self.scale = nn.Parameter(torch.full((1,), 0.5))
        for parameter in self.norms.parameters():
            nn.init.constant_(parameter, 7.0)
        self.norms[0].get_buffer("running_mean").fill_(3.0)


def test_a_whole_model_is_drawn_and_what_is_left_alone_is_named() -> None:
    model = Everything()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    left = initialize_(model, sigma_w=1.3, sigma_b=0.4, generator=generator())
    assert sorted(left) == ["embedding.weight", "scale", "slope.weight"]
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (name in left), name
    for name, parameter in model.norms.named_parameters():
        assert (parameter == (1.0 if name.endswith("weight") else 0.0)).all()
    assert (model.norms[0].get_buffer("running_mean") == 0.0).all()


@pytest.mark.parametrize("distribution", ["orthogonal", "gaussian"])
def test_convolutions_of_a_model_are_drawn_by_delta(distribution: Distribution) -> None:
    conv, up = nn.Conv2d(8, 6, 3, groups=2), nn.ConvTranspose2d(8, 6, 4, stride=2, groups=2)
    for layer in (conv, up):
        initialize_(layer, sigma_w=1.3, distribution=distribution, generator=generator())
    weight = torch.empty(6, 4, 3, 3)
    delta_(weight, 1.3, groups=2, distribution=distribution, generator=generator())
    assert torch.equal(conv.weight, weight)
    weight = torch.empty(8, 3, 4, 4)
    transposed_delta_(
        weight, 1.3, stride=2, groups=2, distribution=distribution, generator=generator()
    )
    assert torch.equal(up.weight, weight)


def test_without_delta_all_taps_are_drawn() -> None:
    conv, weight = nn.Conv2d(8, 6, 3, groups=2), torch.empty(6, 4, 3, 3)
    initialize_(conv, sigma_w=1.3, delta=False, generator=generator())
    scaled_uniform_orthogonal_(weight, 1.3, groups=2, generator=generator())
    assert torch.equal(conv.weight, weight)
    initialize_(conv, sigma_w=1.3, distribution="gaussian", delta=False, generator=generator())
    assert torch.equal(conv.weight, gaussian_fan_in_(weight, 1.3, generator=generator()))


def test_biases_have_the_variance_asked_for_and_weights_the_gain() -> None:
    layer = nn.Linear(2, 10_000)
    initialize_(layer, sigma_w=1.3, sigma_b=0.4, generator=generator())
    assert_mean(layer.bias.detach().square()[:, None], 0.16)
    gram = layer.weight.T @ layer.weight / 5000
    assert torch.allclose(gram, 1.3**2 * torch.eye(2), atol=1e-4)
    initialize_(layer)
    assert torch.equal(layer.bias, torch.zeros(10_000))


def test_weights_do_not_depend_on_whether_layers_have_biases() -> None:
    last = []
    for bias in (True, False):
        last.append(nn.Linear(3, 3, bias))
        initialize_(nn.Sequential(nn.Linear(3, 3, bias), last[-1]), generator=generator())
    assert torch.equal(last[0].weight, last[1].weight)


def test_shared_parameters_are_drawn_once_as_those_of_the_first_layer() -> None:
    embedding, first, second = nn.Embedding(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    embedding.weight = second.weight = first.weight
    second.bias = first.bias
    model = nn.Sequential(embedding, first, second)
    assert initialize_(model, sigma_b=1.0, generator=generator()) == []
    assert embedding.weight is second.weight is first.weight
    alone = nn.Linear(4, 4)
    initialize_(alone, sigma_b=1.0, generator=generator())
    assert torch.equal(first.weight, alone.weight)
    assert torch.equal(first.bias, alone.bias)


def test_the_type_of_a_model_is_kept() -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Linear(3, 3)).to(torch.bfloat16)
    initialize_(model, sigma_b=1.0)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (nn.LazyConv2d(4, 3), "^1.weight has no memory.*lazy"),
        (nn.Linear(3, 3, device="meta"), "^1.weight has no memory.*meta"),
        (nn.BatchNorm2d(3, device="meta"), "^1.weight has no memory.*meta"),
        (parametrizations.weight_norm(nn.Linear(3, 3)), "^1 computes its weight or bias"),
        (parametrizations.orthogonal(nn.Linear(3, 3)), "^1 computes its weight or bias"),
        (prune.identity(nn.Conv1d(3, 3, 3), "bias"), "^1 computes its weight or bias"),
        (nn.ConvTranspose1d(3, 3, 1, stride=2), "^1, of a transposed.*cannot reach all locations"),
        (nn.ConvTranspose1d(3, 3, 3, stride=2, dilation=2), "^1, of a transposed.*no dilation"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_model_that_cannot_be_drawn_is_refused_untouched(bad: nn.Module, message: str) -> None:
    good = nn.Linear(3, 3)
    before = good.weight.detach().clone()
    with pytest.raises(ValueError, match=message):
        initialize_(nn.Sequential(good, bad))
    assert torch.equal(good.weight, before)


class Functional(nn.Module):
    """A layer and a product of features, both written as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(6, 6)), nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.linear(x, self.weight, self.bias)
        return x @ x.mT


def test_layers_that_an_exported_graph_calls_are_drawn_and_other_products_are_left() -> None:
    graph = torch.export.export(Functional(), (torch.zeros(2, 6),)).module()
    assert initialize_(graph, sigma_w=0.5, generator=generator()) == []
    weight = graph.get_parameter("weight")
    torch.testing.assert_close(weight @ weight.T, 0.25 * torch.eye(6))
    assert not graph.get_parameter("bias").any()


def test_functions_of_a_symbolic_trace_are_left_alone() -> None:
    model = torch.fx.symbolic_trace(Functional())
    assert initialize_(model) == ["weight", "bias"]

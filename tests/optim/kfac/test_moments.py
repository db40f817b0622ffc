"""Moments are those of patches that are written out one by one, and of what torch's layers read."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from skipless.optim.kfac import moments, windows
from skipless.optim.kfac.moments import Scratch, Window, output_moments, patch_moments, row_moment
from skipless.optim.kfac.windows import Spectrum, lagged_products

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()


def outer_sum(rows: list[list[float]]) -> list[list[float]]:
    columns = list(zip(*rows, strict=True))
    return [[math.fsum(map(float.__mul__, a, b)) for a in columns] for b in columns]


def source(index: int, size: int, mode: str) -> int | None:
    """The pixel that stands at `index` of a row of `size` pixels that is padded without end."""
    if 0 <= index < size:
        return index
    match mode:
        case "reflect":
            return -index if index < 0 else 2 * (size - 1) - index
        case "replicate":
            return 0 if index < 0 else size - 1
        case "circular":
            return index % size
        case _:
            return None


def patches(inputs: Tensor, window: Window, group: int) -> list[list[float]]:
    """Every patch of one group, entry by entry in the order of a weight."""
    values, sizes = inputs.numpy(), inputs.shape[2:]
    channels = inputs.shape[1] // window.groups
    starts = [
        range(-before, size + after - d * (k - 1), s)
        for size, (before, after), k, d, s in zip(
            sizes, window.padding, window.kernel, window.dilation, window.stride, strict=True
        )
    ]
    found = []
    for example, *start in itertools.product(range(len(values)), *starts):
        patch = []
        for channel in range(group * channels, (group + 1) * channels):
            for taps in itertools.product(*map(range, window.kernel)):
                pixel = [
                    source(a + tap * d, size, window.padding_mode)
                    for a, tap, d, size in zip(start, taps, window.dilation, sizes, strict=True)
                ]
                patch.append(0.0 if None in pixel else float(values[(example, channel, *pixel)]))
        found.append(patch)
    return found


@st.composite
def reads(draws: st.DrawFn) -> tuple[Tensor, Window]:
    """A small batch, in either layout, and a window that fits into it at least once."""
    mode = draws(st.sampled_from(["zeros", "zeros", "zeros", "reflect", "replicate", "circular"]))
    dimensions = draws(st.sampled_from([1, 2, 2, 2, 3]))
    most = {1: 5, 2: 4, 3: 3}[dimensions]
    axes = []
    for _ in range(dimensions):
        kernel, dilation = draws(st.integers(1, most)), draws(st.integers(1, 2))
        extent = dilation * (kernel - 1)
        size = draws(st.integers(1, most + 1))
        edge = {"reflect": size - 1, "circular": size}.get(mode, 3)  # what torch can pad
        before, after = (draws(st.integers(0, edge)) for _ in range(2))
        size = max(size, extent + 1 - before - after)
        axes.append((size, kernel, draws(st.integers(1, 3)), (before, after), dilation))
    sizes, kernel, stride, padding, dilation = zip(*axes, strict=True)
    groups, channels, batch = (draws(st.integers(1, n)) for n in (3, 2, 3))
    inputs = draw(batch, groups * channels, *sizes, seed=draws(st.integers(0, 99)))
    if draws(st.booleans()):
        inputs = inputs.movedim(1, -1).contiguous().movedim(-1, 1)
    return inputs, Window(kernel, stride, padding, dilation, groups, mode)


@settings(max_examples=300, deadline=None)
@given(
    read=reads(),
    homogeneous=st.booleans(),
    most_products=st.sampled_from([0, moments.MOST_PRODUCTS]),  # patches laid out, or not
    chunk_bytes=st.sampled_from([1, moments.CHUNK_BYTES]),
    wide=st.sampled_from([1, moments.WIDE]),
    spectral=st.sampled_from([-(10**9), 10**9]),  # the price, by which it is taken or not
)
def test_moments_of_patches_are_those_of_patches_written_out_one_by_one(
    read: tuple[Tensor, Window],
    homogeneous: bool,
    most_products: int,
    chunk_bytes: int,
    wide: int,
    spectral: int,
) -> None:
    inputs, window = read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "MOST_PRODUCTS", most_products)
        patch.setattr(moments, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(moments, "WIDE", wide)
        patch.setattr(windows, "PRODUCT_BYTES", chunk_bytes)
        patch.setattr(Spectrum, "multiplications", lambda *_: spectral)
        found, number = patch_moments(inputs, window, homogeneous)
    bias = [1.0] * homogeneous
    rows = [[[*p, *bias] for p in patches(inputs, window, g)] for g in range(window.groups)]
    assert number == len(rows[0])
    assert_close(found, torch.tensor([outer_sum(group) for group in rows], dtype=torch.float64))


def plain_windows() -> Iterator[tuple[tuple[int, int], Window]]:
    kernels = [((1, 3), (1, 1)), ((1, 2), (1, 2)), ((2, 3), (1, 1)), ((3, 2), (1, 2))]
    paddings = [(0, 0), (1, 1), (2, 1), (0, 2)]
    for sizes, (before, after), (kernel, dilation) in itertools.product(
        [(5, 4), (1, 6)], paddings, kernels
    ):
        window = Window(kernel, (1, 1), ((before, after), (after, before)), dilation)
        if min(window.positions(sizes)) > 0:
            yield sizes, window


@pytest.mark.parametrize(("sizes", "window"), [*plain_windows()])
def test_moments_by_way_of_the_spectrum_are_the_same(
    sizes: tuple[int, int], window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spectrum, "multiplications", lambda *_: -(10**9))
    inputs = draw(8, 3, *sizes, seed=1)
    found, _ = patch_moments(inputs, window, homogeneous=False)
    expected = outer_sum(patches(inputs, window, 0))
    assert_close(found[0], torch.tensor(expected, dtype=torch.float64))


def test_the_spectrum_is_taken_where_it_is_cheaper_and_loses_few_digits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[Tensor] = []

    def noted(*args: Any) -> Tensor:
        used.append(lagged_products(*args))
        return used[-1]

    monkeypatch.setattr(moments, "lagged_products", noted)
    small, large = (Window.of(nn.Conv2d(16, 1, size, padding="same")) for size in (3, 5))
    inputs = draw(64, 16, 12, 12).exp()  # all of one sign, which is harder
    for window in (small, large):
        exact = torch.nn.functional.unfold(inputs, window.kernel, padding=window.padding[0][0])
        rows = exact.mT.flatten(0, 1)
        found, _ = patch_moments(inputs.float(), window, homogeneous=False)
        assert_close(found[0].double(), rows.mT @ rows, tolerance=1e-6)
    assert len(used) == 2
    patch_moments(inputs[:1].float(), small, homogeneous=False)
    monkeypatch.setattr(moments, "CHUNK_BYTES", 1)  # each example by itself, as the one before
    patch_moments(inputs.float(), small, homogeneous=False)
    assert len(used) == 2


MODES = ("zeros", "reflect", "replicate", "circular")
KERNELS = ((1, 1), (2, 1), (3, 1), (4, 1), (2, 3))  # with dilations


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(
    ("dimensions", "kernel", "dilation", "padding", "mode"),
    [
        *((2, *sizes, padding, "zeros") for sizes in KERNELS for padding in ("same", "valid", 1)),
        *((2, 4, 1, "same", mode) for mode in ("reflect", "replicate", "circular")),
        *((dimensions, 2, 3, "same", mode) for dimensions in (1, 3) for mode in MODES),
    ],
)
def test_patches_are_those_that_a_convolution_of_torch_reads(
    dimensions: int, kernel: int, dilation: int, padding: str | int, mode: str
) -> None:
    taps = kernel**dimensions
    conv = CONVS[dimensions](
        2, 2 * taps, kernel, padding=padding, dilation=dilation, groups=2, padding_mode=mode,
        bias=False, dtype=torch.float64,
    )  # fmt: skip
    with torch.no_grad():  # each output is one entry of a patch
        conv.weight.copy_(torch.eye(taps).repeat(2, 1).view_as(conv.weight))
    inputs = draw(2, 2, *(4, 5, 6)[:dimensions])
    outputs = conv(inputs).detach()
    found, number = patch_moments(inputs, Window.of(conv), homogeneous=False)
    rows = outputs.unflatten(1, (2, taps)).transpose(0, 1).flatten(3)
    assert number == outputs.numel() // (2 * taps)
    assert_close(found, torch.einsum("gnap,gnbp->gab", rows, rows))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_kernel_of_one_pixel_reads_every_stride_th_pixel(
    stride: int, channels_last: bool
) -> None:
    inputs = draw(3, 4, 5, 6)
    if channels_last:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    found, number = patch_moments(inputs, Window.of(nn.Conv2d(4, 1, 1, stride)), homogeneous=True)
    rows = inputs[:, :, ::stride, ::stride].movedim(1, -1).reshape(-1, 4).tolist()
    expected = outer_sum([[*row, 1.0] for row in rows])
    assert number == len(rows)
    assert_close(found, torch.tensor([expected], dtype=torch.float64))


def test_a_window_follows_a_padding_that_is_changed_later() -> None:
    conv = nn.Conv2d(1, 1, 3)
    conv.padding = (1, 2)
    assert Window.of(conv).padding == ((1, 1), (2, 2))


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize(("number", "width"), [(5, 1), (16, 1), (5, 7), (64, 7), (5, 257)])
@pytest.mark.parametrize("chunk_bytes", [1, moments.CHUNK_BYTES])
@pytest.mark.parametrize("wide", [1, moments.WIDE])  # so that more than 4 columns are, or none
def test_the_moment_of_rows_sums_their_outer_products(
    number: int,
    width: int,
    homogeneous: bool,
    chunk_bytes: int,
    wide: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moments, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(moments, "WIDE", wide)
    rows = draw(number, width)
    expected = outer_sum([[*row, *[1.0] * homogeneous] for row in rows.tolist()])
    assert_close(row_moment(rows, homogeneous), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("sizes", [(7,), (1, 1), (3, 3), (2, 2, 2)])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1, moments.CHUNK_BYTES])
def test_moments_of_gradients_sum_over_examples_and_positions(
    groups: int,
    sizes: tuple[int, ...],
    channels_last: bool,
    chunk_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moments, "CHUNK_BYTES", chunk_bytes)
    grads = draw(3, 6, *sizes)
    if channels_last:
        grads = grads.movedim(1, -1).contiguous().movedim(-1, 1)
    rows = grads.movedim(1, -1).reshape(-1, groups, 6 // groups).transpose(0, 1).tolist()
    expected = torch.tensor([outer_sum(group) for group in rows], dtype=torch.float64)
    assert_close(output_moments(grads, groups), expected)


def test_layers_of_all_sizes_and_types_may_share_their_scratch() -> None:
    scratch = Scratch()
    window = Window.of(nn.Conv2d(4, 1, 3, stride=2, padding=1))
    for size, dtype in [(6, torch.float64), (3, torch.float32), (6, torch.float32), (9, None)]:
        inputs = draw(2, 4, size, size, seed=size).to(dtype or torch.float64)
        found, _ = patch_moments(inputs, window, True, scratch)
        rows = [[*patch, 1.0] for patch in patches(inputs.double(), window, 0)]
        assert found.dtype == inputs.dtype
        assert_close(found[0].double(), torch.tensor(outer_sum(rows)).double(), tolerance=1e-5)


def test_scratch_is_used_again_where_it_is_large_enough() -> None:
    scratch = Scratch()
    large = scratch.numbers(12, torch.zeros(1))
    assert scratch.numbers(5, torch.ones(1)).data_ptr() == large.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_comes_in_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    inputs = draw(64, 4, 8, 8).to(dtype)
    window = Window.of(nn.Conv2d(4, 1, 3, padding=1))
    rows = inputs.movedim(1, -1).reshape(-1, 4)
    for found, expected in [
        (patch_moments(inputs, window, True)[0], patch_moments(inputs.double(), window, True)[0]),
        (output_moments(inputs, 2), output_moments(inputs.double(), 2)),
        (row_moment(rows, True), row_moment(rows.double(), True)),
    ]:
        assert found.dtype == torch.float32
        assert_close(found, expected, tolerance=1e-5)


def test_autocast_rounds_no_product() -> None:
    inputs = draw(64, 4, 8, 8).float()
    window = Window.of(nn.Conv2d(4, 1, 3, padding=1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = patch_moments(inputs, window, True)[0], output_moments(inputs, 1)
        rows = row_moment(inputs.flatten(1), True)
    assert_close(found[0], patch_moments(inputs.double(), window, True)[0], tolerance=1e-5)
    assert_close(found[1], output_moments(inputs.double(), 1), tolerance=1e-5)
    assert_close(rows, row_moment(inputs.flatten(1).double(), True), tolerance=1e-5)


def test_moments_are_not_recorded_for_gradients() -> None:
    inputs = draw(2, 4, 5, 5).requires_grad_()
    window = Window.of(nn.Conv2d(4, 1, 3))
    assert not patch_moments(inputs, window, homogeneous=True)[0].requires_grad
    assert not output_moments(inputs, groups=1).requires_grad
    assert not row_moment(inputs.flatten(1), homogeneous=True).requires_grad

"""Inputs are scaled to q value 1, whatever their layout, type and size."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from skipless.torch.normalize import (
    PerLocationNormalization,
    normalize_per_location,
    normalize_per_sample,
)


def images(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random numbers of very different sizes, with zeros at the first location."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(-3, 3, shape[-1], dtype=torch.float64)
    x[(0, slice(None), *(0 for _ in shape[2:]))] = 0.0
    return x.to(dtype)


def test_a_pixel_worked_by_hand() -> None:
    # (1, 2, 2) with a 1 has length √10 and is to have length √4.
    y = normalize_per_location(torch.tensor([[1.0, 2.0, 2.0]], dtype=torch.float64))
    expected = torch.tensor([[1.0, 2.0, 2.0, 1.0]], dtype=torch.float64) * 0.4**0.5
    assert torch.allclose(y, expected, rtol=1e-15)


@pytest.mark.parametrize("homogeneous", [1.0, 0.1, -2.0])
@pytest.mark.parametrize("shape", [(4, 3), (4, 1, 6), (4, 3, 6, 5), (2, 3, 3, 4, 5)])
def test_every_location_has_q_value_1(shape: tuple[int, ...], homogeneous: float) -> None:
    y = normalize_per_location(images(*shape), homogeneous=homogeneous)
    assert y.shape == (shape[0], shape[1] + 1, *shape[2:])
    q = y.square().mean(dim=1)
    assert torch.allclose(q, torch.ones_like(q), rtol=1e-14)


def test_what_is_appended_keeps_brightness_and_direction() -> None:
    x = images(4, 3, 6, 5)
    y = normalize_per_location(x, homogeneous=0.5)
    assert torch.allclose(0.5 * y[:, :3] / y[:, 3:], x, rtol=1e-12)


def test_a_location_of_zeros_becomes_the_homogeneous_direction() -> None:
    y = normalize_per_location(torch.zeros(1, 3, 2, 2), homogeneous=-0.3)
    assert torch.equal(y[0, :, 1, 1], torch.tensor([0.0, 0.0, 0.0, -2.0]))


def test_without_the_homogeneous_coordinate_zeros_stay_zero_and_all_else_has_q_value_1() -> None:
    x = images(2, 3, 4, 4)
    y = normalize_per_location(x, homogeneous=None)
    assert y.shape == x.shape
    q = y.square().mean(dim=1).flatten()
    assert q[0] == 0.0
    assert torch.allclose(q[1:], torch.ones_like(q[1:]), rtol=1e-14)


@pytest.mark.parametrize("homogeneous", [1.0, None])
def test_layouts_agree(homogeneous: float | None) -> None:
    x = images(2, 3, 4, 5)
    first = normalize_per_location(x, homogeneous=homogeneous)
    last = normalize_per_location(x.movedim(1, -1), channel_axis=-1, homogeneous=homogeneous)
    single = normalize_per_location(x[1], channel_axis=0, homogeneous=homogeneous)
    memory = normalize_per_location(
        x.contiguous(memory_format=torch.channels_last), homogeneous=homogeneous
    )
    assert torch.equal(last.movedim(-1, 1), first)
    assert torch.equal(single, first[1])
    assert torch.equal(memory, first)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_type_is_kept_and_short_ones_are_scaled_in_float32(dtype: torch.dtype) -> None:
    x = torch.tensor([[300.0, 400.0, 0.0], [0.0, 0.0, 0.0]], dtype=dtype)  # 300² is over float16
    wide = x if x.element_size() >= 4 else x.float()
    for f in (normalize_per_location, normalize_per_sample):
        assert f(x).dtype == dtype
        assert torch.equal(f(x), f(wide).to(dtype))


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_squares_neither_overflow_nor_vanish(size: float) -> None:
    x = size * torch.tensor([[3.0, 4.0]])
    expected = torch.tensor([[0.6, 0.8]]) * 2**0.5
    assert torch.allclose(normalize_per_sample(x), expected)
    assert torch.allclose(normalize_per_location(x, homogeneous=None), expected)
    assert torch.allclose(normalize_per_location(x).square().mean(), torch.tensor(1.0))


@pytest.mark.parametrize("homogeneous", [1.0, None])
def test_gradients_are_finite_at_zeros_and_right_elsewhere(homogeneous: float | None) -> None:
    x = images(2, 3, 2).requires_grad_()
    normalize_per_location(x, homogeneous=homogeneous).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    f = lambda x: normalize_per_location(x, homogeneous=homogeneous)
    away = torch.randn(2, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(f, away.requires_grad_())
    assert torch.autograd.gradgradcheck(f, away)


@pytest.mark.parametrize("shape", [(4, 7), (4, 3, 6, 5)])
def test_every_sample_has_q_value_1(shape: tuple[int, ...]) -> None:
    x = images(*shape)
    x[0] = 0.0
    y = normalize_per_sample(x)
    q = y.flatten(1).square().mean(dim=1)
    assert torch.allclose(q, torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=q.dtype), rtol=1e-14)
    ratio = (y / x)[2]
    assert torch.allclose(ratio, ratio.mean(), rtol=1e-12)
    assert torch.equal(normalize_per_sample(x[2], start_axis=0), y[2])


def test_a_batch_without_features_is_refused() -> None:
    with pytest.raises(ValueError, match=r"axis 1 .*got shape \(5,\).*start_axis=0"):
        normalize_per_sample(torch.ones(5))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.complex64])
def test_other_types_are_refused(dtype: torch.dtype) -> None:
    for f in (normalize_per_location, normalize_per_sample):
        with pytest.raises(TypeError, match=f"got {dtype}.*255"):
            f(torch.ones(2, 3, 4, 4, dtype=dtype))


@pytest.mark.parametrize("homogeneous", [2.0, None])
def test_the_module_is_the_function(homogeneous: float | None) -> None:
    x = images(2, 4, 5, 3)
    module = PerLocationNormalization(channel_axis=-1, homogeneous=homogeneous)
    expected = normalize_per_location(x, channel_axis=-1, homogeneous=homogeneous)
    assert module.out_channels(3) == expected.shape[-1]
    assert module.state_dict() == {}
    assert str(module) == f"PerLocationNormalization(channel_axis=-1, homogeneous={homogeneous})"
    for same in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(same(x), expected)


def test_the_module_exports_for_any_batch_size() -> None:
    x = images(3, 3, 4, 4, dtype=torch.float32)
    module = nn.Sequential(PerLocationNormalization())
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert torch.equal(exported.module()(x[:2]), module(x[:2]))


def test_old_names_of_arguments_work_and_warn() -> None:
    x = images(2, 3, 4, 4)
    with pytest.warns(DeprecationWarning, match=r"normalize_per_location\(channel_dim=...\)"):
        assert torch.equal(normalize_per_location(x, channel_dim=1), normalize_per_location(x))  # pyright: ignore
    with pytest.warns(DeprecationWarning, match="use start_axis"):
        normalize_per_sample(x, start_dim=1)  # pyright: ignore
    with pytest.warns(DeprecationWarning, match=r"PerLocationNormalization\(channel_dim=...\)"):
        assert PerLocationNormalization(channel_dim=-1).channel_axis == -1  # pyright: ignore

"""Data sets by name: digits, random images, and how images in memory are augmented."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from skipless.train import arrays
from skipless.train.arrays import (
    ArraySplit,
    _splits,
    channel_statistics,
)
from skipless.train.data import data_names, load_data


def pixels(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def test_statistics_are_those_of_numpy_over_more_images_than_one_piece() -> None:
    images = pixels(2345, 3, 4, 5)
    mean, std = channel_statistics(images)
    wide = images.numpy().astype(np.float64)
    assert np.allclose(mean.numpy(), wide.mean(axis=(0, 2, 3)), rtol=1e-6)
    assert np.allclose(std.numpy(), wide.std(axis=(0, 2, 3)), rtol=1e-6)


def test_a_channel_that_never_changes_becomes_zero() -> None:
    images = torch.full((4, 1, 2, 2), 7, dtype=torch.uint8)
    split = ArraySplit(images, torch.zeros(4, dtype=torch.int64), *channel_statistics(images))
    assert torch.equal(split.load([0, 3], None)[0], torch.zeros(2, 1, 2, 2))


def test_digits_are_those_of_scikit_learn_each_in_one_part_only() -> None:
    data = load_data("digits")
    assert (data.num_classes, data.shape) == (10, (1, 8, 8))
    assert (len(data.train), len(data.validation)) == (1437, 360)
    parts = [split.load(range(len(split)), None) for split in (data.train, data.validation)]
    images = torch.cat([part[0] for part in parts]).flatten(1).double().numpy()
    labels = torch.cat([part[1] for part in parts]).numpy()
    truth, numbers = load_digits(return_X_y=True)
    train = images[:1437]
    assert abs(train.mean()) < 1e-6
    assert abs(train.std() - 1) < 1e-6
    # Standardising is increasing, so that grey levels from 0 to 16 come back.
    levels = np.round(16 * (images - images.min()) / (images.max() - images.min()))
    ours = sorted((*row.astype(int), label) for row, label in zip(levels, labels, strict=True))
    theirs = sorted((*row.astype(int), n) for row, n in zip(truth, numbers, strict=True))
    assert ours == theirs
    # A fifth of every class, to the nearest image.
    held_out = np.bincount(labels[1437:], minlength=10)
    assert np.abs(held_out - np.bincount(numbers) / 1797 * 360).max() <= 1
    drawn = train_test_split(np.c_[truth, numbers], test_size=360, stratify=numbers, random_state=0)
    assert np.array_equal(np.c_[levels, labels], np.concatenate(drawn))


def test_digits_are_the_same_where_scikit_learn_keeps_its_file_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_file = load_data("digits").train
    monkeypatch.setattr(arrays, "DIGITS_FILE", "datasets/elsewhere.csv.gz")
    by_import = load_data("digits").train
    for mine, theirs in zip(
        *(s.load(range(len(s)), None) for s in (by_file, by_import)), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_digits_without_scikit_learn_name_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[train\]'"):
        load_data("digits")


def test_smaller_digits_are_means_of_squares_standardised_as_such() -> None:
    whole, small = (load_data("digits", image_size=size) for size in (None, 4))
    assert small.shape == (1, 4, 4)
    for whole_part, small_part in (
        (whole.train, small.train),
        (whole.validation, small.validation),
    ):
        assert isinstance(whole_part, ArraySplit)
        assert isinstance(small_part, ArraySplit)
        squares = whole_part.images.numpy().reshape(-1, 1, 4, 2, 4, 2)
        means = np.rint(squares.mean(axis=(3, 5)))
        assert np.array_equal(small_part.images.numpy(), means)
        assert torch.equal(small_part.labels, whole_part.labels)
    train = small.train.load(range(1437), None)[0].double()
    assert abs(float(train.mean())) < 1e-6
    assert abs(float(train.std(correction=0)) - 1) < 1e-6


def test_smaller_images_are_shifted_by_less() -> None:
    part = load_data("digits", image_size=4, augment=True).train
    assert isinstance(part, ArraySplit)
    assert part.pad == 0  # half of the pixel that whole digits are shifted by, to the even side
    images = np.zeros((2, 1, 32, 32), dtype=np.uint8)
    labels = np.zeros(2, dtype=np.int64)
    for size, pad in ((8, 1), (None, 4)):
        train, _ = _splits((images, labels), (images, labels), pad=4, flip=True, size=size)
        assert train.pad == pad


def test_digits_are_augmented_only_on_demand_and_never_mirrored() -> None:
    draws = torch.tensor([[0.5, 0.5, 0.0]])  # in the middle, and mirrored if that were done
    shifted = torch.tensor([[0.0, 0.5, 0.0]])
    usual, augmented = load_data("digits").train, load_data("digits", augment=True).train
    plain = usual.load([5], None)[0]
    assert torch.equal(usual.load([5], shifted)[0], plain)
    assert torch.equal(augmented.load([5], draws)[0], plain)
    assert torch.equal(augmented.load([5], shifted)[0][..., 1:, :], plain[..., :-1, :])


def test_fewer_samples_are_some_of_all_the_same_every_time() -> None:
    whole = load_data("digits").train.load(range(1437), None)[0].flatten(1)
    first, again = (load_data("digits", train_size=50, validation_size=7) for _ in range(2))
    assert (len(first.train), len(first.validation)) == (50, 7)
    some = first.train.load(range(50), None)[0]
    assert torch.equal(some, again.train.load(range(50), None)[0])
    found = {int((whole == row).all(dim=1).nonzero()[0]) for row in some.flatten(1)}
    assert len(found) == 50


def test_synthetic_images_follow_from_their_index_and_have_mean_0_and_variance_1() -> None:
    data = load_data("synthetic:3x16x16:4:400")
    assert (data.num_classes, data.shape) == (4, (3, 16, 16))
    assert (len(data.train), len(data.validation)) == (400, 40)
    images, labels = data.train.load(range(400), None)
    assert torch.equal(data.train.load([17, 3], None)[0], images[[17, 3]])
    assert torch.bincount(labels).tolist() == [100] * 4
    unseen = data.validation.load(range(40), None)[0]
    assert torch.cdist(unseen.flatten(1), images.flatten(1)).min() > 1  # no image is in both parts
    # 400 x 768 numbers, a quarter of whose variance four patterns share: four standard errors.
    assert abs(images.mean()) < 4 * (0.25 / (4 * 768) + 0.75 / (400 * 768)) ** 0.5
    assert abs(images.var() - 1) < 4 * (2 * (0.25**2 / (4 * 768) + 1 / (400 * 768))) ** 0.5


def test_synthetic_classes_can_be_learned() -> None:
    data = load_data("synthetic:1x8x8:10:2000")
    images, labels = data.train.load(range(2000), None)
    centres = torch.stack([images[labels == label].mean(dim=0).flatten() for label in range(10)])
    unseen, truth = data.validation.load(range(200), None)
    guessed = torch.cdist(unseen.flatten(1), centres).argmin(dim=1)
    # Centres of classes are √(2 · 64 / 4) apart, and the noise along a line between two is √(3/4):
    # half the distance is over 3 standard deviations.
    assert (guessed == truth).float().mean() > 0.95


def test_a_comma_says_what_an_x_says() -> None:
    assert load_data("synthetic:3,32,16").shape == load_data("synthetic:3x32x16").shape


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar", "There is no data set 'cifar'. Did you mean cifar10? The names are digits, "),
        ("FashionMNIST", "Did you mean fashion-mnist?"),
        ("image-folder:/data", "Did you mean imagefolder:PATH?"),
        ("zzzz", "There is no data set 'zzzz'. The names are digits"),
        ("digits:8", "The data set 'digits' is named digits, got 'digits:8'"),
        ("imagefolder", "is named imagefolder:PATH, got 'imagefolder'"),
        ("imagefolder:", "is named imagefolder:PATH, got 'imagefolder:'"),
        ("synthetic:3x32", "synthetic:SHAPE[:CLASSES[:SAMPLES]]"),
        ("synthetic:3x32x0", "in positive integers below 10^9, such as"),
        ("synthetic:3x32x32:10:5:1", "synthetic:SHAPE[:CLASSES[:SAMPLES]]"),
    ],
)
def test_a_wrong_name_is_answered_by_the_right_ones(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        load_data(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folder": Path("here")}, "only to fashion-mnist and cifar10, got here for digits"),
        ({"image_size": 3}, "must divide 8, got 3"),
        ({"train_size": 1438}, "train_size of digits must be from 1 to 1437, got 1438"),
        ({"validation_size": 0}, "validation_size of digits must be from 1 to 360, got 0"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_data("digits", **options)


def test_every_name_is_known_to_load_data() -> None:
    for name in data_names():
        with pytest.raises((ValueError, OSError)) as refused:
            load_data(name, train_size=-1, folder=Path("/nonexistent"))
        assert "There is no data set" not in str(refused.value)

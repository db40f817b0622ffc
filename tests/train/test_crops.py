"""Crops: a batch at once as an image at a time, by other routes, and their distribution."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from skipless.cli import main
from skipless.record import Record
from skipless.train.batches import Batches
from skipless.train.crops import DRAWS, crop_image, inception_boxes, resize_boxes, shift_and_flip
from skipless.train.data import load_data

DIGITS = ["--model", "mlp:14", "--width", "8", "--crop", "inception", "--threads", "1"]


def pixels(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def inception_draws(n: int, seed: int = 1) -> Tensor:
    return torch.rand(n, DRAWS["inception"], generator=torch.Generator().manual_seed(seed))


def one_by_one(images: Tensor, draws: Tensor, pad: int, flip: bool) -> np.ndarray:
    """Crops and mirrors by numpy, an image and a choice at a time."""
    done = []
    for image, (row, column, mirror) in zip(images.numpy(), draws.tolist(), strict=True):
        padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)))
        top, left = int(row * (2 * pad + 1)), int(column * (2 * pad + 1))
        window = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
        done.append(np.flip(window, axis=2) if flip and mirror < 0.5 else window)
    return np.stack(done)


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("pad", [0, 1, 4])
def test_a_batch_is_cropped_and_mirrored_as_its_images_are_one_by_one(pad: int, flip: bool) -> None:
    images = pixels(200, 3, 9, 7)
    draws = torch.rand(200, 3, generator=torch.Generator().manual_seed(1))
    ours = shift_and_flip(images, draws, pad, flip)
    assert np.array_equal(ours.numpy(), one_by_one(images, draws, pad, flip))


def test_chances_at_their_limits_stay_within_the_image() -> None:
    images = pixels(2, 1, 5, 5)
    largest = torch.tensor(1.0).nextafter(torch.tensor(0.0)).item()
    draws = torch.tensor([[0.0, 0.0, 0.0], [largest, largest, largest]])
    ours = shift_and_flip(images, draws, 4, True)
    assert np.array_equal(ours.numpy(), one_by_one(images, draws, 4, True))


def box_by_the_book(draws: list[float], height: int, width: int) -> tuple[int, ...] | None:
    """Top, left, height and width as torchvision's documentation describes them, one by one."""
    for attempt in range(10):
        area = height * width * (0.08 + 0.92 * draws[3 + 2 * attempt])
        ratio = (3 / 4) * (16 / 9) ** draws[4 + 2 * attempt]
        h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < h <= height and 0 < w <= width:
            return int(draws[0] * (height - h + 1)), int(draws[1] * (width - w + 1)), h, w
    return None


@pytest.mark.parametrize(("height", "width"), [(8, 8), (32, 32), (375, 500), (60, 240), (30, 900)])
def test_boxes_are_those_drawn_one_by_one(height: int, width: int) -> None:
    draws = inception_draws(300)
    corners, sizes, fits = inception_boxes(draws, height, width)
    for i, own in enumerate(draws.tolist()):
        expected = box_by_the_book(own, height, width)
        assert bool(fits[i]) == (expected is not None)
        if expected is not None:
            assert (*corners[i].tolist(), *sizes[i].tolist()) == expected
    if width == 30 * height:
        assert not fits.any()  # 4/3 of the height squared is less than 8 % of the area


def accepted(x: np.ndarray, tilt: float) -> np.ndarray:
    """How likely a box of log-ratio x fits: the largest area that does is e^-|x - tilt|."""
    return np.clip((np.exp(-np.abs(x - tilt)) - 0.08) / 0.92, 0.0, None)


@pytest.mark.parametrize(("height", "width"), [(3000, 3000), (3000, 4000)])
def test_areas_ratios_and_places_of_boxes_have_their_distribution(height: int, width: int) -> None:
    """In large images, where rounding does not matter; means within four standard errors."""
    n = 40_000
    corners, sizes, fits = inception_boxes(inception_draws(n), height, width)
    assert fits.all()
    h, w = sizes.double().unbind(1)
    area, x = (h * w / (height * width)).numpy(), (w / h).log().numpy()
    # Of a uniform log-ratio and a uniform area those that fit: the density of x, and given x the
    # area is uniform from 0.08 to the largest. Integrated on a grid.
    grid = np.linspace(-math.log(4 / 3), math.log(4 / 3), 20_001)
    density = accepted(grid, math.log(width / height))
    density /= density.sum()
    largest = 0.08 + 0.92 * accepted(grid, math.log(width / height))
    moments = {
        "x": (x, grid @ density),
        "x²": (x**2, grid**2 @ density),
        "area": (area, (0.08 + largest) / 2 @ density),
        "area²": (area**2, (0.08**2 + 0.08 * largest + largest**2) / 3 @ density),
    }
    for name, (found, expected) in moments.items():
        error = found.std() / math.sqrt(n)
        assert abs(found.mean() - expected) < 4 * error, name
    assert area.min() > 0.0799
    assert np.abs(x).max() < math.log(4 / 3) + 0.002
    # Corners are uniform over the places where the box stays inside.
    for axis, side in enumerate((height, width)):
        place = ((corners[:, axis] + 0.5) / (side - sizes[:, axis] + 1)).numpy()
        assert abs(place.mean() - 0.5) < 4 / math.sqrt(12 * n)
        assert abs((place**2).mean() - 1 / 3) < 4 * math.sqrt(4 / 45 / n)


@pytest.mark.parametrize("flip", [True, False])
def test_resized_boxes_are_those_of_pillow_and_of_torch(flip: bool) -> None:
    # In the middle half of grey levels: Pillow would clip what overshoots after rows already.
    images, draws = pixels(60, 3, 28, 28) // 2 + 64, inception_draws(60)
    ours = resize_boxes(images, draws, flip)
    corners, sizes, fits = inception_boxes(draws, 28, 28)
    assert fits.all()
    for i, image in enumerate(images):
        (top, left), (h, w) = corners[i].tolist(), sizes[i].tolist()
        part = image[None, :, top : top + h, left : left + w]
        by_torch = F.interpolate(part.double(), (28, 28), mode="bicubic", antialias=True)[0]
        whole = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        by_pillow = whole.crop((left, top, left + w, top + h)).resize(
            (28, 28), Image.Resampling.BICUBIC
        )
        mirrored = flip and draws[i, 2] < 0.5
        mine = ours[i].flip(2) if mirrored else ours[i]
        assert torch.allclose(mine.double(), by_torch, atol=1e-3)
        # Pillow rounds to bytes after rows and after columns, whose weights add up to 1.4 at most.
        levels = mine.permute(1, 2, 0).numpy()
        assert np.abs(levels - np.asarray(by_pillow, dtype=np.float64)).max() < 1.25


def test_what_overshoots_is_cut_off() -> None:
    images = resize_boxes(pixels(20, 1, 9, 9), inception_draws(20), flip=False)
    assert images.min() == 0.0
    assert images.max() == 255.0


def test_an_image_in_which_no_box_fits_is_taken_whole_in_memory() -> None:
    images, draws = pixels(2, 1, 4, 4), inception_draws(2)
    draws[0, 3::2], draws[0, 4::2] = 0.9999, 0.0  # a box 4.6 high and 3.5 wide, ten times
    draws[0, 2] = 0.9
    ours = resize_boxes(images, draws, flip=True)
    assert torch.allclose(ours[0], images[0].float(), atol=1e-4)
    assert not torch.allclose(ours[1], images[1].float(), atol=1.0)


def photo(height: int, width: int, grain: int = 10) -> Image.Image:
    """A smooth random image."""
    coarse = pixels(height // grain, width // grain, 3).numpy()
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def test_an_image_file_is_cut_resized_by_pillow_and_its_middle_taken_where_no_box_fits() -> None:
    image, wide, draws = photo(90, 120), photo(30, 900), inception_draws(1)[0]
    for draws in inception_draws(20):
        box = box_by_the_book(draws.tolist(), 90, 120)
        assert box is not None
        top, left, h, w = box
        expected = image.crop((left, top, left + w, top + h)).resize((28, 28), 3)  # bicubic
        assert crop_image(image, 28, draws, "inception").tobytes() == expected.tobytes()
    middle = crop_image(wide, 28, None, "inception")
    assert crop_image(wide, 28, draws, "inception").tobytes() == middle.tobytes()
    # 224/256 of the shorter side, from the middle.
    by_hand = wide.resize((28, 28), 3, (450 - 105 / 8, 15 - 105 / 8, 450 + 105 / 8, 15 + 105 / 8))
    assert np.abs(np.asarray(middle, int) - np.asarray(by_hand, int)).max() <= 2


def test_a_large_jpeg_decoded_at_a_fraction_shows_the_same_box() -> None:
    buffer, image = io.BytesIO(), photo(1200, 1600, grain=50)
    image.save(buffer, "JPEG", quality=95)
    draws = inception_draws(1)[0]
    file = Image.open(buffer)
    ours = np.asarray(crop_image(file, 56, draws, "inception"), float)
    assert file.size[0] < 1600  # it was decoded at a fraction
    box = box_by_the_book(draws.tolist(), 1200, 1600)
    assert box is not None
    top, left, h, w = box
    exact = image.crop((left, top, left + w, top + h)).resize((56, 56), 3)
    # A box that is off by a pixel of the smaller image would be off by 3.
    assert np.abs(ours - np.asarray(exact, float)).mean() < 1


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for part, number in (("train", 12), ("val", 2)):
        (folder / part / "some").mkdir(parents=True)
        for i in range(number):
            photo(40 + i, 70 - i).save(folder / part / "some" / f"{i:02}.png")
    return folder


def test_boxes_follow_from_seed_epoch_and_image_whoever_loads_it(photos: Path) -> None:
    data = load_data(f"imagefolder:{photos}", image_size=16, crop="inception")
    alone = [images for images, _ in Batches(data.train, 4).epoch(3)]
    halves = [[i for i, _ in Batches(data.train, 4, rank=r, world=2).epoch(3)] for r in range(2)]
    resumed = [images for images, _ in Batches(data.train, 4).epoch(3, first_step=1)]
    assert torch.equal(torch.stack(alone), torch.cat([torch.stack(h) for h in halves], dim=1))
    assert torch.equal(torch.stack(alone[1:]), torch.stack(resumed))
    other = next(iter(Batches(data.train, 4).epoch(4)))[0]
    assert not torch.equal(alone[0], other)
    # Validation shows the middle, resized bicubically.
    plain = load_data(f"imagefolder:{photos}", image_size=16).validation.load([0], None)[0]
    assert not torch.equal(data.validation.load([0], None)[0], plain)


def test_small_data_sets_are_cropped_too_and_digits_never_mirrored() -> None:
    data = load_data("digits", crop="inception", train_size=50)
    draws = inception_draws(50)
    draws[:, 3::2] = 1.0
    draws[:, 4::2] = 0.5  # whole squares
    draws[:, 2] = 0.0
    whole = data.train.load(range(50), None)[0]
    assert torch.allclose(data.train.load(range(50), draws)[0], whole, atol=1e-5)
    images = next(iter(Batches(data.train, 50).epoch(0)))[0]
    assert torch.isfinite(images).all()
    assert abs(images.std() - 1) < 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--no-augment"], "crop inception augments images, but augment is off. Drop one of them."),
        (["--data", "synthetic:3x8x8"], "Leave augment and crop out."),
    ],
)
def test_inception_crops_are_refused_where_they_cannot_be(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["train", *DIGITS, *options, "--output", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_with_inception_crops_resumes_exactly(tmp_path: Path) -> None:
    options = [*DIGITS, "--log-every", "1", "--batch-size", "96", "--steps", "6"]
    assert main(["train", *options, "--output", str(tmp_path / "whole")]) == 0
    half = [*options, "--checkpoint-every", "3", "--keep", "9", "--output", str(tmp_path / "half")]
    assert main(["train", *half]) == 0
    # As if it had been killed after step 3.
    (tmp_path / "half" / "checkpoints" / "step-00000006").rename(tmp_path / "last")
    assert main(["train", "--resume", "--output", str(tmp_path / "half")]) == 0
    losses = [Record.read(tmp_path / n).series("train", "loss") for n in ("whole", "half")]
    assert losses[0] == losses[1]

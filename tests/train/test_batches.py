"""Samples are dealt out the same, however many processes, parts and workers share the work."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from skipless.train.batches import Batches
from skipless.train.data import Data, load_data


@dataclass
class Numbers:
    """A split whose images tell who they are and what chance made of them."""

    size: int
    slow = False
    draws = 3

    def __len__(self) -> int:
        return self.size

    @property
    def labels(self) -> Tensor:
        return torch.arange(self.size)

    def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
        labels = torch.as_tensor(indices)
        shown = torch.full((len(labels), 3), -1.0) if draws is None else draws
        return shown[:, :, None, None], labels


def contents(batches: Batches, epoch: int, first_step: int = 0) -> list[list[tuple[float, ...]]]:
    """What each batch holds: index and draws of every sample."""
    return [
        [(int(i), *c.flatten().tolist()) for i, c in zip(labels, images, strict=True)]
        for images, labels in batches.epoch(epoch, first_step)
    ]


def test_an_epoch_has_every_sample_once_but_for_the_rest_that_makes_no_batch() -> None:
    batches = Batches(Numbers(103), 10)
    assert batches.steps == 10
    epoch = contents(batches, 0)
    assert [len(batch) for batch in epoch] == [10] * 10
    assert len({sample[0] for batch in epoch for sample in batch}) == 100


@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (1, 3), (2, 3), (4, 2)])
def test_processes_and_parts_share_what_one_would_take_alone(world: int, accumulate: int) -> None:
    alone = contents(Batches(Numbers(100), 24, seed=5), 3)
    shares = [
        contents(Batches(Numbers(100), 24, 5, rank, world, accumulate), 3) for rank in range(world)
    ]
    for step, batch in enumerate(alone):
        parts = [share[step * accumulate + m] for share in shares for m in range(accumulate)]
        assert {len(part) for part in parts} == {24 // (world * accumulate)}
        assert sorted(sample for part in parts for sample in part) == sorted(batch)
    assert all(len(share) == len(alone) * accumulate for share in shares)


@pytest.mark.parametrize("first_step", [0, 1, 3, 4])
def test_an_epoch_entered_late_is_the_tail_of_the_whole(first_step: int) -> None:
    batches = Batches(Numbers(50), 12, seed=1, rank=1, world=2, accumulate=2)
    assert contents(batches, 7, first_step) == contents(batches, 7)[2 * first_step :]


def test_epochs_and_seeds_differ_in_order_and_in_chances_and_repeat_themselves() -> None:
    seen = {}
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1)):
        samples = [s for batch in contents(Batches(Numbers(60), 10, seed), epoch) for s in batch]
        assert samples == [
            s for batch in contents(Batches(Numbers(60), 10, seed), epoch) for s in batch
        ]
        seen[seed, epoch] = samples
    orders = {tuple(s[0] for s in samples) for samples in seen.values()}
    draws = {s[1:] for samples in seen.values() for s in samples}
    assert (len(orders), len(draws)) == (4, 4 * 60)


def test_chances_are_uniform_and_do_not_follow_the_order() -> None:
    samples = np.array([s for batch in contents(Batches(Numbers(4000), 100), 0) for s in batch])
    place = np.arange(4000) / 4000
    for column in samples[:, 1:].T:
        # The uniform law has variance 1/12; four standard errors, here and of a correlation.
        assert abs(column.mean() - 0.5) < 4 * (1 / 12 / 4000) ** 0.5
        assert abs(np.corrcoef(column, place)[0, 1]) < 4 / 4000**0.5
        assert column.min() >= 0
        assert column.max() < 1


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_validation_has_every_sample_once_in_order_and_untouched(world: int) -> None:
    shares = [
        list(Batches(Numbers(20), 4 * world, rank=rank, world=world).in_order())
        for rank in range(world)
    ]
    indices = [int(i) for share in shares for _, labels in share for i in labels]
    assert indices == list(range(20))
    assert all((images == -1).all() for share in shares for images, _ in share)
    sizes = [sum(len(labels) for _, labels in share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_validation_takes_a_batch_larger_than_the_set() -> None:
    assert [len(labels) for _, labels in Batches(Numbers(20), 64).in_order()] == [20]


def test_every_batch_of_images_is_normalised() -> None:
    twice = Batches(Numbers(20), 10, normalize=lambda images: images * 2)
    for (doubled, labels), (images, same) in zip(
        twice.epoch(0), Batches(Numbers(20), 10).epoch(0), strict=True
    ):
        assert torch.equal(doubled, images * 2)
        assert torch.equal(labels, same)
    assert (next(twice.in_order())[0] == -2).all()


def test_augmented_images_are_the_same_for_two_processes_as_for_one() -> None:
    data = load_data("digits", augment=True)
    (alone, labels), *_ = Batches(data.train, 64).epoch(2)
    halves = [next(iter(Batches(data.train, 64, rank=r, world=2).epoch(2))) for r in range(2)]
    assert torch.equal(torch.cat([half[0] for half in halves]), alone)
    assert torch.equal(torch.cat([half[1] for half in halves]), labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"batch_size": 8, "seed": -1}, "seed must be >= 0, got -1"),
        ({"batch_size": 8, "workers": -1}, "workers must be >= 0, got -1"),
        ({"batch_size": 8, "rank": 2, "world": 2}, "rank must be from 0 to 1, got 2"),
        ({"batch_size": 8, "world": 2, "accumulate": 3}, "must be a multiple of 6 .*, got 8"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batches(Numbers(20), **options)


def test_an_epoch_that_cannot_be_is_refused_before_its_first_batch() -> None:
    with pytest.raises(ValueError, match=r"batch_size must be at most the 20 samples .*, got 24"):
        Batches(Numbers(20), 24).epoch(0)
    with pytest.raises(ValueError, match="first_step must be from 0 to 2, got 3"):
        Batches(Numbers(20), 10).epoch(0, first_step=3)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """24 training and 5 validation images in files; the last one for training is damaged."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for part, number in (("train", 24), ("val", 5)):
        (folder / part / "some").mkdir(parents=True)
        for i in range(number):
            image = Image.fromarray(rng.integers(0, 256, (20, 26, 3), dtype=np.uint8))
            image.save(folder / part / "some" / f"{i:02}.jpg")
    (folder / "train" / "some" / "23.jpg").write_bytes(b"nonsense")
    return load_data(f"imagefolder:{folder}", image_size=14, crop="inception")


def test_workers_deliver_what_one_process_does_and_leave_nothing_behind(
    photos: Data,
) -> None:
    # The damaged image is the rest that makes no batch in one of the first epochs.
    whole = next(e for e in range(200) if contents(Batches(Numbers(24), 5), e) == [
        b for b in contents(Batches(Numbers(24), 5), e) if all(s[0] != 23 for s in b)])  # fmt: skip
    alone = Batches(photos.train, 5)
    shared = Batches(photos.train, 5, workers=2, normalize=torch.neg)
    state, others = torch.get_rng_state(), set(multiprocessing.active_children())
    for first_step in (0, 2):  # twice, by the same workers
        ours, truth = (list(b.epoch(whole, first_step)) for b in (shared, alone))
        assert len(ours) == len(truth) == 4 - first_step
        for (images, labels), (same, numbers) in zip(ours, truth, strict=True):
            assert torch.equal(images, -same)
            assert torch.equal(labels, numbers)
    left = shared.epoch(whole)
    assert torch.equal(next(left)[0], -next(iter(alone.epoch(whole)))[0])
    entered = shared.epoch(whole, 3)  # an epoch that is left early does no harm to the next
    assert torch.equal(next(entered)[0], -next(iter(alone.epoch(whole, 3)))[0])
    with pytest.raises(RuntimeError, match="Another epoch was started with the same workers"):
        next(left)
    damaged = next(e for e in range(200) if e != whole and any(
        s[0] == 23 for b in contents(Batches(Numbers(24), 5), e) for s in b))  # fmt: skip
    with pytest.raises(ValueError, match=r"some/23\.jpg cannot be read as an image") as error:
        list(shared.epoch(damaged))
    assert "\n" not in str(error.value)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(set(multiprocessing.active_children()) - others) == 2
    del error, shared, left, entered
    assert set(multiprocessing.active_children()) <= others  # no worker outlives its batches


def test_a_function_that_workers_cannot_get_is_refused(photos: Data) -> None:
    batches = Batches(photos.validation, 5, workers=1, normalize=lambda images: images)
    with pytest.raises(ValueError, match=r"must be picklable to reach worker processes.*workers=0"):
        next(batches.in_order())


SCRIPT = """
import os, signal, sys, time
from skipless.train.batches import Batches
from skipless.train.data import load_data

if __name__ == "__mp_main__":  # in a worker that is only starting, which Ctrl-C reaches too
    os.kill(os.getpid(), signal.SIGINT)
if __name__ == "__main__":
    data = load_data("imagefolder:" + sys.argv[1], image_size=14)
    batches = Batches(data.validation, 1, workers=1)
    iterator = batches.in_order()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    next(iterator)
    for number in (signal.SIGINT, signal.SIGTERM):  # as Ctrl-C, or a scheduler: to the whole group
        try:
            os.killpg(0, number)
            time.sleep(10)
        except KeyboardInterrupt:
            pass
    print(1 + len(list(iterator)))
    worker = batches._workers.loader._iterator._workers[0]
    os.kill(worker.pid, signal.SIGKILL)
    try:
        list(batches.in_order())
    except OSError as error:
        print(error)
    again = Batches(data.validation, 1, workers=1).in_order()
    next(again)  # the script ends while this worker waits: Python must not wait for it
"""


def run_script(script: str, photos: Data, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    images = Path(photos.validation.source.file(0)[0]).parents[2]  # pyright: ignore
    return subprocess.run(
        [sys.executable, folder / "script.py", images],
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_workers_outlive_signals_die_in_one_line_and_end_with_the_script(
    photos: Data, tmp_path: Path
) -> None:
    done = run_script(SCRIPT, photos, tmp_path)
    assert done.stderr == ""
    delivered, death = done.stdout.splitlines()
    assert delivered == "5"
    assert death.startswith("A worker process that loads images died (")


ORPHANED = """
import os, signal, sys
from skipless.train.batches import Batches
from skipless.train.data import load_data

if __name__ == "__main__":
    data = load_data("imagefolder:" + sys.argv[1], image_size=14)
    batches = Batches(data.validation, 1, workers=1)
    next(batches.in_order())
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_workers_end_with_a_run_that_is_killed(photos: Data, tmp_path: Path) -> None:
    # The pipe closes when its last holder ends, be it a worker or the process that forked it;
    # otherwise the time runs out.
    done = run_script(ORPHANED, photos, tmp_path)
    assert done.returncode == -signal.SIGKILL

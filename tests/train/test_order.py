"""Batches of few classes: what they hold, how many there are, and that all share them alike."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest
import torch
from torch import Tensor

from skipless.train.batches import Batches, count_batches
from skipless.train.data import load_data


@dataclass(eq=False)
class Classes:
    """A split whose images are their own indices, with so many samples of each class."""

    counts: Sequence[int]
    slow: bool = False
    draws: int = 3
    labels: Tensor = field(init=False)

    def __post_init__(self) -> None:
        ordered = torch.arange(len(self.counts)).repeat_interleave(torch.tensor(self.counts))
        mixed = torch.randperm(len(ordered), generator=torch.Generator().manual_seed(1))
        self.labels = ordered[mixed]

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
        chosen = torch.as_tensor(indices)
        return chosen[:, None, None, None].float(), self.labels[chosen]


def contents(batches: Batches, epoch: int, first_step: int = 0) -> list[list[tuple[int, int]]]:
    """Index and label of every sample, batch by batch."""
    return [
        list(zip(images.flatten().int().tolist(), labels.tolist(), strict=True))
        for images, labels in batches.epoch(epoch, first_step)
    ]


@pytest.mark.parametrize("classes", [1, 2, 3, 4])
def test_every_batch_has_so_many_classes_and_equally_many_samples_of_each(classes: int) -> None:
    batches = Batches(Classes([40, 37, 60, 24]), 12, classes_per_batch=classes)
    epoch = contents(batches, 0)
    assert len(epoch) == batches.steps
    for batch in epoch:
        counts = Counter(label for _, label in batch)
        assert set(counts.values()) == {12 // classes}
        assert len(counts) == classes
    samples = [index for batch in epoch for index, _ in batch]
    assert len(set(samples)) == len(samples)


@cache
def most_batches(pieces: tuple[int, ...], classes: int) -> int:
    """By trying every choice of classes for the next batch."""
    left = (
        tuple(sorted(own - (c in chosen) for c, own in enumerate(pieces)))
        for chosen in itertools.combinations(range(len(pieces)), classes)
        if all(pieces[c] for c in chosen)
    )
    return max((1 + most_batches(own, classes) for own in left), default=0)


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_there_are_as_many_batches_as_can_be(classes: int) -> None:
    for pieces in itertools.combinations_with_replacement(range(1, 6), 4):
        wanted = most_batches(pieces, classes)
        counts = [2 * own + 1 for own in pieces]  # of pieces of 2, with a sample to spare
        assert count_batches(counts, 2 * classes, classes) == wanted
    # The last of them is the most uneven one: all of its batches can be made.
    assert len(contents(Batches(Classes([2, 2, 2, 11]), 4, classes_per_batch=2), 0)) == 3


def test_which_classes_and_samples_meet_differs_from_epoch_to_epoch_and_by_seed() -> None:
    split = Classes([30] * 4)
    seen = {
        (seed, epoch): contents(Batches(split, 6, seed, classes_per_batch=2), epoch)
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    orders = {str(epoch) for epoch in seen.values()}
    assert len(orders) == 4
    assert seen[1, 1] == contents(Batches(split, 6, 1, classes_per_batch=2), 1)
    pairs = Counter(
        tuple(sorted({label for _, label in batch})) for epoch in seen.values() for batch in epoch
    )
    assert len(pairs) == 6  # all pairs of 4 classes
    parts = {label for batch in seen[0, 0] for _, label in batch[:3]}
    assert parts == {0, 1, 2, 3}
    assert any(len({label for _, label in batch[:3]}) == 2 for batch in seen[0, 0])  # mixed


@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (1, 3), (2, 3)])
def test_processes_and_parts_share_what_one_would_take_alone(world: int, accumulate: int) -> None:
    split = Classes([30, 20, 40])
    alone = contents(Batches(split, 12, 5, classes_per_batch=2), 3)
    shares = [
        contents(Batches(split, 12, 5, rank, world, accumulate, classes_per_batch=2), 3)
        for rank in range(world)
    ]
    for step, batch in enumerate(alone):
        parts = [share[step * accumulate + m] for share in shares for m in range(accumulate)]
        assert sorted(sample for part in parts for sample in part) == sorted(batch)


def test_an_epoch_entered_late_is_the_tail_of_the_whole() -> None:
    batches = Batches(Classes([30, 20, 40]), 12, classes_per_batch=1)
    assert contents(batches, 7, 3) == contents(batches, 7)[3:]


@pytest.mark.parametrize(
    ("classes", "batch_size", "message"),
    [
        (0, 12, r"from 1 to 3"),
        (4, 12, r"from 1 to 3, .*, got 4"),
        (5, 10, r"from 1 to 3"),
        (2, 9, r"multiple of classes_per_batch, 2, got 9"),
        (1, 24, r"take 24 of each, but one class has only 20"),
    ],
)
def test_what_cannot_be_had_is_said(classes: int, batch_size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batches(Classes([30, 20, 40]), batch_size, classes_per_batch=classes)


@pytest.mark.parametrize("name", ["digits", "synthetic:1x4x4:5:200"])
def test_data_sets_know_the_labels_of_what_is_kept_of_them(name: str) -> None:
    split = load_data(name, train_size=60).train
    loaded = split.load(range(60), None)[1]
    assert torch.equal(torch.as_tensor(split.labels), loaded)

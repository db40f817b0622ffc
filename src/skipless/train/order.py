"""The order of an epoch whose batches have few classes each.

That is what a device sees that is near one thing at a time: a camera, or the phone of one user.
What normalises over a batch then normalises over these classes alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def order_by_classes(
    labels: Tensor, batch_size: int, classes: int, generator: torch.Generator
) -> Tensor:
    """Samples in an order of which each `batch_size` have `classes` classes, equally many of each.

    Which samples of a class go together, which classes meet, and which batch comes first are left
    to chance. No sample comes twice; those that fill no batch are left out, others in each epoch.

    >>> labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])
    >>> order = order_by_classes(labels, 4, 2, torch.Generator().manual_seed(0))
    >>> [len(set(labels[batch].tolist())) for batch in order.split(4)]
    [2, 2, 2]
    """
    share = batch_size // classes
    own = [torch.nonzero(labels == label).flatten() for label in labels.unique()]
    shuffled = [samples[torch.randperm(len(samples), generator=generator)] for samples in own]
    # Pieces of one class, which no batch has two of.
    waiting = [list(samples[: len(samples) // share * share].split(share)) for samples in shuffled]
    batches = []
    for _ in range(number_of_batches([len(samples) for samples in own], batch_size, classes)):
        chance = torch.rand(len(waiting), generator=generator).tolist()
        # Those with most pieces left first, or in the end one class would be left alone.
        order = sorted(range(len(waiting)), key=lambda c: (-len(waiting[c]), chance[c]))
        batch = torch.cat([waiting[c].pop() for c in order[:classes]])
        # Shuffled, so that processes that share a batch do not share it by class.
        batches.append(batch[torch.randperm(batch_size, generator=generator)])
    places = torch.randperm(len(batches), generator=generator).tolist()
    return torch.cat([batches[place] for place in places])


def number_of_batches(counts: Sequence[int], batch_size: int, classes: int) -> int:
    """How many batches of `classes` classes there are in an epoch, from the size of each class.

    A class of n samples has ⌊n classes / batch_size⌋ pieces. Into k batches no more than k of them
    can go, one each; where these are enough for all of the batches, taking the classes with most
    pieces first fills them. So it is the largest k with Σ min(pieces, k) ≥ k classes.

    >>> number_of_batches([10, 10, 10], batch_size=10, classes=2)
    3
    >>> number_of_batches([100, 10, 10], batch_size=10, classes=2)
    4
    """
    pieces = [count * classes // batch_size for count in counts]
    k = sum(pieces) // classes
    # Where k is too large, a smaller one takes its place, never below the largest that fits.
    while (fewer := sum(min(own, k) for own in pieces) // classes) < k:
        k = fewer
    return k


def demand_classes(counts: Sequence[int], batch_size: int, classes: int) -> None:
    """Raise where batches cannot have so many classes, or where one would never be seen."""
    if not 1 <= classes <= len(counts):
        raise ValueError(
            f"classes_per_batch = {classes} was asked for, but the images for training have "
            f"{len(counts)} classes. Give a number from 1 to {len(counts)}."
        )
    if batch_size % classes:
        raise ValueError(
            f"Batches of {batch_size} images of {classes} classes were asked for, equally many of "
            f"each. Make the size a multiple of {classes}."
        )
    if (fewest := min(counts)) < batch_size // classes:
        raise ValueError(
            f"Batches of {batch_size} images of {classes} classes take {batch_size // classes} of "
            f"each, but one class has only {fewest} and would never be seen. Make batches smaller, "
            "or take more classes."
        )

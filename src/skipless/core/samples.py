"""The q and c values of pairs of samples, as a framework takes them from a network.

`agreement` makes estimates of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from .activations import Array
from .graph import Graph, Sum

T = TypeVar("T", bound=Hashable)  # a framework's own name for a tensor


def demand_batch_of_pairs(shape: tuple[int, ...]) -> None:
    """Refuse inputs of a shape in which samples 0 and 1, 2 and 3, … are no pairs."""
    if len(shape) < 2 or shape[0] < 2 or shape[0] % 2:
        raise ValueError(
            f"inputs of shape {shape} were given, but a batch of pairs has an even number of "
            "samples of one dimension or more. Use pair_inputs, or drop a sample."
        )


def demand_possible_pairs(cosine: float, channels: int, normalisation: str) -> None:
    """Refuse a cosine that no samples have, or none of so few channels."""
    if not -1.0 <= cosine <= 1.0:
        raise ValueError(f"A pair with a cosine of {cosine:g} was asked for; it is -1 to 1.")
    if channels < 2 and abs(cosine) < 1.0:
        raise ValueError(
            f"Pairs with a cosine of {cosine:g} were asked for, but two samples of {channels} "
            f"channel are alike or opposite. Use a cosine of 1 or -1, or {normalisation} to make "
            "two channels of one."
        )


def at_nodes(
    graph: Graph,
    tensors: Mapping[int, tuple[T, float]],
    seen: Mapping[T, tuple[npt.ArrayLike, npt.ArrayLike]],
) -> tuple[Array, Array]:
    """The q and c values of shape (live nodes, pairs), from those `seen` at recorded tensors.

    For nodes of `graph`, `tensors` has a recorded one and the factor by which it is larger.
    """
    found: dict[int, tuple[Array, Array]] = {}
    for index in sorted(graph.live):
        if index in tensors:
            tensor, scale = tensors[index]
            q, c = (np.asarray(values, np.float64) for values in seen[tensor])
            found[index] = (q / scale**2, c)
        else:  # a factor that the record applies together with what precedes it
            node = graph.nodes[index]
            assert isinstance(node, Sum)
            assert len(node.inputs) == 1
            q, c = found[node.inputs[0]]
            found[index] = (q * node.weights[0] ** 2, c)
    return stacked(list(found.values()))


def stacked(samples: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """All q and all c values, with another dimension in front: of draws, or of nodes."""
    if not samples:
        raise ValueError("No seed was given. Ask for one or more, such as seeds=10.")
    q, c = zip(*samples, strict=True)
    return np.stack(q), np.stack(c)

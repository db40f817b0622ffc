"""What is known of a recorded network once it is read: its graph, and how it lies in the record."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from . import record as rec
from .activations import Activation
from .axes import Axes
from .graph import Graph
from .network import Size
from .record import Recorded

T = TypeVar("T", bound=Hashable)  # a framework's own name for a tensor
Kind = Literal[
    "input", "affine", "norm", "move", "concat", "sum", "product", "activation", "gate", "scale",
    "part", "output",
]  # fmt: skip


@dataclass(frozen=True)
class Step(Generic[T]):
    """What a tensor is to the graph: an operation of this kind on `inputs`.

    It is `scale` times what the graph has at `node`. The input of an activation is the tensor that
    the whole function is applied to; `phi` is known if it was recognised by its values, and the
    function is the model's `own` if it is none of the known. A "part" stays as it is. An "output"
    is what is computed after the network, from its results.
    """

    kind: Kind
    node: int
    inputs: tuple[T, ...] = ()
    scale: float = 1.0
    phi: Activation | None = None
    own: bool = False


@dataclass(frozen=True)
class Notes:
    """What the graph does not show: normalisation layers, and where it only approximates."""

    norms: list[str] = field(default_factory=list[str])
    approximate: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Reading(Generic[T]):
    """The graph of a recorded network, and how it lies in the record.

    `steps` has the tensors that nodes stand for, not those inside an activation; `axes` has all.
    `sizes` has the channels of nodes, where they are known.
    """

    graph: Graph
    notes: Notes
    steps: Mapping[T, Step[T]]
    axes: Mapping[T, Axes]
    sizes: Mapping[int, Size]
    outputs: Sequence[T]

    def tensors(self) -> dict[int, tuple[T, float]]:
        """For nodes of the graph, a recorded tensor and the factor by which it is larger."""
        found: dict[int, tuple[T, float]] = {}
        for tensor, step in self.steps.items():
            if step.kind in ("input", "affine"):  # the last one: prepared, or with its bias
                found[step.node] = (tensor, 1.0)
            elif step.kind not in ("move", "output"):
                found.setdefault(step.node, (tensor, step.scale))
        return found

    @property
    def activations(self) -> dict[T, str]:
        """The names of the activations that were recognised."""
        return {t: step.phi.name for t, step in self.steps.items() if step.phi is not None}


def find_sizes(
    record: Recorded[T], steps: Mapping[T, Step[T]], axes: Mapping[T, Axes]
) -> dict[int, Size]:
    """How many channels the nodes have, and how many numbers each output of a layer reads."""

    def channels(tensor: T) -> int | None:
        shape = record.shape(tensor)
        found = [shape[axis] for axis in axes[tensor].channels if axis < len(shape)]
        return None if None in found else math.prod(size for size in found if size is not None)

    sizes: dict[int, Size] = {}
    for tensor, step in steps.items():
        if step.kind == "move" or step.node in sizes or not (count := channels(tensor)):
            continue
        fan_in = channels(step.inputs[0]) if step.kind == "affine" else None
        layer = record.operations.get(tensor)
        own = layer.channels if isinstance(layer, rec.Layer) else None
        groups = fan_in // own if fan_in and own else 1
        sizes[step.node] = Size(count, (fan_in or 1) // groups, groups)
    return sizes

"""Where a recorded network ends: what no layer reads may be anything, and stays as it is.

Such are probabilities, or the value and the advantages of a duelling Q-network: the signal has left
the network, which ends before them.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import permutations
from typing import TypeVar

from . import record as rec
from .axes import Roles
from .record import Recorded

T = TypeVar("T", bound=Hashable)  # a framework's own name for a tensor


def find_ends(record: Recorded[T], roles: Mapping[T, Roles]) -> tuple[set[T], list[T]]:
    """What is computed after the network, and the tensors that end it: outputs, or what these read.

    Only what no layer reads can be after the network. If an end is computed from another, as in a
    duelling Q-network that adds the value before it subtracts the mean of the advantages, the
    network ends with its last layers, so that its sums stay as they are.
    """
    operations = record.operations
    live, inner = set(record.outputs), set[T]()
    for tensor in reversed(operations):
        if tensor in live:
            read = [source for source in operations[tensor].sources if source is not None]
            live.update(read)
            if tensor in inner or isinstance(operations[tensor], rec.Layer):
                inner.update(read)
    sources = {t: o.sources for t, o in operations.items() if t in live}
    tail = [tensor for tensor in sources if tensor not in inner]
    beyond: set[T] = set()
    for tensor in tail:
        if _may_end(tensor, operations, roles) or not beyond.isdisjoint(sources[tensor]):
            beyond.add(tensor)
    ends = _ends(beyond, sources, record.outputs, inner)
    while moved := [end for end in ends if _only_moves(end, operations, tail)]:
        beyond.update(moved)
        ends = _ends(beyond, sources, record.outputs, inner)
    if any(_depends(a, b, sources) for a, b in permutations(ends, 2)):
        layers = (rec.Layer, rec.Bias)
        beyond = {tensor for tensor in tail if not isinstance(operations[tensor], layers)}
        ends = _ends(beyond, sources, record.outputs, inner)
    if record.input in ends:
        return set(), list(record.outputs)
    for tensor, operation in operations.items():  # dead ends
        if tensor not in live and not beyond.isdisjoint(operation.sources):
            beyond.add(tensor)
    return beyond, ends


def _ends(
    beyond: Collection[T],
    sources: Mapping[T, Sequence[T | None]],
    outputs: Sequence[T],
    inner: Collection[T],
) -> list[T]:
    """The tensors that are read from `beyond` the network, or are outputs themselves."""
    read = (source for tensor in sources if tensor in beyond for source in sources[tensor])
    every = [tensor for tensor in (*read, *outputs) if tensor is not None]
    found = list(dict.fromkeys(tensor for tensor in every if tensor not in beyond))
    return [end for end in found if end not in inner] or found


def _depends(tensor: T, before: T, sources: Mapping[T, Sequence[T | None]]) -> bool:
    """Whether `tensor` is computed from `before`."""
    new, seen = {tensor}, set[T]()
    while new:
        seen |= new
        new = {s for t in new for s in sources.get(t, ()) if s is not None} - seen
    return before in seen


def _may_end(tensor: T, operations: Mapping[T, rec.Operation[T]], roles: Mapping[T, Roles]) -> bool:
    """Whether the operation of `tensor` is refused inside a network, and welcome after it."""
    match operations[tensor]:
        case rec.Unsupported(sources=sources, inner=inner):
            return bool(sources) and not inner
        case rec.Move(sources=(source,), axes=axes) if axes.pooled & roles[source].channels:
            while isinstance(operation := operations.get(source), rec.Move):
                (source,) = operation.sources
            return isinstance(operation, rec.Layer | rec.Bias)
        case _:
            return False


def _only_moves(tensor: T, operations: Mapping[T, rec.Operation[T]], tail: Collection[T]) -> bool:
    """Whether `tensor` only arranges the results of a function anew."""
    operation = operations.get(tensor)
    if not isinstance(operation, rec.Move) or tensor not in tail or operation.approximate:
        return False
    if operation.axes.pooled or operation.axes.padded:
        return False
    (source,) = operation.sources
    return isinstance(operations.get(source), rec.Pointwise) or _only_moves(
        source, operations, tail
    )

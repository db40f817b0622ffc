"""Gates: what multiplies a signal in a recorded network, and whether the two are independent.

A product has Q and C maps where its factors are independent: where one of them ends in weights that
the other does not use. The halves of one layer's channels have weights of their own, too.

Of the function of a gate, such as a sigmoid, the purpose is its range. It is not replaced by the
activation that is solved for, but kept, with a factor that makes q = 1.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from . import record as rec
from .activations import Activation, Array, activation
from .axes import Roles
from .graph import Affine, Concat, Fixed, Input, Measured, Node, inputs_of
from .maps import q_map
from .recognise import CLOSE, PROBE, recognise
from .record import Recorded

T = TypeVar("T", bound=Hashable)  # a framework's own name for a tensor

# Functions that keep a gate within a range; others, as in SwiGLU, are activations.
_BOUNDED = ("sigmoid", "hard_sigmoid", "tanh", "hard_tanh", "softsign", "atan", "erf", "identity")


class GateFunction(NamedTuple):
    """`scale` · (φ + `shift`)."""

    phi: Activation
    scale: float
    shift: float


def recognise_gate(values: Array) -> GateFunction | None:
    """The function of a gate with these `values` on `PROBE`; None if it is an activation, or x.

    >>> found = recognise_gate(1.0 + np.tanh(PROBE))
    >>> found.phi.name, round(found.scale, 9), round(found.shift, 9)
    ('tanh', 1.0, 1.0)
    """
    if values.shape != PROBE.shape or not np.all(np.isfinite(values)):
        return None
    found = recognise(values)
    if found is not None and (found.phi is None or found.phi.name not in _BOUNDED):
        return None
    for phi in map(activation, _BOUNDED):
        basis = np.stack([phi(PROBE), np.ones_like(PROBE)], axis=1)
        (scale, offset), *_ = np.linalg.lstsq(basis, values)
        off = np.max(np.abs(basis @ [scale, offset] - values))
        if scale and off <= CLOSE * np.max(np.abs(values)):
            scale, shift = _round(float(scale)), float(offset / scale)
            return GateFunction(phi, scale, _round(shift) if abs(shift) > CLOSE else 0.0)
    return None


def _round(number: float) -> float:
    return float(f"{number:.12g}")  # as many digits as the fit has


@dataclass(frozen=True)
class Gates:
    """The tensors that functions of gates make, parts of channels that meet, gates of means."""

    functions: frozenset[object]
    parts: frozenset[object]
    pooled: frozenset[object]
    tokens: frozenset[object]  # concatenations of constants at places of their own


def find_gates(record: Recorded[T], roles: Mapping[T, Roles]) -> Gates:
    """What products multiply, behind moves, and parts of one tensor that are combined."""
    operations = record.operations
    functions, parts = set[object](), set[object]()
    cut: dict[T, frozenset[T]] = {}  # the parts of channels that a tensor is computed from
    pooled = set[T]()  # what has one number for all places
    tokens = set[T]()
    for tensor, operation in operations.items():
        sources = [source for source in operation.sources if source is not None]
        if all(s in pooled for s in sources) or _pools_all(record, tensor, operation):
            pooled.add(tensor)
        if isinstance(operation, rec.Concatenation) and len(sources) == 1:
            known = roles[sources[0]]
            beside = operation.axis in known.channels | known.samples
            tokens |= {tensor} if known.channels and not beside else set()
        match operation:
            case rec.Move(part=tuple() as part) if part[0] in roles[sources[0]].channels:
                cut[tensor] = frozenset({tensor})
            case rec.Move() | rec.Norm() | rec.Bias() | rec.Pointwise() | rec.ShapedCall():
                cut[tensor] = frozenset().union(*(cut.get(s, frozenset()) for s in sources))
            case _:
                continue
        if not isinstance(operation, rec.Pointwise) or len(set(sources)) < 2:
            continue
        parts.update(_disjoint([cut.get(s, frozenset()) for s in sources], operations))
        if operation.product:
            functions.update(_before_moves(source, operations) for source in sources)
    return Gates(frozenset(functions), frozenset(parts), frozenset(pooled), frozenset(tokens))


def _pools_all(record: Recorded[T], tensor: T, operation: rec.Operation[T]) -> bool:
    if not isinstance(operation, rec.Move) or not operation.axes.pooled:
        return False
    after = record.shape(tensor)
    return all(after[to] == 1 for axis in operation.axes.pooled for to in operation.axes.to[axis])


def _before_moves(tensor: T, operations: Mapping[T, rec.Operation[T]]) -> T:
    while (operation := operations.get(tensor)) is not None and len(operation.sources) == 1:
        (source,) = operation.sources
        moves = isinstance(operation, rec.Move) and not operation.axes.pooled
        if source is None or not (moves or isinstance(operation, rec.WeightedSum)):  # a factor
            break
        tensor = source
    return tensor


def _disjoint(sources: Sequence[frozenset[T]], operations: Mapping[T, rec.Operation[T]]) -> set[T]:
    """The parts of which different `sources` have different ones of the same tensor."""
    found = set[T]()
    for place, mine in enumerate(sources):
        for others in sources[:place]:
            for a in mine - others:
                for b in others - mine:
                    if _are_disjoint(operations[a], operations[b]):
                        found |= {a, b}
    return found


def _are_disjoint(a: rec.Operation[T], b: rec.Operation[T]) -> bool:
    if not isinstance(a, rec.Move) or not isinstance(b, rec.Move) or not a.part or not b.part:
        return False
    (axis, start, stop), (other, low, high) = a.part, b.part
    return a.sources == b.sources and axis == other and (stop <= low or high <= start)


def are_independent(
    nodes: Sequence[Node], one: int, other: int, weights: Mapping[int, Hashable]
) -> bool:
    """Whether all that a node is ends in weights, or parts, that the other one does not use.

    `weights` are those of layers; two that end in the same ones are alike.
    """
    ends = _last_weights(nodes, one), _last_weights(nodes, other)
    last = [{weights.get(end, end) for end in each or ()} for each in ends]
    if not last[0].isdisjoint(last[1]):
        return False
    return any(
        mine is not None and mine.isdisjoint(_ancestors(nodes, its))
        for mine, its in zip(ends, (other, one), strict=True)
    )


def _last_weights(nodes: Sequence[Node], index: int) -> set[int] | None:
    """The last weights before a node; None if something is the input itself."""
    found, waiting = set[int](), [index]
    while waiting:
        match node := nodes[i := waiting.pop()]:
            case Input():
                return None
            case Affine() | Measured(mixes=True):
                found.add(i)
            case Concat((source,)) if not _is_joined(nodes, source):
                found.add(i)
            case _:
                waiting += inputs_of(node)
    return found


def _is_joined(nodes: Sequence[Node], index: int) -> bool:
    """Whether channels are those of several branches, so that parts of them may have all in common.

    >>> _is_joined([Input(), Concat((0, 0))], 1)
    True
    """
    waiting = [index]
    while waiting:
        match node := nodes[waiting.pop()]:
            case Input() | Affine() | Measured(mixes=True):
                continue
            case Concat((_, _, *_)):
                return True
            case _:
                waiting += inputs_of(node)
    return False


def _ancestors(nodes: Sequence[Node], index: int) -> set[int]:
    found, waiting = set[int](), [index]
    while waiting:
        if (i := waiting.pop()) not in found:
            found.add(i)
            waiting += inputs_of(nodes[i])
    return found


def pooled_gate(factors: Sequence[Node], pooled: Sequence[bool]) -> str:
    """How far off q is if what a gate reads averages out to zero instead of keeping its q value.

    Empty if none of the `factors`, or all of them, are `pooled`.
    """
    if all(pooled) or not any(pooled):
        return ""
    gate = factors[pooled.index(True)]
    if not isinstance(gate, Fixed):
        return "gate of pooled signals"
    least = float(gate.function(0.0)) ** 2 / q_map(gate.function, 1.0)
    return f"gate of pooled signals (q up to {100.0 * (1.0 - least):.0f} % lower)"

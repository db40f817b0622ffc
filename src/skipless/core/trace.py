"""Reads the record of a network into a graph, whatever framework recorded it: read(record).

Each framework says what every recorded operation is (`record.Operation`): a layer with weights, a
move of numbers, a pointwise function. The rest happens here, so the same network becomes the same
graph in every framework. A new kind of operation is a class in `record` and a case in `_read`.

A pointwise function is known by its values on `PROBE`. Consecutive pointwise operations are
composed until something else reads the result. Only then is it recognised: as an activation, a
factor, several activations in a row, or constants that standardise the input.

What has no Q and C maps becomes a part that is measured, if the framework can (`stretch`).

What no layer reads may be anything, such as probabilities or the value and the advantages of a
duelling Q-network: the signal has left the network, which ends before it.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Generic, TypeVar, assert_never

import numpy as np

from . import record as rec
from .activations import Array
from .axes import Axes, find_axes, follow_axes, unreadable_moves
from .ends import find_ends
from .gates import Gates, are_independent, find_gates, pooled_gate, recognise_gate
from .graph import Concat, Fixed, Graph, GraphBuilder
from .measured import PartMap
from .reading import Kind, Notes, Reading, Step, find_sizes
from .recognise import PROBE, ScaledActivation, recognise
from .record import NotDerivedError, Recorded, UnsupportedModelError
from .stretch import Measure, Shortened, measure_parts

__all__ = ["Axes", "Notes", "Reading", "Step", "UnsupportedModelError", "read"]

T = TypeVar("T", bound=Hashable)  # a framework's own name for a tensor
# Activations that give outputs their range, if they end a network and occur nowhere else in it.
_RANGES = {
    "sigmoid", "tanh", "softplus", "log_sigmoid", "hard_sigmoid", "hard_tanh", "softsign"
}  # fmt: skip
_FORMS = {"exp", "clamp", "clamp_min", "clamp_max", "clip"}  # no activations, but of outputs
_STRAIGHT = 1e-6  # relative, up to which a function counts as a line
FEW = 16  # with fewer channels in a group, weighted sums of them are not normal


def read(record: Recorded[T], measure: Measure[T] | None = None) -> Reading[T]:
    """The graph of a recorded network.

    `measure` returns the maps of a part that has none of its own, and whether it has weights.
    Without it, such a part raises.
    """
    failures: list[NotDerivedError] = []
    while True:
        known = Shortened(record, failures) if failures else record
        roles = follow_axes(known)
        beyond, ends = find_ends(known, roles)
        reader = _Reader(known, find_gates(known, roles), strict=measure is None)
        graph = reader.read(beyond, ends)
        new = reader.failures or unreadable_moves(known, roles, beyond)
        axes = find_axes(known, roles)
        if not new and measure is not None:
            nodes = {t: step.node for t, step in reader.steps.items() if step.kind == "part"}
            try:
                graph = measure_parts(graph, known, nodes, axes, measure)
            except NotDerivedError as failure:
                new = [failure]
        if not new:
            break
        if measure is None:
            raise UnsupportedModelError(str(new[0]))
        failures += new
    sizes = find_sizes(known, reader.steps, axes)
    return Reading(graph, reader.notes, reader.steps, axes, sizes, record.outputs)


@dataclass(frozen=True)
class _Value(Generic[T]):
    """A tensor as a function of the tensor `base`, which is at `node`.

    It is known by its `values` on `PROBE`, or None where it is not the same at all places.
    """

    node: int
    base: T
    values: Array | None
    affine: bool = True  # it only adds and multiplies constants
    shaped: bool = False  # a shaped activation, known without values


class _Reader(Generic[T]):
    """Reads the operations in order; `_values` has what each tensor is so far."""

    def __init__(self, record: Recorded[T], gates: Gates, strict: bool) -> None:
        self.record, self._gates, self._strict = record, gates, strict
        self.failures: list[NotDerivedError] = []
        self._ends: list[int] = []
        self.notes = Notes()
        self.steps: dict[T, Step[T]] = {}
        self._builder = GraphBuilder()
        self._values: dict[T, _Value[T]] = {}
        inputs = (record.input, *record.more)
        self._order = {t: place for place, t in enumerate((*inputs, *record.operations))}
        self._entries = range(len(inputs))  # the nodes of inputs
        sources = (dict.fromkeys(o.sources) for o in record.operations.values())
        self._readers = Counter(tensor for distinct in sources for tensor in distinct)
        self._factors: dict[T, float] = {}  # of sums over places, not divided yet
        self._nonlinearities: dict[tuple[T, object], int] = {}
        self._narrow: set[int] = set()  # layers of few channels
        self._weights: dict[int, Hashable] = {}  # of layers

    def read(self, beyond: Collection[T], ends: Sequence[T]) -> Graph:
        """The graph up to the tensors `ends`, without what is computed `beyond` them."""
        start = self.record.input
        self._set(start, "input", self._builder.input(origin=self.record.origin(start)))
        for other in self.record.more:  # of the same kernel, but with channels of its own
            self._set(other, "input", self._builder.concat([0], origin=self.record.origin(other)))
        for tensor in self.record.operations:
            if tensor not in beyond:
                self._try(self._read, tensor)
        for end in ends:
            self._try(self._end, end)
        last, *others = self._ends
        if others:  # side by side, each with the same share
            together = (last, *others)
            last = self._builder.add(Concat(together, (1.0,) * len(ends), outputs=True))
        if last != len(self._builder.nodes) - 1:  # dead ends come after the output: close it off
            self._builder.sum([last], [1.0])
        for tensor in filter(beyond.__contains__, self.record.operations):
            self.steps[tensor] = Step("output", last, tuple(self._sources(tensor)))
        return self._builder.build()

    def _try(self, step: Callable[[T], None], tensor: T) -> None:
        """Do `step` with `tensor`; what fails counts as done, so that all failures are found."""
        while True:
            try:
                return step(tensor)
            except NotDerivedError as failure:
                if self._strict:
                    raise UnsupportedModelError(str(failure)) from None
                self.failures.append(failure)
                self._set(failed := failure.tensors[-1], "part", self._builder.affine(0))
                if step == self._read and failed == tensor:
                    return None

    def _end(self, end: T) -> None:
        self._ends.append(self._at(self._before_range(end)))

    def _before_range(self, end: T) -> T:
        """What the function that gives outputs their range reads, or `end` if there is none.

        That is one that ends the network and occurs nowhere else in it. It may be unknown, as where
        outputs are scaled back to the units of the data.
        """
        value = self._values[end]
        if end in self.steps or value.shaped or value.node in self._entries or self._is_node(end):
            return end
        found = self._recognise(end, value.values)
        if found is None:
            between = (self.record.operations[t] for t in self._between(value.base, end))
            is_range = all(
                isinstance(o, rec.Pointwise) and (o.affine or o.name.lower() in _FORMS)
                for o in between
            )
        else:
            others = [step.phi for step in self.steps.values() if step.kind == "activation"]
            names = {phi.name for phi in others if phi is not None}
            is_range = bool(others) and getattr(found.phi, "name", "") in _RANGES - names
        if not is_range:
            return end
        self.steps[end] = Step("output", value.node, (value.base,))
        return value.base

    def _read(self, tensor: T) -> None:
        match operation := self.record.operations[tensor]:
            case rec.Layer():
                self._layer(tensor, operation)
            case rec.Bias(sources=(source,)):
                self._set(tensor, "affine", self._at(source, tensor), (source,))
            case rec.Norm(sources=(source,)):
                self.notes.norms.append(self.record.origin(tensor))
                self._set(tensor, "norm", self._at(source, tensor), (source,))
            case rec.Move():
                self._move(tensor, operation)
            case rec.Concatenation():
                self._concatenate(tensor, operation)
            case rec.WeightedSum(sources, weights):
                self._sum(tensor, sources, weights)
            case rec.Pointwise():
                self._pointwise(tensor, operation)
            case rec.ShapedCall(sources=(source,)):
                # It becomes an activation when it is read; what its call computes inside never is.
                node = self._at(source, tensor)
                self._values[tensor] = _Value(node, source, None, affine=False, shaped=True)
            case rec.Preparation(sources, elsewhere):
                nodes = {self._at(source, tensor) for source in sources}
                if len(nodes) > 1 or nodes.isdisjoint(self._entries):
                    raise UnsupportedModelError(
                        elsewhere
                        or f"{self.record.origin(tensor)} normalises per location inside the "
                        "network; only an input can be normalised so. Make it the first layer."
                    )
                self._set(tensor, "input", nodes.pop(), sources)
            case rec.Unsupported(message=message, sources=sources):
                raise (
                    NotDerivedError(message, [tensor])
                    if sources
                    else UnsupportedModelError(message)
                )
            case rec.Part(sources=(source,)):
                self._part(tensor, source, PartMap.line(1.0, 0.0))
            case _:
                assert_never(operation)

    def _set(self, tensor: T, kind: Kind, node: int, inputs: Sequence[T] = ()) -> None:
        self.steps[tensor] = Step(kind, node, tuple(inputs))
        self._values[tensor] = _Value(node, tensor, PROBE)

    def _layer(self, tensor: T, layer: rec.Layer[T]) -> None:
        where = self.record.origin(tensor)
        source, *others = layer.sources
        if others:
            raise NotDerivedError(
                f"{where} multiplies two tensors that both depend on the input, as attention does; "
                "only products with weights have Q and C maps. Leave that part out of the traced "
                "model.",
                [tensor],
            )
        before = self._at(source, tensor)
        node = self._builder.affine(before, mixes=not layer.depthwise, origin=where)
        self._set(tensor, "affine", node, layer.sources)
        if layer.channels is not None and layer.channels < FEW and not layer.depthwise:
            self._narrow.add(node)
        if layer.weights is not None:
            if layer.weights in self._weights.values():
                self.notes.approximate.append(f"weights used again at {where}")
            self._weights[node] = layer.weights

    def _move(self, tensor: T, move: rec.Move[T]) -> None:
        (source,) = move.sources
        if move.approximate:
            self.notes.approximate.append(f"{move.approximate} at {self.record.origin(tensor)}")
        waiting = self._factors.get(source)
        node = self._at(source, tensor) if waiting is None else self._values[source].node
        factor = move.factor * (waiting or 1.0)
        if tensor in self._gates.parts and move.part is not None:
            _, start, stop = move.part
            where = self.record.origin(tensor)
            node = self._builder.concat([node], [float(stop - start)], origin=where)
            self._set(tensor, "concat", node, (source,))
            return
        self._set(tensor, "move", node, (source,))
        if not math.isclose(factor, 1.0):
            self._factors[tensor] = factor
            self.steps[tensor] = Step("move", node, (source,), factor)
            self._values[tensor] = _Value(node, tensor, factor * PROBE, affine=False)

    def _concatenate(self, tensor: T, operation: rec.Concatenation[T]) -> None:
        parts = [part for part in operation.sources if part is not None]
        if tensor in self._gates.tokens:
            self.notes.approximate.append(f"constants joined at {self.record.origin(tensor)}")
            return self._set(tensor, "move", self._at(parts[0], tensor), parts)
        if len(parts) < len(operation.sources):
            raise NotDerivedError(
                f"{self.record.origin(tensor)} concatenates the signal with a constant, which has "
                "no Q and C maps. Append the constant to the input instead.",
                [tensor],
            )
        nodes = [self._at(part, tensor) for part in parts]
        node = self._builder.concat(nodes, operation.widths, origin=self.record.origin(tensor))
        self._set(tensor, "concat", node, parts)

    def _sum(self, tensor: T, sources: Sequence[T], weights: Sequence[float]) -> None:
        total: dict[T, float] = {}
        for source, weight in zip(sources, weights, strict=True):
            total[source] = total.get(source, 0.0) + weight
        terms = [self._scaled(source, tensor, in_sum=True) for source in total]
        nodes = [node for node, _ in terms]
        if len(set(nodes)) < len(nodes):
            raise NotDerivedError(
                f"{self.record.origin(tensor)} adds a tensor to a rearrangement of itself; only "
                "sums of independent branches have C maps. Put a layer with weights into one of "
                "them.",
                [tensor],
            )
        scaled = [weight * scale for weight, (_, scale) in zip(total.values(), terms, strict=True)]
        node = self._builder.sum(nodes, scaled, origin=self.record.origin(tensor))
        self._set(tensor, "sum", node, tuple(total))

    def _pointwise(self, tensor: T, operation: rec.Pointwise[T]) -> None:
        for source in operation.sources:
            if self._values[source].shaped:
                self._at(source, tensor)
        if len({self._values[source].base for source in operation.sources}) == 1:
            self._compose(tensor)
        elif operation.weights is not None:
            self._sum(tensor, operation.sources, operation.weights)
        elif operation.product:
            self._product(tensor, operation)
        else:
            where = self.record.origin(tensor)
            raise NotDerivedError(rec.combines_branches(where, operation.name), [tensor])

    def _product(self, tensor: T, operation: rec.Pointwise[T]) -> None:
        sources = operation.sources
        factors = [self._scaled(source, tensor) for source in sources]
        nodes, where = [node for node, _ in factors], self.record.origin(tensor)
        known = self._builder.nodes
        if not all(are_independent(known, *two, self._weights) for two in combinations(nodes, 2)):
            raise NotDerivedError(rec.combines_branches(where, operation.name), [tensor])
        pooled = [source in self._gates.pooled for source in sources]
        rough = pooled_gate([known[node] for node in nodes], pooled)
        node = self._builder.product(nodes, rough=rough, origin=where)
        scale = math.prod(scale for _, scale in factors)
        self._set(tensor, "product", node, sources)
        if scale != 1.0:
            self.steps[tensor] = Step("product", node, tuple(sources), scale)
            self._values[tensor] = _Value(node, tensor, scale * PROBE, affine=False)

    def _gate(self, tensor: T, value: _Value[T]) -> int | None:
        """The node for the function of a gate, if `tensor` is one."""
        if tensor not in self._gates.functions or value.values is None:
            return None
        if (function := recognise_gate(value.values)) is None:
            return None
        node = self._builder.add(Fixed(value.node, *function, origin=self.record.origin(tensor)))
        self._set(tensor, "gate", node, (value.base,))
        return node

    def _compose(self, tensor: T) -> None:
        """Read a pointwise operation as a function of what its sources are functions of."""
        operation = self.record.operations[tensor]
        assert isinstance(operation, rec.Pointwise)
        sources = {source: self._values[source] for source in operation.sources}
        first = sources[operation.sources[0]]
        affine = operation.affine and len(operation.sources) == 1 and first.affine
        values = self._evaluate(tensor, {source: v.values for source, v in sources.items()})
        self._values[tensor] = _Value(first.node, first.base, values, affine)

    def _evaluate(self, tensor: T, sources: Mapping[T, Array | None]) -> Array | None:
        known = {source: values for source, values in sources.items() if values is not None}
        return self.record.values(tensor, known) if len(known) == len(sources) else None

    def _at(self, tensor: T, user: T | None = None) -> int:
        """The node for `tensor` itself, which is a sum of one term if it has a factor."""
        node, scale = self._scaled(tensor, user)
        if not self._is_node(tensor):
            node = self._builder.sum([node], [scale], origin=self.record.origin(tensor))
            self._values[tensor] = _Value(node, tensor, PROBE)
        return node

    def _is_node(self, tensor: T) -> bool:
        value = self._values[tensor]
        return value.base == tensor and value.values is PROBE

    def _scaled(self, tensor: T, user: T | None, *, in_sum: bool = False) -> tuple[int, float]:
        """The node for `tensor`, and the factor by which to multiply it.

        In a sum, a factor of the input is the weight of a branch and standardises nothing.
        """
        if not in_sum and self._standardises_input(tensor):
            self._standardise(tensor)
        value = self._values[tensor]
        if value.shaped:
            node = self._activate(tensor, (value.base, tensor), value.node)
            self._set(tensor, "activation", node, (value.base,))
            return node, 1.0
        if self._is_node(tensor):
            return value.node, 1.0
        if tensor in self.steps:
            return self.steps[tensor].node, self.steps[tensor].scale
        if (gate := self._gate(tensor, value)) is not None:
            return gate, 1.0
        found = self._recognise(tensor, value.values)
        before = None
        if found is None:
            before = self._find_cut(tensor)
        elif found.phi is not None and found.scale != 1.0 and value.node in self._entries:
            before = self._standardised_before(tensor)
        if before is not None:
            self._at(before, tensor)
            self._compose_again(tensor, before)
            return self._scaled(tensor, user)
        if found is None and (self._strict or value.values is None):
            raise self._unknown_function(tensor, user)
        if found is None:
            return self._own_function(tensor, value), 1.0
        kind, node = "scale", value.node
        if found.phi is not None:
            kind, node = "activation", self._activate(tensor, (value.base, found.phi), node)
        self.steps[tensor] = Step(kind, node, (value.base,), found.scale, found.phi)
        if found.scale == 1.0:
            self._values[tensor] = _Value(node, tensor, PROBE)
        return node, found.scale

    def _recognise(self, tensor: T, values: Array | None) -> ScaledActivation | None:
        if values is None:
            return None
        fits = (recognise(values, close) for close in self.record.tolerances(tensor))
        return next((found for found in fits if found is not None), None)

    def _own_function(self, tensor: T, value: _Value[T]) -> int:
        """The node for a function that is none of the known: an activation, or a shift."""
        assert value.values is not None
        if not np.all(np.isfinite(value.values)) or not np.any(value.values):
            raise self._unknown_function(tensor, None)
        factor, shift = np.polyfit(PROBE, value.values, 1)
        off = np.max(np.abs(factor * PROBE + shift - value.values))
        if off <= _STRAIGHT * np.max(np.abs(value.values)):
            return self._part(tensor, value.base, PartMap.line(float(factor), float(shift)))
        node = self._activate(tensor, (value.base, tuple(value.values)), value.node)
        self._set(tensor, "activation", node, (value.base,))
        self.steps[tensor] = replace(self.steps[tensor], own=True)
        return node

    def _part(self, tensor: T, source: T, maps: PartMap) -> int:
        # Whether it has weights is not known yet, so a product with what it reads is no gate.
        where, before = self.record.origin(tensor), self._at(source, tensor)
        node = self._builder.measured(before, maps, mixes=False, origin=where)
        self._set(tensor, "part", node, (source,))
        return node

    def _activate(self, tensor: T, key: tuple[T, object], node: int) -> int:
        if key not in self._nonlinearities:  # a multiple of φ(x) beside φ(x) is one activation
            where = self.record.origin(tensor)
            self._nonlinearities[key] = self._builder.activation(node, origin=where)
            if node in self._narrow:
                self.notes.approximate.append(f"few weights an output before {where}")
        return self._nonlinearities[key]

    def _unknown_function(self, tensor: T, user: T | None) -> NotDerivedError:
        """The refusal of the first function on the way to `tensor` that is unknown."""
        inside = self._between(self._values[tensor].base, tensor)
        while len(sources := set(self._sources(tensor))) == 1:
            if self._is_known(source := sources.pop()):
                break
            tensor, user = source, tensor
        used = "the output" if user is None else f"used at {self.record.origin(user)}"
        return NotDerivedError(
            f"{self.record.origin(tensor)} computes a pointwise function that is none of the known "
            f"activations, nor a multiple of one ({used}). If it is an activation of your own, "
            "pass it to `solve` as an Activation; if it adds or multiplies by a constant tensor, "
            "leave that out.",
            inside,
        )

    # Activations in a row are one function that is none of the known ones. They are taken apart at
    # a bottleneck: a tensor that everything in the later one is computed from.

    def _find_cut(self, tensor: T) -> T | None:
        """The last bottleneck that is known, and of which `tensor` is a known function."""
        for before in self._bottlenecks(tensor):
            if self._recognise(tensor, self._relative(tensor, before)) and self._is_known(before):
                return before
        return None

    def _is_known(self, tensor: T) -> bool:
        if tensor in self.steps or self._standardises_input(tensor):
            return True
        known = self._recognise(tensor, self._values[tensor].values)
        return known is not None or self._find_cut(tensor) is not None

    def _bottlenecks(self, tensor: T) -> Iterator[T]:
        """The tensors that all of `tensor` is computed from, last first, up to its base."""
        base = self._values[tensor].base
        frontier = {tensor}
        while (last := max(frontier, key=self._order.__getitem__)) != base:
            frontier = (frontier - {last}) | set(self._sources(last))
            if len(frontier) == 1 and base not in frontier:
                yield next(iter(frontier))

    def _between(self, before: T, tensor: T) -> list[T]:
        """The tensors between the two, `tensor` included, in order."""
        found, new = set[T](), {tensor}
        while new:
            found |= new
            new = {source for t in new for source in self._sources(t)} - found - {before}
        return sorted(found, key=self._order.__getitem__)

    def _sources(self, tensor: T) -> Sequence[T]:
        return [t for t in self.record.operations[tensor].sources if t is not None]

    def _relative(self, tensor: T, before: T) -> Array | None:
        """The values of `tensor` as a function of the tensor `before`."""
        values: dict[T, Array | None] = {before: PROBE}
        for t in self._between(before, tensor):
            values[t] = self._evaluate(t, {s: values[s] for s in self._sources(t)})
        return values[tensor]

    def _compose_again(self, tensor: T, before: T) -> None:
        for t in self._between(before, tensor):
            self._compose(t)

    # Constants that only shift and scale the input standardise it, and the graph begins after
    # them. But where others read the unscaled input too, a factor is the weight of a branch.

    def _standardises_input(self, tensor: T) -> bool:
        value = self._values[tensor]
        return value.affine and value.node in self._entries and tensor not in self.steps

    def _standardised_before(self, tensor: T) -> T | None:
        """The standardised input that `tensor` is an activation of: φ(x / 255), not φ(x) / 255."""
        for before in self._bottlenecks(tensor):
            if self._standardises_input(before) and not self._is_shared(self._values[before].base):
                return before if self._recognise(tensor, self._relative(tensor, before)) else None
        return None

    def _standardise(self, tensor: T) -> None:
        """Let the graph begin at `tensor`, or at the last tensor before it that others read."""
        base = self._values[tensor].base
        shared = (t for t in self._bottlenecks(tensor) if self._readers[t] > 1)
        start = next(shared, base if self._is_shared(base) else tensor)
        for t in self._between(base, start) if start != base else ():
            self._set(t, "input", self._values[base].node, self._sources(t))
        if start != tensor:
            self._compose_again(tensor, start)

    def _is_shared(self, tensor: T) -> bool:
        """Whether several operations read `tensor`, or what it was before it was moved."""
        while self._readers[tensor] < 2 and self.steps[tensor].kind in ("move", "norm"):
            (tensor,) = self.steps[tensor].inputs
        return self._readers[tensor] > 1

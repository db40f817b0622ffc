"""Memory for activations, in the order of operations that needs the least of it.

The rules, which are the same for every network:

- An activation is held from the operation that writes it to the last one that reads it; the
  network's input as well, and the output to the end. Weights, and what a kernel needs for itself
  while it runs, do not count.
- A reshape holds nothing: it is the same memory under another shape.
- An elementwise operation writes over an activation of the same size that nothing else will read,
  unless that is the network's input.

So what is held while an operation runs is what it reads, what it writes, and what waits for others.
In a chain there is one order only. Where paths run side by side, as a branch beside its shortcut,
all orders are searched.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from .onnx_graph import OnnxGraph

VIEWS = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"))
IN_PLACE = frozenset((
    "Abs", "Add", "BatchNormalization", "Celu", "Clip", "Div", "Elu", "HardSigmoid", "HardSwish",
    "LeakyRelu", "Mul", "Neg", "PRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sub",
    "Tanh",
))  # fmt: skip
_MOST_STATES = 100_000


@dataclass(frozen=True)
class Schedule:
    """An order of operations, and the bytes that are held at its worst moment.

    It is the best order if `optimal`; otherwise there were too many to search, and it is the
    file's own.
    """

    order: tuple[int, ...]
    peak: int
    worst: int  # the operation that runs at that moment
    optimal: bool


def best_schedule(graph: OnnxGraph, most_states: int = _MOST_STATES) -> Schedule:
    """The order of the operations of `graph` that holds the fewest bytes at its worst moment.

    It is a shortest path from nothing to everything in the graph of sets of finished operations,
    where the length of a path is the most that is held on it.

    >>> import numpy as np
    >>> from skipless.torch.onnx_graph import Activation, Operation
    >>> sizes = {"x": 1, "short": 1, "long": 9, "end": 1, "y": 1}
    >>> tensors = {n: Activation((s,), np.dtype("int8")) for n, s in sizes.items()}
    >>> first = Operation("Conv", ("x",), ("short",)), Operation("Conv", ("x",), ("long",))
    >>> last = Operation("Conv", ("long",), ("end",)), Operation("Add", ("end", "short"), ("y",))
    >>> best_schedule(OnnxGraph((*first, *last), tensors, ("x",), ("y",)))
    Schedule(order=(0, 1, 2, 3), peak=11, worst=1, optimal=True)
    """
    graph.demand_shapes()
    memory = Memory(graph)
    ties = count()
    start = _State(0, memory.held_at_first, memory.ready_at_first, None)
    waiting = [(0, 0, next(ties), start)]
    visited: set[int] = set()
    while waiting and len(visited) < most_states:
        peak, steps, _, state = heapq.heappop(waiting)
        if not state.ready:
            return memory.followed(_order(state), optimal=True)
        if state.done in visited:
            continue
        visited.add(state.done)
        for longest, after in _successors(memory, state, peak):
            # Of equal lengths the one that is nearest to the end goes first.
            heapq.heappush(waiting, (longest, steps - 1, next(ties), after))
    return memory.followed(range(len(graph.operations)), optimal=False)


@dataclass(frozen=True, eq=False)
class _State:
    done: int  # a bit for every finished operation
    held: int
    ready: tuple[int, ...]
    before: tuple[_State, int] | None


def _successors(memory: Memory, state: _State, peak: int) -> list[tuple[int, _State]]:
    """What may come next, and the most that is held until then."""
    found = []
    for operation in state.ready:
        during, held = memory.step(operation, state.done, state.held)
        done = state.done | 1 << operation
        others = (other for other in state.ready if other != operation)
        ready = (*others, *memory.enabled(operation, done))
        after = max(peak, during), _State(done, held, ready, (state, operation))
        if during <= peak and held <= state.held:
            # Whenever it runs, it leaves no more than there was; so now is as good as later.
            return [after]
        found.append(after)
    return found


def _order(state: _State) -> tuple[int, ...]:
    order: list[int] = []
    while state.before is not None:
        state, operation = state.before
        order.append(operation)
    return tuple(reversed(order))


class Memory:
    """Which operations share which piece of memory, and when it is free again."""

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph = graph
        self.place = {name: name for name in graph.inputs}  # the tensor whose memory it is
        self._readers: dict[str, int] = defaultdict(int)
        self._needs, self._next = [], defaultdict(list)
        writer: dict[str, int] = {}
        for number, operation in enumerate(graph.operations):
            for name in operation.writes:
                view = operation.kind in VIEWS
                self.place[name] = self.place[operation.reads[0]] if view else name
            for name in operation.reads:
                self._readers[self.place[name]] |= 1 << number
            sources = {writer[name] for name in operation.reads if name in writer}
            self._needs.append(sum(1 << source for source in sources))
            for source in sources:
                self._next[source].append(number)
            writer |= dict.fromkeys(operation.writes, number)
        self._kept = {self.place[name] for name in graph.outputs}
        self.held_at_first = sum(self._size(name) for name in graph.inputs)
        self.ready_at_first = tuple(n for n, needs in enumerate(self._needs) if not needs)

    def step(self, number: int, done: int, held: int) -> tuple[int, int]:
        """Bytes held while an operation runs, and after it, if `held` were before."""
        operation = self.graph.operations[number]
        new = sum(self._size(name) for name in operation.writes if self.place[name] == name)
        over = self.overwritten(number, done)
        during = held + new - (0 if over is None else new)
        places = {self.place[name] for name in (*operation.reads, *operation.writes)}
        freed = sum(self._size(p) for p in places if self.free(p, done | 1 << number))
        return during, held + new - freed

    def overwritten(self, number: int, done: int) -> str | None:
        """What an operation reads and may write over, if all in `done` are finished."""
        operation = self.graph.operations[number]
        if operation.kind not in IN_PLACE or len(operation.writes) != 1:
            return None
        for name in operation.reads:
            place = self.place[name]
            alike = self.graph.activations[name] == self.graph.activations[operation.writes[0]]
            if alike and place not in self.graph.inputs and self.free(place, done | 1 << number):
                return name
        return None

    def free(self, place: str, done: int) -> bool:
        """Whether nothing will read this memory once all in `done` are finished."""
        return place not in self._kept and self._readers[place] & ~done == 0

    def enabled(self, number: int, done: int) -> Iterator[int]:
        """The operations that waited for none but this one."""
        return (n for n in self._next[number] if self._needs[n] & ~done == 0)

    def followed(self, order: Sequence[int], *, optimal: bool) -> Schedule:
        """What an order of all operations takes."""
        done, held, peak, worst = 0, self.held_at_first, 0, 0
        for number in order:
            during, held = self.step(number, done, held)
            done |= 1 << number
            if during > peak:
                peak, worst = during, number
        return Schedule(tuple(order), peak, worst, optimal)

    def _size(self, place: str) -> int:
        return self.graph.activations[place].size

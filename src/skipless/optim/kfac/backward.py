"""A backward pass whose gradients at layers are looked at as they come by, and let go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node


def carry_back(
    outputs: Tensor,
    scores: Tensor,
    edges: Sequence[GradientEdge],
    leaves: Sequence[Tensor],
    see: Callable[[int, Tensor], None],
) -> list[Tensor | None]:
    """The gradients at `leaves` of `outputs` times `scores`; `see` is shown those at `edges`.

    It is called with the index of an edge and the gradient there, for those that `outputs` depends
    on. Autograd would hold all that it is asked for until the end, which is as much as all outputs
    of the network. So it is asked only for the edges that it comes to last, and the others are
    caught where the pass goes through them.
    """
    on_the_way, last = _sorted_out(outputs, edges)
    own_pass = _Pass()
    handles = [] if outputs.grad_fn is None else [outputs.grad_fn.register_prehook(own_pass)]
    handles += [
        node.register_prehook(_Catch(own, see, own_pass))
        for node, own in _by_node(edges, on_the_way).items()
    ]
    try:
        asked: Any = [*(edges[index] for index in last), *leaves]  # which takes both
        found = (
            torch.autograd.grad([outputs], asked, [scores], retain_graph=True, allow_unused=True)
            if asked
            else ()
        )
    finally:
        for handle in handles:
            handle.remove()
    for index, gradient in zip(last, found, strict=False):
        if gradient is not None:
            see(index, gradient)
    return list(found[len(last) :])


class _Pass:
    """Which pass is ours: functions of a user may run others inside, through the same nodes."""

    def __init__(self) -> None:
        self._task: int | None = None

    def __call__(self, _: tuple[Tensor | None, ...]) -> None:
        """Called where the pass begins."""
        self._task = _current_task() if self._task is None else self._task

    def is_running(self) -> bool:
        return self._task == _current_task()


class _Catch:
    """A hook that shows gradients at outputs of a node, by their places among them."""

    def __init__(
        self,
        places: Sequence[tuple[int, int]],
        see: Callable[[int, Tensor], None],
        own_pass: _Pass,
    ) -> None:
        self._places, self._see, self._pass = places, see, own_pass

    def __call__(self, gradients: tuple[Tensor | None, ...]) -> None:
        for index, place in self._places if self._pass.is_running() else ():
            gradient = gradients[place]
            if gradient is not None:
                self._see(index, gradient)


def _current_task() -> int:
    return torch._C._current_graph_task_id()  # which has no public name


def _by_node(
    edges: Sequence[GradientEdge], chosen: Sequence[int]
) -> dict[Node, list[tuple[int, int]]]:
    nodes: dict[Node, list[tuple[int, int]]] = {}
    for index in chosen:
        nodes.setdefault(edges[index].node, []).append((index, edges[index].output_nr))
    return nodes


def _sorted_out(outputs: Tensor, edges: Sequence[GradientEdge]) -> tuple[list[int], list[int]]:
    """Indices of the edges that the pass goes through on its way to others, and of the rest."""
    own = {edge.node for edge in edges}
    leads: dict[Node, bool] = {}  # whether there is an edge at a node or behind it
    behind: set[Node] = set()  # nodes with an edge behind them
    todo = [] if outputs.grad_fn is None else [(outputs.grad_fn, False)]
    while todo:
        node, children_are_done = todo.pop()
        children = [child for child, _ in node.next_functions if child is not None]
        if children_are_done:
            if any(leads[child] for child in children):
                behind.add(node)
            leads[node] = node in own or node in behind
        elif node not in leads:
            leads[node] = False  # until its turn comes again
            todo.append((node, True))
            todo += [(child, False) for child in children if child not in leads]
    return (
        [index for index, edge in enumerate(edges) if edge.node in behind],
        [index for index, edge in enumerate(edges) if edge.node not in behind],
    )

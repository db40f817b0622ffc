r"""Scores: derivatives of the negative log likelihood of labels, by the network's outputs.

The Fisher matrix is the second moment of the scores of labels that the network itself predicts,
carried back to the parameters. For the three losses it is also their Gauss-Newton matrix:

| loss                   | the outputs are                | a label is                           |
|------------------------|--------------------------------|--------------------------------------|
| `cross_entropy`        | logits, classes in dimension 1 | one of the classes                   |
| `binary_cross_entropy` | logits                         | 0 or 1, for each output by itself    |
| `mse`                  | means                          | normal, of variance 1/2              |

They are PyTorch's functions of these names (`binary_cross_entropy_with_logits`, `mse_loss`); the
square of an error is the likelihood's exponent for a variance of 1/2.

A backward pass whose gradients at layers are looked at as they come by, and let go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from skipless.optim.settings import Loss


def terms(outputs: Tensor, loss: Loss) -> int:
    """How many losses PyTorch's reduction="mean" takes the mean of."""
    if loss == "cross_entropy":
        return outputs.numel() // max(outputs.shape[1], 1)
    return outputs.numel()


@dataclass(frozen=True)
class Chance:
    """Random numbers for the examples of one process out of `world`.

    Each process draws for the examples of all, and keeps those of its own: so what is drawn does
    not depend on how many processes share a batch.
    """

    seed: int
    rank: int = 0
    world: int = 1

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers from 0 to 1, shaped like a tensor with examples first."""
        return self._drawn(torch.rand, like)

    def normal(self, like: Tensor) -> Tensor:
        """Numbers of mean 0 and variance 1."""
        return self._drawn(torch.randn, like)

    def signs(self, like: Tensor) -> Tensor:
        """Either 1 or -1."""
        return torch.where(self.uniform(like) < 0.5, 1.0, -1.0).to(like.dtype)

    def _drawn(self, draw: Callable[..., Tensor], like: Tensor) -> Tensor:
        generator = torch.Generator(like.device).manual_seed(self.seed)
        n, *rest = like.shape
        everyones = (self.world * n, *rest)
        drawn = draw(everyones, generator=generator, device=like.device, dtype=like.dtype)
        return drawn[self.rank * n : (self.rank + 1) * n]


def sampled_scores(outputs: Tensor, loss: Loss, chance: Chance) -> Tensor:
    """Scores of labels drawn from what the network predicts."""
    if loss == "mse":
        return chance.normal(outputs) * sqrt(2.0)
    if loss == "binary_cross_entropy":
        likely = outputs.sigmoid()
        return likely - (chance.uniform(outputs) < likely).to(outputs.dtype)
    likely = outputs.softmax(dim=1)
    reached = likely.cumsum(dim=1)
    drawn = chance.uniform(outputs[:, 0]).unsqueeze(1) * reached[:, -1:]
    passed = (reached <= drawn).sum(dim=1, keepdim=True)
    return _less_one(likely, passed.clamp(max=outputs.shape[1] - 1))


# The scores of labels that are drawn have mean zero, so that in products of sums over a batch only
# the squares remain on average. Scores that are not drawn get signs that are, to the same end.


def exact_scores(outputs: Tensor, loss: Loss, chance: Chance) -> Iterator[Tensor]:
    """Vectors whose outer products have the mean over all labels as their sum."""
    if outputs.ndim == 1:
        outputs = outputs.unsqueeze(1)
        yield from (score.squeeze(1) for score in exact_scores(outputs, loss, chance))
        return
    signs = chance.signs(outputs[:, 0])
    if loss == "cross_entropy":
        likely = outputs.softmax(dim=1)
        for label in range(outputs.shape[1]):
            of_label = torch.full_like(outputs[:, :1], label, dtype=torch.int64)
            root = likely[:, label].sqrt() * signs
            yield _less_one(likely, of_label) * root.unsqueeze(1)
        return
    likely = outputs.sigmoid()
    deviation = (likely * (1.0 - likely)).sqrt()
    if loss == "mse":
        deviation = torch.full_like(outputs, sqrt(2.0))
    for index in range(outputs.shape[1]):
        alone = torch.zeros_like(outputs)
        alone[:, index] = deviation[:, index] * signs
        yield alone


def empirical_scores(outputs: Tensor, targets: Tensor, loss: Loss, chance: Chance) -> Tensor:
    """Scores of the labels of the data."""
    if loss == "mse":
        return 2.0 * (outputs - targets) * chance.signs(outputs)
    if loss == "binary_cross_entropy":
        return (outputs.sigmoid() - targets) * chance.signs(outputs)
    scores = _less_one(outputs.softmax(dim=1), targets.unsqueeze(1))
    return scores * chance.signs(outputs[:, 0]).unsqueeze(1)


def times_hessian(outputs: Tensor, vector: Tensor, loss: Loss) -> Tensor:
    """The second derivative of the summed loss by the outputs, times `vector`."""
    if loss == "mse":
        return 2.0 * vector
    if loss == "binary_cross_entropy":
        likely = outputs.sigmoid()
        return likely * (1.0 - likely) * vector
    likely = outputs.softmax(dim=1)
    weighted = likely * vector
    return weighted - likely * weighted.sum(dim=1, keepdim=True)


def _less_one(likely: Tensor, labels: Tensor) -> Tensor:
    """Probabilities, less 1 at the labels."""
    return likely.scatter_add(1, labels, torch.full_like(likely[:, :1], -1.0).expand_as(labels))


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

r"""Scores: derivatives of the negative log likelihood of labels, by the network's outputs.

The Fisher matrix is the second moment of the scores of labels that the network itself predicts,
propagated back to the parameters. For the three losses it is also their Gauss-Newton matrix:

| loss                   | the outputs are                | a label is                           |
|------------------------|--------------------------------|--------------------------------------|
| `cross_entropy`        | logits, classes in dimension 1 | one of the classes                   |
| `binary_cross_entropy` | logits                         | 0 or 1, for each output by itself    |
| `mse`                  | means                          | normal, of variance 1/2              |

They are PyTorch's functions of these names (`binary_cross_entropy_with_logits`, `mse_loss`); the
squared error is the exponent of a normal likelihood with variance 1/2.

`backward_at` is a backward pass that shows the gradients at layers one by one and keeps none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from skipless.optim.settings import Loss


def loss_count(outputs: Tensor, loss: Loss) -> int:
    """How many losses PyTorch's reduction="mean" averages."""
    if loss == "cross_entropy":
        return outputs.numel() // max(outputs.shape[1], 1)
    return outputs.numel()


@dataclass(frozen=True)
class LabelSampler:
    """Random numbers for the examples of one of `world_size` processes.

    Each process draws for all examples and keeps its own part, so that the numbers do not depend on
    how many processes share a batch.
    """

    seed: int
    rank: int = 0
    world_size: int = 1

    def uniform(self, like: Tensor) -> Tensor:
        """Numbers from 0 to 1, shaped like a tensor with examples first."""
        return self._draw(torch.rand, like)

    def normal(self, like: Tensor) -> Tensor:
        """Numbers of mean 0 and variance 1."""
        return self._draw(torch.randn, like)

    def signs(self, like: Tensor) -> Tensor:
        """Either 1 or -1."""
        return torch.where(self.uniform(like) < 0.5, 1.0, -1.0).to(like.dtype)

    def _draw(self, draw: Callable[..., Tensor], like: Tensor) -> Tensor:
        generator = torch.Generator(like.device).manual_seed(self.seed)
        n, *rest = like.shape
        shape = (self.world_size * n, *rest)
        drawn = draw(shape, generator=generator, device=like.device, dtype=like.dtype)
        return drawn[self.rank * n : (self.rank + 1) * n]


def sampled_scores(outputs: Tensor, loss: Loss, sampler: LabelSampler) -> Tensor:
    """Scores of labels drawn from the network's predictions."""
    if loss == "mse":
        return sampler.normal(outputs) * sqrt(2.0)
    if loss == "binary_cross_entropy":
        likely = outputs.sigmoid()
        return likely - (sampler.uniform(outputs) < likely).to(outputs.dtype)
    likely = outputs.softmax(dim=1)
    cumulative = likely.cumsum(dim=1)
    drawn = sampler.uniform(outputs[:, 0]).unsqueeze(1) * cumulative[:, -1:]
    labels = (cumulative <= drawn).sum(dim=1, keepdim=True)
    return _minus_one_hot(likely, labels.clamp(max=outputs.shape[1] - 1))


# Scores of sampled labels have mean zero, so that in products of sums over a batch only the squares
# remain on average. Scores that are not sampled get random signs, to the same end.


def exact_scores(outputs: Tensor, loss: Loss, sampler: LabelSampler) -> Iterator[Tensor]:
    """Vectors whose outer products sum to the mean over all labels."""
    if outputs.ndim == 1:
        outputs = outputs.unsqueeze(1)
        yield from (score.squeeze(1) for score in exact_scores(outputs, loss, sampler))
        return
    signs = sampler.signs(outputs[:, 0])
    if loss == "cross_entropy":
        likely = outputs.softmax(dim=1)
        for label in range(outputs.shape[1]):
            of_label = torch.full_like(outputs[:, :1], label, dtype=torch.int64)
            root = likely[:, label].sqrt() * signs
            yield _minus_one_hot(likely, of_label) * root.unsqueeze(1)
        return
    likely = outputs.sigmoid()
    deviation = (likely * (1.0 - likely)).sqrt()
    if loss == "mse":
        deviation = torch.full_like(outputs, sqrt(2.0))
    for index in range(outputs.shape[1]):
        alone = torch.zeros_like(outputs)
        alone[:, index] = deviation[:, index] * signs
        yield alone


def empirical_scores(outputs: Tensor, targets: Tensor, loss: Loss, sampler: LabelSampler) -> Tensor:
    """Scores of the labels of the data."""
    if loss == "mse":
        return 2.0 * (outputs - targets) * sampler.signs(outputs)
    if loss == "binary_cross_entropy":
        return (outputs.sigmoid() - targets) * sampler.signs(outputs)
    scores = _minus_one_hot(outputs.softmax(dim=1), targets.unsqueeze(1))
    return scores * sampler.signs(outputs[:, 0]).unsqueeze(1)


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


def _minus_one_hot(likely: Tensor, labels: Tensor) -> Tensor:
    """Probabilities minus the one-hot labels."""
    return likely.scatter_add(1, labels, torch.full_like(likely[:, :1], -1.0).expand_as(labels))


def backward_at(
    outputs: Tensor,
    scores: Tensor,
    edges: Sequence[GradientEdge],
    leaves: Sequence[Tensor],
    on_gradient: Callable[[int, Tensor], None],
) -> list[Tensor | None]:
    """The gradients at `leaves` of `outputs` times `scores`; `on_gradient` gets those at `edges`.

    It is called with the index of an edge and the gradient there, if `outputs` depends on it.
    Autograd would hold all gradients that it returns until the end, as much memory as all outputs
    of the network. So it only returns those of the edges that it reaches last; hooks catch the
    others as the pass goes through them.
    """
    passed, last = _split_edges(outputs, edges)
    nodes: dict[Node, list[tuple[int, int]]] = {}
    for index in passed:
        nodes.setdefault(edges[index].node, []).append((index, edges[index].output_nr))
    own_pass: list[int] = []  # custom functions may run others inside it, through the same nodes

    def start(_: tuple[Tensor | None, ...]) -> None:
        if not own_pass:
            own_pass.append(_current_pass())

    def catch(wanted: list[tuple[int, int]], gradients: tuple[Tensor | None, ...]) -> None:
        for index, output in wanted if own_pass == [_current_pass()] else ():
            gradient = gradients[output]
            if gradient is not None:
                on_gradient(index, gradient)

    handles = [] if outputs.grad_fn is None else [outputs.grad_fn.register_prehook(start)]
    handles += [node.register_prehook(partial(catch, own)) for node, own in nodes.items()]
    try:
        wanted: Any = [*(edges[index] for index in last), *leaves]  # autograd takes both
        found = (
            torch.autograd.grad([outputs], wanted, [scores], retain_graph=True, allow_unused=True)
            if wanted
            else ()
        )
    finally:
        for handle in handles:
            handle.remove()
    for index, gradient in zip(last, found, strict=False):
        if gradient is not None:
            on_gradient(index, gradient)
    return list(found[len(last) :])


def _current_pass() -> int:
    return torch._C._current_graph_task_id()  # which has no public name


def _split_edges(outputs: Tensor, edges: Sequence[GradientEdge]) -> tuple[list[int], list[int]]:
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
            leads[node] = False  # until its children are done
            todo.append((node, True))
            todo += [(child, False) for child in children if child not in leads]
    return (
        [index for index, edge in enumerate(edges) if edge.node in behind],
        [index for index, edge in enumerate(edges) if edge.node not in behind],
    )

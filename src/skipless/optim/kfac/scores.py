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
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from skipless.optim.settings import Fisher, Loss

from .processes import rank, world_size


def loss_count(outputs: Tensor, loss: Loss) -> int:
    """How many losses PyTorch's reduction="mean" averages."""
    if loss == "cross_entropy":
        return outputs.numel() // max(outputs.shape[1], 1)
    return outputs.numel()


def fisher_scores(
    outputs: Tensor, targets: Tensor | None, loss: Loss, fisher: Fisher, seed: int
) -> Iterator[Tensor]:
    """Vectors whose outer products sum to the second moment of the scores, on average."""
    match fisher:
        case "sampled":
            yield sampled_scores(outputs, loss, seed)
        case "exact":
            yield from exact_scores(outputs, loss, seed)
        case "empirical":
            assert targets is not None
            yield empirical_scores(outputs, targets, loss, seed)


def sampled_scores(outputs: Tensor, loss: Loss, seed: int) -> Tensor:
    """Scores of labels drawn from the network's predictions."""
    if loss == "mse":
        return _draw(torch.randn, outputs, seed) * sqrt(2.0)
    if loss == "binary_cross_entropy":
        likely = outputs.sigmoid()
        return likely - (_draw(torch.rand, outputs, seed) < likely).to(outputs.dtype)
    likely = outputs.softmax(dim=1)
    cumulative = likely.cumsum(dim=1)
    drawn = _draw(torch.rand, outputs[:, 0], seed).unsqueeze(1) * cumulative[:, -1:]
    labels = (cumulative <= drawn).sum(dim=1, keepdim=True)
    return _minus_one_hot(likely, labels.clamp(max=outputs.shape[1] - 1))


# Scores of sampled labels have mean zero, so that in products of sums over a batch only the squares
# remain on average. Scores that are not sampled get random signs, to the same end.


def exact_scores(outputs: Tensor, loss: Loss, seed: int) -> Iterator[Tensor]:
    """Vectors whose outer products sum to the mean over all labels."""
    if outputs.ndim == 1:
        outputs = outputs.unsqueeze(1)
        yield from (score.squeeze(1) for score in exact_scores(outputs, loss, seed))
        return
    signs = _signs(outputs[:, 0], seed)
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


def empirical_scores(outputs: Tensor, targets: Tensor, loss: Loss, seed: int) -> Tensor:
    """Scores of the labels of the data."""
    if loss == "mse":
        return 2.0 * (outputs - targets) * _signs(outputs, seed)
    if loss == "binary_cross_entropy":
        return (outputs.sigmoid() - targets) * _signs(outputs, seed)
    scores = _minus_one_hot(outputs.softmax(dim=1), targets.unsqueeze(1))
    return scores * _signs(outputs[:, 0], seed).unsqueeze(1)


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


def _draw(random: Callable[..., Tensor], like: Tensor, seed: int) -> Tensor:
    """Numbers by `random`, such as `torch.rand`, shaped like a tensor with examples first.

    Each process draws for all and keeps its part: their number does not change what is drawn.
    """
    generator = torch.Generator(like.device).manual_seed(seed)
    n, *rest = like.shape
    shape = (world_size() * n, *rest)
    drawn = random(shape, generator=generator, device=like.device, dtype=like.dtype)
    return drawn[rank() * n : (rank() + 1) * n]


def _signs(like: Tensor, seed: int) -> Tensor:
    return torch.where(_draw(torch.rand, like, seed) < 0.5, 1.0, -1.0).to(like.dtype)


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
    Autograd holds all gradients that it returns until the end, as much memory as all outputs of the
    network. So it only returns those of the edges that it reaches last; hooks catch the others.
    """
    passed = _nodes_before_others(outputs, edges)
    last = [index for index, edge in enumerate(edges) if edge.node not in passed]
    nodes: dict[Node, list[tuple[int, int]]] = {}
    for index, edge in enumerate(edges):
        if edge.node in passed:
            nodes.setdefault(edge.node, []).append((index, edge.output_nr))
    own_pass: list[int] = []  # custom functions may run others inside it, through the same nodes

    def start(_: tuple[Tensor | None, ...]) -> None:
        if not own_pass:
            own_pass.append(_current_pass())

    def catch(wanted: list[tuple[int, int]], gradients: tuple[Tensor | None, ...]) -> None:
        if own_pass == [_current_pass()]:
            show((index, gradients[output]) for index, output in wanted)

    def show(gradients: Iterable[tuple[int, Tensor | None]]) -> None:
        for index, gradient in gradients:
            if gradient is not None:
                on_gradient(index, gradient)

    handles = [] if outputs.grad_fn is None else [outputs.grad_fn.register_prehook(start)]
    handles += [node.register_prehook(partial(catch, own)) for node, own in nodes.items()]
    wanted: Any = [*(edges[index] for index in last), *leaves]  # autograd takes both
    found: Sequence[Tensor | None] = ()
    try:
        if wanted:
            found = torch.autograd.grad(
                [outputs], wanted, [scores], retain_graph=True, allow_unused=True
            )
    finally:
        for handle in handles:
            handle.remove()
    show(zip(last, found, strict=False))
    return list(found[len(last) :])


def _current_pass() -> int:
    return torch._C._current_graph_task_id()  # which has no public name


def _nodes_before_others(outputs: Tensor, edges: Sequence[GradientEdge]) -> set[Node]:
    """The nodes that the pass goes through on its way to the nodes of some edges."""
    own = {edge.node for edge in edges}
    leads_on: dict[Node, bool] = {}  # whether there is an edge behind a node
    todo = [] if outputs.grad_fn is None else [(outputs.grad_fn, False)]
    while todo:
        node, children_are_done = todo.pop()
        children = [child for child, _ in node.next_functions if child is not None]
        if children_are_done:
            leads_on[node] = any(child in own or leads_on[child] for child in children)
        elif node not in leads_on:
            leads_on[node] = False  # until its children are done
            todo.append((node, True))
            todo += [(child, False) for child in children if child not in leads_on]
    return {node for node, is_before in leads_on.items() if is_before}

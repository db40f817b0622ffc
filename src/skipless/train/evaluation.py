"""How well a network does on data that it was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .process import Process


def evaluate(
    network: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    process: Process,
    forward: Callable[[nn.Module, Tensor], Tensor],
    stopping: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Loss, top-1 and top-5 accuracy over the batches of all processes; None if it was stopped.

    The loss is the plain cross-entropy, whatever the network was trained with.
    """
    sums = torch.zeros(4, dtype=torch.float64)  # of losses, top-1 and top-5 hits, and samples
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            for images, labels in batches:
                if stopping():
                    break
                labels = labels.to(process.device, non_blocking=True)
                sums += _sums(forward(network, images).float(), labels)
    finally:
        network.train(training)
    if process.any_of([stopping()])[0]:
        return None
    loss, top1, top5, count = process.total(sums).tolist()
    return {"loss": loss / count, "top1": top1 / count, "top5": top5 / count}


def _sums(logits: Tensor, labels: Tensor) -> Tensor:
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    loss = F.cross_entropy(logits, labels, reduction="sum")
    counts = [loss.item(), best[:, 0].sum().item(), best.sum().item(), len(labels)]
    return torch.tensor(counts, dtype=torch.float64)

"""How much memory training will take, found by doing one small step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim import Optimizer

from .engine import CurvatureOptimizer
from .settings import Settings


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes that one process holds in a step, by what they are for."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    passing: int  # gradients of the two largest activations, one made from the other
    teacher: int = 0  # its weights, and what its largest layer reads and writes

    @property
    def total(self) -> int:
        own = (self.weights, self.gradients, self.optimizer, self.activations, self.passing)
        return sum(own) + self.teacher


def estimate_memory(
    model: nn.Module,
    optimizer: Optimizer,
    images: Tensor,
    settings: Settings,
    teacher: nn.Module | None = None,
) -> TrainingMemory:
    """What a step of one process alone will hold, from a real one on a few `images`, 4 or more.

    **The step changes the weights.** Python, PyTorch and what kernels need come on top.
    """
    fewer = images[: len(images) // 2].clone()
    few = _loss(_logits(model, fewer, settings))
    more = _loss(logits := _logits(model, images, settings))
    own = list(model.parameters()) + list(model.buffers())
    known = {tensor.untyped_storage().data_ptr() for tensor in own}
    # What grows with the batch is told from what does not, such as copies of weights in bfloat16.
    half, whole = _kept(few, known), _kept(more, known)
    grown = [size for less, size in zip(half, whole, strict=True) if size > less]
    each = (sum(whole) - sum(half)) / (len(images) - len(fewer))
    if isinstance(optimizer, CurvatureOptimizer):
        optimizer.curvature(logits, logits.detach().argmax(dim=1))
    more.backward()
    optimizer.step()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    states = list(_tensors(optimizer.state_dict()))
    part = settings.batch_size // settings.accumulate
    copies = 1 if settings.average is None else 2
    return TrainingMemory(
        copies * _bytes(own),
        _bytes(gradients),
        _bytes(states),
        round(sum(whole) + each * (part - len(images))),
        sum(sorted(grown)[-2:]) * part // len(images),
        0 if teacher is None else _teacher(teacher, images, settings, part),
    )


def _teacher(teacher: nn.Module, images: Tensor, settings: Settings, part: int) -> int:
    """What a network holds that is only asked, with a part of a batch."""
    largest = 0

    def measure(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal largest
        largest = max(largest, _bytes([*inputs, output]))

    layers = [module for module in teacher.modules() if not list(module.children())]
    hooks = [layer.register_forward_hook(measure) for layer in layers]
    with torch.no_grad():
        _logits(teacher, images, settings)
    for hook in hooks:
        hook.remove()
    own = [*teacher.parameters(), *teacher.buffers()]
    return _bytes(own) + largest * part // len(images)


def _logits(model: nn.Module, images: Tensor, settings: Settings) -> Tensor:
    with torch.autocast(
        images.device.type, torch.bfloat16, enabled=settings.precision == "bfloat16"
    ):
        return model(images)


def _loss(logits: Tensor) -> Tensor:
    labels = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    return F.cross_entropy(logits.float(), labels)


def _kept(loss: Tensor, known: set[int]) -> list[int]:
    """Sizes of what the backward pass of `loss` keeps, in bytes, beside tensors that are known."""
    storages = (tensor.untyped_storage() for tensor in _saved(loss))
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return [size for pointer, size in sizes.items() if pointer not in known]


def _saved(loss: Tensor) -> Iterator[Tensor]:
    """All tensors that the backward pass of `loss` keeps."""
    # Hooks on saved tensors would see them too, but activations that notice hooks save more.
    waiting: list[Node | None] = [loss.grad_fn]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for name in dir(node):
            if name.startswith("_saved_") and isinstance(value := getattr(node, name), Tensor):
                yield value
        waiting += [after for after, _ in node.next_functions]


def _tensors(state: object) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _tensors(value)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

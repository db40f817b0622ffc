"""How much memory training takes, estimated from one small step."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import astuple, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim import Optimizer

from .engine import CurvatureOptimizer
from .settings import Settings


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes that one process holds in a step, by purpose."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    backward: int  # gradients of the two largest activations, one computed from the other
    teacher: int  # its weights, and the input and output of its largest layer

    @property
    def total(self) -> int:
        return sum(astuple(self))


def estimate_memory(
    model: nn.Module,
    optimizer: Optimizer,
    images: Tensor,
    settings: Settings,
    teacher: nn.Module | None = None,
) -> TrainingMemory:
    """What a step of a single process holds, from a real step on a few `images`, 4 or more.

    **The step changes the weights.** Python, PyTorch and the workspace of kernels come on top.
    """
    fewer = images[: len(images) // 2].clone()
    half_loss = _loss(_logits(model, fewer, settings))
    loss = _loss(logits := _logits(model, images, settings))
    own = [*model.parameters(), *model.buffers()]
    known = {tensor.untyped_storage().data_ptr() for tensor in own}
    # Two batch sizes separate what grows from what does not, such as weights cast to bfloat16.
    half, whole = _saved_sizes(half_loss, known), _saved_sizes(loss, known)
    growing = [size for less, size in zip(half, whole, strict=True) if size > less]
    each = (sum(whole) - sum(half)) / (len(images) - len(fewer))
    if isinstance(optimizer, CurvatureOptimizer):
        optimizer.curvature(logits, logits.detach().argmax(dim=1))
    loss.backward()
    optimizer.step()
    part = settings.batch_size // settings.accumulate
    copies = 1 if settings.average is None else 2
    return TrainingMemory(
        weights=copies * _bytes(own),
        gradients=_bytes(p.grad for p in model.parameters() if p.grad is not None),
        optimizer=_bytes(_tensors_in(optimizer.state_dict())),
        activations=round(sum(whole) + each * (part - len(images))),
        backward=sum(sorted(growing)[-2:]) * part // len(images),
        teacher=0 if teacher is None else _teacher_bytes(teacher, images, settings, part),
    )


def _teacher_bytes(teacher: nn.Module, images: Tensor, settings: Settings, part: int) -> int:
    sizes = [0]

    def measure(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        sizes.append(_bytes([*inputs, output]))

    with torch.no_grad(), ExitStack() as hooks:
        for module in teacher.modules():
            if not list(module.children()):
                hooks.enter_context(module.register_forward_hook(measure))
        _logits(teacher, images, settings)
    return _bytes([*teacher.parameters(), *teacher.buffers()]) + max(sizes) * part // len(images)


def _logits(model: nn.Module, images: Tensor, settings: Settings) -> Tensor:
    bfloat16 = settings.precision == "bfloat16"
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16):
        return model(images)


def _loss(logits: Tensor) -> Tensor:
    labels = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    return F.cross_entropy(logits.float(), labels)


def _saved_sizes(loss: Tensor, known: set[int]) -> list[int]:
    """Bytes of each storage that the backward pass of `loss` keeps, without `known` ones."""
    # Hooks on saved tensors would see them too, but activations that notice hooks save more.
    waiting: list[Node | None] = [loss.grad_fn]
    seen: set[Node] = set()
    sizes: dict[int, int] = {}
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for name in dir(node):
            if name.startswith("_saved_") and isinstance(value := getattr(node, name), Tensor):
                storage = value.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
        waiting += [after for after, _ in node.next_functions]
    return [size for pointer, size in sizes.items() if pointer not in known]


def _tensors_in(state: object) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            yield from _tensors_in(value)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

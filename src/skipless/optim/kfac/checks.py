"""What K-FAC is asked for, looked at before it does anything, and errors in its own words.

What K-FAC has to say, once each, by the logger `skipless.optim`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from skipless.optim.settings import Fisher, Loss

from .blocks import Block


def check_model(model: object) -> None:
    """Raise an error where K-FAC cannot listen to `model`."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"K-FAC was asked for with {type(model).__name__}, where it needs the model itself, to "
            "listen to its layers. Give it KFAC(model, ...), not model.parameters()."
        )
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ValueError(
                f"K-FAC was asked for with a model whose layer {name} has sparse gradients. Use "
                "sparse=False."
            )


def check_outputs(
    outputs: object, targets: object, divisor: object, loss: Loss, fisher: Fisher
) -> None:
    """Raise an error where curvature cannot be taken from `outputs`."""
    asked = "K-FAC was asked for the curvature of"
    if not isinstance(outputs, Tensor):
        raise TypeError(
            f"{asked} a {type(outputs).__name__}. Give it the tensor that the loss takes, such as "
            "logits."
        )
    found = f"{asked} outputs of shape {tuple(outputs.shape)}"
    if not outputs.requires_grad:
        raise ValueError(
            f"{found} without a graph. Give it what the model returned, not detached, and not "
            "computed under no_grad."
        )
    if not outputs.is_floating_point():
        raise ValueError(f"{found} and type {outputs.dtype}. Give it real numbers.")
    least = 2 if loss == "cross_entropy" else 1
    if outputs.ndim < least:
        order = "examples first, then classes" if least == 2 else "examples first"
        raise ValueError(f"{found}. Give it what {loss} takes, not the loss: {order}.")
    if not outputs.numel():
        raise ValueError(f"{found}, which has no examples. Leave empty batches out.")
    if divisor is not None and (not isinstance(divisor, int) or divisor < 1):
        raise ValueError(f"K-FAC was given a divisor of {divisor!r}; it is a whole number from 1.")
    if fisher == "empirical":
        _check_targets(outputs, targets, loss)


def _check_targets(outputs: Tensor, targets: object, loss: Loss) -> None:
    wanted = list(outputs.shape)
    if loss == "cross_entropy":
        del wanted[1]
    if not isinstance(targets, Tensor) or list(targets.shape) != wanted:
        shape = tuple(targets.shape) if isinstance(targets, Tensor) else type(targets).__name__
        raise ValueError(
            "K-FAC was asked for the empirical Fisher matrix, which needs the labels of the data, "
            f"of shape {tuple(wanted)}, and was given {shape}. Call curvature(outputs, targets)."
        )
    if loss == "cross_entropy" and not _are_classes(targets, outputs.shape[1]):
        raise ValueError(
            "K-FAC was given labels for the empirical Fisher matrix that are no classes from 0 to "
            f"{outputs.shape[1] - 1}. Leave out rows without a label, of outputs too."
        )


def _are_classes(targets: Tensor, classes: int) -> bool:
    whole = not targets.is_floating_point() and targets.dtype != torch.bool
    return whole and bool(((targets >= 0) & (targets < classes)).all())


def check_place(blocks: Iterable[Block]) -> None:
    """Raise an error if the model was moved since the factors were made."""
    for block in blocks:
        weight, factor = block.layer.weight, block.outputs
        dtype = torch.promote_types(weight.dtype, torch.float32)
        if weight.device != factor.device or dtype != factor.dtype:
            raise RuntimeError(
                f"K-FAC was made for a model of {factor.dtype} on {factor.device}, and found the "
                f"layer {block.layer.name} of {weight.dtype} on {weight.device}. Make it after the "
                "model is where, and what, it is to be."
            )


@contextmanager
def clear_errors() -> Iterator[None]:
    """Errors of autograd in the words of K-FAC's users."""
    try:
        yield
    except RuntimeError as error:
        if "second time" in str(error):
            raise RuntimeError(
                "K-FAC was asked for the curvature of outputs whose graph is gone. Call "
                "curvature() before backward()."
            ) from None
        if "is not implemented" in str(error) and "derivative" in str(error):
            raise RuntimeError(
                "K-FAC was asked for learning rates by the quadratic model (lr=None), for which "
                f"all operations have to be differentiable twice, and found one that is not: "
                f"{error} Give it a learning rate, or, for attention, use "
                "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)."
            ) from None
        raise


_log = logging.getLogger("skipless.optim")

_SHOWN = 20  # names; KFAC.diagonal_names has all of them


class Notes:
    """A log that says nothing twice, and knows the names of parameters."""

    def __init__(self, names: Mapping[nn.Parameter, str]) -> None:
        self.names = names
        self._told: set[str] = set()

    def once(self, message: str) -> None:
        """Say it, if it was not said before."""
        if message not in self._told:
            self._told.add(message)
            _log.warning(message)

    def diagonal(self, parameters: Sequence[nn.Parameter], which: str) -> None:
        """Tell of parameters that have no Kronecker factors."""
        self.once(
            f"K-FAC takes only the diagonal of the curvature for parameters {which}: "
            f"{_listed([self.names[p] for p in parameters])}."
        )

    def unknown(self, parameters: Sequence[nn.Parameter]) -> None:
        """Tell of parameters that have gradients, but no curvature."""
        if parameters:
            self.once(
                "K-FAC does not move parameters whose curvature it has not measured: "
                f"{_listed([self.names[p] for p in parameters])}. They had no part in the outputs "
                "that curvature() was given, as other heads have none, or layers under a "
                "checkpoint without use_reentrant=False; or what it measured was not finite."
            )

    def strangers(self, model: nn.Module) -> None:
        """Tell of parameters that have gradients, but were frozen when K-FAC was made."""
        own = model.named_parameters()
        strange = [name for name, p in own if p.grad is not None and p not in self.names]
        if strange:
            self.once(
                f"K-FAC does not train {_listed(strange)}, which were frozen when it was made. "
                "Make another one."
            )


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest

"""What K-FAC checks before it does anything, and the warnings and errors that it gives."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from skipless.optim.settings import Fisher, Loss

from .blocks import CurvatureBlock
from .moments import at_least_float32

_log = logging.getLogger("skipless.optim")

_MOST_NAMES = 20  # in a warning; KFAC.diagonal_names has all of them


def check_model(model: object) -> None:
    """Raises an error if K-FAC cannot record the layers of `model`."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"K-FAC needs the model itself, got {type(model).__name__}. Call KFAC(model, ...), not "
            "KFAC(model.parameters(), ...)."
        )
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ValueError(
                f"K-FAC does not support sparse gradients, got layer {name} with sparse=True. Use "
                "sparse=False."
            )


def check_outputs(
    outputs: object, targets: object, divisor: object, loss: Loss, fisher: Fisher
) -> None:
    """Raises an error if the curvature of `outputs` cannot be measured."""
    if not isinstance(outputs, Tensor):
        raise TypeError(
            "curvature() needs the tensor that the loss takes, such as logits, got "
            f"{type(outputs).__name__}"
        )
    shape = f"outputs of shape {tuple(outputs.shape)}"
    if not outputs.requires_grad:
        raise ValueError(
            f"curvature() got {shape} without a graph. Pass what the model returned, not detached, "
            "and not computed under no_grad."
        )
    if not outputs.is_floating_point():
        raise ValueError(f"curvature() needs real outputs, got {shape} and type {outputs.dtype}")
    least, order = 1, "examples first"
    if loss == "cross_entropy":
        least, order = 2, "examples first, then classes"
    if outputs.ndim < least:
        raise ValueError(
            f"curvature() got {shape}. Pass the outputs that {loss} takes, not the loss: {order}."
        )
    if not outputs.numel():
        raise ValueError(f"curvature() got {shape}, without examples. Skip empty batches.")
    if divisor is not None and (not isinstance(divisor, int) or divisor < 1):
        raise ValueError(f"divisor must be an integer >= 1, got {divisor!r}")
    if fisher == "empirical":
        _check_targets(outputs, targets, loss)


def _check_targets(outputs: Tensor, targets: object, loss: Loss) -> None:
    wanted = list(outputs.shape)
    if loss == "cross_entropy":
        del wanted[1]
    if not isinstance(targets, Tensor) or list(targets.shape) != wanted:
        shape = tuple(targets.shape) if isinstance(targets, Tensor) else type(targets).__name__
        raise ValueError(
            f"The empirical Fisher matrix needs labels of shape {tuple(wanted)}, got {shape}. Call "
            "curvature(outputs, targets)."
        )
    if loss == "cross_entropy":
        is_integer = not targets.is_floating_point() and targets.dtype != torch.bool
        if not is_integer or not bool(((targets >= 0) & (targets < outputs.shape[1])).all()):
            raise ValueError(
                "The empirical Fisher matrix needs labels that are classes from 0 to "
                f"{outputs.shape[1] - 1}. Leave out rows without a label, in outputs too."
            )


def check_place(blocks: Iterable[CurvatureBlock]) -> None:
    """Raises an error if the model has moved since the factors were created."""
    for block in blocks:
        weight, factor = block.layer.weight, block.outputs
        if weight.device != factor.device or at_least_float32(weight) != factor.dtype:
            raise RuntimeError(
                f"K-FAC was created for {factor.dtype} on {factor.device}, but the layer "
                f"{block.layer.name} is now {weight.dtype} on {weight.device}. Create the "
                "optimiser after moving or casting the model."
            )


@contextmanager
def explain_errors() -> Iterator[None]:
    """Replaces errors of autograd by those that say what to do."""
    try:
        yield
    except RuntimeError as error:
        if "second time" in str(error):
            raise RuntimeError(
                "The graph of these outputs is already freed. Call curvature() before backward()."
            ) from None
        if "is not implemented" in str(error) and "derivative" in str(error):
            raise RuntimeError(
                "Learning rates by the quadratic model (lr=None) need operations that are "
                f"differentiable twice: {error} Set a learning rate, or, for attention, use "
                "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)."
            ) from None
        raise


class WarnOnce:
    """Logs each warning once, with the names of parameters."""

    def __init__(self, names: Mapping[nn.Parameter, str]) -> None:
        self.names = names
        self._seen: set[str] = set()

    def warn(self, message: str) -> None:
        """Logs the message, unless it was logged before."""
        if message not in self._seen:
            self._seen.add(message)
            _log.warning(message)

    def warn_diagonal(self, parameters: Sequence[nn.Parameter], which: str) -> None:
        """Warns that parameters have no Kronecker factors."""
        self.warn(
            f"K-FAC uses only the diagonal of the curvature for parameters {which}: "
            f"{_join([self.names[p] for p in parameters])}."
        )

    def warn_untrained(self, model: nn.Module, unmeasured: Sequence[nn.Parameter]) -> None:
        """Warns that parameters have gradients but no curvature, or were frozen at the start."""
        if unmeasured:
            self.warn(
                "K-FAC does not update parameters whose curvature it has not measured: "
                f"{_join([self.names[p] for p in unmeasured])}. The outputs passed to curvature() "
                "do not depend on them, as with other heads, or layers under a checkpoint without "
                "use_reentrant=False; or the measurement was not finite."
            )
        own = model.named_parameters()
        if frozen := [name for name, p in own if p.grad is not None and p not in self.names]:
            self.warn(
                f"K-FAC does not train {_join(frozen)}, which were frozen when it was created. "
                "Create a new one."
            )


def _join(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + rest

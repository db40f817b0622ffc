"""Hooks that note what goes through the layers in the forward passes that curvature is taken from.

What comes back to a layer's output is asked for by its place in the graph, not by the output
itself: an activation that writes in place changes the tensor, but not where it came from.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .layers import Layer


@dataclass(frozen=True, eq=False)
class Use:
    """A layer's part in a forward pass."""

    layer: Layer
    inputs: Tensor
    output: GradientEdge


class Listener:
    """The uses of layers since they were last asked for, while it is listening."""

    def __init__(self, layers: dict[nn.Module, Layer]) -> None:
        self.listening = False
        self._uses: dict[Layer, list[Use]] = {}
        self._versions: dict[Layer, int] = {}
        self._layers = weakref.WeakKeyDictionary(layers)
        own: weakref.ref[Listener] = weakref.ref(self)
        handles = [m.register_forward_hook(_Hook(own), with_kwargs=True) for m in layers]
        self._remove = weakref.finalize(self, _remove, handles)

    def taken(self) -> list[Use]:
        """What was heard; it is forgotten here."""
        uses, self._uses = self._uses, {}
        return [use for own in uses.values() for use in own]

    def put_back(self, uses: Iterable[Use]) -> None:
        """Keep uses for another time after all."""
        for use in uses:
            self._uses.setdefault(use.layer, []).append(use)

    def heard(self, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        """Note a use, if it is one to take curvature from."""
        layer = self._layers.get(module)
        if self.listening and layer is not None and output.requires_grad:
            version = layer.weight._version
            if self._versions.get(layer) != version:
                # Others trained it since, and would pile up here what nobody asks for.
                self._versions[layer] = version
                self._uses[layer] = []
            use = Use(layer, inputs.detach(), _origin(output))
            self._uses.setdefault(layer, []).append(use)


class _Hook:
    """A module's hook. Copies of the model, and what is loaded from a file, have deaf ones."""

    def __init__(self, listener: weakref.ref[Listener] | None = None) -> None:
        self._listener = listener

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if torch.compiler.is_compiling() or self._listener is None:
            return
        listener = self._listener()
        if listener is not None and listener.listening and torch.is_grad_enabled():
            listener.heard(module, args[0] if args else kwargs["input"], output)

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()


def _origin(output: Tensor) -> GradientEdge:
    """Where an output came from.

    What a Linear gives for more than two dimensions, or a convolution without a batch, is a view of
    what it computed. What then writes in place takes the view out of the graph, but not that.
    """
    whole = output._base
    is_reshaped = whole is not None and whole.numel() == output.numel() and whole.requires_grad
    return get_gradient_edge(whole if whole is not None and is_reshaped else output)


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()

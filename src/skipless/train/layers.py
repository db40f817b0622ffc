r"""What chosen layers do in a training step: their kernel, their gradients and their weights.

For outputs $z_i$ of a layer, one for each image of a batch of n, with N numbers in each:

$$q = \frac1{nN} \sum_i \|z_i\|^2, \qquad
  c = \frac1{n(n-1)} \sum_{i \ne j} \frac{z_i \cdot z_j}{\|z_i\| \|z_j\|}$$

They are those of the step's own forward pass, so that nothing is computed twice and no number of
the run depends on whether they are measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import Tensor, nn

_USUAL = 8  # layers, if none are named
_MOST_IMAGES = 128  # of a batch: more cost memory and say little


class LayerLog:
    """Measures layers of `model` that match one of the `patterns`, as in "stages.0.*,fc".

    Without patterns these are eight layers with weights, evenly from the first to the last. With
    `outputs` false, only gradients and weights are measured.
    """

    def __init__(self, model: nn.Module, patterns: str | None, *, outputs: bool = True) -> None:
        leaves = {n: m for n, m in model.named_modules() if n and not list(m.children())}
        self.layers: Mapping[str, nn.Module] = _choose(leaves, patterns)
        self._outputs = outputs
        self._measured: dict[str, Tensor] = {}

    @contextmanager
    def watch(self) -> Iterator[None]:
        """While entered, measures q and c in forward passes; a layer's first call counts."""
        self._measured = {}
        with ExitStack() as hooks:
            for name, layer in self.layers.items() if self._outputs else ():
                hooks.enter_context(layer.register_forward_hook(partial(self._measure, name)))
            yield

    def numbers(self) -> dict[str, float]:
        """All that was measured, with the present norms of gradients and weights, by name.

        Biases count for neither norm; layers without weights, and weights without gradients, are
        left out.
        """
        measured = dict(self._measured)
        for name, layer in self.layers.items():
            weight = getattr(layer, "weight", None)
            if isinstance(weight, nn.Parameter):
                measured[f"weight/{name}"] = _norm(weight.detach())
                if weight.grad is not None:
                    measured[f"gradient/{name}"] = _norm(weight.grad)
        values = torch.stack([value.float() for value in measured.values()]).tolist()
        return dict(zip(measured, values, strict=True))

    @torch.no_grad()
    def _measure(self, name: str, _layer: nn.Module, _inputs: object, output: object) -> None:
        if f"q/{name}" in self._measured or not isinstance(output, Tensor) or output.ndim < 2:
            return
        rows = output.detach()[:_MOST_IMAGES].float().flatten(1)
        self._measured[f"q/{name}"] = rows.square().mean()
        if len(rows) > 1:
            self._measured[f"c/{name}"] = mean_cosine(rows)


def mean_cosine(rows: Tensor) -> Tensor:
    r"""The mean cosine between different rows.

    With $u_i = z_i / \|z_i\|$, the n² products of pairs need no matrix of them:
    $\sum_{i \ne j} u_i \cdot u_j = \|\sum_i u_i\|^2 - \sum_i \|u_i\|^2$.

    >>> mean_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])).item()  # 1 of 3 pairs
    0.3333333432674408
    """
    units = nn.functional.normalize(rows, eps=torch.finfo(rows.dtype).tiny)
    products = units.sum(dim=0).square().sum() - units.square().sum()
    return products / (len(rows) * (len(rows) - 1))


def _norm(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor, dtype=torch.float32)


def _choose(leaves: Mapping[str, nn.Module], patterns: str | None) -> dict[str, nn.Module]:
    if patterns is None:
        weights = {name: getattr(module, "weight", None) for name, module in leaves.items()}
        weighted = [n for n, own in weights.items() if isinstance(own, Tensor) and own.ndim > 1]
        last = len(weighted) - 1
        places = sorted({round(k * last / (_USUAL - 1)) for k in range(_USUAL)}) if weighted else []
        return {weighted[place]: leaves[weighted[place]] for place in places}
    chosen: dict[str, nn.Module] = {}
    for pattern in (part.strip() for part in patterns.split(",")):
        found = {name: m for name, m in leaves.items() if fnmatchcase(name, pattern)}
        if not found:
            some = ", ".join([*list(leaves)[:3], *list(leaves)[-1:]])
            raise ValueError(
                f"log_layers names no layer: {pattern!r} matches none of {some}, … Use * for any "
                "part of a name."
            )
        chosen |= found
    return {name: module for name, module in leaves.items() if name in chosen}

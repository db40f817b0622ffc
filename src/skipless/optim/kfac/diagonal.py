"""The diagonal of the Fisher matrix, for parameters that are no matrices of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Diagonal:
    """Running means of squared gradients of sampled losses.

    Scores that are drawn have mean zero, so the square of a sum over a batch is on average the sum
    of the squares: no gradients of single examples are needed.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._given = set(parameters)
        self.weights: dict[nn.Parameter, float] = {}
        self.means: dict[nn.Parameter, Tensor] = {}
        self.add(parameters)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that have a diagonal."""
        return list(self.means)

    def add(self, parameters: Sequence[nn.Parameter]) -> None:
        """Keep a diagonal for more of them."""
        for parameter in parameters:
            self.weights[parameter], self.means[parameter] = 0.0, _zeros(parameter)

    def update(self, squares: Mapping[nn.Parameter, Tensor], losses: int, ema: float) -> None:
        """Let the squares of gradients in that were summed over that many losses.

        Parameters that were not used rest, as layers do.
        """
        used = torch.stack([s.any().cpu() for s in squares.values()]).tolist() if squares else []
        for (parameter, square), moved in zip(squares.items(), used, strict=True):
            if not moved:
                continue
            self.weights[parameter] = weight = ema * self.weights[parameter] + 1.0
            self.means[parameter].lerp_(square / losses, 1.0 / weight)

    def apply(
        self, gradients: Mapping[nn.Parameter, Tensor], damping: float
    ) -> dict[nn.Parameter, Tensor]:
        """Gradients over the curvature, of those for which it is known."""
        return {
            parameter: gradient / (self.means[parameter] + damping)
            for parameter, gradient in gradients.items()
            if self.weights.get(parameter)
        }

    def products(self, vectors: Mapping[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
        """The curvature times vectors."""
        return {p: self.means[p] * vector for p, vector in vectors.items() if p in self.means}

    def state(self, names: Mapping[nn.Parameter, str]) -> dict[str, Any]:
        """Everything that is kept, by the parameters' names."""
        return {
            names[p]: {"weight": self.weights[p], "mean": mean} for p, mean in self.means.items()
        }

    def check(self, state: Mapping[str, Any], named: Mapping[str, nn.Parameter]) -> None:
        """Raise an error if `state` is not one of these parameters."""
        shapes = {name: tuple(own["mean"].shape) for name, own in state.items()}
        known = {name: tuple(parameter.shape) for name, parameter in named.items()}
        odd = [name for name in shapes if shapes[name] != known.get(name)]
        odd += [name for name in known if named[name] in self._given and name not in shapes]
        if odd:
            found, own = shapes.get(odd[0], "nothing"), known.get(odd[0], "nothing")
            raise ValueError(
                f"A state of K-FAC was to be loaded that has {found} for the parameter {odd[0]}, "
                f"where the network has {own}. Load it into the network that it was saved with."
            )

    def load(self, state: Mapping[str, Any], named: Mapping[str, nn.Parameter]) -> None:
        """Take over what `state` told."""
        self.weights, self.means = {}, {}
        self.add([named[name] for name in state])
        for name, own in state.items():
            self.weights[named[name]] = own["weight"]
            self.means[named[name]].copy_(own["mean"])


def _zeros(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter, dtype=torch.promote_types(parameter.dtype, torch.float32))

r"""The Kronecker-factored curvature of all layers of a network.

For each matrix $W$ of a network the Fisher matrix is taken as $A \otimes G$: the mean second moment
of the rows that $W$ multiplies, and the second moment of the scores that come back to its outputs,
summed over the rows and divided by the number of losses. For convolutions this is the KFC of Grosse
and Martens (2016); a layer that is used several times just has more rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, nn

from .banks import Axes, Bank, Block, Inverses, carry_out
from .layers import Layer
from .processes import average_, rank, share_, shares, world


class Blocks:
    """The blocks of all layers, and what is computed from them."""

    def __init__(
        self, layers: Iterable[Layer], *, eigenbasis: bool, tell: Callable[[str], None]
    ) -> None:
        self.of_layer = {layer: Block(layer) for layer in layers}
        self._tell = tell
        alike: dict[object, list[Block]] = {}
        for block in self.of_layer.values():
            factor = block.outputs
            kind = (block.layer.shape, block.layer.diagonal, factor.dtype, factor.device)
            alike.setdefault(kind, []).append(block)
        make: type[Bank] = Axes if eigenbasis else Inverses
        self.banks = [make(blocks) for blocks in alike.values()]
        self._bank_of = {block: bank for bank in self.banks for block in bank.blocks}

    @property
    def all(self) -> list[Block]:
        """The blocks, in the order of the network."""
        return list(self.of_layer.values())

    def due(self, part: int | EllipsisType | None, parts: int) -> list[Block]:
        """One of so many parts of the blocks, or all of them, or none."""
        if part is None:
            return []
        return self.all if part is ... else self.in_bins(parts)[part]

    def in_bins(self, bins: int) -> list[list[Block]]:
        """The blocks in so many parts that take about the same time to invert."""
        chosen = shares([_cost(block) for block in self.all], bins)
        return [
            [block for block, own in zip(self.all, chosen, strict=True) if own == number]
            for number in range(bins)
        ]

    def refresh(self, blocks: Sequence[Block], damping: float) -> None:
        """Invert factors anew, each on one of the processes, which tells the others."""
        self.synchronize(blocks)
        known = [block for block in blocks if block.weight]
        tasks = [task for block in known for task in self._bank_of[block].tasks(block, damping)]
        owners = shares([task.cost for task in tasks], world())
        carry_out([t for t, by in zip(tasks, owners, strict=True) if by == rank()], self._tell)
        results = [(r, by) for t, by in zip(tasks, owners, strict=True) for r in t.results]
        share_([result for result, _ in results], [owner for _, owner in results])
        for block in known:
            self._bank_of[block].finish(block)

    def synchronize(self, blocks: Sequence[Block]) -> None:
        """Make the running means those of all processes; a layer may be new to some of them."""
        if world() == 1 or not blocks:
            return
        own = [block.weight for block in blocks]
        weights = torch.tensor(own, dtype=torch.float64, device=blocks[0].outputs.device)
        average_([weights])
        for block, weight, mean in zip(blocks, own, weights.tolist(), strict=True):
            for factor in _factors(block):
                factor.mul_(weight / mean if mean else 0.0)
            block.weight = mean
        average_([factor for block in blocks for factor in _factors(block)])

    def apply(
        self, values: Mapping[nn.Parameter, Tensor], damping: float
    ) -> dict[nn.Parameter, Tensor]:
        """Inverse curvature times values, such as gradients, of the layers that have any."""
        found: dict[nn.Parameter, Tensor] = {}
        for bank in self.banks:
            own = [block for block in bank.blocks if block.solved and _some(block, values)]
            if own:
                found |= bank.apply(own, values, damping)
        return found

    def products(self, values: Mapping[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
        """The curvature, not damped, times values of the layers that have any."""
        found: dict[nn.Parameter, Tensor] = {}
        for layer, block in self.of_layer.items():
            if block.weight and _some(block, values):
                parts = layer.parts(block.product(layer.matrices(values)))
                found |= dict(zip(layer.parameters, parts, strict=True))
        return found

    def squares(self, values: Mapping[nn.Parameter, Tensor]) -> dict[Block, Tensor]:
        """Squares along the axes, where there are any, of gradients of sums of sampled losses."""
        return {
            block: bank.squares(block, block.layer.matrices(values))
            for block, bank in self._bank_of.items()
            if isinstance(bank, Axes) and block.solved
        }

    def measure_scales(self, squares: Mapping[Block, Tensor], losses: int, ema: float) -> None:
        """Let squares along axes in, of the sum of that many losses."""
        for block, own in squares.items():
            bank = self._bank_of[block]
            if isinstance(bank, Axes):
                bank.measure(block, own, losses, ema)

    def state(self) -> dict[str, dict[str, Any]]:
        """Everything that is kept, by the layers' names."""
        return {
            block.layer.name: {
                "weight": block.weight,
                "scale_weight": block.scale_weight,
                "solved": block.solved,
                **self._tensors(block),
            }
            for block in self.all
        }

    def check(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise an error if `state` is not one of these layers."""
        names = {block.layer.name for block in self.all}
        if names != set(state):
            odd = sorted(names ^ set(state))
            raise ValueError(
                f"A state of K-FAC was to be loaded that has {len(state)} layers, into a network "
                f"that has {len(names)}; they differ in {', '.join(odd[:5])}. Load it into the "
                "network that it was saved with."
            )
        for block in self.all:
            own = state[block.layer.name]
            for name, tensor in self._tensors(block).items():
                saved = own.get(name)
                if saved is None or saved.shape != tensor.shape:
                    found = "nothing" if saved is None else f"shape {tuple(saved.shape)}"
                    raise ValueError(
                        f"A state of K-FAC was to be loaded, but for {name} of the layer "
                        f"{block.layer.name}, of shape {tuple(tensor.shape)}, it has {found}. "
                        "Load it into the network, and with the settings, that it was saved with."
                    )

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what `state` told."""
        for block in self.all:
            own = state[block.layer.name]
            for name, tensor in self._tensors(block).items():
                tensor.copy_(own[name])
            block.weight, block.solved = own["weight"], own["solved"]
            block.scale_weight = own["scale_weight"]

    def _tensors(self, block: Block) -> dict[str, Tensor]:
        own = {"inputs": block.inputs, "outputs": block.outputs}
        return own | self._bank_of[block].tensors(block)


def _some(block: Block, values: Mapping[nn.Parameter, Tensor]) -> bool:
    return any(parameter in values for parameter in block.layer.parameters)


def _factors(block: Block) -> tuple[Tensor, Tensor]:
    return block.inputs, block.outputs


def _cost(block: Block) -> float:
    return float(sum(f.shape[0] * f.shape[-1] ** 3 for f in _factors(block) if f.ndim == 3))

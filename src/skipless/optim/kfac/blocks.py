r"""The Kronecker-factored curvature of all layers of a network.

For each matrix $W$ of a network the Fisher matrix is taken as $A \otimes G$: the mean second moment
of the rows that $W$ multiplies, and the second moment of the scores that come back to its outputs,
summed over the rows and divided by the number of losses. For convolutions this is the KFC of Grosse
and Martens (2016); a layer that is used several times just has more rows.

Inverse curvature of layers of one shape, in single tensors, so that one product applies all.

There are two kinds. `Inverses` has the damped inverses of both factors. `Axes` has the eigenvectors
of the factors, and the curvature along each pair of them measured by itself, which a product of
eigenvalues only approximates (EKFAC; George et al., 2018).
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, nn

from .inverse import Damping, damped_inverses, eigenbases, factored_damping
from .layers import Layer
from .processes import average_, rank, share_, shares, world

CACHED_BYTES = 2 * 2**20  # of matrices that stay in a core's cache from one product to the next


class Block:
    """The factors of one layer, as running means whose weights decay."""

    def __init__(self, layer: Layer) -> None:
        rows, columns = layer.shape
        n, like = layer.groups, layer.weight
        dtype = torch.promote_types(like.dtype, torch.float32)
        of_inputs = (n, columns) if layer.diagonal else (n, columns, columns)
        self.layer = layer
        self.inputs = torch.zeros(of_inputs, dtype=dtype, device=like.device)
        self.outputs = torch.zeros((n, rows, rows), dtype=dtype, device=like.device)
        self.weight = 0.0  # of the running means: 1 + ema + ema² + ...
        self.scale_weight = 0.0  # the same for the curvature along axes
        self.solved = False

    def update(self, inputs: Tensor, outputs: Tensor, ema: float) -> None:
        """Let new factors in."""
        self.weight = ema * self.weight + 1.0
        self.inputs.lerp_(inputs, 1.0 / self.weight)
        self.outputs.lerp_(outputs, 1.0 / self.weight)

    def product(self, matrices: Tensor) -> Tensor:
        """The curvature, not damped, times (groups, rows, columns)."""
        return _times(self.outputs @ matrices, self.inputs)


@dataclass(frozen=True)
class Task:
    """A factor to invert, or, with no damping, to find the axes of, and where the results go."""

    factor: Tensor
    results: tuple[Tensor, ...]
    damping: Damping | None = None

    @property
    def cost(self) -> float:
        """In any unit."""
        return float(self.factor.shape[0] * self.factor.shape[-1] ** 3)


class Bank(ABC):
    """What the inverse curvature of layers of one shape is made of."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        sizes = [block.layer.groups for block in blocks]
        ends = torch.tensor(sizes).cumsum(0).tolist()
        self.blocks = blocks
        self.places = {
            block: slice(end - size, end)
            for block, size, end in zip(blocks, sizes, ends, strict=True)
        }
        self.left = self._room(blocks[0].outputs.shape[1:])
        self.right = self._room(blocks[0].inputs.shape[1:])

    @abstractmethod
    def tensors(self, block: Block) -> dict[str, Tensor]:
        """All that is kept of a layer, by name, to be saved and loaded in place."""

    @abstractmethod
    def tasks(self, block: Block, damping: float) -> list[Task]:
        """What has to be computed from a layer's factors."""

    @abstractmethod
    def finish(self, block: Block) -> None:
        """Take notice that the layer's tasks are done."""

    @abstractmethod
    def solved(self, blocks: Sequence[Block], matrices: Tensor, damping: float) -> Tensor:
        """Inverse curvature times matrices of the layers given, all stacked in their order."""

    def apply(
        self, blocks: Sequence[Block], values: Mapping[nn.Parameter, Tensor], damping: float
    ) -> dict[nn.Parameter, Tensor]:
        """Inverse curvature times values, such as gradients, of the layers given."""
        found: dict[nn.Parameter, Tensor] = {}
        for some in self._portions(blocks):
            sizes = [block.layer.groups for block in some]
            stacked = self.left.new_empty(sum(sizes), *some[0].layer.shape)
            for block, room in zip(some, stacked.split(sizes), strict=True):
                block.layer.matrices(values, out=room)
            pieces = self.solved(some, stacked, damping).split(sizes)
            for block, piece in zip(some, pieces, strict=True):
                parts = [part.contiguous() for part in block.layer.parts(piece)]
                found |= zip(block.layer.parameters, parts, strict=True)
        return found

    def _portions(self, blocks: Sequence[Block]) -> Iterator[Sequence[Block]]:
        """All layers at once, but on a CPU as few as stay in its cache."""
        layer = blocks[0].layer
        each = layer.groups * math.prod(layer.shape) * self.left.itemsize
        most = max(1, CACHED_BYTES // each) if self.left.device.type == "cpu" else len(blocks)
        return (blocks[start : start + most] for start in range(0, len(blocks), most))

    def _room(self, shape: Sequence[int]) -> Tensor:
        n = sum(block.layer.groups for block in self.blocks)
        return self.blocks[0].outputs.new_zeros(n, *shape)

    def _stacked(self, chosen: Sequence[Block], tensor: Tensor) -> Tensor:
        """The part of a tensor that belongs to some layers."""
        places = [self.places[block] for block in chosen]
        if all(a.stop == b.start for a, b in itertools.pairwise(places)):
            return tensor[places[0].start : places[-1].stop]
        return torch.cat([tensor[place] for place in places])


class Inverses(Bank):
    """Damped inverses of both factors."""

    def tensors(self, block: Block) -> dict[str, Tensor]:
        place = self.places[block]
        return {"inverse_outputs": self.left[place], "inverse_inputs": self.right[place]}

    def tasks(self, block: Block, damping: float) -> list[Task]:
        place = self.places[block]
        of_inputs, of_outputs = factored_damping(block.inputs, block.outputs, damping)
        tasks = [Task(block.outputs, (self.left[place],), of_outputs)]
        if block.layer.diagonal:
            damped = block.inputs * of_inputs.scale[:, None] + of_inputs.shift[:, None]
            self.right[place] = damped.reciprocal()
        else:
            tasks.append(Task(block.inputs, (self.right[place],), of_inputs))
        return tasks

    def finish(self, block: Block) -> None:
        block.solved = True

    def solved(self, blocks: Sequence[Block], matrices: Tensor, damping: float) -> Tensor:
        left, right = (self._stacked(blocks, tensor) for tensor in (self.left, self.right))
        return _times(left @ matrices, right)


class Axes(Bank):
    """Eigenvectors of both factors, and the curvature along each pair of them."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        super().__init__(blocks)
        first = blocks[0]
        self.left_values = self._room(first.outputs.shape[1:2])
        self.right_values = self._room(first.inputs.shape[1:2])
        self.scales = self._room(first.layer.shape)

    def tensors(self, block: Block) -> dict[str, Tensor]:
        place = self.places[block]
        return {
            "axes_outputs": self.left[place],
            "axes_inputs": self.right[place],
            "scales": self.scales[place],
        }

    def tasks(self, block: Block, damping: float) -> list[Task]:
        place = self.places[block]
        tasks = [Task(block.outputs, (self.left[place], self.left_values[place]))]
        if block.layer.diagonal:
            self.right[place], self.right_values[place] = 1.0, block.inputs
        else:
            tasks.append(Task(block.inputs, (self.right[place], self.right_values[place])))
        return tasks

    def finish(self, block: Block) -> None:
        # Products of eigenvalues, until the curvature along the new axes has been measured.
        place = self.places[block]
        self.scales[place] = self.left_values[place].unsqueeze(2) * self.right_values[
            place
        ].unsqueeze(1)
        block.scale_weight, block.solved = block.weight, True

    def squares(self, block: Block, gradient: Tensor) -> Tensor:
        """Squares along the axes of the gradient of a sum of sampled losses."""
        place = self.places[block]
        return _times(self.left[place].mT @ gradient, self.right[place]).square_()

    def measure(self, block: Block, squares: Tensor, losses: int, ema: float) -> None:
        """Let squares in, if the layer was used; else its scales rest, as its factors do."""
        if bool(squares.any()):
            block.scale_weight = ema * block.scale_weight + 1.0
            self.scales[self.places[block]].lerp_(squares / losses, 1.0 / block.scale_weight)

    def solved(self, blocks: Sequence[Block], matrices: Tensor, damping: float) -> Tensor:
        left, right, scales = (
            self._stacked(blocks, tensor) for tensor in (self.left, self.right, self.scales)
        )
        turned = _times(left.mT @ matrices, right) / (scales + damping)
        return _times(left @ turned, right if right.ndim == 2 else right.mT)


def carry_out(tasks: Sequence[Task], tell: Callable[[str], None]) -> None:
    """Compute the results of all tasks, those of one size at once."""
    sizes: dict[object, list[Task]] = {}
    for task in tasks:
        factor = task.factor
        sizes.setdefault((factor.shape[-1], factor.dtype, factor.device), []).append(task)
    for alike in sizes.values():
        factors = torch.cat([task.factor for task in alike])
        damped = [task.damping for task in alike if task.damping is not None]
        if damped:
            scale = torch.cat([damping.scale for damping in damped])
            shift = torch.cat([damping.shift for damping in damped])
            previous = torch.cat([task.results[0] for task in alike])
            found = (damped_inverses(factors, Damping(scale, shift), previous, tell),)
        else:
            values, vectors = eigenbases(factors)
            found = (vectors, values)
        pieces = [whole.split([len(task.factor) for task in alike]) for whole in found]
        for number, task in enumerate(alike):
            for result, piece in zip(task.results, pieces, strict=True):
                result.copy_(piece[number])


def _times(matrices: Tensor, right: Tensor) -> Tensor:
    """Products with matrices, or with diagonal ones that are held as vectors."""
    return matrices * right.unsqueeze(1) if right.ndim == 2 else matrices @ right


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

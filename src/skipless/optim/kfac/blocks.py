r"""The Kronecker-factored curvature of all layers, and its inverse.

For each weight matrix $W$ the Fisher matrix is approximated by $A \otimes G$: the mean second
moment of the rows that $W$ multiplies, and the second moment of the scores at its outputs, summed
over the rows and divided by the number of losses. For convolutions this is the KFC of Grosse and
Martens (2016); a layer that is used several times simply has more rows.

Inverses of layers of one shape are stacked in one tensor, so that one product applies them all:
damped inverses of both factors, or their eigenvectors with the curvature along each pair of them
measured by itself, which a product of eigenvalues only approximates (EKFAC; George et al., 2018).

Axes: g = groups of one layer, or of all layers in a stack; rows = outputs, columns = inputs.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .inverse import Damping, Values, damped_inverses, eigenbases, factored_damping
from .layers import FactoredLayer
from .moments import at_least_float32
from .processes import average_, balance, broadcast_, means, rank, world_size

CACHED_BYTES = 2 * 2**20  # of matrices that stay in a core's cache from one product to the next


class CurvatureBlock:
    """The factors of one layer, as running means whose weights decay."""

    def __init__(self, layer: FactoredLayer) -> None:
        (rows, columns), g = layer.shape, layer.groups
        dtype, device = at_least_float32(layer.weight), layer.weight.device
        of_inputs = (g, columns) if layer.diagonal else (g, columns, columns)
        self.layer = layer
        self.inputs: Tensor = torch.zeros(of_inputs, dtype=dtype, device=device)
        self.outputs: Tensor = torch.zeros((g, rows, rows), dtype=dtype, device=device)
        self.weight: float = 0.0  # of the running means: 1 + ema + ema² + ...
        self.scale_weight: float = 0.0  # the same for the curvature along eigenvectors
        self.is_inverted: bool = False

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        return self.outputs, self.inputs

    @property
    def cost(self) -> float:
        return sum(map(_inversion_cost, self.factors))

    def update(self, inputs: Tensor, outputs: Tensor, ema: float) -> None:
        """Adds new factors to the running means."""
        self.weight = ema * self.weight + 1.0
        self.inputs.lerp_(inputs, 1.0 / self.weight)
        self.outputs.lerp_(outputs, 1.0 / self.weight)

    def has_any(self, values: Values) -> bool:
        """Whether `values` has one of the layer's parameters."""
        return any(parameter in values for parameter in self.layer.parameters)


@dataclass(frozen=True)
class Task:
    """A factor to invert, or, without damping, to decompose, and where the results go."""

    factor: Tensor
    results: tuple[Tensor, ...]
    damping: Damping | None = None

    @property
    def cost(self) -> float:
        return _inversion_cost(self.factor)


class StackedInverses(ABC):
    """The inverse curvature of layers of one shape."""

    def __init__(self, blocks: Sequence[CurvatureBlock]) -> None:
        self.blocks = blocks
        ends = list(itertools.accumulate(block.layer.groups for block in blocks))
        starts = [0, *ends[:-1]]
        self.slices = dict(zip(blocks, map(slice, starts, ends), strict=True))
        self.left: Tensor = self._zeros(blocks[0].outputs.shape[1:])
        self.right: Tensor = self._zeros(blocks[0].inputs.shape[1:])
        self.results: tuple[tuple[Tensor, ...], ...] = (self.left,), (self.right,)
        self.saved: dict[str, Tensor] = {}

    def tensors(self, block: CurvatureBlock) -> dict[str, Tensor]:
        """The state of a layer, by name, to be saved and loaded in place."""
        return {name: tensor[self.slices[block]] for name, tensor in self.saved.items()}

    def tasks(self, block: CurvatureBlock, damping: float | None) -> list[Task]:
        """What has to be computed from a layer's factors."""
        own = self.slices[block]
        dampings = (None, None) if damping is None else factored_damping(*block.factors, damping)
        return [
            Task(factor, tuple(tensor[own] for tensor in results), by)
            for factor, results, by in zip(block.factors, self.results, dampings, strict=True)
        ]

    def finish(self, block: CurvatureBlock) -> None:
        """Called after the layer's tasks have run."""
        block.is_inverted = True

    @abstractmethod
    def solve(self, blocks: Sequence[CurvatureBlock], matrices: Tensor, damping: float) -> Tensor:
        """Inverse curvature times matrices of these layers, stacked in their order."""

    def apply(
        self, blocks: Sequence[CurvatureBlock], values: Values, damping: float
    ) -> dict[nn.Parameter, Tensor]:
        """Inverse curvature times values, such as gradients, of these layers."""
        found: dict[nn.Parameter, Tensor] = {}
        for some in self._portions(blocks):
            sizes = [block.layer.groups for block in some]
            stacked = self.left.new_empty(sum(sizes), *some[0].layer.shape)
            for block, out in zip(some, stacked.split(sizes), strict=True):
                block.layer.matrices(values, out=out)
            pieces = self.solve(some, stacked, damping).split(sizes)
            for block, piece in zip(some, pieces, strict=True):
                parts = [part.contiguous() for part in block.layer.parts(piece)]
                found |= zip(block.layer.parameters, parts, strict=True)
        return found

    def _portions(self, blocks: Sequence[CurvatureBlock]) -> Iterator[Sequence[CurvatureBlock]]:
        """All layers at once, but on a CPU only as many as fit into its cache."""
        layer = blocks[0].layer
        each = layer.groups * math.prod(layer.shape) * self.left.itemsize
        most = max(1, CACHED_BYTES // each) if self.left.device.type == "cpu" else len(blocks)
        return (blocks[start : start + most] for start in range(0, len(blocks), most))

    def _zeros(self, shape: Sequence[int]) -> Tensor:
        g = sum(block.layer.groups for block in self.blocks)
        return self.blocks[0].outputs.new_zeros(g, *shape)

    def _select(self, chosen: Sequence[CurvatureBlock], tensor: Tensor) -> Tensor:
        """The part of a stacked tensor that belongs to some layers."""
        slices = [self.slices[block] for block in chosen]
        if all(a.stop == b.start for a, b in itertools.pairwise(slices)):
            return tensor[slices[0].start : slices[-1].stop]
        return torch.cat([tensor[own] for own in slices])


class DampedInverses(StackedInverses):
    """Damped inverses of both factors."""

    def __init__(self, blocks: Sequence[CurvatureBlock]) -> None:
        super().__init__(blocks)
        self.saved = {"inverse_outputs": self.left, "inverse_inputs": self.right}

    def solve(self, blocks: Sequence[CurvatureBlock], matrices: Tensor, damping: float) -> Tensor:
        left, right = (self._select(blocks, tensor) for tensor in (self.left, self.right))
        return _times(left @ matrices, right)


class Eigenbases(StackedInverses):
    """Eigenvectors of both factors, and the curvature along each pair of them."""

    def __init__(self, blocks: Sequence[CurvatureBlock]) -> None:
        super().__init__(blocks)
        self.left_values = self._zeros(blocks[0].outputs.shape[1:2])
        self.right_values = self._zeros(blocks[0].inputs.shape[1:2])
        self.scales = self._zeros(blocks[0].layer.shape)
        self.results = (self.left, self.left_values), (self.right, self.right_values)
        self.saved = {"axes_outputs": self.left, "axes_inputs": self.right, "scales": self.scales}

    def tasks(self, block: CurvatureBlock, damping: float | None) -> list[Task]:
        return super().tasks(block, None)

    def finish(self, block: CurvatureBlock) -> None:
        super().finish(block)
        # Products of eigenvalues, until the curvature along the new eigenvectors is measured.
        left, right = (v[self.slices[block]] for v in (self.left_values, self.right_values))
        self.scales[self.slices[block]] = left.unsqueeze(2) * right.unsqueeze(1)
        block.scale_weight = block.weight

    def squares(self, block: CurvatureBlock, gradient: Tensor) -> Tensor:
        """Squares along the eigenvectors of the gradient of a sum of sampled losses."""
        own = self.slices[block]
        return _times(self.left[own].mT @ gradient, self.right[own]).square_()

    def measure(self, block: CurvatureBlock, squares: Tensor, losses: int, ema: float) -> None:
        """Adds squares to the curvature, unless the batch did not use the layer."""
        if bool(squares.any()):
            block.scale_weight = ema * block.scale_weight + 1.0
            self.scales[self.slices[block]].lerp_(squares / losses, 1.0 / block.scale_weight)

    def solve(self, blocks: Sequence[CurvatureBlock], matrices: Tensor, damping: float) -> Tensor:
        left, right, scales = (
            self._select(blocks, tensor) for tensor in (self.left, self.right, self.scales)
        )
        turned = _times(left.mT @ matrices, right) / (scales + damping)
        return _times(left @ turned, right if right.ndim == 2 else right.mT)


def run_tasks(tasks: Sequence[Task], warn: Callable[[str], None]) -> None:
    """Computes the results of all tasks, those of one size at once."""
    by_size: dict[object, list[Task]] = {}
    for task in tasks:
        factor = task.factor
        by_size.setdefault((factor.shape[1:], factor.dtype, factor.device), []).append(task)
    for group in by_size.values():
        factors = torch.cat([task.factor for task in group])
        damped = [task.damping for task in group if task.damping is not None]
        if damped:
            damping = Damping(*map(torch.cat, zip(*damped, strict=True)))
            previous = torch.cat([task.results[0] for task in group])
            found = (damped_inverses(factors, damping, previous, warn),)
        else:
            found = eigenbases(factors)
        pieces = [whole.split([len(task.factor) for task in group]) for whole in found]
        for number, task in enumerate(group):
            for result, piece in zip(task.results, pieces, strict=True):
                result.copy_(piece[number])


def _inversion_cost(factor: Tensor) -> float:
    return float(len(factor) * factor.shape[-1] ** 3 if factor.ndim == 3 else 0)  # in any unit


def _times(matrices: Tensor, right: Tensor) -> Tensor:
    """Products with matrices, or with diagonal ones that are stored as vectors."""
    return matrices * right.unsqueeze(1) if right.ndim == 2 else matrices @ right


class Blocks:
    """The blocks of all layers, and their inverses."""

    def __init__(
        self, layers: Iterable[FactoredLayer], *, eigenbasis: bool, warn: Callable[[str], None]
    ) -> None:
        self.of_layer = {layer: CurvatureBlock(layer) for layer in layers}
        self._warn = warn
        alike: dict[object, list[CurvatureBlock]] = {}
        for block in self.of_layer.values():
            factor = block.outputs
            kind = (block.layer.shape, block.layer.diagonal, factor.dtype, factor.device)
            alike.setdefault(kind, []).append(block)
        stack: type[StackedInverses] = Eigenbases if eigenbasis else DampedInverses
        self._stacks = [stack(blocks) for blocks in alike.values()]
        self._stack_of = {block: stack for stack in self._stacks for block in stack.blocks}
        self._eigenbases = {
            block: own for block, own in self._stack_of.items() if isinstance(own, Eigenbases)
        }

    @property
    def all(self) -> list[CurvatureBlock]:
        """The blocks, in the order of the network."""
        return list(self.of_layer.values())

    def in_bin(self, number: int, bins: int) -> list[CurvatureBlock]:
        """One of that many parts of the blocks, which take about the same time to invert."""
        chosen = balance([block.cost for block in self.all], bins)
        return [block for block, own in zip(self.all, chosen, strict=True) if own == number]

    def refresh(self, blocks: Sequence[CurvatureBlock], damping: float) -> None:
        """Inverts factors, each on one of the processes, which sends the others its results."""
        self.synchronize(blocks)
        known = [block for block in blocks if block.weight]
        tasks = [task for block in known for task in self._stack_of[block].tasks(block, damping)]
        owners = balance([task.cost for task in tasks], world_size())
        run_tasks([t for t, by in zip(tasks, owners, strict=True) if by == rank()], self._warn)
        results = [(r, by) for t, by in zip(tasks, owners, strict=True) for r in t.results]
        broadcast_([result for result, _ in results], [owner for _, owner in results])
        for block in known:
            self._stack_of[block].finish(block)

    def synchronize(self, blocks: Sequence[CurvatureBlock]) -> None:
        """Averages the running means over processes; a layer may be new to some of them."""
        if world_size() == 1 or not blocks:
            return
        weights = means([block.weight for block in blocks], blocks[0].outputs.device)
        for block, mean in zip(blocks, weights, strict=True):
            for factor in block.factors:
                factor.mul_(block.weight / mean if mean else 0.0)
            block.weight = mean
        average_([factor for block in blocks for factor in block.factors])

    def apply(self, values: Values, damping: float) -> dict[nn.Parameter, Tensor]:
        """Inverse curvature times values, such as gradients, of the layers that have any."""
        found: dict[nn.Parameter, Tensor] = {}
        for stack in self._stacks:
            own = [b for b in stack.blocks if b.is_inverted and b.has_any(values)]
            if own:
                found |= stack.apply(own, values, damping)
        return found

    def products(self, values: Values) -> dict[nn.Parameter, Tensor]:
        """The curvature, not damped, times values of the layers that have any."""
        found: dict[nn.Parameter, Tensor] = {}
        for layer, block in self.of_layer.items():
            if block.weight and block.has_any(values):
                product = _times(block.outputs @ layer.matrices(values), block.inputs)
                found |= zip(layer.parameters, layer.parts(product), strict=True)
        return found

    def squares(self, values: Values) -> dict[CurvatureBlock, Tensor]:
        """Squares along eigenvectors, if there are any, of gradients of sums of sampled losses."""
        return {
            block: stack.squares(block, block.layer.matrices(values))
            for block, stack in self._eigenbases.items()
            if block.is_inverted
        }

    def measure_scales(
        self, squares: Mapping[CurvatureBlock, Tensor], losses: int, ema: float
    ) -> None:
        """Adds squares along eigenvectors, of the sum of that many losses."""
        for block, own in squares.items():
            self._eigenbases[block].measure(block, own, losses, ema)

    def state(self) -> dict[str, dict[str, Any]]:
        """The state to save, by the layers' names."""
        return {
            block.layer.name: {
                "weight": block.weight,
                "scale_weight": block.scale_weight,
                "solved": block.is_inverted,
                **self._tensors(block),
            }
            for block in self.all
        }

    def check(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Raises an error unless `state` fits these layers."""
        names = {block.layer.name for block in self.all}
        if names != set(state):
            odd = sorted(names ^ set(state))
            raise ValueError(
                f"K-FAC's state has {len(state)} layers, the network has {len(names)}; they differ "
                f"in {', '.join(odd[:5])}. Load it into the network that it was saved with."
            )
        for block in self.all:
            own = state[block.layer.name]
            for name, tensor in self._tensors(block).items():
                saved = own.get(name)
                if saved is None or saved.shape != tensor.shape:
                    found = "nothing" if saved is None else f"shape {tuple(saved.shape)}"
                    raise ValueError(
                        f"K-FAC's state has {found} for {name} of the layer {block.layer.name}, "
                        f"expected shape {tuple(tensor.shape)}. Load it into the network, and with "
                        "the settings, that it was saved with."
                    )

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restores a saved state."""
        for block in self.all:
            own = state[block.layer.name]
            for name, tensor in self._tensors(block).items():
                tensor.copy_(own[name])
            block.weight, block.is_inverted = own["weight"], own["solved"]
            block.scale_weight = own["scale_weight"]

    def _tensors(self, block: CurvatureBlock) -> dict[str, Tensor]:
        own = {"inputs": block.inputs, "outputs": block.outputs}
        return own | self._stack_of[block].tensors(block)

"""The Fisher matrix of a network, measured in its forward passes and kept as running means.

Hooks that note what goes through the layers in the forward passes that curvature is taken from.

What comes back to a layer's output is asked for by its place in the graph, not by the output
itself: an activation that writes in place changes the tensor, but not where it came from.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from skipless.optim.settings import Fisher, KFACSettings, Loss

from .blocks import Block, Blocks
from .checks import Notes
from .inverse import Diagonal
from .layers import Layer, find_layers
from .moments import Scratch
from .processes import average_, rank, world
from .scores import (
    Chance,
    carry_back,
    empirical_scores,
    exact_scores,
    sampled_scores,
    terms,
)


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


_OTHER_KINDS = "that are not of a plain Linear, convolution or Embedding alone"
_KEPT = ("loss", "fisher", "input_stride", "seed")  # of a saved state, whatever is set here


@dataclass
class _Sums:
    """What one layer's uses add up to."""

    inputs: Tensor
    rows: int
    outputs: Tensor


@dataclass
class _Taken:
    """What was taken from the forward passes of a step so far."""

    sums: dict[Layer, _Sums] = field(default_factory=dict)
    losses: int = 0
    squares: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    axes: dict[Block, Tensor] = field(default_factory=dict)  # squares along them
    parts: int = 0

    def finite(self) -> bool:
        """Whether every number is one: of second moments, the diagonals tell of all the others."""
        tensors = [*self.squares.values(), *self.axes.values()]
        for sums in self.sums.values():
            for moments in (sums.inputs, sums.outputs):
                tensors.append(moments if moments.ndim == 2 else moments.diagonal(dim1=1, dim2=2))
        totals = [tensor.sum() for tensor in tensors]
        return not totals or bool(torch.stack([t.to(totals[0]) for t in totals]).isfinite().all())


class Estimate:
    """Kronecker factors of layers, and the diagonal of everything else."""

    def __init__(self, model: nn.Module, settings: KFACSettings) -> None:
        self.loss: Loss = settings.loss
        self.fisher: Fisher = settings.fisher
        self.eigenbasis, self.input_stride = settings.eigenbasis, settings.input_stride
        self.seed = settings.seed
        layers, by_module = find_layers(model)
        self.listener = Listener(by_module)
        self.notes = Notes({p: n for n, p in model.named_parameters() if p.requires_grad})
        self.blocks = Blocks(layers, eigenbasis=settings.eigenbasis, tell=self.notes.once)
        covered = {parameter for layer in layers for parameter in layer.parameters}
        self.names = self.notes.names
        self.diagonal = Diagonal([p for p in self.names if p not in covered])
        # In the order of the network, which is the same on all processes.
        self._unseen = dict.fromkeys(layers)
        self._taken = _Taken()
        self._scratch = Scratch()
        if self.diagonal.parameters:
            self.notes.diagonal(self.diagonal.parameters, _OTHER_KINDS)

    @property
    def _device(self) -> torch.device:
        return next(iter(self.names)).device

    @property
    def has_taken(self) -> bool:
        """Whether anything was taken since the last update."""
        return self._taken.parts > 0

    def forget(self) -> None:
        """Drop what was taken, and what was heard."""
        self._taken = _Taken()
        self.listener.taken()

    def take(self, outputs: Tensor, targets: Tensor | None, losses: int | None, step: int) -> None:
        """Measure the factors in the forward pass that led to `outputs`."""
        uses = self.listener.taken()
        wide = outputs.detach().to(torch.promote_types(outputs.dtype, torch.float32))
        seed = (self.seed * 1_000_003 + step) * 1_009 + self._taken.parts
        chance = Chance(seed % 2**62, rank(), world())
        moments: dict[Layer, Tensor] = {}
        for number, scores in enumerate(self._scores(wide, targets, chance)):
            reached = self._carry_back(outputs, scores.to(outputs.dtype), uses, moments)
            if number == 0:
                # Other passes may have been made already, and their turn is still to come.
                self.listener.put_back(use for use in uses if use not in reached)
                uses = [use for use in uses if use in reached]
        sums = _sums(uses, self.input_stride, moments, self._scratch)
        self._add(sums, losses or terms(outputs, self.loss))

    def _scores(self, outputs: Tensor, targets: Tensor | None, chance: Chance) -> Iterator[Tensor]:
        match self.fisher:
            case "sampled":
                yield sampled_scores(outputs, self.loss, chance)
            case "exact":
                yield from exact_scores(outputs, self.loss, chance)
            case "empirical":
                assert targets is not None
                yield empirical_scores(outputs, targets, self.loss, chance)

    def _carry_back(
        self, outputs: Tensor, scores: Tensor, uses: list[Use], moments: dict[Layer, Tensor]
    ) -> set[Use]:
        """The uses that led to `outputs`; adds moments of the scores that come back to them."""
        reached: set[Use] = set()

        def see(index: int, back: Tensor) -> None:
            use = uses[index]
            new = use.layer.output_moments(use.inputs, back)
            known = moments.get(use.layer)
            moments[use.layer] = new if known is None else known.add_(new)
            reached.add(use)

        called = {use.layer for use in uses}
        silent = [layer for layer in self._layers_to_watch(uses) if layer not in called]
        wanted = [*self.diagonal.parameters, *(p for layer in silent for p in layer.parameters)]
        wanted += self._along_axes
        leaves = [p for p in wanted if p.requires_grad]  # some may have been frozen on the way
        back = carry_back(outputs, scores, [use.output for use in uses], leaves, see)
        sampled = dict(zip(leaves, back, strict=True))
        own = {layer for layer in silent if _reached(layer, sampled)}
        if not uses and (own or all(gradient is None for gradient in back)):
            raise RuntimeError(
                "K-FAC was asked for the curvature of outputs, but heard none of its layers in the "
                "forward pass that gave them. Make the pass after the optimiser, with the model "
                "that it was made for, not compiled, and call curvature() once for each pass."
            )
        # What is left to the diagonal has to be the same on all processes, as messages are.
        layers = list(self.blocks.of_layer)
        read = _anywhere([layer in own for layer in layers], self._device)
        self._leave_to_diagonal([layer for layer, flag in zip(layers, read, strict=True) if flag])
        self._add_squares(sampled)
        return reached

    def _layers_to_watch(self, uses: list[Use]) -> list[Layer]:
        """Those that may turn out to be used without being called."""
        known = self._unseen if uses else self.blocks.of_layer
        return [layer for layer in known if layer.weight not in self.diagonal.means]

    def _leave_to_diagonal(self, layers: Sequence[Layer]) -> None:
        """Give up on layers whose weights are used without calling them, as attention does."""
        layers = [layer for layer in layers if layer.weight not in self.diagonal.means]
        found = [parameter for layer in layers for parameter in layer.parameters]
        for layer in layers:
            self._unseen.pop(layer, None)
        self.diagonal.add(found)
        if found:
            self.notes.diagonal(found, "of layers that are not called but read")

    def _add_squares(self, sampled: Mapping[nn.Parameter, Tensor | None]) -> None:
        """Square gradients that are summed over the examples of all processes."""
        # All processes have to send the same, whatever their examples made use of.
        wanted = [*self.diagonal.parameters, *self._along_axes]
        sums = {p: _filled(sampled.get(p), p) for p in wanted}
        average_(list(sums.values()))
        for parameter, total in sums.items():
            total.mul_(world())
            if parameter in self.diagonal.means:
                squares = self._taken.squares.setdefault(parameter, torch.zeros_like(total))
                squares.addcmul_(total, total)
        for block, squares in self.blocks.squares(sums).items():
            known = self._taken.axes.get(block)
            self._taken.axes[block] = squares if known is None else known.add_(squares)

    @property
    def _along_axes(self) -> list[nn.Parameter]:
        """Parameters whose sampled gradients scale axes, once there are any."""
        blocks = self.blocks.of_layer.items() if self.eigenbasis else ()
        return [p for layer, block in blocks if block.solved for p in layer.parameters]

    def _add(self, sums: Mapping[Layer, _Sums], losses: int) -> None:
        taken = self._taken
        for layer, new in sums.items():
            if (old := taken.sums.get(layer)) is None:
                taken.sums[layer] = new
            else:
                old.inputs.add_(new.inputs)
                old.outputs.add_(new.outputs)
                old.rows += new.rows
            self._unseen.pop(layer, None)
        taken.losses += losses
        taken.parts += 1

    def update(self, ema: float) -> None:
        """Let what was taken into the running means."""
        taken = self._taken
        self.forget()
        # All processes leave a batch out, or none: what they share has to stay the same.
        if any(_anywhere([not taken.finite()], self._device)):
            self.notes.once(
                "The curvature of a batch is not finite, and is left out. Look for outputs or "
                "weights that are not, or lower the learning rate."
            )
            return
        for layer, sums in taken.sums.items():
            if sums.rows:
                block = self.blocks.of_layer[layer]
                block.update(sums.inputs.div_(sums.rows), sums.outputs.div_(taken.losses), ema)
        everyones = taken.losses * world()
        self.diagonal.update(taken.squares, everyones, ema)
        self.blocks.measure_scales(taken.axes, everyones, ema)

    def refresh(self, blocks: Sequence[Block], damping: float) -> None:
        """Invert the factors of some layers anew, and of those that were never inverted."""
        unsolved = [b for b in self.blocks.all if not b.solved and b not in blocks]
        known = _anywhere([block.weight > 0 for block in unsolved], self._device)
        due = [*blocks, *(b for b, new in zip(unsolved, known, strict=True) if new)]
        if due:
            self.blocks.refresh(due, damping)

    def directions(
        self, gradients: Mapping[nn.Parameter, Tensor], damping: float
    ) -> dict[nn.Parameter, Tensor]:
        """Inverse curvature times gradients, for parameters whose curvature is known."""
        found = self.diagonal.apply(gradients, damping) | self.blocks.apply(gradients, damping)
        return {parameter: found[parameter] for parameter in gradients if parameter in found}

    def products(self, vectors: Mapping[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
        """The curvature, not damped, times vectors."""
        found = self.diagonal.products(vectors) | self.blocks.products(vectors)
        return {parameter: found[parameter] for parameter in vectors if parameter in found}

    def state(self) -> dict[str, Any]:
        """Everything that is kept, in tensors and plain types."""
        return {
            **{name: getattr(self, name) for name in _KEPT},
            "layers": self.blocks.state(),
            "others": self.diagonal.state(self.names),
        }

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise an error if `state` is not one of this network."""
        self.blocks.check(state["layers"])
        self.diagonal.check(state["others"], {name: p for p, name in self.names.items()})

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` told."""
        for name in _KEPT:
            setattr(self, name, state[name])
        self.blocks.load(state["layers"])
        self.diagonal.load(state["others"], {name: p for p, name in self.names.items()})
        self._unseen = {
            layer: None
            for layer, block in self.blocks.of_layer.items()
            if not block.weight and layer.weight not in self.diagonal.means
        }


def _sums(
    uses: Iterable[Use], stride: int, outputs: Mapping[Layer, Tensor], scratch: Scratch
) -> dict[Layer, _Sums]:
    """All second moments: of what entered the layers, that of each `stride`th example."""
    sums: dict[Layer, _Sums] = {}
    for use in uses:
        layer = use.layer
        moments, rows = layer.input_moments(use.inputs, stride, scratch)
        if (own := sums.get(layer)) is None:
            sums[layer] = _Sums(moments, rows, outputs[layer])
        else:
            own.inputs.add_(moments)
            own.rows += rows
    return sums


def _reached(layer: Layer, gradients: Mapping[nn.Parameter, Tensor | None]) -> bool:
    return any(gradients.get(parameter) is not None for parameter in layer.parameters)


def _filled(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    """A gradient in full precision, or zeros where there is none."""
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    if gradient is None:
        return torch.zeros_like(parameter, dtype=dtype)
    return gradient.to(dtype, copy=True)


def _anywhere(flags: Sequence[bool], device: torch.device) -> list[bool]:
    """For each flag, whether it is set on any of the processes."""
    if world() == 1 or not flags:
        return list(flags)
    shares = torch.tensor([float(flag) for flag in flags], device=device)
    average_([shares])
    return (shares > 0).tolist()

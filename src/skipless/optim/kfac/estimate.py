"""The Fisher matrix of a network, measured in its forward passes and kept as running means.

Hooks record the inputs of layers in the forward passes that are measured. Outputs are recorded by
their place in the graph, not as tensors: an in-place activation changes the tensor, but not where
it came from.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from skipless.optim.settings import KFACSettings

from .blocks import Blocks, CurvatureBlock
from .checks import WarnOnce
from .inverse import Diagonal, Values
from .layers import FactoredLayer, find_layers
from .moments import Scratch, at_least_float32
from .processes import any_process, average_, world_size
from .scores import backward_at, fisher_scores, loss_count

_OTHER_KINDS = "that are not of a plain Linear, convolution or Embedding alone"
# Settings that a saved state overrides; some of them have other names there.
_SAVED = ("loss", "fisher", "input_stride", "seed")
_TIMING = {
    "burn_in": "burn_in",
    "curvature_period": "curvature_period",
    "inverse_period": "inverse_period",
    "early": "early_inverses",
    "restarts": "restarts",
    "spread": "spread_inverses",
}


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A call of a layer in a forward pass."""

    layer: FactoredLayer
    inputs: Tensor
    output: GradientEdge


class ForwardRecorder:
    """Records the calls of layers, while it is `recording`."""

    def __init__(self, layers: dict[nn.Module, FactoredLayer]) -> None:
        self.recording = False
        self._calls: dict[FactoredLayer, list[LayerCall]] = {}
        self._versions: dict[FactoredLayer, int] = {}
        self._layers = weakref.WeakKeyDictionary(layers)
        own: weakref.ref[ForwardRecorder] = weakref.ref(self)
        for module in layers:
            handle = module.register_forward_hook(_Hook(own), with_kwargs=True)
            weakref.finalize(self, handle.remove)

    def pop(self) -> list[LayerCall]:
        """Returns the recorded calls and forgets them."""
        calls, self._calls = self._calls, {}
        return [call for own in calls.values() for call in own]

    def restore(self, calls: Iterable[LayerCall]) -> None:
        """Puts calls back for another time."""
        for call in calls:
            self._calls.setdefault(call.layer, []).append(call)

    def record(self, module: nn.Module, inputs: Tensor, output: Tensor) -> None:
        """Records a call, if its curvature can be measured."""
        layer = self._layers.get(module)
        if self.recording and layer is not None and output.requires_grad:
            version = layer.weight._version
            if self._versions.get(layer) != version:
                # Another optimiser has trained it since; unmeasured calls would pile up here.
                self._versions[layer] = version
                self._calls[layer] = []
            call = LayerCall(layer, inputs.detach(), _origin(output))
            self._calls.setdefault(layer, []).append(call)


class _Hook:
    """A module's hook. It does nothing in copies of the model and after loading from a file."""

    def __init__(self, recorder: weakref.ref[ForwardRecorder] | None = None) -> None:
        self._recorder = recorder

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if torch.compiler.is_compiling() or self._recorder is None:
            return
        recorder = self._recorder()
        if recorder is not None and recorder.recording and torch.is_grad_enabled():
            recorder.record(module, args[0] if args else kwargs["input"], output)

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()


def _origin(output: Tensor) -> GradientEdge:
    """Where an output came from.

    The output of a Linear with more than two dimensions, or of a convolution without a batch, is a
    view of what it computed. In-place operations take the view out of the graph, but not its base.
    """
    base = output._base
    is_reshaped = base is not None and base.numel() == output.numel() and base.requires_grad
    return get_gradient_edge(base if base is not None and is_reshaped else output)


@dataclass
class _Measurement:
    """Sums over the forward passes of a step so far."""

    inputs: dict[FactoredLayer, Tensor] = field(default_factory=dict)  # second moments
    rows: Counter[FactoredLayer] = field(default_factory=Counter)
    outputs: dict[FactoredLayer, Tensor] = field(default_factory=dict)
    losses: int = 0
    squares: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    along_axes: dict[CurvatureBlock, Tensor] = field(default_factory=dict)  # squares, in eigenbases
    passes: int = 0

    def is_finite(self) -> bool:
        """Whether all numbers are finite; for second moments, their diagonals tell."""
        moments = [*self.inputs.values(), *self.outputs.values()]
        diagonals = [m if m.ndim == 2 else m.diagonal(dim1=1, dim2=2) for m in moments]
        tensors = [*self.squares.values(), *self.along_axes.values(), *diagonals]
        totals = [tensor.sum() for tensor in tensors]
        return not totals or bool(torch.stack([t.to(totals[0]) for t in totals]).isfinite().all())


Key = TypeVar("Key")


def _add_(sums: dict[Key, Tensor], key: Key, tensor: Tensor) -> None:
    """Adds a tensor to the sum of that key, which the first one becomes."""
    sums[key] = sums[key].add_(tensor) if key in sums else tensor


class CurvatureEstimate:
    """Kronecker factors of layers, and the diagonal of everything else."""

    def __init__(self, model: nn.Module, settings: KFACSettings) -> None:
        self.settings = settings
        layers, by_module = find_layers(model)
        self.recorder = ForwardRecorder(by_module)
        self.names = {p: name for name, p in model.named_parameters() if p.requires_grad}
        self.warnings = WarnOnce(self.names)
        self.blocks = Blocks(layers, eigenbasis=settings.eigenbasis, warn=self.warnings.warn)
        covered = {parameter for layer in layers for parameter in layer.parameters}
        self.diagonal = Diagonal([p for p in self.names if p not in covered])
        self.measured = _Measurement()  # since the last update
        self._scratch = Scratch()
        if self.diagonal.parameters:
            self.warnings.warn_diagonal(self.diagonal.parameters, _OTHER_KINDS)

    @property
    def device(self) -> torch.device:
        """Where the first parameter is."""
        return next(iter(self.names)).device

    def reset(self) -> None:
        """Drops what was measured and recorded."""
        self.measured = _Measurement()
        self.recorder.pop()

    def measure(
        self, outputs: Tensor, targets: Tensor | None, losses: int | None, step: int
    ) -> None:
        """Measures the factors in the forward pass that led to `outputs`."""
        calls = self.recorder.pop()
        settings, measured = self.settings, self.measured
        seed = ((settings.seed * 1_000_003 + step) * 1_009 + measured.passes) % 2**62
        wide = outputs.detach().to(at_least_float32(outputs))
        moments: dict[FactoredLayer, Tensor] = {}
        all_scores = fisher_scores(wide, targets, settings.loss, settings.fisher, seed)
        for number, scores in enumerate(all_scores):
            reached = self._backward(outputs, scores.to(outputs.dtype), calls, moments)
            if number == 0:
                # Calls of other forward passes, which are measured later.
                self.recorder.restore(call for call in calls if call not in reached)
                calls = [call for call in calls if call in reached]
        self._add_moments(calls, moments)
        measured.losses += losses or loss_count(outputs, settings.loss)
        measured.passes += 1

    def _backward(
        self,
        outputs: Tensor,
        scores: Tensor,
        calls: list[LayerCall],
        moments: dict[FactoredLayer, Tensor],
    ) -> set[LayerCall]:
        """The calls that led to `outputs`; adds moments of the scores at their outputs."""
        reached: set[LayerCall] = set()

        def on_gradient(index: int, gradient: Tensor) -> None:
            call = calls[index]
            _add_(moments, call.layer, call.layer.output_moments(call.inputs, gradient))
            reached.add(call)

        # Layers that may turn out to be used without being called, as attention does. They are in
        # the order of the network, which is the same on all processes.
        called = {call.layer for call in calls}
        uncalled = [
            layer
            for layer, block in self.blocks.of_layer.items()
            if layer.weight not in self.diagonal.means and layer not in called
            if not calls or not (block.weight or layer in self.measured.inputs)
        ]
        wanted = [*self.diagonal.parameters, *(p for layer in uncalled for p in layer.parameters)]
        wanted += self._eigenbasis_parameters
        leaves = [p for p in wanted if p.requires_grad]  # some may be frozen by now
        edges = [call.output for call in calls]
        gradients = backward_at(outputs, scores, edges, leaves, on_gradient)
        sampled = dict(zip(leaves, gradients, strict=True))
        used = {p for p, gradient in sampled.items() if gradient is not None}
        read = {layer for layer in uncalled if not used.isdisjoint(layer.parameters)}
        if not calls and (read or not used):
            raise RuntimeError(
                "curvature() found no layer calls in the forward pass of these outputs. Run the "
                "pass after creating the optimiser, with its own model, not compiled, and call "
                "curvature() once per pass."
            )
        # The same layers on all processes, as they have to send the same messages.
        layers = list(self.blocks.of_layer)
        flags = any_process([layer in read for layer in layers], self.device)
        self._leave_to_diagonal([layer for layer, own in zip(layers, flags, strict=True) if own])
        self._add_squares(sampled)
        return reached

    def _leave_to_diagonal(self, layers: Sequence[FactoredLayer]) -> None:
        """Gives up on factors of layers whose weights are used without calling them."""
        found = [parameter for layer in layers for parameter in layer.parameters]
        self.diagonal.add(found)
        if found:
            self.warnings.warn_diagonal(found, "of layers whose weights are read without a call")

    def _add_squares(self, sampled: Mapping[nn.Parameter, Tensor | None]) -> None:
        """Adds squares of gradients that are summed over the examples of all processes."""
        # All processes have to send the same, whatever their examples used.
        sums: dict[nn.Parameter, Tensor] = {}
        for p in (*self.diagonal.parameters, *self._eigenbasis_parameters):
            gradient, dtype = sampled.get(p), at_least_float32(p)
            if gradient is None:
                sums[p] = torch.zeros_like(p, dtype=dtype)
            else:
                sums[p] = gradient.to(dtype, copy=True)
        average_(list(sums.values()))
        for parameter, total in sums.items():
            total.mul_(world_size())
            if parameter in self.diagonal.means:
                squares = self.measured.squares.setdefault(parameter, torch.zeros_like(total))
                squares.addcmul_(total, total)
        for block, squares in self.blocks.squares(sums).items():
            _add_(self.measured.along_axes, block, squares)

    @property
    def _eigenbasis_parameters(self) -> list[nn.Parameter]:
        """Parameters of layers that already have an eigenbasis."""
        blocks = self.blocks.all if self.settings.eigenbasis else ()
        return [p for block in blocks if block.is_inverted for p in block.layer.parameters]

    def _add_moments(
        self, calls: Iterable[LayerCall], outputs: Mapping[FactoredLayer, Tensor]
    ) -> None:
        """Adds second moments of a pass: of inputs, those of every `input_stride`-th example."""
        inputs: dict[FactoredLayer, Tensor] = {}
        for call in calls:
            new, rows = call.layer.input_moments(
                call.inputs, self.settings.input_stride, self._scratch
            )
            _add_(inputs, call.layer, new)
            self.measured.rows[call.layer] += rows
        for layer, moments in inputs.items():
            _add_(self.measured.inputs, layer, moments)
            _add_(self.measured.outputs, layer, outputs[layer])

    def update(self, ema: float) -> None:
        """Adds what was measured to the running means."""
        measured = self.measured
        self.reset()
        # All processes leave a batch out, or none: what they share has to stay the same.
        if any(any_process([not measured.is_finite()], self.device)):
            self.warnings.warn(
                "The curvature of a batch is not finite, so it is skipped. Check outputs and "
                "weights, or lower the learning rate."
            )
            return
        for layer, inputs in measured.inputs.items():
            if rows := measured.rows[layer]:
                outputs = measured.outputs[layer].div_(measured.losses)
                self.blocks.of_layer[layer].update(inputs.div_(rows), outputs, ema)
        losses = measured.losses * world_size()
        self.diagonal.update(measured.squares, losses, ema)
        self.blocks.measure_scales(measured.along_axes, losses, ema)

    def refresh(self, blocks: Sequence[CurvatureBlock], damping: float) -> None:
        """Inverts the factors of `blocks`, and of all that were never inverted."""
        missing = [b for b in self.blocks.all if not b.is_inverted and b not in blocks]
        known = any_process([block.weight > 0 for block in missing], self.device)
        due = [*blocks, *(b for b, is_new in zip(missing, known, strict=True) if is_new)]
        if due:
            self.blocks.refresh(due, damping)

    def directions(self, gradients: Values, damping: float) -> dict[nn.Parameter, Tensor]:
        """Inverse curvature times gradients, for parameters whose curvature is known."""
        found = self.diagonal.apply(gradients, damping) | self.blocks.apply(gradients, damping)
        return {parameter: found[parameter] for parameter in gradients if parameter in found}

    def products(self, vectors: Values) -> dict[nn.Parameter, Tensor]:
        """The curvature, not damped, times vectors."""
        found = self.diagonal.products(vectors) | self.blocks.products(vectors)
        return {parameter: found[parameter] for parameter in vectors if parameter in found}

    def state(self) -> dict[str, Any]:
        """The state to save, in tensors and plain types."""
        return {
            "timing": {key: getattr(self.settings, name) for key, name in _TIMING.items()},
            **{name: getattr(self.settings, name) for name in _SAVED},
            "layers": self.blocks.state(),
            "others": self.diagonal.state(self.names),
        }

    def check(self, state: Mapping[str, Any]) -> None:
        """Raises an error unless `state` fits this network."""
        self.blocks.check(state["layers"])
        self.diagonal.check(state["others"], {name: p for p, name in self.names.items()})

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores a saved state."""
        saved = {name: state[name] for name in _SAVED}
        timing = {"early": False, "restarts": False} | state["timing"]  # as in older versions
        saved |= {name: timing[key] for key, name in _TIMING.items()}
        self.settings = replace(self.settings, **saved)
        self.blocks.load(state["layers"])
        self.diagonal.load(state["others"], {name: p for p, name in self.names.items()})

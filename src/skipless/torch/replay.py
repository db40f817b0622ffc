"""The record of a model, run again on other inputs and weights, with an eye on its q and c values.

In names of dimensions, `_p` runs over pairs, `_l` over locations and `_c` over channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from skipless.core.activations import Array
from skipless.core.samples import at_nodes

from .axes import PERMUTATIONS, permuted, sizes
from .operations import operation
from .reader import Step
from .trace import Reading

_ACT_ON_THE_LAST_DIMENSION = {"linear", "addmm", "mm", "matmul"}
_RESHAPES = {"view", "reshape", "_unsafe_view", "unflatten"}


class Replay:
    """Runs the record of `reading` on inputs of the shape that it was made with.

    The record shares its weights with the model, so that it follows when these are drawn anew.
    """

    def __init__(self, reading: Reading) -> None:
        self.graph = reading.graph
        self.input_channels = _input_channels(reading)
        self._program = reading.program
        self._tensors = reading.tensors()
        self._channels = _channel_dims(reading, self.input_channels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of what the graph begins with, behind layers that normalise the inputs."""
        return tuple(self._tensors[0][0].meta["val"].shape)

    @torch.no_grad()
    def __call__(self, inputs: Tensor, beginning: Tensor | None = None) -> tuple[Array, Array]:
        """The q and c values of shape (live nodes, pairs), of the weights as they are.

        With a `beginning`, that is what the graph begins with, whatever the inputs.
        """
        observer = _Observer(self._program, self._channels, len(inputs))
        if beginning is not None:
            observer.given[self._tensors[0][0]] = beginning
        # In place, a first operation would overwrite the inputs.
        observer.run(*_arguments(self._program, inputs.clone()))
        return at_nodes(self.graph, self._tensors, observer.seen)


class _Observer(fx.Interpreter):
    """Takes q and c of a tensor as soon as it is computed: what comes later may overwrite it."""

    def __init__(
        self, program: ExportedProgram, channels: dict[fx.Node, int], batch_size: int
    ) -> None:
        super().__init__(program.graph_module)
        self.channels = channels
        self.batch_size = batch_size
        self.given: dict[fx.Node, Tensor] = {}
        self.seen: dict[fx.Node, tuple[Array, Array]] = {}

    def run_node(self, n: fx.Node) -> object:
        result = super().run_node(n)
        if n in self.given:
            result = self.given[n].clone()
        if n in self.channels:
            q, c = _kernel(result, self.channels[n], self.batch_size)
            self.seen[n] = (q.double().cpu().numpy(), c.double().cpu().numpy())
        return result


def _kernel(x: Tensor, channel_dim: int, batch_size: int) -> tuple[Tensor, Tensor]:
    """The q and c value of each pair in a batch, averaged over locations.

    Locations where a sample is zero have no cosine and are left out of that average.
    """
    if x.shape[0] != batch_size:  # locations were made samples: linear layers take it so
        x, channel_dim = x.unflatten(0, (batch_size, -1)), channel_dim + 1
    x = x.unsqueeze(1) if x.dim() == 1 else x
    wide = x.float() if x.element_size() < 4 else x
    x_plc = wide.movedim(channel_dim, -1).reshape(batch_size, -1, x.shape[channel_dim])
    first, second = x_plc[0::2], x_plc[1::2]
    q_1, q_2 = first.square().mean(dim=2), second.square().mean(dim=2)
    c_pl = (first * second).mean(dim=2) / (q_1.sqrt() * q_2.sqrt())
    return (q_1 + q_2).mean(dim=1) / 2.0, c_pl.clamp(-1.0, 1.0).nanmean(dim=1)


def _arguments(program: ExportedProgram, inputs: Tensor) -> Iterator[object]:
    """What the record's placeholders stand for: weights, buffers, constants and the inputs."""
    state = {**program.state_dict, **program.constants}
    for spec in program.graph_signature.input_specs:
        yield inputs if spec.kind is InputKind.USER_INPUT else state[spec.target or ""]


def _input_channels(reading: Reading) -> int:
    """The input's dimension of channels: that which the first layer to read it acts on."""
    for tensor, step in reading.steps.items():
        if step.kind != "affine":
            continue
        source = reading.steps[step.inputs[0]]
        while source.kind not in ("input", "affine", "move", "sum", "concat"):
            source = reading.steps[source.inputs[0]]
        if source.kind == "input":
            return _affine_channels(tensor)
    return 1


def _channel_dims(reading: Reading, of_input: int) -> dict[fx.Node, int]:
    """The dimension of channels of each recorded tensor that is a node of the graph."""
    dims: dict[fx.Node, int] = {}
    counts: dict[fx.Node, int] = {}  # of channels, by which reshaped ones are found again
    for tensor, step in reading.steps.items():
        dims[tensor] = of_input if step.kind == "input" else _channels_of(tensor, step, dims)
        if step.kind != "move":
            counts[tensor] = sizes(tensor)[min(dims[tensor], _dimensions(tensor) - 1)]
            continue
        counts[tensor] = counts[step.inputs[0]]
        if operation(tensor) in _RESHAPES and counts[tensor] in sizes(tensor)[1:]:
            dims[tensor] = _nearest(sizes(tensor), counts[tensor], dims[tensor])
    observed = {tensor for tensor, _ in reading.tensors().values()}
    return {tensor: dim for tensor, dim in dims.items() if tensor in observed}


def _channels_of(tensor: fx.Node, step: Step, dims: dict[fx.Node, int]) -> int:
    if step.kind == "affine":
        return _affine_channels(tensor)
    before, dim = _dimensions(step.inputs[0]), dims[step.inputs[0]]
    if operation(tensor) in PERMUTATIONS:
        return permuted(tensor, before, dim)
    after = _dimensions(tensor)
    return after - 1 if dim == before - 1 > 1 else min(dim, after - 1)


def _affine_channels(tensor: fx.Node) -> int:
    last = operation(tensor) in _ACT_ON_THE_LAST_DIMENSION
    return max(_dimensions(tensor) - 1, 1) if last else 1


def _nearest(sizes: Sequence[int], count: int, dim: int) -> int:
    """The dimension of that size, but that of the batch: `dim` itself, or the first one."""
    if dim < len(sizes) and sizes[dim] == count:
        return dim
    return list(sizes).index(count, 1)


def _dimensions(tensor: fx.Node) -> int:
    return len(sizes(tensor))

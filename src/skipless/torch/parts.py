"""Parts of a recorded program that no formula covers: run on their own, and measured.

Inputs are as the theory here has them: of q value 1, with the same vector of channels at all
locations. Where a part then returns nothing, because it subtracts what lies side by side, the
locations are independent instead. Dropout is off, weights are as they are.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.export import ExportedProgram

from skipless.core.activations import Array
from skipless.core.axes import Axes
from skipless.core.measured import NoSignalError, PartMap, measure_curve, orthogonal_samples
from skipless.core.record import UnsupportedModelError
from skipless.core.stretch import Measurable

from . import operations as ops
from .operations import origin, plain_operation, sizes

_MOST_PAIRS, _FEWEST_PAIRS = 32, 8  # of inputs
_RUNS = 12  # for each pair
_NUMBERS = 8e7  # that all runs of a part compute, at most, unless it takes more for few pairs
_EVALUATION = {"train": False, "training": False, "dropout_p": 0.0, "dropout": 0.0}

Known = Sequence[tuple[PartMap, bool]]


class Parts:
    """Measures the parts of a program, in their order.

    Attributes:
        found: The maps of each, and whether it has weights.
        parameters: The names of all parameters that parts read.
        inside: The recorded operations that parts consist of.
    """

    def __init__(
        self,
        program: ExportedProgram,
        inputs: ops.Inputs,
        known: Known = (),
        *,
        measures: bool = True,
        given: Mapping[fx.Node, torch.Tensor] | None = None,
    ) -> None:
        self._program, self._inputs, self._known, self._measures = program, inputs, known, measures
        self._names = {s.arg.name: s.target or "" for s in program.graph_signature.input_specs}
        self._state = {**program.state_dict, **program.constants}
        self._given = given or {}
        self.found: list[tuple[PartMap, bool]] = []
        self.parameters: set[str] = set()
        self.inside: set[fx.Node] = set()

    def __call__(self, part: Measurable[fx.Node]) -> tuple[PartMap, bool]:
        """The maps of a part, and whether it has weights."""
        place = len(self.found)
        known = self._known[place] if place < len(self._known) else None
        if not self._measures:
            if known is None:
                raise UnsupportedModelError(part.part.reason)
            self.found.append(known)
            return known
        runner = _Runner(self, part)
        self.inside.update(part.part.inside)
        parameters = {n for n in runner.reads if isinstance(self._state.get(n), nn.Parameter)}
        self.parameters |= parameters
        mixes = any(self._state[name].dim() > 1 for name in parameters)
        self.found.append(known or (_measure(runner, part), mixes))
        return self.found[-1]

    def begin(self) -> None:
        """Forget what was found, as the parts have changed."""
        self.found.clear()
        self.parameters.clear()
        self.inside.clear()

    def constant(self, node: fx.Node, reads: set[str]) -> Any:
        """What a node has that depends on no input; adds the names of what it reads to `reads`."""
        value = node.meta.get("val")
        if value is not None and not isinstance(value, torch.Tensor | list | tuple):
            return ops.number(value)
        if node in self._given:
            return self._given[node]
        if node.op == "placeholder":
            name = self._names[node.name]
            reads.add(name)
            return self._state[name]
        if node.op == "get_attr":
            return getattr(self._program.graph_module, str(node.target))
        return call(node, lambda a: self.constant(self.now(node, a), reads))

    def now(self, node: fx.Node, argument: fx.Node) -> fx.Node:
        """The tensor that an argument of `node` was at the time."""
        return self._inputs.get(node, {}).get(argument, argument)


def call(node: fx.Node, value: Any) -> Any:
    """What a recorded operation returns in evaluation mode, without writing into its arguments."""
    if plain_operation(node) in ops.DROPOUTS:
        return value(node.args[0])
    target: Any = ops.out_of_place(node)
    args, kwargs = fx.map_arg(node.args, value), dict(fx.map_arg(node.kwargs, value))
    if isinstance(target, torch._ops.OpOverload):
        for place, argument in enumerate(target._schema.arguments):
            if argument.name in _EVALUATION and plain_operation(node) != "batch_norm":
                if place < len(args):
                    args = (*args[:place], _EVALUATION[argument.name], *args[place + 1 :])
                else:
                    kwargs.pop(argument.name, None)
    return target(*args, **kwargs)


class _Runner:
    """Runs the operations of a part on what it reads."""

    def __init__(self, parts: Parts, part: Measurable[fx.Node]) -> None:
        self._parts, self.part, self.reads = parts, part.part, set[str]()
        self._inside = set(part.part.inside)
        (self.source,) = part.part.sources
        self._constants: dict[fx.Node, Any] = {}
        for node in part.part.inside:
            for a in node.all_input_nodes:
                given = parts.now(node, a)
                if given not in self._inside and given is not self.source:
                    self._constants[given] = parts.constant(given, self.reads)

    @torch.no_grad()
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        values: dict[fx.Node, Any] = {**self._constants, self.source: x}
        for node in self.part.inside:
            values[node] = call(node, lambda a, n=node: values[self._parts.now(n, a)])
        return values[self.part.inside[-1]]


def _measure(runner: _Runner, part: Measurable[fx.Node]) -> PartMap:
    where = origin(part.result)
    like = runner.source.meta["val"]
    if not like.is_floating_point():
        raise UnsupportedModelError(
            f"{where} reads integers: {part.part.reason} A part can be measured only where its "
            "input is a signal of real numbers."
        )
    try:
        x = torch.randn(sizes(runner.source), generator=torch.Generator().manual_seed(0))
        x = x.to(like.device, like.dtype)
        first, again = runner(x), runner(x)
        if not isinstance(first, torch.Tensor) or not first.is_floating_point():
            raise UnsupportedModelError(f"{where} returns no tensor of real numbers.")
    except RuntimeError as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise UnsupportedModelError(
            f"{where} cannot be measured, as it fails on its own: {reason}. {part.part.reason}"
        ) from error
    if not torch.equal(first.nan_to_num(), again.nan_to_num()):
        raise UnsupportedModelError(
            f"{where} computes with random numbers, so that equal inputs have different outputs "
            "and no C map. If that is only so in training, convert model.eval()."
        )
    produced = sum(math.prod(sizes(n)) for n in part.part.inside if ops.is_tensor(n))
    try:
        return _curve(runner, part, like, produced, alike=True)
    except NoSignalError:
        return _curve(runner, part, like, produced, alike=False)


def _curve(
    runner: _Runner, part: Measurable[fx.Node], like: torch.Tensor, produced: int, *, alike: bool
) -> PartMap:
    shape, order = _in_order(sizes(runner.source), part.before)
    count, channels = shape[0], math.prod(shape[1 : 1 + len(part.before.channels)])
    locations = math.prod(shape) // (count * channels)
    affordable = int(_NUMBERS * count / (_RUNS * max(produced, 1)))
    pairs = min(max(affordable, _FEWEST_PAIRS), _MOST_PAIRS)
    rng, back = np.random.default_rng(0), np.argsort(order)

    def draw() -> tuple[Array, Array]:
        found = orthogonal_samples(rng, count, channels, 1 if alike else locations)
        x, z = (np.broadcast_to(a, (count, channels, locations)).reshape(shape) for a in found)
        return x, z

    def run(x: Array) -> Array:
        moved = torch.from_numpy(np.array(x.transpose(back)))
        given = moved.reshape(sizes(runner.source)).to(like.device, like.dtype)
        result = runner(given).double().cpu().numpy()
        sizes_after, axes = _in_order(result.shape, part.after)
        width = math.prod(sizes_after[1 : 1 + len(part.after.channels)])
        apart = result.transpose(axes).reshape(sizes_after[0], width, -1)
        return apart.transpose(0, 2, 1)

    return measure_curve(run, draw, max(2, math.ceil(pairs / count)))


def _in_order(shape: Sequence[int], axes: Axes) -> tuple[list[int], list[int]]:
    """The sizes of samples, channels and locations, and the axes in that order."""
    channels = [axis for axis in axes.channels if axis < len(shape)]
    first = [axes.samples]
    channels = [axis for axis in channels if axis not in first]
    rest = [axis for axis in range(len(shape)) if axis not in (*channels, *first)]
    order = [*first, *channels, *rest]
    return [*(shape[axis] for axis in order)], order

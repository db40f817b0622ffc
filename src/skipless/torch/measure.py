r"""The kernel of a real network: empirical q and c values, beside what the theory predicts.

At a location of a tensor with $d$ channels, two samples have

$$\hat q = \frac{\|x\|^2}{d}, \qquad \hat c = \frac{x_1^\top x_2}{\|x_1\|\,\|x_2\|}.$$

They are taken where the theory has a node: the record of `torch.export` runs step by step. In names
of dimensions, `_p` runs over pairs, `_l` over locations and `_c` over channels.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from skipless._deprecated import renamed_arguments
from skipless.core import measure as core
from skipless.core.activations import Array
from skipless.core.arguments import require_function
from skipless.core.axes import Axes
from skipless.core.bands import Distribution
from skipless.core.measure import TOLERANCE, Check, Kernels, Measurement, Probe
from skipless.core.solution import Solution

from . import operations as ops
from .example import Example, Given, require_example
from .init import initialize_
from .trace import read


class Replay:
    """Runs the record of `model` on inputs of the shape that it was made with.

    The record shares its weights with the model, so that it follows when these are drawn again.
    """

    def __init__(
        self, model: nn.Module, example: Example, solution: Solution | None = None
    ) -> None:
        reading = read(model, example)
        first = example.first
        types = [p.dtype for p in model.parameters() if p.is_floating_point()]
        if types and first.is_floating_point() and first.dtype not in types:
            raise ValueError(
                f"The weights of {type(model).__name__} are {types[0]}, but the example is "
                f"{first.dtype}. Convert one, as in example.to({types[0]})."
            )
        self.graph, self.sizes = reading.graph, reading.sizes
        self.kept = reading.parts.parameters
        self._program, self._example = reading.program, example
        self._tensors = reading.tensors()
        self.begin = core.first_node_of_pairs(self.graph, self.sizes)
        self._start = self._tensors[self.begin][0]
        self.start_shape = tuple(self._start.meta["val"].shape[1:])
        self.channel_axis = reading.axes[self._start].channels[0] - 1
        self.rounding = torch.finfo(first.dtype).eps
        # Where pairs are chosen at the first of several inputs, they are at the others, too.
        steps = reading.steps.items() if self.begin == 0 else ()
        self._more = [(t, reading.axes[t]) for t, s in steps if s.kind == "input" and s.node > 0]
        self._axes = {t: reading.axes[t] for t, _ in self._tensors.values()}
        self._probe = core.Probe(reading, solution)

    def __call__(self, start: np.ndarray, weights: None) -> Kernels:
        given = torch.from_numpy(start).to(self._example.first)
        others = {tensor: self._pairs(tensor, axes, start) for tensor, axes in self._more}
        return self.run(self._example, {self._start: given, **others})

    def _pairs(self, tensor: fx.Node, axes: Axes, start: np.ndarray) -> Tensor:
        """Pairs for another input, with the cosines of those at the `start`."""
        (axis, *_), shape = axes.channels, ops.sizes(tensor)[1:]
        rng, flat = np.random.default_rng(len(shape) + axis), start.reshape(len(start), -1)
        found = [
            core.pair_inputs(rng, shape, 1, float(np.clip(cosine, -1.0, 1.0)), axis - 1)
            for cosine in map(_cosine, flat[0::2], flat[1::2])
        ]
        return torch.from_numpy(np.concatenate(found)).to(self._example.first)

    @torch.no_grad()
    def run(self, inputs: Example, start: Mapping[fx.Node, Tensor] | None = None) -> Kernels:
        """The kernels with the weights as they are.

        A `start` replaces what the model makes of the `inputs` up to there.
        """
        observer = _Observer(self._program, self._axes, len(inputs.first), self._probe)
        observer.given.update(start or {})
        state = {**self._program.state_dict, **self._program.constants}
        # Copies, as a first operation in place would overwrite what is given.
        given = iter([*inputs.map(Tensor.clone).args, *inputs.map(Tensor.clone).kwargs.values()])
        observer.run(
            *(
                next(given) if spec.kind is InputKind.USER_INPUT else state[spec.target or ""]
                for spec in self._program.graph_signature.input_specs
            )
        )
        return core.values_at_nodes(self.graph, self._tensors, observer.seen, self._probe)


class _Observer(fx.Interpreter):
    """Takes q and c of a tensor as soon as it is computed: what comes later may overwrite it."""

    def __init__(
        self,
        program: ExportedProgram,
        axes: Mapping[fx.Node, Axes],
        batch_size: int,
        probe: Probe[fx.Node],
    ) -> None:
        super().__init__(program.graph_module)
        self.axes, self.batch_size, self.probe = axes, batch_size, probe
        self.given: dict[fx.Node, Tensor] = {}
        self.seen: dict[fx.Node, tuple[Array, Array]] = {}

    def run_node(self, n: fx.Node) -> object:
        result = super().run_node(n)
        if n in self.given:
            result = self.given[n].clone()
        if n in self.axes:
            q, c = _kernel(result, self.axes[n], self.batch_size)
            self.seen[n] = (q.double().cpu().numpy(), c.double().cpu().numpy())
        if isinstance(result, Tensor):
            self.probe.see(n, lambda: result.double().cpu().numpy())
        if n in self.probe.layers:
            source = self.env[self.probe.layers[n]]
            self.probe.feed(n, source.shape, partial(self._apply, n, source))
        return result

    def _apply(self, layer: fx.Node, source: Tensor, x: Array) -> Array:
        """What a layer makes of `x` in place of its `source`."""
        place = self.probe.layers[layer]
        self.env[place] = torch.from_numpy(x).to(source)
        try:
            return super().run_node(layer).double().cpu().numpy()
        finally:
            self.env[place] = source


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(first @ second / max(np.linalg.norm(first) * np.linalg.norm(second), 1e-30))


def _kernel(x: Tensor, axes: Axes, batch_size: int) -> tuple[Tensor, Tensor]:
    """Q of both samples of each pair and their c, averaged over locations; c where none is zero."""
    channels, samples = axes.channels, axes.samples
    if samples not in channels and x.shape[samples] == batch_size:
        x = x.movedim(samples, 0)
        channels = tuple(axis + (axis < samples) for axis in channels)
    if x.shape[0] != batch_size:  # locations were made samples: linear layers take it so
        x, channels = x.unflatten(0, (batch_size, -1)), tuple(axis + 1 for axis in channels)
    if x.dim() == 1:
        x, channels = x.unsqueeze(1), (1,)
    wide = x.float() if x.element_size() < 4 else x
    width, last = math.prod(x.shape[axis] for axis in channels), tuple(range(-len(channels), 0))
    x_plc = wide.movedim(channels, last).reshape(batch_size, -1, width)
    first, second = x_plc[0::2], x_plc[1::2]
    q_1, q_2 = first.square().mean(dim=2), second.square().mean(dim=2)
    c_pl = (first * second).mean(dim=2) / (q_1.sqrt() * q_2.sqrt())
    return torch.stack([q_1, q_2], -1).mean(dim=1), c_pl.clamp(-1.0, 1.0).nanmean(dim=1)


def measure(
    model: nn.Module,
    inputs: Given,
    *,
    seeds: int | Iterable[int] | None = None,
    draw: Callable[..., object] | None = None,
) -> Measurement:
    """The q and c values of `model` at every node of its graph, averaged over pairs and locations.

    Args:
        model: The network, which is measured in evaluation mode and left as it was.
        inputs: A batch in which samples 0 and 1 are a pair, as are 2 and 3, and so on; of several
            inputs, a sequence or a mapping by name.
        seeds: How many draws of the weights to measure, or the seeds themselves; standard errors
            are then over seeds. Without it, the weights are those that the model has.
        draw: Called as `draw(model, generator=...)` for each seed, on a copy; by default
            `initialize_`, with the sigmas of the solution if the model is converted.

    A linear layer with orthonormal rows and columns keeps both values:

    >>> model = nn.Sequential(nn.Linear(8, 8, bias=False))
    >>> found = measure(model, pair_inputs((8,), pairs=5, cosine=0.25), seeds=3)
    >>> [(node.kind, round(node.q.mean, 5), round(node.c.mean, 5)) for node in found.nodes]
    [('Input', 1.0, 0.25), ('Affine', 1.0, 0.25)]
    """
    require_example(model, inputs)
    require_function("draw", draw)
    batch = Example.of(inputs)
    core.require_batch_of_pairs(tuple(batch.first.shape))
    network = model if seeds is None else copy.deepcopy(model)
    own = draw is None
    draw = draw or partial(initialize_, **core.sigmas(core.known_solution(model)))
    modes = {module: module.training for module in network.modules()}
    try:
        replay = Replay(network.eval(), batch)
        draw = partial(draw, keep=replay.kept) if own else draw
        q, c, *_ = core.stack([replay.run(batch) for _ in _draws(network, seeds, draw)])
    finally:
        for module, mode in modes.items():
            module.training = mode
    return Measurement.of(replay.graph, q, c)


def check(
    model: nn.Module,
    example: Given,
    solution: Solution | None = None,
    *,
    cosines: Sequence[float] | None = None,
    seeds: int | Iterable[int] | None = 20,
    pairs: int = 8,
    distribution: Distribution = "orthogonal",
    tolerance: float = TOLERANCE,
) -> Check:
    r"""What `solution` predicts for `model`, beside what is measured, at every node of its graph.

    In a network of width n, q and c fluctuate from draw to draw, the more the deeper it is. So the
    result has, beside the prediction for infinite width, the median and the range of 95 % of all
    draws at the widths that the model has. A node agrees if it does what the theory says with the
    q and c values that were measured before it, up to the fluctuation of one layer, which is
    computed: few seeds do not widen it. In a sound network, one check of 100 has a node that
    disagrees. `result.assert_ok()` raises then.

    Args:
        model: The network.
        example: A batch of inputs, of which only the shape of a sample matters; of several inputs,
            a sequence or a mapping by name.
        solution: What shaped the network; a converted model carries it.
        cosines: Those of the pairs of inputs that go through the network, by default 0. Samples of
            a single channel are alike or opposite, so there the pairs are chosen behind the first
            layer, or are opposite (-1) if several layers read the input.
        seeds: How many draws of the weights, or the seeds themselves: `seeds=tqdm(range(50))` shows
            progress. None measures the weights that the model has.
        pairs: How many pairs of inputs there are for each cosine.
        distribution: "orthogonal" or "gaussian" weights.
        tolerance: The difference up to which the network counts as infinitely wide.

    >>> from skipless import Graph, TAT, solve
    >>> from skipless.torch import ShapedActivation
    >>> trelu = solve(Graph.chain(20), TAT(eta=0.8))
    >>> layer = lambda: [nn.Linear(100, 100), ShapedActivation.from_solution(trelu)]
    >>> model = nn.Sequential(*(module for _ in range(20) for module in layer()))
    >>> check(model, torch.zeros(1, 100), trelu, seeds=5).agrees
    True
    """
    require_example(model, example)
    solution = core.find_solution(model, solution)
    samples = core.batch_size(cosines, pairs)
    draw = partial(initialize_, distribution=distribution, **core.sigmas(solution))
    network = copy.deepcopy(model).eval()
    replay = Replay(network, Example.of(example).of_samples(samples), solution)
    draws = _draws(network, seeds, partial(draw, keep=replay.kept))
    return core.check(replay, solution, draws, cosines, pairs, tolerance, distribution)


@renamed_arguments(channel_dim="channel_axis")
def pair_inputs(
    shape: Sequence[int],
    pairs: int,
    cosine: float,
    *,
    channel_axis: int = 0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """A batch of random pairs of samples of `shape`, of q value 1 and of that `cosine`.

    Both are exact at every location, because a sample has the same vector of channels at all of
    them. Pooling, padding and flattening locations then keeps them exact.

    >>> x = pair_inputs((3, 4, 4), pairs=2, cosine=-0.5)
    >>> x.shape, torch.allclose((x[0] * x[1]).mean(dim=0), torch.tensor(-0.5))
    (torch.Size([4, 3, 4, 4]), True)
    """
    device = None if generator is None else generator.device
    seed = torch.randint(2**63 - 1, (), generator=generator, device=device).item()
    rng = np.random.default_rng(int(seed))
    return torch.from_numpy(core.pair_inputs(rng, shape, pairs, cosine, channel_axis))


def _draws(
    model: nn.Module, seeds: int | Iterable[int] | None, draw: Callable[..., object]
) -> Iterator[None]:
    if seeds is None:
        yield
        return
    for seed in core.seed_numbers(seeds):
        draw(model, generator=torch.Generator().manual_seed(seed))
        yield

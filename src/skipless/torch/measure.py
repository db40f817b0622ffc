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
from skipless.core.measure import TOLERANCE, Check, Measurement
from skipless.core.solution import Solution

from .init import Distribution, initialize_
from .trace import read, require_example


class Replay:
    """Runs the record of `model` on inputs of the shape that it was made with.

    The record shares its weights with the model, so that it follows when these are drawn again.
    """

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        reading = read(model, example)
        self.graph = reading.graph
        self._program, self._example = reading.program, example
        self._tensors = reading.tensors()
        self._start = self._tensors[0][0]
        self.start_shape = tuple(self._start.meta["val"].shape[1:])
        self.channel_axis = reading.axes[self._start].channels[0] - 1
        self._channels = {t: reading.axes[t].channels for t, _ in self._tensors.values()}

    def __call__(self, start: np.ndarray, weights: None) -> tuple[Array, Array]:
        return self.run(self._example, torch.from_numpy(start).to(self._example))

    @torch.no_grad()
    def run(self, inputs: Tensor, start: Tensor | None = None) -> tuple[Array, Array]:
        """The q and c values of shape (live nodes, pairs), with the weights as they are.

        A `start` replaces what layers that normalise the `inputs` make of them.
        """
        observer = _Observer(self._program, self._channels, len(inputs))
        if start is not None:
            observer.given[self._start] = start
        state = {**self._program.state_dict, **self._program.constants}
        inputs = inputs.clone()  # which a first operation in place would overwrite
        observer.run(
            *(
                inputs if spec.kind is InputKind.USER_INPUT else state[spec.target or ""]
                for spec in self._program.graph_signature.input_specs
            )
        )
        return core.values_at_nodes(self.graph, self._tensors, observer.seen)


class _Observer(fx.Interpreter):
    """Takes q and c of a tensor as soon as it is computed: what comes later may overwrite it."""

    def __init__(
        self, program: ExportedProgram, channels: Mapping[fx.Node, tuple[int, ...]], batch_size: int
    ) -> None:
        super().__init__(program.graph_module)
        self.channels, self.batch_size = channels, batch_size
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


def _kernel(x: Tensor, channels: tuple[int, ...], batch_size: int) -> tuple[Tensor, Tensor]:
    """The q and c values of pairs, averaged over locations; c over those without a zero sample."""
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
    return (q_1 + q_2).mean(dim=1) / 2.0, c_pl.clamp(-1.0, 1.0).nanmean(dim=1)


def measure(
    model: nn.Module,
    inputs: Tensor,
    *,
    seeds: int | Iterable[int] | None = None,
    draw: Callable[..., object] | None = None,
) -> Measurement:
    """The q and c values of `model` at every node of its graph, averaged over pairs and locations.

    Args:
        model: The network, which is measured in evaluation mode and left as it was.
        inputs: A batch in which samples 0 and 1 are a pair, as are 2 and 3, and so on.
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
    core.require_batch_of_pairs(tuple(inputs.shape))
    network = model if seeds is None else copy.deepcopy(model)
    draw = draw or partial(initialize_, **core.sigmas(core.known_solution(model)))
    modes = {module: module.training for module in network.modules()}
    try:
        replay = Replay(network.eval(), inputs)
        q, c = core.stack([replay.run(inputs) for _ in _draws(network, seeds, draw)])
    finally:
        for module, mode in modes.items():
            module.training = mode
    return Measurement.of(replay.graph, q, c)


def check(
    model: nn.Module,
    example: Tensor,
    solution: Solution | None = None,
    *,
    cosines: Sequence[float] = (0.0,),
    seeds: int | Iterable[int] = 20,
    pairs: int = 8,
    distribution: Distribution = "orthogonal",
    tolerance: float = TOLERANCE,
) -> Check:
    r"""What `solution` predicts for `model`, beside what is measured, at every node of its graph.

    A node agrees if c, and q relative to its prediction, are off by at most the `tolerance` and
    four standard errors. The tolerance is for what finite width adds to c, which grows with depth
    over width. In chains of 100 layers (appendix E.1, `paper.computed`), mean c is off by

    | width | TReLU, orthogonal | TReLU, Gaussian | DKS of SoftPlus, orthogonal | … Gaussian |
    |-------|-------------------|-----------------|-----------------------------|------------|
    | 30    | 0.050             | 0.053           | 0.135                       | 0.461      |
    | 100   | 0.021             | 0.025           | 0.034                       | 0.166      |
    | 300   | 0.006             | 0.016           | 0.009                       | 0.041      |
    | 1000  | 0.002             | 0.008           | 0.003                       | 0.006      |

    so that 0.05 is enough from width 300 on. Under TReLU q stays near 1, but DKS holds it to first
    order only, and in narrow deep networks some draws let it explode.

    Args:
        model: The network.
        example: A batch of inputs, of which only the shape of a sample matters.
        solution: What shaped the network; a converted model carries it.
        cosines: Those of the pairs of inputs that go through the network.
        seeds: How many draws of the weights, or the seeds themselves: `seeds=tqdm(range(50))` shows
            progress. With fewer than ten, a disagreement may be chance.
        pairs: How many pairs of inputs there are for each cosine.
        distribution: "orthogonal" or "gaussian" weights.
        tolerance: What finite width may add to a difference.

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
    batch = example[:1].expand(samples, *example.shape[1:]).clone()
    draws = _draws(network, seeds, draw)
    return core.check(Replay(network, batch), solution, draws, cosines, pairs, tolerance)


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

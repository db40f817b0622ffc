r"""The kernel of a real network: empirical q and c values, beside what the theory predicts.

At a location of a tensor with $d$ channels, two samples have

$$\hat q = \frac{\|x\|^2}{d}, \qquad \hat c = \frac{x_1^\top x_2}{\|x_1\|\,\|x_2\|}.$$

They are taken where the theory has a node, whatever the model calls it: `torch.export` has the
record of its operations, which is run step by step, and nothing but these numbers is kept.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from skipless.core.agreement import TOLERANCE, Check, Measurement, demand_something_to_check
from skipless.core.samples import demand_batch_of_pairs, demand_possible_pairs, stacked
from skipless.core.solution import Solution, demand_solution

from .draw import draw_
from .init import Distribution
from .replay import Replay
from .trace import read


def measure(
    model: nn.Module,
    inputs: Tensor,
    *,
    seeds: int | Iterable[int] | None = None,
    draw: Callable[..., object] | None = None,
) -> Measurement:
    """The q and c values of `model` at every node of its graph, averaged over pairs and locations.

    Samples 0 and 1 of the batch `inputs` are a pair, as are 2 and 3, and so on. The weights are
    those that the model has. With `seeds`, a number of them or the seeds themselves, they are drawn
    anew for each by `draw(model, generator=...)`, in a copy; then standard errors are over seeds.
    Without `draw`, that is as for the solution of a converted model, or as `initialize_` does.
    The model is measured in evaluation mode, and left as it was.

    A linear layer with orthonormal rows and columns keeps both values:

    >>> model = nn.Sequential(nn.Linear(8, 8, bias=False))
    >>> found = measure(model, pair_inputs((8,), pairs=5, cosine=0.25), seeds=3)
    >>> [(node.kind, round(node.q.mean, 5), round(node.c.mean, 5)) for node in found.nodes]
    [('Input', 1.0, 0.25), ('Affine', 1.0, 0.25)]
    """
    demand_batch_of_pairs(tuple(inputs.shape))
    network = model if seeds is None else copy.deepcopy(model)
    with _evaluating(network):
        replay = Replay(read(network, inputs))
        draws = _draws(network, seeds, draw or _law(model))
        q, c = stacked([replay(inputs) for _ in draws])
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

    Pairs of inputs with each of the `cosines` go through `model` under as many draws of its weights
    as there are `seeds` (or under these very ones: `seeds=tqdm(range(50))` shows progress). A
    converted model knows its solution. Of `example`, only the shape of a sample matters. With fewer
    than ten seeds the standard errors are themselves uncertain, and disagreements may be chance.

    A node agrees if c, and q relative to its prediction, are off by at most the `tolerance` and
    four standard errors. The tolerance is for what finite width adds to c, which grows with depth
    over width. In chains of 100 layers (appendix E.1, `experiments.kernel_error`), mean c is off by

    | width | TReLU, orthogonal | TReLU, Gaussian | DKS of SoftPlus, orthogonal | … Gaussian |
    |-------|-------------------|-----------------|-----------------------------|------------|
    | 30    | 0.050             | 0.053           | 0.135                       | 0.461      |
    | 100   | 0.021             | 0.025           | 0.034                       | 0.166      |
    | 300   | 0.006             | 0.016           | 0.009                       | 0.041      |
    | 1000  | 0.002             | 0.008           | 0.003                       | 0.006      |

    so that at width 300 and more 0.05 is enough. q is another matter: under TReLU it stays near 1,
    but DKS holds it to first order only, and in narrow deep networks some draws let it explode.

    >>> from skipless import Graph, TAT, solve
    >>> from skipless.torch import ShapedActivation
    >>> trelu = solve(Graph.chain(20), TAT(eta=0.8))
    >>> layer = lambda: [nn.Linear(100, 100), ShapedActivation.from_solution(trelu)]
    >>> model = nn.Sequential(*(module for _ in range(20) for module in layer()))
    >>> check(model, torch.zeros(1, 100), trelu, seeds=5).agrees
    True
    """
    solution = solution or _solution_of(model)
    demand_solution(solution)
    demand_something_to_check(cosines, pairs, tolerance)
    network = copy.deepcopy(model)
    law = partial(
        draw_, sigma_w=solution.sigma_w, sigma_b=solution.sigma_b, distribution=distribution
    )
    with _evaluating(network):
        stand_in = example[:1].expand(2 * pairs * len(cosines), *example.shape[1:]).clone()
        replay = Replay(read(network, stand_in))
        # Pairs take the place of what layers that normalise the inputs would make of them.
        inputs = _pairs_for(replay, pairs, cosines).to(example)
        samples = stacked([replay(stand_in, inputs) for _ in _draws(network, seeds, law)])
    return Check.of(replay.graph, solution, samples, cosines, tolerance)


def pair_inputs(
    shape: Sequence[int],
    pairs: int,
    cosine: float,
    *,
    channel_dim: int = 0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """A batch of random pairs of samples of `shape`, of q value 1 and of that `cosine`.

    Both are exact at every location, for a sample has the same vector of channels at all of them.
    What pools, pads or flattens locations then keeps them exact.

    >>> x = pair_inputs((3, 4, 4), pairs=2, cosine=-0.5)
    >>> x.shape, torch.allclose((x[0] * x[1]).mean(dim=0), torch.tensor(-0.5))
    (torch.Size([4, 3, 4, 4]), True)
    """
    channels = shape[channel_dim]
    demand_possible_pairs(cosine, channels, "PerLocationNormalization")
    u, v = torch.randn(2, pairs, channels, dtype=torch.float64, generator=generator)
    u = u / u.norm(dim=1, keepdim=True)
    v = v - (u * v).sum(dim=1, keepdim=True) * u
    length = v.norm(dim=1, keepdim=True)
    v = v / length if channels > 1 else torch.zeros_like(v)
    second = cosine * u + math.sqrt(1.0 - cosine**2) * v
    vectors = math.sqrt(channels) * torch.stack([u, second], dim=1).flatten(0, 1)
    sizes = [1] * len(shape)
    sizes[channel_dim] = channels
    return vectors.reshape(2 * pairs, *sizes).expand(-1, *shape).float().contiguous()


def _law(model: nn.Module) -> Callable[..., object]:
    solution = _known_solution(model)
    if solution is None:
        return draw_
    return partial(draw_, sigma_w=solution.sigma_w, sigma_b=solution.sigma_b)


def _known_solution(model: nn.Module) -> Solution | None:
    # What `convert` returns has a report; the networks of `skipless.models` say what shaped them.
    accounts = (getattr(model, name, None) for name in ("skipless_report", "shaping"))
    return next((account.solution for account in accounts if account is not None), None)


def _solution_of(model: nn.Module) -> Solution:
    solution = _known_solution(model)
    if solution is None:
        raise ValueError(
            f"{type(model).__name__} was to be checked, but it does not say which solution shaped "
            "it. Pass the solution, or a model that `convert` or `create_model` returned."
        )
    return solution


def _draws(
    model: nn.Module, seeds: int | Iterable[int] | None, draw: Callable[..., object]
) -> Iterator[None]:
    """Once for every seed, with the weights drawn from it; once with those there are if None."""
    if seeds is None:
        yield
        return
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        draw(model, generator=torch.Generator().manual_seed(seed))
        yield


def _pairs_for(replay: Replay, pairs: int, cosines: Sequence[float]) -> Tensor:
    shape, channel_dim = replay.input_shape[1:], replay.input_channels - 1
    pair = partial(pair_inputs, shape, pairs, channel_dim=channel_dim)
    generator = torch.Generator().manual_seed(0)
    return torch.cat([pair(cosine, generator=generator) for cosine in cosines])


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and each module as it was afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode

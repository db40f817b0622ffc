"""The kernel of a real network, as in `skipless.torch.measure`: empirical q and c values."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from skipless.core import measure as core
from skipless.core.arguments import require_function
from skipless.core.measure import TOLERANCE, Check, Kernels, Measurement
from skipless.core.solution import Solution
from skipless.core.trace import Axes

from .init import Distribution, draw_weights
from .record import Operation, Tensor
from .trace import Reading, input_index, read


class Replay:
    """Runs the record of `reading`, step by step, on inputs of the shape that it was made with."""

    def __init__(
        self, reading: Reading, example: jax.Array, solution: Solution | None = None
    ) -> None:
        self.graph, self.sizes = reading.graph, reading.sizes
        self._reading, self._example = reading, example
        self._tensors = reading.tensors()
        self.begin = core.first_node_of_pairs(self.graph, self.sizes)
        self._start = self._tensors[self.begin][0]
        self._probe = core.Probe(reading, solution)
        self.rounding = float(jnp.finfo(example.dtype).eps)
        self._observed = {tensor: reading.axes[tensor] for tensor, _ in self._tensors.values()}
        self.start_shape = self._start.shape[1:]
        self.channel_axis = reading.axes[self._start].channels[0] - 1

    def __call__(self, start: np.ndarray, weights: Mapping[Tensor, object]) -> Kernels:
        """The kernels from this `start` of the graph on."""
        return self.run(self._example, weights, jnp.asarray(start, self._example.dtype))

    def run(
        self, inputs: jax.Array, weights: Mapping[Tensor, object], start: jax.Array | None = None
    ) -> Kernels:
        """The same for these `inputs` of the function."""
        record, samples = self._reading.record, len(inputs)
        seen: dict[Tensor, tuple[jax.Array, jax.Array]] = {}
        values: dict[Tensor, object] = {}
        readers = {tensor: len(users) for tensor, users in record.users.items()}

        def keep(tensor: Tensor, value: object) -> None:
            if tensor is self._start and start is not None:
                value = start
            if tensor in self._observed:
                seen[tensor] = _kernel(value, self._observed[tensor], samples)
            self._probe.see(tensor, lambda: np.asarray(value, np.float64))
            values[tensor] = value

        keep(record.input, inputs)
        for op in record.operations:
            if not op.signals:
                continue
            arguments = [values[t] if t.signal else self._constant(t, weights) for t in op.inputs]
            for tensor, value in zip(op.outputs, op.run(*arguments), strict=True):
                keep(tensor, value)
                if (source := self._probe.layers.get(tensor)) is not None:
                    apply = partial(_apply, op, arguments, op.inputs.index(source))
                    self._probe.feed(tensor, source.shape, apply)
            for tensor in {t for t in op.inputs if t.signal}:
                readers[tensor] -= 1
                if not readers[tensor]:
                    del values[tensor]
        return core.values_at_nodes(self.graph, self._tensors, seen, self._probe)

    def _constant(self, tensor: Tensor, drawn: Mapping[Tensor, object]) -> object:
        value = drawn.get(tensor)
        value = self._reading.constants.array(tensor) if value is None else value
        if value is None:
            raise ValueError(
                f"Only the shape of an array is known, {tensor.shape}, but its numbers are needed. "
                "Pass an array instead of a jax.ShapeDtypeStruct."
            )
        return value


def _apply(op: Operation, arguments: Sequence[Any], place: int, x: np.ndarray) -> np.ndarray:
    """What a layer makes of `x` in place of its input."""
    given = jnp.asarray(x, arguments[place].dtype)
    (result,) = op.run(*arguments[:place], given, *arguments[place + 1 :])
    return np.asarray(result, np.float64)


@partial(jax.jit, static_argnums=(1, 2))
def _kernel(x: jax.Array, axes: Axes, samples: int) -> tuple[jax.Array, jax.Array]:
    """Q of both samples of each pair and their c, averaged over locations; c where none is zero."""
    if x.ndim == 1:
        x, axes = x[:, None], Axes(0, (1,))
    width = math.prod(x.shape[axis] for axis in axes.channels)
    wide = x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x
    last = [x.ndim - len(axes.channels) + i for i in range(len(axes.channels))]
    x_plc = jnp.moveaxis(wide, (axes.samples, *axes.channels), (0, *last))
    x_plc = x_plc.reshape(samples, -1, width)
    first, second = x_plc[0::2], x_plc[1::2]
    q_1, q_2 = jnp.mean(first**2, axis=2), jnp.mean(second**2, axis=2)
    c_pl = jnp.mean(first * second, axis=2) / (jnp.sqrt(q_1) * jnp.sqrt(q_2))
    return jnp.mean(jnp.stack([q_1, q_2], -1), axis=1), jnp.nanmean(
        jnp.clip(c_pl, -1.0, 1.0), axis=1
    )


def measure(
    fn: Callable[..., object],
    *args: object,
    seeds: int | Iterable[int] | None = None,
    draw: Callable[[jax.Array], Sequence[object]] | None = None,
    argnum: int = -1,
) -> Measurement:
    """The q and c values of `fn(*args)` at every node of its graph, over pairs and locations.

    `fn`, its arguments and `argnum` are as for `trace`, the input and `seeds` as for
    `skipless.torch.measure`. For each seed, `draw(key)` returns the arguments before the input. The
    default draws weights like `initialize`, with the sigmas of the solution if `fn` is converted.

    A linear layer with orthonormal rows and columns keeps both values:

    >>> x = pair_inputs((8,), pairs=5, cosine=0.25)
    >>> found = measure(lambda w, x: x @ w, jnp.eye(8), x, seeds=3)
    >>> [(node.kind, round(node.q.mean, 5), round(node.c.mean, 5)) for node in found.nodes]
    [('Input', 1.0, 0.25), ('Affine', 1.0, 0.25)]
    """
    place = input_index(args, argnum)
    inputs = jnp.asarray(args[place])
    require_function("draw", draw)
    core.require_batch_of_pairs(inputs.shape)
    if draw is not None and seeds is not None:
        graph, samples = None, []
        for key in _keys(seeds):
            drawn = draw(key)
            replay = Replay(read(fn, *drawn, *args[place:], argnum=len(drawn)), inputs)
            graph = graph or replay.graph
            samples.append(replay.run(inputs, {}))
        q, c, *_ = core.stack(samples)
        assert graph is not None
        return Measurement.of(graph, q, c)
    reading = read(fn, *args, argnum=place)
    replay = Replay(reading, inputs)
    draws = partial(draw_weights, reading, **core.sigmas(core.known_solution(fn)))
    weights = [{}] if seeds is None else map(draws, _keys(seeds))
    q, c, *_ = core.stack([replay.run(inputs, drawn) for drawn in weights])
    return Measurement.of(replay.graph, q, c)


def check(
    fn: Callable[..., object],
    *args: object,
    solution: Solution | None = None,
    cosines: Sequence[float] | None = None,
    seeds: int | Iterable[int] | None = 20,
    pairs: int = 8,
    distribution: Distribution = "orthogonal",
    tolerance: float = TOLERANCE,
    argnum: int = -1,
) -> Check:
    r"""What `solution` predicts for `fn`, beside what is measured, at every node of its graph.

    `fn`, its arguments and `argnum` are as for `trace`; the others are those of
    `skipless.torch.check`. Weights are drawn as by `initialize`, so `jax.ShapeDtypeStruct`s are
    enough, and of the input only the shape of a sample matters.

    >>> from skipless import Graph, TAT, solve
    >>> from skipless.jax import shaped
    >>> trelu = solve(Graph.chain(20), TAT(eta=0.8))
    >>> def model(weights, x):
    ...     for w in weights:
    ...         x = shaped(trelu)(x @ w)
    ...     return x
    >>> weights = [jax.ShapeDtypeStruct((100, 100), jnp.float32)] * 20
    >>> check(model, weights, jnp.zeros((1, 100)), solution=trelu, seeds=5).agrees
    True
    """
    solution = core.find_solution(fn, solution)
    samples = core.batch_size(cosines, pairs)
    place = input_index(args, argnum)
    example = args[place]
    batch = jnp.ones((samples, *example.shape[1:]), example.dtype)  # pyright: ignore
    reading = read(fn, *args[:place], batch, *args[place + 1 :], argnum=place)
    draw = partial(draw_weights, reading, distribution=distribution, **core.sigmas(solution))
    replay = Replay(reading, batch, solution)
    draws = [{}] if seeds is None else map(draw, _keys(seeds))
    return core.check(replay, solution, draws, cosines, pairs, tolerance, distribution)


def pair_inputs(
    shape: Sequence[int],
    pairs: int,
    cosine: float,
    *,
    channel_axis: int = -1,
    key: jax.Array | None = None,
) -> jax.Array:
    """A batch of random pairs of samples of `shape`, as `skipless.torch.pair_inputs` makes them.

    >>> x = pair_inputs((4, 4, 3), pairs=2, cosine=-0.5)
    >>> x.shape, bool(jnp.allclose(jnp.mean(x[0] * x[1], axis=-1), -0.5))
    ((4, 4, 4, 3), True)
    """
    key = jax.random.key(0) if key is None else key
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,))))
    return jnp.asarray(core.pair_inputs(rng, shape, pairs, cosine, channel_axis))


def _keys(seeds: int | Iterable[int]) -> Iterator[jax.Array]:
    return map(jax.random.key, core.seed_numbers(seeds))

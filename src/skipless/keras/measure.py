r"""The kernel of a real network: empirical q and c values, beside what the theory predicts.

At a location of a tensor with $d$ channels, two samples have

$$\hat q = \frac{\|x\|^2}{d}, \qquad \hat c = \frac{x_1^\top x_2}{\|x_1\|\,\|x_2\|}.$$

They are taken where the theory has a node, whatever the model calls it: the recorded calls run one
by one, and only these numbers are kept.
"""

# To a type checker, operations of Keras may return None.
# pyright: reportOptionalOperand=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from skipless.core import measure as core
from skipless.core.measure import (
    TOLERANCE,
    Check,
    Measurement,
    known_solution,
    require_known_solution,
)
from skipless.core.solution import Solution, require_solution
from skipless.core.trace import Axes

from .activations import Array
from .init import Distribution, initialize_
from .operations import AFFINE, is_stock
from .record import Call, Tensor
from .trace import Reading, read


def measure(
    model: keras.Model,
    inputs: Array,
    *,
    seeds: int | Iterable[int] | None = None,
    draw: Callable[..., object] | None = None,
) -> Measurement:
    """The q and c values of `model` at every node of its graph, averaged over pairs and locations.

    The model is measured in evaluation mode, and left as it was.

    Args:
        model: A Sequential or Functional model.
        inputs: A batch in which samples 0 and 1 are a pair, as are 2 and 3, and so on.
        seeds: How many draws of the weights to measure, or the seeds themselves; standard errors
            are then over seeds. Without it, the weights are those that the model has.
        draw: Called as `draw(model, seed=...)` for each seed. The default is `initialize_`, with
            the sigmas of the solution if the model is converted.

    A linear layer with orthonormal rows and columns keeps both values:

    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, use_bias=False)])
    >>> found = measure(model, pair_inputs((8,), pairs=5, cosine=0.25), seeds=3)
    >>> [(node.kind, round(node.q.mean, 5), round(node.c.mean, 5)) for node in found.nodes]
    [('Input', 1.0, 0.25), ('Affine', 1.0, 0.25)]
    """
    core.require_batch_of_pairs(tuple(inputs.shape))
    replay, solution = Replay(read(model, inputs), example=inputs), known_solution(model)
    if draw is None:
        draw = initialize_ if solution is None else _draw_for(solution)
    with _draws(model, seeds, draw) as draws:
        q, c = core.stack([replay.run(inputs) for _ in draws])
    return Measurement.of(replay.graph, q, c)


def check(
    model: keras.Model,
    example: object = None,
    solution: Solution | None = None,
    *,
    cosines: Sequence[float] = (0.0,),
    seeds: int | Iterable[int] = 20,
    pairs: int = 8,
    distribution: Distribution = "orthogonal",
    tolerance: float = TOLERANCE,
) -> Check:
    """What `solution` predicts for `model`, beside what is measured, at every node of its graph.

    A node agrees if c, and q relative to its prediction, are off by at most the `tolerance` and
    four standard errors; `skipless.torch.check` says what finite widths do. The model keeps its
    weights.

    Args:
        model: A Sequential or Functional model.
        example: A batch of inputs, or its shape, if the model leaves sizes open or is not built.
        solution: What shaped the network; a converted model carries it.
        cosines: Those of the pairs of inputs that go through the network.
        seeds: How many draws of the weights, or the seeds themselves.
        pairs: How many pairs of inputs there are for each cosine.
        distribution: "orthogonal" or "gaussian" weights.
        tolerance: What finite width may add to a difference.

    >>> from skipless import Graph, TAT, solve
    >>> from skipless.keras import ShapedActivation
    >>> trelu = solve(Graph.chain(10), TAT(eta=0.6))
    >>> layer = lambda: keras.layers.Dense(100, activation=ShapedActivation.from_solution(trelu))
    >>> model = keras.Sequential([keras.Input((100,)), *(layer() for _ in range(10))])
    >>> check(model, solution=trelu, seeds=5).agrees
    True
    """
    solution = solution or require_known_solution(model)
    require_solution(solution)
    samples = core.batch_size(cosines, pairs)
    replay = Replay(read(model, example), samples, example)
    with _draws(model, seeds, _draw_for(solution, distribution)) as draws:
        return core.check(replay, solution, draws, cosines, pairs, tolerance)


def pair_inputs(
    shape: Sequence[int],
    pairs: int,
    cosine: float,
    *,
    channel_axis: int = -1,
    seed: int | None = None,
) -> Array:
    """A batch of random pairs of samples of `shape`, of q value 1 and of that `cosine`.

    Both are exact at every location, because a sample has the same vector of channels at all of
    them. Pooling, padding and flattening locations then keeps them exact.

    >>> x = pair_inputs((4, 4, 3), pairs=2, cosine=-0.5)
    >>> tuple(x.shape), bool(ops.all(ops.abs(ops.mean(x[0] * x[1], axis=-1) + 0.5) < 1e-6))
    ((4, 4, 4, 3), True)
    """
    rng = np.random.default_rng(seed)
    return ops.convert_to_tensor(core.pair_inputs(rng, shape, pairs, cosine, channel_axis))


class Replay:
    """Runs the recorded calls of `reading` again, with the weights that the layers have."""

    def __init__(self, reading: Reading, samples: int = 2, example: object = None) -> None:
        self.graph = reading.graph
        self._record, self._tensors = reading.record, reading.tensors()
        self._axes = {tensor: reading.axes[tensor] for tensor, _ in self._tensors.values()}
        self._start = self._tensors[0][0]
        self.channel_axis = self._axes[self._start].channels[0] - 1
        self._stand_in = _stand_in(self._record.input, samples, example)
        values = dict(self._values(self._stand_in, None, until=self._start))
        self.start_shape = tuple(values[self._start].shape[1:])

    def __call__(self, start: np.ndarray, weights: None) -> tuple[np.ndarray, np.ndarray]:
        """The q and c values of shape (live nodes, pairs), with the weights as they are.

        The `start` replaces what layers that normalise the inputs would return.
        """
        return self.run(self._stand_in, start)

    def run(self, inputs: Array, start: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The same for these `inputs` of the model."""
        seen = {
            tensor: _kernel(value, self._axes[tensor], len(inputs))
            for tensor, value in self._values(inputs, start)
            if tensor in self._axes
        }
        return core.values_at_nodes(self.graph, self._tensors, seen)

    def _values(
        self, inputs: Array, start: np.ndarray | None, until: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Any]]:
        values: dict[Tensor, Any] = {}
        results: dict[Call, list[Any]] = {}
        for tensor in self._record.tensors:
            if tensor is self._start and start is not None:
                values[tensor] = ops.convert_to_tensor(start, tensor.dtype)
            elif tensor is self._record.input:
                values[tensor] = ops.convert_to_tensor(inputs, tensor.dtype)
            else:
                if tensor.call not in results:  # a call may have several results
                    results[tensor.call] = _results_of(tensor.call, values)
                values[tensor] = results[tensor.call][tensor.index]
            yield tensor, values[tensor]
            if tensor is until:
                return


def _stand_in(start: Tensor, samples: int, example: object) -> np.ndarray:
    """Inputs of the shape that the model expects, with the sizes of `example` where it has none."""
    given = tuple(getattr(example, "shape", None) or example or start.shape)  # pyright: ignore
    sizes = [b if a is None else a for a, b in zip(start.shape[1:], given[1:], strict=True)]
    if None in sizes:
        raise ValueError(
            f"The model leaves sizes of its input open: {start.shape}. Pass an example, or its "
            "shape."
        )
    return np.ones((samples, *sizes), start.dtype)


def _results_of(call: Call, values: Mapping[Tensor, Any]) -> list[Any]:
    """The results of a recorded call, or of a part of it, on these `values`."""
    argument = lambda a: values[a] if isinstance(a, Tensor) else a
    args: Any = keras.tree.map_structure(argument, call.args)
    kwargs: Any = keras.tree.map_structure(argument, dict(call.kwargs))
    layer: Any = call.operation
    if call.part == "activation":
        return [layer.activation(*args)]
    if call.part == "depthwise":
        return [_depthwise(layer, args[0])]
    if call.part == "pointwise":
        product = ops.conv(args[0], layer.pointwise_kernel, data_format=layer.data_format)
        return [product + _along_channels(layer) if layer.use_bias else product]
    if not is_stock(layer, AFFINE):
        return keras.tree.flatten(layer(*args, **kwargs))
    with _without_activation(layer):
        return keras.tree.flatten(layer(*args, **kwargs))


def _depthwise(layer: Any, x: Any) -> Any:
    """What the first half of a separable convolution makes of `x`."""
    return ops.depthwise_conv(
        x,
        layer.depthwise_kernel,
        strides=layer.strides,
        padding=layer.padding,
        data_format=layer.data_format,
        dilation_rate=layer.dilation_rate,
    )


def _along_channels(layer: Any) -> Any:
    """The bias of a convolution, in the shape in which it is added."""
    ones = (1,) * layer.rank
    first = layer.data_format == "channels_first"
    return ops.reshape(layer.bias, (1, -1, *ones) if first else (1, *ones, -1))


@contextmanager
def _without_activation(layer: Any) -> Iterator[None]:
    """The layer without its activation, which is a call of its own in the record."""
    # Keras would take a layer that is set here, as an activation may be, for a new part.
    before = layer.activation
    object.__setattr__(layer, "activation", None)
    try:
        yield
    finally:
        object.__setattr__(layer, "activation", before)


def _kernel(value: Array, axes: Axes, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """The q and c value of each pair in a batch, averaged over locations.

    Locations where a sample is zero have no cosine and are left out of that average.
    """
    x = np.asarray(ops.convert_to_numpy(ops.cast(value, "float32")), np.float64)
    width = math.prod(x.shape[axis] for axis in axes.channels)
    last = range(x.ndim - len(axes.channels), x.ndim)
    x_plc = np.moveaxis(x, (axes.samples, *axes.channels), (0, *last)).reshape(samples, -1, width)
    first, second = x_plc[0::2], x_plc[1::2]
    q_1, q_2 = np.mean(first**2, axis=2), np.mean(second**2, axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        c_pl = np.mean(first * second, axis=2) / np.sqrt(q_1 * q_2)
    known = ~np.isnan(c_pl)
    count = np.where(known.any(axis=1), known.sum(axis=1), np.nan)
    c = np.where(known, np.clip(c_pl, -1.0, 1.0), 0.0).sum(axis=1) / count
    return (q_1 + q_2).mean(axis=1) / 2.0, c


def _draw_for(
    solution: Solution, distribution: Distribution = "orthogonal"
) -> Callable[..., object]:
    return partial(
        initialize_, sigma_w=solution.sigma_w, sigma_b=solution.sigma_b, distribution=distribution
    )


@contextmanager
def _draws(
    model: keras.Model, seeds: int | Iterable[int] | None, draw: Callable[..., object]
) -> Iterator[Iterator[None]]:
    """Once for every seed, with the weights drawn from it; afterwards the weights are as before."""

    def each() -> Iterator[None]:
        for seed in () if seeds is None else core.seed_numbers(seeds):
            draw(model, seed=seed)
            yield
        if seeds is None:
            yield

    before = model.get_weights()
    try:
        yield each()
    finally:
        if seeds is not None:
            model.set_weights(before)

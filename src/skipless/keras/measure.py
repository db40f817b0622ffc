"""The kernel of a real network, as in `skipless.torch.measure`: empirical q and c values."""

# To a type checker, operations of Keras may return None.
# pyright: reportOptionalOperand=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from skipless.core import measure as core
from skipless.core.arguments import require_function
from skipless.core.measure import TOLERANCE, Check, Kernels, Measurement
from skipless.core.solution import Solution
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

    The arguments are those of `skipless.torch.measure`; `draw` is called as `draw(model, seed=...)`
    for each seed. A linear layer with orthonormal rows and columns keeps both values:

    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8, use_bias=False)])
    >>> found = measure(model, pair_inputs((8,), pairs=5, cosine=0.25), seeds=3)
    >>> [(node.kind, round(node.q.mean, 5), round(node.c.mean, 5)) for node in found.nodes]
    [('Input', 1.0, 0.25), ('Affine', 1.0, 0.25)]
    """
    reading = read(model, inputs)
    require_function("draw", draw)
    core.require_batch_of_pairs(tuple(inputs.shape))
    replay = Replay(reading, example=inputs)
    draw = draw or partial(initialize_, **core.sigmas(core.known_solution(model)))
    with closing(_draws(model, seeds, draw)) as draws:
        q, c, *_ = core.stack([replay.run(inputs) for _ in draws])
    return Measurement.of(replay.graph, q, c)


def check(
    model: keras.Model,
    example: object = None,
    solution: Solution | None = None,
    *,
    cosines: Sequence[float] | None = None,
    seeds: int | Iterable[int] | None = 20,
    pairs: int = 8,
    distribution: Distribution = "orthogonal",
    tolerance: float = TOLERANCE,
) -> Check:
    """What `solution` predicts for `model`, beside what is measured, at every node of its graph.

    The arguments are those of `skipless.torch.check`. Only a model that leaves sizes open or is not
    built needs an `example`, a batch of inputs or its shape. It keeps its weights.

    >>> from skipless import Graph, TAT, solve
    >>> from skipless.keras import ShapedActivation
    >>> trelu = solve(Graph.chain(10), TAT(eta=0.6))
    >>> layer = lambda: keras.layers.Dense(100, activation=ShapedActivation.from_solution(trelu))
    >>> model = keras.Sequential([keras.Input((100,)), *(layer() for _ in range(10))])
    >>> check(model, solution=trelu, seeds=5).agrees
    True
    """
    solution = core.find_solution(model, solution)
    samples = core.batch_size(cosines, pairs)
    replay = Replay(read(model, example), samples, example, solution)
    draw = partial(initialize_, distribution=distribution, **core.sigmas(solution))
    with closing(_draws(model, seeds, draw)) as draws:
        return core.check(replay, solution, draws, cosines, pairs, tolerance, distribution)


def pair_inputs(
    shape: Sequence[int],
    pairs: int,
    cosine: float,
    *,
    channel_axis: int = -1,
    seed: int | None = None,
) -> Array:
    """A batch of random pairs of samples of `shape`, as `skipless.torch.pair_inputs` makes them.

    >>> x = pair_inputs((4, 4, 3), pairs=2, cosine=-0.5)
    >>> tuple(x.shape), bool(ops.all(ops.abs(ops.mean(x[0] * x[1], axis=-1) + 0.5) < 1e-6))
    ((4, 4, 4, 3), True)
    """
    rng = np.random.default_rng(seed)
    return ops.convert_to_tensor(core.pair_inputs(rng, shape, pairs, cosine, channel_axis))


class Replay:
    """Runs the recorded calls of `reading` again, with the weights that the layers have."""

    def __init__(
        self,
        reading: Reading,
        samples: int = 2,
        example: object = None,
        solution: Solution | None = None,
    ) -> None:
        self.graph, self.sizes = reading.graph, reading.sizes
        self._record, self._tensors = reading.record, reading.tensors()
        self._axes = {tensor: reading.axes[tensor] for tensor, _ in self._tensors.values()}
        self._probe = core.Probe(reading, solution)
        self.begin = core.first_node_of_pairs(self.graph, self.sizes)
        self._start = self._tensors[self.begin][0]
        self.rounding = _epsilon(self._start.dtype)
        self.channel_axis = self._axes[self._start].channels[0] - 1
        self._stand_in = _stand_in(self._record.input, samples, example)
        values = self._values(self._stand_in)
        start = next(value for tensor, value in values if tensor is self._start)
        self.start_shape = tuple(start.shape[1:])

    def __call__(self, start: np.ndarray, weights: None) -> Kernels:
        """The kernels from this `start` of the graph on."""
        return self.run(self._stand_in, start)

    def run(self, inputs: Array, start: np.ndarray | None = None) -> Kernels:
        """The same for these `inputs` of the model."""
        seen: dict[Tensor, tuple[np.ndarray, np.ndarray]] = {}
        for tensor, value in self._values(inputs, start):
            if tensor in self._axes:
                seen[tensor] = _kernel(value, self._axes[tensor], len(inputs))
            self._probe.see(tensor, lambda value=value: _as_numpy(value))
        return core.values_at_nodes(self.graph, self._tensors, seen, self._probe)

    def _values(
        self, inputs: Array, start: np.ndarray | None = None
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
            if (source := self._probe.layers.get(tensor)) is not None:
                apply = partial(_apply, tensor, source, values)
                self._probe.feed(tensor, tuple(values[source].shape), apply)
            yield tensor, values[tensor]


def _apply(
    tensor: Tensor, source: Tensor, values: Mapping[Tensor, Any], x: np.ndarray
) -> np.ndarray:
    """What a layer makes of `x` in place of its `source`."""
    given = {**values, source: ops.convert_to_tensor(x, source.dtype)}
    return _as_numpy(_results_of(tensor.call, given)[tensor.index])


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
        options = (layer.strides, layer.padding, layer.data_format, layer.dilation_rate)
        return [ops.depthwise_conv(args[0], layer.depthwise_kernel, *options)]
    if call.part == "pointwise":
        product = ops.conv(args[0], layer.pointwise_kernel, data_format=layer.data_format)
        ones, first = (1,) * layer.rank, layer.data_format == "channels_first"
        along_channels = (1, -1, *ones) if first else (1, *ones, -1)
        return [product + ops.reshape(layer.bias, along_channels) if layer.use_bias else product]
    if not is_stock(layer, AFFINE):
        return keras.tree.flatten(layer(*args, **kwargs))
    # Its activation is a call of its own in the record. Keras would take a layer that is set here,
    # as an activation may be, for a new part.
    before = layer.activation
    object.__setattr__(layer, "activation", None)
    try:
        return keras.tree.flatten(layer(*args, **kwargs))
    finally:
        object.__setattr__(layer, "activation", before)


def _as_numpy(value: Array) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(ops.cast(value, "float32")), np.float64)


def _epsilon(dtype: str) -> float:
    """The rounding error of numbers of this type, which numpy may not have."""
    return {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(dtype, 2.0**-23)


def _kernel(value: Array, axes: Axes, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Q of both samples of each pair and their c, averaged over locations; c where none is zero."""
    x = _as_numpy(value)
    width = math.prod(x.shape[axis] for axis in axes.channels)
    last = range(x.ndim - len(axes.channels), x.ndim)
    x_plc = np.moveaxis(x, (axes.samples, *axes.channels), (0, *last)).reshape(samples, -1, width)
    first, second = x_plc[0::2], x_plc[1::2]
    q_1, q_2 = np.mean(first**2, axis=2), np.mean(second**2, axis=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        c_pl = np.mean(first * second, axis=2) / np.sqrt(q_1 * q_2)
        known = ~np.isnan(c_pl)
        c = np.where(known, np.clip(c_pl, -1.0, 1.0), 0.0).sum(axis=1) / known.sum(axis=1)
    return np.stack([q_1, q_2], -1).mean(axis=1), c


def _draws(
    model: keras.Model, seeds: int | Iterable[int] | None, draw: Callable[..., object]
) -> Generator[None]:
    """Once for every seed, with the weights drawn from it; afterwards the weights are as before."""
    if seeds is None:
        yield
        return
    before = model.get_weights()
    try:
        for seed in core.seed_numbers(seeds):
            draw(model, seed=seed)
            yield
    finally:
        model.set_weights(before)

"""A model shaped in one line: convert(model, method) -> model.

Copies of a model's layers with new initial weights.

A recorded model written out again, with other activations and sums and no normalisation.

What `convert` tells about a model: an account of how it was made.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
from keras import layers, ops

from skipless.core.activations import Activation
from skipless.core.convert import Change, Sums, Term, demand_same, layers_at_norms
from skipless.core.graph import Graph
from skipless.core.network import Point
from skipless.core.predict import approximations, predict
from skipless.core.rescale import normalised_weights, reweight, to_residual_form
from skipless.core.solution import TAT, Method, Solution
from skipless.core.solve import solve
from skipless.core.trace import UnsupportedModelError

from .activations import Config, Function, ShapedActivation, WeightedAdd
from .init import DeltaOrthogonal, DepthwiseDelta, ScaledUniformOrthogonal, TransposedDelta
from .operations import AFFINE, CONVOLUTIONS, DEPTHWISE, SEPARABLE, TRANSPOSED, stock
from .record import Call, Tensor, flat_numbers
from .trace import Reading, Step, read


class Copies:
    """Layers and operations made anew from their configurations, each once.

    Layers with weights lose their activation, which becomes a layer of its own, and get the
    initialisers of the theory.
    """

    def __init__(self, sigma_w: float, sigma_b: float, seed: int | None) -> None:
        self.sigma_w, self.sigma_b = sigma_w, sigma_b
        self.untouched: list[str] = []
        self._random = random.Random(seed)
        self._made: dict[int, Any] = {}
        self._kept: list[object] = []  # so that no id is given twice
        self._names: set[str] = set()

    def of(self, operation: Any, path: str, with_bias: bool) -> Any:
        """The copy of an operation."""
        if id(operation) not in self._made:
            self._kept.append(operation)
            config = operation.get_config()
            if isinstance(operation, layers.Layer):
                config["name"] = self.free(operation.name, path)
            if stock(operation, AFFINE):
                config |= self._drawn(operation, path)
                config["use_bias"] = config.get("use_bias", True) or with_bias
            elif isinstance(operation, layers.Layer) and operation.trainable_variables:
                self.untouched.append(path)
            self._made[id(operation)] = type(operation).from_config(config)
        return self._made[id(operation)]

    def free(self, name: str, path: str) -> str:
        """A name that no other layer has: the same, or the whole path, or one with a number."""
        number, whole = 1, path.replace("/", "_")
        candidate = name
        while candidate in self._names:
            candidate = whole if whole not in self._names else f"{whole}_{number}"
            number += 1
        self._names.add(candidate)
        return candidate

    def _drawn(self, layer: Any, path: str) -> Config:
        seed, gain = self._seed(), self.sigma_w
        config: Config = {"activation": None, "bias_initializer": "zeros"}
        if self.sigma_b:
            bias = keras.initializers.RandomNormal(stddev=self.sigma_b, seed=self._seed())
            config["bias_initializer"] = bias
        if isinstance(layer, SEPARABLE):
            config["depthwise_initializer"] = DepthwiseDelta(gain, seed=seed)
            pointwise = ScaledUniformOrthogonal(gain, seed=self._seed())
            config["pointwise_initializer"] = pointwise
        elif isinstance(layer, DEPTHWISE):
            config["depthwise_initializer"] = DepthwiseDelta(gain, seed=seed)
        elif isinstance(layer, TRANSPOSED):
            _demand_no_gaps(layer, path)
            config["kernel_initializer"] = TransposedDelta(layer.strides, gain, seed=seed)
        elif isinstance(layer, CONVOLUTIONS):
            config["kernel_initializer"] = DeltaOrthogonal(
                gain, groups=layer.groups, tap=_tap(layer), seed=seed
            )
        elif isinstance(layer, layers.Dense):
            config["kernel_initializer"] = ScaledUniformOrthogonal(gain, seed=seed)
        else:
            raise UnsupportedModelError(
                f"{path} ({type(layer).__name__}) has weights of a shape that the theory's "
                "distributions are not made for. Write it as a Dense layer."
            )
        return config

    def _seed(self) -> int:
        return self._random.randrange(2**31)


def _tap(layer: Any) -> tuple[int, ...] | None:
    """The tap that reads the location itself, where it is not the centre."""
    # Causal padding is all in front. Of Keras' layers only Conv1D has it.
    return tuple(size - 1 for size in layer.kernel_size) if layer.padding == "causal" else None


def _demand_no_gaps(layer: Any, path: str) -> None:
    axes = zip(layer.kernel_size, layer.strides, layer.dilation_rate, strict=True)
    if any(size < step or math.gcd(step, space) > 1 for size, step, space in axes):
        raise UnsupportedModelError(
            f"{path}, a transposed convolution with kernel {layer.kernel_size}, strides "
            f"{layer.strides} and dilation {layer.dilation_rate}, cannot reach all locations and "
            "would leave q = 0 at others. Use a kernel at least as large as the stride, and no "
            "dilation."
        )


BuildActivation = Callable[[str, str], ShapedActivation]  # of a name and a dtype


@dataclass(frozen=True)
class Rewritten:
    """The new model's tensors, and what is different."""

    input: keras.KerasTensor
    output: keras.KerasTensor
    changes: list[Change] = field(default_factory=list[Change])


def rewrite(
    reading: Reading,
    form: Graph,
    weights: Mapping[int, Sequence[float]],
    activation: BuildActivation,
    copies: Copies,
) -> Rewritten:
    """The calls that lead to the output, with the sums of `form` and new activations.

    `form` is the graph of `reading`, but for terms of sums that are taken from before an
    activation; `weights` are those of its sums.
    """
    writer = _Writer(reading, form, weights, activation, copies)
    first, needed = reading.record.tensors[0], writer.needed()
    writer.give_biases(needed)
    for tensor in reading.record.tensors:
        if tensor in needed:
            writer.write(tensor)
    writer.list_the_dropped(needed)
    return Rewritten(writer.use(first), writer.use(reading.record.output), writer.changes)


class _Writer:
    def __init__(
        self,
        reading: Reading,
        form: Graph,
        weights: Mapping[int, Sequence[float]],
        activation: BuildActivation,
        copies: Copies,
    ) -> None:
        self.reading, self.activation, self.copies = reading, activation, copies
        self._sums = Sums(reading.steps, reading.graph, form, weights)
        self.changes: list[Change] = []
        self._written: dict[Tensor, Any] = {}
        self._results: dict[Call, list[Any]] = {}  # a call may have several
        self._activated: dict[int, Any] = {}
        self._activations: dict[tuple[int, str], ShapedActivation] = {}
        self._with_bias: set[int] = set()

    def needed(self) -> set[Tensor]:
        """The recorded tensors that the new model is made of."""
        needed, todo = {self.reading.record.output}, [self.reading.record.output]
        while todo:
            for before in self._reads(todo.pop()):
                if before not in needed:
                    needed.add(before)
                    todo.append(before)
        return needed | {self.reading.record.tensors[0]}

    def _reads(self, tensor: Tensor) -> Sequence[Tensor]:
        step = self.reading.steps[tensor]
        if step.kind == "sum":
            return [term.source for term in self._sums.terms(step)]
        if step.kind in ("norm", "activation", "scale"):
            return step.inputs
        return tensor.inputs

    def give_biases(self, needed: set[Tensor]) -> None:
        """A shift that normalisation had is left to the layers around it, which may lack one."""
        for tensor in layers_at_norms(self.reading.steps, needed):
            layer = tensor.call.operation
            if not getattr(layer, "use_bias", True) and id(layer) not in self._with_bias:
                self._with_bias.add(id(layer))
                self._changed("bias added", tensor)

    def write(self, tensor: Tensor) -> None:
        step = self.reading.steps[tensor]
        match step.kind:
            case "input" if tensor.call.operation is None:
                name = self.copies.free(tensor.call.path, "input")
                new = keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=name)
                self._written[tensor] = new
            case "norm" | "scale":
                self._pass_on(tensor, step)
            case "activation":
                self._activate(tensor, step)
            case "sum":
                self._sum(tensor, step)
            case _:
                self._written[tensor] = self._copy(tensor)

    def use(self, tensor: Tensor) -> Any:
        """What stands for a recorded tensor in the new model; of a factor, the sign is left."""
        if self.reading.steps[tensor].scale < 0.0:
            return ops.negative(self._written[tensor])
        return self._written[tensor]

    def _pass_on(self, tensor: Tensor, step: Step) -> None:
        self._written[tensor] = self.use(step.inputs[0])
        if step.kind == "norm":
            self._changed("normalisation removed", tensor)
        else:
            self._changed(f"factor {step.scale:.4g} removed", tensor)

    def _activate(self, tensor: Tensor, step: Step) -> None:
        if step.node not in self._activated:  # which a multiple of it may have written before
            layer = self._activation_layer(tensor)
            self._activated[step.node] = layer(self.use(step.inputs[0]))
            self._changed(f"activation replaced by {layer!r}", tensor)
        self._written[tensor] = self._activated[step.node]

    def _activation_layer(self, tensor: Tensor) -> ShapedActivation:
        """A layer under the name of the one that it replaces, or beside the layer it was part of.

        A layer that the model used several times is used as often.
        """
        operation, part = tensor.call.operation, tensor.call.part
        assert operation is not None
        key = (id(operation), part)
        if key not in self._activations:
            own = part == "activation"
            name = f"{operation.name}_activation" if own else operation.name
            path = f"{tensor.call.path}_activation" if own else tensor.call.path
            self._activations[key] = self.activation(self.copies.free(name, path), tensor.dtype)
        return self._activations[key]

    def _sum(self, tensor: Tensor, step: Step) -> None:
        terms = self._sums.terms(step)
        values, new = [self._value(term) for term in terms], [term.weight for term in terms]
        for term in terms:
            if term.moved:
                self._changed("shortcut taken from before the activation", tensor)
        if new == [1.0]:
            self._written[tensor] = values[0]
        else:
            assert tensor.call.operation is not None
            name = self.copies.free(tensor.call.operation.name, tensor.call.path)
            self._written[tensor] = WeightedAdd(new, name=name, dtype=tensor.dtype)(values)
        if (change := self._sums.reweight(step)) is not None:
            self._changed(change, tensor)

    def _value(self, term: Term[Tensor]) -> Any:
        if not term.moved:
            # The weight of a factor times an activation is for the activation alone.
            bare = term.node == self.reading.steps[term.tensor].node
            return self._written[term.tensor] if bare else self.use(term.tensor)
        value = self.use(term.source)
        for move in term.moves:
            value = self._called(move.call, {self.reading.steps[move].inputs[0]: value})[move.index]
        return value

    def _copy(self, tensor: Tensor) -> Any:
        call = tensor.call
        if call.part == "depthwise":  # the layer is called as a whole, at its second part
            return self.use(tensor.inputs[0])
        if call.part == "activation":  # the softmax at the end
            activation: Any = getattr(call.operation, "activation", None)
            name = self.copies.free(f"{call.path.split('/')[-1]}_activation", call.path)
            return layers.Activation(activation, name=name, dtype=tensor.dtype)(
                self.use(tensor.inputs[0])
            )
        if call not in self._results:
            self._results[call] = self._called(call, {})
        return self._results[call][tensor.index]

    def _called(self, call: Call, known: Mapping[Tensor, Any]) -> list[Any]:
        """The results of the same call in the new model, with what is `known` in it."""
        if any(isinstance(a, keras.Variable) for a in flat_numbers(call)):
            raise UnsupportedModelError(
                f"{call.path} ({type(call.operation).__name__}) computes with a variable of a "
                "layer of your own, which cannot be drawn anew. Write it as a Dense or convolution "
                "layer."
            )

        def argument(a: Any) -> Any:
            if isinstance(a, Tensor):
                return known[a] if a in known else self.use(a)
            return a

        copied = self.copies.of(call.operation, call.path, id(call.operation) in self._with_bias)
        args: Any = keras.tree.map_structure(argument, call.args)
        kwargs: Any = keras.tree.map_structure(argument, dict(call.kwargs))
        return keras.tree.flatten(copied(*args, **kwargs))

    def list_the_dropped(self, needed: set[Tensor]) -> None:
        for tensor, step in self.reading.steps.items():
            if step.kind == "affine" and tensor not in needed:
                self._changed("layer of a shortcut removed", tensor)

    def _changed(self, what: str, tensor: Tensor) -> None:
        self.changes.append(Change(what, tensor.call.path))


@dataclass(frozen=True)
class ConversionReport:
    """What was changed, the solution, and the predicted q and c values; `print` shows it.

    `predicted` has a point for every node of `graph`, for two inputs of q value 1 that are
    orthogonal. `approximate` lists the places where the theory holds only roughly, `untouched` the
    layers whose weights were not drawn by the theory.
    """

    method: Method
    solution: Solution
    graph: Graph
    predicted: tuple[Point, ...]
    changes: tuple[Change, ...]
    approximate: tuple[str, ...]
    untouched: tuple[str, ...]

    def __str__(self) -> str:
        places: dict[str, list[str]] = {}
        for change in self.changes:
            places.setdefault(change.what, []).append(change.where)
        last = self.predicted[-1]
        parts = [
            f"{self.graph!r}, shaped by {self.method}",
            _listed("Changes:", [f"{what}: {_ends(where)}" for what, where in places.items()]),
            _listed(f"{self.solution.activation}:", self._numbers()),
            f"Orthogonal inputs come out with q = {last.q:.4f} and c = {last.c:.4f}.",
        ]
        if self.approximate:
            parts.append(_listed("The theory only approximates:", self.approximate))
        if self.untouched:
            parts.append(_listed("Layers with weights of their own kind:", self.untouched))
        return "\n\n".join(parts)

    def _numbers(self) -> list[str]:
        used = [f"{k} = {v:.8g}" for k, v in self.solution.parameters.items() if v is not None]
        return [*used, *(f"{name} = {v:.6g} (target)" for name, v in self.solution.targets.items())]


def _ends(where: Sequence[str]) -> str:
    return where[0] if len(where) == 1 else f"{where[0]} … {where[-1]} ({len(where)} times)"


def _listed(head: str, lines: Sequence[str]) -> str:
    return "\n  ".join([head, *lines])


def convert(
    model: keras.Model,
    method: Method = TAT(),  # noqa: B008 - frozen, so that sharing it is safe
    *,
    shortcut_weight: float | None = None,
    activation: str | Activation = "leaky_relu",
    function: Function | None = None,
    clamp: bool = False,
    seed: int | None = None,
    example: object = None,
) -> keras.Model:
    r"""A new Functional model like `model`, shaped by `method`; its `skipless_report` says how.

    - Normalisation layers are removed, and layers next to them without biases are given some.
    - Every activation becomes the one that `solve` finds for the network as it is after conversion:
      a `TReLU` under TAT, or the shaped `activation`. A layer's own becomes a layer behind it. A
      softmax at the end stays.
    - Every sum is normalised, and becomes a `WeightedAdd`. With a `shortcut_weight` w, residual
      sums become $w\,x + \sqrt{1-w^2}\,\mathcal R(x)$; with 0 the shortcuts are removed, and what
      only they need. Without one, the terms of a sum keep their proportions. Where a block ends in
      an activation, as in a ResNet of the first kind, the shortcut starts before the activation of
      the block before it, as in one of the second: the theory asks for that (`core.rescale`).
    - Weights are drawn anew: `ScaledUniformOrthogonal` for dense layers, Delta initialisation for
      convolutions, biases zero (or, under EOC, normal).

    As with `keras.models.clone_model`, layers are made anew from their configurations, under their
    names, and what `compile` was given is kept; `model` is left as it is. Models inside of it are
    written out. `seed` makes the weights reproducible, `clamp` is for `solve`, `example` for a
    Sequential model that has not been built; `function` is φ in tensors, where `activation` is an
    `Activation` of your own.

    >>> block = lambda: [keras.layers.Dense(8, activation="relu") for _ in range(20)]
    >>> deep = convert(keras.Sequential([keras.Input((8,)), *block()]), TAT(eta=0.9), seed=0)
    >>> round(deep.skipless_report.predicted[-1].c, 6)
    0.9
    """
    reading = read(model, example)
    _demand_no_probability(reading)
    form = to_residual_form(reading.graph)
    weights = normalised_weights(form, shortcut_weight)
    graph = reweight(form, weights)
    solution = solve(graph, method, activation, clamp=clamp)

    copies = Copies(solution.sigma_w, solution.sigma_b, seed)
    build = partial(_activation, solution, function)
    rewritten = rewrite(reading, form, weights, build, copies)
    converted = keras.Model(rewritten.input, rewritten.output, name=model.name)
    demand_same(graph, read(converted).graph)
    if model.compiled:
        converted.compile_from_config(model.get_compile_config())
    converted.skipless_report = ConversionReport(
        method,
        solution,
        graph,
        predict(graph, solution),
        tuple(rewritten.changes),
        (*reading.notes.approximate, *approximations(graph)),
        tuple(copies.untouched),
    )
    return converted


def _activation(
    solution: Solution, function: Function | None, name: str, dtype: str
) -> ShapedActivation:
    return ShapedActivation.from_solution(solution, function, name=name, dtype=dtype)


def _demand_no_probability(reading: Reading) -> None:
    """Refuse to replace a sigmoid that makes a probability of the output."""
    output, names = reading.record.output, list(reading.activations.values())
    if reading.activations.get(output) == "sigmoid" and names.count("sigmoid") == 1 < len(names):
        raise UnsupportedModelError(
            f"{output.call.path} ends the model with a sigmoid, which conversion would replace "
            "like any other activation. Leave it to the loss: remove it, and use "
            "keras.losses.BinaryCrossentropy(from_logits=True)."
        )

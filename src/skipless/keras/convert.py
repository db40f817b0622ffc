"""A model shaped in one line: convert(model, example, method) -> model.

The recorded model is written again as a Functional one, of layers made from the old configurations.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import Any, ParamSpec

import keras
from keras import layers, ops

from skipless._deprecated import warn_renamed
from skipless.core.activations import Activation
from skipless.core.arguments import require_function
from skipless.core.convert import Writer, plan, write
from skipless.core.solution import DKS, EOC, TAT, Method
from skipless.core.trace import UnsupportedModelError

from .activations import Function, ShapedActivation, WeightedAdd
from .init import initializers_for, seed_source
from .operations import AFFINE, is_stock
from .record import Call, Tensor
from .trace import Reading, read

P = ParamSpec("P")


def _method_may_be_second(convert: Callable[P, keras.Model]) -> Callable[P, keras.Model]:
    """`convert`, which in release 0.1 had the method before the example."""

    @wraps(convert)
    def call(*args: P.args, **kwargs: P.kwargs) -> keras.Model:
        given = list(args)
        if len(given) == 2 and isinstance(given[1], TAT | DKS | EOC):
            warn_renamed("convert(model, method)", "convert(model, method=method)")
            return convert(given[0], method=given[1], **kwargs)  # pyright: ignore[reportCallIssue]
        return convert(*args, **kwargs)

    return call


@_method_may_be_second
def convert(
    model: keras.Model,
    example: object = None,
    method: Method = TAT(),  # noqa: B008 - frozen, so that sharing it is safe
    *,
    activation: str | Activation = "leaky_relu",
    shortcut_weight: float | None = None,
    function: Function | None = None,
    clamp: bool = False,
    seed: int | None = None,
) -> keras.Model:
    """A new Functional model like `model`, shaped by `method`; its `skipless_report` says how.

    It is changed as by `skipless.torch.convert`, whose arguments these are. The activation of a
    layer becomes a layer behind it, and a sum a `WeightedAdd`.

    As with `keras.models.clone_model`, layers are made from their configurations, under their
    names, and what `compile` was given is kept. Models inside of the model are written out.

    Only a Sequential model that has not been built needs an `example`, a batch of inputs or its
    shape. A `seed` makes the new weights reproducible.

    >>> hidden = [keras.layers.Dense(8, activation="relu") for _ in range(20)]
    >>> deep = convert(keras.Sequential([keras.Input((8,)), *hidden]), method=TAT(eta=0.9), seed=0)
    >>> round(deep.skipless_report.predicted[-1].c, 6)
    0.9
    """
    require_function("function", function)
    reading = read(model, example)
    planned = plan(reading, method, activation, shortcut_weight, clamp)
    solution = planned.solution
    sigmas = (solution.sigma_w, solution.sigma_b)
    new_seed = seed_source(seed)
    draw = lambda layer, path: initializers_for(layer, path, new_seed, *sigmas)
    shaped = partial(ShapedActivation.from_solution, solution, function)
    writer = _ModelWriter(reading, shaped, draw)
    (output,), changes = write(planned, writer)
    converted = keras.Model(writer.start, output, name=model.name)
    planned.require_same_maps(read(converted).graph)
    if model.compiled:
        converted.compile_from_config(model.get_compile_config())
    converted.skipless_report = planned.report(changes, writer.untouched)
    return converted


class _ModelWriter(Writer[Tensor, Any]):
    """Writes a Functional model by calling copies of layers on symbolic tensors.

    Each layer and operation is made once, from its configuration. Layers with weights lose their
    activation, which becomes a layer of its own, and get `initializers` by layer and path.
    """

    def __init__(
        self,
        reading: Reading,
        shaped: Callable[..., ShapedActivation],
        initializers: Callable[[Any, str], Mapping[str, object]],
    ) -> None:
        self.reading, self.shaped, self.initializers = reading, shaped, initializers
        self.start: Any = None
        self.untouched: list[str] = []
        self._results: dict[tuple[Call, *tuple[int, ...]], list[Any]] = {}
        self._activations: dict[tuple[object, str], ShapedActivation] = {}
        self._with_bias: set[object] = set()
        self._copies: dict[object, Any] = {}
        self._names: set[str] = set()

    def tensors(self) -> Iterator[Tensor]:
        return iter(self.reading.record.tensors)

    def reads(self, tensor: Tensor) -> Sequence[Tensor]:
        return tensor.inputs

    def origin(self, tensor: Tensor) -> str:
        return tensor.call.path

    def input(self, tensor: Tensor) -> Any:
        name = self._free(tensor.call.path, "input")
        self.start = keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=name)
        return self.start

    def copy(self, tensor: Tensor, use: Callable[[Tensor], Any]) -> Any:
        call = tensor.call
        if call.part == "depthwise":  # the layer is called as a whole, at its second part
            return use(tensor.inputs[0])
        if call.part == "activation":  # after the network
            activation = getattr(call.operation, "activation", None)
            name = self._free(f"{call.path.split('/')[-1]}_activation", call.path)
            layer = layers.Activation(activation, name=name, dtype=tensor.dtype)
            return layer(use(tensor.inputs[0]))
        key = (call, *(id(use(a)) for a in tensor.inputs))
        if key not in self._results:  # a call may have several results
            self._results[key] = self._call(call, use)
        return self._results[key][tensor.index]

    def activation(self, tensor: Tensor, x: Any) -> Any:
        """A layer under the name of the one that it replaces, used as often."""
        operation, part = tensor.call.operation, tensor.call.part
        assert operation is not None
        key = (operation, part)
        if key not in self._activations:
            suffix = "_activation" if part == "activation" else ""
            name = self._free(f"{operation.name}{suffix}", f"{tensor.call.path}{suffix}")
            self._activations[key] = self.shaped(name=name, dtype=tensor.dtype)
        return self._activations[key](x)

    def add(self, tensor: Tensor, terms: Sequence[tuple[float, Any]]) -> Any:
        assert tensor.call.operation is not None
        name = self._free(tensor.call.operation.name, tensor.call.path)
        total = WeightedAdd([weight for weight, _ in terms], name=name, dtype=tensor.dtype)
        return total([value for _, value in terms])

    def negative(self, x: Any) -> Any:
        return ops.negative(x)

    def give_bias(self, tensor: Tensor) -> bool:
        layer = tensor.call.operation
        if getattr(layer, "use_bias", True) or layer in self._with_bias:
            return False
        self._with_bias.add(layer)
        return True

    def _call(self, call: Call, use: Callable[[Tensor], Any]) -> list[Any]:
        arguments = keras.tree.flatten((call.args, dict(call.kwargs)))
        if any(isinstance(a, keras.Variable) for a in arguments):
            raise UnsupportedModelError(
                f"{call.path} ({type(call.operation).__name__}) computes with a variable of a "
                "layer of your own, which cannot be re-initialised. Write it as a Dense or "
                "convolution layer."
            )
        copied = self._copy_of(call.operation, call.path)
        argument = lambda a: use(a) if isinstance(a, Tensor) else a
        args: Any = keras.tree.map_structure(argument, call.args)
        kwargs: Any = keras.tree.map_structure(argument, dict(call.kwargs))
        return keras.tree.flatten(copied(*args, **kwargs))

    def _copy_of(self, operation: Any, path: str) -> Any:
        if operation not in self._copies:
            config = operation.get_config()
            if isinstance(operation, layers.Layer):
                config["name"] = self._free(operation.name, path)
            if is_stock(operation, AFFINE):
                config |= {"activation": None, **self.initializers(operation, path)}
                config["use_bias"] = config.get("use_bias", True) or operation in self._with_bias
            elif isinstance(operation, layers.Layer) and operation.trainable_variables:
                self.untouched.append(path)
            self._copies[operation] = type(operation).from_config(config)
        return self._copies[operation]

    def _free(self, name: str, path: str) -> str:
        """A name that no other layer has: the same, or the whole path, or one with a number."""
        whole = path.replace("/", "_")
        numbered = (f"{whole}_{number}" for number in itertools.count(1))
        candidates = itertools.chain((name, whole), numbered)
        free = next(c for c in candidates if c not in self._names)
        self._names.add(free)
        return free

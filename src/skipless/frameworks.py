"""The verbs for a model of any framework: `sk.trace`, `sk.convert`, `sk.check`, `sk.measure`.

Each finds the model's framework from its classes and calls the verb of the same name and arguments
in `skipless.torch`, `skipless.jax` or `skipless.keras`, so none is imported that a model does not
use already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, overload

from skipless.core.graph import Graph
from skipless.core.measure import Check, Measurement
from skipless.core.record import ONE_INPUT, SEVERAL
from skipless.core.solution import Method, Solution

if TYPE_CHECKING:
    import keras
    import torch

    from skipless.core.activations import Activation
    from skipless.torch import ConvertedModel

# By the package that defines a class of the model. Keras first: on PyTorch, its layers are
# `nn.Module`s as well.
_FRAMEWORKS = {"keras": "keras", "torch": "torch", "flax": "jax", "equinox": "jax", "jax": "jax"}


def trace(model: object, *example: object, **native: object) -> Graph:
    """The graph of `model` as the theory sees it, each node with its module and source line.

    Args:
        model: A PyTorch module, a Keras model, or any JAX function or module.
        example: An input of the model; for a JAX function, all of its arguments.
        native: Arguments that one framework alone has, such as JAX's `argnum`.
    """
    return _room(model, example).trace(model, *example, **native)


@overload
def convert(
    model: keras.Model, example: object = ..., method: Method = ..., **options: Any
) -> keras.Model: ...
@overload
def convert(
    model: torch.nn.Module, example: torch.Tensor, method: Method = ..., **options: Any
) -> ConvertedModel: ...
@overload
def convert(model: Any, *example: object, method: Method = ..., **options: Any) -> Any: ...
def convert(
    model: Any,
    *example: Any,
    method: Method | None = None,
    activation: str | Activation = "leaky_relu",
    shortcut_weight: float | None = None,
    clamp: bool = False,
    **native: object,
) -> Any:
    r"""A new model like `model`, shaped by `method`; `skipless_report` says what was changed.

    Normalisation layers are removed, activations shaped, sums normalised, weights re-initialised.
    The details are those of `skipless.torch.convert`, `skipless.keras.convert` and
    `skipless.jax.convert`.

    Args:
        model: A PyTorch module, a Keras model, or any JAX function or Flax NNX module, which is
            left as it is.
        example: An input of the model; for a JAX function, all of its arguments. Keras models that
            know their input shape need none.
        method: `TAT`, `DKS` or `EOC`, with its targets; by default `TAT()`. It may stand after the
            example, too.
        activation: The activation to shape, by name or as an `Activation`.
        shortcut_weight: Residual sums become $w\,x + \sqrt{1-w^2}\,\mathcal R(x)$; 0 removes
            shortcuts, None keeps the proportions of every sum.
        clamp: Take the nearest target within reach instead of raising `UnreachableTargetError`.
        native: Arguments that one framework alone has: `generator` and `trainable_slope` in
            PyTorch, `rngs` in Flax, `seed` in Keras, and `function`.
    """
    native |= {"activation": activation, "shortcut_weight": shortcut_weight, "clamp": clamp}
    if method is not None:
        native["method"] = method
    if not example and "example" not in native:
        example = (None,)
    inputs = example[:1] if method is None and len(example) == 2 else example
    return _room(model, inputs).convert(model, *example, **native)


def check(
    model: object,
    *example: object,
    solution: Solution | None = None,
    cosines: Sequence[float] | None = None,
    seeds: int | Iterable[int] | None = 20,
    pairs: int = 8,
    **native: object,
) -> Check:
    """The q and c values predicted for `model` beside those measured, at every node of its graph.

    Args:
        model: A converted model, or one whose activations are shaped by `solution`.
        example: An input of the model; for a JAX function, all of its arguments.
        solution: What the activations were shaped by, also as the last argument; a converted model
            knows it.
        cosines: The cosine similarities of the pairs of inputs, by default 0.
        seeds: How many draws of the weights to average over, or their seeds; None measures the
            weights as they are.
        pairs: How many pairs of inputs for each draw.
        native: Further arguments of the framework's own `check`, such as `tolerance`.
    """
    if example and isinstance(last := example[-1], Solution):
        solution, example = last, example[:-1]
    return _room(model, example).check(
        model, *example, solution=solution, cosines=cosines, seeds=seeds, pairs=pairs, **native
    )


def measure(
    model: object, *inputs: object, seeds: int | Iterable[int] | None = None, **native: object
) -> Measurement:
    """The q and c values of `model` on pairs of `inputs`, at every node of its graph.

    Args:
        model: A PyTorch module, a Keras model, or any JAX function or module.
        inputs: A batch in which samples 0 and 1 are a pair, as are 2 and 3, and so on; for a JAX
            function, all of its arguments.
        seeds: Draws of the weights to average over; None measures the weights as they are.
        native: Further arguments of the framework's own `measure`, such as `draw`.
    """
    return _room(model, inputs).measure(model, *inputs, seeds=seeds, **native)


def _room(model: object, arguments: Sequence[object]) -> ModuleType:
    """The room of the framework that `model` is written in."""
    if isinstance(model, type):
        raise TypeError(f"Expected a model, got the class {model.__name__}; call it to make one")
    roots = {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
    for root, framework in _FRAMEWORKS.items():
        if root in roots:
            if len(arguments) > 1 and framework != "jax":  # whose functions take parameters, too
                advice = SEVERAL if framework == "torch" else ONE_INPUT
                raise TypeError(f"Expected one input, got {len(arguments)}. {advice}.")
            return import_module(f"skipless.{framework}")
    if not callable(model):
        raise TypeError(
            f"Expected a PyTorch, Keras or JAX model, got {type(model).__name__}"
            + (": Keras 2 is not supported" if "tf_keras" in roots else "")
        )
    if any(type(leaf).__module__.partition(".")[0] == "torch" for leaf in _leaves(arguments)):
        raise TypeError("Expected an nn.Module, got a function of tensors; wrap it in a module")
    return import_module("skipless.jax")  # where a model is any function of arrays


def _leaves(tree: object) -> Iterator[object]:
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        for branch in tree:
            yield from _leaves(branch)
    else:
        yield tree

"""Converted models in files: weights, and a description from which the rest is made again.

A file is in the format of safetensors, which holds numbers and text and runs no code. Its text says
how the model was converted: the method, the activation, the shape of the example. `load` converts a
new original in the same way and puts the weights in; that this gives the same network is checked.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from skipless._install import not_installed
from skipless.core.convert import ConversionReport
from skipless.core.graph import Graph, Sum
from skipless.core.solution import DKS, EOC, TAT
from skipless.files import open_regular, parse, typed, user_path, write_atomically

from .activations import Slopes
from .convert import ConvertedModel, Layout, Recipe, shape
from .example import Example

_METHODS = {cls.__name__: cls for cls in (TAT, DKS, EOC)}
_KEY, _FORMAT = "skipless", 1
_LARGEST = 2**32  # numbers in an example
_CLOSE = 1e-6  # weights of sums, which are solved again


@dataclass(frozen=True)
class _Saved:
    """What a file says besides its weights."""

    format: int
    shape: tuple[int, ...]
    dtype: str
    method: str
    targets: dict[str, Any]
    activation: str
    shortcut_weight: float | None
    clamp: bool
    trainable_slope: Slopes | None
    training: bool
    nodes: dict[str, int]  # of the graph, by kind
    weights: tuple[float, ...]  # of its sums


def save(model: nn.Module, path: str | Path) -> None:
    """Write a converted model into one file, from which `load` rebuilds it.

    The file has the weights and how the model was converted, as JSON, and no code. An activation or
    function of your own, or what is no tensor, such as an optimiser, is not saved.

    >>> import tempfile
    >>> original = lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> x = torch.ones(2, 3)
    >>> from .convert import convert
    >>> model = convert(original(), x, EOC())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, f"{folder}/model.safetensors")
    ...     again = load(f"{folder}/model.safetensors", original)
    >>> torch.equal(again(x), model(x))
    True
    """
    report: object = getattr(model, "skipless_report", None)
    if not isinstance(model, nn.Module) or not isinstance(report, ConversionReport):
        raise TypeError(f"Expected a model that convert returned, got {type(model).__name__}")
    recipe = report.recipe
    if not isinstance(recipe, Recipe) or not isinstance(recipe.activation, str):
        raise ValueError(
            "A model with an activation of your own, or with measured parts, cannot be described "
            "without code. Save it by torch.save, or its state_dict() beside it."
        )
    saved = _Saved(
        format=_FORMAT,
        **asdict(recipe.example),
        method=type(recipe.method).__name__,
        targets=asdict(recipe.method),
        activation=recipe.activation,
        shortcut_weight=recipe.shortcut_weight,
        clamp=recipe.clamp,
        trainable_slope=recipe.trainable_slope,
        training=model.training,
        nodes=_kinds(report.graph),
        weights=_sum_weights(report.graph),
    )
    own = {"memory_format": torch.contiguous_format}  # safetensors needs tensors of their own
    state = {n: t.detach().cpu().clone(**own) for n, t in _distinct(model).items()}
    content = _safetensors().torch.save(state, {_KEY: json.dumps(asdict(saved))})
    write_atomically(user_path(path), content)


def load(path: str | Path, original_factory: Callable[[], nn.Module]) -> ConvertedModel:
    """The model in a file that `save` wrote.

    Args:
        path: The file; it is read within bounds, and no code in it is run.
        original_factory: Builds the original, as it was given to `convert`; its weights do not
            matter. A layer that was replaced after the conversion is to be as it is in the file.
    """
    path = user_path(path)
    try:
        saved, state = _read(path)
        example = _example(saved)
        method = _METHODS[saved.method](**saved.targets)
    except (ValueError, LookupError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is damaged, or no file of sk.torch.save: {reason}") from None
    original = original_factory()
    if not isinstance(original, nn.Module):
        raise TypeError(f"original_factory must return an nn.Module, got {type(original).__name__}")
    layout = Layout(saved.shape, saved.dtype)
    how = saved.activation, saved.shortcut_weight, saved.clamp, saved.trainable_slope
    recipe = Recipe(layout, method, *how)
    try:
        model = shape(original, Example.of(example), recipe, draw=False)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} holds no model of original_factory's: {reason}") from error
    _require_same(path, saved, state, model)
    for name, tensor in _distinct(model).items():  # which may have been cast
        tensor.data = tensor.data.to(state[name].dtype)
    model.load_state_dict(state, strict=False)
    return model.train(saved.training)


def _read(path: Path) -> tuple[_Saved, dict[str, torch.Tensor]]:
    safetensors = _safetensors()
    with open(path, "rb", opener=open_regular):
        pass  # a pipe or a device is refused before anything else opens it
    try:
        with safetensors.safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(_KEY)
            if text is None:
                raise ValueError("it says nothing of a conversion")
            saved = typed(_Saved, parse(text))
            if saved.format != _FORMAT:
                raise ValueError(f"its format is {saved.format}, and this version reads {_FORMAT}")
            return saved, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from None


def _example(saved: _Saved) -> torch.Tensor:
    """An example of the shape that the file names, which takes the memory of one number."""
    dtype = getattr(torch, saved.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"there is no type {saved.dtype!r}")
    sizes = saved.shape
    if not sizes or any(size < 1 for size in sizes) or math.prod(sizes) > _LARGEST:
        raise ValueError(f"an example cannot have the shape {sizes}")
    return torch.zeros(1, dtype=dtype).expand(sizes)


def _require_same(
    path: Path, saved: _Saved, state: dict[str, torch.Tensor], model: ConvertedModel
) -> None:
    """Raise if the model is not the one that was saved."""
    graph, expected = model.skipless_report.graph, _distinct(model)
    what = f"{path} holds another model than original_factory builds: "
    if names := sorted(expected.keys() ^ state.keys()):
        where = "file" if names[0] in state else "model"
        raise ValueError(f"{what}{names[0]} is in the {where} alone")
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape or tensor.is_complex() != state[name].is_complex():
            shapes = f"{tuple(state[name].shape)} in the file, {tuple(tensor.shape)} in the model"
            raise ValueError(f"{what}{name} is {shapes}")
        if tensor.is_floating_point() != state[name].is_floating_point():
            raise ValueError(f"{what}{name} is of type {state[name].dtype} in the file")
    if saved.nodes != _kinds(graph) or not _are_close(saved.weights, _sum_weights(graph)):
        raise ValueError(f"{what}their graphs differ, though their parameters have equal shapes")


def _kinds(graph: Graph) -> dict[str, int]:
    return dict(Counter(type(graph.nodes[index]).__name__ for index in sorted(graph.live)))


def _sum_weights(graph: Graph) -> tuple[float, ...]:
    sums = (graph.nodes[index] for index in sorted(graph.live))
    return tuple(float(weight) for node in sums if isinstance(node, Sum) for weight in node.weights)


def _are_close(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    return len(first) == len(second) and all(
        math.isclose(a, b, abs_tol=_CLOSE) for a, b in zip(first, second, strict=True)
    )


def _distinct(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, those with several names under the first of them."""
    found: dict[int, str] = {}
    state: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        found.setdefault(id(tensor), name)
    return {name: state[name] for name in found.values()}


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise ImportError(not_installed("skipless.torch.save", error.name, "torch")) from None
    return safetensors

"""A PyTorch model as the theory sees it: trace(model, example) -> Graph.

`torch.export` runs the model on the example and records every tensor operation, with the module and
the source line that it came from; `reader` reads that record from input to output.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram

from skipless.core.axes import demand_channels_apart
from skipless.core.graph import Graph

from .axes import Layout
from .operations import WITHOUT_SIZES, called_module, operation
from .reader import Notes, Reader, Step, UnsupportedModelError


def trace(model: nn.Module, example: torch.Tensor) -> Graph:
    """The graph of `model` as it treats `example`, each node with its module path and source line.

    Normalisation layers are passed over: the theory has no use for them. What it does not cover,
    such as attention or products of branches, raises `UnsupportedModelError`.

    >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    >>> trace(mlp, torch.zeros(1, 3)) == Graph.chain(2)
    True
    """
    return read(model, example).graph


@dataclass(frozen=True)
class Reading:
    """A model's graph, and how it lies in the record of the model's operations.

    `inputs` says, for every operation, which tensor each of its arguments was at the time, which
    operations in place may have changed since.
    """

    graph: Graph
    notes: Notes
    program: ExportedProgram
    steps: Mapping[fx.Node, Step]
    inputs: Mapping[fx.Node, Mapping[fx.Node, fx.Node]]
    output: fx.Node

    def tensors(self) -> dict[int, tuple[fx.Node, float]]:
        """For nodes of the graph, a recorded tensor and the factor by which it is larger."""
        found: dict[int, tuple[fx.Node, float]] = {}
        for tensor, step in self.steps.items():
            if step.kind == "input":  # the last one, normalised, is what the network works on
                found[step.node] = (tensor, 1.0)
            elif step.kind != "move":
                found.setdefault(step.node, (tensor, step.scale))
        return found


def read(model: nn.Module, example: torch.Tensor, *, dynamic: bool = False) -> Reading:
    """The graph of `model` in the record of its operations.

    With `dynamic`, sizes that the model does not fix are left open, such as that of the batch.
    """
    if not isinstance(model, nn.Module) or not isinstance(example, torch.Tensor):
        raise TypeError(
            "A model is read with an example of its input, an nn.Module and a tensor; found "
            f"{type(model).__name__} and {type(example).__name__}."
        )
    program = _dynamic_export(model, example) if dynamic else _export(model, example)
    reader = Reader(model, program)
    graph = reader.read()
    assert reader.last is not None
    demand_channels_apart(reader.steps, Layout(reader.inputs))
    return Reading(graph, reader.notes, program, reader.steps, reader.inputs, reader.last)


def _dynamic_export(model: nn.Module, example: torch.Tensor) -> ExportedProgram:
    """The record with as many sizes left open as torch.export manages: all, the batch's, none."""
    # A size of one is taken for a constant.
    batch = torch.cat([example, example]) if example.shape[0] == 1 else example
    program = _export(model, batch)
    if _sizes_are_open(model, program):  # which saves the time of a symbolic record
        return program
    open_dims = [dim for dim, size in enumerate(batch.shape) if size > 1]
    for dims in (open_dims, open_dims[:1]):
        # A second try within `except`, with the first one's frames alive, would fail like it.
        with contextlib.suppress(UnsupportedModelError):
            return _export(model, batch, (dict.fromkeys(dims, Dim.AUTO),))
    return program


def _sizes_are_open(model: nn.Module, program: ExportedProgram) -> bool:
    """Whether no recorded operation was given a size of the example, as `view(2, -1)` is."""
    modules = dict(model.named_modules(remove_duplicate=False))
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    return all(
        operation(node).rstrip("_") in WITHOUT_SIZES
        or type(modules.get(called_module(node)[0])).__module__.startswith("torch.nn.modules")
        for node in calls
    )


def _export(
    model: nn.Module, example: torch.Tensor, sizes: tuple[Mapping[int, object]] | None = None
) -> ExportedProgram:
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        try:
            return torch.export.export(model, (example,), dynamic_shapes=sizes, strict=False)
        except (RuntimeError, TypeError, AttributeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise UnsupportedModelError(
                f"{type(model).__name__} was to be read on an example of shape "
                f"{tuple(example.shape)}, but torch.export cannot record it: {reason}. Check that "
                "model(example) runs, and that no tensor's values decide its course."
            ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No log of what torch.export tries: the error that comes of it says what is the matter."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)

"""A PyTorch model as the theory sees it: trace(model, example) -> Graph.

`torch.export` runs the model on the example and records every tensor operation, with the module and
the source line that it came from; `reader` reads that record from input to output.

Recorded operations as functions of one tensor, for `core` to recognise by their values.

An exported program, read operation by operation into a graph.

Operations with weights become affine nodes, pointwise functions activations, additions sums, and
operations that only move numbers about vanish. For those who rewrite or measure the model, every
tensor keeps its `Step`: what it is to the theory, and which tensors it is made of.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from skipless.core import trace as core
from skipless.core.graph import Graph
from skipless.core.recognise import PROBE, Recognised
from skipless.core.recognise import recognise as recognised_values
from skipless.core.trace import FEW, Notes, Signals, UnsupportedModelError, demand_channels_apart

from .activations import ShapedActivation
from .normalize import PerLocationNormalization
from .operations import (
    AFFINE,
    APPROXIMATE_MOVES,
    CONCATENATIONS,
    MOVES,
    NORMS,
    POINTWISE,
    UNCOVERED,
    UNKNOWN,
    WITHOUT_SIZES,
    Layout,
    Memory,
    called_module,
    operation,
    origin,
    size,
)

Pointwise = Callable[[torch.Tensor], torch.Tensor]


class _NotPointwiseError(Exception):
    """A constant tensor of different numbers takes part."""


def composed(
    node: fx.Node,
    functions: Mapping[fx.Node, Pointwise | None],
    constants: Mapping[fx.Node, torch.Tensor | None],
) -> Pointwise:
    """What `node` computes, as a function of the one tensor that `functions` are functions of."""
    target, multiplies = node.target, operation(node).rstrip("_") == "mul"
    assert callable(target)

    def function(x: torch.Tensor) -> torch.Tensor:
        def argument(a: fx.Node) -> Any:  # what stands for a node is a tensor here
            if a in functions:
                f = functions[a]
                return x if f is None else f(x)
            number = _number(constants[a])
            # A branch that starts at zero, as in ReZero, is one with a factor to be removed.
            return torch.ones_like(number) if multiplies and number == 0.0 else number

        arguments = fx.map_arg(node.args, argument)
        keywords = fx.map_arg(node.kwargs, argument)
        return _functional(target)(*arguments, **keywords)

    return function


def _number(tensor: torch.Tensor | None) -> torch.Tensor:
    """The number that all entries of `tensor` are, as the slopes of a fresh PReLU."""
    if tensor is None or not tensor.numel() or (tensor != tensor.flatten()[0]).any():
        raise _NotPointwiseError
    return tensor.detach().double().flatten()[0]


def constant(
    node: fx.Node, constants: Mapping[fx.Node, torch.Tensor | None]
) -> torch.Tensor | None:
    """The single number that `node` computes from constants, or None."""
    known = [constants.get(a) for a in node.all_input_nodes]
    if any(k is None or k.numel() != 1 for k in known) or not callable(node.target):
        return None
    result = _functional(node.target)(
        *fx.map_arg(node.args, lambda a: constants[a]),
        **fx.map_arg(node.kwargs, lambda a: constants[a]),
    )
    return result if isinstance(result, torch.Tensor) else None


def _functional(target: Callable[..., object]) -> Callable[..., torch.Tensor]:
    """The operation without the side effect of writing into its first argument."""

    def run(first: object, *rest: object, **keywords: object) -> torch.Tensor:
        if isinstance(first, torch.Tensor):
            first = first.clone()
        return target(first, *rest, **keywords)  # pyright: ignore[reportReturnType]

    return run


def recognise(f: Pointwise) -> Recognised | None:
    """The multiple of a known activation, or of the identity, that `f` computes, or None."""
    try:
        return recognised_values(f(torch.from_numpy(PROBE)).detach().double().cpu().numpy())
    except _NotPointwiseError:
        return None


__all__ = ["Notes", "Reader", "Step", "UnsupportedModelError"]

_GROUPS = 6  # where the operators of convolution have their number of groups
_ARITHMETIC = ("add", "sub", "mul", "div")
Step = core.Step[fx.Node]
Value = core.Value[fx.Node, Pointwise]


class Reader(Signals[fx.Node, Pointwise]):
    """Reads an exported program of `model` into a graph, and keeps the steps."""

    def __init__(self, model: nn.Module, program: ExportedProgram) -> None:
        super().__init__()
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.program = program
        self.inputs: dict[fx.Node, dict[fx.Node, fx.Node]] = {}  # what an argument was at the time
        self.last: fx.Node | None = None
        self._constants: dict[fx.Node, torch.Tensor | None] = {}
        self._used: set[fx.Node] = set()  # weights
        self._overwritten: dict[fx.Node, fx.Node] = {}  # by an operation in place
        self._memory = Memory()

    def read(self) -> Graph:
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        state = {**self.program.state_dict, **self.program.constants}
        for node in self.program.graph.nodes:
            if node.op == "placeholder" and specs[node.name].kind is InputKind.USER_INPUT:
                self.input(node, node.name)
            elif node.op == "placeholder":
                tensor = state.get(specs[node.name].target or "")
                self._constants[node] = tensor if isinstance(tensor, torch.Tensor) else None
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._finish(node)
        return self.builder.build()

    def origin(self, tensor: fx.Node) -> str:
        return origin(tensor)

    def sources(self, tensor: fx.Node) -> Sequence[fx.Node]:
        return [a for a in self.inputs[tensor].values() if a in self.values]

    def composed(self, tensor: fx.Node) -> Value:
        now = self.inputs[tensor]
        values = {a: self.values[b] for a, b in now.items() if b in self.values}
        functions = {a: value.function for a, value in values.items()}
        constants = {a: self._constants[b] for a, b in now.items() if b in self._constants}
        source = next(iter(values.values()))
        return Value(source.node, source.place, composed(tensor, functions, constants))

    def recognised(self, tensor: fx.Node, function: Pointwise) -> Recognised | None:
        path, call = called_module(tensor)
        if self._is_shaped(path):
            return Recognised(call, 1.0)
        return recognise(function)

    def _finish(self, node: fx.Node) -> None:
        (results,) = node.args
        assert isinstance(results, (list, tuple))
        nodes = [r for r in results if isinstance(r, fx.Node)]
        tensors = [r for r in nodes if r in self.values]
        if len(tensors) != 1 or len(nodes) != 1:
            raise UnsupportedModelError(
                f"The model returns {len(nodes)} tensors, {len(tensors)} of which depend on its "
                "input, but the theory knows networks with one output. Wrap it in a module that "
                "returns one."
            )
        self.last = self._latest(tensors[0])
        self.output(self.last, node)

    def _call(self, node: fx.Node) -> None:
        now = {a: self._latest(a) for a in node.all_input_nodes}
        self.inputs[node] = now
        inputs = [a for a in now.values() if a in self.values]
        computes = isinstance(node.meta.get("val"), torch.Tensor | list | tuple)
        if not inputs or not computes:  # BatchNorm's count of batches, the size of a tensor
            self._constants[node] = None if inputs else constant(node, self._constants)
            return
        name = operation(node)
        self._read(node, name.rstrip("_"), inputs)
        self._memory.follow(node, inputs[0], name)
        if name.endswith("_") and node.args[0] in self.values:
            if (reader := self._memory.read_later(node, inputs[0])) is not None:
                raise UnsupportedModelError(
                    f"{origin(node)} computes {name} in place, and what it changes is read later, "
                    f"at {origin(reader)}, under another name. Write it out of place: without the "
                    "trailing underscore, or with inplace=False."
                )
            self._overwritten[inputs[0]] = node

    def _latest(self, node: fx.Node) -> fx.Node:
        while node in self._overwritten:
            node = self._overwritten[node]
        return node

    def _read(self, node: fx.Node, name: str, inputs: Sequence[fx.Node]) -> None:
        module = self.modules.get(called_module(node)[0])
        if isinstance(module, PerLocationNormalization):
            self.normalised_input(node, inputs)
        elif name in AFFINE:
            self._layer(node, inputs)
        elif name in NORMS:
            self.norm(node, inputs[0])
        elif name in MOVES or name in APPROXIMATE_MOVES:
            self.move(node, inputs[0], approximate=name if name in APPROXIMATE_MOVES else "")
        elif name in CONCATENATIONS:
            self._concatenation(node)
        elif name in _ARITHMETIC or name in POINTWISE:
            self._arithmetic(node, name, inputs)
        else:
            kind, advice = UNCOVERED.get(name, UNKNOWN)
            raise UnsupportedModelError(
                f"{origin(node)} computes {name}{kind}, for which there are no Q and C maps. "
                f"{advice}"
            )

    def _layer(self, node: fx.Node, inputs: Sequence[fx.Node]) -> None:
        groups = node.args[_GROUPS] if len(node.args) > _GROUPS else 1
        channels = size(inputs[0], 1) // groups if isinstance(groups, int) and groups > 1 else FEW
        self.affine(node, inputs, channels, depthwise=channels == 1 and size(node, 1) == groups)
        weights = [a for a in self.inputs[node] if a.op == "placeholder" and a in self._constants]
        if weights and weights[0] in self._used:
            self.notes.approximate.append(f"weights used again at {origin(node)}")
        self._used.update(weights)

    def _concatenation(self, node: fx.Node) -> None:
        parts, dim = node.args[0], node.args[1] if len(node.args) > 1 else 0
        assert isinstance(parts, (list, tuple))
        assert isinstance(dim, int)
        tensors = [self._latest(p) for p in parts if isinstance(p, fx.Node)]
        self.concat(node, tensors, [float(size(t, dim)) for t in tensors])

    def _arithmetic(self, node: fx.Node, name: str, inputs: Sequence[fx.Node]) -> None:
        """A function of one tensor stays one; different tensors may be added, and no more."""
        for i in inputs:  # a shaped activation is one, whatever is computed before and after it
            into, out_of = called_module(node), called_module(i)
            if into[1] != out_of[1] and (self._is_shaped(into[0]) or self._is_shaped(out_of[0])):
                self.at(i, node)
        places = {self.values[i].place for i in inputs}
        if name in _ARITHMETIC and self._is_input(node, inputs):
            self.set(node, "input", 0, inputs)
        elif len(places) == 1:
            self.pointwise(node)
        elif name in ("add", "sub") and len(inputs) == 2:
            factor = node.kwargs.get("alpha", 1)
            assert isinstance(factor, (int, float))
            self.sum(node, inputs, [1.0, float(factor) if name == "add" else -float(factor)])
        else:
            raise self.product_of_branches(node, name)

    def _is_shaped(self, path: str) -> bool:
        return isinstance(self.modules.get(path), ShapedActivation)

    def _is_input(self, node: fx.Node, inputs: Sequence[fx.Node]) -> bool:
        """Whether this is the input, which constants may standardise, and not a term of a sum."""
        terms = [user for user in node.users if operation(user).rstrip("_") in ("add", "sub")]
        summed = any(len(set(u.all_input_nodes) - set(self._constants)) > 1 for u in terms)
        # What others read as it is, is not standardised: a factor of it weights a shortcut.
        readers = [u for i in inputs for u in i.users if isinstance(u.meta["val"], torch.Tensor)]
        alone = len(inputs) == 1 and len(readers) == 1
        return alone and not summed and self.values[inputs[0]] == Value(0, inputs[0])


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

"""A PyTorch model as the theory sees it: trace(model, example) -> Graph.

`torch.export` runs the model on the example and records every tensor operation, with the module and
the source line that it came from. The record is then read from input to output: operations with
weights become affine nodes, pointwise functions activations, additions sums, and operations that
only move numbers about vanish.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind

from skipless.core.activations import Activation
from skipless.core.graph import Graph, GraphBuilder

from .elementwise import Pointwise, Recognised, recognise
from .operations import (
    AFFINE,
    APPROXIMATE_MOVES,
    KINDS,
    MOVES,
    NORMS,
    POINTWISE,
    operation,
    origin,
    shape,
)


class UnsupportedModelError(ValueError):
    """The model computes something for which there are no Q and C maps."""


@dataclass(frozen=True)
class Value:
    """A tensor of the record: a pointwise function of the tensor at a node of the graph."""

    node: int
    function: Pointwise | None = None  # the identity, if None


@dataclass(frozen=True)
class Notes:
    """What the graph does not show: normalisation layers, and where it only approximates."""

    norms: list[str] = field(default_factory=list[str])
    approximate: list[str] = field(default_factory=list[str])


def trace(model: nn.Module, example: torch.Tensor) -> Graph:
    """The graph of `model` as it treats `example`, each node with its module path and source line.

    Normalisation layers are passed over: the theory has no use for them. What it does not cover,
    such as attention or products of branches, raises `UnsupportedModelError`.

    >>> mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    >>> trace(mlp, torch.zeros(1, 3)) == Graph.chain(2)
    True
    """
    return read(model, example)[0]


def read(model: nn.Module, example: torch.Tensor) -> tuple[Graph, Notes]:
    """The graph and the notes on what it leaves out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(model, (example,), strict=False)
        except (RuntimeError, TypeError, AttributeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise UnsupportedModelError(
                f"{type(model).__name__} was to be read on an example of shape "
                f"{tuple(example.shape)}, but torch.export cannot record it: {reason}. Check that "
                "model(example) runs, and that no tensor's values decide its course."
            ) from error
    reader = _Reader(program)
    return reader.graph(), reader.notes


class _Reader:
    """Reads an exported program, node by node, into a graph."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.program = program
        self.builder = GraphBuilder()
        self.notes = Notes()
        self.values: dict[fx.Node, Value] = {}
        self.constants: dict[fx.Node, torch.Tensor | None] = {}
        self.activations: dict[tuple[int, Activation], int] = {}
        self.overwritten: dict[fx.Node, fx.Node] = {}  # by an operation in place
        self.inputs: dict[fx.Node, dict[fx.Node, fx.Node]] = {}  # what an argument was at the time

    def graph(self) -> Graph:
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._output(node)
        return self.builder.build()

    def _placeholder(self, node: fx.Node) -> None:
        (spec,) = (s for s in self.program.graph_signature.input_specs if s.arg.name == node.name)
        if spec.kind is InputKind.USER_INPUT:
            if self.values:
                raise UnsupportedModelError(
                    "The model takes several inputs, but the theory knows networks with one. "
                    "Wrap it in a module that takes one tensor."
                )
            self.values[node] = Value(self.builder.input(origin=node.name))
        else:
            target = spec.target or ""
            state = {**self.program.state_dict, **self.program.constants}
            tensor = state.get(target)
            self.constants[node] = tensor if isinstance(tensor, torch.Tensor) else None

    def _output(self, node: fx.Node) -> None:
        (results,) = node.args
        assert isinstance(results, (list, tuple))
        traced = [self._latest(r) for r in results if isinstance(r, fx.Node) and r in self.values]
        if len(traced) != 1:
            raise UnsupportedModelError(
                f"The model returns {len(traced)} tensors that depend on its input, but the theory "
                "knows networks with one output. Wrap it in a module that returns one."
            )
        last = self._at(traced[0], node)
        if last != len(self.builder.nodes) - 1:  # dead ends come after the output: close it off
            self.builder.sum([last], [1.0])

    def _call(self, node: fx.Node) -> None:
        name = operation(node)
        now = {a: self._latest(a) for a in node.all_input_nodes}
        self.inputs[node] = now
        inputs = [a for a in now.values() if a in self.values]
        if not inputs:  # bookkeeping on constants, such as BatchNorm's count of batches
            self.constants[node] = self._constant(node)
            return
        self.values[node] = self._value(node, name, inputs)
        if name.endswith("_") and node.args[0] in self.values:
            self.overwritten[inputs[0]] = node

    def _latest(self, node: fx.Node) -> fx.Node:
        while node in self.overwritten:
            node = self.overwritten[node]
        return node

    def _value(self, node: fx.Node, name: str, inputs: Sequence[fx.Node]) -> Value:
        plain = name.rstrip("_")
        if plain in AFFINE:
            return self._affine(node, inputs)
        if plain in NORMS:
            self.notes.norms.append(origin(node))
            return self.values[inputs[0]]
        if plain in MOVES or plain in APPROXIMATE_MOVES:
            if plain in APPROXIMATE_MOVES:
                self.notes.approximate.append(f"{plain} at {origin(node)}")
            return Value(self._at(inputs[0], node))
        if plain in ("cat", "concat", "concatenate"):
            return self._concat(node)
        if plain == "getitem":
            return self.values[inputs[0]]
        if plain in ("add", "sub", "mul", "div") or plain in POINTWISE:
            return self._pointwise(node, plain, inputs)
        kind = KINDS.get(plain)
        raise UnsupportedModelError(
            f"{origin(node)} computes {plain}"
            + (f", {kind}," if kind else "")
            + " for which there are no Q and C maps. Leave that part out of the traced module, or "
            "shape the parts before and after it on their own."
        )

    def _affine(self, node: fx.Node, inputs: Sequence[fx.Node]) -> Value:
        if len(inputs) > 1:
            raise UnsupportedModelError(
                f"{origin(node)} multiplies two tensors that both depend on the input, as "
                "attention does, and the theory knows products with weights only. Leave that part "
                "out of the traced module."
            )
        return Value(self.builder.affine(self._at(inputs[0], node), origin=origin(node)))

    def _concat(self, node: fx.Node) -> Value:
        parts, dim = node.args[0], node.args[1] if len(node.args) > 1 else 0
        assert isinstance(parts, (list, tuple))
        assert isinstance(dim, int)
        nodes = [self._latest(p) for p in parts if isinstance(p, fx.Node)]
        if any(p not in self.values for p in nodes):
            raise UnsupportedModelError(
                f"{origin(node)} concatenates the signal with a constant, which the theory does "
                "not cover. Append it to the input instead."
            )
        widths = [float(shape(p)[dim]) for p in nodes]
        indices = [self._at(p, node) for p in nodes]
        return Value(self.builder.concat(indices, widths, origin=origin(node)))

    def _pointwise(self, node: fx.Node, name: str, inputs: Sequence[fx.Node]) -> Value:
        """A function of one tensor stays one; different tensors may be added, and no more."""
        # What is already recognisable becomes a node first, so that sums see separate terms.
        sources = {self.values[i].node for i in inputs}
        if len(sources) == 1:
            return Value(sources.pop(), self._composed(node))
        if name not in ("add", "sub") or len(inputs) != 2:
            raise UnsupportedModelError(
                f"{origin(node)} combines two branches by {name}, and the theory knows weighted "
                "sums and concatenations only. Replace a gate by a sum, or leave that part out of "
                "the traced module."
            )
        factor = node.kwargs.get("alpha", 1)
        assert isinstance(factor, (int, float))
        weights = [1.0, float(factor) if name == "add" else -float(factor)]
        terms = [self._scaled(i, node) for i in inputs]
        indices = [index for index, _ in terms]
        scaled = [w * s for w, (_, s) in zip(weights, terms, strict=True)]
        return Value(self.builder.sum(indices, scaled, origin=origin(node)))

    def _composed(self, node: fx.Node) -> Pointwise:
        """The operation of `node` as a function of the one tensor that its inputs depend on."""
        now = self.inputs[node]
        functions = {a: self.values[b].function for a, b in now.items() if b in self.values}
        constants = {a: self.constants[b] for a, b in now.items() if b in self.constants}
        target = node.target
        assert callable(target)
        functional = _functional(target)

        def composed(x: torch.Tensor) -> torch.Tensor:
            def argument(a: fx.Node) -> Any:  # what stands for a node is a tensor here
                if a in functions:
                    f = functions[a]
                    return x if f is None else f(x)
                tensor = constants[a]
                if tensor is None or tensor.numel() != 1:
                    raise _NotPointwiseError
                return tensor.detach().double().reshape(())

            arguments = fx.map_arg(node.args, argument)
            keywords = fx.map_arg(node.kwargs, argument)
            return functional(*arguments, **keywords)

        return composed

    def _scaled(self, tensor: fx.Node, user: fx.Node) -> tuple[int, float]:
        """The graph's node for `tensor`, and a factor by which it is to be multiplied."""
        value = self.values[tensor]
        if value.function is None:
            return value.node, 1.0
        found = _recognised(value.function)
        if found is None and self._step_back(tensor):
            return self._scaled(tensor, user)
        if found is None:
            raise UnsupportedModelError(
                f"{origin(tensor)} computes a pointwise function that is none of the known "
                f"activations, nor a multiple of one (used at {origin(user)}). If it is an "
                "activation of your own, give it to `solve` as an Activation; if it adds or "
                "multiplies by a constant tensor, leave that out."
            )
        index = value.node
        if found.phi is not None:
            key = (value.node, found.phi)
            if (
                key not in self.activations
            ):  # a multiple of φ(x) beside φ(x) itself is one activation
                made = self.builder.activation(value.node, origin=origin(tensor))
                self.activations[key] = made
            index = self.activations[key]
        self.values[tensor] = Value(index, None if found.scale == 1.0 else _times(found.scale))
        return index, found.scale

    def _step_back(self, tensor: fx.Node) -> bool:
        """Whether `tensor` became a function of a later node: of its input, not of its source.

        Two activations in a row are no known activation; the first one then becomes a node.
        """
        inputs = {a for a in self.inputs[tensor].values() if a in self.values}
        if len(inputs) != 1:
            return False
        (before,) = inputs
        if self.values[before].function is None:
            return False
        index, _ = self._scaled(before, tensor)
        self.values[tensor] = Value(index, self._composed(tensor))
        return True

    def _at(self, tensor: fx.Node, user: fx.Node) -> int:
        """The graph's node for `tensor` itself, with a sum of one term for a factor."""
        index, scale = self._scaled(tensor, user)
        if scale != 1.0:
            index = self.builder.sum([index], [scale], origin=origin(tensor))
            self.values[tensor] = Value(index)
        return index

    def _constant(self, node: fx.Node) -> torch.Tensor | None:
        known = [self.constants.get(a) for a in node.all_input_nodes]
        if any(k is None or k.numel() != 1 for k in known) or not callable(node.target):
            return None
        result = _functional(node.target)(
            *fx.map_arg(node.args, lambda a: self.constants[a]),
            **fx.map_arg(node.kwargs, lambda a: self.constants[a]),
        )
        return result if isinstance(result, torch.Tensor) else None


class _NotPointwiseError(Exception):
    """A constant tensor of many numbers takes part."""


def _recognised(function: Pointwise) -> Recognised | None:
    try:
        return recognise(function)
    except _NotPointwiseError:
        return None


def _times(scale: float) -> Pointwise:
    return lambda x: scale * x


def _functional(target: Callable[..., object]) -> Callable[..., torch.Tensor]:
    """The operation without the side effect of writing into its first argument."""

    def run(first: object, *rest: object, **keywords: object) -> torch.Tensor:
        if isinstance(first, torch.Tensor):
            first = first.clone()
        return target(first, *rest, **keywords)  # pyright: ignore[reportReturnType]

    return run

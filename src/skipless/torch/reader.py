"""An exported program, read operation by operation into a graph.

Operations with weights become affine nodes, pointwise functions activations, additions sums, and
operations that only move numbers about vanish. For those who rewrite or measure the model, every
tensor keeps its `Step`: what it is to the theory, and which tensors it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from skipless.core.graph import Graph, GraphBuilder

from .activations import ShapedActivation
from .elementwise import Pointwise, Recognised, composed, constant, recognise
from .memory import Memory
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
    called_module,
    operation,
    origin,
    size,
)

_GROUPS = 6  # where the operators of convolution have their number of groups
_FEW = 16  # channels in a group do not make their weighted sums normal
_ARITHMETIC = ("add", "sub", "mul", "div")
Kind = Literal["input", "affine", "norm", "move", "concat", "sum", "activation", "scale"]


class UnsupportedModelError(ValueError):
    """The model computes something for which there are no Q and C maps."""


@dataclass(frozen=True)
class Value:
    """A tensor as a pointwise function of the tensor at a `place`, whose node is in the graph."""

    node: int
    place: fx.Node
    function: Pointwise | None = None  # the identity, if None


@dataclass(frozen=True)
class Step:
    """How a tensor came about: an operation of this kind on `inputs`, as they were at that time.

    It is `scale` times what the graph has at `node`. The input of an activation is the tensor that
    the whole function is applied to, by however many operations it was written.
    """

    kind: Kind
    node: int
    inputs: tuple[fx.Node, ...] = ()
    scale: float = 1.0


@dataclass(frozen=True)
class Notes:
    """What the graph does not show: normalisation layers, and where it only approximates."""

    norms: list[str] = field(default_factory=list[str])
    approximate: list[str] = field(default_factory=list[str])


class Reader:
    """Reads an exported program of `model` into a graph, and keeps the steps."""

    def __init__(self, model: nn.Module, program: ExportedProgram) -> None:
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.program = program
        self.builder = GraphBuilder()
        self.notes = Notes()
        self.steps: dict[fx.Node, Step] = {}
        self.inputs: dict[fx.Node, dict[fx.Node, fx.Node]] = {}  # what an argument was at the time
        self.output: fx.Node | None = None
        self._values: dict[fx.Node, Value] = {}
        self._constants: dict[fx.Node, torch.Tensor | None] = {}
        self._activations: dict[tuple[fx.Node, object], int] = {}
        self._narrow: set[int] = set()
        self._used: set[fx.Node] = set()  # weights
        self._overwritten: dict[fx.Node, fx.Node] = {}  # by an operation in place
        self._memory = Memory()

    def read(self) -> Graph:
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        state = {**self.program.state_dict, **self.program.constants}
        for node in self.program.graph.nodes:
            if node.op == "placeholder" and specs[node.name].kind is InputKind.USER_INPUT:
                self._user_input(node)
            elif node.op == "placeholder":
                tensor = state.get(specs[node.name].target or "")
                self._constants[node] = tensor if isinstance(tensor, torch.Tensor) else None
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._finish(node)
        return self.builder.build()

    def _user_input(self, node: fx.Node) -> None:
        if self._values:
            raise UnsupportedModelError(
                "The model takes several inputs, but the theory knows networks with one. "
                "Wrap it in a module that takes one tensor."
            )
        self._set(node, "input", self.builder.input(origin=node.name))

    def _finish(self, node: fx.Node) -> None:
        (results,) = node.args
        assert isinstance(results, (list, tuple))
        nodes = [r for r in results if isinstance(r, fx.Node)]
        tensors = [r for r in nodes if r in self._values]
        if len(tensors) != 1 or len(nodes) != 1:
            raise UnsupportedModelError(
                f"The model returns {len(nodes)} tensors, {len(tensors)} of which depend on its "
                "input, but the theory knows networks with one output. Wrap it in a module that "
                "returns one."
            )
        self.output = self._latest(tensors[0])
        last = self._at(self.output, node)
        if last != len(self.builder.nodes) - 1:  # dead ends come after the output: close it off
            self.builder.sum([last], [1.0])

    def _call(self, node: fx.Node) -> None:
        now = {a: self._latest(a) for a in node.all_input_nodes}
        self.inputs[node] = now
        inputs = [a for a in now.values() if a in self._values]
        computes = isinstance(node.meta.get("val"), torch.Tensor | list | tuple)
        if not inputs or not computes:  # BatchNorm's count of batches, the size of a tensor
            self._constants[node] = None if inputs else constant(node, self._constants)
            return
        name = operation(node)
        self._read(node, name.rstrip("_"), inputs)
        self._memory.follow(node, inputs[0], name)
        if name.endswith("_") and node.args[0] in self._values:
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

    def _set(self, node: fx.Node, kind: Kind, index: int, inputs: Sequence[fx.Node] = ()) -> None:
        """The tensor `node` is what the graph has at `index`."""
        self.steps[node] = Step(kind, index, tuple(inputs))
        self._values[node] = Value(index, node)

    def _read(self, node: fx.Node, name: str, inputs: Sequence[fx.Node]) -> None:
        module = self.modules.get(called_module(node)[0])
        if isinstance(module, PerLocationNormalization):
            self._normalise_input(node, inputs)
        elif name in AFFINE:
            self._affine(node, inputs)
        elif name in NORMS:
            self.notes.norms.append(origin(node))
            self._set(node, "norm", self._at(inputs[0], node), inputs[:1])
        elif name in MOVES or name in APPROXIMATE_MOVES:
            if name in APPROXIMATE_MOVES:
                self.notes.approximate.append(f"{name} at {origin(node)}")
            self._set(node, "move", self._at(inputs[0], node), inputs[:1])
        elif name in CONCATENATIONS:
            self._concat(node)
        elif name in _ARITHMETIC or name in POINTWISE:
            self._pointwise(node, name, inputs)
        else:
            kind, advice = UNCOVERED.get(name, UNKNOWN)
            raise UnsupportedModelError(
                f"{origin(node)} computes {name}{kind}, for which there are no Q and C maps. "
                f"{advice}"
            )

    def _normalise_input(self, node: fx.Node, inputs: Sequence[fx.Node]) -> None:
        """The network, to the theory, begins behind the layer that makes its inputs q = 1."""
        if any(self._values[i].node != 0 for i in inputs):
            raise UnsupportedModelError(
                f"{origin(node)} normalises per location inside of the network, but the theory "
                "knows that for its input only. Make it the first layer."
            )
        self._set(node, "input", 0, inputs)

    def _affine(self, node: fx.Node, inputs: Sequence[fx.Node]) -> None:
        if len(inputs) > 1:
            raise UnsupportedModelError(
                f"{origin(node)} multiplies two tensors that both depend on the input, as "
                "attention does, and the theory knows products with weights only. Leave that part "
                "out of the traced module."
            )
        groups = node.args[_GROUPS] if len(node.args) > _GROUPS else 1
        channels = size(inputs[0], 1) // groups if isinstance(groups, int) and groups > 1 else _FEW
        before = self._at(inputs[0], node)
        depthwise = channels == 1 and size(node, 1) == groups
        index = self.builder.affine(before, mixes=not depthwise, origin=origin(node))
        self._set(node, "affine", index, inputs)
        if channels < _FEW and not depthwise:
            self._narrow.add(index)
        weights = [a for a in self.inputs[node] if a.op == "placeholder" and a in self._constants]
        if weights and weights[0] in self._used:
            self.notes.approximate.append(f"weights used again at {origin(node)}")
        self._used.update(weights)

    def _concat(self, node: fx.Node) -> None:
        parts, dim = node.args[0], node.args[1] if len(node.args) > 1 else 0
        assert isinstance(parts, (list, tuple))
        assert isinstance(dim, int)
        tensors = [self._latest(p) for p in parts if isinstance(p, fx.Node)]
        if any(t not in self._values for t in tensors):
            raise UnsupportedModelError(
                f"{origin(node)} concatenates the signal with a constant, which the theory does "
                "not cover. Append it to the input instead."
            )
        widths = [float(size(t, dim)) for t in tensors]
        indices = [self._at(t, node) for t in tensors]
        index = self.builder.concat(indices, widths, origin=origin(node))
        self._set(node, "concat", index, tensors)

    def _pointwise(self, node: fx.Node, name: str, inputs: Sequence[fx.Node]) -> None:
        """A function of one tensor stays one; different tensors may be added, and no more."""
        for i in inputs:  # a shaped activation is one, whatever is computed before and after it
            into, out_of = called_module(node), called_module(i)
            if into[1] != out_of[1] and (self._is_shaped(into[0]) or self._is_shaped(out_of[0])):
                self._at(i, node)
        places = {self._values[i].place for i in inputs}
        if name in _ARITHMETIC and self._is_input(node, inputs):
            self._set(node, "input", 0, inputs)
        elif len(places) == 1:
            self._values[node] = self._composed(node)
        elif name in ("add", "sub") and len(inputs) == 2:
            self._sum(node, name, inputs)
        else:
            raise UnsupportedModelError(
                f"{origin(node)} combines two branches by {name}, and the theory knows weighted "
                "sums and concatenations only. Replace a gate by a sum, or leave that part out of "
                "the traced module."
            )

    def _sum(self, node: fx.Node, name: str, inputs: Sequence[fx.Node]) -> None:
        factor = node.kwargs.get("alpha", 1)
        assert isinstance(factor, (int, float))
        weights = [1.0, float(factor) if name == "add" else -float(factor)]
        terms = [self._scaled(i, node) for i in inputs]
        indices = [index for index, _ in terms]
        if indices[0] == indices[1]:
            raise UnsupportedModelError(
                f"{origin(node)} adds a tensor to a rearrangement of itself, and the theory knows "
                "sums of independent branches only. Put a layer with weights into one of them."
            )
        scaled = [w * s for w, (_, s) in zip(weights, terms, strict=True)]
        self._set(node, "sum", self.builder.sum(indices, scaled, origin=origin(node)), inputs)

    def _is_shaped(self, path: str) -> bool:
        return isinstance(self.modules.get(path), ShapedActivation)

    def _is_input(self, node: fx.Node, inputs: Sequence[fx.Node]) -> bool:
        """Whether this is the input, which constants may standardise, and not a term of a sum."""
        terms = [user for user in node.users if operation(user).rstrip("_") in ("add", "sub")]
        summed = any(len(set(u.all_input_nodes) - set(self._constants)) > 1 for u in terms)
        return not summed and len(inputs) == 1 and self._values[inputs[0]] == Value(0, inputs[0])

    def _composed(self, node: fx.Node) -> Value:
        """The operation of `node` as a function of the one tensor that its inputs depend on."""
        now = self.inputs[node]
        values = {a: self._values[b] for a, b in now.items() if b in self._values}
        functions = {a: value.function for a, value in values.items()}
        constants = {a: self._constants[b] for a, b in now.items() if b in self._constants}
        source = next(iter(values.values()))
        return Value(source.node, source.place, composed(node, functions, constants))

    def _scaled(self, tensor: fx.Node, user: fx.Node) -> tuple[int, float]:
        """The graph's node for `tensor`, and a factor by which it is to be multiplied."""
        value = self._values[tensor]
        if value.function is None:
            return value.node, 1.0
        if tensor in self.steps:
            step = self.steps[tensor]
            return step.node, step.scale
        found = self._recognised(tensor, value.function)
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
            key = (value.place, found.phi)
            if key not in self._activations:  # a multiple of φ(x) beside φ(x) is one activation
                made = self.builder.activation(value.node, origin=origin(tensor))
                self._activations[key] = made
                if value.node in self._narrow:
                    self.notes.approximate.append(f"few weights an output before {origin(tensor)}")
            index = self._activations[key]
        kind = "scale" if found.phi is None else "activation"
        self.steps[tensor] = Step(kind, index, (value.place,), found.scale)
        if found.scale == 1.0:
            self._values[tensor] = Value(index, tensor)
        return index, found.scale

    def _recognised(self, tensor: fx.Node, function: Pointwise) -> Recognised | None:
        path, call = called_module(tensor)
        if self._is_shaped(path):
            return Recognised(call, 1.0)
        return recognise(function)

    def _step_back(self, tensor: fx.Node) -> bool:
        """Whether `tensor` became a function of a later node: of its input, not of its source.

        Two activations in a row are no known activation; the first one then becomes a node.
        """
        inputs = {a for a in self.inputs[tensor].values() if a in self._values}
        if len(inputs) != 1:
            return False
        (before,) = inputs
        if self._values[before].function is None:
            return False
        self._at(before, tensor)
        self._values[tensor] = self._composed(tensor)
        return True

    def _at(self, tensor: fx.Node, user: fx.Node) -> int:
        """The graph's node for `tensor` itself, with a sum of one term for a factor."""
        index, scale = self._scaled(tensor, user)
        if self._values[tensor].function is not None:
            index = self.builder.sum([index], [scale], origin=origin(tensor))
            self._values[tensor] = Value(index, tensor)
        return index

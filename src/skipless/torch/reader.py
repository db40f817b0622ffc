"""An exported program, read operation by operation into a graph.

Operations with weights become affine nodes, pointwise functions activations, additions sums, and
operations that only move numbers about vanish. For those who rewrite or measure the model, every
tensor keeps its `Step`: what it is to the theory, and which tensors it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from skipless.core import signals
from skipless.core.graph import Graph
from skipless.core.recognise import Recognised
from skipless.core.signals import FEW, Notes, Signals, UnsupportedModelError

from .activations import ShapedActivation
from .elementwise import Pointwise, composed, constant, recognise
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

__all__ = ["Notes", "Reader", "Step", "UnsupportedModelError"]

_GROUPS = 6  # where the operators of convolution have their number of groups
_ARITHMETIC = ("add", "sub", "mul", "div")
Step = signals.Step[fx.Node]
Value = signals.Value[fx.Node, Pointwise]


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

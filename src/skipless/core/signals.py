"""Signals: the reader that JAX still uses, until it is ported to `trace.read`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .graph import GraphBuilder
from .recognise import Recognised
from .trace import (
    FEW,
    Kind,
    Notes,
    Step,
    UnsupportedModelError,
)

T = TypeVar("T", bound=Hashable)  # a framework's own name for a tensor
F = TypeVar("F")  # its functions of one tensor


@dataclass(frozen=True)
class Value(Generic[T, F]):
    """A tensor as a pointwise function of the tensor at a `place`, whose node is in the graph."""

    node: int
    place: T
    function: F | None = None  # the identity, if None


class Signals(ABC, Generic[T, F]):
    """The tensors that depend on the input, as they are met, and the graph that they make."""

    def __init__(self) -> None:
        self.builder = GraphBuilder()
        self.notes = Notes()
        self.steps: dict[T, Step[T]] = {}
        self.values: dict[T, Value[T, F]] = {}
        self._activations: dict[tuple[T, object], int] = {}
        self._narrow: set[int] = set()

    @abstractmethod
    def origin(self, tensor: T) -> str:
        """Where in the user's model `tensor` is computed."""

    @abstractmethod
    def composed(self, tensor: T) -> Value[T, F]:
        """The pointwise operation of `tensor` as a function of the one tensor it depends on.

        That is the place of the values of its sources.
        """

    @abstractmethod
    def sources(self, tensor: T) -> Sequence[T]:
        """The tensors with a value that the pointwise operation of `tensor` reads."""

    @abstractmethod
    def recognised(self, tensor: T, function: F) -> Recognised | None:
        """Which activation, or factor, `function` is."""

    def set(self, tensor: T, kind: Kind, index: int, inputs: Sequence[T] = ()) -> None:
        """`tensor` is what the graph has at `index`."""
        self.steps[tensor] = Step(kind, index, tuple(inputs))
        self.values[tensor] = Value(index, tensor)

    def input(self, tensor: T, name: str = "") -> None:
        """The network's input, of which there is one."""
        if self.values:
            raise UnsupportedModelError(
                "The model takes several inputs, but the theory knows networks with one. "
                "Wrap it in a module that takes one tensor."
            )
        self.set(tensor, "input", self.builder.input(origin=name))

    def normalised_input(self, tensor: T, inputs: Sequence[T]) -> None:
        """The network, to the theory, begins behind the layer that makes its inputs q = 1."""
        if any(self.values[i].node != 0 for i in inputs):
            raise UnsupportedModelError(
                f"{self.origin(tensor)} normalises per location inside of the network, but the "
                "theory knows that for its input only. Make it the first layer."
            )
        self.set(tensor, "input", 0, inputs)

    def affine(self, tensor: T, inputs: Sequence[T], channels: int, depthwise: bool) -> None:
        """A layer with weights, each output of which reads `channels` channels of its input."""
        if len(inputs) > 1:
            raise UnsupportedModelError(
                f"{self.origin(tensor)} multiplies two tensors that both depend on the input, as "
                "attention does, and the theory knows products with weights only. Leave that part "
                "out of the traced module."
            )
        before = self.at(inputs[0], tensor)
        index = self.builder.affine(before, mixes=not depthwise, origin=self.origin(tensor))
        self.set(tensor, "affine", index, inputs)
        if channels < FEW and not depthwise:
            self._narrow.add(index)

    def move(self, tensor: T, source: T, *, approximate: str = "") -> None:
        """Numbers that only change their places, exactly or as the name in `approximate` does."""
        if approximate:
            self.notes.approximate.append(f"{approximate} at {self.origin(tensor)}")
        self.set(tensor, "move", self.at(source, tensor), (source,))

    def norm(self, tensor: T, source: T) -> None:
        """A normalisation layer, which is passed over: the theory has no use for it."""
        self.notes.norms.append(self.origin(tensor))
        self.set(tensor, "norm", self.at(source, tensor), (source,))

    def concat(self, tensor: T, parts: Sequence[T], widths: Sequence[float]) -> None:
        """Tensors side by side, with their numbers of channels."""
        if any(part not in self.values for part in parts):
            raise UnsupportedModelError(
                f"{self.origin(tensor)} concatenates the signal with a constant, which the theory "
                "does not cover. Append it to the input instead."
            )
        indices = [self.at(part, tensor) for part in parts]
        index = self.builder.concat(indices, widths, origin=self.origin(tensor))
        self.set(tensor, "concat", index, parts)

    def sum(self, tensor: T, inputs: Sequence[T], weights: Sequence[float]) -> None:
        """A weighted sum of different tensors."""
        terms = [self.scaled(i, tensor) for i in inputs]
        indices = [index for index, _ in terms]
        if len(set(indices)) < len(indices):
            raise UnsupportedModelError(
                f"{self.origin(tensor)} adds a tensor to a rearrangement of itself, and the theory "
                "knows sums of independent branches only. Put a layer with weights into one of "
                "them."
            )
        scaled = [weight * scale for weight, (_, scale) in zip(weights, terms, strict=True)]
        index = self.builder.sum(indices, scaled, origin=self.origin(tensor))
        self.set(tensor, "sum", index, inputs)

    def pointwise(self, tensor: T) -> None:
        """A function of one tensor, which remains one until it is known what reads it."""
        self.values[tensor] = self.composed(tensor)

    def product_of_branches(self, tensor: T, name: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.origin(tensor)} combines two branches by {name}, and the theory knows weighted "
            "sums and concatenations only. Replace a gate by a sum, or leave that part out of the "
            "traced module."
        )

    def output(self, tensor: T, user: T) -> None:
        """The network's output, at which the graph ends."""
        last = self.at(tensor, user)
        if last != len(self.builder.nodes) - 1:  # dead ends come after the output: close it off
            self.builder.sum([last], [1.0])

    def scaled(self, tensor: T, user: T) -> tuple[int, float]:
        """The graph's node for `tensor`, and a factor by which it is to be multiplied."""
        value = self.values[tensor]
        if value.function is None:
            return value.node, 1.0
        if tensor in self.steps:
            step = self.steps[tensor]
            return step.node, step.scale
        found = self.recognised(tensor, value.function)
        if found is None and self._step_back(tensor):
            return self.scaled(tensor, user)
        if found is None:
            raise UnsupportedModelError(
                f"{self.origin(tensor)} computes a pointwise function that is none of the known "
                f"activations, nor a multiple of one (used at {self.origin(user)}). If it is an "
                "activation of your own, give it to `solve` as an Activation; if it adds or "
                "multiplies by a constant tensor, leave that out."
            )
        index = value.node
        if found.phi is not None:
            index = self._activation(tensor, value, found.phi)
        kind = "scale" if found.phi is None else "activation"
        self.steps[tensor] = Step(kind, index, (value.place,), found.scale)
        if found.scale == 1.0:
            self.values[tensor] = Value(index, tensor)
        return index, found.scale

    def at(self, tensor: T, user: T) -> int:
        """The graph's node for `tensor` itself, with a sum of one term for a factor."""
        index, scale = self.scaled(tensor, user)
        if self.values[tensor].function is not None:
            index = self.builder.sum([index], [scale], origin=self.origin(tensor))
            self.values[tensor] = Value(index, tensor)
        return index

    def _activation(self, tensor: T, value: Value[T, F], phi: object) -> int:
        key = (value.place, phi)
        if key not in self._activations:  # a multiple of φ(x) beside φ(x) is one activation
            where = self.origin(tensor)
            self._activations[key] = self.builder.activation(value.node, origin=where)
            if value.node in self._narrow:
                self.notes.approximate.append(f"few weights an output before {where}")
        return self._activations[key]

    def _step_back(self, tensor: T) -> bool:
        """Whether `tensor` became a function of a later node: of its input, not of its source.

        Two activations in a row are no known activation; the first one then becomes a node.
        """
        sources = set(self.sources(tensor))
        if len(sources) != 1:
            return False
        (before,) = sources
        if self.values[before].function is None:
            return False
        self.at(before, tensor)
        self.values[tensor] = self.composed(tensor)
        return True

"""What the conversion of a recorded network does to it, whatever framework writes it out again."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .graph import Graph, Nonlinearity, Sum
from .network import fold
from .trace import Step

T = TypeVar("T", bound=Hashable)  # a framework's own name for a tensor


@dataclass(frozen=True)
class Change:
    """One thing that conversion did: what, and to which part of the model."""

    what: str
    where: str


@dataclass(frozen=True)
class Term(Generic[T]):
    """A term of a sum, perhaps `moved` to before the activation that it comes from."""

    tensor: T
    weight: float
    node: int
    moved: bool
    source: T  # the tensor itself, or what that activation reads
    moves: tuple[T, ...]  # between the activation and the sum


@dataclass(frozen=True)
class Sums(Generic[T]):
    """The sums of a recorded network as they are to be.

    `form` is the `graph` of the record, but for terms of sums that are taken from before an
    activation; `weights` are those of its sums.
    """

    steps: Mapping[T, Step[T]]
    graph: Graph
    form: Graph
    weights: Mapping[int, Sequence[float]]

    def terms(self, step: Step[T]) -> list[Term[T]]:
        """The terms of a sum that are left, each with its weight."""
        before, after = self.graph.nodes[step.node], self.form.nodes[step.node]
        assert isinstance(before, Sum)
        assert isinstance(after, Sum)
        columns = zip(
            step.inputs, before.inputs, after.inputs, self.weights[step.node], strict=True
        )
        return [
            self._term(tensor, weight, was, now != was)
            for tensor, was, now, weight in columns
            if weight
        ]

    def _term(self, tensor: T, weight: float, node: int, moved: bool) -> Term[T]:
        source, moves = tensor, list[T]()
        if moved:
            while self.steps[source].kind != "activation":
                if self.steps[source].kind == "move":  # factors and normalisation are removed
                    moves.insert(0, source)
                source = self.steps[source].inputs[0]
            source = self.steps[source].inputs[0]
        return Term(tensor, weight, node, moved, source, tuple(moves))

    def reweight(self, step: Step[T]) -> str | None:
        """How the weights of a sum change, in words; None if they do not."""
        recorded = self.graph.nodes[step.node]
        assert isinstance(recorded, Sum)
        before, after = (
            " and ".join(f"{w:.4g}" for w in weights)
            for weights in (recorded.weights, self.weights[step.node])
        )
        return None if before == after else f"sum weighted by {after} in place of {before}"


def layers_at_norms(steps: Mapping[T, Step[T]], needed: Collection[T]) -> list[T]:
    """The layers that a normalisation reads, or that read it, directly or behind an activation.

    >>> steps = {"x": Step("input", 0), "a": Step("affine", 1, ("x",))}
    >>> steps |= {"n": Step("norm", 1, ("a",)), "b": Step("affine", 2, ("n",))}
    >>> layers_at_norms(steps, steps)
    ['a', 'b']
    """
    found: list[T] = []
    normalised: set[T] = set()
    for tensor, step in steps.items():
        if tensor not in needed:
            continue
        after = bool(step.inputs) and step.inputs[0] in normalised
        if step.kind == "norm" or (after and step.kind in ("move", "activation", "scale")):
            normalised.add(tensor)
        if step.kind == "norm":
            source = step.inputs[0]
            while steps[source].kind in ("move", "norm"):
                source = steps[source].inputs[0]
            found.append(source)
        elif after:
            found.append(tensor)
    return [tensor for tensor in found if steps[tensor].kind == "affine"]


def demand_same(solved: Graph, converted: Graph) -> None:
    """Stop if an activation was lost, or the maps are not those that were solved."""
    graphs = (solved, converted)
    counts = [sum(isinstance(g.nodes[i], Nonlinearity) for i in g.live) for g in graphs]
    values = [fold(g, lambda c: 0.9 * c + 0.1, 0.0) for g in graphs]
    if counts[0] != counts[1] or abs(values[0] - values[1]) > 1e-9:
        raise AssertionError(
            f"The solution is for {counts[0]} activations and C_f(0) = {values[0]:.6g} under a "
            f"test map, but the converted model has {counts[1]} and {values[1]:.6g}. This is an "
            "error in skipless; please report the model."
        )

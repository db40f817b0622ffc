"""What `convert` tells about a model: an account of how it was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skipless.core.graph import Graph
from skipless.core.methods import Method
from skipless.core.network import Point
from skipless.core.solution import Solution

from .rewrite import Change


@dataclass(frozen=True)
class ConversionReport:
    """What was changed, the solution, and the predicted q and c values; `print` shows it.

    `predicted` has a point for every node of `graph`, for two inputs of q value 1 that are
    orthogonal. `approximate` lists the places where the theory holds only roughly, `untouched` the
    layers whose weights were not drawn by the theory.
    """

    method: Method
    solution: Solution
    graph: Graph
    predicted: tuple[Point, ...]
    changes: tuple[Change, ...]
    approximate: tuple[str, ...]
    untouched: tuple[str, ...]

    def __str__(self) -> str:
        places: dict[str, list[str]] = {}
        for change in self.changes:
            places.setdefault(change.what, []).append(change.where)
        last = self.predicted[-1]
        parts = [
            f"{self.graph!r}, shaped by {self.method}",
            _listed("Changes:", [f"{what}: {_ends(where)}" for what, where in places.items()]),
            _listed(f"{self.solution.activation}:", self._numbers()),
            f"Orthogonal inputs come out with q = {last.q:.4f} and c = {last.c:.4f}.",
        ]
        if self.approximate:
            parts.append(_listed("The theory only approximates:", self.approximate))
        if self.untouched:
            parts.append(_listed("Layers with weights of their own kind:", self.untouched))
        return "\n\n".join(parts)

    def _numbers(self) -> list[str]:
        used = [f"{k} = {v:.8g}" for k, v in self.solution.parameters.items() if v is not None]
        return [*used, *(f"{name} = {v:.6g} (target)" for name, v in self.solution.targets.items())]


def _ends(where: Sequence[str]) -> str:
    return where[0] if len(where) == 1 else f"{where[0]} … {where[-1]} ({len(where)} times)"


def _listed(head: str, lines: Sequence[str]) -> str:
    return "\n  ".join([head, *lines])

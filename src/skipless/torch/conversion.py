"""What `convert` returns: a model that carries the account of how it was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from skipless.core.graph import Graph
from skipless.core.methods import Method
from skipless.core.network import Point
from skipless.core.solution import Solution
from skipless.report.tables import table

from .rewrite import Change

_SHOWN_LAYERS = 16


@dataclass(frozen=True)
class ConversionReport:
    """What was changed, the solution, and the predicted q and c values; `print` shows it.

    `predicted` has a point for every node of `graph`, for two inputs of q value 1 that are
    orthogonal. `approximate` lists the places where the theory holds only roughly, `untouched` the
    parameters that were not drawn anew.
    """

    method: Method
    solution: Solution
    graph: Graph
    predicted: tuple[Point, ...]
    changes: tuple[Change, ...]
    approximate: tuple[str, ...]
    untouched: tuple[str, ...]

    def __str__(self) -> str:
        parts = [
            f"{self.graph!r}, shaped by {self.method}",
            self._changes(),
            self._solution(),
            self._layers(),
        ]
        if self.approximate:
            parts.append(_listed("The theory only approximates:", self.approximate))
        if self.untouched:
            parts.append(_listed("Parameters left as they were:", self.untouched))
        return "\n\n".join(parts)

    def _changes(self) -> str:
        places: dict[str, list[str]] = {}
        for change in self.changes:
            places.setdefault(change.what, []).append(change.where)
        rows = [[what, str(len(where)), _ends(where)] for what, where in places.items()]
        return table(["change", "times", "where"], rows) if rows else "Nothing was changed."

    def _solution(self) -> str:
        used = [[k, f"{v:.8g}"] for k, v in self.solution.parameters.items() if v is not None]
        wanted = [[name, f"{target:.6g}"] for name, target in self.solution.targets.items()]
        return table([self.solution.activation, "value"], [*used, *wanted])

    def _layers(self) -> str:
        rows = [
            [str(i), type(self.graph.nodes[i]).__name__, f"{p.q:.4f}", f"{p.c:.4f}", place]
            for i, p in enumerate(self.predicted)
            if i in self.graph.live
            for place in [self.graph.nodes[i].origin]
        ]
        if (hidden := len(rows) - _SHOWN_LAYERS) > 1:
            half = _SHOWN_LAYERS // 2
            rows = [*rows[:half], ["…", f"{hidden} more", "", "", ""], *rows[-half:]]
        return table(["node", "kind", "q", "c", "where"], rows)


class ConvertedModel(fx.GraphModule):
    """A model as `convert` rewrote it; layers keep their names, `forward` is generated code."""

    skipless_report: ConversionReport

    def __deepcopy__(self, memo: dict[int, Any]) -> ConvertedModel:
        copy = super().__deepcopy__(memo)
        assert isinstance(copy, ConvertedModel)
        copy.skipless_report = self.skipless_report
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, arguments = super().__reduce__()[:2]
        return _rebuilt, (rebuild, arguments, self.skipless_report)


def _rebuilt(rebuild: Any, arguments: Any, report: ConversionReport) -> ConvertedModel:
    plain = rebuild(*arguments)
    model = ConvertedModel(plain, plain.graph, type(plain).__name__)
    model.train(plain.training)
    model.skipless_report = report
    return model


def _ends(where: Sequence[str]) -> str:
    return where[0] if len(where) == 1 else f"{where[0]} … {where[-1]}"


def _listed(head: str, lines: Sequence[str]) -> str:
    return "\n  ".join([head, *lines])

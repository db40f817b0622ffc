"""What shaped a network: the method, the graph that it was solved for, and the solution."""

from __future__ import annotations

from dataclasses import dataclass

from skipless.core.graph import Graph
from skipless.core.methods import Method
from skipless.core.solution import Solution


@dataclass(frozen=True)
class Shaping:
    """The account that a shaped model carries as `model.shaping`, beside its state_dict."""

    method: Method
    graph: Graph
    solution: Solution

    def __deepcopy__(self, memo: dict[int, object]) -> Shaping:
        return self  # nothing in it changes, and the graph of a deep network is large

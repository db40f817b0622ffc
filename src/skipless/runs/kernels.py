"""C maps of one network under several methods: what `skipless plot` and `make demo` show.

Runs of `skipless train` as a section of a report, with the C maps of the networks trained.

The graph that a MODEL of the command line stands for, without its weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import numpy as np

from skipless.core.graph import Graph, Nonlinearity
from skipless.core.network import fold, propagate
from skipless.core.solution import DKS, EOC, TAT, Method, Solution
from skipless.core.solve import solve
from skipless.record import Record
from skipless.report.charts import runs_section
from skipless.report.figures import CMapCurve
from skipless.report.sections import Section

from .configuration import Configuration


def usual_activation(method: Method) -> str:
    """The activation that the paper mostly pairs with a method."""
    match method:
        case TAT():
            return "leaky_relu"
        case DKS():
            return "softplus"
        case EOC():
            return "relu"
        case _:
            assert_never(method)


def label(method: Method, solution: Solution) -> str:
    """How a figure or a table calls a method with its activation and the target that it met.

    >>> label(TAT(eta=0.95), solve(Graph.chain(50), TAT(eta=0.95)))
    'TAT leaky_relu η=0.95'
    """
    symbols = {"mu0": "η", "mu1": "ζ", "mu2": "τ"}
    met = [f"{symbols[k]}={v:.4g}" for k, v in solution.targets.items() if k in symbols]
    target = met[0] if met else f"σ_b={solution.sigma_b:g}"
    return f"{type(method).__name__} {solution.activation} {target}"


def c_map_curve(
    graph: Graph, method: Method, activation: str | None = None, *, clamp: bool = False
) -> tuple[Solution, CMapCurve]:
    """The solution and its local C map, global C map, and c value behind every activation."""
    solution = solve(graph, method, activation or usual_activation(method), clamp=clamp)
    return solution, solved_curve(graph, method, solution)


def solved_curve(graph: Graph, method: Method, solution: Solution) -> CMapCurve:
    """The maps of a network whose activation was solved for."""
    c = np.linspace(-1.0, 1.0, 401)
    along = propagate(
        graph, q_map=lambda q: q, c_map=lambda c, _: float(solution.c_map(np.asarray(c)))
    )
    layers = [
        point.c
        for node, point in zip(graph.nodes, along, strict=True)
        if isinstance(node, Nonlinearity)
    ]
    return CMapCurve(
        label=label(method, solution),
        c=c,
        local_map=solution.c_map(c),
        global_map=fold(graph, solution.c_map, c),
        layers=np.array([0.0, *layers]),
    )


if TYPE_CHECKING:
    from skipless.report.figures import CMapCurve

# What decides on the C maps. Runs that agree in it have them computed once; all else may be of
# another version.
_NETWORK = (
    "model", "width", "shortcut_weight", "norm", "activation", "negative_slope", "method", "eta",
    "tau", "zeta", "sigma_b", "clamp",
)  # fmt: skip


def reported(records: Sequence[Record]) -> Section:
    """The runs side by side; C maps that cannot be had are left out with a warning."""
    return runs_section(records, _curves(records))


def network_curve(given: Configuration) -> CMapCurve | None:
    """The C maps of the network that is trained, if it is a shaped one.

    They depend on how its layers are joined only, so that neither the data nor its full width is
    needed.
    """
    from .training import network

    shaping = network(_narrow(given), (1, 1, 1), 1).shaping
    if shaping is None:
        return None
    return solved_curve(shaping.graph, shaping.method, shaping.solution)


def _narrow(given: Configuration) -> Configuration:
    """The same network with so few weights that drawing them takes no time."""
    if given.model.startswith("wide_resnet"):  # widened or not, which decides on a projection
        return replace(given, width=min(2.0 if given.width is None else given.width, 2.0))
    return replace(given, width=1.0 if given.model.startswith("mlp") else 1 / 64)


def _curves(records: Sequence[Record]) -> dict[Path, CMapCurve]:
    """The C maps of all runs whose network was shaped, by folder."""
    curves: dict[Path, CMapCurve] = {}
    known: dict[Configuration, CMapCurve | None] = {}
    problems: dict[str, Path] = {}
    for record in records:
        configuration = record.run.get("configuration")
        if record.run.get("solution") is None or not isinstance(configuration, dict):
            continue
        try:
            given = Configuration.of({k: v for k, v in configuration.items() if k in _NETWORK})
            if given not in known:
                known[given] = network_curve(given)
            if (curve := known[given]) is not None:
                curves[record.folder] = curve
        except (ValueError, ArithmeticError, OSError, ImportError) as error:
            problems.setdefault(str(error), record.folder)
    for problem, folder in problems.items():
        warnings.warn(f"the report has no C maps of {folder}: {problem}", stacklevel=3)
    return curves


_MOST_LAYERS = 100_000


def graph_of(
    model: str, shortcut_weight: float | None = None, shape: Sequence[int] | None = None
) -> Graph:
    """The graph of mlp:DEPTH, of a network by name, or of the user's own factory, as converted.

    A chain needs no framework. A ResNet by name has no shortcuts unless a weight is given; in a
    factory's network the terms of sums then keep their proportions, as `convert` leaves them.

    >>> graph_of("mlp:100")
    Graph(201 nodes, 100 activations, depth 100)
    """
    family, colon, rest = model.partition(":")
    if colon and family not in ("mlp", "resnet", "wide_resnet"):
        return _converted(model, shortcut_weight, shape)
    if shape is not None:
        raise ValueError(
            f"An input shape was given, but the graph of {model} has none. Leave it out."
        )
    if colon and family == "mlp":
        return _chain(rest, shortcut_weight)
    return _named(model, shortcut_weight)


def _chain(text: str, shortcut_weight: float | None) -> Graph:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(
            f"MODEL 'mlp:{text}' was asked for; a chain is written as mlp:DEPTH, such as mlp:100."
        )
    depth = int(text)
    if shortcut_weight is not None:
        raise ValueError(
            f"A shortcut weight of {shortcut_weight:g} was asked for, but mlp:{depth} has no "
            "shortcuts. Leave it out."
        )
    if not 1 <= depth <= _MOST_LAYERS:
        raise ValueError(f"A depth of {depth} was asked for; it must be 1 to {_MOST_LAYERS}.")
    return Graph.chain(depth)


def _named(model: str, shortcut_weight: float | None) -> Graph:
    from skipless.core.solution import EOC
    from skipless.models import create_model
    from skipless.models.create import parsed

    weight = shortcut_weight
    if parsed(model)[0] != "mlp" and weight is None:
        weight = 0.0
    # Thin, as only its graph is wanted.
    width = 1 if parsed(model)[0] == "mlp" else 1 / 16
    network = create_model(
        model, width=width, input_size=32, num_classes=2, shortcut_weight=weight, method=EOC()
    )
    assert network.shaping is not None
    return network.shaping.graph


def _converted(model: str, shortcut_weight: float | None, shape: Sequence[int] | None) -> Graph:
    from skipless.core.rescale import normalised_weights, reweight, to_residual_form
    from skipless.torch.trace import trace

    from .candidates import imported, made

    graph = to_residual_form(trace(*made(model, imported(model), {}, shape)))
    return reweight(graph, normalised_weights(graph, shortcut_weight))

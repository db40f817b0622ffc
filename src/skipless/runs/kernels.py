"""Graphs of networks, and C maps under several methods: what `skipless plot` and `make demo` show.

`skipless report` imports this module, so it must not import torch before a network needs it.
"""

import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np

from skipless._install import not_installed
from skipless.core.graph import Graph, Nonlinearity
from skipless.core.network import fold, propagate
from skipless.core.rescale import normalised_weights, reweight, to_residual_form
from skipless.core.solution import DKS, EOC, TAT, Method, Solution
from skipless.core.solve import solve
from skipless.record import Record
from skipless.report.figures import CMapCurve
from skipless.report.runs import runs_section
from skipless.report.sections import Section

from .configuration import Configuration, NetworkOptions, parse_model

_MOST_LAYERS = 100_000


def default_activation(method: Method) -> str:
    """The activation that the paper mostly pairs with a method."""
    return {TAT: "leaky_relu", DKS: "softplus", EOC: "relu"}[type(method)]


def label(method: Method, solution: Solution) -> str:
    """A method with its activation and the target that it met, for figures and tables.

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
    """Solves for `method`; returns the solution and its C maps."""
    solution = solve(graph, method, activation or default_activation(method), clamp=clamp)
    return solution, _curve(graph, method, solution)


def network_curve(configuration: Configuration) -> CMapCurve | None:
    """The C maps of the network that is trained, if it is shaped."""
    from .training import create_network

    # They depend only on how its layers are connected, so a narrow network without data will do.
    width = 1.0 if configuration.model.startswith("mlp") else 1 / 64
    if configuration.model.startswith("wide_resnet"):  # it decides whether there is a projection
        width = min(2.0 if configuration.width is None else configuration.width, 2.0)
    shaping = create_network(replace(configuration, width=width), (1, 1, 1), 1).shaping
    if shaping is None:
        return None
    return _curve(shaping.graph, shaping.method, shaping.solution)


def _curve(graph: Graph, method: Method, solution: Solution) -> CMapCurve:
    """The local C map, the global C map, and the c value behind every activation."""
    c = np.linspace(-1.0, 1.0, 401)
    local_map = lambda c, _: float(solution.c_map(np.asarray(c)))
    points = zip(graph.nodes, propagate(graph, lambda q: q, local_map), strict=True)
    layers = [point.c for node, point in points if isinstance(node, Nonlinearity)]
    maps = (solution.c_map(c), fold(graph, solution.c_map, c))
    return CMapCurve(label(method, solution), c, *maps, np.array([0.0, *layers]))


def report_runs(records: Sequence[Record]) -> Section:
    """The runs side by side; C maps that cannot be computed are left out with a warning."""
    names = {own.name for own in fields(NetworkOptions)}  # all else may be of another version
    curves: dict[Path, CMapCurve] = {}
    problems: dict[str, Path] = {}
    curve_of = cache(network_curve)
    for record in records:
        stored = record.run.get("configuration")
        if record.run.get("solution") is None or not isinstance(stored, dict):
            continue
        try:
            given = Configuration.of({k: v for k, v in stored.items() if k in names})
            if (curve := curve_of(given)) is not None:
                curves[record.folder] = curve
        except ModuleNotFoundError as error:
            missing = not_installed("its network", error.name, "train")
            problems.setdefault(missing, record.folder)
        except (ValueError, ArithmeticError, OSError, ImportError) as error:
            problems.setdefault(str(error), record.folder)
    for problem, folder in problems.items():
        warnings.warn(f"the report has no C maps of {folder}: {problem}", stacklevel=2)
    return runs_section(records, curves, Configuration().as_mapping())


def build_graph(
    model: str, shortcut_weight: float | None = None, shape: Sequence[int] | None = None
) -> Graph:
    """The graph of mlp:DEPTH, of a network by name, or of the user's own factory, as converted.

    A chain needs no framework. A ResNet by name has no shortcuts unless a weight is given; in a
    factory's network the terms of sums then keep their proportions, as `convert` leaves them.

    >>> build_graph("mlp:100")
    Graph(201 nodes, 100 activations, depth 100)
    """
    if parse_model(model) == "factory":
        from skipless.torch.trace import trace

        from .factories import call_factory

        graph = to_residual_form(trace(*call_factory(model, shape)))
        return reweight(graph, normalised_weights(graph, shortcut_weight))
    if shape is not None:
        raise ValueError(f"--input does not apply to {model}, whose graph has no input shape")
    if model.startswith("mlp:"):
        return build_chain(model, shortcut_weight)

    from skipless.models import create_model
    from skipless.models.create import parse_name

    width = 1  # thin, as only its graph is needed
    if parse_name(model)[0] != "mlp":
        width, shortcut_weight = 1 / 16, shortcut_weight or 0.0
    network = create_model(
        model,
        width=width,
        img_size=32,
        num_classes=2,
        shortcut_weight=shortcut_weight,
        method=EOC(),
    )
    assert network.shaping is not None
    return network.shaping.graph


def build_chain(model: str, shortcut_weight: float | None, most: int = _MOST_LAYERS) -> Graph:
    """The graph of mlp:DEPTH, with `most` layers at most."""
    text = model.removeprefix("mlp:")
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= most):
        raise ValueError(f"MODEL must be mlp:DEPTH with 1 to {most} layers, got {model}")
    if shortcut_weight is not None:
        raise ValueError(f"{model} has no shortcuts: drop the shortcut weight {shortcut_weight:g}")
    return Graph.chain(int(text))

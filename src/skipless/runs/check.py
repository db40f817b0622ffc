"""`skipless check`: a MODEL of the command line, shaped and measured at several widths."""

import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from skipless.core.bands import Distribution
from skipless.core.measure import Check, Comparison
from skipless.core.solution import Method, Solution
from skipless.core.solve import solve
from skipless.report.figures import KernelCurve, KernelPanel, draw_kernels
from skipless.torch import ShapedActivation, check, convert
from skipless.torch.init import threads

from .configuration import parse_model
from .factories import call_factory, import_factory
from .kernels import build_chain

DEFAULT_WIDTHS = (30, 100, 300)
_MOST_LAYERS = 9999  # of a chain that is measured

Progress = Callable[[Sequence[int], str], AbstractContextManager[Iterable[int]]]


@dataclass(frozen=True)
class ShapingOptions:
    """How to shape a model before it is checked, by the names of `convert`."""

    method: Method
    activation: str
    clamp: bool
    shortcut_weight: float | None


@dataclass(frozen=True)
class NetworkFamily:
    """Networks by width, or one of width None, each with an example and the solution it has."""

    build: Callable[[int | None], tuple[nn.Module, Tensor, Solution]]
    widths: tuple[int | None, ...]
    small: bool = False  # so that one thread is fastest


def build_mlp(depth: int, width: int, solution: Solution) -> nn.Sequential:
    """A chain of `depth` linear layers, each followed by the activation of `solution`."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), ShapedActivation.from_solution(solution)]
    return nn.Sequential(*layers)


def build_family(
    model: str, shaping: ShapingOptions, widths: Sequence[int], shape: Sequence[int] | None
) -> NetworkFamily:
    """The networks of a MODEL argument: mlp:DEPTH, or package.module:factory.

    A factory returns a module, or one and an example; otherwise `shape` is that of a sample. If it
    has a parameter `width`, it is called with each of the widths.
    """
    if parse_model(model) == "factory":
        return _factory_family(model, shaping, sorted(widths), shape)
    if not model.startswith("mlp:"):
        raise ValueError(f"MODEL must be mlp:DEPTH or package.module:factory, got {model!r}")
    graph = build_chain(model, shaping.shortcut_weight, _MOST_LAYERS)
    if shape is not None:
        raise ValueError(f"--input does not apply to {model}, whose inputs are as wide as it is")
    solution = solve(graph, shaping.method, shaping.activation, clamp=shaping.clamp)

    def build(width: int | None) -> tuple[nn.Module, Tensor, Solution]:
        assert width is not None
        return build_mlp(graph.depth, width, solution), torch.zeros(1, width), solution

    return NetworkFamily(build, tuple(sorted(widths)) or DEFAULT_WIDTHS, small=True)


def _factory_family(
    path: str, shaping: ShapingOptions, widths: Sequence[int], shape: Sequence[int] | None
) -> NetworkFamily:
    if widths and "width" not in inspect.signature(import_factory(path)).parameters:
        raise ValueError(f"{path} takes no `width`: drop --width {widths[0]}, or add one")

    def build(width: int | None) -> tuple[nn.Module, Tensor, Solution]:
        model, example = call_factory(path, shape, width)
        converted = convert(model, example, **vars(shaping))
        return converted, example, converted.skipless_report.solution

    return NetworkFamily(build, tuple(widths) or (None,))


def check_widths(
    family: NetworkFamily,
    seeds: int,
    distribution: Distribution,
    tolerance: float,
    progress: Progress,
) -> dict[int | None, Check]:
    """The check of every network of the family, by width."""
    checks: dict[int | None, Check] = {}
    for width in family.widths:
        network = family.build(width)
        label = "measuring" if width is None else f"width {width}"
        with (
            progress(range(seeds), label) as numbers,
            threads(1) if family.small else nullcontext(),  # more would only wait
        ):
            checks[width] = check(
                *network, seeds=numbers, distribution=distribution, tolerance=tolerance
            )
    return checks


def panel(
    title: str,
    checks: Mapping[str, Check],
    quantity: Literal["q", "c"],
    bars: Literal["error", "spread"],
) -> KernelPanel:
    """Checks at several widths as a panel of a figure; the prediction is that of the last."""
    curves, rows = [], []
    for label, found in checks.items():
        rows = layers(found)
        measured = [getattr(row.measured, quantity) for row in rows]
        means, spans = ([getattr(value, own) for value in measured] for own in ("mean", bars))
        curves.append(KernelCurve(label, np.array(means), np.array(spans)))
    predicted = np.array([getattr(row.predicted, quantity) for row in rows])
    return KernelPanel(title, f"{quantity} value", predicted, tuple(curves))


def format_checks(
    checks: Mapping[int | None, Check], model: str, figure: Path | None, as_json: bool
) -> str:
    """The checks as tables or as JSON; also draws them into `figure`, if there is one."""
    named = {"measured" if w is None else f"width {w}": found for w, found in checks.items()}
    panels = [panel(f"{name} by layer", named, name, bars="error") for name in ("c", "q")]
    if figure is not None:
        draw_kernels(panels, f"{model}, measured and predicted", figure)
    if not as_json:
        tables = [f"{label}: {found}" for label, found in named.items()]
        return "\n\n".join([*tables, *([] if figure is None else [str(figure)])])
    totals = ("agrees", "is_close", "wanted_width", "tolerance", "seeds", "pairs")
    widths = [
        {
            "width": width,
            **{name: getattr(found, name) for name in totals},
            "nodes": [_node_as_json(row) for row in found.comparisons],
        }
        for width, found in checks.items()
    ]
    head = {"model": model, "agrees": widths[-1]["agrees"], "figure": figure and str(figure)}
    return json.dumps({**head, "widths": widths}, indent=2)


def _node_as_json(row: Comparison) -> dict[str, object]:
    m, values = row.measured, {}
    for name in ("q", "c"):
        found = getattr(m, name)
        values[f"{name}_predicted"] = getattr(row.predicted, name)
        values |= {name: found.mean, f"{name}_error": found.error}
        values[f"{name}_median"] = getattr(row.median, name)
    bands = {f"{n}_band": list(getattr(row.predicted, f"{n}_band")[1:]) for n in ("q", "c")}
    known = {key: None if math.isnan(value) else value for key, value in values.items()}
    return {
        "node": m.node,
        "kind": m.kind,
        "origin": m.origin,
        **known,
        **bands,
        "agrees": row.agrees,
    }


def layers(found: Check) -> list[Comparison]:
    """The input, and the output of every activation."""
    return [row for row in found.comparisons if row.measured.kind in ("Input", "Activation")]

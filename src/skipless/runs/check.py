"""A MODEL of the command line, shaped and checked at several widths: what `skipless check` does."""

from __future__ import annotations

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

from skipless.core.graph import Graph
from skipless.core.measure import Check, Comparison
from skipless.core.solution import Method, Solution
from skipless.core.solve import solve
from skipless.report.figures import KernelCurve, KernelPanel, draw_kernels
from skipless.torch import ShapedActivation, check
from skipless.torch.init import Distribution, threads

from .candidates import imported, made
from .kernels import usual_activation

USUAL_WIDTHS = (30, 100, 300)

Progress = Callable[[Sequence[int], str], AbstractContextManager[Iterable[int]]]


def no_progress(seeds: Sequence[int], label: str) -> AbstractContextManager[Iterable[int]]:
    """The seeds as they are."""
    return nullcontext(seeds)


@dataclass(frozen=True)
class Shaping:
    """What is done to a model before it is checked."""

    method: Method
    activation: str | None = None
    clamp: bool = False
    shortcut_weight: float | None = None

    @property
    def phi(self) -> str:
        return self.activation or usual_activation(self.method)


@dataclass(frozen=True)
class Subject:
    """A network to be checked, with the solution that shaped it."""

    model: nn.Module
    example: Tensor
    solution: Solution


@dataclass(frozen=True)
class Family:
    """Networks of one kind: `build` makes that of a width, or the only one, of width None."""

    build: Callable[[int | None], Subject]
    widths: tuple[int | None, ...]
    small: bool = False  # so that one thread is quickest


def mlp(depth: int, width: int, solution: Solution) -> nn.Sequential:
    """A chain of `depth` linear layers, each followed by the activation of `solution`."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), ShapedActivation.from_solution(solution)]
    return nn.Sequential(*layers)


def mlp_family(depth: int, shaping: Shaping, widths: Sequence[int]) -> Family:
    """Chains of `depth` layers, all with the same solution."""
    if shaping.shortcut_weight is not None:
        raise ValueError(
            f"A shortcut weight of {shaping.shortcut_weight:g} was asked for, but mlp:{depth} has "
            "no shortcuts. Leave it out."
        )
    solution = solve(Graph.chain(depth), shaping.method, shaping.phi, clamp=shaping.clamp)

    def build(width: int | None) -> Subject:
        assert width is not None
        return Subject(mlp(depth, width, solution), torch.zeros(1, width), solution)

    return Family(build, tuple(widths) or USUAL_WIDTHS, small=True)


def factory_family(
    path: str, shaping: Shaping, widths: Sequence[int], shape: Sequence[int] | None
) -> Family:
    """What the user's own factory `package.module:factory` makes, converted.

    The factory returns a module, or a module and an example; without one, `shape` is that of a
    sample. If it takes a `width`, it is called with each of the `widths`.
    """
    factory = imported(path)
    takes_width = "width" in inspect.signature(factory).parameters
    if widths and not takes_width:
        raise ValueError(
            f"Width {widths[0]} was asked for, but {path} takes no `width`. Leave the widths out, "
            "or give the factory a parameter of that name."
        )

    def build(width: int | None) -> Subject:
        from skipless.torch.convert import convert

        model, example = made(path, factory, {} if width is None else {"width": width}, shape)
        converted = convert(
            model,
            example,
            shaping.method,
            shortcut_weight=shaping.shortcut_weight,
            activation=shaping.phi,
            clamp=shaping.clamp,
        )
        return Subject(converted, example, converted.skipless_report.solution)

    return Family(build, tuple(widths) or (None,))


def family_of(
    model: str, shaping: Shaping, widths: Sequence[int], shape: Sequence[int] | None
) -> Family:
    """The networks that a MODEL argument stands for: mlp:DEPTH, or package.module:factory."""
    kind, _, name = model.partition(":")
    if not kind or not name:
        raise ValueError(
            f"MODEL {model!r} was asked for; the models are mlp:DEPTH, for instance mlp:100, and "
            "package.module:factory of your own."
        )
    if kind != "mlp":
        return factory_family(model, shaping, sorted(widths), shape)
    if not (name.isascii() and name.isdigit() and 1 <= len(name) <= 4 and int(name)):
        raise ValueError(
            f"{model} was asked for; a network to be measured has 1 to 9999 layers: mlp:100."
        )
    if shape is not None:
        raise ValueError(f"An input shape was given, but the inputs of {model} are as wide as it.")
    return mlp_family(int(name), shaping, sorted(widths))


def check_widths(
    family: Family,
    seeds: int,
    distribution: Distribution,
    tolerance: float,
    progress: Progress = no_progress,
) -> dict[int | None, Check]:
    """The check of every network of the family, by width."""
    narrowest = min((width for width in family.widths if width is not None), default=2)
    if seeds < 2 or narrowest < 2 or not tolerance >= 0.0:
        raise ValueError(
            f"{seeds} seeds, widths {family.widths} and a tolerance of {tolerance:g} were asked "
            "for; give 2 or more seeds, widths of 2 or more and a tolerance of 0 or more."
        )
    checks: dict[int | None, Check] = {}
    for width in family.widths:
        subject = family.build(width)
        label = "measuring" if width is None else f"width {width}"
        with (
            progress(range(seeds), label) as numbers,
            threads(1) if family.small else nullcontext(),  # others would only wait
        ):
            checks[width] = check(
                subject.model,
                subject.example,
                subject.solution,
                seeds=numbers,
                distribution=distribution,
                tolerance=tolerance,
            )
    return checks


def panel(
    title: str,
    checks: Mapping[str, Check],
    quantity: Literal["q", "c"],
    bars: Literal["error", "spread"],
) -> KernelPanel:
    """What a figure shows of checks at several widths; the prediction is that of the last."""
    rows = [layers(found) for found in checks.values()]
    curves = [
        KernelCurve(
            label,
            np.array([getattr(row.measured, quantity).mean for row in own]),
            np.array([getattr(getattr(row.measured, quantity), bars) for row in own]),
        )
        for label, own in zip(checks, rows, strict=True)
    ]
    predicted = np.array([getattr(row.predicted, quantity) for row in rows[-1]])
    return KernelPanel(title, f"{quantity} value", predicted, tuple(curves))


def told(checks: Mapping[int | None, Check], model: str, figure: Path, as_json: bool) -> str:
    """The checks as tables for people or as JSON for programs, and drawn into `figure`."""
    named = {"measured" if w is None else f"width {w}": found for w, found in checks.items()}
    panels = [panel(f"{name} by layer", named, name, bars="error") for name in ("c", "q")]
    draw_kernels(panels, f"{model}, measured and predicted", figure)
    if as_json:
        return json.dumps(_answer(checks, model, figure), indent=2)
    tables = [f"{label}: {found}" for label, found in named.items()]
    return "\n\n".join([*tables, str(figure)])


def _answer(checks: Mapping[int | None, Check], model: str, figure: Path) -> dict[str, object]:
    return {
        "model": model,
        "agrees": list(checks.values())[-1].agrees,
        "figure": str(figure),
        "widths": [
            {
                "width": width,
                "agrees": found.agrees,
                "tolerance": found.tolerance,
                "seeds": found.seeds,
                "pairs": found.pairs,
                "nodes": [_row(row) for row in found.comparisons],
            }
            for width, found in checks.items()
        ],
    }


def _row(row: Comparison) -> dict[str, object]:
    m = row.measured
    values = {
        "q_predicted": row.predicted.q,
        "q": m.q.mean,
        "q_error": m.q.error,
        "c_predicted": row.predicted.c,
        "c": m.c.mean,
        "c_error": m.c.error,
    }
    known = {key: None if math.isnan(value) else value for key, value in values.items()}
    return {"node": m.node, "kind": m.kind, "origin": m.origin, **known, "agrees": row.agrees}


def layers(found: Check) -> list[Comparison]:
    """The input, and what comes out of every activation."""
    return [row for row in found.comparisons if row.measured.kind in ("Input", "Activation")]

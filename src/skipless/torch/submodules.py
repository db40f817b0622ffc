"""Some submodules of a model, shaped in place of others: the rest stays, with its weights.

The parts run on what the whole model gives them. They are shaped as one network, one after another
in the order in which they run, so that the target holds for all of them together.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import torch
from torch import nn

from skipless.core.convert import ConversionReport, planned_graph
from skipless.core.graph import Graph, joined
from skipless.core.record import UnsupportedModelError
from skipless.core.solution import Solution

from .example import Example, Given
from .trace import read


@dataclass(frozen=True)
class PartsReport:
    """What was done to each part, by its name; `kept` are the parameters that stayed."""

    parts: Mapping[str, ConversionReport]
    kept: tuple[str, ...]

    @cached_property
    def solution(self) -> Solution:
        """The one solution for all parts."""
        return next(iter(self.parts.values())).solution

    def __str__(self) -> str:
        sections = [f"== {name}\n\n{report}" for name, report in self.parts.items()]
        head = f"{len(self.parts)} parts, shaped as one network; all else stays as it is."
        return "\n\n".join([head, *sections])


Convert = Callable[[nn.Module, torch.Tensor, Graph], Any]  # of a part, solved for that graph


def convert_parts(
    model: nn.Module,
    example: Given,
    patterns: Sequence[str],
    shortcut_weight: float | None,
    convert: Convert,
    *,
    strict: bool,
) -> nn.Module:
    """A copy of `model` whose modules with names like `patterns` are converted."""
    whole = copy.deepcopy(model)
    names = matching(whole, patterns)
    inputs = _inputs(whole, example, names)
    modules = dict(whole.named_modules())
    for name in inputs:
        _require_own_parameters(whole, name)
    readings = [read(modules[name], x, strict=strict) for name, x in inputs.items()]
    network = joined([planned_graph(reading, shortcut_weight)[-1] for reading in readings])
    reports: dict[str, ConversionReport] = {}
    for name, x in inputs.items():
        part = convert(modules[name], x, network)
        reports[name] = part.skipless_report
        _replace(whole, modules[name], part)
    own = {f"{name}." for name in reports}
    kept = [n for n, _ in whole.named_parameters() if not any(n.startswith(o) for o in own)]
    kept += [f"{name}.{k}" for name, report in reports.items() for k in report.kept]
    result: Any = whole
    result.skipless_report = PartsReport(reports, tuple(kept))
    return result


def matching(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """The names of the outermost modules that any of the patterns matches.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    >>> matching(model, ["1*"])
    ['1']
    """
    if isinstance(patterns, str) or not isinstance(patterns, Iterable):
        raise TypeError(f'parts must be a list of names, got {patterns!r} (such as ["layer*"])')
    names = [name for name, _ in model.named_modules() if name]
    found: set[str] = set()
    for pattern in patterns:
        alike = [name for name in names if fnmatchcase(name, pattern)]
        if not alike:
            close = difflib.get_close_matches(pattern.rstrip("*."), names, 3, 0.4) or names[:8]
            raise ValueError(
                f"parts: no module of {type(model).__name__} has a name like {pattern!r}. There "
                f"are, for example, {', '.join(map(repr, close))}."
            )
        found.update(alike)
    if not found:
        raise ValueError('parts names no module (for example parts=["layer*"])')
    inside = {name for name in found if any(name.startswith(f"{other}.") for other in found)}
    return [name for name in names if name in found - inside]


def _inputs(model: nn.Module, example: Given, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """What each module reads when the model runs on `example`, in the order in which they run."""
    found: dict[str, torch.Tensor] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = [*args, *kwargs.values()]
            if len(args) != 1 or kwargs or not isinstance(given[0], torch.Tensor):
                kinds = ", ".join(type(value).__name__ for value in given)
                raise UnsupportedModelError(
                    f"{name} is called with ({kinds}); a part is called with one tensor. Name the "
                    "modules inside of it, or those around it."
                )
            found.setdefault(name, given[0].detach().clone())

        return hook

    modules, modes = dict(model.named_modules()), {m: m.training for m in model.modules()}
    hooks = [modules[n].register_forward_pre_hook(note(n), with_kwargs=True) for n in names]
    try:
        with torch.no_grad():
            Example.of(example).call(model.eval())
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    if missing := [name for name in names if name not in found]:
        raise UnsupportedModelError(
            f"{', '.join(missing)} {'does' if len(missing) == 1 else 'do'} not run on the example. "
            "Leave it out of parts, or give an example on which it runs."
        )
    return found


def _require_own_parameters(model: nn.Module, name: str) -> None:
    """Raise if a part shares parameters with the rest, which stays as it is."""
    inside: dict[int, str] = {}
    outside: dict[int, str] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        (inside if path.startswith(f"{name}.") else outside).setdefault(id(parameter), path)
    if shared := [f"{inside[k]} = {outside[k]}" for k in inside if k in outside]:
        raise UnsupportedModelError(
            f"{name} shares parameters with the rest of the model, which stays as it is: "
            f"{', '.join(shared)}. Add to parts what holds both."
        )


def _replace(model: nn.Module, before: nn.Module, after: nn.Module) -> None:
    """Let `after` stand wherever `before` does."""
    places = [n for n, m in model.named_modules(remove_duplicate=False) if m is before]
    for place in places:
        parent, _, last = place.rpartition(".")
        setattr(model.get_submodule(parent), last, after)

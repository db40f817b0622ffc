"""Runs of `skipless train` as a section of a report, with the C maps of the networks trained."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from skipless.record import Record
from skipless.report.runs import runs_section
from skipless.report.sections import Section

from .configuration import Configuration

if TYPE_CHECKING:
    from skipless.report.c_maps import CMapCurve

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
    from .c_maps import solved_curve
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

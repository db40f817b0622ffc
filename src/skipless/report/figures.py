"""Figures by matplotlib: C maps, and measured q or c values beside the predicted ones."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from skipless._install import not_installed
from skipless.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CMapCurve:
    """One method's C maps on the grid `c`, and the c value after each layer, from c = 0."""

    label: str
    c: Array
    local_map: Array
    global_map: Array
    layers: Array


@dataclass(frozen=True)
class KernelCurve:
    """Measured values layer by layer; `bar` is half the length of the error bar at each."""

    label: str
    mean: Array
    bar: Array


@dataclass(frozen=True)
class KernelPanel:
    """Curves of one network at several widths, and the prediction for all of them."""

    title: str
    ylabel: str
    predicted: Array
    curves: tuple[KernelCurve, ...]


def require_figure_path(path: Path) -> type[Figure]:
    """Matplotlib's figure; raises if none can be written to `path`.

    Call it before long computations.
    """
    if path.suffix.lower() not in (".png", ".svg"):
        raise ValueError(
            f"A figure must be PNG or SVG, in a file *.png or *.svg, got {path.name!r}"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder {path.parent}. Make it first: mkdir -p {path.parent}"
        )
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError(not_installed("Drawing", "matplotlib", "plot")) from None
    return Figure


def draw_c_maps(curves: Sequence[CMapCurve], title: str, path: Path) -> Path:
    """Draw the curves side by side into `path`, a PNG or SVG file, and return it."""
    figure = require_figure_path(path)(figsize=(12.0, 4.3), layout="constrained")
    local, whole, layers = figure.subplots(1, 3)
    styles = ("-", "--", "-.", ":")
    for number, curve in enumerate(curves):
        style = {"linestyle": styles[number % len(styles)], "linewidth": 1.8}
        local.plot(curve.c, curve.local_map, label=curve.label, **style)
        whole.plot(curve.c, curve.global_map, label=curve.label, **style)
        layers.plot(np.arange(curve.layers.size), curve.layers, label=curve.label, **style)
    for axes, name in ((local, "one layer: C(c)"), (whole, "whole network: $C_f$(c)")):
        axes.plot([-1, 1], [-1, 1], color="0.75", linewidth=0.8, zorder=0)
        axes.set(title=name, xlabel="c of the inputs", ylabel="c of the outputs")
        axes.set(xlim=(-1, 1), ylim=(-1.03, 1.03), aspect="equal")
    layers.set(title="c value by layer, from c = 0", xlabel="activations passed", ylabel="c")
    layers.set(ylim=(min(-0.03, *(float(np.min(k.layers)) for k in curves)), 1.03))
    for axes in (local, whole, layers):
        axes.grid(color="0.92")
        axes.set_axisbelow(True)
    return _save(figure, layers, title, path, dpi=150)


def draw_kernels(panels: Sequence[KernelPanel], title: str, path: Path, columns: int = 2) -> Path:
    """Draw the panels in rows of `columns` into `path`, a PNG or SVG file, and return it."""
    rows = math.ceil(len(panels) / columns)
    size = 5.2 * columns, 0.9 + 3.3 * rows
    figure = require_figure_path(path)(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel, own in zip(panels, axes.flat, strict=False):
        for number, curve in enumerate(panel.curves):
            layers = np.arange(curve.mean.size)
            # Bars at every layer would cover the lines; those of several curves stand apart.
            step = max(1, layers.size // 20)
            some = slice(min(number * step // len(panel.curves), layers.size - 1), None, step)
            (line,) = own.plot(layers, curve.mean, label=curve.label, linewidth=1.5)
            style = {"color": line.get_color(), "linestyle": "none", "elinewidth": 0.9}
            own.errorbar(layers[some], curve.mean[some], curve.bar[some], capsize=2, **style)
        own.plot(panel.predicted, "--", color="black", linewidth=1.5, label="predicted")
        own.set(title=panel.title, xlabel="layer", ylabel=panel.ylabel)
        own.xaxis.get_major_locator().set_params(integer=True)
        own.grid(color="0.92")
        own.set_axisbelow(True)
    for unused in axes.flat[len(panels) :]:
        unused.set_axis_off()
    return _save(figure, axes[0, 0], title, path, dpi=110)


def _save(figure: Figure, labelled: Axes, title: str, path: Path, dpi: int) -> Path:
    handles, labels = labelled.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(title)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi, format=path.suffix[1:].lower())
    write_atomically(path, drawn.getvalue())
    return path

"""The figure of C maps: one layer, the whole network, and layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .figure import empty_figure

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CMapCurve:
    """One method's maps on the grid `c`, and the c values of the layers from c = 0 on."""

    label: str
    c: Array
    local_map: Array
    global_map: Array
    layers: Array


def draw_c_maps(curves: Sequence[CMapCurve], title: str, path: Path) -> Path:
    """Draw the curves side by side into `path`, a PNG or SVG file, and return it."""
    figure = empty_figure(path, 12.0, 4.3)
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
    handles, labels = layers.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(curves), frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
    return path

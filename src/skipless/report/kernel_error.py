"""The figure of kernel approximation error: measured q or c values beside the predicted ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .figure import empty_figure

Array = npt.NDArray[np.float64]

_MOST_BARS = 20


@dataclass(frozen=True)
class KernelCurve:
    """Measured values layer by layer; `bar` is half the length of the vertical line at each."""

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


def draw_kernels(panels: Sequence[KernelPanel], title: str, path: Path, columns: int = 2) -> Path:
    """Draw the panels in rows of `columns` into `path`, a PNG or SVG file, and return it."""
    rows = math.ceil(len(panels) / columns)
    figure = empty_figure(path, 5.2 * columns, 0.9 + 3.3 * rows)
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel, own in zip(panels, axes.flat, strict=False):
        for number, curve in enumerate(panel.curves):
            layers = np.arange(curve.mean.size)
            # Bars at every layer would cover the lines; those of several curves stand apart.
            step = max(1, layers.size // _MOST_BARS)
            some = slice(min(number * step // len(panel.curves), layers.size - 1), None, step)
            (line,) = own.plot(layers, curve.mean, label=curve.label, linewidth=1.5)
            own.errorbar(
                layers[some],
                curve.mean[some],
                yerr=curve.bar[some],
                color=line.get_color(),
                linestyle="none",
                elinewidth=0.9,
                capsize=2,
            )
        own.plot(panel.predicted, "--", color="black", linewidth=1.5, label="predicted")
        own.set(title=panel.title, xlabel="layer", ylabel=panel.ylabel)
        own.xaxis.get_major_locator().set_params(integer=True)
        own.grid(color="0.92")
        own.set_axisbelow(True)
    for unused in axes.flat[len(panels) :]:
        unused.set_axis_off()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    return path

"""An empty figure for a file, or an error that says what is wrong with the file or missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")


def demand_figure_path(path: Path) -> None:
    """Raise if no figure can be written to `path`; long computations ask this first."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(
            f"A figure was asked for as {path.name!r}, but it is written as PNG or SVG. "
            "Give a name that ends in .png or .svg."
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder {path.parent}. Make it first: mkdir -p {path.parent}"
        )
    _matplotlib_figure()


def empty_figure(path: Path, width: float, height: float) -> Figure:
    """A figure of so many inches, to be written to `path`, a PNG or SVG file."""
    demand_figure_path(path)
    return _matplotlib_figure()(figsize=(width, height), layout="constrained")


def _matplotlib_figure() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "Drawing needs matplotlib, which is not installed: pip install 'skipless[plot]'"
        ) from None
    return Figure

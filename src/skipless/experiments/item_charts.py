"""Charts that every trained item has on its HTML page: training curves, and C maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skipless.report.charts import c_map_chart, loss_chart
from skipless.report.svg import STYLES, Chart, Line

from .configuration import Configuration
from .item import Cell, Item
from .results import Results, Summary
from .run_report import network_curve
from .scales import SCALES

# What decides on a network's C map.
_SHAPE = ("model", "shortcut_weight", "method", "activation", "eta", "tau", "zeta", "sigma_b")


def item_charts(item: Item, results: Results) -> list[Chart]:
    """The training loss of every cell's best run, a chart for each row, and the C maps."""
    run = [cell for cell in item.cells if results.cell(cell.row, cell.column) is not None]
    rows = dict.fromkeys(cell.row for cell in run)
    losses = [_losses(row, [cell for cell in run if cell.row == row], results) for row in rows]
    return [*losses, *_c_maps(run, results)]


def _losses(row: str, cells: Sequence[Cell], results: Results) -> Chart:
    found = [(cell.column, results.cell(cell.row, cell.column)) for cell in cells[:STYLES]]
    lines = [
        _line(column, number, best)
        for number, (column, best) in enumerate(found)
        if best is not None
    ]
    return replace(loss_chart(lines), title=f"Training loss: {row}")


def _line(label: str, style: int, best: Summary) -> Line:
    curve = best.outcomes[0].training
    points = list(zip(curve.epochs, curve.loss, strict=True))
    broken = best.outcomes[0].diverged
    value = "diverged" if broken or not points else f"{points[-1][1]:.2g}"
    return Line(label, value, style, points, broken_off=broken)


def _c_maps(cells: Sequence[Cell], results: Results) -> list[Chart]:
    """The C maps of the different networks, at most as many as there are styles."""
    networks: dict[tuple[object, ...], Configuration] = {}
    scale = next(scale for scale in SCALES.values() if scale.name == results.scale)
    for cell in cells:
        best = results.cell(cell.row, cell.column)
        if cell.run.get("method") is not None and best is not None:
            given = Configuration.of(scale.configuration(cell.run).as_mapping(), best.chosen)
            networks.setdefault(tuple(getattr(given, name) for name in _SHAPE), given)
    curves = []
    for given in list(networks.values())[:STYLES]:
        if (curve := network_curve(given)) is not None:
            weight = given.shortcut_weight
            shortcuts = f", w = {weight:g}" if weight else ""
            curves.append(replace(curve, label=f"{curve.label}, {given.model}{shortcuts}"))
    return [c_map_chart(dict(enumerate(curves)))] if curves else []

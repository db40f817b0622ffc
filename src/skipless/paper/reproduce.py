"""`skipless reproduce`: an item is run at a scale, and becomes results, and these a section.

Charts that every trained item has on its HTML page: training curves, and C maps.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skipless.record import Json, number, write_atomically
from skipless.report.charts import c_map_chart, loss_chart
from skipless.report.page import write_sections_page
from skipless.report.sections import Section, chart_files, text
from skipless.report.svg import STYLES, Chart, Line
from skipless.runs.configuration import Configuration, flag
from skipless.runs.kernels import network_curve
from skipless.runs.outcome import Outcome
from skipless.runs.search import Place, key_of, leads, make_folder, searched

from .item import Cell, Item, Results, Run, Summary, Trial, Value
from .items import ITEMS
from .scales import SCALES, Options, ScaleName

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


NOTHING = "–"


@dataclass(frozen=True)
class Wish:
    """What a user may ask for beyond an item and a scale."""

    seeds: int | None = None
    options: Options | None = None  # of every run


def reported(item: Item, scale: ScaleName, place: Place, wish: Wish = Wish()) -> str:  # noqa: B008
    """Run an item, leave its results, page and charts in the folder of `place`, and tell of it.

    Of processes that `torchrun` started, the first one tells.
    """
    path = place.folder / f"{item.name}.jsonl"
    make_folder(place.folder)
    _demand_same_scale(path, scale)
    results = reproduced(item, scale, place, wish)
    if not leads():
        return ""
    own = section(item, results)
    results.write(path)
    for name, drawing in chart_files([own]).items():
        write_atomically(place.folder / name, drawing)
    with_curves = _with_curves(item, own, results)
    page = write_sections_page(path.with_suffix(".html"), item.title, "", [with_curves])
    return f"{text(own)}\n\nResults: {path}\nPage: {page}\n"


def _demand_same_scale(path: Path, scale: ScaleName) -> None:
    if path.exists() and (before := Results.read(path).scale) != scale:
        raise FileExistsError(
            f"Results at the scale {scale} were to go to {path}, which holds some of the scale "
            f"{before}. Name another --output, or remove them."
        )


def overview() -> tuple[list[str], list[list[str]]]:
    """A table of all items, with what they cost at each scale."""
    header = ["item", "what it shows", "smoke", "cpu", "full"]
    return header, [
        [item.name, item.title.partition(": ")[2], *_costs(item)] for item in ITEMS.values()
    ]


def _costs(item: Item) -> list[str]:
    if item.compute is not None:
        return ["computed", f"computed, {item.minutes.get('cpu', 1):g} min", "computed"]
    costs = []
    for scale in ("smoke", "cpu", "full"):
        runs = item.runs(scale)
        epochs = sum(run.configuration.epochs for run in runs)
        minutes = "" if (m := item.minutes.get(scale)) is None else f", {m:g} min"
        costs.append(f"{len(runs)} runs" + (f", {epochs:,} epochs" if scale == "full" else minutes))
    return costs


def reproduced(item: Item, scale: ScaleName, place: Place, wish: Wish = Wish()) -> Results:  # noqa: B008
    """What the item measured at the scale, all of it, by however many workers."""
    started = time.time()
    if item.compute is not None:
        from skipless.train.journal import provenance

        found, told = item.compute(scale), provenance()
        origin: dict[str, Json] = {
            "started": told["started"],
            "machines": [told["machine"]],
            "versions": [told["versions"]],
            "seconds": round(time.time() - started),
        }
        return Results(item.name, scale, origin, values=found.values, lines=found.lines)
    runs = item.runs(scale, wish.seeds, wish.options)
    teachers = {run.name: run.teacher for run in runs if run.teacher is not None}
    keys = {name: key_of(teacher) for name, teacher in teachers.items()}
    outcomes = searched(
        f"{item.name}-{scale}",
        {run.name: replace(run.configuration, teacher=keys.get(run.name)) for run in runs},
        place,
        teachers={keys[name]: teacher for name, teacher in teachers.items()},
    )
    return collected(item, scale, [(run, outcomes[run.name]) for run in runs], wish)


def collected(
    item: Item,
    scale: ScaleName,
    done: Sequence[tuple[Run, Outcome]],
    wish: Wish = Wish(),  # noqa: B008
) -> Results:
    """Results of runs; what they say of data, machines and versions is said once."""
    outcomes = [outcome for _, outcome in done]
    origin: dict[str, Json] = {
        "started": min(outcome.started for outcome in outcomes),
        "machines": _distinct(outcome.machine for outcome in outcomes),
        "versions": _distinct(outcome.versions for outcome in outcomes),
        "data": _distinct(_data(run.configuration) for run, _ in done),
        "given": {**(wish.options or {}), **({} if wish.seeds is None else {"seeds": wish.seeds})},
        "seconds": round(sum(outcome.seconds or 0.0 for outcome in outcomes)),
    }
    trials = tuple(
        Trial(
            run.cell.row,
            run.cell.column,
            run.chosen,
            run.seed,
            replace(outcome, machine={}, versions={}),
        )
        for run, outcome in done
    )
    return Results(item.name, scale, origin, trials)


def _distinct(values: Iterable[Json]) -> list[Json]:
    """All values, each once."""
    return [json.loads(text) for text in dict.fromkeys(json.dumps(value) for value in values)]


def _data(given: Configuration) -> str:
    """The data of a run in words."""
    size = "" if given.image_size is None else f" of {given.image_size} x {given.image_size}"
    count = "all" if given.train_size is None else f"{given.train_size:,}"
    return f"{given.data}, {count} images{size}"


def sections_of(paths: Sequence[Path]) -> list[Section]:
    """The sections of files of results, in the order of the paper."""
    return [section(ITEMS[results.item], results) for results in _read(paths)]


def _read(paths: Sequence[Path]) -> list[Results]:
    found = [Results.read(path) for path in paths]
    for results in found:
        if results.item not in ITEMS:
            raise ValueError(
                f"Results of {results.item!r} were given, which is no item of this version. The "
                f"items are {', '.join(ITEMS)}."
            )
    order = list(ITEMS)
    found.sort(key=lambda results: (order.index(results.item), results.scale))
    return found


def pages_of(paths: Sequence[Path]) -> list[Section]:
    """The sections of files of results, each with its training curves and C maps."""
    names: Counter[str] = Counter()
    sections = []
    for results in _read(paths):
        item = ITEMS[results.item]
        own = _with_curves(item, section(item, results), results)
        names[item.name] += 1
        if names[item.name] > 1:  # other results of the same item
            number = f"-{names[item.name]}"
            own = replace(own, name=own.name + number, title=f"{own.title} ({results.scale})")
        sections.append(own)
    return sections


def _with_curves(item: Item, own: Section, results: Results) -> Section:
    """The section of a trained item with training curves and C maps, for pages of its own."""
    if not results.trials:
        return own
    return replace(own, charts=[*own.charts, *item_charts(item, results)])


def section(item: Item, results: Results) -> Section:
    """What a report shows of an item."""
    header, rows = _computed(results) if item.compute is not None else _table(item, results)
    return Section(
        name=item.name,
        title=item.title,
        introduction=item.introduction,
        header=header,
        rows=rows,
        verdicts=[claim.verdict(results) for claim in item.claims],
        charts=list(item.charts(results)),
        facts=_facts(item, results),
    )


def _table(item: Item, results: Results) -> tuple[list[str], list[list[str]]]:
    """Rows and columns as the paper has them: ours, and the paper's in brackets."""
    columns = list(dict.fromkeys(cell.column for cell in item.cells))
    rows: dict[str, dict[str, str]] = {}
    for cell in item.cells:
        found = results.cell(cell.row, cell.column)
        ours = NOTHING if found is None else item.shown(found)
        paper = "" if cell.paper is None else f" ({cell.paper:.1f})"
        rows.setdefault(cell.row, {})[cell.column] = ours + paper
    body = [[row, *(own.get(column, "") for column in columns)] for row, own in rows.items()]
    return ["ours (paper)", *columns], body


def _computed(results: Results) -> tuple[list[str], list[list[str]]]:
    def row(value: Value) -> list[str]:
        wanted = "" if value.wanted is None else f"{value.wanted:g}"
        return [value.row, value.column, f"{value.value:.6g}", wanted]

    return ["", "", "computed", "wanted"], [row(value) for value in results.values]


def _facts(item: Item, results: Results) -> dict[str, str]:
    origin = results.origin
    facts = {"Scale": results.scale}
    if data := _listed(origin, "data"):
        facts["Data"] = "; ".join(map(str, data))
    if results.trials:
        diverged = sum(trial.outcome.diverged for trial in results.trials)
        facts["Runs"] = f"{len(results.trials)}, of which {diverged} diverged"
    facts["Started"] = str(origin.get("started"))
    seconds = number(origin, "seconds")
    told = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    facts["Time"] = told + (" of training, all runs together" if results.trials else "")
    machines = [m for m in _listed(origin, "machines") if isinstance(m, dict)]
    facts["Machine"] = "; ".join(f"{m.get('system')}, {m.get('cores')} cores" for m in machines)
    versions = [v for v in _listed(origin, "versions") if isinstance(v, dict)]
    facts["Versions"] = "; ".join(", ".join(f"{k} {v}" for k, v in own.items()) for own in versions)
    given = origin.get("given")
    options = given.items() if isinstance(given, dict) else ()
    again = [f"skipless reproduce {item.name} --scale {results.scale}"]
    facts["Again"] = " ".join([*again, *(f"{flag(name)} {value}" for name, value in options)])
    return facts


def _listed(origin: Mapping[str, Json], name: str) -> list[Json]:
    found = origin.get(name)
    return found if isinstance(found, list) else []

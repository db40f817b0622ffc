"""`skipless reproduce`: runs an item at a scale; its results become a section of a report."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from skipless.files import new_folder, write_atomically
from skipless.record import Json, number
from skipless.report.charts import c_map_chart, loss_chart
from skipless.report.page import write_sections_page
from skipless.report.sections import Section, chart_files, section_text
from skipless.report.svg import STYLES, Chart, Line
from skipless.runs.configuration import Configuration, flag
from skipless.runs.kernels import network_curve
from skipless.runs.outcome import Outcome
from skipless.runs.search import Place, is_main, run_all, run_key
from skipless.train.journal import provenance

from . import ITEMS
from .item import Item, PlannedRun
from .results import Results, Trial
from .scales import SCALES, Options, ScaleName

# The options that determine a network's C map.
_SHAPE = ("model", "shortcut_weight", "method", "activation", "eta", "tau", "zeta", "sigma_b")


def report_item(
    item: Item,
    scale: ScaleName,
    place: Place,
    seeds: int | None = None,
    options: Options | None = None,
) -> str:
    """Run an item, write its results, page and charts, and return its report as text.

    Of processes that `torchrun` started, only the first one writes and reports.

    `seeds` and `options` replace those of the item; files go to the folder of `place`.
    """
    path = place.folder / f"{item.name}.jsonl"
    if path.exists() and (before := Results.read(path).scale) != scale:
        raise FileExistsError(
            f"{path} holds results of the scale {before}, and would be overwritten by those of "
            f"{scale}. Name another --output, or remove them."
        )
    with new_folder(place.folder):
        results = run_item(item, scale, place, seeds, options)
    if not is_main():
        return ""
    section = build_section(item, results)
    results.write(path)
    for name, drawing in chart_files([section]).items():
        write_atomically(place.folder / name, drawing)
    with_curves = replace(section, charts=[*section.charts, *training_charts(item, results)])
    page = write_sections_page(path.with_suffix(".html"), item.title, [with_curves])
    return f"{section_text(section)}\n\nResults: {path}\nPage: {page}\n"


def overview() -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of all items, with what they cost at each scale."""
    rows = [[item.name, item.title.partition(": ")[2], *_costs(item)] for item in ITEMS.values()]
    return ["item", "what it shows", *SCALES], rows


def _costs(item: Item) -> list[str]:
    if item.compute is not None:
        return ["computed", f"computed, {item.minutes:g} min", "computed"]
    (smoke, _), (cpu, _), (full, epochs) = map(item.cost, SCALES)
    return [f"{smoke} runs", f"{cpu} runs, {item.minutes:g} min", f"{full} runs, {epochs:,} epochs"]


def run_item(
    item: Item,
    scale: ScaleName,
    place: Place,
    seeds: int | None = None,
    options: Options | None = None,
) -> Results:
    """All results of the item at the scale, whichever workers they come from."""
    if item.compute is not None:
        started, where = time.monotonic(), provenance()
        values, lines = item.compute(scale)
        origin: dict[str, Json] = {
            "started": where["started"],
            "machines": [where["machine"]],
            "versions": [where["versions"]],
            "seconds": round(time.monotonic() - started),
        }
        return Results(item.name, scale, origin, values=tuple(values), lines=tuple(lines))
    runs = item.runs(scale, seeds, options)
    teachers = {run.name: run.teacher for run in runs if run.teacher is not None}
    keys = {name: run_key(teacher) for name, teacher in teachers.items()}
    outcomes = run_all(
        f"{item.name}-{scale}",
        {run.name: replace(run.configuration, teacher=keys.get(run.name)) for run in runs},
        place,
        teachers={keys[name]: teacher for name, teacher in teachers.items()},
    )
    given = {**(options or {}), **({} if seeds is None else {"seeds": seeds})}
    return collect_results(item, scale, [(run, outcomes[run.name]) for run in runs], given)


def collect_results(
    item: Item, scale: ScaleName, done: Sequence[tuple[PlannedRun, Outcome]], given: Options
) -> Results:
    """Results of runs; what they share, such as data, machines and versions, is said once."""
    outcomes = [outcome for _, outcome in done]
    origin: dict[str, Json] = {
        "started": min(outcome.started for outcome in outcomes),
        "machines": _distinct(outcome.machine for outcome in outcomes),
        "versions": _distinct(outcome.versions for outcome in outcomes),
        "data": _distinct(_describe_data(run.configuration) for run, _ in done),
        "given": dict(given),
        "seconds": round(sum(outcome.seconds or 0.0 for outcome in outcomes)),
    }
    trials = []
    for run, outcome in done:
        own = replace(outcome, machine={}, versions={})
        trials.append(Trial(run.cell.row, run.cell.column, run.chosen, run.seed, own))
    return Results(item.name, scale, origin, tuple(trials))


def _distinct(values: Iterable[Json]) -> list[Json]:
    return [json.loads(text) for text in dict.fromkeys(json.dumps(value) for value in values)]


def _describe_data(given: Configuration) -> str:
    size = "" if given.image_size is None else f" of {given.image_size} x {given.image_size}"
    count = "all" if given.train_size is None else f"{given.train_size:,}"
    return f"{given.data}, {count} images{size}"


def read_sections(paths: Sequence[Path], *, curves: bool = False) -> list[Section]:
    """The sections of files of results, in the order of the paper."""
    found = [Results.read(path) for path in paths]
    if unknown := [results.item for results in found if results.item not in ITEMS]:
        raise ValueError(
            f"Unknown item {unknown[0]!r} in the results; the items of this version are "
            f"{', '.join(ITEMS)}."
        )
    order = list(ITEMS)
    counts: Counter[str] = Counter()
    sections = []
    for results in sorted(found, key=lambda own: (order.index(own.item), own.scale)):
        section = build_section(ITEMS[results.item], results, curves=curves)
        counts[section.name] += 1
        if (number := counts[section.name]) > 1:
            name, title = f"{section.name}-{number}", f"{section.title} ({results.scale})"
            section = replace(section, name=name, title=title)
        sections.append(section)
    return sections


def training_charts(item: Item, results: Results) -> list[Chart]:
    """The training loss of every cell's best run, a chart for each row, and the C maps."""
    found = ((cell, results.cell(cell.row, cell.column)) for cell in item.cells)
    run = [(cell, best) for cell, best in found if best is not None]
    charts = []
    for row in dict.fromkeys(cell.row for cell, _ in run):
        lines = []
        own = [(cell.column, best.outcomes[0]) for cell, best in run if cell.row == row]
        for style, (column, outcome) in enumerate(own[:STYLES]):
            points = list(zip(outcome.training.epochs, outcome.training.loss, strict=True))
            value = "diverged" if outcome.diverged or not points else f"{points[-1][1]:.2g}"
            lines.append(Line(column, value, style, points, broken_off=outcome.diverged))
        charts.append(replace(loss_chart(lines), title=f"Training loss: {row}"))
    scale = next(scale for scale in SCALES.values() if scale.name == results.scale)
    shaped = [(cell, best) for cell, best in run if cell.run.get("method") is not None]
    return charts + _c_map_charts(
        [scale.configuration(cell.run, best.chosen) for cell, best in shaped]
    )


def _c_map_charts(configurations: Sequence[Configuration]) -> list[Chart]:
    """The C maps of the different networks, at most as many as there are styles."""
    networks: dict[tuple[object, ...], Configuration] = {}
    for given in configurations:
        networks.setdefault(tuple(getattr(given, name) for name in _SHAPE), given)
    curves = []
    for given in list(networks.values())[:STYLES]:
        if (curve := network_curve(given)) is not None:
            weight = given.shortcut_weight
            shortcuts = f", w = {weight:g}" if weight else ""
            curves.append(replace(curve, label=f"{curve.label}, {given.model}{shortcuts}"))
    return [c_map_chart(dict(enumerate(curves)))] if curves else []


def build_section(item: Item, results: Results, *, curves: bool = False) -> Section:
    """What a report shows of an item; with `curves`, its training curves and C maps too."""
    if item.compute is None:
        header, rows = _cell_table(item, results)
    else:
        header = ["", "", "computed", "expected"]
        rows = [
            [v.row, v.column, f"{v.value:.6g}", "" if v.wanted is None else f"{v.wanted:g}"]
            for v in results.values
        ]
    return Section(
        name=item.name,
        title=item.title,
        introduction=item.introduction,
        header=header,
        rows=rows,
        verdicts=item.verdicts(results),
        charts=[*item.charts(results), *(training_charts(item, results) if curves else ())],
        facts=_facts(item, results),
    )


def _cell_table(item: Item, results: Results) -> tuple[list[str], list[list[str]]]:
    """Rows and columns as the paper has them: ours, and the paper's in brackets."""
    columns = dict.fromkeys(cell.column for cell in item.cells)
    rows: dict[str, dict[str, str]] = {}
    for cell in item.cells:
        found = results.cell(cell.row, cell.column)
        ours = "–" if found is None else item.format_cell(found)
        paper = "" if cell.paper is None else f" ({cell.paper:.1f})"
        rows.setdefault(cell.row, {})[cell.column] = ours + paper
    body = [[row, *(own.get(column, "") for column in columns)] for row, own in rows.items()]
    return ["ours (paper)", *columns], body


def _facts(item: Item, results: Results) -> dict[str, str]:
    origin = results.origin
    facts = {"Scale": results.scale}
    if data := _list_in(origin, "data"):
        facts["Data"] = "; ".join(map(str, data))
    if results.trials:
        diverged = sum(trial.outcome.diverged for trial in results.trials)
        facts["Runs"] = f"{len(results.trials)}, of which {diverged} diverged"
    facts["Started"] = str(origin.get("started"))
    seconds = number(origin, "seconds")
    duration = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    facts["Time"] = duration + (" of training, all runs together" if results.trials else "")
    machines = [m for m in _list_in(origin, "machines") if isinstance(m, dict)]
    facts["Machine"] = "; ".join(f"{m.get('system')}, {m.get('cores')} cores" for m in machines)
    versions = [v for v in _list_in(origin, "versions") if isinstance(v, dict)]
    facts["Versions"] = "; ".join(", ".join(f"{k} {v}" for k, v in own.items()) for own in versions)
    given = origin.get("given")
    options = {"scale": results.scale, **(given if isinstance(given, dict) else {})}
    words = (f"{flag(name)} {value}" for name, value in options.items())
    facts["Rerun"] = " ".join([f"skipless reproduce {item.name}", *words])
    return facts


def _list_in(origin: Mapping[str, Json], name: str) -> list[Json]:
    found = origin.get(name)
    return found if isinstance(found, list) else []

"""`skipless reproduce`: runs an item at a scale; its results become a section of a report."""

import json
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from skipless.runs.place import Place, keep_outcome, run_key
from skipless.runs.search import Experiment, ExperimentResult, results_so_far, search_all
from skipless.runs.workers import count_workers, is_main
from skipless.train.journal import provenance

from . import ITEMS
from .item import Item, PlannedCell
from .results import Results, Trial, TriedSetting
from .scales import SCALES, Options, ScaleName

# The options that determine a network's C map.
_SHAPE = ("model", "shortcut_weight", "method", "activation", "eta", "tau", "zeta", "sigma_b")


@dataclass(frozen=True)
class Request:
    """What a user asks of an item.

    `seeds` and `options` replace those of the item, `only` is a pattern of "row | column", and
    runs that are in the files under `records` are not run again.
    """

    scale: ScaleName
    seeds: int | None = None
    options: Options = field(default_factory=dict)
    only: str | None = None
    records: Path | None = None

    def plan(self, item: Item) -> list[PlannedCell]:
        """The cells of the item that are to be run."""
        planned = item.plan(self.scale, self.seeds, self.options, self.only)
        if item.cells and not planned:
            names = ", ".join(own.name for own in item.plan(self.scale))
            raise ValueError(
                f"No cell of {item.name} at the scale {self.scale} matches {self.only!r}. Its "
                f"cells are {names}."
            )
        return planned


def report_item(
    item: Item, request: Request, place: Place, announce: Callable[[str], None] = lambda text: None
) -> str:
    """Run an item, write its results, page and charts, and return its report as text.

    Of processes that `torchrun` started, only the first one writes and reports. `announce` gets
    what it is going to cost. An item that was stopped leaves what is done.
    """
    path = place.folder / f"{item.name}.jsonl"
    scale = request.scale
    if path.exists() and (before := Results.read(path).scale) != scale:
        raise FileExistsError(
            f"{path} holds results of the scale {before}, and would be overwritten by those of "
            f"{scale}. Name another --output, or remove them."
        )
    with new_folder(place.folder):
        results = run_item(item, request, place, announce)
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
    (smoke, _), *others = map(item.cost, SCALES)
    units = ("CPU-hours", "GPU-hours")
    costs = [f"{n} runs, {h:,.2g} {unit}" for (n, h), unit in zip(others, units, strict=True)]
    return [f"{smoke} runs", *costs]


def run_item(
    item: Item, request: Request, place: Place, announce: Callable[[str], None] = lambda text: None
) -> Results:
    """All results of the item at the scale, whichever workers they come from."""
    if item.compute is not None:
        started, where = time.monotonic(), provenance()
        values, lines = item.compute(request.scale)
        origin: dict[str, Json] = {
            "started": where["started"],
            "machines": [where["machine"]],
            "versions": [where["versions"]],
            "commits": [where["skipless_commit"]],
            "seconds": round(time.monotonic() - started),
        }
        return Results(item.name, request.scale, origin, values=tuple(values), lines=tuple(lines))
    planned = request.plan(item)
    teachers = {run_key(own.teacher): own.teacher for own in planned if own.teacher is not None}
    experiments = {own.name: own.experiment for own in planned}
    if request.records is not None:
        experiments = _reuse(experiments, request.records, place)
    announce(_describe_cost(item, planned, experiments, place))
    name = f"{item.name}-{request.scale}"
    try:
        found = search_all(name, experiments, place, teachers=teachers)
    except InterruptedError:
        if is_main():
            done = results_so_far(name, experiments, place)
            with suppress(ValueError):  # nothing is done
                results = collect_results(item, request, planned, experiments, done)
                results.write(place.folder / f"{item.name}.jsonl")
        raise
    return collect_results(item, request, planned, experiments, found)


def _reuse(
    experiments: Mapping[str, Experiment], records: Path, place: Place
) -> dict[str, Experiment]:
    """The experiments with what is known of their tuning; outcomes that are known go to `place`."""
    if not records.is_dir():
        raise FileNotFoundError(f"--records {records} is not a folder of results")
    tried: dict[str, list[TriedSetting]] = {}
    outcomes: dict[str, Outcome] = {}
    for path in sorted(records.glob("*.jsonl")):
        results = Results.read(path)
        settings: dict[str, list[TriedSetting]] = {}
        for setting in results.tried:
            settings.setdefault(setting.key, []).append(setting)
        tried |= settings
        outcomes |= {trial.key: results.outcome(trial) for trial in results.trials if trial.key}
    found = {}
    for name, experiment in experiments.items():
        known = tuple(own.tried for own in tried.get(experiment.sweep.key, ()))
        enough = len(known) >= experiment.sweep.trials
        found[name] = own = replace(experiment, known=known) if known and enough else experiment
        if own.known or not own.sweep.trials:
            for configuration in own.final_runs().values():
                if (outcome := outcomes.get(run_key(configuration))) is not None:
                    keep_outcome(place.run(configuration), outcome)
    return found


def _describe_cost(
    item: Item, planned: Sequence[PlannedCell], experiments: Mapping[str, Experiment], place: Place
) -> str:
    """How many runs there are, and about how long they take."""
    new = [own for own in planned if not experiments[own.name].known]
    tuned = sum(own.experiment.sweep.trials for own in new)
    runs = sum(len(own.experiment.seeds) for own in planned)
    hours = sum(own.hours(tuned=own in new) for own in planned)
    scale = planned[0].scale
    workers = count_workers(place.workers)
    settings = f"{tuned} settings tried, then " if tuned else ""
    text = (
        f"{item.name}: {len(planned)} cell{'s' * (len(planned) > 1)}, {settings}{runs} runs with "
        f"the best, about {_format_hours(hours)} on one {scale.processor}"
    )
    spread = f", {_format_hours(hours / workers)} with {workers} workers" if workers > 1 else ""
    return f"{text}{spread}. What {place.folder} has already is not run again."


def _format_hours(hours: float) -> str:
    """A duration in a unit that suits it.

    >>> _format_hours(0.02), _format_hours(1.54), _format_hours(12345.0)
    ('1 minute', '1.5 hours', '12,000 hours')
    """
    if hours < 1.0:
        minutes = max(1, round(60 * hours))
        return f"{minutes} minute{'s' * (minutes > 1)}"
    return f"{float(f'{hours:.2g}'):,g} hours"


def collect_results(
    item: Item,
    request: Request,
    planned: Sequence[PlannedCell],
    experiments: Mapping[str, Experiment],
    found: Mapping[str, ExperimentResult],
) -> Results:
    """Results of runs; what they share, such as data, machines and versions, is said once."""
    outcomes = [o for result in found.values() for o in result.outcomes.values()]
    if not outcomes:
        raise ValueError(f"No run of {item.name} is done")
    where = _describe_places(outcomes)
    shared = all(len(own) <= 1 for own in where.values())
    tried, trials, left = [], [], 0
    for own in planned:
        row, column, experiment = own.cell.row, own.cell.column, experiments[own.name]
        result, key = found[own.name], experiment.sweep.key
        tried += [TriedSetting(row, column, key, setting) for setting in result.tried]
        for seed, outcome in result.outcomes.items():
            assert result.chosen is not None
            key = run_key(experiment.run(result.chosen, seed))
            short = replace(outcome, machine={}, versions={}, commit=None) if shared else outcome
            trials.append(Trial(row, column, result.chosen, seed, short, key))
        # More may have been tried than is asked for now.
        left += max(0, experiment.sweep.trials - len(result.tried))
        left += len(experiment.seeds) - len(result.outcomes)
    given: dict[str, Json] = {**request.options}
    for name in ("seeds", "only"):
        if (value := getattr(request, name)) is not None:
            given[name] = value
    seconds = [o.seconds or 0.0 for o in outcomes] + [own.tried.seconds or 0.0 for own in tried]
    origin: dict[str, Json] = {
        "started": min(outcome.started for outcome in outcomes),
        **where,
        "data": _distinct(_describe_data(own.experiment.final) for own in planned),
        "given": given,
        "seconds": round(sum(seconds)),
        "left": left,
    }
    return Results(item.name, request.scale, origin, tuple(trials), tried=tuple(tried))


def _describe_places(outcomes: Sequence[Outcome]) -> dict[str, list[Json]]:
    """Where runs were trained, and by what."""
    return {
        "machines": _distinct(outcome.machine for outcome in outcomes),
        "versions": _distinct(outcome.versions for outcome in outcomes),
        "commits": _distinct(outcome.commit for outcome in outcomes),
    }


def _distinct(values: Iterable[Json]) -> list[Json]:
    """Each of `values` once, without those that are not known."""
    known = dict.fromkeys(json.dumps(value) for value in values if value)
    return [json.loads(text) for text in known]


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
    trained = {row: _untrained(item, results, row) for row in rows}
    if any(trained.values()):  # a column only where it says something
        return (
            ["ours (paper)", *columns, "seeds that learned"],
            [[*cells, trained[cells[0]] or "all"] for cells in body],
        )
    return ["ours (paper)", *columns], body


def _untrained(item: Item, results: Results, row: str) -> str:
    """The cells of a row of which some seeds learned nothing, with how many did."""
    found = {cell.column: results.cell(row, cell.column) for cell in item.cells if cell.row == row}
    return ", ".join(
        f"{column} {cell.trained} of {len(cell.seeds)}"
        for column, cell in found.items()
        if cell is not None and cell.trained < len(cell.seeds)
    )


def _facts(item: Item, results: Results) -> dict[str, str]:
    origin = results.origin
    facts = {"Scale": results.scale}
    if data := _list_in(origin, "data"):
        facts["Data"] = "; ".join(map(str, data))
    if results.trials:
        diverged = sum(trial.outcome.diverged for trial in results.trials)
        facts["Runs"] = f"{len(results.trials)} with chosen settings, of which {diverged} diverged"
        facts["Tuning"] = f"{len(results.tried)} settings, on held-out training images"
        facts["Each cell"] = _describe_cells(results)
    if isinstance(left := origin.get("left"), int) and left > 0:
        facts["Left"] = f"{left} runs: this item is not complete"
    facts["Started"] = str(origin.get("started"))
    seconds = number(origin, "seconds")
    duration = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"
    facts["Time"] = duration + (" of training, all runs together" if results.trials else "")
    machines = [m for m in _list_in(origin, "machines") if isinstance(m, dict)]
    facts["Machine"] = "; ".join(
        f"{m.get('cpu', m.get('system'))}, {m.get('cores')} cores" for m in machines
    )
    versions = [v for v in _list_in(origin, "versions") if isinstance(v, dict)]
    facts["Versions"] = "; ".join(", ".join(f"{k} {v}" for k, v in own.items()) for own in versions)
    facts["Commit"] = ", ".join(str(commit)[:12] for commit in _list_in(origin, "commits"))
    given = origin.get("given")
    options = {"scale": results.scale, **(given if isinstance(given, dict) else {})}
    words = (f"{flag(name)} {shlex.quote(str(value))}" for name, value in options.items())
    facts["Rerun"] = " ".join([f"skipless reproduce {item.name}", *words])
    return facts


def _describe_cells(results: Results) -> str:
    """How many settings, seeds and epochs the cells have."""
    tried = Counter((own.row, own.column) for own in results.tried)
    seeds = Counter((own.row, own.column) for own in results.trials)
    lengths = {round(e[-1]) for t in results.trials if (e := t.outcome.validation.epochs)}
    counts = {"settings": tried.values(), "seeds": seeds.values(), "epochs": lengths}
    return ", ".join(
        f"{' or '.join(map(str, sorted(set(found))))} {name}"
        for name, found in counts.items()
        if found
    )


def _list_in(origin: Mapping[str, Json], name: str) -> list[Json]:
    found = origin.get(name)
    return found if isinstance(found, list) else []

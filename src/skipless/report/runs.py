"""Runs of `skipless train` side by side: which is best, which diverged, settings and curves."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from skipless.record import Json, Record, number

from .charts import (
    Points,
    accuracy_axis,
    c_map_chart,
    layers_chart,
    points_by,
    points_by_epoch,
    points_by_second,
    training_chart,
)
from .comparison import chance_gap, join
from .figures import CMapCurve
from .sections import Section
from .svg import STYLES, Chart, Line, linear_axis, logarithmic_axis

RESULTS = (
    "ending", "best", "last", "training accuracy", "training loss", "epochs", "seconds",
)  # fmt: skip

_SAME_SPEED = 1.1  # up to this factor between seconds per epoch, charts by time show nothing new
_MOST_NAMED = 5  # diverged or unfinished runs in the conclusion; the table has all
# No number depends on these. The record of a run says where it was made.
_MACHINE = {"device", "threads", "workers", "channels_last", "data_folder", "keep"}
_MACHINE |= {"log_every", "evaluate_every", "checkpoint_every", "tf32", "cudnn_benchmark"}
_MACHINE |= {"log_kernel", "log_layers"}
_NONE = (math.nan, math.nan)
_LAYER_CHARTS = {
    "q": ("q of layers", "mean square of a layer's outputs"),
    "c": ("c of layers", "cosine between different images (1: all alike)"),
    "gradient": ("Gradients of layers", "norm of the weights' gradient"),
    "weight": ("Weights of layers", "norm of the weights"),
}
_ALWAYS = ("model", "data", "optimizer", "lr", "epochs", "batch_size")


def runs_section(
    records: Sequence[Record],
    curves: Mapping[Path, CMapCurve] | None = None,
    defaults: Mapping[str, Json] | None = None,
) -> Section:
    """All runs in a table, the best first, and up to six of them in charts.

    `curves` are C maps by folder, `defaults` the values of settings that a record lacks. Where a
    record, of another program or version, lacks something else, the table has a gap.
    """
    names = _shortest_names([record.folder for record in records])
    runs = [_Run(n, record, defaults or {}) for n, record in zip(names, records, strict=True)]
    runs.sort(key=lambda run: (run.divergence is not None, -run.best if run.evaluations else 0.0))
    shown = runs[:STYLES]
    every = dict.fromkeys(name for run in runs for name in run.settings)
    values = {n: {_format_setting(r.settings[n]) for r in runs if n in r.settings} for n in every}
    # The results say how many epochs of how many.
    differing = [name for name, own in values.items() if len(own) > 1 and name != "epochs"]
    introduction = (
        "Best and last: the share of validation images classified correctly, by the best "
        "evaluation and by the last one. The training loss includes label smoothing and a teacher, "
        "the validation loss does not."
    )
    if len(shown) < len(runs):
        introduction += f" The charts show the first {len(shown)} runs of the table."
    return Section(
        name="runs",
        title="What the runs reached",
        introduction=introduction,
        conclusion=_conclude(runs, differing),
        header=["run", *(name.replace("_", " ") for name in differing), *RESULTS],
        rows=[[run.name, *run.described(differing), *run.results] for run in runs],
        charts=[
            *_run_charts(shown),
            *_c_map_charts(shown, curves or {}),
            *(chart for run in shown for chart in _layer_charts(run, alone=len(shown) == 1)),
        ],
        facts=_facts(runs, values, defaults or {}),
    )


class _Run:
    """A run, without the rows of its record that do not say what was measured, and when.

    `divergence` is the row of the step at which it diverged, `total` the number of steps planned.
    """

    def __init__(self, name: str, record: Record, defaults: Mapping[str, Json]) -> None:
        is_whole = lambda r: isinstance(r.get("kind"), str) and math.isfinite(number(r, "step"))
        rows = tuple(row for row in record.metrics if isinstance(row, dict) and is_whole(row))
        self.name, self.record = name, replace(record, metrics=rows)
        found = [record.run.get(part) for part in ("configuration", "resolved")]
        layers = [defaults, *(layer for layer in found if isinstance(layer, dict))]
        given = {name: value for layer in layers for name, value in layer.items()}
        self.settings = {name: v for name, v in given.items() if name not in _MACHINE}
        self.step, self.epochs, self.seconds = (
            max((v for row in rows if math.isfinite(v := number(row, name))), default=math.nan)
            for name in ("step", "epoch", "seconds")
        )
        self.steps_per_epoch = self.step / self.epochs if self.epochs > 0 else math.nan
        self.planned, steps = number(self.settings, "epochs"), number(self.settings, "steps")
        self.total = steps if steps > 0 else self.planned * self.steps_per_epoch
        self.evaluations = self.finite("validation", "top1")
        self.best_step, self.best = max(self.evaluations, key=lambda own: own[1], default=_NONE)
        # Earlier versions did not write the row, but the loss of another one may be none.
        trained = (row for row in rows if row["kind"] == "train" and "loss" in row)
        bad = (row for row in trained if not math.isfinite(number(row, "loss")))
        own = (row for row in rows if row["kind"] == "diverged")
        self.divergence = next(own, None) or next(bad, None)
        self.losses = [*self.finite("train", "loss"), *self.finite("diverged", "loss")]

    def finite(self, kind: str, name: str) -> Points:
        """Steps and values of a number, where it is one."""
        found = points_by(self.record, kind, name, "step")
        return [(step, value) for step, value in found if math.isfinite(value)]

    @property
    def place(self) -> str:
        """How far the run came: at step 4 of 66."""
        step = self.step if self.divergence is None else number(self.divergence, "step")
        planned = f" of {self.total:,.0f}" if math.isfinite(self.total) else ""
        return f"at step {step:,.0f}{planned}" if math.isfinite(step) else "before its first line"

    @property
    def ending(self) -> str:
        if self.divergence is not None:
            return f"diverged at\xa0step\xa0{number(self.divergence, 'step'):,.0f}"
        if any(step > self.total - 0.5 for step, _ in self.evaluations):  # evaluated after the last
            return "finished"
        return "unfinished" if self.planned > 0 else "–"

    @property
    def results(self) -> list[str]:
        reached = _format(self.epochs, ".3g")
        if self.epochs < self.planned and self.settings.get("steps") is None:  # not if one is NaN
            reached += f" of {self.planned:g}"
        return [
            self.ending,
            _format(self.best, ".1%"),
            _format_last(self.evaluations, ".1%"),
            _format_last(points_by(self.record, "train", "accuracy", "step"), ".1%"),
            _format_last(self.losses, ".3g"),
            reached,
            _format(self.seconds, ".0f" if self.seconds >= 10 else ".1f"),
        ]

    def described(self, names: Sequence[str]) -> list[str]:
        """The values of settings in words."""
        return [_format_setting(self.settings.get(name)) for name in names]


def _format(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "–"


def _format_last(points: Points, form: str) -> str:
    return _format(points[-1][1] if points else math.nan, form)


def _format_setting(value: Json) -> str:
    """A setting in words; a dash for none.

    >>> [_format_setting(value) for value in (0.003, False, None, "tat")]
    ['0.003', 'no', '–', 'tat']
    """
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shortest_names(folders: Sequence[Path]) -> list[str]:
    """The last parts of each folder's path, as few as tell it from the others."""
    paths = [folder.resolve().parts for folder in folders]
    names = []
    for own in paths:
        tails = [own[-count:] for count in range(1, len(own))]
        alone = (tail for tail in tails if sum(p[-len(tail) :] == tail for p in paths) == 1)
        names.append("/".join(next(alone, own)))
    return names


def _conclude(runs: Sequence[_Run], differing: Sequence[str]) -> list[str]:
    """Which run is best on each data, which diverged, and which did not finish."""
    groups: dict[str, list[_Run]] = {}
    for run in runs:
        if run.evaluations:
            groups.setdefault(str(run.settings.get("data", "")), []).append(run)
    words = [
        f"On {data}: {_best(own, differing)}" if len(groups) > 1 else _best(own, differing)
        for data, own in groups.items()
    ]
    lost = [run for run in runs if run.divergence is not None]
    stopped = [run for run in runs if run.ending == "unfinished"]
    words += map(_describe_divergence, lost[:_MOST_NAMED])
    for run in stopped[:_MOST_NAMED]:
        again = f"skipless train --resume --output {shlex.quote(str(run.record.folder))}"
        words.append(f"Unfinished: {run.name}, last seen {run.place}. Resume: {again}")
    for kind, own in (("diverged", lost), ("unfinished", stopped)):
        if (more := len(own) - _MOST_NAMED) > 0:
            words.append(f"{more} more {kind}: see the table.")
    return words if groups else ["No run has been evaluated.", *words]


def _best(ranked: Sequence[_Run], differing: Sequence[str]) -> str:
    """The best of runs on the same data, and which others are level with it."""
    first, *others = ranked
    images = number(first.record.run, "validation_images")
    settings = zip(differing, first.described(differing), strict=True)
    own = ", ".join(f"{n.replace('_', ' ')} {value}" for n, value in settings if value != "–")
    sentence = (
        f"Best: {first.name}{f' ({own})' if own else ''} classifies {first.best:.1%} of the "
        f"{f'{images:,.0f} ' if images > 0 else ''}validation images correctly, at epoch "
        f"{_format(first.best_step / first.steps_per_epoch, '.3g')}."
    )
    gap = chance_gap(first.best, int(images)) if images > 0 else 0.0
    if level := [run.name for run in others if first.best - run.best <= gap]:
        sentence += f" A gap of up to {100 * gap:.1f} points can be chance on so few images: "
        return f"{sentence}{join(level)} may be as good."
    return f"{sentence} Next: {others[0].name}, {others[0].best:.1%}." if others else sentence


def _describe_divergence(run: _Run) -> str:
    rate = number(run.divergence or {}, "learning_rate")
    words = f", with learning rate {rate:.4g}" if math.isfinite(rate) else ""
    last = f"; the last finite loss is {run.losses[-1][1]:.3g}" if run.losses else ""
    return f"Diverged: {run.name}, {run.place}{words}{last}."


def _run_charts(runs: Sequence[_Run]) -> list[Chart]:
    """Losses and accuracies in training and validation, and by time if runs differ in speed."""
    charts = _curves(runs, "epoch", points_by_epoch)
    speeds = [run.seconds / run.epochs for run in runs if run.seconds > 0 and run.epochs > 0]
    if len(speeds) > 1 and max(speeds) > _SAME_SPEED * min(speeds):
        timed = _curves(runs, "seconds of training", points_by_second)
        charts += [timed[0], timed[-1]]
    return [chart for chart in charts if any(line.finite for line in chart.lines)]


def _curves(
    runs: Sequence[_Run], x: str, points: Callable[[Record, str, str], Points]
) -> list[Chart]:
    """Training beside validation on equal axes: the losses, then the accuracies."""
    trained = [
        [*points(r.record, "train", "loss"), *points(r.record, "diverged", "loss")] for r in runs
    ]
    validated = [points(run.record, "validation", "loss") for run in runs]
    # A run that diverges leaves by the top, or the others would be flat.
    both = zip([*runs, *runs], [*trained, *validated], strict=True)
    sound = [own for run, own in both if run.divergence is None]
    heights = [value for own in sound or trained for _, value in own]
    y = logarithmic_axis("lower is better", heights)
    hits = [points(run.record, "train", "accuracy") for run in runs]
    top1 = [points(run.record, "validation", "top1") for run in runs]
    titles = ("Training loss", "Validation loss", "Training accuracy", "Validation accuracy")
    charts = []
    for title, curves in zip(titles, (trained, validated, hits, top1), strict=True):
        axis, unit, form = (y, 1, ".2g") if "loss" in title else (accuracy_axis(), 100, ".1%")
        lines = []
        for style, (run, own) in enumerate(zip(runs, curves, strict=True)):
            inside = [(place, min(unit * value, axis.high)) for place, value in own]
            lost = run.divergence is not None
            last = "diverged" if lost else _format_last(own, form)
            lines.append(Line(run.name, last, style, inside, broken_off=lost))
        charts.append(training_chart(title, lines, axis, x))
    return charts


def _layer_charts(run: _Run, *, alone: bool) -> list[Chart]:
    """What the run logged of its layers; of more than six, as many from the first to the last."""
    rows = [row for row in run.record.metrics if row["kind"] == "layers"]
    # In the order of the network, which is that of a row.
    found = dict.fromkeys(name.split("/", 1)[1] for row in rows for name in row if "/" in name)
    layers, last = list(found), len(found) - 1
    shown = layers
    if len(layers) > STYLES:
        shown = [layers[round(k * last / (STYLES - 1))] for k in range(STYLES)]
    charts = []
    for name, (title, words) in _LAYER_CHARTS.items():
        curves = {own: points_by_epoch(run.record, "layers", f"{name}/{own}") for own in shown}
        lines = [
            Line(own, _format_last(points, ".2g"), style, points)
            for style, (own, points) in enumerate(curves.items())
        ]
        values = [y for line in lines for _, y in line.finite]
        axis = logarithmic_axis(words, values)
        if name == "c":
            axis = linear_axis(words, min([0.0, *values]), 1.0)
        if values:
            title = title if alone else f"{title}: {run.name}"
            charts.append(training_chart(title, lines, axis))
    return charts


def _c_map_charts(runs: Sequence[_Run], curves: Mapping[Path, CMapCurve]) -> list[Chart]:
    """C maps before training; runs of equal maps share a line, that of the first of them."""
    equal: dict[tuple[bytes, bytes], list[_Run]] = {}
    for run in runs:
        if (curve := curves.get(run.record.folder)) is not None:
            equal.setdefault((curve.global_map.tobytes(), curve.layers.tobytes()), []).append(run)
    named = {}
    for first, *others in equal.values():
        label = f"{first.name} and {len(others)} more" if others else first.name
        named[runs.index(first)] = replace(curves[first.record.folder], label=label)
    return [c_map_chart(named), layers_chart(named)] if named else []


def _facts(
    runs: Sequence[_Run], values: Mapping[str, set[str]], defaults: Mapping[str, Json]
) -> dict[str, str]:
    """Settings that all runs share; versions, machines and dates."""
    records = [run.record for run in runs]
    shared = {name: next(iter(own)) for name, own in values.items() if len(own) == 1}
    usual = {n: _format_setting(defaults.get(n)) for n in shared}
    named = [n for n, own in shared.items() if own != usual[n] or (own != "–" and n in _ALWAYS)]
    dates = sorted({str(date)[:10] for record in records if (date := record.run.get("started"))})
    facts = {
        "Settings" if len(runs) == 1 else "Settings of all": ", ".join(
            f"{name.replace('_', ' ')} {shared[name]}" for name in named
        ),
        "Versions": _join_distinct(records, "versions", lambda name, value: f"{name} {value}"),
        "Machine": _join_distinct(records, "machine", _machine_part),
        "Dates": " to ".join(dates if len(dates) < 3 else [dates[0], dates[-1]]),
    }
    return {name: value for name, value in facts.items() if value}


def _machine_part(name: str, value: Json) -> str:
    if name == "gpus":
        return ", ".join(map(str, value)) if isinstance(value, list) else ""
    if name == "system":
        return str(value)
    return f"{value} {name.removesuffix('s') if value == 1 else name}"


def _join_distinct(records: Sequence[Record], key: str, part: Callable[[str, Json], str]) -> str:
    """What the `run.json` of all records says under a key, each different value once."""
    words = []
    for record in records:
        found = record.run.get(key)
        parts = [part(*item) for item in found.items()] if isinstance(found, dict) else []
        words.append(", ".join(part for part in parts if part))
    return "; or ".join(dict.fromkeys(one for one in words if one))

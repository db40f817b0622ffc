"""Networks trained side by side, as by the demo: a table, a conclusion, and an HTML page."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from skipless.record import Record
from skipless.tables import table

from .charts import (
    c_map_chart,
    c_of_unrelated,
    degrees,
    describe_lines,
    format_percent,
    layers_chart,
    training_charts,
)
from .figures import CMapCurve
from .page import (
    html_document,
    html_facts,
    html_figure,
    html_row,
    html_section,
    html_table,
    write_document,
)
from .svg import STYLES, Chart, Line, linear_axis, logarithmic_axis, swatch

HEADER = (
    "network", "shortcuts", "normalised", "parameters", "best rate", "training", "validation",
)  # fmt: skip

_DIVERGED = -12.0  # percent: the height of the crosses, below all accuracies


class Tuning(NamedTuple):
    """What is tried with every network: a learning rate, with or without gradient clipping."""

    rate: float
    clipped: bool = False

    def __str__(self) -> str:
        return f"{self.rate:g}{', clipped' * self.clipped}"


@dataclass(frozen=True)
class SeedRun:
    """One run: its record, and whether it diverged."""

    record: Record
    diverged: bool = False

    @property
    def accuracy(self) -> float:
        """The last validation accuracy, a fraction; NaN if the run diverged."""
        return math.nan if self.diverged else _last_value(self.record, "validation", "top1")


@dataclass(frozen=True)
class Contestant:
    """One network of a comparison: what it is, and its runs by setting.

    The first run of each setting has the same seed, and decides which is the best one; that has
    runs of other seeds, too.
    """

    label: str
    description: str
    shortcuts: bool
    normalisation: bool
    parameters: int
    curve: CMapCurve | None
    runs: Mapping[Tuning, Sequence[SeedRun]]

    @property
    def grid(self) -> dict[Tuning, float]:
        """The accuracy of the first seed by setting, the smallest rates first."""
        return {setting: runs[0].accuracy for setting, runs in sorted(self.runs.items())}

    @property
    def best(self) -> Tuning:
        """The setting with the highest accuracy, the first of several."""
        grid = self.grid
        return max(grid, key=lambda setting: -1.0 if math.isnan(grid[setting]) else grid[setting])

    @property
    def finished(self) -> list[SeedRun]:
        """The runs of the best setting that did not diverge."""
        return [run for run in self.runs[self.best] if not run.diverged]

    @property
    def accuracy(self) -> float:
        """The mean validation accuracy of the best setting; NaN if all its runs diverged."""
        return fmean([run.accuracy for run in self.finished]) if self.finished else math.nan

    @property
    def result(self) -> str:
        """The validation accuracy of the best setting, in words."""
        words = _mean_and_spread([run.accuracy for run in self.finished])
        tried, finished = len(self.runs[self.best]), len(self.finished)
        lost = f" ({tried - finished} of {tried} diverged)" if 0 < finished < tried else ""
        return words + lost


@dataclass(frozen=True)
class NetworkComparison:
    """Networks trained on the same images; `facts` say how, when and where."""

    title: str
    introduction: str
    contestants: Sequence[Contestant]
    validation_images: int
    facts: Mapping[str, str]


def _last_value(record: Record, kind: str, name: str) -> float:
    return next(reversed(record.series(kind, name)[1]), math.nan)


def _percent(fraction: float) -> str:
    return format_percent(100 * fraction)


def _mean_and_spread(fractions: Sequence[float]) -> str:
    """Their mean in percent, and their standard deviation if they are several."""
    if len(fractions) < 2:
        return _percent(next(iter(fractions), math.nan))
    return f"{100 * fmean(fractions):.1f} ± {100 * stdev(fractions):.1f}%"


def _rows(comparison: NetworkComparison) -> list[list[str]]:
    """One row of text under `HEADER` for each network."""
    return [
        [
            one.label,
            "yes" if one.shortcuts else "no",
            "yes" if one.normalisation else "no",
            f"{one.parameters:,}",
            str(one.best) if one.finished else "-",
            _mean_and_spread([_last_value(r.record, "train", "accuracy") for r in one.finished]),
            one.result,
        ]
        for one in comparison.contestants
    ]


def results_table(comparison: NetworkComparison) -> str:
    """The results for a terminal, as an aligned table of text."""
    return table(HEADER, _rows(comparison))


def markdown_table(comparison: NetworkComparison) -> str:
    """The results for a page in Markdown."""
    rules = [":--"] + ["--:"] * (len(HEADER) - 1)
    rows = [HEADER, rules, *_rows(comparison)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def conclusion(comparison: NetworkComparison) -> str:
    """Which network came first, by how much, and whether that may be chance, in sentences."""
    learned = (one for one in comparison.contestants if one.finished)
    diverged = [one.label for one in comparison.contestants if not one.finished]
    ranked = sorted(learned, key=lambda one: -one.accuracy)
    sentences = _ranking(ranked, comparison.validation_images) if ranked else []
    if diverged:
        sentences.append(f"{join(diverged)} diverged at every learning rate tried.")
    return " ".join(sentences)


def _ranking(ranked: Sequence[Contestant], images: int) -> list[str]:
    """The order of the networks that learned; accuracies that print alike count as equal."""
    best = ranked[0]
    first = [one for one in ranked if _percent(one.accuracy) == _percent(best.accuracy)]
    behind = ranked[len(first) :]
    right = f"{best.result} of the {images:,} validation images right"
    names = join([one.label for one in first])
    if len(first) > 1:
        sentence = f"{names} come first together: each gets {right}"
    else:
        sentence = f"{names} {'comes first: it gets' if behind else 'gets'} {right}"
    gaps = [
        f"{round(100 * best.accuracy, 1) - round(100 * one.accuracy, 1):.1f} "
        f"{'percentage points ' if number == 0 else ''}more than {one.label} "
        f"({one.result})"
        for number, one in enumerate(behind)
    ]
    sentences = [f"{sentence}{', ' if gaps else ''}{join(gaps)}."]
    chance = chance_gap(best.accuracy, images)
    close = [one.label for one in ranked if best.accuracy - one.accuracy <= chance]
    if len(close) > len(first):
        sentences.append(
            f"On so few images, a gap of up to {100 * chance:.1f} points can be "
            f"chance, so {join(close)} are about level."
        )
    return sentences


def chance_gap(accuracy: float, images: int) -> float:
    """Two standard errors of the difference between two networks of the same accuracy.

    With independent answers on n images, each right with probability p: 2 √(2 p (1 - p) / n). An
    accuracy of exactly 1 is taken as half an image less, since it does not mean that p = 1.
    """
    p = min(accuracy, 1 - 0.5 / images)
    return 2 * math.sqrt(2 * p * (1 - p) / images)


def join(words: Sequence[str]) -> str:
    """Words in a row, with "and" before the last."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def describe_c_map(curve: CMapCurve) -> str:
    """What an untrained network does to two unrelated images, in words, from its C map."""
    unrelated = c_of_unrelated(curve)
    farthest = float(np.min(curve.global_map))
    if unrelated >= 0.98:  # 11 degrees
        outcome, verdict = "almost identical", "can hardly tell one image from another"
    elif unrelated >= 0.5:  # 60 degrees
        outcome, verdict = "alike, but still distinct", "can still tell images apart"
    else:
        outcome, verdict = "still far from each other", "tells images apart with ease"
    return (
        f"two unrelated images enter at c = 0, {degrees(0.0)} apart; after "
        f"{curve.layers.size - 1} layers they come out at c = {unrelated:.3f}, "
        f"{degrees(unrelated)} apart, {outcome}. Whatever two images enter, their outputs are at "
        f"most {degrees(farthest)} apart: the network {verdict}."
    )


def rates_chart(contestants: Sequence[Contestant], clipped: bool) -> Chart:
    """The last validation accuracy by learning rate; crosses for runs that diverged."""
    grids = [{s.rate: v for s, v in o.grid.items() if s.clipped == clipped} for o in contestants]
    rates = sorted({setting.rate for one in contestants for setting in one.grid})
    lines = []
    for style, (one, grid) in enumerate(zip(contestants, grids, strict=True)):
        points = [(rate, 100 * value) for rate, value in grid.items()]
        highest = max((value for _, value in points if not math.isnan(value)), default=math.nan)
        chosen = one.finished and one.best.clipped == clipped
        ringed = list(grid).index(one.best.rate) if chosen else None
        value = f"best {format_percent(highest)}" if highest >= 0 else "diverged"
        lines.append(Line(one.label, value, style, points, range(len(points)), ringed))
    x = logarithmic_axis("learning rate", rates)
    y = linear_axis("validation accuracy at the end of the run", 0, 100, "%")
    crosses = []
    for rate in rates:
        lost = [n for n, grid in enumerate(grids) if math.isnan(grid.get(rate, 0.0))]
        # Runs that diverged at one rate have their crosses side by side.
        step = (x.high / x.low) ** 0.045
        middle = (len(lost) - 1) / 2
        crosses += [(n, rate * step ** (i - middle), _DIVERGED) for i, n in enumerate(lost)]
    if crosses:
        y = replace(y, low=_DIVERGED, ticks=((_DIVERGED, "diverged"), *y.ticks))
    return Chart(
        "With gradient clipping" if clipped else "Without gradient clipping",
        "Validation accuracy by learning rate. " + describe_lines(lines),
        replace(x, ticks=tuple((rate, f"{rate:g}") for rate in rates)),
        y,
        tuple(lines),
        crosses=tuple(crosses),
    )


def write_page(path: Path, comparison: NetworkComparison) -> Path:
    """Write the page to `path`, whose folder must exist, and return it."""
    return write_document(path, comparison_page(comparison))


def comparison_page(comparison: NetworkComparison) -> str:
    """The page as text: the result in words and numbers, then why, then how it was made."""
    header = (
        f"<p>{escape(comparison.introduction)}</p>\n"
        f'<p class="conclusion"><strong>In short:</strong> {_coloured_conclusion(comparison)}</p>\n'
    )
    parts = (_c_maps, _training, _all_settings)
    sections = [_results(comparison), *(part(comparison.contestants) for part in parts)]
    if comparison.facts:
        facts = html_facts("Facts of the runs", comparison.facts)
        sections.append(html_section("How this page was made", facts))
    return html_document(comparison.title, header, sections)


def _coloured_conclusion(comparison: NetworkComparison) -> str:
    """The conclusion, with the networks' names in their colours."""
    names = {escape(one.label): f"t{n % STYLES}" for n, one in enumerate(comparison.contestants)}
    # The longest first, so that a name within another one does not break it.
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    bold = lambda match: f'<b class="{names[match[0]]}">{match[0]}</b>'
    return re.sub(pattern, bold, escape(conclusion(comparison)))


def _results(comparison: NetworkComparison) -> str:
    rows, images = [], comparison.validation_images
    for style, (name, *others) in enumerate(_rows(comparison)):
        description = escape(comparison.contestants[style].description)
        named = f'{swatch(style)} {escape(name)}<span class="description">{description}</span>'
        cells = zip(HEADER[1:], others, strict=True)
        rows.append(html_row(named, (f'<td data-name="{k}">{escape(v)}</td>' for k, v in cells)))
    return html_section(
        "The networks and what they reached",
        html_table(
            "Each network with its best setting. Training: the share of its training images "
            "that it classifies correctly; validation: the same of "
            f"{images:,} images that it never trained on; mean ± standard deviation over seeds. "
            f"By chance alone, an accuracy of 97% on {images:,} images varies by "
            f"± {100 * math.sqrt(0.97 * 0.03 / images):.1f} points.",
            HEADER,
            rows,
            "cards",
        ),
    )


def _c_maps(contestants: Sequence[Contestant]) -> str:
    mapped = [(n, one, one.curve) for n, one in enumerate(contestants) if one.curve is not None]
    curves = {n: replace(curve, label=one.label) for n, one, curve in mapped}
    if not curves:
        return ""
    described = "".join(
        f"<li>{_swatch_name(number, contestants[number])}: {escape(describe_c_map(curve))}</li>"
        for number, curve in curves.items()
    )
    unmapped = [one.label for one in contestants if one.curve is None]
    without = f" No C map was computed for {', '.join(unmapped)}." if unmapped else ""
    return html_section(
        "Before training: can the network tell two images apart?",
        "<p>Send two images through a network whose weights are still random. Their "
        "<dfn>c value</dfn> is the cosine of the angle between them: 1 if they are identical, "
        "0 if they are unrelated, −1 if they are opposite. Each layer changes it, and "
        "the change by all layers together is the network’s <dfn>C map</dfn>. If all "
        "outputs are almost identical, training has nothing to work with.</p>\n"
        f"<ul>{described}</ul>\n",
        html_figure(
            [c_map_chart(curves), layers_chart(curves)],
            "C maps, as theory predicts them for wide networks. From input to output: the whole "
            "network; on the dotted diagonal nothing would change, and the marks are two unrelated "
            "images. Layer by layer: the same two on their way through the network."
            f"{without}",
        ),
    )


def comparison_charts(contestants: Sequence[Contestant]) -> list[Chart]:
    """Training loss and validation accuracy of the best runs of each network."""
    return training_charts(
        (
            one.label,
            [r.record for r in one.finished or one.runs[one.best]],
            one.result,
            not one.finished,
        )
        for one in contestants
    )


def _training(contestants: Sequence[Contestant]) -> str:
    return html_section(
        "Training: does it learn?",
        html_figure(
            comparison_charts(contestants),
            "The best setting of each network: the mean of its runs, and thin lines for each of "
            "them. Training loss: the error on the training images, on a "
            "logarithmic axis. Validation accuracy: the share of images never trained on that are "
            "classified correctly. An epoch is one pass over the training images.",
        ),
    )


def _all_settings(contestants: Sequence[Contestant]) -> str:
    settings = sorted({setting for one in contestants for setting in one.grid})
    best = lambda one, setting: ' class="best"' if setting == one.best else ""
    cells = lambda s: (f"<td{best(c, s)}>{_percent(c.grid[s])}</td>" for c in contestants)
    return html_section(
        "Was every network given its chance?",
        f"<p>Every network was trained once with each of the {len(settings)} settings below, all "
        "from the same seed. The one with the highest validation accuracy was chosen, and trained "
        "from other seeds as well.</p>\n",
        html_figure(
            [rates_chart(contestants, clipped) for clipped in (False, True)],
            "Validation accuracy of the first seed by learning rate. A ring marks the chosen "
            "setting, a cross a run that diverged.",
        ),
        html_table(
            "The same in numbers; those of the chosen settings are bold.",
            ["learning rate", *(_swatch_name(n, one) for n, one in enumerate(contestants))],
            [html_row(str(setting), cells(setting)) for setting in settings],
        ),
    )


def _swatch_name(number: int, one: Contestant) -> str:
    """A network's name beside a piece of its line."""
    return f'{swatch(number)} <b class="t{number % STYLES}">{escape(one.label)}</b>'

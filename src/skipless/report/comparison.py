"""Networks trained side by side, as by the demo: a table, a conclusion, and an HTML page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

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
    "seconds",
)  # fmt: skip

_DIVERGED = -12.0  # percent: the height of the crosses, below all accuracies


@dataclass(frozen=True)
class Contestant:
    """One network of a comparison: what it is, its best run, and the result of every learning rate.

    `grid` has the last validation top-1 (a fraction) of every run by learning rate, NaN for one
    that diverged; `record` and `seconds` are those of the best run.
    """

    label: str
    description: str
    shortcuts: bool
    normalisation: bool
    parameters: int
    curve: CMapCurve | None
    record: Record
    grid: Mapping[float, float]
    seconds: float

    def __post_init__(self) -> None:
        if not self.grid or any(rate <= 0 for rate in self.grid):
            raise ValueError(
                f"{self.label!r} needs at least one run, and learning rates above zero, got "
                f"{sorted(self.grid)}"
            )
        if any(not 0 <= value <= 1 for value in self.grid.values() if not math.isnan(value)):
            raise ValueError(
                f"The accuracies of {self.label!r} must be fractions in [0, 1], got "
                f"{sorted(self.grid.values())}"
            )
        recorded = _last_value(self.record, "validation", "top1")
        # They are the same number, but one may have been rounded.
        if self.learned and not abs(recorded - self.accuracy) <= 1e-6:
            raise ValueError(
                f"{self.label!r} reached {self.accuracy:g} at its best learning rate, but the "
                f"record in {self.record.folder} ends at {recorded:g}. Pass the best run's record."
            )

    @property
    def learned(self) -> bool:
        """Whether any run did not diverge."""
        return not math.isnan(self.accuracy)

    @property
    def best_rate(self) -> float:
        """The learning rate of the best run, the smallest of several; NaN if all diverged."""
        return min((r for r, v in self.grid.items() if v == self.accuracy), default=math.nan)

    @property
    def accuracy(self) -> float:
        """The validation accuracy of the best run; NaN if all diverged."""
        return max((v for v in self.grid.values() if not math.isnan(v)), default=math.nan)


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


def _rows(comparison: NetworkComparison) -> list[list[str]]:
    """One row of text under `HEADER` for each network."""
    return [
        [
            one.label,
            "yes" if one.shortcuts else "no",
            "yes" if one.normalisation else "no",
            f"{one.parameters:,}",
            f"{one.best_rate:g}" if one.learned else "-",
            _percent(_last_value(one.record, "train", "accuracy") if one.learned else math.nan),
            _percent(one.accuracy),
            f"{one.seconds:.0f}",
        ]
        for one in comparison.contestants
    ]


def results_table(comparison: NetworkComparison) -> str:
    """The results for a terminal, as an aligned table of text."""
    return table(HEADER, _rows(comparison))


def conclusion(comparison: NetworkComparison) -> str:
    """Which network came first, by how much, and whether that may be chance, in sentences."""
    learned = (one for one in comparison.contestants if one.learned)
    diverged = [one.label for one in comparison.contestants if not one.learned]
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
    right = f"{_percent(best.accuracy)} of the {images:,} validation images right"
    names = join([one.label for one in first])
    if len(first) > 1:
        sentence = f"{names} come first together: each gets {right}"
    else:
        sentence = f"{names} {'comes first: it gets' if behind else 'gets'} {right}"
    gaps = [
        f"{round(100 * best.accuracy, 1) - round(100 * one.accuracy, 1):.1f} "
        f"{'percentage points ' if number == 0 else ''}more than {one.label} "
        f"({_percent(one.accuracy)})"
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


def rates_chart(contestants: Sequence[Contestant]) -> Chart:
    """The last validation accuracy of every run by learning rate; crosses for diverged ones."""
    rates = _rates(contestants)
    lines = []
    for style, one in enumerate(contestants):
        points = [(rate, 100 * value) for rate, value in sorted(one.grid.items())]
        value = f"best {one.best_rate:g}" if one.learned else "diverged"
        best = sorted(one.grid).index(one.best_rate) if one.learned else None
        lines.append(Line(one.label, value, style, points, range(len(points)), best))
    x = logarithmic_axis("learning rate", rates)
    y = linear_axis("validation accuracy at the end of the run", 0, 100, "%")
    crosses = []
    for rate in rates:
        lost = [n for n, one in enumerate(contestants) if math.isnan(one.grid.get(rate, 0.0))]
        # Runs that diverged at one rate have their crosses side by side.
        step = (x.high / x.low) ** 0.045
        middle = (len(lost) - 1) / 2
        crosses += [(n, rate * step ** (i - middle), _DIVERGED) for i, n in enumerate(lost)]
    if crosses:
        y = replace(y, low=_DIVERGED, ticks=((_DIVERGED, "diverged"), *y.ticks))
    room = (rates[-1] / rates[0]) ** 0.13  # for the number of a rate beside the last one
    spaced = rates[:1]
    for rate in rates[1:]:
        spaced += [rate] * (rate >= spaced[-1] * room)
    return Chart(
        "Every learning rate tried",
        "Validation accuracy by learning rate. " + describe_lines(lines),
        replace(x, ticks=tuple((rate, f"{rate:g}") for rate in spaced)),
        y,
        tuple(lines),
        crosses=tuple(crosses),
    )


def _rates(contestants: Sequence[Contestant]) -> list[float]:
    return sorted({rate for one in contestants for rate in one.grid})


def write_page(path: Path, comparison: NetworkComparison) -> Path:
    """Write the page to `path`, whose folder must exist, and return it."""
    return write_document(path, comparison_page(comparison))


def comparison_page(comparison: NetworkComparison) -> str:
    """The page as text: the result in words and numbers, then why, then how it was made."""
    header = (
        f"<p>{escape(comparison.introduction)}</p>\n"
        f'<p class="conclusion"><strong>In short:</strong> {_coloured_conclusion(comparison)}</p>\n'
    )
    parts = (_c_maps, _training, _all_rates)
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
    rows = []
    for style, (name, *others) in enumerate(_rows(comparison)):
        description = escape(comparison.contestants[style].description)
        named = f'{swatch(style)} {escape(name)}<span class="description">{description}</span>'
        cells = zip(HEADER[1:], others, strict=True)
        rows.append(html_row(named, (f'<td data-name="{k}">{escape(v)}</td>' for k, v in cells)))
    return html_section(
        "The networks and what they reached",
        html_table(
            "Each network at its best learning rate. Training: the share of its training images "
            "that it classifies correctly; validation: the same of "
            f"{comparison.validation_images:,} images that it never trained on.",
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


def _training(contestants: Sequence[Contestant]) -> str:
    runs = ((one.label, one.record, _percent(one.accuracy), not one.learned) for one in contestants)
    return html_section(
        "Training: does it learn?",
        html_figure(
            training_charts(runs),
            "The best run of each network. Training loss: the error on the training images, on a "
            "logarithmic axis. Validation accuracy: the share of images never trained on that are "
            "classified correctly. An epoch is one pass over the training images.",
        ),
    )


def _all_rates(contestants: Sequence[Contestant]) -> str:
    rates = _rates(contestants)
    alike = all(one.grid.keys() == set(rates) for one in contestants)
    rows = []
    for rate in rates:
        words = (_percent(c.grid[rate]) if rate in c.grid else "not tried" for c in contestants)
        kinds = (' class="best"' if rate == one.best_rate else "" for one in contestants)
        cells = (f"<td{kind}>{word}</td>" for kind, word in zip(kinds, words, strict=True))
        rows.append(html_row(f"{rate:g}", cells))
    return html_section(
        "Was every network given its chance?",
        f"<p>{'Every network was' if alike else 'The networks were not all'} trained once with "
        f"each of the {len(rates)} learning rates below; for each, the rate with the highest "
        "validation accuracy was chosen.</p>\n",
        '<div class="charts">\n',
        html_figure(
            [rates_chart(contestants)],
            "Validation accuracy of every run by its learning rate. A ring marks the chosen rate, "
            "a cross a run that diverged.",
        ),
        html_table(
            "The same in numbers; those of the chosen rates are bold.",
            ["learning rate", *(_swatch_name(n, one) for n, one in enumerate(contestants))],
            rows,
        ),
        "</div>\n",
    )


def _swatch_name(number: int, one: Contestant) -> str:
    """A network's name beside a piece of its line."""
    return f'{swatch(number)} <b class="t{number % STYLES}">{escape(one.label)}</b>'

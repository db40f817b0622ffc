"""A comparison of networks as one HTML page that needs no other file and no network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from .charts import (
    accuracy_chart,
    c_map_chart,
    epochs,
    layers_chart,
    loss_chart,
    loss_line,
    rates_chart,
)
from .comparison import (
    HEADER,
    Comparison,
    Contestant,
    conclusion,
    fate_of_two_images,
    percent,
    results,
)
from .document import document, facts_table, figure, section, table, write_document
from .svg import STYLES, Line, swatch


def write_page(path: Path, comparison: Comparison) -> Path:
    """Write the page to `path`, whose folder must exist, and return it."""
    return write_document(path, page(comparison))


def page(comparison: Comparison) -> str:
    """The page as text: the result in words and numbers, then why, then how it was made."""
    header = (
        f"<p>{escape(comparison.introduction)}</p>\n"
        f'<p class="conclusion"><strong>In short:</strong> {_concluded(comparison)}</p>\n'
    )
    sections = [
        _results(comparison),
        _c_maps(comparison.contestants),
        _training(comparison.contestants),
        _rates(comparison.contestants),
        _facts(comparison),
    ]
    return document(comparison.title, header, sections)


def _concluded(comparison: Comparison) -> str:
    """The conclusion, with the networks' names in their colours."""
    names = {escape(one.label): f"t{n % STYLES}" for n, one in enumerate(comparison.contestants)}
    # The longest first, so that a name within another one does not break it.
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    bold = lambda match: f'<b class="{names[match[0]]}">{match[0]}</b>'
    return re.sub(pattern, bold, escape(conclusion(comparison)))


def _results(comparison: Comparison) -> str:
    rows = []
    for number, (one, row) in enumerate(
        zip(comparison.contestants, results(comparison), strict=True)
    ):
        name = (
            f'<th scope="row">{swatch(number)} {escape(row[0])}'
            f'<span class="description">{escape(one.description)}</span></th>'
        )
        cells = (
            f'<td data-name="{escape(column)}">{escape(cell)}</td>'
            for column, cell in zip(HEADER[1:], row[1:], strict=True)
        )
        rows.append(f"<tr>{name}{''.join(cells)}</tr>")
    return section(
        "The networks and what they reached",
        table(
            "Each network at its best learning rate. Training: the share of its training images "
            "that it classifies correctly; validation: the same of "
            f"{comparison.validation_images:,} images that it never trained on.",
            HEADER,
            rows,
            "cards",
        ),
    )


def _c_maps(contestants: Sequence[Contestant]) -> str:
    fates = "".join(
        f"<li>{_named(number, one)}: {escape(fate_of_two_images(one.curve))}</li>"
        for number, one in enumerate(contestants)
        if one.curve is not None
    )
    if not fates:
        return ""
    curves = {
        number: replace(one.curve, label=one.label)
        for number, one in enumerate(contestants)
        if one.curve is not None
    }
    unmapped = [one.label for one in contestants if one.curve is None]
    without = f" No C map was computed for {', '.join(unmapped)}." if unmapped else ""
    return section(
        "Before training: can the network tell two images apart?",
        "<p>Send two images through a network whose weights are still random. Their "
        "<dfn>c value</dfn> is the cosine of the angle between them: 1 if they are identical, "
        "0 if they are unrelated, −1 if they are opposite. Each layer changes it, and "
        "what all layers together make of it is the network’s <dfn>C map</dfn>. Where all "
        "outputs are almost identical, training has nothing to take hold of.</p>\n"
        f"<ul>{fates}</ul>\n",
        figure(
            [c_map_chart(curves), layers_chart(curves)],
            "C maps, as theory predicts them for wide networks. From input to output: the whole "
            "network; on the dotted diagonal nothing would change, and the marks are two unrelated "
            "images. Layer by layer: the way of the same two through the network."
            f"{without}",
        ),
    )


def _training(contestants: Sequence[Contestant]) -> str:
    losses = [
        loss_line(one.label, number, epochs(one.record, "train", "loss"))
        for number, one in enumerate(contestants)
    ]
    accuracies = [
        Line(
            label=one.label,
            value=percent(one.accuracy),
            style=number,
            points=[(x, 100 * y) for x, y in epochs(one.record, "validation", "top1")],
            broken_off=not one.learned,
        )
        for number, one in enumerate(contestants)
    ]
    return section(
        "Training: does it learn?",
        figure(
            [loss_chart(losses), accuracy_chart(accuracies)],
            "The best run of each network. Training loss: the error on the training images, on a "
            "logarithmic axis. Validation accuracy: the share of images never trained on that are "
            "classified correctly. An epoch is one pass over the training images.",
        ),
    )


def _rates(contestants: Sequence[Contestant]) -> str:
    rates = sorted({rate for one in contestants for rate in one.grid})
    alike = all(set(one.grid) == set(rates) for one in contestants)
    rows = [
        f'<tr><th scope="row">{rate:g}</th>{"".join(_ended(one, rate) for one in contestants)}</tr>'
        for rate in rates
    ]
    return section(
        "Was every network given its chance?",
        f"<p>{'Every network was' if alike else 'The networks were not all'} trained once with "
        f"each of the {len(rates)} learning rates below; for each, the rate with the highest "
        "validation accuracy was chosen.</p>\n",
        '<div class="charts">\n',
        figure(
            [rates_chart(contestants)],
            "Validation accuracy of every run by its learning rate. A ring marks the chosen rate, "
            "a cross a run that diverged.",
        ),
        table(
            "The same in numbers; those of the chosen rates are bold.",
            ["learning rate", *(_named(number, one) for number, one in enumerate(contestants))],
            rows,
        ),
        "</div>\n",
    )


def _ended(one: Contestant, rate: float) -> str:
    """The cell of one run in the table of learning rates."""
    words = percent(one.grid[rate]) if rate in one.grid else "not tried"
    return f'<td class="best">{words}</td>' if rate == one.best_rate else f"<td>{words}</td>"


def _facts(comparison: Comparison) -> str:
    if not comparison.facts:
        return ""
    return section("How this page was made", facts_table("Facts of the runs", comparison.facts))


def _named(number: int, one: Contestant) -> str:
    """A network's name beside a piece of its line."""
    return f'{swatch(number)} <b class="t{number % STYLES}">{escape(one.label)}</b>'

"""A comparison of networks as one HTML page that needs no other file and no network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from skipless.record import write_atomically

from .charts import accuracy_chart, c_map_chart, layers_chart, loss_chart, rates_chart
from .comparison import (
    HEADER,
    Comparison,
    Contestant,
    conclusion,
    fate_of_two_images,
    percent,
    results,
)
from .svg import STYLES, Chart, drawn, swatch

_STYLE = Path(__file__).with_name("page.css")


def write_page(path: Path, comparison: Comparison) -> Path:
    """Write the page to `path`, whose folder must exist, and return it."""
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder {path.parent}. Make it first: mkdir -p {path.parent}"
        )
    write_atomically(path, page(comparison))
    return path


def page(comparison: Comparison) -> str:
    """The page as text: the result in words and numbers, then why, then how it was made."""
    sections = [
        _results(comparison),
        _c_maps(comparison.contestants),
        _training(comparison.contestants),
        _rates(comparison.contestants),
        _facts(comparison),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(comparison.title)}</title>
<link rel="icon" href="data:,">
<style>
{_STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<main>
<header>
<h1>{escape(comparison.title)}</h1>
<p>{escape(comparison.introduction)}</p>
<p class="conclusion"><strong>In short:</strong> {_concluded(comparison)}</p>
</header>
{"".join(sections)}</main>
</body>
</html>
"""


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
    return _section(
        "The networks and what they reached",
        _table(
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
    unmapped = [one.label for one in contestants if one.curve is None]
    without = f" No C map was computed for {', '.join(unmapped)}." if unmapped else ""
    return _section(
        "Before training: can the network tell two images apart?",
        "<p>Send two images through a network whose weights are still random. Their "
        "<dfn>c value</dfn> is the cosine of the angle between them: 1 if they are identical, "
        "0 if they are unrelated, −1 if they are opposite. Each layer changes it, and "
        "what all layers together make of it is the network’s <dfn>C map</dfn>. Where all "
        "outputs are almost identical, training has nothing to take hold of.</p>\n"
        f"<ul>{fates}</ul>\n",
        _figure(
            [c_map_chart(contestants), layers_chart(contestants)],
            "C maps, as theory predicts them for wide networks. From input to output: the whole "
            "network; on the dotted diagonal nothing would change, and the marks are two unrelated "
            "images. Layer by layer: the way of the same two through the network."
            f"{without}",
        ),
    )


def _training(contestants: Sequence[Contestant]) -> str:
    return _section(
        "Training: does it learn?",
        _figure(
            [loss_chart(contestants), accuracy_chart(contestants)],
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
    return _section(
        "Was every network given its chance?",
        f"<p>{'Every network was' if alike else 'The networks were not all'} trained once with "
        f"each of the {len(rates)} learning rates below; for each, the rate with the highest "
        "validation accuracy was chosen.</p>\n",
        '<div class="charts">\n',
        _figure(
            [rates_chart(contestants)],
            "Validation accuracy of every run by its learning rate. A ring marks the chosen rate, "
            "a cross a run that diverged.",
        ),
        _table(
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
    rows = [
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in comparison.facts.items()
    ]
    if not rows:
        return ""
    return _section(
        "How this page was made",
        f'<table class="facts"><caption>Facts of the runs</caption><tbody>'
        f"{''.join(rows)}</tbody></table>\n",
    )


def _named(number: int, one: Contestant) -> str:
    """A network's name beside a piece of its line."""
    return f'{swatch(number)} <b class="t{number % STYLES}">{escape(one.label)}</b>'


def _section(heading: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(heading)}</h2>\n{''.join(parts)}</section>\n"


def _figure(charts: Sequence[Chart], caption: str) -> str:
    drawings = "\n".join(drawn(chart) for chart in charts)
    return (
        f'<figure>\n<div class="charts">\n{drawings}\n</div>\n'
        f"<figcaption>{escape(caption)}</figcaption>\n</figure>\n"
    )


def _table(caption: str, header: Sequence[str], rows: Sequence[str], kind: str = "plain") -> str:
    """A table whose header and rows are HTML; where it is too wide, it scrolls or falls into cards.

    The cells of cards bring the name of their column as `data-name`.
    """
    head = "".join(f'<th scope="col">{name}</th>' for name in header)
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(caption)}">\n'
        f'<table class="{kind}"><caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{''.join(rows)}</tbody></table>\n</div>\n"
    )

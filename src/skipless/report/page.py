"""HTML pages that need no other file and no network: their parts, and the page of sections.

The parts are strings; templates would be a dependency more and no shorter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from skipless.record import write_atomically
from skipless.tables import numeric_columns

from .sections import Section, Verdict, require_distinct
from .svg import Chart, page_style, svg_element

_CLASSES = {True: "good", False: "bad", None: "open"}  # of verdicts, in the style sheet


def write_document(path: Path, text: str) -> Path:
    """Write a page to `path`, whose folder must exist, and return it."""
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder {path.parent}. Make it first: mkdir -p {path.parent}"
        )
    write_atomically(path, text)
    return path


def html_document(title: str, header: str, sections: Sequence[str]) -> str:
    """A whole page; `header` and `sections` are HTML."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{page_style()}</style>
</head>
<body>
<main>
<header>
<h1>{escape(title)}</h1>
{header}</header>
{"".join(sections)}</main>
</body>
</html>
"""


def html_section(heading: str, *parts: str, name: str = "") -> str:
    """A section of HTML parts under a heading; `name` is its anchor."""
    anchor = f' id="{escape(name)}"' if name else ""
    return f"<section{anchor}>\n<h2>{escape(heading)}</h2>\n{''.join(parts)}</section>\n"


def html_figure(charts: Sequence[Chart], caption: str = "") -> str:
    """Charts side by side, or below each other on a narrow screen."""
    drawings = "\n".join(svg_element(chart) for chart in charts)
    below = f"<figcaption>{escape(caption)}</figcaption>\n" if caption else ""
    return f'<figure>\n<div class="charts">\n{drawings}\n</div>\n{below}</figure>\n'


def html_table(
    caption: str, header: Sequence[str], rows: Sequence[str], kind: str = "plain"
) -> str:
    """A table whose header and rows are HTML; if it is too wide, it scrolls or falls into cards.

    The cells of cards have the name of their column as `data-name`.
    """
    head = "".join(f'<th scope="col">{name}</th>' for name in header)
    return _scrollable(
        caption,
        f'<table class="{kind}"><caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{''.join(rows)}</tbody></table>\n",
    )


def _scrollable(name: str, content: str) -> str:
    """A part of a page that scrolls by itself if the screen is too narrow for it."""
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(name)}">\n'
        f"{content}</div>\n"
    )


def html_facts(caption: str, facts: Mapping[str, str]) -> str:
    """Names and values, each in a row of its own."""
    rows = [
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in facts.items()
    ]
    return (
        f'<table class="facts"><caption>{escape(caption)}</caption><tbody>'
        f"{''.join(rows)}</tbody></table>\n"
    )


def write_sections_page(
    path: Path, title: str, introduction: str, sections: Sequence[Section]
) -> Path:
    """Write the page to `path`, whose folder must exist, and return it."""
    return write_document(path, sections_page(title, introduction, sections))


def sections_page(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """The page as text: the verdicts on all claims, then every section."""
    require_distinct(sections)
    words = f"<p>{escape(introduction)}</p>\n" if introduction else ""
    return html_document(title, words + _summary(sections), [_section(one) for one in sections])


def _summary(sections: Sequence[Section]) -> str:
    """The verdict on every claim, or else the contents of a page of several sections."""
    verdicts = [verdict for one in sections for verdict in one.verdicts]
    if not verdicts and len(sections) < 2:
        return ""
    count = f"Of {len(verdicts)} claims, {_count(verdicts)}." if len(verdicts) > 1 else ""
    items = "".join(
        f'<li><a href="#{escape(one.name)}">{escape(one.title)}</a>'
        + "".join(
            f'<span class="claim">{_word(verdict)} {escape(verdict.claim)}</span>'
            for verdict in one.verdicts
        )
        + "</li>\n"
        for one in sections
    )
    return f'<p class="conclusion">{count}</p>\n' * bool(count) + f"<ul>\n{items}</ul>\n"


def _count(verdicts: Sequence[Verdict]) -> str:
    """How many claims hold, do not hold and were not run; those with none are left out."""
    words = {
        True: ("holds", "hold"),
        False: ("does not hold", "do not hold"),
        None: ("was not run", "were not run"),
    }
    counts = {holds: sum(verdict.holds is holds for verdict in verdicts) for holds in words}
    return ", ".join(f"{n} {words[holds][n > 1]}" for holds, n in counts.items() if n)


def _word(verdict: Verdict) -> str:
    return f'<b class="{_CLASSES[verdict.holds]}">{verdict.word}</b>'


def _section(one: Section) -> str:
    parts = [f"<p>{escape(one.introduction)}</p>\n"] if one.introduction else []
    if one.verdicts:
        items = "".join(
            f"<li>{_word(verdict)} {escape(verdict.claim)}"
            + f'<span class="claim">{escape(verdict.evidence)}</span>' * bool(verdict.evidence)
            + "</li>\n"
            for verdict in one.verdicts
        )
        parts.append(f'<ul class="verdicts">\n{items}</ul>\n')
    if one.rows:
        parts.append(_table(one))
    if one.charts:
        parts.append(html_figure(one.charts))
    if one.facts:
        parts.append(html_facts("How it was made", one.facts))
    return html_section(one.title, *parts, name=one.name)


def _table(one: Section) -> str:
    """The section's table, whose first column names the rows."""
    numeric = numeric_columns(len(one.header), one.rows)
    kinds = ["" if right else ' class="words"' for right in numeric]
    names = zip(one.header, kinds, strict=True)
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in names)
    rows = []
    for first, *others in one.rows:
        cells = zip(others, kinds[1:], strict=True)
        rest = "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in cells)
        rows.append(f'<tr><th scope="row">{escape(first)}</th>{rest}</tr>')
    return _scrollable(
        one.title,
        f'<table class="numbers">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>{''.join(rows)}</tbody></table>\n",
    )

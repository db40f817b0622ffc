"""Sections as one HTML page: what became of all claims, then table, verdicts and charts of each."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from .document import document, facts_table, figure, section, wide, write_document
from .sections import Section, Verdict, demand_distinct
from .tables import numeric_columns

_KINDS = {True: "good", False: "bad", None: "open"}  # classes of the style sheet


def write_sections_page(
    path: Path, title: str, introduction: str, sections: Sequence[Section]
) -> Path:
    """Write the page to `path`, whose folder must exist, and return it."""
    return write_document(path, sections_page(title, introduction, sections))


def sections_page(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """The page as text."""
    demand_distinct(sections)
    words = f"<p>{escape(introduction)}</p>\n" if introduction else ""
    return document(title, words + _summary(sections), [_section(one) for one in sections])


def _summary(sections: Sequence[Section]) -> str:
    """What became of every claim, or else the contents of a page of several sections."""
    verdicts = [verdict for one in sections for verdict in one.verdicts]
    if not verdicts and len(sections) < 2:
        return ""
    said = f"Of {len(verdicts)} claims, {_counted(verdicts)}." if len(verdicts) > 1 else ""
    items = "".join(
        f'<li><a href="#{escape(one.name)}">{escape(one.title)}</a>{_claims(one.verdicts)}</li>\n'
        for one in sections
    )
    return f'<p class="conclusion">{said}</p>\n' * bool(said) + f"<ul>\n{items}</ul>\n"


def _counted(verdicts: Sequence[Verdict]) -> str:
    """How many claims hold, do not hold and were not run, as far as there are any."""
    words = {
        True: ("holds", "hold"),
        False: ("does not hold", "do not hold"),
        None: ("was not run", "were not run"),
    }
    counts = {holds: sum(verdict.holds is holds for verdict in verdicts) for holds in words}
    return ", ".join(f"{n} {words[holds][n > 1]}" for holds, n in counts.items() if n)


def _claims(verdicts: Sequence[Verdict]) -> str:
    """The claims of a section in short, below its name."""
    return "".join(
        f'<span class="claim">{_word(verdict)} {escape(verdict.claim)}</span>'
        for verdict in verdicts
    )


def _word(verdict: Verdict) -> str:
    return f'<b class="{_KINDS[verdict.holds]}">{verdict.word}</b>'


def _section(one: Section) -> str:
    parts = [f"<p>{escape(one.introduction)}</p>\n"] if one.introduction else []
    if one.verdicts:
        items = "".join(f"<li>{_told(verdict)}</li>\n" for verdict in one.verdicts)
        parts.append(f'<ul class="verdicts">\n{items}</ul>\n')
    if one.rows:
        parts.append(_table(one))
    if one.charts:
        parts.append(figure(one.charts))
    if one.facts:
        parts.append(facts_table("How it was made", one.facts))
    return section(one.title, *parts, name=one.name)


def _told(verdict: Verdict) -> str:
    evidence = f'<span class="claim">{escape(verdict.evidence)}</span>' if verdict.evidence else ""
    return f"{_word(verdict)} {escape(verdict.claim)}{evidence}"


def _table(one: Section) -> str:
    """The section's table, whose first column names the rows."""
    kinds = [
        "" if right else ' class="words"' for right in numeric_columns(len(one.header), one.rows)
    ]
    names = zip(one.header, kinds, strict=True)
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in names)
    rows = []
    for first, *others in one.rows:
        cells = zip(others, kinds[1:], strict=True)
        rest = "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in cells)
        rows.append(f'<tr><th scope="row">{escape(first)}</th>{rest}</tr>')
    return wide(
        one.title,
        f'<table class="numbers">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>{''.join(rows)}</tbody></table>\n",
    )

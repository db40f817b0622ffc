"""Sections as text for a terminal."""

from __future__ import annotations

from textwrap import fill

from .sections import Section, Verdict
from .tables import table

_COLUMNS = 100


def text(section: Section) -> str:
    """A section with its table in aligned columns, and all else wrapped at 100 columns.

    >>> claim = Verdict("It is so.", True, "")
    >>> print(text(Section("t1", "Table 1", "", ["c"], [["0.9"]], [claim])))
    Table 1
    =======
    <BLANKLINE>
      c
    ---
    0.9
    <BLANKLINE>
    holds: It is so.
    """
    parts = [f"{section.title}\n{'=' * len(section.title)}"]
    if section.introduction:
        parts.append(fill(section.introduction, _COLUMNS))
    if section.rows:
        parts.append(table(section.header, section.rows))
    if section.verdicts:
        parts.append("\n".join(_told(verdict) for verdict in section.verdicts))
    if section.facts:
        facts = "; ".join(f"{name}: {value}" for name, value in section.facts.items())
        parts.append(fill(facts, _COLUMNS))
    return "\n\n".join(parts)


def _told(verdict: Verdict) -> str:
    words = f"{verdict.word}: {verdict.claim} {verdict.evidence}".rstrip()
    return fill(words, _COLUMNS, subsequent_indent="    ", break_on_hyphens=False)

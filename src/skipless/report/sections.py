"""Sections of a report: a table, the claims about it with their verdicts, and charts.

They become text for a terminal, Markdown, with charts as files, or HTML (see `page`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import Literal

from skipless.tables import numeric_columns, table

from .svg import Chart, svg_file

IMAGES = "images/results"  # the folder of the charts, from that of the text

_COLUMNS = 100
# What Python-Markdown, with mkdocs.yml's extensions, or GitHub would take for more than text; an
# underscore only at the edge of a word, so that C_f(0) is left as it is.
_MARKUP = re.compile(r"[\\`*\[\]{$|]|(?<!\w)_|_(?!\w)")


Word = Literal["holds", "does not hold", "undecided", "not run"]


def word(holds: bool) -> Word:
    """The verdict on a claim in which there is no chance."""
    return "holds" if holds else "does not hold"


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and the evidence."""

    claim: str
    word: Word
    evidence: str


@dataclass(frozen=True)
class Section:
    """One part of a report; its anchor and the files of its charts are called `name`."""

    name: str
    title: str
    introduction: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]  # a label that starts with spaces is part of the row above
    verdicts: Sequence[Verdict] = ()
    charts: Sequence[Chart] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    conclusion: Sequence[str] = ()  # sentences


def require_distinct(sections: Sequence[Section]) -> None:
    """Raise if two sections have one name, since their anchors and files would be the same."""
    names = [section.name for section in sections]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"Sections need different names, got {twice[0]!r} more than once")


def section_text(section: Section) -> str:
    """A section with its table in aligned columns, and all else wrapped at 100 columns.

    >>> claim = Verdict("It is so.", "holds", "")
    >>> print(section_text(Section("t1", "Table 1", "", ["c"], [["0.9"]], [claim])))
    Table 1
    =======
    <BLANKLINE>
      c
    ---
    0.9
    <BLANKLINE>
    holds: It is so.
    """
    verdicts = (f"{v.word}: {v.claim} {v.evidence}".rstrip() for v in section.verdicts)
    wrap = lambda line: fill(line, _COLUMNS, subsequent_indent="    ", break_on_hyphens=False)
    parts = [
        f"{section.title}\n{'=' * len(section.title)}",
        fill(section.introduction, _COLUMNS),
        table(section.header, section.rows) if section.rows else "",
        "\n".join(map(wrap, verdicts)),
        fill("; ".join(f"{name}: {value}" for name, value in section.facts.items()), _COLUMNS),
    ]
    return "\n\n".join(filter(None, parts))


def markdown(sections: Sequence[Section]) -> str:
    """All sections, each with an anchor, its table, verdicts, charts and facts."""
    require_distinct(sections)
    return "\n".join(_markdown_section(section) for section in sections)


def chart_files(sections: Sequence[Section]) -> dict[str, str]:
    """The charts of all sections as SVG files, by the names under which `markdown` shows them."""
    require_distinct(sections)
    return {name: svg_file(chart) for one in sections for name, chart in _named_charts(one)}


def summary_table(sections: Sequence[Section], page: str = "") -> str:
    """A table with one row for each claim, which links to its section on `page`.

    >>> claim = Verdict("It trains.", "holds", "")
    >>> print(summary_table([Section("t1", "Table 1", "", ["c"], [], [claim])], "docs/results.md"))
    | item | claim | verdict |
    | :--- | :--- | :--- |
    | [Table 1](docs/results.md#t1) | It trains. | **holds** |
    <BLANKLINE>
    """
    rows = [
        f"| [{escape_markdown(one.title)}]({page}#{one.name}) | {escape_markdown(verdict.claim)} "
        f"| **{verdict.word}** |\n"
        for one in sections
        for verdict in one.verdicts
    ]
    return "| item | claim | verdict |\n| :--- | :--- | :--- |\n" + "".join(rows)


def escape_markdown(words: str) -> str:
    r"""Words on one line, such that Markdown shows them as they are.

    >>> print(escape_markdown("|C_f(0)| < *1*"))
    \|C_f(0)\| &lt; \*1\*
    """
    line = " ".join(words.split()).replace("&", "&amp;").replace("<", "&lt;")
    return _MARKUP.sub(lambda found: "\\" + found[0], line)


def _markdown_section(section: Section) -> str:
    escape = escape_markdown
    parts = [f"## {escape(section.title)} {{#{section.name}}}\n"]
    if section.introduction:
        parts.append(f"{escape(section.introduction)}\n")
    if section.rows:
        numeric = numeric_columns(len(section.header), section.rows)
        rules = ["---:" if right else ":---" for right in numeric]
        rows = (
            ["&emsp;" * row[0].startswith(" ") + escape(row[0]), *map(escape, row[1:])]
            for row in section.rows
        )
        lines = [map(escape, section.header), rules, *rows]
        parts.append("".join(f"| {' | '.join(line)} |\n" for line in lines))
    if section.verdicts:
        claims = ((v.word, f"{escape(v.claim)} {escape(v.evidence)}") for v in section.verdicts)
        parts.append("".join(f"- **{word}** - {claim.rstrip()}\n" for word, claim in claims))
    charts = _named_charts(section)
    parts += [f"![{escape(chart.description)}]({IMAGES}/{name})\n" for name, chart in charts]
    if section.facts:
        facts = "; ".join(f"{escape(name)}: {escape(v)}" for name, v in section.facts.items())
        parts.append(f"<small>{facts}</small>\n")
    return "\n".join(parts)


def _named_charts(section: Section) -> list[tuple[str, Chart]]:
    return [(f"{section.name}-{n}.svg", chart) for n, chart in enumerate(section.charts, 1)]

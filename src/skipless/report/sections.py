"""Sections of a report: a table, the claims about it with their verdicts, and charts.

Whatever is reported, an item of the paper or runs side by side, becomes sections first; they are
turned into text for a terminal, Markdown for the documentation, or HTML for a page of its own.

Sections as text for a terminal.

Sections as Markdown, for the documentation and README, and their charts as files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill

from skipless.tables import numeric_columns, table

from .svg import Chart, standalone


@dataclass(frozen=True)
class Verdict:
    """What became of a claim: whether it holds, None if it was not run, and what was measured."""

    claim: str
    holds: bool | None
    evidence: str

    @property
    def word(self) -> str:
        """The verdict in words.

        >>> Verdict("water is wet", None, "").word
        'not run'
        """
        return {True: "holds", False: "does not hold", None: "not run"}[self.holds]


@dataclass(frozen=True)
class Section:
    """One part of a report; `name` is that of its anchor and of the files of its charts.

    Cells are texts as they are to be read; columns of numbers are aligned by whoever sets them.
    """

    name: str
    title: str
    introduction: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    verdicts: Sequence[Verdict] = ()
    charts: Sequence[Chart] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def demand_distinct(sections: Sequence[Section]) -> None:
    """Refuse sections of one name, whose anchors and files would be the same."""
    names = [section.name for section in sections]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"{len(sections)} sections were to be reported, but more than one is called "
            f"{twice[0]!r}. Give each a name of its own."
        )


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
        parts.append("\n".join(_verdict_as_text(verdict) for verdict in section.verdicts))
    if section.facts:
        facts = "; ".join(f"{name}: {value}" for name, value in section.facts.items())
        parts.append(fill(facts, _COLUMNS))
    return "\n\n".join(parts)


def _verdict_as_text(verdict: Verdict) -> str:
    words = f"{verdict.word}: {verdict.claim} {verdict.evidence}".rstrip()
    return fill(words, _COLUMNS, subsequent_indent="    ", break_on_hyphens=False)


IMAGES = "images/results"  # the folder of the charts, from that of the text

# What Python-Markdown, with mkdocs.yml's extensions, or GitHub would take for more than text; an
# underscore only at the edge of a word, so that C_f(0) is left as it is.
_MEANT = re.compile(r"[\\`*\[\]{$|]|(?<!\w)_|_(?!\w)")


def markdown(sections: Sequence[Section]) -> str:
    """All sections, each with an anchor, its table, verdicts, charts and facts."""
    demand_distinct(sections)
    return "\n".join(_section(section) for section in sections)


def chart_files(sections: Sequence[Section]) -> dict[str, str]:
    """The charts of all sections as SVG files, by the names under which `markdown` shows them."""
    demand_distinct(sections)
    return {
        name: standalone(chart) for section in sections for name, chart in _named_charts(section)
    }


def summary_table(sections: Sequence[Section], page: str = "") -> str:
    """A table with one row for each claim, which links to its section on `page`.

    >>> claim = Verdict("It trains.", True, "")
    >>> print(summary_table([Section("t1", "Table 1", "", ["c"], [], [claim])], "docs/results.md"))
    | item | claim | verdict |
    | :--- | :--- | :--- |
    | [Table 1](docs/results.md#t1) | It trains. | **holds** |
    <BLANKLINE>
    """
    rows = [
        f"| [{escaped(section.title)}]({page}#{section.name}) | {escaped(verdict.claim)} "
        f"| **{verdict.word}** |\n"
        for section in sections
        for verdict in section.verdicts
    ]
    return "| item | claim | verdict |\n| :--- | :--- | :--- |\n" + "".join(rows)


def escaped(words: str) -> str:
    r"""Words on one line, such that Markdown shows them as they are.

    >>> print(escaped("|C_f(0)| < *1*"))
    \|C_f(0)\| &lt; \*1\*
    """
    line = " ".join(words.split()).replace("&", "&amp;").replace("<", "&lt;")
    return _MEANT.sub(lambda found: "\\" + found[0], line)


def _section(section: Section) -> str:
    parts = [f"## {escaped(section.title)} {{#{section.name}}}\n"]
    if section.introduction:
        parts.append(f"{escaped(section.introduction)}\n")
    if section.rows:
        parts.append(_table(section.header, section.rows))
    if section.verdicts:
        parts.append(
            "".join(f"- {_verdict_as_markdown(verdict)}\n" for verdict in section.verdicts)
        )
    parts += [
        f"![{escaped(chart.description)}]({IMAGES}/{name})\n"
        for name, chart in _named_charts(section)
    ]
    if section.facts:
        parts.append(f"<small>{_facts(section.facts)}</small>\n")
    return "\n".join(parts)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rules = ["---:" if right else ":---" for right in numeric_columns(len(header), rows)]
    lines = [[escaped(name) for name in header], rules, *([escaped(c) for c in r] for r in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _verdict_as_markdown(verdict: Verdict) -> str:
    return f"**{verdict.word}** - {escaped(verdict.claim)} {escaped(verdict.evidence)}".rstrip()


def _facts(facts: Mapping[str, str]) -> str:
    return "; ".join(f"{escaped(name)}: {escaped(value)}" for name, value in facts.items())


def _named_charts(section: Section) -> Iterator[tuple[str, Chart]]:
    for number, chart in enumerate(section.charts, 1):
        yield f"{section.name}-{number}.svg", chart

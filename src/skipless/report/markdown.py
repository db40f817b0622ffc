"""Sections as Markdown, for the documentation and README, and their charts as files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from .sections import Section, Verdict, demand_distinct
from .svg import Chart, standalone
from .tables import numeric_columns

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
        parts.append("".join(f"- {_told(verdict)}\n" for verdict in section.verdicts))
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


def _told(verdict: Verdict) -> str:
    return f"**{verdict.word}** - {escaped(verdict.claim)} {escaped(verdict.evidence)}".rstrip()


def _facts(facts: Mapping[str, str]) -> str:
    return "; ".join(f"{escaped(name)}: {escaped(value)}" for name, value in facts.items())


def _named_charts(section: Section) -> Iterator[tuple[str, Chart]]:
    for number, chart in enumerate(section.charts, 1):
        yield f"{section.name}-{number}.svg", chart

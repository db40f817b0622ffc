"""Sections of a report: a table, the claims about it with their verdicts, and charts.

Whatever is reported, an item of the paper or runs side by side, becomes sections first; they are
turned into text for a terminal, Markdown for the documentation, or HTML for a page of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .svg import Chart


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

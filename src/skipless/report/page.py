"""HTML pages that need no other file and no network: their parts, and the page of sections."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from skipless.files import write_atomically
from skipless.tables import numeric_columns

from .sections import Section, Verdict, Word, require_distinct
from .svg import Chart, page_style, svg_element

# Whatever a name on a page may be taken for, nothing is fetched, run or sent.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
_POLICY += "form-action 'none'"


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
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
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
    name: str,
    header: Sequence[str],
    rows: Iterable[str],
    kind: str = "plain",
    attributes: Sequence[str] = (),
) -> str:
    """A table whose header and rows are HTML; if it is too wide, it scrolls or falls into cards.

    `kind` is "plain", "cards", whose cells have the name of their column as `data-name`, or
    "numbers", which has no caption. `attributes` are those of the names of the columns.
    """
    caption = "" if kind == "numbers" else f"<caption>{escape(name)}</caption>"
    columns = zip(header, attributes or [""] * len(header), strict=True)
    head = "".join(f'<th scope="col"{own}>{words}</th>' for words, own in columns)
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(name)}">\n'
        f'<table class="{kind}">{caption}\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>{''.join(rows)}</tbody></table>\n</div>\n"
    )


def html_row(name: str, cells: Iterable[str], kind: str = "") -> str:
    """A row of a table from HTML: its name, and its cells; of the kind "part", it is indented."""
    own = f' class="{kind}"' if kind else ""
    return f'<tr{own}><th scope="row">{name}</th>{"".join(cells)}</tr>'


def html_facts(caption: str, facts: Mapping[str, str]) -> str:
    """Names and values, each in a row of its own."""
    rows = [html_row(escape(name), [f"<td>{escape(v)}</td>"]) for name, v in facts.items()]
    head = f'<table class="facts"><caption>{escape(caption)}</caption>'
    return f"{head}<tbody>{''.join(rows)}</tbody></table>\n"


def write_sections_page(
    path: Path, title: str, sections: Sequence[Section], *, summary: bool = True
) -> Path:
    """Write the page to `path`, whose folder must exist, and return it."""
    return write_document(path, sections_page(title, sections, summary=summary))


def sections_page(title: str, sections: Sequence[Section], *, summary: bool = True) -> str:
    """The page as text: with `summary` the verdicts on all claims, then every section."""
    require_distinct(sections)
    header = _summary(sections) if summary else ""
    return html_document(title, header, [_section(one) for one in sections])


def _summary(sections: Sequence[Section]) -> str:
    """The verdict on every claim, or else the contents of a page of several sections."""
    verdicts = [verdict for one in sections for verdict in one.verdicts]
    if not verdicts and len(sections) < 2:
        return ""
    items = []
    for one in sections:
        claims = (f'<span class="claim">{_judged(verdict)}</span>' for verdict in one.verdicts)
        link = f'<a href="#{escape(one.name)}">{escape(one.title)}</a>'
        items.append(f"<li>{link}{''.join(claims)}</li>\n")
    concluded = any(one.conclusion for one in sections)  # then the claims are not the main thing
    counted = len(verdicts) > 1 and not concluded
    count = f"Of {len(verdicts)} claims, {_count(verdicts)}." if counted else ""
    return f'<p class="conclusion">{count}</p>\n' * bool(count) + f"<ul>\n{''.join(items)}</ul>\n"


def _count(verdicts: Sequence[Verdict]) -> str:
    """How many claims have each verdict; verdicts of none are left out."""
    plural: dict[Word, str] = {
        "holds": "hold",
        "does not hold": "do not hold",
        "undecided": "are undecided",
        "not run": "were not run",
    }
    one: dict[Word, str] = {
        "holds": "holds",
        "does not hold": "does not hold",
        "undecided": "is undecided",
        "not run": "was not run",
    }
    counts = {word: sum(verdict.word == word for verdict in verdicts) for word in plural}
    return ", ".join(f"{n} {(plural if n > 1 else one)[word]}" for word, n in counts.items() if n)


def _judged(verdict: Verdict) -> str:
    """A claim after the verdict on it."""
    kind = {"holds": "good", "does not hold": "bad"}.get(verdict.word, "open")  # of the style sheet
    return f'<b class="{kind}">{verdict.word}</b> {escape(verdict.claim)}'


def _section(one: Section) -> str:
    parts = [f"<p>{escape(one.introduction)}</p>\n"] if one.introduction else []
    if one.conclusion:
        items = "".join(f"<li>{escape(sentence)}</li>\n" for sentence in one.conclusion)
        parts.insert(0, f'<ul class="conclusion">\n{items}</ul>\n')
    if one.verdicts:
        items = "".join(
            f"<li>{_judged(verdict)}"
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
    rows = []
    for name, *others in one.rows:
        cells = zip(others, kinds[1:], strict=True)
        html = (f"<td{kind}>{escape(c)}</td>" for c, kind in cells)
        rows.append(html_row(escape(name.strip()), html, "part" if name.startswith(" ") else ""))
    return html_table(one.title, list(map(escape, one.header)), rows, "numbers", kinds)

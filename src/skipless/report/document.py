"""The parts that every HTML page of ours is made of; a page needs no other file and no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from skipless.record import write_atomically

from .style import page_style
from .svg import Chart, drawn


def write_document(path: Path, text: str) -> Path:
    """Write a page to `path`, whose folder must exist, and return it."""
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder {path.parent}. Make it first: mkdir -p {path.parent}"
        )
    write_atomically(path, text)
    return path


def document(title: str, header: str, sections: Sequence[str]) -> str:
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


def section(heading: str, *parts: str, name: str = "") -> str:
    """A section of HTML parts under a heading; `name` is its anchor."""
    anchor = f' id="{escape(name)}"' if name else ""
    return f"<section{anchor}>\n<h2>{escape(heading)}</h2>\n{''.join(parts)}</section>\n"


def figure(charts: Sequence[Chart], caption: str = "") -> str:
    """Charts side by side, or below each other where that is too narrow."""
    drawings = "\n".join(drawn(chart) for chart in charts)
    below = f"<figcaption>{escape(caption)}</figcaption>\n" if caption else ""
    return f'<figure>\n<div class="charts">\n{drawings}\n</div>\n{below}</figure>\n'


def table(caption: str, header: Sequence[str], rows: Sequence[str], kind: str = "plain") -> str:
    """A table whose header and rows are HTML; where it is too wide, it scrolls or falls into cards.

    The cells of cards bring the name of their column as `data-name`.
    """
    head = "".join(f'<th scope="col">{name}</th>' for name in header)
    return wide(
        caption,
        f'<table class="{kind}"><caption>{escape(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{''.join(rows)}</tbody></table>\n",
    )


def wide(name: str, content: str) -> str:
    """A part of a page that scrolls by itself where the screen is too narrow for it."""
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(name)}">\n'
        f"{content}</div>\n"
    )


def facts_table(caption: str, facts: Mapping[str, str]) -> str:
    """Names and values, each in a row of its own."""
    rows = [
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in facts.items()
    ]
    return (
        f'<table class="facts"><caption>{escape(caption)}</caption><tbody>'
        f"{''.join(rows)}</tbody></table>\n"
    )

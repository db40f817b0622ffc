"""The tables and figures of the paper's source, as far as tests need them.

The source is not ours to ship. It is looked for in the folder that $SKIPLESS_PAPER names, and in
`shared/paper` beside this repository; what tests must know without it is in `published.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "paper"

_FLOAT = re.compile(
    r"\\begin\{(?:wrap)?(table|figure)\*?\}(.*?)\\end\{(?:wrap)?\1\*?\}", flags=re.DOTALL
)
_PANEL = re.compile(r"\\begin\{subfigure\}.*?\\end\{subfigure\}", flags=re.DOTALL)
_LABEL = re.compile(r"\\label\{([^}]*)\}")


def paper_source() -> str | None:
    """The paper's LaTeX, or None where it is not at hand."""
    folder = Path(os.environ.get("SKIPLESS_PAPER", BESIDE))
    texts = (
        [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*"))]
        if folder.is_dir()
        else []
    )
    return next(
        (text for text in texts if r"\begin{document}" in text or r"\section{" in text), None
    )


def floats(source: str) -> Iterator[tuple[str, str, str]]:
    """Kind ("table" or "figure"), first label, and body of each, in the order of their numbers."""
    for found in _FLOAT.finditer(source):
        body = _PANEL.sub("", found[2])
        yield found[1], _LABEL.findall(body)[0], body


def accuracies(body: str) -> list[float]:
    """All accuracies that a table prints: numbers of two digits and one behind the point."""
    tabular = body[body.index(r"\midrule") : body.index(r"\end{tabular}")]
    return [float(number) for number in re.findall(r"(?<![\d.])(\d\d\.\d)(?![\d.])", tabular)]

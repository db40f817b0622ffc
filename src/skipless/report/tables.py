"""Plain-text tables."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in aligned columns under a header, the first column to the left.

    >>> print(table(["method", "c"], [["EOC", "0.99"], ["TAT", "0.9"]]))
    method     c
    ------  ----
    EOC     0.99
    TAT      0.9
    """
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in [cells[0], ["-" * w for w in widths], *cells[1:]]
    ]
    return "\n".join(line.rstrip() for line in lines)

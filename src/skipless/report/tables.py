"""Plain-text tables."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in aligned columns under a header: words to the left, numbers to the right.

    >>> print(table(["method", "c"], [["EOC", "0.99"], ["TAT", "0.9"]]))
    method     c
    ------  ----
    EOC     0.99
    TAT      0.9
    """
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    numeric = [all(row[i][:1] in "-.0123456789" for row in rows) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        for row in [cells[0], ["-" * width for width in widths], *cells[1:]]
    ]
    return "\n".join(line.rstrip() for line in lines)

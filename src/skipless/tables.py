"""Plain-text tables."""

import re
from collections.abc import Sequence

_STARTS_AS_NUMBER = re.compile(r"[-−+±<>≤≥≈~]?\s?\.?\d")


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
    numeric = numeric_columns(len(header), rows)
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        for row in [cells[0], ["-" * width for width in widths], *cells[1:]]
    ]
    return "\n".join(line.rstrip() for line in lines)


def numeric_columns(count: int, rows: Sequence[Sequence[str]]) -> list[bool]:
    """Which columns are of numbers: those with more cells of numbers than of words.

    Empty cells and dashes count as neither; "diverged" among accuracies is outvoted.

    >>> numeric_columns(2, [["50 layers", "97.2%"], ["MLP", "diverged"], ["ResNet", "0.9 ± 0.1"]])
    [False, True]
    """
    columns = [[row[i] for row in rows if row[i].strip(" -–—")] for i in range(count)]
    return [sum(map(is_number, column)) * 2 > len(column) for column in columns]


def is_number(cell: str) -> bool:
    """Whether a cell starts as a number does, and has fewer letters than other characters.

    >>> [is_number(cell) for cell in ("−0.5", "12 of 20", "3e-4 s", "50, K-FAC", "mlp50")]
    [True, True, True, False, False]
    """
    letters = sum(character.isalpha() for character in cell)
    return _STARTS_AS_NUMBER.match(cell) is not None and 2 * letters < len(cell.replace(" ", ""))

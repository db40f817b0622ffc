"""The layers of a network in few rows, for tables that people read."""

import math
import re
from collections.abc import Sequence

from .graph import Node, Nonlinearity

_LAYER = ("Affine", "Activation")
_LONGEST_PATTERN = 8  # of rows that repeat
_WIDEST = 38  # names fit a terminal
_FIRST, _LAST = 12, 8  # rows that are shown of a long table
_IN_A_SEQUENTIAL = re.compile(r"(\w*[A-Za-z]\w*) ([\d.]+)")  # such as "Linear 12", "Conv2d 0.3"
_SOURCE_LINE = re.compile(r"(?<=\S) \(.*\)$")


def kind_of(node: Node) -> str:
    """What a node is called in tables and records: its type, or "Activation"."""
    return "Activation" if isinstance(node, Nonlinearity) else type(node).__name__


def layer_rows(kinds: Sequence[str]) -> list[list[int]]:
    """The places of nodes of these `kinds`, by row: equal consecutive layers share one.

    A layer is an affine map with its activation. Rows that repeat, as the layers and the sum of a
    residual block do, are shown once.

    >>> layer_rows(["Input", "Affine", "Activation", "Affine", "Activation"])
    [[0], [1, 2, 3, 4]]
    >>> layer_rows(["Affine", "Sum", "Affine", "Sum"])
    [[0, 2], [1, 3]]
    """
    runs: list[tuple[str, list[int]]] = []
    for place, kind in enumerate("layer" if kind in _LAYER else kind for kind in kinds):
        if not runs or runs[-1][0] != kind:
            runs.append((kind, []))
        runs[-1][1].append(place)
    keys = [f"{kind} {len(places)}" for kind, places in runs]
    rows: list[list[int]] = []
    at = 0
    while at < len(runs):
        period, times = _repetition(keys, at)
        for offset in range(period):
            repeats = runs[at + offset : at + period * times : period]
            rows.append([place for _, places in repeats for place in places])
        at += period * times
    return rows


def _repetition(keys: Sequence[str], at: int) -> tuple[int, int]:
    """The length of the shortest pattern that repeats from `at` on, and how often it occurs."""
    for period in range(1, _LONGEST_PATTERN + 1):
        pattern, times = keys[at : at + period], 1
        while keys[at + times * period : at + (times + 1) * period] == pattern:
            times += 1
        if times > 1:
            return period, times
    return 1, 1


def row_name(nodes: Sequence[tuple[str, str]]) -> str:
    """What a row of nodes, each a kind and an origin, is called: by its layers, if it has any.

    >>> row_name([("Affine", "Linear 0"), ("Activation", "ReLU 1"), ("Affine", "Linear 2")])
    'Linear 0-2 (2)'
    """
    kind = nodes[0][0]
    if kind == "Input":
        return "input"
    layers = [origin for kind, origin in nodes if kind == "Affine"]
    if layers:
        return name_range(layers) if any(layers) else f"{len(layers)} layers"
    return _shorten(f"{kind} {name_range([origin for _, origin in nodes])}".rstrip())


def name_range(names: Sequence[str]) -> str:
    """The first and the last of `names`, and how many there are.

    >>> name_range(["Linear 0", "Linear 3", "Linear 6"]), name_range(["conv1 (net.py:9)"])
    ('Linear 0-6 (3)', 'conv1 (net.py:9)')
    >>> name_range(["conv1 (net.py:9)", "fc (net.py:12)"])
    'conv1 … fc (2)'
    """
    if len(names) == 1:
        return _shorten(names[0])
    first, last = (_SOURCE_LINE.sub("", name) for name in (names[0], names[-1]))
    a, b = (_IN_A_SEQUENTIAL.fullmatch(name) for name in (first, last))
    count = f" ({len(names)})"
    if first == last:
        return _shorten(first + count).strip()
    if a and b and a[1] == b[1]:
        return f"{first}-{b[2]}{count}"
    room = (_WIDEST - len(count) - 3) // 2
    return f"{_shorten(first, room)} … {_shorten(last, room)}{count}"


def number_range(numbers: Sequence[float], digits: int = 3) -> str:
    """The smallest and the largest of `numbers`, or the only one.

    >>> number_range([0.25, 1.0, 0.5]), number_range([1.0, 1.00001])
    ('0.250…1.000', '1.000')
    """
    known = [number for number in numbers if not math.isnan(number)] or [math.nan]
    ends = [f"{round(number, digits) + 0.0:.{digits}f}" for number in (min(known), max(known))]
    return "…".join(dict.fromkeys(ends))


def abbreviate(rows: Sequence[list[str]]) -> list[list[str]]:
    """`rows`, or of a long table those at both ends."""
    hidden = len(rows) - _FIRST - _LAST
    if hidden < 2:
        return list(rows)
    gap = [f"… {hidden} more …", *([""] * (len(rows[0]) - 1))]
    return [*rows[:_FIRST], gap, *rows[-_LAST:]]


def _shorten(name: str, widest: int = _WIDEST) -> str:
    half = (widest - 1) // 2
    return name if len(name) <= widest else f"{name[:half]}…{name[-half:]}"

"""Where labels of a chart go, and how their words are broken into lines."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

GAP = 5  # between labels


def apart(
    wanted: Sequence[float], heights: Sequence[float], low: float, high: float, gap: float = GAP
) -> list[float]:
    """Centres near the wanted ones, which rise, such that boxes around them do not overlap.

    >>> apart([10, 12, 50], [10, 10, 10], 0, 60, gap=0)
    [10, 20.0, 50]
    """
    centres = list(wanted)
    edge = low
    for i, height in enumerate(heights):
        centres[i] = max(centres[i], edge + height / 2)
        edge = centres[i] + height / 2 + gap
    edge = high
    for i in reversed(range(len(centres))):
        centres[i] = min(centres[i], edge - heights[i] / 2)
        edge = centres[i] - heights[i] / 2 - gap
    return centres


def balanced(words: str, width: int) -> list[str]:
    """Words in as few lines as `width` characters allow, and the lines as even as may be.

    >>> balanced("Vanilla, TReLU (TAT)", 14)
    ['Vanilla,', 'TReLU (TAT)']
    >>> balanced("vanilla, TReLU", 11)  # not within a word, if that can be
    ['vanilla,', 'TReLU']
    """
    fewest = len(wrap(words, width))
    longest = min(width, max(map(len, words.split()), default=1))
    return next(lines for w in range(longest, width + 1) if len(lines := wrap(words, w)) == fewest)

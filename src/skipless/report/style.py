"""The style sheets of pages and charts, which share their colours."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE, _CHART = (Path(__file__).with_name(name) for name in ("page.css", "chart.css"))


def page_style() -> str:
    """What a page with charts in it needs."""
    return _PAGE.read_text(encoding="utf-8") + _CHART.read_text(encoding="utf-8")


def chart_style() -> str:
    """What a chart needs that is a file of its own: light colours, written out.

    Few programs that show SVG files, other than browsers, know variables.
    """
    colours = light_colours()
    rules = re.sub(
        r"var\(--(\w+)\)", lambda used: colours[used[1]], _CHART.read_text(encoding="utf-8")
    )
    return ".chart text { font-family: system-ui, 'Liberation Sans', Arial, sans-serif; }\n" + rules


def light_colours() -> dict[str, str]:
    """The colours of a light page by name, which come first in its style sheet."""
    first = _PAGE.read_text(encoding="utf-8").split("@media")[0]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", first))

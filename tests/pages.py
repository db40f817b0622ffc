"""The blocks of code on README, CONTRIBUTING and the pages of the site, as a reader sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
HERE_DOCUMENT = re.compile(r"^cat > (\S+) <<'END'\n(.*?)^END$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block; `reason` says why nobody runs it, in a comment above the fence."""

    place: str
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return self.place

    @property
    def files(self) -> dict[str, str]:
        """The files that it writes by `cat > file <<'END'`."""
        return dict(HERE_DOCUMENT.findall(self.text))

    @property
    def commands(self) -> list[str]:
        joined = HERE_DOCUMENT.sub("", self.text).replace("\\\n", " ")
        return [line for line in joined.splitlines() if line.strip()]


def read_blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCED.finditer(text):
        line = text.count("\n", 0, found.start("text"))
        place = f"{page.name}:{line}"
        yield Block(place, found["language"], found["text"], found["reason"])

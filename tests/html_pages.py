"""What is asked of every HTML page of ours, by Python's parser and inside a browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser

# https://html.spec.whatwg.org/multipage/syntax.html#void-elements, as far as the page has them.
VOID = {"meta", "link", "img"}
# Attributes by which HTML and SVG fetch something.
FETCHING = {"src", "href", "xlink:href", "srcset", "data", "poster", "action", "background"}


class Reader(HTMLParser):
    """Notes every element and text, and fails where a tag is not closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1], data))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    def within(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


def fetched(text: str) -> list[str]:
    """All that a page fetches or runs: addresses outside of it, and scripts."""
    found = Reader(text)
    asked = [str(own[k]) for _, own in found.elements for k in FETCHING & own.keys()]
    # An empty icon keeps browsers from asking for one, and #... is on the page itself.
    outside = [address for address in asked if address != "data:," and address[0] != "#"]
    written = re.findall(r"https?:|//|url\(|@import|@font-face", text)
    return outside + written + ["script"] * found.count("script")


# Size and lines of every chart, and what of it is cut off.
CHARTS = """
return [...document.querySelectorAll("figure svg.chart")].map(svg => {
  const box = svg.getBoundingClientRect();
  const clipped = [...svg.querySelectorAll("text, path, circle")].filter(part => {
    const own = part.getBoundingClientRect();
    return own.left < box.left - 1 || own.right > box.right + 1
      || own.top < box.top - 1 || own.bottom > box.bottom + 1;
  });
  const lines = [...svg.querySelectorAll(".line")].map(line => line.getTotalLength());
  return {width: box.width, height: box.height, lines, clipped: clipped.map(p => p.outerHTML)};
});
"""

# The luminance of the page, and the lowest contrast of its words with it.
CONTRAST = """
const level = colour => {
  const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const paper = level(getComputedStyle(document.body).backgroundColor);
const words = [...document.querySelectorAll("p, li, td, th, caption, figcaption, a, b, span")]
  .map(part => getComputedStyle(part).color);
const drawn = [...document.querySelectorAll("svg.chart text")]
  .map(part => getComputedStyle(part).fill);
return [paper, Math.min(...[...words, ...drawn].map(level).map(
  own => (Math.max(own, paper) + 0.05) / (Math.min(own, paper) + 0.05)))];
"""

"""Borders of prose: at its headings. A part is named by its heading and those above it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.ingest.splitters.lines import Border, Lines

SEPARATOR: Final = " > "
"""The text between a heading and the one above it, in the name of a part."""

# The patterns of headings, in the order of the functions below. ATX is Markdown's `# Title`.
_ATX: Final = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_UNDERLINE: Final = re.compile(r" {0,3}(=+|-{2,})[ \t]*$")
_BLOCK: Final = re.compile(r"[ \t]*(?:[-*+>|#]|\d+[.)][ \t])|\t| {4}")
_ORNAMENT: Final = re.compile(r"([=\-`:.'\"~^_*+#<>])\1{2,}[ \t]*$")
_EQUALS: Final = re.compile(r"(={1,6})[ \t]+(\S.*?)[ \t]*$")
_STARS: Final = re.compile(r"(\*{1,8})[ \t]+(\S.*?)[ \t]*$")


class _Heading(Struct, frozen=True):
    """A heading: its line, its level (a smaller one is higher), and its title."""

    line: int
    level: int
    title: str


def borders(lines: Lines, headings: Callable[[Lines], Iterator[_Heading]]) -> list[Border]:
    """Return a border for each heading; its scope is the heading above it."""
    found: list[Border] = []
    path: list[_Heading] = []
    for heading in headings(lines):
        while path and path[-1].level >= heading.level:
            path.pop()
        scope = SEPARATOR.join(each.title for each in path)
        path.append(heading)
        found.append(Border(heading.line, SEPARATOR.join(each.title for each in path), scope))
    return found


def markdown(lines: Lines) -> Iterator[_Heading]:
    """Yield `# Title`, and a title with a line of = or - below it; not in a block of code, nor in the front matter."""
    fence = ""
    start = _front_matter(lines)
    for number in range(start, len(lines)):
        line = _short_line(lines, number)
        marker = _FENCE.match(line)
        if fence:
            if marker and marker[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif marker:
            fence = marker[1]
        elif atx := _ATX.match(line):
            yield _Heading(number, len(atx[1]), atx[2] or "")
        elif number > start and (under := _UNDERLINE.match(line)) and _is_title(lines, number - 1, start):
            yield _Heading(number - 1, 1 if under[1].startswith("=") else 2, lines.texts[number - 1].strip())


def restructured(lines: Lines) -> Iterator[_Heading]:
    """Yield titles with a line of ornaments below, and perhaps one above.

    The levels are those of the order in which ornaments first occur, as reStructuredText defines it.
    """
    levels: list[str] = []
    for number in range(1, len(lines)):
        under = _ORNAMENT.match(_short_line(lines, number))
        title = lines.texts[number - 1].rstrip()
        if not under or not title or len(under[0].rstrip()) < len(title.strip()) or _ORNAMENT.match(title):
            continue
        has_overline = number > 1 and lines.texts[number - 2].rstrip() == under[0].rstrip()
        if not has_overline and (title != title.lstrip() or (number > 1 and not lines.is_blank(number - 2))):
            continue
        style = under[1] * (1 + has_overline)
        if style not in levels:
            levels.append(style)
        yield _Heading(number - 1 - has_overline, levels.index(style), title.strip())


def asciidoc(lines: Lines) -> Iterator[_Heading]:
    """Yield `== Title`."""
    return _marked(lines, _EQUALS)


def org(lines: Lines) -> Iterator[_Heading]:
    """Yield `** Title`."""
    return _marked(lines, _STARS)


HEADINGS: Final[Mapping[str, Callable[[Lines], Iterator[_Heading]]]] = {
    ".md": markdown,
    ".markdown": markdown,
    ".mdx": markdown,
    ".mdown": markdown,
    ".rst": restructured,
    ".rest": restructured,
    ".adoc": asciidoc,
    ".asciidoc": asciidoc,
    ".org": org,
}
"""The function for each ending of a file name."""


def _marked(lines: Lines, pattern: re.Pattern[str]) -> Iterator[_Heading]:
    """Yield the headings of a format in which repeated marks before the title are the level."""
    for number in range(len(lines)):
        if found := pattern.match(_short_line(lines, number)):
            yield _Heading(number, len(found[1]), found[2])


def _short_line(lines: Lines, number: int) -> str:
    """Return a line without its end; empty if it is too long to be a heading."""
    line = lines.texts[number]
    return line.rstrip("\r\n") if len(line) <= limits.INGEST_LINE_CHARS_MAX else ""


def _front_matter(lines: Lines) -> int:
    """Return the number of the first line after the metadata that a Markdown file may begin with."""
    if len(lines) and lines.texts[0].rstrip() == "---":
        for number in range(1, len(lines)):
            if lines.texts[number].rstrip() in {"---", "..."}:
                return number + 1
    return 0


def _is_title(lines: Lines, number: int, start: int) -> bool:
    """Return True if a line is a paragraph of its own, and no list, quotation, table or code."""
    is_first = number == start or lines.is_blank(number - 1)
    return is_first and not lines.is_blank(number) and not _BLOCK.match(lines.texts[number])

"""A text as lines, and the borders between its parts.

Whoever knows a kind of text says where its parts begin, and no more: a part reaches to the next border. Whatever they
say, every byte of the text is in exactly one part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Final

from msgspec import Struct

_TAB_COLUMNS: Final = 4


class Lines:
    r"""A text in UTF-8, by lines. They end as Python ends them: with \n, \r\n or \r."""

    def __init__(self, data: bytes) -> None:
        self.data: Final = data
        raw = data.splitlines(keepends=True)
        self.texts: Final = [line.decode() for line in raw]
        self.starts: Final = [*accumulate(map(len, raw), initial=0)]
        """In bytes, one more than there are lines."""

    def __len__(self) -> int:
        return len(self.texts)

    def size(self, first: int, last: int) -> int:
        """Bytes from one line to before another."""
        return self.starts[last] - self.starts[first]

    def is_blank(self, number: int) -> bool:
        return not self.texts[number].strip()

    def indent(self, number: int) -> int:
        """Columns before the text of a line."""
        return indent(self.texts[number])


def indent(line: str) -> int:
    """Columns before the text of a line."""
    white = line[: len(line) - len(line.lstrip(" \t"))]
    return len(white) + (_TAB_COLUMNS - 1) * white.count("\t")


class Border(Struct, frozen=True):
    """A part begins at a line, counted from 0."""

    line: int
    name: str = ""
    scope: str = ""  # the name of what it is a member of: members of one thing may share a fragment
    speaker: str = ""
    is_alone: bool = False  # shares a fragment with nobody


class Stretch(Struct):
    """Lines that belong together, from the first to before the last, and what is defined there."""

    first: int
    last: int
    names: list[str]
    scope: str
    speaker: str = ""
    is_alone: bool = False


def stretches(lines: Lines, borders: Iterable[Border]) -> Iterator[Stretch]:
    """What lies between borders, all of the text. Of two at one line, or in the wrong order, the later is dropped."""
    kept: list[Border] = []
    for border in borders:
        if border.line < len(lines) and (not kept or border.line > kept[-1].line):
            kept.append(border)
    if len(lines) and (not kept or kept[0].line > 0):
        kept.insert(0, Border(0))
    for border, end in pairwise([*kept, Border(len(lines))]):
        names = [border.name] if border.name else []
        yield Stretch(border.line, end.line, names, border.scope, border.speaker, border.is_alone)

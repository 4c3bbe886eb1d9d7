"""A text as lines, and the borders between its parts.

A splitter says where parts begin, and no more: a part reaches to the next border. Whatever borders it returns, every
byte of the text is in exactly one part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from itertools import accumulate, pairwise
from typing import Final

from msgspec import Struct

_TAB_COLUMNS: Final = 4
_OTHER_LINE_ENDS: Final = b"\v\f\x1c\x1d\x1e"
"""Characters of ASCII at which `str.splitlines` ends a line, and `bytes.splitlines` does not."""


class Lines:
    r"""A text in UTF-8 as lines, which end with \n, \r\n or \r, as Python's `bytes.splitlines` has it."""

    def __init__(self, data: bytes) -> None:
        self.data: Final = data
        self.texts: Final = _lines(data)
        lengths = self.texts if data.isascii() else data.splitlines(keepends=True)
        self.starts: Final = [*accumulate(map(len, lengths), initial=0)]
        """The position of each line in bytes, and the length of the text at the end."""

    def __len__(self) -> int:
        return len(self.texts)

    def size(self, first: int, last: int) -> int:
        """Return the number of bytes from one line to before another."""
        return self.starts[last] - self.starts[first]

    def is_blank(self, number: int) -> bool:
        return not self.texts[number].strip()

    def indent(self, number: int) -> int:
        """Return the number of columns before the text of a line."""
        return indent(self.texts[number])


def _lines(data: bytes) -> list[str]:
    """Return the lines of a text. A `str` has further ends of lines: only a text without these is decoded at once."""
    if data.isascii() and len(data.translate(None, _OTHER_LINE_ENDS)) == len(data):
        return data.decode().splitlines(keepends=True)
    return [line.decode() for line in data.splitlines(keepends=True)]


def indent(line: str) -> int:
    """Return the number of columns before the text of a line."""
    indentation = line[: len(line) - len(line.lstrip(" \t"))]
    return len(indentation) + (_TAB_COLUMNS - 1) * indentation.count("\t")


class Role(Enum):
    """The role of a part in its text, which decides about its size.

    A definition of a program is one part, up to a large size, because a reader wants all of a function. The rest of a
    program between its definitions is a few parts, because its statements say little alone.
    """

    SECTION = auto()
    DEFINITION = auto()
    REST = auto()


class Border(Struct, frozen=True, gc=False):
    """The beginning of a part: at a line, counted from 0.

    `scope` is the name of what the part is a member of: tiny members of one thing may share a fragment. A part that
    `is_alone` shares a fragment with no other.
    """

    line: int
    name: str = ""
    scope: str = ""
    speaker: str = ""
    is_alone: bool = False
    role: Role = Role.SECTION


class Stretch(Struct):
    """The lines from one border to the next (`last` is not included), and the names that are defined there."""

    first: int
    last: int
    names: list[str]
    scope: str
    speaker: str = ""
    is_alone: bool = False
    role: Role = Role.SECTION


def stretches(lines: Lines, borders: Iterable[Border]) -> Iterator[Stretch]:
    """Yield the stretches between borders; together they are all of the text.

    A border behind the text, at the line of another one, or in the wrong order is dropped; of two at one line, the one
    with a name stays. A text that does not begin with a border gets one.
    """
    ordered: list[Border] = []
    for border in borders:
        if ordered and border.line == ordered[-1].line and border.name and not ordered[-1].name:
            ordered.pop()
        if border.line < len(lines) and (not ordered or border.line > ordered[-1].line):
            ordered.append(border)
    if len(lines) and (not ordered or ordered[0].line > 0):
        ordered.insert(
            0, Border(0, role=Role.REST if any(each.role is not Role.SECTION for each in ordered) else Role.SECTION)
        )
    for border, end in pairwise([*ordered, Border(len(lines))]):
        names = [border.name] if border.name else []
        yield Stretch(border.line, end.line, names, border.scope, border.speaker, border.is_alone, border.role)

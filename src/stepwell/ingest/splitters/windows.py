"""Parts of a readable size: tiny neighbours share one, and what is too large is cut where a reader would pause.

Sizes are in bytes of UTF-8, three or four to a token, so that where a text is cut depends on the text alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from stepwell.ingest.splitters.lines import Lines, Stretch

TINY_BYTES: Final = 160  # about 45 tokens: less says little without what stands around it
_SCRAP_BYTES: Final = 70  # about 20 tokens: not worth a fragment
_SHARED_BYTES_MAX: Final = 1_000  # of tiny ones that share a part
PART_BYTES_MAX: Final = 2_000  # about 550 tokens
_WINDOW_BYTES_MIN: Final = 600
_TOP_BITS, _CONTINUED = 0xC0, 0x80  # of a byte of UTF-8 that does not begin a character


class Window(Struct, frozen=True):
    """What a fragment will be made of: bytes, and the lines (from 0, the last included) that they are in."""

    start: int
    end: int
    first: int
    last: int
    names: tuple[str, ...] = ()
    speaker: str = ""


def pieces(lines: Lines, found: Iterable[Stretch]) -> Iterator[Window]:
    """The parts of a text, given where they would begin if size did not matter."""
    for stretch in _shared(lines, found):
        names = tuple(stretch.names)
        for start, end, first, last in _cut(lines, stretch.first, stretch.last):
            yield Window(start, end, first, last, names, stretch.speaker)


def _shared(lines: Lines, found: Iterable[Stretch]) -> Iterator[Stretch]:
    current: Stretch | None = None
    are_tiny = True  # all that share the current one
    for stretch in found:
        if current is not None and _fit(lines, current, stretch, are_tiny=are_tiny):
            if not current.names:
                current.scope = stretch.scope
            current.last = stretch.last
            current.names += stretch.names
        else:
            if current is not None:
                yield current
            current, are_tiny = stretch, True
        are_tiny &= lines.size(stretch.first, stretch.last) < TINY_BYTES
    if current is not None:
        yield current


def _fit(lines: Lines, before: Stretch, after: Stretch, *, are_tiny: bool) -> bool:
    """Whether a part takes one more: a scrap always, and a tiny one if all are, and members of the same thing."""
    if before.is_alone or after.is_alone:
        return False
    sizes = lines.size(before.first, before.last), lines.size(after.first, after.last)
    if min(sizes) < _SCRAP_BYTES:
        return sum(sizes) <= PART_BYTES_MAX
    is_related = before.scope == after.scope or after.scope in before.names
    return is_related and are_tiny and sizes[1] < TINY_BYTES and sum(sizes) <= _SHARED_BYTES_MAX


def _cut(lines: Lines, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
    """Lines, in as many parts as it takes: start, end, first line and last line of each."""
    while first < last:
        if lines.size(first, first + 1) > PART_BYTES_MAX:
            yield from _cut_line(lines, first)
            first += 1
            continue
        end = _window_end(lines, first, last)
        yield lines.starts[first], lines.starts[end], first, end - 1
        first = end


def _window_end(lines: Lines, first: int, last: int) -> int:
    """Before which line a window ends: at a blank line, at the least indented of them, as late as possible."""
    if lines.size(first, last) <= PART_BYTES_MAX:
        return last
    best, best_rank = first + 1, (-1, 0, 0)
    for end in range(first + 1, last):
        size = lines.size(first, end)
        if size > PART_BYTES_MAX:
            break
        if size < _WINDOW_BYTES_MIN or lines.size(end, last) < TINY_BYTES:
            rank = (0, 0, end)
        else:
            rank = (1 + lines.is_blank(end - 1), -lines.indent(end), end)
        if rank >= best_rank:
            best, best_rank = end, rank
    return best


def _cut_line(lines: Lines, number: int) -> Iterator[tuple[int, int, int, int]]:
    """A line that is too long by itself, between two characters, at a space if there is one."""
    start, end = lines.starts[number], lines.starts[number + 1]
    data = lines.data
    while start < end:
        cut = min(start + PART_BYTES_MAX, end)
        if cut < end:
            space = data.rfind(b" ", start + _WINDOW_BYTES_MIN, cut)
            cut = space + 1 if space >= 0 else cut
            while data[cut] & _TOP_BITS == _CONTINUED:  # inside a character
                cut -= 1
        yield start, cut, number, number
        start = cut

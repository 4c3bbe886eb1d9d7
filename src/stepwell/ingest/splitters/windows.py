"""Parts of a readable size: tiny adjacent parts are merged, and large parts are cut at blank lines.

Sizes are in bytes of UTF-8, three or four to a token, so that the cuts depend on the text alone and not on a tokenizer.
The constants are part of the splitting rules: `split.VERSION` is raised when one changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from stepwell.ingest.splitters.lines import Lines, Role, Stretch

TINY_BYTES: Final = 160  # about 45 tokens: a smaller part says little without the parts around it
_SCRAP_BYTES_MAX: Final = 70  # about 20 tokens: a smaller part is not worth a fragment
_SHARED_BYTES_MAX: Final = 1_000  # of tiny parts that are merged
PART_BYTES_MAX: Final = 2_000  # about 550 tokens
DEFINITION_BYTES_MAX: Final = 8_000  # of a function or class that stays in one piece: about 2,000 tokens
_WINDOW_BYTES_MIN: Final = 600  # of a piece of a large part, so that its end is at a good place
_TOP_BITS, _CONTINUED = 0xC0, 0x80  # a byte of UTF-8 with these two highest bits does not begin a character


class Window(Struct, frozen=True, gc=False):
    """The bytes and lines of a fragment: lines are counted from 0, and the last one is included."""

    start: int
    end: int
    first: int
    last: int
    names: tuple[str, ...] = ()
    speaker: str = ""


def windows(lines: Lines, found: Iterable[Stretch]) -> Iterator[Window]:
    """Yield the final parts of a text, given the stretches between its borders."""
    for stretch in _merge_tiny(lines, found):
        names = tuple(stretch.names)
        is_whole = stretch.role is Role.DEFINITION and lines.size(stretch.first, stretch.last) <= DEFINITION_BYTES_MAX
        if is_whole:
            last = stretch.last
            yield Window(lines.starts[stretch.first], lines.starts[last], stretch.first, last - 1, names)
            continue
        for start, end, first, last in _cut(lines, stretch.first, stretch.last):
            yield Window(start, end, first, last, names, stretch.speaker)


def _merge_tiny(lines: Lines, found: Iterable[Stretch]) -> Iterator[Stretch]:
    """Yield stretches, with tiny adjacent ones merged into one."""
    current: Stretch | None = None
    are_tiny = True  # all that share the current one
    for stretch in found:
        if current is not None and _can_share_part(lines, current, stretch, are_tiny=are_tiny):
            if not current.names:
                current.scope = stretch.scope
            if current.role is Role.REST:
                current.role = stretch.role
            current.last = stretch.last
            current.names += stretch.names
        else:
            if current is not None:
                yield current
            current, are_tiny = stretch, True
        are_tiny &= lines.size(stretch.first, stretch.last) < TINY_BYTES
    if current is not None:
        yield current


def _can_share_part(lines: Lines, before: Stretch, after: Stretch, *, are_tiny: bool) -> bool:
    """Return True if two adjacent stretches may share a part.

    A stretch that is not worth a fragment joins any adjacent one, and so do statements outside of definitions.
    Otherwise all of them have to be tiny, and members of the same definition.
    """
    if before.is_alone or after.is_alone:
        return False
    size, more = lines.size(before.first, before.last), lines.size(after.first, after.last)
    are_rest = before.role is Role.REST and after.role is Role.REST
    if size < _SCRAP_BYTES_MAX or more < _SCRAP_BYTES_MAX or (are_rest and before.scope == after.scope):
        return size + more <= PART_BYTES_MAX
    is_small = are_tiny and more < TINY_BYTES and size + more <= _SHARED_BYTES_MAX
    return is_small and (before.scope == after.scope or after.scope in before.names)


def _cut(lines: Lines, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the windows of some lines: start, end, first line and last line of each."""
    while first < last:
        if lines.size(first, first + 1) > PART_BYTES_MAX:
            yield from _cut_line(lines, first)
            first += 1
            continue
        end = _window_end(lines, first, last)
        yield lines.starts[first], lines.starts[end], first, end - 1
        first = end


def _window_end(lines: Lines, first: int, last: int) -> int:
    """Return the line before which a window ends.

    The best end is after a blank line, then before the least indented line, then as late as possible. Neither the
    window nor the rest may be too small.
    """
    if lines.size(first, last) <= PART_BYTES_MAX:
        return last
    best, best_rank = first + 1, (-1, 0, 0)
    starts = lines.starts
    begin, behind = starts[first], starts[last]
    for end in range(first + 1, last):
        size = starts[end] - begin
        if size > PART_BYTES_MAX:
            break
        if size < _WINDOW_BYTES_MIN or behind - starts[end] < TINY_BYTES:
            rank = (0, 0, end)
        else:
            rank = (1 + lines.is_blank(end - 1), -lines.indent(end), end)
        if rank >= best_rank:
            best, best_rank = end, rank
    return best


def _cut_line(lines: Lines, number: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the windows of a line that is too long by itself: cut between two characters, at a
    space if there is one.
    """
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

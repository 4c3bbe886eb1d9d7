"""The short diff of a conflict: what a change expects in a file, and what is there instead.

It is for a person who has to decide what to do about a `TreeConflict`, so it shows the first differences of the first
files and no more. It never fails and never takes long: a file that is large, no text, gone or not readable is left out,
and lines are compared in a bounded window from the first difference on. Characters that act on a terminal are escaped,
because another program has written the files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from io import StringIO
from itertools import chain, islice

from stepwell import limits
from stepwell.errors import StepwellError
from stepwell.terminal import escape_line, escape_terminal
from stepwell.text import ELLIPSIS, clip
from stepwell.trees.root import Root

ReadBody = Callable[[bytes], bytes | memoryview]
"""Returns the content with a digest, or raises a `StepwellError` or a `LookupError` if there is none."""


def short_diff(root: Root, expected: Mapping[str, bytes], read_body: ReadBody) -> str:
    """Return the first differences of files from the contents with the expected digests; empty if none can be shown."""
    diffs = (_file_diff(root, path, expected[path], read_body) for path in sorted(expected))
    shown = islice(filter(None, diffs), limits.CONFLICT_DIFF_FILES_MAX)
    lines = [*islice(chain.from_iterable(shown), limits.CONFLICT_DIFF_LINES_MAX + 1)]
    if len(lines) > limits.CONFLICT_DIFF_LINES_MAX:
        lines[-1] = ELLIPSIS
    return "\n".join(lines)


def _file_diff(root: Root, path: str, digest: bytes, read_body: ReadBody) -> list[str]:
    """Return the lines of one file's diff; none if one of the sides cannot be read or is no text."""
    with suppress(StepwellError, LookupError, OSError, UnicodeDecodeError):
        before, after = _lines(read_body(digest)), _lines(_content(root, path))
        if before is not None and after is not None:
            name = escape_line(path[: limits.PATH_CHARS_SHOWN])
            return [f"--- {name} (expected)", f"+++ {name} (found)", *_hunks(before, after)]
    return []


def _content(root: Root, path: str) -> bytes:
    """Return the bytes of a file, or a little more than are compared if it is larger."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # neither a link nor a pipe instead of it
    with root.place(path) as place:
        descriptor = os.open(place.name, flags, dir_fd=place.directory)
    with open(descriptor, "rb") as file:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return file.read(limits.CONFLICT_DIFF_BYTES_MAX + 1) if is_file else b"\0"


def _lines(body: bytes | memoryview) -> list[str] | None:
    """Return the lines of a text, separated at newlines only; None if it is large or no text."""
    if len(body) > limits.CONFLICT_DIFF_BYTES_MAX:
        return None
    text = str(body, "utf-8")
    return None if "\0" in text else [*StringIO(text, newline="\n")]


def _hunks(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """Yield the hunks of a unified diff, from the first difference to the end of the window."""
    context, window = limits.CONFLICT_DIFF_CONTEXT_LINES, limits.CONFLICT_DIFF_WINDOW_LINES
    start = max(0, _common(zip(before, after, strict=False)) - context)
    tail = _common(zip(reversed(before[start:]), reversed(after[start:]), strict=False))
    ends = [len(side) - max(0, tail - context) for side in (before, after)]
    old, new = (side[start : min(end, start + window)] for side, end in zip((before, after), ends, strict=True))
    groups = [*SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(context)]
    is_cut = any(start + window < end for end in ends)
    if is_cut and len(groups) > 1:
        groups.pop()  # at the end of the window, lines may differ only because the other side is cut elsewhere
    for group in groups:
        first, last = group[0], group[-1]
        yield (f"@@ -{start + first[1] + 1},{last[2] - first[1]} +{start + first[3] + 1},{last[4] - first[3]} @@")
        for kind, old_start, old_end, new_start, new_end in group:
            if kind == "equal":
                yield from _marked(" ", old[old_start:old_end])
            else:
                yield from _marked("-", old[old_start:old_end])
                yield from _marked("+", new[new_start:new_end])
    if is_cut:
        yield ELLIPSIS


def _common(pairs: Iterable[tuple[str, str]]) -> int:
    """Return how many pairs are of equal lines before the first one that is not."""
    count = 0
    for one, other in pairs:
        if one != other:
            break
        count += 1
    return count


def _marked(mark: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as a diff shows them: escaped, clipped, and with a note if the last one does not end."""
    for line in lines:
        yield mark + clip(escape_terminal(line.removesuffix("\n")), limits.CONFLICT_DIFF_LINE_CHARS_MAX)
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"

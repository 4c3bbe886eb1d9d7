"""Statistics of a unified diff: the added and removed lines of each file.

The input is the diff that stepwell itself wrote, so the parser handles only this one format. It counts the lines of
each hunk by the numbers in the hunk's header, because a line of a file may look like any header. `git apply --numstat`
would do the same, but would need git on the machine and one more process for a count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

_FILE: Final = "diff --git "
_HUNK: Final = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_RENAMED: Final = "rename to "
_BINARY: Final = "Binary files "


class FileStat(Struct, frozen=True):
    """The changed lines of one file. A file that is not text has `is_binary` set and counts no lines."""

    path: str
    added: int
    removed: int
    is_binary: bool


def file_stats(diff: str) -> list[FileStat]:
    """Return the statistics of each file of a diff, in the order of the diff."""
    return [_file_stat(lines) for lines in _split_files(diff.split("\n"))]


def _split_files(lines: Iterable[str]) -> Iterator[list[tuple[str, bool]]]:
    """Yield the lines of each file, each with a flag that says whether it is content of a hunk."""
    part: list[tuple[str, bool]] = []
    old = new = 0  # the lines of the present hunk that are still to come, of either side
    for line in lines:
        is_content = (old > 0 or new > 0) and not line.startswith("\\")
        if is_content:
            old -= line[:1] in {" ", "-", ""}
            new -= line[:1] in {" ", "+", ""}
        elif match := _HUNK.match(line):
            old, new = (1 if count is None else int(count) for count in match.groups())
        elif line.startswith(_FILE):
            if part:
                yield part
            part = []
        part.append((line, is_content))
    if part and part[0][0].startswith(_FILE):
        yield part


def _file_stat(lines: list[tuple[str, bool]]) -> FileStat:
    """Return the statistics of the lines of one file."""
    content = [line[:1] for line, is_content in lines if is_content]
    headers = [line for line, is_content in lines if not is_content]
    return FileStat(
        _new_path(headers), content.count("+"), content.count("-"), any(each.startswith(_BINARY) for each in headers)
    )


def _new_path(headers: list[str]) -> str:
    """Return the path of the file after the change.

    Without a rename the first header line names the path twice, as `a/PATH b/PATH`. Both halves have the same length,
    so the second one can be cut out even if the path contains spaces.
    """
    for line in headers:
        if line.startswith(_RENAMED):
            return _unquote(line.removeprefix(_RENAMED))
    both = headers[0].removeprefix(_FILE)
    return _unquote(both[len(both) // 2 + 1 :]).removeprefix("b/")


def _unquote(name: str) -> str:
    """Return a name without git's quotes. The diff quotes names as JSON does."""
    return str(json.loads(name)) if name.startswith('"') else name

"""How much a unified diff changes, file by file."""

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
    """What is different in one file. Of what is not text, lines cannot be counted."""

    path: str
    added: int
    removed: int
    is_binary: bool


def file_stats(diff: str) -> list[FileStat]:
    """One for each file of a diff, in its order."""
    return [_file_stat(lines) for lines in _split_files(diff.split("\n"))]


def _split_files(lines: Iterable[str]) -> Iterator[list[tuple[str, bool]]]:
    """The lines of each file, each with whether it is content: in a hunk, anything may look like a header."""
    part: list[tuple[str, bool]] = []
    old = new = 0  # lines of the hunk that are still to come
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
    content = [line[:1] for line, is_content in lines if is_content]
    headers = [line for line, is_content in lines if not is_content]
    return FileStat(
        _new_path(headers), content.count("+"), content.count("-"), any(each.startswith(_BINARY) for each in headers)
    )


def _new_path(headers: list[str]) -> str:
    """Where the file is after the diff. Without a move both halves of its first line name the same."""
    for line in headers:
        if line.startswith(_RENAMED):
            return _unquote(line.removeprefix(_RENAMED))
    both = headers[0].removeprefix(_FILE)
    return _unquote(both[len(both) // 2 + 1 :]).removeprefix("b/")


def _unquote(name: str) -> str:
    return str(json.loads(name)) if name.startswith('"') else name

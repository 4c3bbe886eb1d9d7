"""Unified diffs of changeset entries, as git writes them and as `git apply` reads them, with file modes.

Text is compared line by line. A body that is not text, or whose bytes the manager does not hold, is only named; git
refuses such a diff. A renamed file is one part with both paths. Lines end at newlines only, because a form feed or a
Unicode line separator inside a line is no line end for git.
"""

from __future__ import annotations

import difflib
import json
import stat
from collections.abc import Mapping
from io import StringIO

from msgspec.structs import replace

from stepwell.domain.changesets.model import Content, EntryRow
from stepwell.domain.changesets.paths import git_mode


def entry_diff(entry: EntryRow, bodies: Mapping[bytes, memoryview]) -> str:
    """Return one file's part of a diff. `bodies` maps digests to the bytes that are held.

    If a file becomes a link (or the reverse), the diff deletes one and creates the other, as git does.
    """
    before, after = entry.before, entry.after
    if before and after and stat.S_IFMT(git_mode(before.mode)) != stat.S_IFMT(_mode_after(before, after)):
        gone = replace(entry, path=entry.source_path or entry.path, source_path=None, after=None)
        made = replace(entry, source_path=None, before=None)
        return _part(gone, bodies) + _part(made, bodies)
    return _part(entry, bodies)


def _part(entry: EntryRow, bodies: Mapping[bytes, memoryview]) -> str:
    """Return the header and the hunks of one deletion, creation, change or move."""
    old, new = _quoted("a", entry.source_path or entry.path), _quoted("b", entry.path)
    header = f"diff --git {old} {new}\n{_modes(entry.before, entry.after)}"
    if entry.before is None:
        old = "/dev/null"
    if entry.after is None:
        new = "/dev/null"
    if entry.source_path is not None:
        header += f"rename from {_quoted('', entry.source_path)}\nrename to {_quoted('', entry.path)}\n"
    if entry.before and entry.after and entry.before.digest == entry.after.digest:
        return header
    before, after = _lines(entry.before, bodies), _lines(entry.after, bodies)
    if before is None or after is None:
        return f"{header}Binary files {old} and {new} differ\n"
    return header + "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(before, after, old, new)
    )


def _modes(before: Content | None, after: Content | None) -> str:
    """Return the lines about file modes.

    git records only whether a file is executable. A change of mode that git would not see is shown in full.
    """
    if after is None:
        return f"deleted file mode {git_mode(before.mode if before else None):06o}\n"
    if before is None:
        return f"new file mode {git_mode(after.mode):06o}\n"
    if before.mode is None or after.mode is None or before.mode == after.mode:
        return ""
    old, new = git_mode(before.mode), git_mode(after.mode)
    if old == new:
        old, new = before.mode, after.mode
    return f"old mode {old:06o}\nnew mode {new:06o}\n"


def _mode_after(before: Content, after: Content) -> int:
    """Return git's mode of the new content; a content without a mode leaves the old one as it is."""
    return git_mode(before.mode if after.mode is None else after.mode)


def _quoted(side: str, path: str) -> str:
    """Return a path for a diff, quoted if it has quotes or control characters.

    Otherwise a path with a newline could look like a line of the diff.
    """
    named = f"{side}/{path}" if side else path
    return named if named.isprintable() and not {'"', "\\"} & {*named} else json.dumps(named)


def _lines(side: Content | None, bodies: Mapping[bytes, memoryview]) -> list[str] | None:
    """Return the lines of one side, separated at newlines only; None if it is not text or its bytes are not held."""
    if side is None:
        return []
    body = bodies.get(side.digest)
    try:
        text = None if body is None else str(body, "utf-8")
        return None if text is None or "\0" in text else [*StringIO(text, newline="\n")]
    except UnicodeDecodeError:
        return None

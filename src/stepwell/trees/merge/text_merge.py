"""Three-way merge of texts by `git merge-file`: merged bytes, and hunks on which the sides disagree.

git decides which edits overlap: their ranges in the base intersect or touch. Its output is parsed, so that each hunk
can be resolved by itself. The merge does not depend on the user's or the system's git configuration.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.domain.plans.conflicts import Side
from stepwell.errors import InvalidArgument, ToolMissing

Labels = tuple[str, str]
LABELS: Final[Labels] = ("ours", "theirs")
"""The names of the sides behind conflict markers."""

_NAMES: Final = ("ours", "base", "theirs")
_MARKER_CHARS: Final = 7  # as in git's own output
_PARSED_MARKER_CHARS: Final = 64  # longer, because a text may have markers of its own
_CONFLICTS_MAX: Final = 127
"""The exit code of `git merge-file` is the number of conflicts, up to this; a higher one means that git failed."""


class HunkKind(StrEnum):
    """The subject of a hunk: some lines of a text, a content as a whole, or a file's mode."""

    LINES = "lines"
    CONTENT = "content"
    MODE = "mode"


class Hunk(Struct, frozen=True):
    """One thing that both sides changed differently.

    `ours` and `theirs` are the lines of each side, the whole content (None: no file), or the octal digits of the mode.
    """

    kind: HunkKind
    ours: bytes | None
    theirs: bytes | None


class TextMerge(Struct, frozen=True):
    """A merged text: in order, the bytes that are merged and the hunks that need a choice. It is clean without hunks.

    `newline` ends the marker lines: that of the text.
    """

    parts: tuple[bytes | Hunk, ...]
    newline: bytes = b"\n"

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        return tuple(part for part in self.parts if isinstance(part, Hunk))

    def resolved(self, sides: Sequence[Side]) -> bytes:
        """Return the text with one side's lines in each hunk; `sides` has at least as many items as there are hunks."""
        remaining = iter(sides)
        return b"".join(
            (part.ours if next(remaining) == "ours" else part.theirs) or b"" if isinstance(part, Hunk) else part
            for part in self.parts
        )

    def marked(self, labels: Labels = LABELS) -> bytes:
        """Return the text with both sides of each hunk between conflict markers, as `git merge-file` writes them.

        Raises `InvalidArgument` for a label that is not one line.
        """
        if any("\0" in label or "\n" in label for label in labels):
            raise InvalidArgument("a label of a merge is one line: it stands behind a conflict marker")
        return b"".join(self._marked_parts(*(label.encode() for label in labels)))

    def _marked_parts(self, ours: bytes, theirs: bytes) -> Iterator[bytes]:
        for part in self.parts:
            if isinstance(part, Hunk):
                yield b"<" * _MARKER_CHARS + b" " + ours + self.newline
                yield self._ended(part.ours or b"")
                yield b"=" * _MARKER_CHARS + self.newline
                yield self._ended(part.theirs or b"")
                yield b">" * _MARKER_CHARS + b" " + theirs + self.newline
            else:
                yield part

    def _ended(self, lines: bytes) -> bytes:
        """Return lines that a marker can follow: the last line of a file may have no end."""
        return lines + self.newline if lines and not lines.endswith(b"\n") else lines


def merge_text(ours: bytes, base: bytes, theirs: bytes) -> TextMerge:
    """Merge three texts. Raises `ToolMissing` if git fails or is not installed."""
    size = _PARSED_MARKER_CHARS
    while any(char * size in text for text in (ours, base, theirs) for char in (b"<", b"=", b">")):
        size *= 2
    with tempfile.TemporaryDirectory(prefix="merge-") as directory:
        for name, body in zip(_NAMES, (ours, base, theirs), strict=True):
            (Path(directory) / name).write_bytes(body)
        done = _run(["git", "merge-file", "-p", f"--marker-size={size}", *_NAMES], directory)
    if done.returncode < 0 or done.returncode > _CONFLICTS_MAX:
        message = done.stderr.decode(errors="replace").strip()
        raise ToolMissing(
            f"git cannot merge here, and says {message[: limits.ERROR_CHARS_MAX]!r}: install a git that can"
        )
    return _parsed(done.stdout, size, ours, theirs)


def _parsed(output: bytes, size: int, ours: bytes, theirs: bytes) -> TextMerge:
    """Return git's output as parts; `size` is the length of its markers."""
    opening, middle, closing = (char * size for char in (b"<", b"=", b">"))
    parts: list[bytes | Hunk] = []
    newline = b"\n"
    merged, *conflicts = output.split(opening)
    parts.append(merged)
    for conflict in conflicts:
        label, _, rest = conflict.partition(b"\n")
        newline = b"\r\n" if label.endswith(b"\r") else b"\n"
        our_lines, _, rest = rest.partition(middle + newline)
        their_lines, _, rest = rest.partition(closing)
        _, _, merged = rest.partition(b"\n")
        if not merged and conflict is conflicts[-1]:
            our_lines, their_lines = _unended(our_lines, ours), _unended(their_lines, theirs)
        parts += [Hunk(HunkKind.LINES, our_lines, their_lines), merged]
    return TextMerge(tuple(part for part in parts if part), newline)


def _unended(lines: bytes, text: bytes) -> bytes:
    """Return the lines at the end of a text without the line end that git adds before a marker."""
    if not lines or text.endswith(b"\n"):
        return lines
    return next(shorter for shorter in (lines[:-1], lines[:-2]) if text.endswith(shorter))


def _run(command: list[str], directory: str) -> subprocess.CompletedProcess[bytes]:
    """Run git outside of any repository, with an environment that carries no git settings."""
    environment = {key: text for key, text in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CEILING_DIRECTORIES": directory}
    try:
        return subprocess.run(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limits.MERGE_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolMissing(f"merging needs git, which does not run here ({error}): install it, and try again") from error

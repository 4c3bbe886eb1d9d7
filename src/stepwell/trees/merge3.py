"""Three versions of one file made one: git's own merge where there is text, stated rules for everything else.

What is decided without looking inside:

- both sides are the same, or one is as it was: the other, or the common one, whatever it is. So a file that one side
  deleted and the other left alone is deleted;
- one side deleted it and the other changed it: a conflict, which shows the one that is there;
- a link, a directory, or a content with a NUL byte in it, that both sides changed: a conflict, which shows ours;
- both sides added a file: a merge as if there had been an empty one.

Modes merge by themselves, in the same way; where both sides changed a mode differently, that is a conflict, and ours
stays.

Where theirs is said to win there is no conflict: what would be one is theirs, of texts only the lines in question.
"""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.errors import InvalidArgument, ToolMissing
from stepwell.trees.entry import DEFAULT_MODE

Labels = tuple[str, str, str]
LABELS: Final[Labels] = ("ours", "base", "theirs")

_CONFLICTS_MAX: Final = 127
"""git's exit code is the number of conflicts, up to this; above it is a failure."""


class Version(Struct, frozen=True):
    """What one side has at a path. A mode of None is not known, and gives way to one that is."""

    body: bytes
    mode: int | None = None

    @property
    def is_file(self) -> bool:
        return self.mode is None or stat.S_ISREG(self.mode)

    @property
    def is_text(self) -> bool:
        return self.is_file and b"\0" not in self.body


class Merged(Struct, frozen=True):
    """What came of it. Where it is not clean, `version` shows the conflict, and `reason` says what it is."""

    version: Version | None
    is_clean: bool
    reason: str = ""


class MergedText(Struct, frozen=True):
    """A text, with conflict markers in it unless it is clean."""

    body: bytes
    is_clean: bool


def merge(
    ours: Version | None,
    base: Version | None,
    theirs: Version | None,
    labels: Labels = LABELS,
    *,
    theirs_wins: bool = False,
) -> Merged:
    """One version of three; None is a side that has no file."""
    merged = _merge(ours, base, theirs, labels, theirs_wins=theirs_wins)
    if merged.is_clean or not theirs_wins:
        return merged
    return Merged(theirs, is_clean=True)


def _merge(
    ours: Version | None, base: Version | None, theirs: Version | None, labels: Labels, *, theirs_wins: bool
) -> Merged:
    if theirs in (ours, base):
        return Merged(ours, is_clean=True)
    if ours == base:
        return Merged(theirs, is_clean=True)
    if ours is None or theirs is None:
        return Merged(ours or theirs, is_clean=False, reason="one side deleted it, and the other changed it")
    if not ours.is_file or not theirs.is_file:
        return Merged(ours, is_clean=False, reason="both sides changed what is not a file on both")
    return _merge_files(ours, base if base and base.is_file else None, theirs, labels, theirs_wins=theirs_wins)


def _merge_files(ours: Version, base: Version | None, theirs: Version, labels: Labels, *, theirs_wins: bool) -> Merged:
    mode, is_same_mode = merge_modes(ours.mode, base.mode if base else None, theirs.mode)
    if theirs_wins and not is_same_mode:
        mode, is_same_mode = theirs.mode, True
    reason = "" if is_same_mode else "both sides changed its mode"
    old = base.body if base else None
    if theirs.body in (ours.body, old):
        body = ours.body
    elif ours.body == old:
        body = theirs.body
    elif not all(side.is_text for side in (ours, base, theirs) if side):
        body, reason = ours.body, "both sides changed it, and it is binary"
    else:
        text = merge_text(ours.body, old or b"", theirs.body, labels, theirs_wins=theirs_wins)
        body, reason = text.body, reason if text.is_clean else "both sides changed the same lines"
    return Merged(Version(body, mode), is_clean=not reason, reason=reason)


def merge_modes(ours: int | None, base: int | None, theirs: int | None) -> tuple[int | None, bool]:
    """The mode of a file that both sides have, and whether they agree on it."""
    if ours is None or theirs is None or ours == theirs:
        return (theirs if ours is None else ours), True
    before = DEFAULT_MODE if base is None else base
    if theirs == before:
        return ours, True
    return (theirs, True) if ours == before else (ours, False)


def merge_text(
    ours: bytes, base: bytes, theirs: bytes, labels: Labels = LABELS, *, theirs_wins: bool = False
) -> MergedText:
    """What `git merge-file` makes of three texts, untouched by anybody's configuration."""
    if any("\0" in label or "\n" in label for label in labels):
        raise InvalidArgument("a label of a merge is one line: it stands behind a conflict marker")
    with tempfile.TemporaryDirectory(prefix="merge-") as directory:
        for name, body in zip(LABELS, (ours, base, theirs), strict=True):
            (Path(directory) / name).write_bytes(body)
        named = [part for label in labels for part in ("-L", label)]
        favoured = ["--theirs"] if theirs_wins else []
        done = _run(["git", "merge-file", "-p", *favoured, *named, *LABELS], directory)
    if done.returncode < 0 or done.returncode > _CONFLICTS_MAX:
        said = done.stderr.decode(errors="replace").strip()
        raise ToolMissing(f"git cannot merge here, and says {said[: limits.ERROR_CHARS_MAX]!r}: install a git that can")
    return MergedText(done.stdout, is_clean=done.returncode == 0)


def _run(command: list[str], directory: str) -> subprocess.CompletedProcess[bytes]:
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

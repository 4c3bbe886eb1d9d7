"""Three-way merge of one file: git's own merge for text, fixed rules for everything else.

Rules that need no look into the content:

- both sides are equal, or one side is unchanged: the changed or common version wins. So a file that one side deleted
  and the other left alone is deleted;
- one side deleted the file and the other changed it: a conflict, shown with the version that exists;
- both sides changed a link, a directory, or a content with a NUL byte: a conflict, shown with ours;
- both sides added a file: a merge as if the base had been an empty file.

Modes are merged separately by the same rules; if both sides changed a mode differently, that is a conflict, and ours
stays.

With `theirs_wins` there are no conflicts: where there would be one, theirs is taken; for texts, only the lines in
question.
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
"""The exit code of `git merge-file` is the number of conflicts, up to this; a higher one means that git failed."""


class Version(Struct, frozen=True):
    """The content and mode that one side has at a path. A mode of None is unknown, and gives way to a known one."""

    body: bytes
    mode: int | None = None

    @property
    def is_file(self) -> bool:
        return self.mode is None or stat.S_ISREG(self.mode)

    @property
    def is_text(self) -> bool:
        return self.is_file and b"\0" not in self.body


class Merged(Struct, frozen=True):
    """The outcome of a merge; a version of None is a deleted file.

    If it is not clean, `version` shows the conflict (for text with conflict markers), and `reason` explains it.
    """

    version: Version | None
    is_clean: bool
    reason: str = ""


class MergedText(Struct, frozen=True):
    """The outcome of a text merge; the body has conflict markers unless it is clean."""

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
    """Merge three versions of one file by the rules above; None is a side that has no file.

    `labels` name the sides behind conflict markers. Raises `ToolMissing` if a text merge is needed and git cannot run.
    """
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
    """Merge modes and contents of regular files separately; the result is clean if both are."""
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
    """Return the merged mode of a file that both sides have, and True if it is without conflict."""
    if ours is None or theirs is None or ours == theirs:
        return (theirs if ours is None else ours), True
    before = DEFAULT_MODE if base is None else base
    if theirs == before:
        return ours, True
    return (theirs, True) if ours == before else (ours, False)


def merge_text(
    ours: bytes, base: bytes, theirs: bytes, labels: Labels = LABELS, *, theirs_wins: bool = False
) -> MergedText:
    """Merge three texts with `git merge-file`, independently of the user's and the system's git configuration.

    Raises `InvalidArgument` for a label that is not one line, and `ToolMissing` if git fails or is not installed.
    """
    if any("\0" in label or "\n" in label for label in labels):
        raise InvalidArgument("a label of a merge is one line: it stands behind a conflict marker")
    with tempfile.TemporaryDirectory(prefix="merge-") as directory:
        for name, body in zip(LABELS, (ours, base, theirs), strict=True):
            (Path(directory) / name).write_bytes(body)
        named = [part for label in labels for part in ("-L", label)]
        favoured = ["--theirs"] if theirs_wins else []
        done = _run(["git", "merge-file", "-p", *favoured, *named, *LABELS], directory)
    if done.returncode < 0 or done.returncode > _CONFLICTS_MAX:
        message = done.stderr.decode(errors="replace").strip()
        raise ToolMissing(
            f"git cannot merge here, and says {message[: limits.ERROR_CHARS_MAX]!r}: install a git that can"
        )
    return MergedText(done.stdout, is_clean=done.returncode == 0)


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

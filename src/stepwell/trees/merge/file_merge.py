"""Three-way merge of one file: git's own merge for text, fixed rules for everything else.

Rules that need no look into the content:

- both sides are equal, or one side is unchanged: the changed or common version wins. So a file that one side deleted
  and the other left alone is deleted;
- one side deleted the file and the other changed it: a conflict about the whole file;
- both sides changed a link, a directory, or a content with a NUL byte: a conflict about the whole content;
- both sides added a file: a merge as if the base had been an empty file.

Modes are merged separately by the same rules; if both sides changed a mode differently, that is a conflict.

A merge that is not clean has hunks. A hunk is one question, and its answer is a side. All that is outside of the hunks
is merged, and belongs to every resolution.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence

from msgspec import Struct

from stepwell.domain.plans.conflicts import Side
from stepwell.errors import InvalidArgument
from stepwell.text import plural
from stepwell.trees.entry import DEFAULT_MODE
from stepwell.trees.merge.text_merge import LABELS, Hunk, HunkKind, Labels, TextMerge, merge_text


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
    """The outcome of a merge: clean, or with hunks to choose a side for.

    `text` is set if both sides are regular files, and `mode` is then their merged mode. Without `text` the file is
    taken as a whole: `ours` or, by choice, `theirs`. `reason` explains the conflict and is empty if there is none.
    """

    ours: Version | None
    theirs: Version | None
    hunks: tuple[Hunk, ...] = ()
    reason: str = ""
    text: TextMerge | None = None
    mode: int | None = None

    @property
    def is_clean(self) -> bool:
        return not self.hunks

    def resolved(self, sides: Sequence[Side] = ()) -> Version | None:
        """Return the version with the chosen side for each hunk; None is a deleted file.

        Raises `InvalidArgument` unless there is one side for each hunk.
        """
        if len(sides) != len(self.hunks):
            raise InvalidArgument(
                f"give a side for each of {plural(len(self.hunks), 'hunk')} of the conflict, not {len(sides)}"
            )
        chosen = {"ours": self.ours, "theirs": self.theirs}
        if self.text is None:
            return chosen[sides[0]] if sides else self.ours
        decided = chosen[sides[-1]] if self.hunks and self.hunks[-1].kind is HunkKind.MODE else None
        return Version(self.text.resolved(sides), decided.mode if decided else self.mode)

    def accepted(self, side: Side) -> Version | None:
        """Return the version with one side in every hunk."""
        return self.resolved([side for _ in self.hunks])

    def marked(self, labels: Labels = LABELS) -> bytes | None:
        """Return the text with conflict markers around each hunk of lines; None if the file is not merged by lines."""
        is_binary = any(hunk.kind is HunkKind.CONTENT for hunk in self.hunks)
        return None if self.text is None or is_binary else self.text.marked(labels)


def merge(ours: Version | None, base: Version | None, theirs: Version | None) -> Merged:
    """Merge three versions of one file by the rules above; None is a side that has no file.

    Raises `ToolMissing` if a text merge is needed and git cannot run.
    """
    if theirs in (ours, base):
        return Merged(ours, ours)
    if ours == base:
        return Merged(theirs, theirs)
    if ours is None or theirs is None:
        return whole_conflict(ours, theirs, "one side deleted it, and the other changed it")
    if not ours.is_file or not theirs.is_file:
        return whole_conflict(ours, theirs, "both sides changed it, and it is not a regular file on both")
    return _merge_files(ours, base if base and base.is_file else None, theirs)


def whole_conflict(ours: Version | None, theirs: Version | None, reason: str) -> Merged:
    """Return a merge in which one side is chosen as a whole."""
    hunk = Hunk(HunkKind.CONTENT, ours.body if ours else None, theirs.body if theirs else None)
    return Merged(ours, theirs, (hunk,), reason)


def _merge_files(ours: Version, base: Version | None, theirs: Version) -> Merged:
    """Merge contents and modes of regular files separately; the result is clean if both are."""
    text, reason = _merge_contents(ours, base, theirs)
    mode, is_same_mode = merge_modes(ours.mode, base.mode if base else None, theirs.mode)
    hunks = text.hunks
    if not is_same_mode:
        modes = (b"%o" % (side.mode or 0) for side in (ours, theirs))
        hunks = (*hunks, Hunk(HunkKind.MODE, *modes))
        reason = reason or "both sides changed its mode"
    return Merged(ours, theirs, hunks, reason, text, mode)


def _merge_contents(ours: Version, base: Version | None, theirs: Version) -> tuple[TextMerge, str]:
    """Return the merged content, and the reason if it is in conflict."""
    old = base.body if base else None
    if theirs.body in (ours.body, old):
        return TextMerge((ours.body,)), ""
    if ours.body == old:
        return TextMerge((theirs.body,)), ""
    if not all(side.is_text for side in (ours, base, theirs) if side):
        hunk = Hunk(HunkKind.CONTENT, ours.body, theirs.body)
        return TextMerge((hunk,)), "both sides changed it, and it is binary"
    text = merge_text(ours.body, old or b"", theirs.body)
    return text, "both sides changed the same lines" if text.hunks else ""


def merge_modes(ours: int | None, base: int | None, theirs: int | None) -> tuple[int | None, bool]:
    """Return the merged mode of a file that both sides have, and True if it is without conflict."""
    if ours is None or theirs is None or ours == theirs:
        return (theirs if ours is None else ours), True
    before = DEFAULT_MODE if base is None else base
    if theirs == before:
        return ours, True
    return (theirs, True) if ours == before else (ours, False)

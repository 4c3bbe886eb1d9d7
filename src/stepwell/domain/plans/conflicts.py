"""Conflicts of a merge as values: the contents that the sides left at one path, kept until one of them is chosen.

After the first conflict of a path nothing more is merged there until it is resolved: the later children of the path
wait, recorded as conflicts too. The result of a resolution becomes `ours` of the next child, which is then merged with
it: cleanly (`Resolution.MERGED`), or it is the open conflict of the path.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct, msgpack

from stepwell.domain.changesets.model import Content
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import Conflict
from stepwell.text import PlainEnum, brief_repr

Side = Literal["ours", "theirs"]
"""A side of a conflict: `ours` is the content that is merged so far, `theirs` the content that the child left."""

_VERSION_BYTES: Final = 8


class ConflictState(PlainEnum):
    """A conflict is open until a resolution is recorded, and never opens again."""

    OPEN = "open"
    RESOLVED = "resolved"


class Resolution(PlainEnum):
    """The choice that resolved a conflict: one side in every hunk, a side for each hunk, or a new body.

    `MERGED` is no choice: after the resolution of an earlier conflict of the path, this child merged without one.
    """

    ACCEPT_OURS = "accept_ours"
    ACCEPT_THEIRS = "accept_theirs"
    HUNKS = "hunks"
    BODY = "body"
    MERGED = "merged"


class MergeConflict(Struct, frozen=True, array_like=True):
    """A path at which the content that a child left does not fit the content that is merged so far.

    `base` is the content that the child found, `ours` the content that is merged so far, `theirs` the content that the
    child left; None stands for "no file". `plan_id` and `alias` name the child. `chosen` is the content that the
    resolution gave the path.
    """

    path: str
    plan_id: str  # of the child
    alias: str
    base: Content | None  # what the child found
    ours: Content | None  # what is merged so far
    theirs: Content | None  # what the child left
    state: ConflictState = ConflictState.OPEN
    resolution: Resolution | None = None
    chosen: Content | None = None
    resolved_at_ms: int | None = None

    __repr__ = brief_repr

    @property
    def is_open(self) -> bool:
        return self.state is ConflictState.OPEN

    @property
    def version(self) -> str:
        """A name for the child and the three contents: a choice that was made for other contents has another one."""
        seen = msgpack.encode((self.path, self.plan_id, self.base, self.ours, self.theirs))
        return digest_of(seen)[:_VERSION_BYTES].hex()

    def require_version(self, seen: str) -> None:
        """Raise `Conflict` if a choice was made for another version: it may not fit these contents."""
        if seen != self.version:
            raise Conflict(
                f"the conflict at {self.path!r} is now with child {self.alias!r} in version {self.version}, and the "
                f"choice was made for version {seen}: look at the conflict again with conflict_sides, and choose",
                expected=seen,
                actual=self.version,
            )


class Merge(Struct, frozen=True, array_like=True):
    """The record of a merge: the merged children in declared order, and the changeset with the result.

    `changeset_id` is None if the children changed nothing.
    """

    at_ms: int
    attempt: int
    children: tuple[str, ...]
    changeset_id: str | None

"""Conflicts of a merge as values: the contents that the sides left at one path, kept until one of them is chosen.

All conflicts of one path are recorded against the same `ours`. After the first conflict of a path nothing more is
merged there, so that no choice drops the work of a later child. The conflicts of a path are resolved in declared order,
and the chosen content becomes `ours` of the next conflict.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from stepwell.domain.changesets.model import Content


class ConflictState(StrEnum):
    """A conflict is open until a resolution is recorded, and never opens again."""

    OPEN = "open"
    RESOLVED = "resolved"


class Resolution(StrEnum):
    """The choice that resolves a conflict: `ours`, the content merged so far; `theirs`, the child's content; or a new
    body.
    """

    ACCEPT_OURS = "accept_ours"
    ACCEPT_THEIRS = "accept_theirs"
    BODY = "body"


class MergeConflict(Struct, frozen=True, array_like=True):
    """A path at which the content that a child left does not fit the content that is merged so far.

    `base` is the content that the child found, `ours` the content that is merged so far, `theirs` the content that the
    child left; None stands for "no file". `plan_id` and `alias` name the child. `chosen` is the content of the
    resolution.
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

    @property
    def is_open(self) -> bool:
        return self.state is ConflictState.OPEN


class Merge(Struct, frozen=True, array_like=True):
    """The record of a merge: the merged children in declared order, and the changeset with the result.

    `changeset_id` is None if the children changed nothing.
    """

    at_ms: int
    attempt: int
    children: tuple[str, ...]
    changeset_id: str | None

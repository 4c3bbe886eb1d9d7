"""Conflicts of a merge as values: what two sides made of one path, kept until somebody chooses.

All conflicts of one path are kept against the same `ours`: from the first on, nothing more is merged there, so that no
choice drops what a later child did. They are resolved in declared order, and what is chosen is `ours` for the next.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from stepwell.domain.changesets.model import Content


class ConflictState(StrEnum):
    """Whether somebody has chosen."""

    OPEN = "open"
    RESOLVED = "resolved"


class Resolution(StrEnum):
    """What was chosen: what is merged so far, what the child left, or something else."""

    ACCEPT_OURS = "accept_ours"
    ACCEPT_THEIRS = "accept_theirs"
    BODY = "body"


class MergeConflict(Struct, frozen=True, array_like=True):
    """A path of which a child made something that does not fit what is there. None for "no file"."""

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
    """Which children were merged, in declared order, and the changeset that has what came of it."""

    at_ms: int
    attempt: int
    children: tuple[str, ...]
    changeset_id: str | None

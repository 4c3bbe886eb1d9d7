"""Commands on changesets."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from stepwell import limits
from stepwell.domain import replies
from stepwell.domain.bounded_types import Body, Cursor, Identifier, Label, PageLimit, Positive, RawDigest, UploadNumber
from stepwell.domain.changesets.paths import Mode
from stepwell.domain.command_roots import Read, Write

PathText = Annotated[
    str, Meta(min_length=1, max_length=limits.PATH_CHARS_MAX, description="a path has 1 to 4096 characters")
]


class StartChangeset(Write[replies.ChangesetFound], frozen=True):
    """Open a changeset; it is the context's active one until it ends."""

    plan_id: Identifier
    context_id: Identifier
    changeset_id: Identifier
    lease: Positive | None


class RecordChange(Write[replies.EntryFound], frozen=True):
    """Record into a named changeset, or into the context's most recent active one."""

    plan_id: Identifier
    context_id: Identifier
    lease: Positive | None
    path: PathText
    before: Body | UploadNumber | None = None
    after: Body | UploadNumber | None = None
    before_digest: RawDigest | None = None
    after_digest: RawDigest | None = None
    source_path: PathText | None = None
    tool: Label = "unknown"
    changeset_id: Identifier | None = None
    before_mode: Mode | None = None
    after_mode: Mode | None = None

    @property
    def inline(self) -> tuple[int, ...]:
        return tuple(len(body) for body in (self.before, self.after) if isinstance(body, bytes))


class EndChangeset(Write[replies.ChangesetFound], frozen=True):
    """Close a changeset, so that it counts, or abort it, so that it does not. Then it is immutable."""

    plan_id: Identifier
    context_id: Identifier
    lease: Positive | None
    changeset_id: Identifier
    abort: bool = False


class GetChangeset(Read[replies.ChangesetFound], frozen=True):
    """One changeset by id."""

    changeset_id: Identifier


class ListChangesets(Read[replies.ChangesetPage], frozen=True):
    """A plan's changesets."""

    plan_id: Identifier
    limit: PageLimit = 100
    cursor: Cursor | None = None


class ListEntries(Read[replies.EntryPage], frozen=True):
    """A changeset's entries, with their bodies if asked for."""

    changeset_id: Identifier
    limit: PageLimit = 100
    cursor: Cursor | None = None
    with_bodies: bool = False


ChangesetRead = GetChangeset | ListChangesets | ListEntries
ChangesetWrite = StartChangeset | RecordChange | EndChangeset

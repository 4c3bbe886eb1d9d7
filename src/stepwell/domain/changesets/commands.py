"""Commands on changesets: one frozen Struct for each request.

The client chooses the ids of changesets and contexts, so a request that is sent again creates nothing twice. Contents
travel in one of three forms: as bytes inside the frame (`Body`), as the number of an upload on the same connection
(`UploadNumber`), or as a digest alone, if the manager need not store the bytes.
"""

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
"""The path of a file, relative to the root of the project. The decider checks its form."""


class StartChangeset(Write[replies.ChangesetFound], frozen=True):
    """Open a changeset. It is the active changeset of its context until it ends or another one is opened on top
    of it.
    """

    plan_id: Identifier
    context_id: Identifier
    changeset_id: Identifier
    lease: Positive | None


class RecordChange(Write[replies.EntryFound], frozen=True):
    """Record one change into the named changeset, or into the changeset that the context opened last.

    Give each side as a body or as a digest, not as both. A side with neither is absent: the file is created or deleted.
    """

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
        """The sizes of the bodies that the command carries inside its frame."""
        return tuple(len(body) for body in (self.before, self.after) if isinstance(body, bytes))


class EndChangeset(Write[replies.ChangesetFound], frozen=True):
    """Close a changeset, so that its entries count, or abort it, so that they do not. It is immutable afterwards."""

    plan_id: Identifier
    context_id: Identifier
    lease: Positive | None
    changeset_id: Identifier
    abort: bool = False


class GetChangeset(Read[replies.ChangesetFound], frozen=True):
    """Read one changeset of the session's projects."""

    changeset_id: Identifier


class ListChangesets(Read[replies.ChangesetPage], frozen=True):
    """List a plan's changesets in the order of starting."""

    plan_id: Identifier
    limit: PageLimit = 100
    cursor: Cursor | None = None


class ListEntries(Read[replies.EntryPage], frozen=True):
    """List a changeset's entries in the order of recording, with the handles of their bodies if `with_bodies`
    is true.
    """

    changeset_id: Identifier
    limit: PageLimit = 100
    cursor: Cursor | None = None
    with_bodies: bool = False


ChangesetRead = GetChangeset | ListChangesets | ListEntries
ChangesetWrite = StartChangeset | RecordChange | EndChangeset

"""The calls on changesets, and `ChangesetApi`, which reads and records the changes of one plan.

A changeset is a list of entries, each the change of one path. It is recorded in an execution context; the manager
decides which changeset an entry goes to. `ChangesetApi` has everything that needs no decisions of its own. The facade
`PlanExecutionContext` adds the workflows (merge, apply, rollback, capture), which use this class and not the facade.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from stepwell import limits
from stepwell.client.api.entry_diff import entry_diff
from stepwell.client.api.service import AcceptsCalls, BlockingService, BufferedService, Service, method
from stepwell.client.session.calls import Answered, Call
from stepwell.client.session.session import Session
from stepwell.domain.changesets.commands import (
    EndChangeset,
    GetChangeset,
    ListChangesets,
    ListEntries,
    RecordChange,
    StartChangeset,
)
from stepwell.domain.changesets.model import Change, Changeset, ChangesetState, EntryRow, Operation
from stepwell.domain.changesets.net_changes import NetChange, in_recording_order, net_changes
from stepwell.domain.checks import require_instance
from stepwell.domain.plans.commands import GetPlan
from stepwell.domain.replies import BodiesLocated, ChangesetFound, ChangesetPage, EntryPage
from stepwell.domain.tiers.body_refs import Digest
from stepwell.domain.tiers.commands import LocateBodies
from stepwell.errors import NotFound
from stepwell.text import brief_repr


class ChangeSummary(Struct, frozen=True):
    """The numbers of one changeset: entries by operation and by tool, and the paths in order of their first change."""

    changeset_id: str
    entries: int
    by_operation: dict[Operation, int]
    by_tool: dict[str, int]
    paths: tuple[str, ...]

    __repr__ = brief_repr


class EntryListing(Struct, frozen=True):
    """A page of entries, and the bodies by digest if they were asked for. It is iterated and counted as the page is."""

    reply: EntryPage
    bodies: dict[bytes, memoryview]

    def __iter__(self) -> Iterator[EntryRow]:
        return iter(self.reply)

    def __len__(self) -> int:
        return len(self.reply)

    @property
    def cursor(self) -> str | None:
        """The position of the next page; None if this is the last one."""
        return self.reply.cursor

    __repr__ = brief_repr


class ChangesetCalls(Service):
    """The calls on the changesets of one context; their result depends on the kind of service."""

    plan_id: str
    lease: int | None

    @property
    def context_id(self) -> str:
        """The id of the context that owns the active changesets."""
        raise NotImplementedError

    @method
    def start_changeset(self) -> Call[str]:
        """Open a changeset, make it the active one of this context, and return its id."""
        command = StartChangeset(self.plan_id, self.context_id, self.session.new_id(), self._lease_token())
        return Call(command, lambda answered: answered.reply.changeset.changeset_id)

    @method
    def record_change(self, change: Change, *, changeset_id: str | None = None) -> Call[EntryRow]:
        """Record a change into the named changeset, or into the most recent active one of this context.

        The manager resolves "most recent" in the same step that records the entry. It raises `NoActiveChangeset` if
        there is none.
        """
        require_instance(change, (Change,), "record_change takes a stepwell.Change")
        before, after = _body(change.before), _body(change.after)
        large = {
            field: body
            for field, body in (("before", before), ("after", after))
            if body is not None and len(body) > limits.INLINE_BODY_BYTES_MAX
        }
        command = RecordChange(
            plan_id=self.plan_id,
            context_id=self.context_id,
            lease=self._lease_token(),
            path=change.path,
            before=0 if "before" in large else before,
            after=0 if "after" in large else after,
            before_digest=_digest(change.before),
            after_digest=_digest(change.after),
            source_path=change.source_path,
            tool=change.tool,
            changeset_id=changeset_id,
            before_mode=change.before_mode,
            after_mode=change.after_mode,
        )
        return Call(command, lambda answered: answered.reply.entry, large)

    @method
    def close_changeset(self, changeset_id: str) -> Call[Changeset]:
        """Close a changeset: its entries count for the plan, and it is immutable from then on."""
        return Call(EndChangeset(self.plan_id, self.context_id, self._lease_token(), changeset_id), _changeset)

    @method
    def abort_changeset(self, changeset_id: str) -> Call[Changeset]:
        """Abort a changeset: its entries do not count for the plan, but stay readable."""
        command = EndChangeset(self.plan_id, self.context_id, self._lease_token(), changeset_id, abort=True)
        return Call(command, _changeset)

    @method
    def get(self, changeset_id: str) -> Call[Changeset]:
        """Return a changeset as it is now."""
        return Call(GetChangeset(changeset_id), _changeset)

    @method
    def list(self, *, limit: int = 100, cursor: str | None = None) -> Call[ChangesetPage]:
        """Return a page of the plan's changesets, of all contexts, in order of starting."""
        return Call(ListChangesets(self.plan_id, limit, cursor))

    @method
    def page(
        self, changeset_id: str, *, limit: int = 100, cursor: str | None = None, with_bodies: bool = False
    ) -> Call[EntryListing]:
        """Return a page of entries in order of recording. `entries` follows the cursor."""
        command = ListEntries(changeset_id, limit, cursor, with_bodies)
        return Call(command, self._listing)

    @method
    def body(self, digest: bytes) -> Call[memoryview]:
        """Return the bytes of a content of an entry or a conflict; `NotFound` if the manager does not hold them."""
        return Call(LocateBodies((digest,)), self._located)

    def _located(self, answered: Answered[BodiesLocated]) -> memoryview:
        """Read the body that the manager has located."""
        for digest, handle in answered.handles.items():
            return self.session.bodies.read(digest, handle)
        raise NotFound("nothing refers to that body any more, or only its digest was recorded")

    def _listing(self, answered: Answered[EntryPage]) -> EntryListing:
        """Read the bodies of a page of entries."""
        read = self.session.bodies.read
        bodies = {digest: read(digest, handle) for digest, handle in answered.handles.items()}
        return EntryListing(answered.reply, bodies)

    def _lease_token(self) -> int | None:
        """Return the lease to show: the one of this context, or the one that the session remembers."""
        return self.session.lease_token(self.plan_id, self.lease)


class BufferedChangesets(ChangesetCalls, BufferedService):
    """A context inside a batch or a transaction: it records into the same changesets as the context it was made of."""

    def __init__(self, session: Session, buffer: AcceptsCalls, context: ChangesetCalls) -> None:
        super().__init__(session, buffer)
        self.plan_id, self.lease = context.plan_id, context.lease
        self._context = context

    @property
    def context_id(self) -> str:
        return self._context.context_id


class ChangesetApi(ChangesetCalls, BlockingService):
    """The changesets of one plan, blocking. Any number of threads may use it.

    A context owns its active changesets, and two contexts of one plan never see each other's. Threads that share a
    context and open changesets side by side pass `changeset_id=`, because "the most recent" may be another thread's.
    There is no lock: the manager decides which changeset a change goes to, in the same step that records it.
    """

    def __init__(self, session: Session, plan_id: str, lease: int | None = None) -> None:
        super().__init__(session)
        self.plan_id = plan_id
        self.lease = lease
        self._serial = self.session.new_id()

    @property
    def context_id(self) -> str:
        """The id of this context in this session.

        It contains the session's id, so that a forked child, which has a session of its own, is another context.
        """
        return f"{self._serial}-{self.session.channel.session_id}"

    def entries(self, changeset_id: str) -> Iterator[EntryRow]:
        """Yield the entries of a changeset in order of recording."""
        for page in self._pages(changeset_id, with_bodies=False):
            yield from page.reply.entries

    def summary(self, changeset_id: str) -> ChangeSummary:
        """Return the numbers of a changeset."""
        return summary_of(changeset_id, [*self.entries(changeset_id)])

    def net_changes(self) -> dict[str, NetChange]:
        """Return what the plan does to a tree, by path.

        Closed changesets count, of the attempt that executed or is executing. Changes of a path that do not follow from
        each other raise `BrokenChain`.
        """
        return net_changes(self.recorded())

    def recorded(self) -> Sequence[EntryRow]:
        """Return the entries that `net_changes` is made of, in order of recording."""
        plan = self.session.perform(Call(GetPlan(self.plan_id), lambda answered: answered.reply.plan))
        attempt = plan.attempt if plan.executed_attempt is None else plan.executed_attempt
        counted = [each for each in self.changesets() if (each.state, each.attempt) == (ChangesetState.CLOSED, attempt)]
        return in_recording_order([[*self.entries(each.changeset_id)] for each in counted])

    def of(self, plan_id: str, lease: int | None = None) -> ChangesetApi:
        """Return a context of another plan in the same session, for example to read what a child recorded."""
        return ChangesetApi(self.session, plan_id, lease)

    def changesets(self) -> Iterator[Changeset]:
        """Yield all changesets of the plan, of all contexts and attempts, in order of starting."""
        cursor: str | None = None
        while True:
            page = self.list(limit=limits.PAGE_ROWS_MAX, cursor=cursor)
            yield from page.changesets
            if page.cursor is None:
                return
            cursor = page.cursor

    def diff(self, changeset_id: str) -> str:
        """Return a unified diff of a changeset, in order of recording.

        Content that is not text, or not held, is only named.
        """
        return "".join(
            entry_diff(entry, page.bodies)
            for page in self._pages(changeset_id, with_bodies=True)
            for entry in page.reply.entries
        )

    def _pages(self, changeset_id: str, *, with_bodies: bool) -> Iterator[EntryListing]:
        """Yield the pages of a changeset's entries."""
        cursor: str | None = None
        while True:
            page = self.page(changeset_id, limit=limits.PAGE_ROWS_MAX, cursor=cursor, with_bodies=with_bodies)
            yield page
            if page.reply.cursor is None:
                return
            cursor = page.reply.cursor


def summary_of(changeset_id: str, entries: Sequence[EntryRow]) -> ChangeSummary:
    """Return the summary of all entries of a changeset."""
    return ChangeSummary(
        changeset_id=changeset_id,
        entries=len(entries),
        by_operation=dict(Counter(entry.operation for entry in entries)),
        by_tool=dict(Counter(entry.tool for entry in entries)),
        paths=tuple(dict.fromkeys(entry.path for entry in entries)),
    )


def _changeset(answered: Answered[ChangesetFound]) -> Changeset:
    return answered.reply.changeset


def _body(content: bytes | Digest | None) -> bytes | None:
    """Return the bytes of a content, or None for one that is given by its digest only."""
    return None if isinstance(content, Digest) else content


def _digest(content: bytes | Digest | None) -> bytes | None:
    """Return the digest of a content that is given by its digest only, or None."""
    return content.value if isinstance(content, Digest) else None

"""`PlanExecutionContext`: where the changes of one execution are recorded."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO

from msgspec import Struct
from ulid import ULID

from stepwell import limits
from stepwell.client.calls import Answered, Answering, Call, Deferring, Enlists, Service, method
from stepwell.client.session import Session
from stepwell.domain.changeset import Change, Changeset, Content, EntryRow, Operation
from stepwell.domain.checks import require_instance
from stepwell.domain.commands.changesets import (
    EndChangeset,
    GetChangeset,
    ListChangesets,
    ListEntries,
    RecordChange,
    StartChangeset,
)
from stepwell.domain.content import Digest
from stepwell.domain.replies import ChangesetFound, ChangesetPage, EntryPage


class ChangeSummary(Struct, frozen=True):
    """What a changeset does, in numbers."""

    changeset_id: str
    entries: int
    by_operation: dict[Operation, int]
    by_tool: dict[str, int]
    paths: tuple[str, ...]


class EntryListing(Struct, frozen=True):
    """A page of entries, with the bodies that were asked for."""

    reply: EntryPage
    bodies: dict[bytes, memoryview]


class ExecutionCalls(Service):
    """The calls on changesets of one context; what they give depends on the service that has them."""

    plan_id: str
    lease: int | None

    @property
    def context_id(self) -> str:
        raise NotImplementedError

    @method
    def start_changeset(self) -> Call[str]:
        """Open a changeset, give its id, and make it this context's active one."""
        command = StartChangeset(self.plan_id, self.context_id, str(ULID()), self._token())
        return Call(command, lambda answered: answered.reply.changeset.changeset_id)

    @method
    def record_change(self, change: Change, *, changeset_id: str | None = None) -> Call[EntryRow]:
        """Record into the named changeset, or into this context's most recent active one.

        Which one that is, is resolved by the manager in the same step that records. Without one: `NoActiveChangeset`.
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
            lease=self._token(),
            path=change.path,
            before=0 if "before" in large else before,
            after=0 if "after" in large else after,
            before_digest=_digest(change.before),
            after_digest=_digest(change.after),
            source_path=change.source_path,
            tool=change.tool,
            changeset_id=changeset_id,
        )
        return Call(command, lambda answered: answered.reply.entry, large)

    @method
    def close_changeset(self, changeset_id: str) -> Call[Changeset]:
        """Make a changeset count; it is immutable after."""
        return Call(EndChangeset(self.plan_id, self.context_id, self._token(), changeset_id), _changeset)

    @method
    def abort_changeset(self, changeset_id: str) -> Call[Changeset]:
        """Make a changeset not count; it stays readable."""
        command = EndChangeset(self.plan_id, self.context_id, self._token(), changeset_id, abort=True)
        return Call(command, _changeset)

    @method
    def get(self, changeset_id: str) -> Call[Changeset]:
        """A changeset as it is now."""
        return Call(GetChangeset(changeset_id), _changeset)

    @method
    def list(self, *, limit: int = 100, cursor: str | None = None) -> Call[ChangesetPage]:
        """A page of the plan's changesets, of all contexts, in order of starting."""
        return Call(ListChangesets(self.plan_id, limit, cursor), lambda answered: answered.reply)

    @method
    def page(
        self, changeset_id: str, *, limit: int = 100, cursor: str | None = None, with_bodies: bool = False
    ) -> Call[EntryListing]:
        """A page of entries. `entries` follows the cursor."""
        command = ListEntries(changeset_id, limit, cursor, with_bodies)
        return Call(command, self._listing)

    def _listing(self, answered: Answered[EntryPage]) -> EntryListing:
        read = self.session.bodies.read
        bodies = {digest: read(digest, handle) for digest, handle in answered.handles.items()}
        return EntryListing(answered.reply, bodies)

    def _token(self) -> int | None:
        return self.session.lease(self.plan_id, self.lease)


class DeferredExecution(ExecutionCalls, Deferring):
    """A context inside a batch or a transaction: the same context, its changesets included."""

    def __init__(self, session: Session, bundle: Enlists, context: ExecutionCalls) -> None:
        super().__init__(session, bundle)
        self.plan_id, self.lease = context.plan_id, context.lease
        self._context = context

    @property
    def context_id(self) -> str:
        return self._context.context_id


class PlanExecutionContext(ExecutionCalls, Answering):
    """The changes of one execution, safe from any number of threads.

    A context owns its active changesets, and two contexts of one plan never see each other's: make one for each
    worker with `client.execution(plan_id)`. Threads that share one context and open changesets side by side name
    theirs with `changeset_id=`; "the most recent" is then somebody else's question. There is no lock: which changeset a
    change goes to is decided by the manager, in the same step that records it.
    """

    def __init__(self, session: Session, plan_id: str, lease: int | None = None) -> None:
        super().__init__(session)
        self.plan_id = plan_id
        self.lease = lease
        self._serial = str(ULID())

    @property
    def context_id(self) -> str:
        """Its own, and its session's: in a forked child, which has a session of its own, it is another context."""
        return f"{self._serial}-{self.session.channel.session_id}"

    def entries(self, changeset_id: str) -> Iterator[EntryRow]:
        """A changeset's entries in order of recording."""
        for page in self._pages(changeset_id, with_bodies=False):
            yield from page.reply.entries

    def summary(self, changeset_id: str) -> ChangeSummary:
        """What a changeset does, in numbers."""
        return summary_of(changeset_id, [*self.entries(changeset_id)])

    def diff(self, changeset_id: str) -> str:
        """A unified diff of a changeset, in order of recording. What is not text, or not held, is only named."""
        return "".join(
            _entry_diff(entry, page.bodies)
            for page in self._pages(changeset_id, with_bodies=True)
            for entry in page.reply.entries
        )

    def _pages(self, changeset_id: str, *, with_bodies: bool) -> Iterator[EntryListing]:
        cursor: str | None = None
        while True:
            page = self.page(changeset_id, limit=limits.PAGE_ROWS_MAX, cursor=cursor, with_bodies=with_bodies)
            yield page
            if page.reply.cursor is None:
                return
            cursor = page.reply.cursor


def summary_of(changeset_id: str, entries: Sequence[EntryRow]) -> ChangeSummary:
    """What all entries of a changeset come to."""
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
    return None if isinstance(content, Digest) else content


def _digest(content: bytes | Digest | None) -> bytes | None:
    return content.value if isinstance(content, Digest) else None


def _entry_diff(entry: EntryRow, bodies: Mapping[bytes, memoryview]) -> str:
    """One file's part of a diff, as git writes it, and so as `git apply` reads it."""
    old, new = _quoted("a", entry.source_path or entry.path), _quoted("b", entry.path)
    header = f"diff --git {old} {new}\n"
    if entry.before is None:
        header, old = f"{header}new file mode 100644\n", "/dev/null"
    if entry.after is None:
        header, new = f"{header}deleted file mode 100644\n", "/dev/null"
    if entry.source_path is not None:
        header += f"rename from {_quoted('', entry.source_path)}\nrename to {_quoted('', entry.path)}\n"
    before, after = _lines(entry.before, bodies), _lines(entry.after, bodies)
    if before is None or after is None:
        return f"{header}Binary files {old} and {new} differ\n"
    return header + "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(before, after, old, new)
    )


def _quoted(side: str, path: str) -> str:
    """A path in a diff: one with quotes or control characters in it must not look like a line of the diff."""
    named = f"{side}/{path}" if side else path
    return named if named.isprintable() and not {'"', "\\"} & {*named} else json.dumps(named)


def _lines(side: Content | None, bodies: Mapping[bytes, memoryview]) -> list[str] | None:
    """A side's lines, ended by newlines alone; None when it is not text, or its bytes are not held."""
    if side is None:
        return []
    body = bodies.get(side.digest)
    try:
        text = None if body is None else str(body, "utf-8")
        return None if text is None or "\0" in text else [*StringIO(text, newline="\n")]
    except UnicodeDecodeError:
        return None

"""`Log`: a list of entries in a project, to which any number of threads and processes append.

An append needs no knowledge of the log and no retry: appends commute, and each gets positions of its own. What depends
on the present state (`pop`, `clear`, `retain`, `delete`, and an append if the caller wants it) can name the head that
it expects, and raises `Conflict` otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from stepwell import limits
from stepwell.client.api.log_entries import LogListing, StoredLogEntry
from stepwell.client.api.log_watch import LogWatch
from stepwell.client.api.service import AcceptsCalls, BlockingService, BufferedService, Service, method
from stepwell.client.api.watch import Watches
from stepwell.client.session.body_reader import BodyReader
from stepwell.client.session.calls import Answered, Call, LargeBody, partly_refused
from stepwell.client.session.session import Session
from stepwell.domain.checks import check, utf8
from stepwell.domain.commands import Command
from stepwell.domain.logs.commands import (
    AppendToLog,
    ClearLog,
    DeleteLog,
    GetLog,
    ListLogs,
    NewEntry,
    PopFromLog,
    ReadLog,
    RetainInLog,
)
from stepwell.domain.logs.model import LogEntry, LogNames, LogStatus
from stepwell.domain.logs.replies import EntriesAppended, EntriesFound, EntryPopped, LogFound, LogPage, LogRemoved
from stepwell.domain.replies import AnyReply, BodiesLocated, Reply
from stepwell.domain.tiers.commands import LocateBodies
from stepwell.errors import BodyGone, InvalidArgument, StepwellError

Body = str | bytes | memoryview | LogEntry
"""The body of an entry, or an entry with a kind and metadata."""


class _AppendCall(Call[EntriesAppended]):
    """An append. A large body stands in its entry as its position among the large bodies of this call."""

    __slots__ = ("_append",)

    def __init__(self, append: AppendToLog, large: Sequence[LargeBody]) -> None:
        super().__init__(append, lambda answered: answered.reply, {str(at): body for at, body in enumerate(large)})
        self._append = append

    def prepare(self, uploads: list[LargeBody]) -> Command[Reply]:
        """Return the command as it is sent: the numbers of its uploads begin behind those of other calls."""
        if not self._large:
            return self.command
        first = len(uploads)
        uploads.extend(self._large.values())
        entries = tuple(
            replace(entry, body=first + entry.body) if isinstance(entry.body, int) else entry
            for entry in self._append.entries
        )
        return replace(self._append, entries=entries)


class _PopCall(Call[StoredLogEntry | None]):
    """A pop. Its body is read where the manager says. If it was moved, it is located: another pop would remove another
    entry.
    """

    __slots__ = ("_bodies",)

    def __init__(self, pop: PopFromLog, bodies: BodyReader) -> None:
        super().__init__(pop, self._popped)
        self._bodies = bodies

    def _popped(self, answered: Answered[EntryPopped]) -> StoredLogEntry | None:
        row = answered.reply.entry
        if row is None:
            return None
        handle = answered.handles.get(row.digest)
        if handle is None:
            raise BodyGone("the reply does not say where the body of the popped entry is")
        return StoredLogEntry(row, self._bodies.read(row.digest, handle))

    def retried(self, answered: Answered[AnyReply]) -> Call[StoredLogEntry | None]:
        """Return the call that locates and reads the body. The entry has none if a minute is over since the pop."""
        reply = answered.reply
        assert isinstance(reply, EntryPopped)
        row = reply.entry
        assert row is not None

        def located(answered: Answered[BodiesLocated]) -> StoredLogEntry | None:
            handle = answered.handles.get(row.digest)
            return StoredLogEntry(row, self._bodies.read(row.digest, handle) if handle else None)

        return Call(LocateBodies((row.digest,)), located)


class LogCalls(Service):
    """The calls on one log; their result depends on the kind of service."""

    project: str
    name: str

    @method
    def append(self, *bodies: Body, expected_head: int | None = None) -> Call[EntriesAppended]:
        """Append entries, in order and at one revision, and return their positions and the new head.

        It always succeeds while there is room; the first append creates the log. With `expected_head` (0: the log must
        not exist) a writer whose knowledge is stale gets `Conflict`. At most 256 entries: `extend` appends any number.
        """
        if not 1 <= len(bodies) <= limits.LOG_APPENDED_MAX:
            raise InvalidArgument(
                f"append takes 1 to {limits.LOG_APPENDED_MAX} bodies, not {len(bodies)}: extend takes any number"
            )
        return append_call(self.project, self.name, [entry_of(body) for body in bodies], expected_head)

    @method
    def last(self, count: int = 1, *, before: int | None = None) -> Call[LogListing]:
        """Return the last entries, oldest first; with `before`, the last ones before that position.

        At most 1,000. There are fewer if their bodies have more than 4 MiB: `more` says that others are before them.
        """
        return Call(ReadLog(self.project, self.name, before=before, limit=count), self._listing)

    @method
    def since(self, position: int = 0, *, limit: int = 100) -> Call[LogListing]:
        """Return the first entries behind a position, 0 for the beginning; `more` says that others follow.

        At most 1,000, and fewer if their bodies have more than 4 MiB. Go on with the position of the last one.
        """
        return Call(ReadLog(self.project, self.name, after=position, limit=limit), self._listing)

    @method
    def pop(self, *, expected_head: int | None = None) -> Call[StoredLogEntry | None]:
        """Remove the last entry and return it; None if there is none. Each entry is popped once.

        Its position is not used again.
        """
        return _PopCall(PopFromLog(self.project, self.name, expected_head), self.session.bodies)

    @method
    def clear(self, *, expected_head: int | None = None) -> Call[LogStatus]:
        """Remove all entries at once, however many they are. Positions go on behind them."""
        return Call(ClearLog(self.project, self.name, expected_head), _status)

    @method
    def retain(
        self, entries: int | None = None, *, age_ms: int | None = None, expected_head: int | None = None
    ) -> Call[LogStatus]:
        """Set how many entries the log retains and for how long; None is unlimited. It applies at once.

        Older entries are absent from the moment that a later append exceeds the number, or that their time is over. A
        log that does not exist is created.
        """
        return Call(RetainInLog(self.project, self.name, entries, age_ms, expected_head), _status)

    @method
    def status(self) -> Call[LogStatus]:
        """Return the head of the log, its positions and sums. The head is 0 if the log does not exist."""
        return Call(GetLog(self.project, self.name), _status)

    @method
    def delete(self, *, expected_head: int | None = None) -> Call[LogRemoved]:
        """Delete the log with its entries and its retention; `NotFound` if it does not exist.

        A later log of that name begins at position 1.
        """
        return Call(DeleteLog(self.project, self.name, expected_head))

    def _listing(self, answered: Answered[EntriesFound]) -> LogListing:
        """Read the bodies of a page of entries."""
        page, handles, read = answered.reply, answered.handles, self.session.bodies.read
        bodies = {digest: read(digest, handle) for digest, handle in handles.items()}
        entries = tuple([StoredLogEntry(row, bodies[row.digest]) for row in page.entries])
        return LogListing(entries, page.head, page.first_position, page.next_position, page.more, page.serial)


class BufferedLog(LogCalls, BufferedService):
    """A log inside a batch or a transaction."""

    def __init__(self, session: Session, buffer: AcceptsCalls, project: str, name: str) -> None:
        super().__init__(session, buffer)
        self.project, self.name = checked_names(project, name)


class Log(LogCalls, BlockingService):
    """One log of a project. `Client.log` makes it. Any number of threads and processes may use the same log.

    There is no lock: each call takes effect in one step at the manager. Two appends never get the same position, and
    the entries of one append are next to each other.
    """

    def __init__(self, session: Session, watches: Watches, project: str, name: str) -> None:
        super().__init__(session)
        self.project, self.name = checked_names(project, name)
        self._watches = watches

    def extend(self, bodies: Iterable[Body]) -> Sequence[EntriesAppended]:
        """Append any number of entries, in order, many in a frame; not atomic. Return each append.

        `bodies` may be a generator: it is read a frame at a time, while the manager appends the previous frame. If some
        appends are refused, `PartlyRefused` has every outcome.
        """
        groups = ([append_call(self.project, self.name, frame, None)] for frame in in_appends(bodies))
        return all_appended([*self.session.perform_many(groups)])

    def entries(self, since: int = 0) -> Iterator[StoredLogEntry]:
        """Yield all entries behind a position, page by page, until the end that the log has then."""
        while True:
            page = self.since(since, limit=limits.PAGE_ROWS_MAX)
            yield from page.entries
            if not page.more:
                return
            since = page.entries[-1].position

    def watch(self, since: int | None = None) -> LogWatch:
        """Return an iterator over the entries behind a position, and then over each new one, without gaps or repeats.

        Without `since` it begins with the next entry; 0 is the beginning. `EntriesMissed` is raised, once, where
        entries were removed before the watch read them; iterating again continues behind them.
        """
        return LogWatch(
            (self.project, self.name),
            lambda position: self.since(position, limit=limits.LOG_WATCH_ENTRIES),
            self.status,
            self._watches,
            since,
        )

    def __repr__(self) -> str:
        return f"<stepwell.Log {self.name!r} of {self.project!r}>"


class LogsCalls(Service):
    """The calls on all logs of a project; their result depends on the kind of service."""

    @method
    def list(self, *, project: str | None = None, limit: int = 100, cursor: str | None = None) -> Call[LogPage]:
        """Return a page of the logs of a project, by name, with the status of each."""
        return Call(ListLogs(self.session.project_or_default(project), limit, cursor))


class LogService(LogsCalls, BlockingService):
    """The logs of projects. `Client.log` gives one of them."""


def checked_names(project: str, name: str) -> tuple[str, str]:
    """Return the names of a log, or raise `InvalidArgument`."""
    check(LogNames(project, name))
    utf8(name, "name")
    return project, name


def entry_of(body: Body) -> LogEntry:
    """Return what a caller appends as an entry; `InvalidArgument` if it is none."""
    return body if isinstance(body, LogEntry) else LogEntry(body)


def append_call(project: str, name: str, entries: Sequence[LogEntry], expected_head: int | None) -> _AppendCall:
    """Return the call that appends entries. Bodies that a frame has no room for are uploaded."""
    new: list[NewEntry] = []
    large: list[LargeBody] = []
    inline_bytes = 0
    for entry in entries:
        data = entry.data
        size = len(data)
        if size > limits.INLINE_BODY_BYTES_MAX or (size and inline_bytes + size > limits.LOG_INLINE_BYTES):
            new.append(NewEntry(len(large), entry.kind, entry.metadata))
            large.append(data)
        else:
            inline_bytes += size
            new.append(NewEntry(bytes(data), entry.kind, entry.metadata))
    return _AppendCall(AppendToLog(project, name, tuple(new), expected_head), large)


def in_appends(bodies: Iterable[Body]) -> Iterator[Sequence[LogEntry]]:
    """Yield groups of entries for one append each: bounded in number and, unless a body is larger, in bytes."""
    if isinstance(bodies, (str, bytes, memoryview)):
        raise InvalidArgument("extend takes a sequence of bodies: give [body], or use append")
    group: list[LogEntry] = []
    size = 0
    for body in bodies:
        if len(group) == limits.LOG_APPENDED_MAX or size >= limits.STREAM_BYTES:
            yield group
            group, size = [], 0
        group.append(entry := entry_of(body))
        size += len(entry.data)
    if group:
        yield group


def all_appended(outcomes: Sequence[EntriesAppended | StepwellError]) -> Sequence[EntriesAppended]:
    """Return all appends, or raise `PartlyRefused` if some were refused."""
    appended = [outcome for outcome in outcomes if not isinstance(outcome, StepwellError)]
    if len(appended) < len(outcomes):
        raise partly_refused(outcomes)
    return appended


def _status(answered: Answered[LogFound]) -> LogStatus:
    return answered.reply.log

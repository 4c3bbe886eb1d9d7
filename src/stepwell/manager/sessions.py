"""Sessions: the clients that are connected, their scopes, and when their sessions end.

A session belongs to one client and has any number of connections. It outlives its last connection by a grace, so that a
client that reconnects keeps its leases and gets the replies that it missed. It does not outlive its process: the kernel
announces the death of a process through a pidfd, and the session ends at once.

After a restart of the manager the sessions are restored from the store. A process is recognised by its pid and its
start time, because the kernel reuses pids. All sessions of one process share one pidfd, so that further sessions of a
process cost the manager no descriptors.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from typing import Final

from stepwell import limits
from stepwell.domain.tiers.model import Writer
from stepwell.errors import Busy, Conflict, OutcomeUnknown
from stepwell.protocol.codec import decode_results
from stepwell.protocol.messages import Result
from stepwell.storage.store import ReplyPart, SessionRow
from stepwell.transport.kernel import Kernel

_GENERATION_BITS: Final = 62


class PartialReply:
    """The results of a batch whose connection, or whose manager, ended before the batch was complete.

    `parts` are encoded, in order (see `protocol.codec.encode_results`). The store has `stored_results` of the results,
    in `stored_parts` parts.
    """

    __slots__ = ("parts", "stored_parts", "stored_results")

    def __init__(self, parts: list[bytes], stored_parts: int, stored_results: int) -> None:
        self.parts = parts
        self.stored_parts = stored_parts
        self.stored_results = stored_results

    @property
    def size(self) -> int:
        """The bytes of the results."""
        return sum(map(len, self.parts))

    def results(self) -> list[Result]:
        """Return the results of the first commands of the batch."""
        return [result for part in self.parts for result in decode_results(part)]


class SessionRecord:
    """One client, on any number of connections.

    The session table owns it; only the loop's thread uses it. `answered` never decreases: requests with smaller numbers
    are forgotten, and must not take effect again. `replies` has the encoded replies of requests that may be sent again,
    and `unfinished` the results so far of batches that may be continued; both together are bounded in number and in
    bytes. `segments` are those that the client was given and has not released, `notices` those among them that are
    retired and not yet reported to the client.
    """

    __slots__ = (
        "answered",
        "connections",
        "ends_at_s",
        "generation",
        "is_over",
        "notices",
        "pid",
        "pidfd",
        "process",
        "projects",
        "remembered_bytes",
        "replies",
        "segments",
        "session_id",
        "unfinished",
        "writer",
    )

    def __init__(self, row: SessionRow, pidfd: int | None) -> None:
        self.session_id = row.session_id
        self.projects = None if row.projects is None else frozenset(row.projects)
        self.pid, self.process = row.pid, row.process
        self.generation = row.generation
        self.writer = Writer(row.session_id, row.pid, row.label)
        self.answered = row.answered
        self.replies: dict[int, bytes] = {}
        self.unfinished: dict[int, PartialReply] = {}
        self.remembered_bytes = 0
        self.pidfd = pidfd  # shared with the other sessions of the process; None if the manager cannot see the process
        self.connections = 0
        self.is_over = False  # after Goodbye: the session is removed with its last connection
        self.ends_at_s: float | None = None  # the end of the grace, while no connection is open
        self.segments: set[int] = set()
        self.notices: list[int] = []

    @property
    def row(self) -> SessionRow:
        """The part of the session that is stored, so that a later manager can restore it."""
        projects = None if self.projects is None else tuple(sorted(self.projects))
        label = self.writer.label
        return SessionRow(self.session_id, projects, self.pid, self.process, self.answered, self.generation, label)

    def recall(self, request_id: int, answered: int) -> bytes | None:
        """Return the remembered reply of a request, or None if it was not executed before.

        `answered` says which replies have reached the caller: they are forgotten. Raise `OutcomeUnknown` for a request
        that is forgotten, because it may have taken effect or not.
        """
        if answered > self.answered:
            self._forget_below(answered)
        if request_id < self.answered:
            raise OutcomeUnknown(
                f"request {request_id} was answered too long ago, and its reply is forgotten: read the state"
            )
        return self.replies.get(request_id)

    def remember(self, request_id: int, frame: bytes) -> None:
        """Remember a reply until it has reached its caller, or newer replies need its room."""
        self.replies[request_id] = frame
        self.remembered_bytes += len(frame)
        if len(self.replies) > 1 or self.unfinished:
            self._forget_oldest()

    def suspend(self, request_id: int, partial: PartialReply) -> None:
        """Remember the results so far of a batch until its client sends it again."""
        self.resume(request_id)
        self.unfinished[request_id] = partial
        self.remembered_bytes += partial.size
        self._forget_oldest()

    def resume(self, request_id: int) -> PartialReply | None:
        """Return and forget the results so far of a batch that is sent again, or return None."""
        partial = self.unfinished.pop(request_id, None)
        if partial is not None:
            self.remembered_bytes -= partial.size
        return partial

    def _forget_oldest(self) -> None:
        while (count := len(self.replies) + len(self.unfinished)) > 1 and (
            count > limits.REPLIES_REMEMBERED_MAX or self.remembered_bytes > limits.REPLIES_REMEMBERED_BYTES_MAX
        ):
            self._forget_below(min((*self.replies, *self.unfinished)) + 1)

    def _forget_below(self, answered: int) -> None:
        self.answered = answered
        replies = self.replies
        for request_id in [*replies]:
            if request_id < answered:
                self.remembered_bytes -= len(replies.pop(request_id))
        if self.unfinished:
            for request_id in [each for each in self.unfinished if each < answered]:
                self.resume(request_id)


class _ClientProcess:
    """A process that has sessions: its pidfd, and these sessions."""

    __slots__ = ("pidfd", "sessions")

    def __init__(self, pidfd: int) -> None:
        self.pidfd = pidfd
        self.sessions: dict[str, SessionRecord] = {}


class SessionTable:
    """All sessions, by id and by the pidfd that announces the death of their process.

    The loop owns the table, and only its thread uses it. The table owns the pidfds and closes each with the last
    session of its process. `processes_max` bounds their number, because each takes a descriptor.
    """

    def __init__(self, kernel: Kernel | None = None, processes_max: int = limits.PEERS_MAX) -> None:
        self._kernel = kernel or Kernel()
        self._processes_max = processes_max
        self._by_id: dict[str, SessionRecord] = {}
        self._by_pidfd: dict[int, _ClientProcess] = {}
        self._by_process: dict[tuple[int, str], _ClientProcess] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._by_id

    def __iter__(self) -> Iterator[SessionRecord]:
        return iter(self._by_id.values())

    def join(self, session_id: str, projects: frozenset[str] | None, pid: int, label: str = "") -> SessionRecord:
        """Return the session of a new connection, and create it if there is none.

        Raise `Busy` if there are too many sessions, of all processes or of this one, or too many processes, and
        `Conflict` if the session has another scope: a client must not widen its scope by reconnecting.
        """
        session = self._by_id.get(session_id)
        if session is None:
            if len(self._by_id) >= limits.SESSIONS_MAX:
                raise Busy(f"there are {limits.SESSIONS_MAX} sessions already: try again later")
            scope = None if projects is None else tuple(projects)
            generation = secrets.randbits(_GENERATION_BITS)
            row = SessionRow(session_id, scope, pid, self._identity(pid), generation=generation, label=label)
            session = self._add(row, self._watched(row))
        elif session.projects != projects:
            raise Conflict("this session was opened with other projects: connect anew")
        session.connections += 1
        session.ends_at_s = None
        return session

    def restore(
        self,
        rows: Iterable[SessionRow],
        replies: Iterable[tuple[str, int, bytes]],
        parts: Iterable[ReplyPart],
        now_s: float,
    ) -> None:
        """Restore the sessions of an earlier manager, with their replies and the parts of their unfinished ones.

        A session whose process is gone ends with the next housekeeping. One whose process cannot be seen, or not be
        watched because there are too many, gets the grace.
        """
        for row in rows:
            process, may_return = None, True
            if row.process:
                with suppress(Busy):  # then the grace ends the session, and not its process
                    if self._identity(row.pid) == row.process:  # otherwise the pid was reused
                        process = self._watched(row)
                    may_return = process is not None
            session = self._add(row, process)
            session.ends_at_s = now_s + limits.SESSION_GRACE_SECONDS if may_return else now_s
        for session_id, request_id, frame in replies:
            if session_id in self._by_id:
                self._by_id[session_id].remember(request_id, frame)
        for (session_id, request_id), group in groupby(parts, key=lambda part: part[:2]):
            if session_id in self._by_id:
                blobs = [part.results for part in group]
                count = sum(len(decode_results(blob)) for blob in blobs)
                self._by_id[session_id].suspend(request_id, PartialReply(blobs, len(blobs), count))

    def _identity(self, pid: int) -> str:
        """Return the identity of a process. Raise `Busy` if the manager has no descriptor left to read it."""
        try:
            return self._kernel.process_identity(pid)
        except OSError as error:
            raise Busy(f"the manager cannot open more files ({error.strerror}): raise its `ulimit -n`") from error

    def _watched(self, row: SessionRow) -> _ClientProcess | None:
        """Return the watched process of a session, or None if the manager cannot see it.

        Raise `Busy` if the process has too many sessions, or too many processes are watched.
        """
        known = self._by_process.get((row.pid, row.process)) if row.process else None
        if known is not None:
            if len(known.sessions) >= limits.SESSIONS_PER_PROCESS_MAX:
                raise Busy(
                    f"process {row.pid} has {limits.SESSIONS_PER_PROCESS_MAX} sessions already: close some, or wait "
                    f"{limits.SESSION_GRACE_SECONDS:g} s until those without a connection end"
                )
            return known
        if len(self._by_pidfd) >= self._processes_max:
            raise Busy(
                f"clients of {self._processes_max} processes are served already: raise `ulimit -n`, or try later"
            )
        try:
            pidfd = self._kernel.open_pidfd(row.pid)
        except OSError as error:
            raise Busy(f"the manager cannot open more files ({error.strerror}): raise its `ulimit -n`") from error
        if pidfd is None:
            return None
        process = self._by_pidfd[pidfd] = _ClientProcess(pidfd)
        if row.process:
            self._by_process[row.pid, row.process] = process
        return process

    def _add(self, row: SessionRow, process: _ClientProcess | None) -> SessionRecord:
        session = self._by_id[row.session_id] = SessionRecord(row, process.pidfd if process else None)
        if process is not None:
            process.sessions[row.session_id] = session
        return session

    def leave(self, session: SessionRecord, now_s: float) -> None:
        """Note that a connection closed. With the last one the grace begins."""
        session.connections -= 1
        if session.connections == 0:
            session.ends_at_s = now_s + limits.SESSION_GRACE_SECONDS

    def remove(self, session: SessionRecord) -> None:
        """Forget a session. The last one of a process closes its pidfd."""
        self._by_id.pop(session.session_id, None)
        pidfd, session.pidfd = session.pidfd, None
        process = self._by_pidfd.get(pidfd) if pidfd is not None else None
        if process is not None:
            process.sessions.pop(session.session_id, None)
            if not process.sessions:
                del self._by_pidfd[process.pidfd]
                self._by_process.pop((session.pid, session.process), None)
                self._kernel.close_pidfd(process.pidfd)

    def by_pidfd(self, pidfd: int) -> list[SessionRecord]:
        """Return the sessions of the process that a pidfd stands for."""
        process = self._by_pidfd.get(pidfd)
        return [*process.sessions.values()] if process is not None else []

    def expired(self, now_s: float) -> list[SessionRecord]:
        """Return the sessions whose grace is over."""
        return [each for each in self if each.ends_at_s is not None and each.ends_at_s <= now_s]

    def close(self) -> None:
        """Forget all sessions, without ending them in the state: they are restored by the next manager."""
        for session in list(self):
            self.remove(session)

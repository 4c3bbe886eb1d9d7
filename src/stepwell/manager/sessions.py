"""Sessions: the clients that are connected, their scopes, and when their sessions end.

A session belongs to one client and has any number of connections. It outlives its last connection by a grace, so that a
client that reconnects keeps its leases and gets the replies that it missed. It does not outlive its process: the kernel
announces the death of a process through a pidfd, and the session ends at once.

After a restart of the manager the sessions are restored from the store. A process is recognised by its pid and its
start time, because the kernel reuses pids.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from stepwell import limits
from stepwell.errors import Busy, Conflict, OutcomeUnknown
from stepwell.storage.directory import boot_id
from stepwell.storage.store import SessionRow

_GENERATION_BITS: Final = 62


class SessionRecord:
    """One client, on any number of connections.

    The session table owns it; only the loop's thread uses it. `answered` never decreases: requests with smaller numbers
    are forgotten, and must not take effect again. `replies` has the encoded replies of requests that may be sent again,
    bounded in number and in bytes. `segments` are those that the client was given and has not released, `notices` those
    among them that are retired and not yet reported to the client.
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
    )

    def __init__(self, row: SessionRow, pidfd: int | None) -> None:
        self.session_id = row.session_id
        self.projects = None if row.projects is None else frozenset(row.projects)
        self.pid, self.process = row.pid, row.process
        self.generation = row.generation
        self.answered = row.answered
        self.replies: dict[int, bytes] = {}
        self.remembered_bytes = 0
        self.pidfd = pidfd  # None if the process is in a namespace that the manager cannot see
        self.connections = 0
        self.is_over = False  # after Goodbye: the session is removed with its last connection
        self.ends_at_s: float | None = None  # the end of the grace, while no connection is open
        self.segments: set[int] = set()
        self.notices: list[int] = []

    @property
    def row(self) -> SessionRow:
        """The part of the session that is stored, so that a later manager can restore it."""
        projects = None if self.projects is None else tuple(sorted(self.projects))
        return SessionRow(self.session_id, projects, self.pid, self.process, self.answered, self.generation)

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
        while (
            len(self.replies) > limits.REPLIES_REMEMBERED_MAX
            or self.remembered_bytes > limits.REPLIES_REMEMBERED_BYTES_MAX
        ) and len(self.replies) > 1:
            self._forget_below(min(self.replies) + 1)

    def _forget_below(self, answered: int) -> None:
        self.answered = answered
        for request_id in [each for each in self.replies if each < answered]:
            self.remembered_bytes -= len(self.replies.pop(request_id))


class SessionTable:
    """All sessions, by id and by the pidfd that announces the death of their process.

    The loop owns the table, and only its thread uses it. The table owns the pidfds and closes them.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, SessionRecord] = {}
        self._by_pidfd: dict[int, SessionRecord] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._by_id

    def __iter__(self) -> Iterator[SessionRecord]:
        return iter(self._by_id.values())

    def join(self, session_id: str, projects: frozenset[str] | None, pid: int) -> SessionRecord:
        """Return the session of a new connection, and create it if there is none.

        Raise `Busy` if there are too many sessions, and `Conflict` if the session has another scope: a client must not
        widen its scope by reconnecting.
        """
        session = self._by_id.get(session_id)
        if session is None:
            if len(self._by_id) >= limits.SESSIONS_MAX:
                raise Busy(f"there are {limits.SESSIONS_MAX} sessions already: try again later")
            scope = None if projects is None else tuple(projects)
            generation = secrets.randbits(_GENERATION_BITS)
            row = SessionRow(session_id, scope, pid, process_identity(pid), generation=generation)
            session = self._add(SessionRecord(row, _pidfd(pid)))
        elif session.projects != projects:
            raise Conflict("this session was opened with other projects: connect anew")
        session.connections += 1
        session.ends_at_s = None
        return session

    def restore(self, rows: Iterable[SessionRow], replies: Iterable[tuple[str, int, bytes]], now_s: float) -> None:
        """Restore the sessions of an earlier manager, with their replies.

        A session whose process is gone ends with the next housekeeping. One whose process cannot be seen gets the
        grace.
        """
        for row in rows:
            pidfd = _pidfd(row.pid)
            if pidfd is not None and process_identity(row.pid) != row.process:  # the pid was reused
                os.close(pidfd)
                pidfd = None
            may_return = pidfd is not None or not row.process
            session = self._add(SessionRecord(row, pidfd))
            session.ends_at_s = now_s + limits.SESSION_GRACE_SECONDS if may_return else now_s
        for session_id, request_id, frame in replies:
            if session_id in self._by_id:
                self._by_id[session_id].remember(request_id, frame)

    def _add(self, session: SessionRecord) -> SessionRecord:
        self._by_id[session.session_id] = session
        if session.pidfd is not None:
            self._by_pidfd[session.pidfd] = session
        return session

    def leave(self, session: SessionRecord, now_s: float) -> None:
        """Note that a connection closed. With the last one the grace begins."""
        session.connections -= 1
        if session.connections == 0:
            session.ends_at_s = now_s + limits.SESSION_GRACE_SECONDS

    def remove(self, session: SessionRecord) -> None:
        """Forget a session and close its pidfd."""
        self._by_id.pop(session.session_id, None)
        if session.pidfd is not None:
            del self._by_pidfd[session.pidfd]
            os.close(session.pidfd)
            session.pidfd = None

    def by_pidfd(self, pidfd: int) -> SessionRecord | None:
        """Return the session whose process a pidfd stands for, or None."""
        return self._by_pidfd.get(pidfd)

    def expired(self, now_s: float) -> list[SessionRecord]:
        """Return the sessions whose grace is over."""
        return [each for each in self if each.ends_at_s is not None and each.ends_at_s <= now_s]

    def close(self) -> None:
        """Forget all sessions, without ending them in the state: they are restored by the next manager."""
        for session in list(self):
            self.remove(session)


def process_identity(pid: int) -> str:
    """Return a text that identifies a process: the boot of the machine and the start time.

    A pid alone does not identify a process, because the kernel gives it to another one later. The text is empty if the
    process is not visible.
    """
    try:
        # The second field is the program's name in parentheses, which may contain spaces and parentheses itself.
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
    return f"{boot_id()}/{started}"


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process dies, or None if it cannot be had."""
    try:
        return os.pidfd_open(pid)
    except OSError:  # the process is gone, or in a namespace that the manager cannot see
        return None

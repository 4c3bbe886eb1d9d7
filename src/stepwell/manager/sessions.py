"""Sessions: who is connected, for which projects, and when they are gone.

A session outlives its connections by a grace, so that a client that reconnects goes on, but not its process: the
kernel announces that death through a pidfd, and the session ends at once.
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
    """One client, on any number of connections."""

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
        self.answered = row.answered  # requests with a smaller number are forgotten, and must not take effect any more
        self.replies: dict[int, bytes] = {}  # what was answered to requests that may be sent again, as frames
        self.remembered_bytes = 0
        self.pidfd = pidfd  # None where the kernel shows us no such process
        self.connections = 0
        self.is_over = False  # it said Goodbye: with its last connection it is forgotten
        self.ends_at_s: float | None = None  # set while nobody is connected
        self.segments: set[int] = set()  # that it was given and has not let go of
        self.notices: list[int] = []  # those of them that are gone, and it was not told yet

    @property
    def row(self) -> SessionRow:
        """What has to be known to find it again."""
        projects = None if self.projects is None else tuple(sorted(self.projects))
        return SessionRow(self.session_id, projects, self.pid, self.process, self.answered, self.generation)

    def recall(self, request_id: int, answered: int) -> bytes | None:
        """What a request was answered before, if it was; and forget those that have reached their caller.

        One that is forgotten may have taken effect, or not: nobody can tell any more.
        """
        if answered > self.answered:
            self._forget_below(answered)
        if request_id < self.answered:
            raise OutcomeUnknown(
                f"request {request_id} was answered too long ago to say what it came to: see what took effect"
            )
        return self.replies.get(request_id)

    def remember(self, request_id: int, frame: bytes) -> None:
        """Keep what a request was answered until its caller has it, or there is too much to keep."""
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
    """All sessions, by id and by the descriptor that announces their process's death."""

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
        """The session that a new connection belongs to; a new one if there is none."""
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
        """Expect those who were connected to an earlier manager. Whose process is gone will not come."""
        for row in rows:
            pidfd = _pidfd(row.pid)
            if pidfd is not None and process_identity(row.pid) != row.process:  # another one, under the same number
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
        """A connection closed; when it was the last, the grace begins."""
        session.connections -= 1
        if session.connections == 0:
            session.ends_at_s = now_s + limits.SESSION_GRACE_SECONDS

    def remove(self, session: SessionRecord) -> None:
        """The session is over."""
        self._by_id.pop(session.session_id, None)
        if session.pidfd is not None:
            del self._by_pidfd[session.pidfd]
            os.close(session.pidfd)
            session.pidfd = None

    def by_pidfd(self, pidfd: int) -> SessionRecord | None:
        """The session whose process this descriptor stands for."""
        return self._by_pidfd.get(pidfd)

    def expired(self, now_s: float) -> list[SessionRecord]:
        """Those whose grace is over."""
        return [each for each in self if each.ends_at_s is not None and each.ends_at_s <= now_s]

    def close(self) -> None:
        for session in list(self):
            self.remove(session)


def process_identity(pid: int) -> str:
    """What tells a process from a later one with the same number: when it was started, since which boot."""
    try:
        # The name, in parentheses, may hold anything.
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
    return f"{boot_id()}/{started}"


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:  # gone already, or in a namespace that we do not see
        return None

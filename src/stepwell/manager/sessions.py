"""Sessions: who is connected, for which projects, and when they are gone.

A session outlives its connections by a grace, so that a client that reconnects goes on, but not its process: the
kernel announces that death through a pidfd, and the session ends at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from stepwell import limits
from stepwell.errors import Busy, Conflict


class Session:
    """One client, on any number of connections."""

    __slots__ = ("connections", "ends_at_s", "notices", "pidfd", "projects", "segments", "session_id")

    def __init__(self, session_id: str, projects: frozenset[str] | None, pidfd: int | None) -> None:
        self.session_id = session_id
        self.projects = projects
        self.pidfd = pidfd  # None where the kernel shows us no such process
        self.connections = 0
        self.ends_at_s: float | None = None  # set while nobody is connected
        self.segments: set[int] = set()  # that it was given and has not let go of
        self.notices: list[int] = []  # those of them that are gone, and it was not told yet


class Sessions:
    """All sessions, by id and by the descriptor that announces their process's death."""

    def __init__(self) -> None:
        self._by_id: dict[str, Session] = {}
        self._by_pidfd: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())

    def join(self, session_id: str, projects: frozenset[str] | None, pid: int) -> Session:
        """The session that a new connection belongs to; a new one if there is none."""
        session = self._by_id.get(session_id)
        if session is None:
            if len(self._by_id) >= limits.SESSIONS_MAX:
                raise Busy(f"there are {limits.SESSIONS_MAX} sessions already: try again later")
            session = Session(session_id, projects, _pidfd(pid))
            self._by_id[session_id] = session
            if session.pidfd is not None:
                self._by_pidfd[session.pidfd] = session
        elif session.projects != projects:
            raise Conflict("this session was opened with other projects: connect anew")
        session.connections += 1
        session.ends_at_s = None
        return session

    def leave(self, session: Session, now_s: float) -> None:
        """A connection closed; when it was the last, the grace begins."""
        session.connections -= 1
        if session.connections == 0:
            session.ends_at_s = now_s + limits.SESSION_GRACE_SECONDS

    def forget(self, session: Session) -> None:
        """The session is over."""
        self._by_id.pop(session.session_id, None)
        if session.pidfd is not None:
            del self._by_pidfd[session.pidfd]
            os.close(session.pidfd)
            session.pidfd = None

    def of_process(self, pidfd: int) -> Session | None:
        """The session whose process this descriptor stands for."""
        return self._by_pidfd.get(pidfd)

    def overdue(self, now_s: float) -> list[Session]:
        """Those whose grace is over."""
        return [each for each in self if each.ends_at_s is not None and each.ends_at_s <= now_s]

    def close(self) -> None:
        for session in list(self):
            self.forget(session)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:  # gone already, or in a namespace that we do not see
        return None

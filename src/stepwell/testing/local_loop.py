"""The manager's loop as `LocalRuntime` runs it: with a mailbox, with faults, and without power over the test's process.

`LocalLoop` is the real loop. It differs in four ways. Between two turns it runs the functions of a mailbox. Replies
pass through `FaultyReplyCache`, which makes armed faults happen. A batch is executed in one turn and not in slices. The
loop does not watch the test's process, because it must never kill it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection
from typing import Final

from stepwell import limits
from stepwell.domain.tasks.commands import ListStrategies, SubmitTask
from stepwell.errors import Busy
from stepwell.manager.connection import READ, ClientConnection
from stepwell.manager.journal import Journal
from stepwell.manager.loop import Loop
from stepwell.manager.reply_cache import ReplyCache
from stepwell.manager.request_handler import RequestHandler
from stepwell.manager.sessions import SessionRecord
from stepwell.manager.shared_segments import SegmentSharing
from stepwell.protocol.messages import Hello, Refusal, Request, Response
from stepwell.telemetry import Logger
from stepwell.testing.faults import Asked, Fault, FaultKind, Faults
from stepwell.testing.mailbox import Mailbox

_NO_PROCESS: Final = 0  # a process id that no process has


class ManagerKilled(BaseException):
    """The manager dies now. It is a `BaseException`, so that no handler inside the manager catches it."""


class FaultyReplyCache(ReplyCache):
    """Answers requests as the manager does, unless a fault is due.

    It also holds back requests that need a worker until the runtime's worker has started. Only the manager's thread
    uses it. `ensure_worker` and `hold` are set by their owners after construction.
    """

    def __init__(self, requests: RequestHandler, sharing: SegmentSharing, journal: Journal, faults: Faults) -> None:
        super().__init__(requests, sharing, journal)
        self.commands_at_once = limits.BATCH_COMMANDS_MAX  # a fault happens to a whole request, in a known turn
        self._faults = faults
        self.ensure_worker: Callable[[], bool] = lambda: True  # starts one; False: it is still starting
        self.hold: Callable[[ClientConnection, Fault], None] = lambda _connection, _fault: None
        self.is_dying = False
        """True if the manager is to die as soon as the request is committed."""
        self._waiting: list[tuple[ClientConnection, SessionRecord, Asked, Fault | None]] = []
        """The requests that wait for a worker to start, in order of arrival."""

    def respond(self, connection: ClientConnection, session: SessionRecord, message: Asked) -> bool:
        """Answer a request, or let the fault that is due happen."""
        if not connection.peer.is_open:  # a fault has closed the connection after an earlier request
            return True
        fault = self._faults.due(session, message)
        match fault.kind if fault is not None else None:
            case FaultKind.DROP_REQUEST:
                connection.peer.is_open = False
            case FaultKind.KILL_AT_REQUEST:
                raise ManagerKilled
            case FaultKind.REFUSE:
                self._refuse(connection, message)
            case _:
                if _needs_worker(message) and not self.ensure_worker():
                    self._waiting.append((connection, session, message, fault))
                else:
                    self._respond(connection, session, message, fault)
        return True

    def _respond(
        self, connection: ClientConnection, session: SessionRecord, message: Asked, fault: Fault | None
    ) -> None:
        """Answer a request, and then lose, hold or outlive the reply, if a fault says so."""
        size = len(connection.peer.outbox)
        super().respond(connection, session, message)
        match fault.kind if fault is not None else None:
            case FaultKind.DROP_REPLY:
                del connection.peer.outbox[size:]
                connection.peer.is_open = False
            case FaultKind.KILL_AT_REPLY:
                self.is_dying = True
            case FaultKind.HOLD_REPLY:
                assert fault is not None
                self.hold(connection, fault)
            case _:
                pass

    def _refuse(self, connection: ClientConnection, message: Asked) -> None:
        """Answer `Busy`, once for each command."""
        refusal = Refusal.of(Busy("the manager has too much to do: try again later"), self._requests.revision)
        count = len(message.commands) if isinstance(message, Request) else 1
        connection.peer.send(Response(message.request_id, (refusal,) * count))

    @property
    def has_waiting(self) -> bool:
        """True if a request waits for a worker."""
        return bool(self._waiting)

    def answer_waiting(self) -> list[ClientConnection]:
        """Answer the requests that have waited for a worker, and return their connections."""
        waiting, self._waiting = self._waiting, []
        found = [each for each in waiting if each[0].peer.is_open]
        for connection, session, message, fault in found:
            self._respond(connection, session, message, fault)
        return [connection for connection, _, _, _ in found]


class LocalLoop(Loop):
    """The manager's loop in a thread of the process whose requests it serves.

    Only that thread may call its methods. Other threads post functions to the mailbox.
    """

    def __init__(
        self, listener: socket.socket, requests: RequestHandler, mailbox: Mailbox, faults: Faults, log: Logger
    ) -> None:
        super().__init__(listener, requests, log=log, spin_s=0)
        self.faulty_replies = FaultyReplyCache(requests, self._sharing, self._journal, faults)
        self.faulty_replies.hold = self._hold
        self._reply_cache = self.faulty_replies
        self._mailbox = mailbox
        self._held: dict[ClientConnection, Fault] = {}
        self._epoll.register(mailbox.fileno(), READ)

    def turn(self) -> None:
        """Run one turn, and then the functions in the mailbox."""
        super().turn()
        self._mailbox.run_posted()

    def catch_up(self) -> None:
        """Do all that is due by now: a fragment that was unused for months is demoted tier by tier."""
        is_done = False
        while not is_done:
            now_s, revision = self._requests.now_s(), self._requests.revision
            self.housekeeping.make_due(now_s)
            super().turn()
            is_done = self._requests.revision == revision and self.housekeeping.sweep_due_at_s > now_s

    def serve_waiting(self) -> None:
        """Answer the requests that have waited, because a worker has started, or none will."""
        for connection in self.faulty_replies.answer_waiting():
            self._backlog[connection.peer.fileno()] = connection

    @property
    def has_waiting(self) -> bool:
        """True if a request waits for a worker."""
        return self.faulty_replies.has_waiting

    @property
    def has_queued_tasks(self) -> bool:
        """True if there is a task that no worker has."""
        return bool(self._requests.owner.tasks.queued)

    def _welcome(self, connection: ClientConnection, hello: Hello) -> None:
        """Accept a client of this process without its process id.

        The manager watches for the death of its clients' processes, and kills the process of a worker that exceeds a
        deadline. Both would be the test itself.
        """
        credentials = connection.credentials
        if credentials.pid == os.getpid():
            connection.credentials = credentials._replace(pid=_NO_PROCESS)
        super()._welcome(connection, hello)
        connection.credentials = credentials

    def _reply(self, connections: Collection[ClientConnection]) -> None:
        if self.faulty_replies.is_dying:
            raise ManagerKilled
        super()._reply(connections)

    def _hold(self, connection: ClientConnection, fault: Fault) -> None:
        """Hold back all output to a connection until the fault is released."""
        self._held[connection] = fault
        fault.on_release(lambda: self._mailbox.post(lambda: self._release_reply(connection)))

    def _release_reply(self, connection: ClientConnection) -> None:
        """Let the next turn flush a connection whose reply was held."""
        if self._held.pop(connection, None) is not None and connection.peer.is_open:
            self._backlog[connection.peer.fileno()] = connection

    def _flush(self, connection: ClientConnection) -> None:
        if connection in self._held and connection.peer.is_open:
            return
        super()._flush(connection)

    def _housekeep(self) -> None:
        """Keep connections with held replies: their clients are not slow."""
        for connection in self._held:
            connection.peer.progressed_at_s = self._now_s
        super()._housekeep()


def _needs_worker(message: Asked) -> bool:
    return any(isinstance(each, SubmitTask | ListStrategies) for each in message.commands)

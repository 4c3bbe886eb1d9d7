"""The manager's own loop, with a mailbox, with faults, and without power over the test's own process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection
from typing import Final

from stepwell.domain.tasks.commands import ListStrategies, SubmitTask
from stepwell.errors import Busy
from stepwell.manager.connection import READ, ClientConnection
from stepwell.manager.journal import Journal
from stepwell.manager.loop import Loop
from stepwell.manager.reply_cache import ReplyCache
from stepwell.manager.request_handler import RequestHandler
from stepwell.manager.segment_sharing import SegmentSharing
from stepwell.manager.sessions import SessionRecord
from stepwell.protocol.messages import Hello, Refusal, Request, Response
from stepwell.telemetry import Logger
from stepwell.testing.faults import Asked, Fault, FaultKind, Faults
from stepwell.testing.mailbox import Mailbox

_NO_PROCESS: Final = 0  # the kernel has none of that number


class ManagerKilled(BaseException):
    """The manager is dead. Nothing in it may catch this."""


class FaultyReplyCache(ReplyCache):
    """Answers as a manager does, unless something is to go wrong."""

    def __init__(self, requests: RequestHandler, sharing: SegmentSharing, journal: Journal, faults: Faults) -> None:
        super().__init__(requests, sharing, journal)
        self._faults = faults
        self.ensure_worker: Callable[[], bool] = lambda: True  # whether there is a worker, or will be none
        self.hold: Callable[[ClientConnection, Fault], None] = lambda _connection, _fault: None
        self.is_dying = False  # as soon as what was done is committed
        self._waiting: list[
            tuple[ClientConnection, SessionRecord, Asked, Fault | None]
        ] = []  # for a worker, who is on the way

    def respond(self, connection: ClientConnection, session: SessionRecord, message: Asked) -> None:
        """Do what a request asks, or what is to become of it instead."""
        if not connection.peer.is_open:  # it came behind one that was lost
            return
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

    def _respond(
        self, connection: ClientConnection, session: SessionRecord, message: Asked, fault: Fault | None
    ) -> None:
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
        refusal = Refusal.of(Busy("the manager has too much to do: try again later"), self._requests.revision)
        count = len(message.commands) if isinstance(message, Request) else 1
        connection.peer.send(Response(message.request_id, (refusal,) * count))

    def answer_waiting(self) -> list[ClientConnection]:
        """There is a worker now, or there will be none: answer what has waited for it."""
        waiting, self._waiting = self._waiting, []
        found = [each for each in waiting if each[0].peer.is_open]
        for connection, session, message, fault in found:
            self._respond(connection, session, message, fault)
        return [connection for connection, _, _, _ in found]


class LocalLoop(Loop):
    """Runs in a thread of the process whose requests it serves."""

    def __init__(
        self, listener: socket.socket, requests: RequestHandler, mailbox: Mailbox, faults: Faults, log: Logger
    ) -> None:
        super().__init__(listener, requests, log=log, spin_s=0)
        self.faulty_replies = FaultyReplyCache(requests, self._sharing, self._journal, faults)
        self.faulty_replies.hold = self._hold
        self._answering = self.faulty_replies
        self._mailbox = mailbox
        self._held: dict[ClientConnection, Fault] = {}
        self._epoll.register(mailbox.fileno(), READ)

    def turn(self) -> None:
        """One turn, and what others want of it."""
        super().turn()
        self._mailbox.run_posted()

    def catch_up(self) -> None:
        """Do what is due by now, all of it: a fragment that nobody used for months goes down tier by tier."""
        is_done = False
        while not is_done:
            now_s, revision = self._requests.now_s(), self._requests.revision
            self._housekeep_at_s = self._sweep_at_s = self._tidy_at_s = now_s
            super().turn()
            is_done = self._requests.revision == revision and self._sweep_at_s > now_s

    def serve_waiting(self) -> None:
        """A worker is there, or there will be none: whoever has waited for it is served."""
        for connection in self.faulty_replies.answer_waiting():
            self._backlog[connection.peer.fileno()] = connection

    @property
    def has_queued_tasks(self) -> bool:
        """Whether there is something to do that no worker has."""
        return bool(self._requests.owner.tasks.queued)

    def _welcome(self, connection: ClientConnection, hello: Hello) -> None:
        """Of the test's own process nobody watches the death, and nobody kills it for what its worker does."""
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
        self._held[connection] = fault
        fault.on_release(lambda: self._mailbox.post(lambda: self._release_reply(connection)))

    def _release_reply(self, connection: ClientConnection) -> None:
        if self._held.pop(connection, None) is not None and connection.peer.is_open:
            self._backlog[connection.peer.fileno()] = connection

    def _flush(self, connection: ClientConnection) -> None:
        if connection in self._held and connection.peer.is_open:
            return
        super()._flush(connection)

    def _housekeep(self) -> None:
        """Whose reply is held is not slow itself."""
        for connection in self._held:
            connection.peer.progressed_at_s = self._now_s
        super()._housekeep()


def _needs_worker(message: Asked) -> bool:
    return any(isinstance(each, SubmitTask | ListStrategies) for each in message.commands)

"""A client whose every command is written down, with its interval and its revision, below everything that it does."""

import socket
import time
from collections import deque

from stepwell.client.session import connection_pool
from stepwell.client.session.connection_pool import PooledConnection
from stepwell.domain.commands import Write
from stepwell.protocol.messages import (
    ClientMessage,
    CommandResult,
    Goodbye,
    ManagerMessage,
    ReadsReported,
    Request,
    Response,
    SegmentsReleased,
    TransactionRequest,
)
from stepwell.transport.frame_socket import OnOutOfBand
from tests.support.programs.history import Operation

history: list[Operation] = []
"""What this process did. Appending is atomic, whichever thread it is."""


class RecordedConnection(PooledConnection):
    """Answers come in the order of the requests, so that each belongs to the oldest one without."""

    def __init__(self, connected: socket.socket, on_out_of_band: OnOutOfBand) -> None:
        super().__init__(connected, on_out_of_band)
        self._sent: deque[tuple[int, ClientMessage]] = deque()

    def send(self, message: ClientMessage) -> None:
        if not isinstance(message, SegmentsReleased | ReadsReported | Goodbye):  # nothing is answered to those
            self._sent.append((time.monotonic_ns(), message))
        super().send(message)

    def receive(self) -> ManagerMessage:
        answer = super().receive()
        ended_ns = time.monotonic_ns()
        began_ns, message = self._sent.popleft()
        if isinstance(answer, Response) and isinstance(message, Request | TransactionRequest):
            _write_down(message, answer, began_ns, ended_ns)
        return answer


def _write_down(message: Request | TransactionRequest, response: Response, began_ns: int, ended_ns: int) -> None:
    answers = [each for each in response.results if isinstance(each, CommandResult)]
    if isinstance(message, TransactionRequest):
        # All of it is one write, at one revision.
        history.extend(Operation(began_ns, ended_ns, each.revision, is_write=True) for each in answers[:1])
        return
    for command, result in zip(message.commands, response.results, strict=True):
        if isinstance(result, CommandResult):
            history.append(Operation(began_ns, ended_ns, result.revision, isinstance(command, Write)))


def record() -> None:
    """Have every client of this process recorded from now on."""
    setattr(connection_pool, "PooledConnection", RecordedConnection)  # noqa: B010 - a name that it imports, for type checkers

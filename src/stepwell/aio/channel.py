"""`Channel` for an event loop: delivers messages to the manager and awaits their answers, across broken connections.

Session, request numbers and retry rules are those of the blocking channel, which it contains. Only waiting differs.

Plain requests of all tasks share one connection, on which many are in flight. A request with large bodies has a
connection to itself, because the answer to an offer would come behind the answers to all requests in flight.

A task that is cancelled gives up the number of its request. It does not touch the connection: the answer arrives in its
turn and is dropped.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from contextlib import suppress

from stepwell import limits
from stepwell.aio.connection import AnswerFuture, AsyncConnection, answer_or_raise
from stepwell.client.session import channel as blocking
from stepwell.client.session.calls import LargeBody
from stepwell.client.session.channel import is_granted, offer_for, require_not_rejected, session_expired_error
from stepwell.client.session.connection_pool import Unreachable, client_closed_error
from stepwell.client.session.pending_requests import PendingRequest, RequestFactory
from stepwell.errors import HistoryLost, NotOwner, OutcomeUnknown, RuntimeLost, StepwellError
from stepwell.protocol.messages import AskStatus, Goodbye, ManagerMessage, OfferUpload, SegmentsReleased


class _AttemptFailed(Exception):
    """An attempt to send a request failed on a connection."""

    def __init__(self, connection: AsyncConnection, error: RuntimeLost | OutcomeUnknown) -> None:
        super().__init__(error.message)
        self.connection = connection
        self.error = error


class Channel:
    """A session with a manager, for the tasks of one event loop.

    It owns its asynchronous connections. The blocking channel, which it shares the session with, is for the threads of
    the same client. All methods but `is_closed` belong to the loop's thread; `require_owner` checks that.
    """

    def __init__(self, blocking_channel: blocking.Channel, loop: AbstractEventLoop) -> None:
        self.blocking_channel = blocking_channel
        self.loop = loop
        self.environment = blocking_channel.environment
        self._pid = os.getpid()
        self._shared: AsyncConnection | None = None
        self._dial_lock = asyncio.Lock()
        self._request_slots = asyncio.Semaphore(limits.REQUESTS_IN_FLIGHT_MAX)
        self._upload_slots = asyncio.Semaphore(limits.UPLOADING_CONNECTIONS_MAX)
        self._idle: list[AsyncConnection] = []  # for uploads
        self._open: dict[AsyncConnection, None] = {}  # all that have to be closed, in the order of opening
        self._closed = asyncio.Event()
        blocking_channel.on_fork(self._in_forked_child)

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._closed.is_set()

    def require_owner(self) -> None:
        """Raise `NotOwner` in another process or another event loop than the one that made this client.

        Objects of asyncio are not thread-safe: used from another loop they would fail later and far from the cause.
        """
        if os.getpid() != self._pid:
            raise NotOwner("this client belongs to another process: connect one here")
        if asyncio.get_running_loop() is not self.loop:
            raise NotOwner("this client belongs to another event loop: connect one in this loop")

    async def open(self) -> None:
        """Connect to the manager, or raise the reason why that is impossible. It waits for a manager that restarts."""
        pending = PendingRequest()
        while True:
            try:
                await self._shared_connection(pending)
            except Unreachable as unreachable:
                await self.is_closed_within(self.blocking_channel.pause_when_unreachable(pending, unreachable))
            else:
                return

    async def exchange(self, build: RequestFactory, uploads: Sequence[LargeBody] = ()) -> ManagerMessage:
        """Send a request, after the bodies that it refers to, and return its answer."""
        self.require_owner()
        pending = PendingRequest(build, uploads)
        try:
            return await self._deliver(pending)
        finally:
            self.blocking_channel.pending_requests.end(pending)

    async def ask_status(self) -> ManagerMessage:
        """Ask for the manager's status, and return the answer."""
        self.require_owner()
        return await self._deliver(
            PendingRequest(message=AskStatus(self.blocking_channel.pending_requests.next_number()))
        )

    async def dial(self) -> AsyncConnection:
        """Return a new connection of this session that belongs to the caller, who discards it."""
        self.require_owner()
        try:
            return await self._connect()
        except Unreachable as unreachable:
            self.blocking_channel.give_up(PendingRequest(), unreachable.error)

    def discard(self, connection: AsyncConnection) -> None:
        """Close a connection that is not needed any more or in an unknown state."""
        self._open.pop(connection, None)
        connection.terminate()

    async def is_closed_within(self, seconds: float) -> bool:
        """Wait for at most `seconds`, and return True if the client is closed by then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        return self.is_closed

    async def close(self) -> bool:
        """Say goodbye and close all connections.

        Return True if the goodbye was sent: then the session's leases are over.

        Requests in flight end with an error. The connections are closed even if the task is cancelled during the
        goodbye.
        """
        self._closed.set()
        goodbye_sent = False
        try:
            if self._shared is not None and self._shared.error is None:
                goodbye_sent = await self._say_goodbye(self._shared)
        finally:
            for connection in [*self._open]:
                self.discard(connection)
        return goodbye_sent

    async def _say_goodbye(self, connection: AsyncConnection) -> bool:
        """Send a goodbye, and return True if it left this process in time."""
        with suppress(RuntimeLost, TimeoutError):
            connection.send(Goodbye())
            async with asyncio.timeout(limits.GOODBYE_SECONDS_MAX):
                await connection.wait_until_sent()
            return connection.error is None
        return False

    def _in_forked_child(self) -> None:
        """Detach all connections in a forked child, which must not touch the parent's event loop."""
        for connection in self._open:
            connection.detach_in_forked_child()

    # One request.

    async def _deliver(self, pending: PendingRequest) -> ManagerMessage:
        """Send a message, as often as necessary, and return its answer.

        The blocking channel decides about further attempts; a closed client makes none.
        """
        attempt = self._attempt_with_uploads if pending.uploads else self._attempt
        while True:
            if self.is_closed:
                self.blocking_channel.give_up(pending, client_closed_error().error)
            try:
                answer = await attempt(pending)
            except Unreachable as unreachable:
                pause_s = self.blocking_channel.pause_when_unreachable(pending, unreachable)
            except _AttemptFailed as failed:
                pause_s = self.blocking_channel.pause_after_failure(pending, failed.connection, failed.error)
            else:
                self.blocking_channel.connections.note_answer(answer)
                return require_not_rejected(answer)
            if pause_s:
                await self.is_closed_within(pause_s)

    async def _attempt(self, pending: PendingRequest) -> ManagerMessage:
        """Make one attempt on the shared connection.

        A slot bounds the requests in flight. It is occupied until the answer arrives, even if the task is cancelled
        before, because the manager is still working on the request.
        """
        await self._request_slots.acquire()
        try:
            connection = await self._shared_connection(pending)
            answer = await self._send(connection, pending, self._request_slots.release)
        except BaseException:
            self._request_slots.release()
            raise
        return await self._await_answer(connection, answer)

    async def _attempt_with_uploads(self, pending: PendingRequest) -> ManagerMessage:
        """Make one attempt on a connection of its own; after any error that connection is closed.

        A cancelled task may leave a half-sent body behind. Nothing but closing the connection makes the manager forget
        it.
        """
        async with self._upload_slots:
            connection = self._take_idle() or await self._connect()
            try:
                _check_generation(connection, pending)
                for number, body in enumerate(pending.uploads):
                    await self._upload(connection, *offer_for(number, body))
                answer = await self._await_answer(connection, await self._send(connection, pending, None))
            except BaseException:
                self.discard(connection)
                raise
            self._idle.append(connection)
            return answer

    async def _send(
        self, connection: AsyncConnection, pending: PendingRequest, on_end: Callable[[], None] | None
    ) -> AnswerFuture:
        """Send the message of a request, and return the future of its answer.

        `on_end` is called when it is answered or lost.
        """
        try:
            await connection.wait_for_room()
            self._report_released(connection)
            return connection.send_request(self.blocking_channel.pending_requests.message(pending), on_end)
        except RuntimeLost as lost:
            raise _AttemptFailed(connection, lost) from lost

    async def _await_answer(self, connection: AsyncConnection, answer_future: AnswerFuture) -> ManagerMessage:
        """Return the answer, or raise `_AttemptFailed` if the connection broke before it.

        `is_used` is set after the first answer: from then on a failed send means that the connection had died while
        idle.
        """
        try:
            answer = answer_or_raise(await answer_future)
        except (RuntimeLost, OutcomeUnknown) as error:
            raise _AttemptFailed(connection, error) from error
        connection.is_used = True
        return answer

    async def _upload(self, connection: AsyncConnection, offer: OfferUpload, body: bytes | memoryview) -> None:
        """Offer a body, and send its bytes if the manager accepts."""
        try:
            if is_granted(await connection.exchange(offer)):
                await connection.send_body(body)
        except RuntimeLost as lost:
            raise _AttemptFailed(connection, lost) from lost
        except OutcomeUnknown as error:  # an offer without a request has no effect, so the request may be sent again
            unsent = RuntimeLost(error.message)
            unsent.__cause__ = error
            raise _AttemptFailed(connection, unsent) from error

    def _report_released(self, connection: AsyncConnection) -> None:
        """Tell the manager which segments this process has unmapped."""
        mappings = self.blocking_channel.mappings
        if mappings.has_released:
            released = mappings.pop_released()
            try:
                connection.send(SegmentsReleased(released))
            except RuntimeLost:
                mappings.restore_released(released)
                raise

    # Connections.

    async def _shared_connection(self, pending: PendingRequest) -> AsyncConnection:
        """Return the shared connection. If there is none, one task makes it while the others wait.

        The task checks again once it has the lock, because another task may have connected meanwhile.
        """
        connection = self._shared
        if connection is None or connection.error is not None:
            async with self._dial_lock:
                connection = self._shared
                if connection is None or connection.error is not None:
                    if connection is not None:
                        self.discard(connection)
                    connection = self._shared = await self._connect()
        _check_generation(connection, pending)
        return connection

    def _take_idle(self) -> AsyncConnection | None:
        """Return an idle connection for uploads that is still open, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.error is None:
                return connection
            self.discard(connection)
        return None

    async def _connect(self) -> AsyncConnection:
        """Dial, say Hello and be welcomed; raise `Unreachable` otherwise."""
        connection = await self._open_socket()
        self._open[connection] = None
        try:
            answer = await connection.exchange(self.blocking_channel.connections.hello(connection))
            self.blocking_channel.connections.admit(connection, answer)
        except Unreachable as unreachable:
            if isinstance(unreachable.error, HistoryLost):
                await self._say_goodbye(connection)
            self.discard(connection)
            raise
        except StepwellError as error:
            self.discard(connection)
            raise (
                client_closed_error() if self.is_closed else self.blocking_channel.connections.greeting_error(error)
            ) from error
        except BaseException:
            self.discard(connection)
            raise
        return connection

    async def _open_socket(self) -> AsyncConnection:
        """Return a connected socket.

        A non-blocking connect fails while the manager's backlog is full. Then it is tried again for a bounded time.
        """
        until_s = self.environment.monotonic() + limits.RECONNECT_SECONDS_MAX
        connections = self.blocking_channel.connections
        while not self.is_closed:
            try:
                connected = self.environment.dial(connections.address, 0.0)
                return AsyncConnection(connected, connections.on_out_of_band, self.loop)
            except RuntimeLost as error:
                if not isinstance(error.__cause__, BlockingIOError) or self.environment.monotonic() >= until_s:
                    raise Unreachable(error, is_final=False) from error
            except OSError as error:  # for example, this process may open no more descriptors
                raise Unreachable(error, is_final=True) from error
            await self.is_closed_within(limits.RECONNECT_PAUSE_SECONDS)
        raise client_closed_error()


def _check_generation(connection: AsyncConnection, pending: PendingRequest) -> None:
    """Raise `SessionExpired` if the request may have taken effect in an earlier generation of the session."""
    if pending.sent_in is not None and pending.is_expired(connection.generation):
        raise session_expired_error()

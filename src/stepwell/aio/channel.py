"""The way to the manager for an event loop: the session, the numbers and the rules are those of the blocking channel.

Plain requests share one connection, on which many are under way. A request with large bodies has one of its own for as
long as it takes, because the answer to an offer would come behind the answers to whatever was asked before.

Whoever is cancelled gives up the number of their request, and leaves alone what is on its way.
"""

from __future__ import annotations

import asyncio
import os
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from contextlib import suppress

from stepwell import limits
from stepwell.aio.connection import AnswerFuture, AsyncConnection, answer_or_raise
from stepwell.client.session import channel as blocking
from stepwell.client.session.calls import LargeBody
from stepwell.client.session.channel import give_up, is_granted, offer_for, session_expired, unless_rejected
from stepwell.client.session.connection_pool import Unreachable, client_closed
from stepwell.client.session.pending_requests import PendingRequest, RequestFactory
from stepwell.errors import NotOwner, OutcomeUnknown, RuntimeLost, StepwellError
from stepwell.protocol.messages import AskStatus, Goodbye, ManagerMessage, OfferUpload, SegmentsReleased


class _AttemptFailed(Exception):
    """An attempt on a connection has failed."""

    def __init__(self, connection: AsyncConnection, error: RuntimeLost | OutcomeUnknown) -> None:
        super().__init__(error.message)
        self.connection = connection
        self.error = error


class Channel:
    """A session with a manager, for one event loop."""

    def __init__(self, blocking_channel: blocking.Channel, loop: AbstractEventLoop) -> None:
        self.blocking_channel = blocking_channel
        self.loop = loop
        self._pid = os.getpid()
        self._shared: AsyncConnection | None = None
        self._dial_lock = asyncio.Lock()
        self._request_slots = asyncio.Semaphore(limits.REQUESTS_IN_FLIGHT_MAX)
        self._upload_slots = asyncio.Semaphore(limits.UPLOADING_CONNECTIONS_MAX)
        self._idle: list[AsyncConnection] = []  # of those that upload
        self._open: set[AsyncConnection] = set()
        self._closed = asyncio.Event()
        blocking_channel.on_fork(self._in_forked_child)

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def require_owner(self) -> None:
        """A client is its loop's."""
        if os.getpid() != self._pid:
            raise NotOwner("this client belongs to another process: connect one here")
        if asyncio.get_running_loop() is not self.loop:
            raise NotOwner("this client belongs to another event loop: connect one in this loop")

    async def open(self) -> None:
        """Make sure that there is a manager that welcomes us."""
        try:
            await self._shared_connection(PendingRequest())
        except Unreachable as unreachable:
            raise unreachable.error from unreachable.error.__cause__

    async def exchange(self, make: RequestFactory, uploads: Sequence[LargeBody] = ()) -> ManagerMessage:
        """Send a request, what it refers to before it, and await its answer."""
        self.require_owner()
        pending = PendingRequest(make, uploads)
        try:
            return await self._deliver(pending)
        finally:
            self.blocking_channel.pending_requests.end(pending)

    async def ask_status(self) -> ManagerMessage:
        """Send a question, and await its answer."""
        self.require_owner()
        return await self._deliver(
            PendingRequest(message=AskStatus(self.blocking_channel.pending_requests.next_number()))
        )

    async def dial(self) -> AsyncConnection:
        """A connection of this session, for whoever needs one alone: theirs to give up."""
        self.require_owner()
        try:
            return await self._connect()
        except Unreachable as unreachable:
            raise unreachable.error from unreachable.error.__cause__

    def discard(self, connection: AsyncConnection) -> None:
        """A connection is not needed any more, or nobody knows what would come next on it."""
        self._open.discard(connection)
        connection.terminate()

    async def is_closed_within(self, seconds: float) -> bool:
        """Wait; whether the client was closed meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        return self.is_closed

    async def close(self) -> bool:
        """Say goodbye, and end every connection. Whether it could be said: then the session's leases are over."""
        self._closed.set()
        has_parted = False
        try:
            if self._shared is not None and self._shared.error is None:
                has_parted = await self._say_goodbye(self._shared)
        finally:
            for connection in [*self._open]:
                self.discard(connection)
        return has_parted

    async def _say_goodbye(self, connection: AsyncConnection) -> bool:
        with suppress(RuntimeLost, TimeoutError):
            connection.send(Goodbye())
            async with asyncio.timeout(limits.GOODBYE_SECONDS_MAX):
                await connection.wait_until_sent()
            return connection.error is None
        return False

    def _in_forked_child(self) -> None:
        for connection in self._open:
            connection.detach_in_forked_child()

    # One request.

    async def _deliver(self, pending: PendingRequest) -> ManagerMessage:
        """Send, as often as it takes, and await the answer."""
        attempt = self._attempt_with_uploads if pending.uploads else self._attempt
        while True:
            if self.is_closed:
                give_up(pending, client_closed().error)
            try:
                answer = await attempt(pending)
            except Unreachable as unreachable:
                pause_s = self.blocking_channel.pause_when_unreachable(pending, unreachable)
            except _AttemptFailed as failed:
                pause_s = self.blocking_channel.pause_after_failure(pending, failed.connection, failed.error)
            else:
                return unless_rejected(answer)
            if pause_s:
                await self.is_closed_within(pause_s)

    async def _attempt(self, pending: PendingRequest) -> ManagerMessage:
        """An attempt, on the connection that all share. Its slot is taken until the answer is there, awaited or not."""
        await self._request_slots.acquire()
        try:
            connection = await self._shared_connection(pending)
            answer = await self._send(connection, pending, self._request_slots.release)
        except BaseException:
            self._request_slots.release()
            raise
        return await self._await_answer(connection, answer)

    async def _attempt_with_uploads(self, pending: PendingRequest) -> ManagerMessage:
        """An attempt, on a connection of its own; one whose attempt ends in any error is not used again."""
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
        try:
            await connection.wait_for_room()
            self._report_released(connection)
            return connection.send_request(self.blocking_channel.pending_requests.message(pending), on_end)
        except RuntimeLost as lost:
            raise _AttemptFailed(connection, lost) from lost

    async def _await_answer(self, connection: AsyncConnection, answer_future: AnswerFuture) -> ManagerMessage:
        try:
            answer = answer_or_raise(await answer_future)
        except (RuntimeLost, OutcomeUnknown) as error:
            raise _AttemptFailed(connection, error) from error
        connection.is_used = True
        return answer

    async def _upload(self, connection: AsyncConnection, offer: OfferUpload, body: bytes | memoryview) -> None:
        try:
            if is_granted(await connection.exchange(offer)):
                await connection.send_body(body)
        except RuntimeLost as lost:
            raise _AttemptFailed(connection, lost) from lost
        except OutcomeUnknown as error:  # what comes of an offer that no request refers to is nothing
            raise _AttemptFailed(connection, RuntimeLost(error.message)) from error

    def _report_released(self, connection: AsyncConnection) -> None:
        """Say which memory we let go of."""
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
        """The connection that all share. If it has to be made, one of those who need it does."""
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
        while self._idle:
            connection = self._idle.pop()
            if connection.error is None:
                return connection
            self.discard(connection)
        return None

    async def _connect(self) -> AsyncConnection:
        """Dial, and be welcomed."""
        connection = await self._open_socket()
        self._open.add(connection)
        try:
            answer = await connection.exchange(self.blocking_channel.connections.hello())
            self.blocking_channel.connections.admit(connection, answer)
        except StepwellError as error:
            self.discard(connection)
            raise (
                client_closed() if self.is_closed else self.blocking_channel.connections.greeting_error(error)
            ) from error
        except BaseException:
            self.discard(connection)
            raise
        return connection

    async def _open_socket(self) -> AsyncConnection:
        """A socket that is connected. Where many wait for that already, we come again a bit later."""
        until_s = time.monotonic() + limits.RECONNECT_SECONDS_MAX
        connections = self.blocking_channel.connections
        while not self.is_closed:
            try:
                return AsyncConnection(connections.address, connections.on_out_of_band, self.loop)
            except RuntimeLost as error:
                if not isinstance(error.__cause__, BlockingIOError) or time.monotonic() >= until_s:
                    raise Unreachable(error, is_final=False) from error
            except OSError as error:  # this process has no descriptor left, say
                raise Unreachable(error, is_final=True) from error
            await self.is_closed_within(limits.RECONNECT_PAUSE_SECONDS)
        raise client_closed()


def _check_generation(connection: AsyncConnection, pending: PendingRequest) -> None:
    if pending.sent_in is not None and pending.is_expired(connection.generation):
        raise session_expired()

"""`Channel` for an event loop: delivers messages to the manager and awaits their answers, across broken connections.

It is the asynchronous driver of the rules that the blocking channel drives too (`client.session.delivery`). It contains
that channel, and shares its session, request numbers and leases. Only waiting differs.

Plain requests of all tasks share one connection, on which many are in flight. A request with large bodies has a
connection to itself, because the answer to an offer would come behind the answers to all requests in flight.

A task that is cancelled gives up the number of its request. It does not touch the connection: the answer arrives in its
turn and is dropped.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from contextlib import suppress

from stepwell import limits
from stepwell.aio.connection import AnswerFuture, AsyncConnection, answer_or_raise
from stepwell.client.session import channel as blocking
from stepwell.client.session.calls import LargeBody
from stepwell.client.session.delivery import Delivery, GiveUp, RequestFactory, Retry, is_granted
from stepwell.client.session.session_rules import Unreachable, client_closed_error
from stepwell.errors import HistoryLost, NotOwner, OutcomeUnknown, RuntimeLost, StepwellError
from stepwell.protocol.messages import AskStatus, Goodbye, ManagerMessage


class Channel:
    """A session with a manager, for the tasks of one event loop.

    It owns its asynchronous connections. The blocking channel, which it shares the session with, is for the threads of
    the same client. All methods but `is_closed` belong to the loop's thread; `require_owner` checks that.
    """

    def __init__(self, blocking_channel: blocking.Channel, loop: AbstractEventLoop) -> None:
        self.blocking_channel = blocking_channel
        self.loop = loop
        self.rules = blocking_channel.rules
        self.environment = blocking_channel.environment
        self._is_inherited = False  # set in a forked child, to which this client does not belong
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
        if self._is_inherited:
            raise NotOwner("this client belongs to another process: connect one here")
        if asyncio.get_running_loop() is not self.loop:
            raise NotOwner("this client belongs to another event loop: connect one in this loop")

    async def open(self) -> None:
        """Connect to the manager, or raise the reason why that is impossible. It waits for a manager that restarts."""
        delivery = Delivery(self.rules)
        while True:
            try:
                await self._shared_connection()
            except Unreachable as unreachable:
                await self._follow(delivery.unreachable(unreachable, self.blocking_channel.observe()))
            else:
                return

    async def exchange(self, build: RequestFactory, uploads: Sequence[LargeBody] = ()) -> ManagerMessage:
        """Send a request, after the bodies that it refers to, and return its answer."""
        self.require_owner()
        delivery = Delivery(self.rules, build, uploads)
        try:
            return await self._deliver(delivery)
        finally:
            delivery.end()

    async def ask_status(self) -> ManagerMessage:
        """Ask for the manager's status, and return the answer."""
        self.require_owner()
        return await self._deliver(Delivery(self.rules, message=AskStatus(self.rules.numbers.next_number())))

    async def dial(self) -> AsyncConnection:
        """Return a new connection of this session that belongs to the caller, who discards it."""
        self.require_owner()
        try:
            return await self._connect()
        except Unreachable as unreachable:
            self.blocking_channel.give_up(unreachable.error)

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
            self.blocking_channel.report(connection)
            connection.send(Goodbye())
            async with asyncio.timeout(limits.GOODBYE_SECONDS_MAX):
                await connection.wait_until_sent()
            return connection.error is None
        return False

    def _in_forked_child(self) -> None:
        """Detach all connections in a forked child, which must not touch the parent's event loop."""
        self._is_inherited = True
        for connection in self._open:
            connection.detach_in_forked_child()

    # One request.

    async def _deliver(self, delivery: Delivery) -> ManagerMessage:
        """Send a message, as often as its delivery demands, and return its answer. A closed client sends nothing."""
        attempt = self._attempt_with_uploads if delivery.uploads else self._attempt
        while True:
            if self.is_closed:
                delivery.closed().raise_error()
            try:
                answer = await attempt(delivery)
            except Unreachable as unreachable:
                decision = delivery.unreachable(unreachable, self.blocking_channel.observe())
            except (RuntimeLost, OutcomeUnknown) as error:
                decision = delivery.failed(error, self.blocking_channel.observe())
            else:
                if isinstance(answer, GiveUp):
                    answer.raise_error()
                if (rejected := delivery.answered(answer)) is not None:
                    rejected.raise_error()
                return answer
            await self._follow(decision)

    async def _follow(self, decision: Retry | GiveUp) -> None:
        """Wait for the pause before another attempt, or raise the error. A client that is closed ends the pause."""
        if isinstance(decision, GiveUp):
            decision.raise_error()
        if decision.pause_s:
            await self.is_closed_within(decision.pause_s)

    async def _attempt(self, delivery: Delivery) -> ManagerMessage | GiveUp:
        """Make one attempt on the shared connection, and return the answer, or the decision not to send.

        A slot bounds the requests in flight. It is occupied until the answer arrives, even if the task is cancelled
        before, because the manager is still working on the request.
        """
        await self._request_slots.acquire()
        try:
            connection = await self._shared_connection()
            if (expired := delivery.connected(connection)) is not None:
                self._request_slots.release()
                return expired
            answer = await self._send(connection, delivery, self._request_slots.release)
        except BaseException:
            self._request_slots.release()
            raise
        return await _answer_to(connection, answer)

    async def _attempt_with_uploads(self, delivery: Delivery) -> ManagerMessage | GiveUp:
        """Make one attempt on a connection of its own; after any error that connection is closed.

        A cancelled task may leave a half-sent body behind. Nothing but closing the connection makes the manager forget
        it.
        """
        async with self._upload_slots:
            connection = self._take_idle() or await self._connect()
            try:
                if (expired := delivery.connected(connection)) is not None:
                    self.discard(connection)
                    return expired
                for offer, body in delivery.offers():
                    if is_granted(await connection.exchange(offer)):
                        await connection.send_body(body)
                answer = await _answer_to(connection, await self._send(connection, delivery, None))
            except BaseException:
                self.discard(connection)
                raise
            self._idle.append(connection)
            return answer

    async def _send(
        self, connection: AsyncConnection, delivery: Delivery, on_end: Callable[[], None] | None
    ) -> AnswerFuture:
        """Send the message of a request, and return the future of its answer.

        `on_end` is called when it is answered or lost.
        """
        await connection.wait_for_room()
        self.blocking_channel.report(connection)
        return connection.send_request(delivery.message(), on_end)

    # Connections.

    async def _shared_connection(self) -> AsyncConnection:
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
        connections = self.blocking_channel.connections
        connection = await self._open_socket()
        self._open[connection] = None
        try:
            connections.admit(connection, await connection.exchange(connections.hello(connection)))
        except Unreachable as unreachable:
            if isinstance(unreachable.error, HistoryLost):
                await self._say_goodbye(connection)
            self.discard(connection)
            raise
        except StepwellError as error:
            self.discard(connection)
            raise (client_closed_error() if self.is_closed else self.rules.greeting_failed(error)) from error
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
                return AsyncConnection(connections.dial(0.0), connections.on_out_of_band, self.loop)
            except Unreachable as unreachable:
                is_full = isinstance(unreachable.error.__cause__, BlockingIOError)
                if not is_full or self.environment.monotonic() >= until_s:
                    raise
            await self.is_closed_within(limits.RECONNECT_PAUSE_SECONDS)
        raise client_closed_error()


async def _answer_to(connection: AsyncConnection, answer_future: AnswerFuture) -> ManagerMessage:
    """Return the answer, or raise the error of a connection that broke before it.

    `is_used` is set after the first answer: from then on a failed send means that the connection had died while idle.
    """
    answer = answer_or_raise(await answer_future)
    connection.is_used = True
    return answer

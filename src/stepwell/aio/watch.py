"""Watches for an event loop: asynchronous iterators over committed events, in order, each once.

There is no task behind a watch. The loop receives a bounded number of frames ahead, and the task that awaits the next
event takes it from there. So cancelling that task loses no event, and nothing is left running when a watch ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary

from stepwell import limits
from stepwell.aio.channel import Channel
from stepwell.aio.connection import AsyncConnection
from stepwell.client.api.watch import WatchCursor, events_of, project_names
from stepwell.client.session.push_connection import give_up_subscription
from stepwell.domain.events import AnyEvent
from stepwell.errors import InvalidArgument, OutcomeUnknown, RuntimeLost, StepwellError


class Watch:
    """An asynchronous iterator over events. `async for event in client.watch(): …` goes on until `aclose()`.

    It begins with the first event that is awaited. To begin earlier, use `async with client.watch() as watch:` or
    `watch = await client.watch()`: all events that are committed from then on are returned. Any task of the loop may
    close it; it also ends with the client.

    `EventsMissed` is raised where events were dropped before they were read; iterating again continues behind them.
    `RuntimeLost` is raised if a broken connection cannot be restored.
    """

    _connection: AsyncConnection | None = None

    def __init__(self, channel: Channel, since: int | None, projects: Iterable[str] | None) -> None:
        self._channel = channel
        self._cursor = WatchCursor(since, project_names(projects))
        self._receive_lock = asyncio.Lock()
        self._has_begun = False
        self._is_closed = False

    @property
    def revision(self) -> int:
        """The revision to resume from: all events up to it were returned."""
        return self._cursor.revision

    @property
    def is_closed(self) -> bool:
        """True if the watch was closed."""
        return self._is_closed

    async def open(self) -> Self:
        """Begin to watch, if it has not begun, and return the watch."""
        async with self._receive_lock:
            if not self._is_closed and not self._has_begun:
                await self._connect_with_retry()
        return self

    async def get(self, timeout_s: float | None = None) -> AnyEvent | None:
        """Return the next event; None if none arrives in time, or the watch is closed.

        Tasks that share a watch receive one at a time. The time that a task waits for another one counts too.
        """
        self._channel.require_owner()
        if not self._receive_lock.locked() and not self._is_closed and (event := self._cursor.pop()) is not None:
            return event  # it was received before: no other task receives, and there is nothing to wait for
        try:
            async with asyncio.timeout(timeout_s), self._receive_lock:
                return await self._next()
        except TimeoutError:
            return None

    async def aclose(self) -> None:
        """End the watch. Tasks that await an event get none."""
        self._is_closed = True
        self._disconnect()

    def __await__(self) -> Generator[object, None, Self]:
        return self.open().__await__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyEvent:
        event = await self.get()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        """Close the connection of a watch that is collected.

        A loop that ends early leaves no reference to close the watch by. The collector may run on any thread, so the
        loop is asked to close the connection.
        """
        connection, loop = self._connection, self._channel.loop if self._connection else None
        if connection is not None and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._channel.discard, connection)

    def __reduce__(self) -> tuple[object, ...]:
        raise InvalidArgument("a watch stays in its process: send the address and its revision")

    def __repr__(self) -> str:
        return f"<stepwell.aio.Watch at revision {self.revision}{', closed' if self._is_closed else ''}>"

    async def _next(self) -> AnyEvent | None:
        """Return the next event, over as many connections as necessary; None once the watch is closed."""
        while not self._is_closed:
            if (event := self._cursor.pop()) is not None:
                return event
            connection = self._connection or await self._connect_with_retry()
            if connection is None:
                return None
            try:
                message = await connection.receive_pushed()
            except (OutcomeUnknown, RuntimeLost):
                self._disconnect()
                continue
            self._channel.rules.answered(message)
            try:
                pushed = events_of(message)
            except StepwellError:
                self._disconnect()
                raise
            self._cursor.add(pushed)
        return None

    async def _connect_with_retry(self) -> AsyncConnection | None:
        """Connect and subscribe, and return the connection; None if the watch was closed meanwhile.

        If the manager is expected to restart, attempts go on for a bounded time. Otherwise there is one attempt.
        """
        lost_at_s = self._channel.environment.monotonic()
        while not self._is_closed:
            try:
                return await self._connect()
            except RuntimeLost as error:
                seen = self._channel.blocking_channel.observe()
                if self._is_open() and not self._channel.rules.should_resubscribe(lost_at_s, error, seen):
                    raise
            await self._channel.is_closed_within(limits.RECONNECT_PAUSE_SECONDS)
        return None

    def _is_open(self) -> bool:
        """Return True if the watch was not closed meanwhile, as another task may do during an `await`."""
        return not self._is_closed

    async def _connect(self) -> AsyncConnection:
        """Dial and subscribe once.

        The watch may be closed by another task during an `await`; then the new connection is closed at once.
        """
        connection = await self._channel.dial()
        try:
            connection.accept_pushed()
            self._cursor.accept(await connection.exchange(self._cursor.subscription()))
        except OutcomeUnknown as error:
            self._channel.discard(connection)
            give_up_subscription(self._channel.blocking_channel, error)
        except BaseException:
            self._channel.discard(connection)
            raise
        if not self._has_begun:
            self._has_begun = True
            self._cursor.begin()
        if self._is_closed:
            self._channel.discard(connection)
        else:
            self._connection = connection
        return connection

    def _disconnect(self) -> None:
        """Close the connection; the next event is received on another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._channel.discard(connection)


class Watches:
    """The watches of one client, which are closed with it. It does not keep an unused watch alive."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._open: WeakKeyDictionary[Watch, None] = WeakKeyDictionary()  # in the order of opening

    def open(self, since: int | None, projects: Iterable[str] | None) -> Watch:
        """Return a watch that has not begun."""
        watch = Watch(self._channel, since, projects)
        self._open[watch] = None
        return watch

    async def close(self) -> None:
        """Close all watches."""
        for watch in list(self._open):
            await watch.aclose()

"""Watches of one log for an event loop: asynchronous iterators over its entries, each once, without gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self

from stepwell.aio.watch import Watches
from stepwell.client.api.log_entries import LogListing, StoredLogEntry
from stepwell.client.api.log_watch import LogCursor
from stepwell.domain.logs.model import LogStatus
from stepwell.errors import EventsMissed


class LogWatch:
    """An asynchronous iterator over the entries of a log. `async for entry in log.watch(): …` goes on until `aclose()`.

    It begins with the first entry that is awaited, or at `async with log.watch() as watch:`. One task iterates; any
    task may close it. `EntriesMissed` is raised where entries were removed before they were read; iterating again
    continues behind them. A cancelled `get` loses no entry.
    """

    def __init__(
        self,
        key: tuple[str, str],
        read: Callable[[int], Coroutine[object, None, LogListing]],
        read_status: Callable[[], Coroutine[object, None, LogStatus]],
        watches: Watches,
        since: int | None,
    ) -> None:
        """Watch the log with this project and name, which `read` reads behind a position."""
        self._name = key[1]
        self._read, self._read_status = read, read_status
        self._cursor = LogCursor(*key, since)
        self._events = watches.open(None, key[:1])
        self._has_begun = False

    @property
    def position(self) -> int:
        """The position to resume from, as `since`: all entries up to it were returned."""
        return self._cursor.position

    async def open(self) -> Self:
        """Begin to watch, if it has not begun, and return the watch."""
        if not self._has_begun:
            # The events begin before the first read, so that an entry that is appended in between is not overlooked.
            self._events = await self._events.open()
            self._cursor.begin(await self._read_status())
            self._has_begun = True
        return self

    async def get(self, timeout_s: float | None = None) -> StoredLogEntry | None:
        """Return the next entry; None if none arrives in time, or the watch is closed."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._next()
        except TimeoutError:
            return None

    async def aclose(self) -> None:
        """End the watch. A task that awaits an entry gets none."""
        await self._events.aclose()

    async def _next(self) -> StoredLogEntry | None:
        """Return the next entry, however many pages and events that takes; None once the watch is closed."""
        await self.open()
        cursor = self._cursor
        while not self._events.is_closed:
            if (entry := cursor.pop()) is not None:
                return entry
            if cursor.is_behind:
                cursor.add(await self._read(cursor.after))
                continue
            try:
                event = await self._events.get()
            except EventsMissed:
                cursor.is_behind = True
                continue
            if event is None:
                return None
            cursor.note(event)
        return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredLogEntry:
        entry = await self.get()
        if entry is None:
            raise StopAsyncIteration
        return entry

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<stepwell.aio.LogWatch of {self._name!r} at position {self.position}>"

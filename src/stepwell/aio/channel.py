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
from stepwell.aio.connection import AsyncConnection, Coming, answered
from stepwell.client.session import channel as blocking
from stepwell.client.session.calls import LargeBody
from stepwell.client.session.channel import checked, expired, give_up, is_granted, offer_of
from stepwell.client.session.connection_pool import Unreachable, closed
from stepwell.client.session.pending_requests import Numbered, PendingRequest
from stepwell.errors import NotOwner, OutcomeUnknown, RuntimeLost, StepwellError
from stepwell.protocol.messages import AskStatus, Goodbye, ManagerMessage, OfferUpload, SegmentsReleased


class _Failed(Exception):
    """An attempt on a connection has failed."""

    def __init__(self, link: AsyncConnection, error: RuntimeLost | OutcomeUnknown) -> None:
        super().__init__(error.message)
        self.link = link
        self.error = error


class Channel:
    """A session with a manager, for one event loop. Its blocking twin is for the threads of the same client."""

    def __init__(self, twin: blocking.Channel, loop: AbstractEventLoop) -> None:
        self.twin = twin
        self.loop = loop
        self._pid = os.getpid()
        self._shared: AsyncConnection | None = None
        self._dialling = asyncio.Lock()
        self._slots = asyncio.Semaphore(limits.REQUESTS_IN_FLIGHT_MAX)
        self._uploading = asyncio.Semaphore(limits.UPLOADING_CONNECTIONS_MAX)
        self._idle: list[AsyncConnection] = []  # of those that upload
        self._open: set[AsyncConnection] = set()
        self._closed = asyncio.Event()
        twin.on_fork(self._in_forked_child)

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
            await self._reach(PendingRequest())
        except Unreachable as unreachable:
            raise unreachable.error from unreachable.error.__cause__

    async def exchange(self, make: Numbered, uploads: Sequence[LargeBody] = ()) -> ManagerMessage:
        """Send a request, what it refers to before it, and await its answer."""
        self.require_owner()
        errand = PendingRequest(make, uploads)
        try:
            return await self._deliver(errand)
        finally:
            self.twin.errands.end(errand)

    async def ask_status(self) -> ManagerMessage:
        """Send a question, and await its answer."""
        self.require_owner()
        return await self._deliver(PendingRequest(message=AskStatus(self.twin.errands.next_number())))

    async def dial(self) -> AsyncConnection:
        """A connection of this session, for whoever needs one alone: theirs to give up."""
        self.require_owner()
        try:
            return await self._connect()
        except Unreachable as unreachable:
            raise unreachable.error from unreachable.error.__cause__

    def discard(self, link: AsyncConnection) -> None:
        """A connection is not needed any more, or nobody knows what would come next on it."""
        self._open.discard(link)
        link.end()

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
                has_parted = await self._part(self._shared)
        finally:
            for link in [*self._open]:
                self.discard(link)
        return has_parted

    async def _part(self, link: AsyncConnection) -> bool:
        with suppress(RuntimeLost, TimeoutError):
            link.tell(Goodbye())
            async with asyncio.timeout(limits.GOODBYE_SECONDS_MAX):
                await link.drained()
            return link.error is None
        return False

    def _in_forked_child(self) -> None:
        for link in self._open:
            link.leave_to_parent()

    # One request.

    async def _deliver(self, errand: PendingRequest) -> ManagerMessage:
        """Send, as often as it takes, and await the answer."""
        carry = self._carry_alone if errand.uploads else self._carry
        while True:
            if self.is_closed:
                give_up(errand, closed().error)
            try:
                answer = await carry(errand)
            except Unreachable as unreachable:
                pause_s = self.twin.pause_without(errand, unreachable)
            except _Failed as failed:
                pause_s = self.twin.pause_after(errand, failed.link, failed.error)
            else:
                return checked(answer)
            if pause_s:
                await self.is_closed_within(pause_s)

    async def _carry(self, errand: PendingRequest) -> ManagerMessage:
        """An attempt, on the connection that all share. Its slot is taken until the answer is there, awaited or not."""
        await self._slots.acquire()
        try:
            link = await self._reach(errand)
            answer = await self._send(link, errand, self._slots.release)
        except BaseException:
            self._slots.release()
            raise
        return await self._answer(link, answer)

    async def _carry_alone(self, errand: PendingRequest) -> ManagerMessage:
        """An attempt, on a connection of its own; one whose attempt ends in any error is not used again."""
        async with self._uploading:
            link = self._take_idle() or await self._connect()
            try:
                _check_generation(link, errand)
                for number, body in enumerate(errand.uploads):
                    await self._upload(link, *offer_of(number, body))
                answer = await self._answer(link, await self._send(link, errand, None))
            except BaseException:
                self.discard(link)
                raise
            self._idle.append(link)
            return answer

    async def _send(self, link: AsyncConnection, errand: PendingRequest, on_end: Callable[[], None] | None) -> Coming:
        try:
            await link.room()
            self._report_released(link)
            return link.ask(self.twin.errands.message(errand), on_end)
        except RuntimeLost as lost:
            raise _Failed(link, lost) from lost

    async def _answer(self, link: AsyncConnection, coming: Coming) -> ManagerMessage:
        try:
            answer = answered(await coming)
        except (RuntimeLost, OutcomeUnknown) as error:
            raise _Failed(link, error) from error
        link.is_used = True
        return answer

    async def _upload(self, link: AsyncConnection, offer: OfferUpload, body: bytes | memoryview) -> None:
        try:
            if is_granted(await link.exchange(offer)):
                await link.send_body(body)
        except RuntimeLost as lost:
            raise _Failed(link, lost) from lost
        except OutcomeUnknown as error:  # what comes of an offer that no request refers to is nothing
            raise _Failed(link, RuntimeLost(error.message)) from error

    def _report_released(self, link: AsyncConnection) -> None:
        """Say which memory we let go of."""
        mappings = self.twin.mappings
        if mappings.has_released:
            released = mappings.take_released()
            try:
                link.tell(SegmentsReleased(released))
            except RuntimeLost:
                mappings.put_back(released)
                raise

    # Connections.

    async def _reach(self, errand: PendingRequest) -> AsyncConnection:
        """The connection that all share. If it has to be made, one of those who need it does."""
        link = self._shared
        if link is None or link.error is not None:
            async with self._dialling:
                link = self._shared
                if link is None or link.error is not None:
                    if link is not None:
                        self.discard(link)
                    link = self._shared = await self._connect()
        _check_generation(link, errand)
        return link

    def _take_idle(self) -> AsyncConnection | None:
        while self._idle:
            link = self._idle.pop()
            if link.error is None:
                return link
            self.discard(link)
        return None

    async def _connect(self) -> AsyncConnection:
        """Dial, and be welcomed."""
        link = await self._dialled()
        self._open.add(link)
        try:
            answer = await link.exchange(self.twin.connections.hello())
            self.twin.connections.admit(link, answer)
        except StepwellError as error:
            self.discard(link)
            raise closed() if self.is_closed else self.twin.connections.ungreeted(error) from error
        except BaseException:
            self.discard(link)
            raise
        return link

    async def _dialled(self) -> AsyncConnection:
        """A socket that is connected. Where many wait for that already, we come again a bit later."""
        until_s = time.monotonic() + limits.RECONNECT_SECONDS_MAX
        connections = self.twin.connections
        while not self.is_closed:
            try:
                return AsyncConnection(connections.address, connections.aside, self.loop)
            except RuntimeLost as error:
                if not isinstance(error.__cause__, BlockingIOError) or time.monotonic() >= until_s:
                    raise Unreachable(error, is_final=False) from error
            except OSError as error:  # this process has no descriptor left, say
                raise Unreachable(error, is_final=True) from error
            await self.is_closed_within(limits.RECONNECT_PAUSE_SECONDS)
        raise closed()


def _check_generation(link: AsyncConnection, errand: PendingRequest) -> None:
    if errand.sent_in is not None and errand.is_expired(link.generation):
        raise expired()

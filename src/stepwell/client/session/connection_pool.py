"""A session's connections: one for each thread that is inside a call, opened when needed and used again.

Safe from any number of threads, because a connection belongs to one call at a time. In a forked child the inherited
connections are closed, unused, and a new session begins; the parent notices nothing.

The manager forgets a session that nobody came back to, and begins it anew with the next greeting. Each connection knows
in which *generation* of the session it was welcomed: what may have arrived in an earlier one cannot be sent again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Protocol, assert_never

from ulid import ULID

from stepwell import limits
from stepwell.errors import Busy, OutcomeUnknown, ProtocolError, RuntimeLost, StepwellError
from stepwell.memory.reader.mappings import Mappings
from stepwell.protocol.messages import (
    VERSION,
    Goodbye,
    Hello,
    ManagerMessage,
    Rejected,
    SegmentsAdded,
    SegmentsRetired,
    Welcome,
)
from stepwell.transport.blocking import Connection
from stepwell.transport.frame_socket import FrameSocket, OnOutOfBand


class Unreachable(Exception):
    """There is no connection to be had. If it is final, trying again would not change that."""

    def __init__(self, error: StepwellError | OSError, *, is_final: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_final = is_final


class SessionConnection(Protocol):
    """A connection on which a session was welcomed, in whatever way one waits on it."""

    generation: int  # of its session
    is_used: bool  # it has carried a call before, and may have died since


class PooledConnection(Connection):
    """A connection on which a session was welcomed."""

    def __init__(self, address: str, timeout_s: float | None, on_out_of_band: OnOutOfBand) -> None:
        super().__init__(address, timeout_s, on_out_of_band=on_out_of_band)
        self.generation = 0
        self.is_used = False


class ConnectionPool:
    """Those of one session: idle, taken by a call, or being opened."""

    def __init__(self, address: str, projects: tuple[str, ...] | None, mappings: Mappings) -> None:
        self.address = address
        self._projects = projects
        self._mappings = mappings
        self._on_expiry: list[Callable[[], None]] = []
        self._begin()

    def _begin(self) -> None:
        self.session_id = str(ULID())
        self.welcome: Welcome | None = None  # what the manager said last
        self._is_closed = False
        self._closed = threading.Event()  # the same, for whoever waits for it
        self._idle: list[PooledConnection] = []
        self._open: set[PooledConnection] = set()  # idle or not
        self._opening = 0
        self._waiting = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._connect_lock = threading.Lock()
        self._admit_lock = threading.Lock()
        self._being_greeted: PooledConnection | None = None

    def in_forked_child(self) -> None:
        """Begin anew: what was inherited belongs to the parent, its locks included."""
        was_closed = self._is_closed
        for connection in self._open:
            connection.close()
        if self._being_greeted is not None:
            self._being_greeted.close()
        self._begin()
        if was_closed:
            self._is_closed = True
            self._closed.set()

    def on_expiry(self, callback: Callable[[], None]) -> None:
        """Have something forgotten when the manager has forgotten the session."""
        self._on_expiry.append(callback)

    def acquire_live(self) -> PooledConnection:
        """A connection that the manager has not closed, as far as can be seen."""
        connection = self.acquire()
        while connection.is_used and connection.is_stale():
            self.discard(connection)
            connection = self.acquire()
        return connection

    def acquire(self) -> PooledConnection:
        """A connection for this call alone."""
        with self._lock:
            while True:
                if self._is_closed:
                    raise client_closed()
                if self._idle:
                    return self._idle.pop()
                if len(self._open) + self._opening < limits.CONNECTIONS_PER_CLIENT_MAX:
                    self._opening += 1
                    break
                self._waiting += 1
                try:
                    self._changed.wait()
                finally:
                    self._waiting -= 1
        connection: PooledConnection | None = None
        try:
            connection = self.connect()
            return connection
        finally:
            with self._changed:
                self._opening -= 1
                if connection is not None:
                    self._open.add(connection)
                self._changed.notify()

    def release(self, connection: PooledConnection) -> None:
        """A call is over: the next one uses its connection again."""
        connection.is_used = True
        with self._lock:
            is_closed = self._is_closed
            if not is_closed and (self._waiting or len(self._idle) < limits.IDLE_CONNECTIONS_MAX):
                self._idle.append(connection)
                if self._waiting:
                    self._changed.notify()
                return
        if is_closed:
            _say_goodbye(connection)
        self.discard(connection)

    def discard(self, connection: PooledConnection) -> None:
        """A connection is broken, or nobody knows what would come next on it."""
        connection.close()
        with self._changed:
            self._open.discard(connection)
            self._changed.notify()

    def _require_open(self) -> None:
        if self._is_closed:
            raise client_closed()

    def is_closed_within(self, seconds: float) -> bool:
        """Wait; whether the client was closed meanwhile."""
        return self._closed.wait(seconds)

    def close(self, *, holds_leases: bool) -> None:
        """Say goodbye, which ends the session and its leases, and close every idle connection."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._closed.set()
            idle, self._idle = self._idle, []
            self._open.difference_update(idle)
            self._changed.notify_all()
            is_cut_off = not idle and not self._open
        if (greeted := self._being_greeted) is not None:
            greeted.interrupt()
        if is_cut_off and holds_leases:  # the session would outlive us by its grace
            idle += self._connect_for_goodbye()
        for connection in idle:
            _say_goodbye(connection)

    def _connect_for_goodbye(self) -> list[PooledConnection]:
        found: list[PooledConnection] = []
        if self._connect_lock.acquire(timeout=limits.GOODBYE_SECONDS_MAX):
            with contextlib.suppress(Unreachable, StepwellError):
                found.append(self._connect(limits.GOODBYE_SECONDS_MAX))
            self._connect_lock.release()
        return found

    def connect(self) -> PooledConnection:
        """A new connection, which is the caller's."""
        with self._connect_lock:
            return self._connect()

    def _connect(self, timeout_s: float | None = None) -> PooledConnection:
        """Dial, and be welcomed."""
        try:
            connection = PooledConnection(self.address, timeout_s, self.on_out_of_band)
        except RuntimeLost as error:
            raise Unreachable(error, is_final=False) from error
        except OSError as error:  # this process has no descriptor left, say
            raise Unreachable(error, is_final=True) from error
        self._being_greeted = connection
        try:
            if timeout_s is None:
                self._require_open()  # or whoever closed us just now would wait for this
            self.admit(connection, self._greet(connection))
        except BaseException:
            connection.close()
            raise
        finally:
            self._being_greeted = None
        return connection

    def _greet(self, connection: PooledConnection) -> ManagerMessage:
        try:
            return connection.exchange(self.hello())
        except StepwellError as error:
            raise self.greeting_error(error) from error

    def hello(self) -> Hello:
        """What a new connection begins with."""
        return Hello(VERSION, self.session_id, self._projects, self._mappings.numbers)

    def greeting_error(self, error: StepwellError) -> Unreachable:
        """What it means that there was no answer to `hello`."""
        if self._is_closed:
            return client_closed()
        if not isinstance(error, RuntimeLost | OutcomeUnknown):
            return Unreachable(error, is_final=True)
        lost = RuntimeLost(f"the manager at {self.address!r} went away while greeting")
        lost.__cause__ = error
        return Unreachable(lost, is_final=False)

    def admit(self, connection: SessionConnection, answer: ManagerMessage) -> None:
        """Enter a connection on which `hello` was answered, or raise what is wrong with it. From any thread."""
        with self._admit_lock:
            self._admit(connection, _welcomed(answer))

    def _admit(self, connection: SessionConnection, welcome: Welcome) -> None:
        known = self.welcome
        if known is not None and welcome.epoch != known.epoch:
            gone = RuntimeLost("the manager was replaced by another one, and its state is gone: connect anew")
            raise Unreachable(gone, is_final=True)
        if known is not None and welcome.generation != known.generation:
            for callback in self._on_expiry:
                callback()
        connection.generation = welcome.generation
        self.welcome = welcome
        self._mappings.retain_only(welcome.segments)

    def on_out_of_band(self, connection: FrameSocket, message: SegmentsAdded | SegmentsRetired) -> None:
        """What the manager says between its answers."""
        match message:
            case SegmentsAdded():
                descriptors = connection.take_descriptors(len(message.segments))
                try:
                    for segment in message.segments:
                        self._mappings.map_segment(segment.number, segment.size, descriptors.pop(0))
                finally:
                    for descriptor in descriptors:  # of those behind one that could not be mapped
                        os.close(descriptor)
            case SegmentsRetired():
                self._mappings.retire(message.segments)
            case _:
                assert_never(message)


def _welcomed(answer: ManagerMessage) -> Welcome:
    match answer:
        case Welcome():
            return answer
        case Rejected():
            refusal = answer.refusal.error()
            raise Unreachable(refusal, is_final=not isinstance(refusal, Busy))
        case _:
            kind = type(answer).__name__
            raise Unreachable(ProtocolError(f"the manager answered Hello with {kind}"), is_final=True)


def client_closed() -> Unreachable:
    """The caller itself has ended it."""
    return Unreachable(RuntimeLost("this client is closed: connect anew"), is_final=True)


def _say_goodbye(connection: PooledConnection) -> None:
    """Whoever comes last ends the session; that the others did so before does no harm."""
    with contextlib.suppress(RuntimeLost):
        connection.send(Goodbye())
    connection.close()

"""The pool of a session's connections: one for each thread that is inside a call, opened when needed and used again.

A connection carries one call at a time, so it needs no lock of its own. In a forked child the inherited connections are
closed unused and a new session begins; the parent does not notice.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import assert_never

from stepwell import limits
from stepwell.client.session.environment import Environment
from stepwell.client.session.indexed_reads import IndexedReads
from stepwell.client.session.session_rules import SessionConnection, SessionRules, Unreachable
from stepwell.errors import HistoryLost, RuntimeLost, StepwellError
from stepwell.memory.reader.mappings import Mappings
from stepwell.protocol.messages import (
    Goodbye,
    Hello,
    IndexOpened,
    ManagerEnded,
    ManagerMessage,
    OutOfBand,
    SegmentsAdded,
    SegmentsRetired,
)
from stepwell.transport.connection import Connection
from stepwell.transport.frame_socket import FrameSocket, OnOutOfBand


class PooledConnection(Connection):
    """A blocking connection on which the session was welcomed."""

    def __init__(self, connected: socket.socket, on_out_of_band: OnOutOfBand) -> None:
        super().__init__(connected, on_out_of_band=on_out_of_band)
        self.generation = 0
        self.seen_before = 0
        self.is_used = False


class ConnectionPool:
    """The connections of one session: idle, in use by a call, or being opened. Any number of threads may use it.

    At most `limits.CONNECTIONS_PER_CLIENT_MAX` are open; further calls wait for one. A few stay open when idle.

    Locks: `_lock` protects the sets and counters and is never held during I/O. `_connect_lock` lets one thread at a
    time dial and say Hello, so that many threads do not all dial a manager that is away.
    """

    def __init__(self, rules: SessionRules, mappings: Mappings, reads: IndexedReads, environment: Environment) -> None:
        self._rules = rules
        self._mappings = mappings
        self._reads = reads
        self._environment = environment
        self._begin()

    def _begin(self) -> None:
        """Begin without connections and with new locks; a closed pool stays closed."""
        self._closed = threading.Event()  # set when the session is closed, for threads that pause between attempts
        if self._rules.is_closed:
            self._closed.set()
        self._idle: list[PooledConnection] = []
        self._open: dict[PooledConnection, None] = {}  # idle or in use, in the order in which they were opened
        self._opening = 0  # connections that are being made
        self._waiting = 0  # threads that wait for a connection
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._connect_lock = threading.Lock()
        self._being_greeted: PooledConnection | None = None  # for `close`, which interrupts a Hello that hangs

    def in_forked_child(self) -> None:
        """Close the inherited connections.

        The parent's locks are replaced, because another of its threads may have held one during the fork.
        """
        for connection in self._open:
            connection.close()
        if self._being_greeted is not None:
            self._being_greeted.close()
        self._begin()

    def acquire_live(self) -> PooledConnection:
        """Return a connection that the manager has not closed, as far as the socket shows."""
        connection = self.acquire()
        while connection.is_used and connection.is_stale():
            self.discard(connection)
            connection = self.acquire()
        return connection

    def take_idle(self) -> PooledConnection | None:
        """Return an idle connection for one call, or None if there is none or the session is over."""
        with self._lock:
            return self._idle.pop() if self._idle and not self._rules.is_over else None

    def acquire(self) -> PooledConnection:
        """Return a connection for one call, idle or new; wait while the maximum is in use.

        The caller releases or discards it. It raises `Unreachable` if the pool is closed or no connection can be made.
        """
        with self._lock:
            while True:
                if self._rules.is_over:
                    self._rules.require_open()
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
                    self._open[connection] = None
                self._changed.notify()

    def release(self, connection: PooledConnection) -> None:
        """Make the connection of a finished call available to other calls.

        It is closed instead if enough connections are idle. In a closed pool the last call also says goodbye.
        """
        connection.is_used = True
        with self._lock:
            is_closed = self._rules.is_closed
            if not is_closed and (self._waiting or len(self._idle) < limits.IDLE_CONNECTIONS_MAX):
                self._idle.append(connection)
                if self._waiting:
                    self._changed.notify()
                return
        if is_closed:
            _say_goodbye(connection)
        self.discard(connection)

    def discard(self, connection: PooledConnection) -> None:
        """Close a connection that is broken or in an unknown state."""
        connection.close()
        with self._changed:
            self._open.pop(connection, None)
            self._changed.notify()

    def is_closed_within(self, seconds: float) -> bool:
        """Wait for at most `seconds`, and return True if the pool is closed by then."""
        return self._closed.wait(seconds)

    def close(self, *, holds_leases: bool, report: Callable[[PooledConnection], None]) -> None:
        """Say goodbye, which ends the session and its leases, and close all idle connections.

        `report` tells the manager, on one of them, what the session has read and not reported yet.

        Calls that are running keep their connections, and close them when they end. A Hello that hangs is interrupted,
        because closing must not wait for a manager that does not answer. If no connection is left but the session holds
        leases, a new one is made just for the goodbye: otherwise the leases would last until the session's grace is
        over.
        """
        with self._changed:
            if self._rules.is_closed:
                return
            self._rules.close()
            self._closed.set()
            idle, self._idle = self._idle, []
            for connection in idle:
                self._open.pop(connection, None)  # none of a parent process is there
            self._changed.notify_all()
            is_cut_off = not idle and not self._open
        if (greeted := self._being_greeted) is not None:
            greeted.interrupt()
        if is_cut_off and holds_leases:
            idle += self._connect_for_goodbye()
        if idle:
            idle[0].send_ms_max = int(limits.GOODBYE_SECONDS_MAX * 1000)
            try:
                report(idle[0])
            except RuntimeLost:  # a part of the report may have been sent, so that nothing can follow
                idle.pop(0).close()
        for connection in idle:
            _say_goodbye(connection)

    def _connect_for_goodbye(self) -> list[PooledConnection]:
        """Return a list with a new connection, or an empty one if that takes too long or fails."""
        found: list[PooledConnection] = []
        if self._connect_lock.acquire(timeout=limits.GOODBYE_SECONDS_MAX):
            with contextlib.suppress(Unreachable, StepwellError):
                found.append(self._connect(limits.GOODBYE_SECONDS_MAX))
            self._connect_lock.release()
        return found

    def connect(self) -> PooledConnection:
        """Return a new connection that belongs to the caller; the pool does not count it."""
        with self._connect_lock:
            return self._connect()

    def _connect(self, timeout_s: float | None = None) -> PooledConnection:
        """Dial, say Hello and be welcomed; raise `Unreachable` otherwise.

        The caller holds `_connect_lock`. With `timeout_s` it is the connection for a goodbye, which a closed pool may
        still make. Without it, the pool must be open.
        """
        connection = PooledConnection(self.dial(timeout_s), self.on_out_of_band)
        self._being_greeted = connection
        try:
            if timeout_s is None:
                self._rules.require_open()  # `close` may have run before it could see `_being_greeted`
            try:
                answer = connection.exchange(self.hello(connection))
            except StepwellError as error:
                raise self._rules.greeting_failed(error) from error
            self.admit(connection, answer)
        except Unreachable as unreachable:
            if isinstance(unreachable.error, HistoryLost):
                _say_goodbye(connection)  # ends this session at the manager, and no other
            connection.close()
            raise
        except BaseException:
            connection.close()
            raise
        finally:
            self._being_greeted = None
        return connection

    def dial(self, timeout_s: float | None) -> socket.socket:
        """Return a connected socket, or raise `Unreachable`."""
        try:
            return self._environment.dial(self._rules.address, timeout_s)
        except RuntimeLost as error:
            raise Unreachable(error, is_final=False) from error
        except OSError as error:  # for example, this process may open no more descriptors
            raise Unreachable(error, is_final=True) from error

    def hello(self, connection: SessionConnection) -> Hello:
        """Return the first message of a new connection, blocking or asynchronous. Any thread may call it."""
        return self._rules.hello(connection, self._mappings.numbers)

    def admit(self, connection: SessionConnection, answer: ManagerMessage) -> None:
        """Enter a connection whose Hello was answered, or raise `Unreachable`. Any thread may call it."""
        welcome = self._rules.welcomed(connection, answer)
        self._mappings.retain_only(welcome.segments)
        self._reads.index.close_unmapped()

    def on_out_of_band(self, connection: FrameSocket, message: OutOfBand) -> None:
        """Map the segments that the manager adds, release the ones that it retires, and note why it ends.

        It runs on the thread that receives, before the answer behind the message is returned. No answer comes behind
        the end of the manager: that is `OutcomeUnknown`.
        """
        match message:
            case SegmentsAdded():
                descriptors = connection.take_descriptors(len(message.segments))
                try:
                    for segment in message.segments:
                        self._mappings.map_segment(segment.number, segment.size, descriptors.pop(0))
                finally:
                    for descriptor in descriptors:  # the ones behind a segment that could not be mapped
                        os.close(descriptor)
            case SegmentsRetired():
                self._mappings.retire(message.segments)
                self._reads.index.close_unmapped()
            case IndexOpened():
                self._reads.open(message, connection.take_descriptors(2))
            case ManagerEnded():
                raise self._rules.manager_ended(message.refusal)
            case _:
                assert_never(message)


def _say_goodbye(connection: PooledConnection) -> None:
    """Say goodbye and close the connection.

    Every connection does so: the first goodbye ends the session, and the others do no harm.
    """
    with contextlib.suppress(RuntimeLost):
        connection.send(Goodbye())
    connection.close()

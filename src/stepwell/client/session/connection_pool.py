"""The pool of a session's connections: one for each thread that is inside a call, opened when needed and used again.

A connection carries one call at a time, so it needs no lock of its own. In a forked child the inherited connections are
closed unused and a new session begins; the parent does not notice.

The manager forgets a session that has had no connection for its grace period, and begins it anew with the next Hello.
The session then has a new *generation*. Each connection stores the generation in which it was welcomed, because a write
that may have arrived in an earlier generation must not be sent again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Protocol, assert_never

from stepwell import limits
from stepwell.client.session.environment import Environment
from stepwell.errors import Busy, HistoryLost, OutcomeUnknown, ProtocolError, RuntimeLost, StepwellError
from stepwell.memory.reader.mappings import Mappings
from stepwell.protocol.messages import (
    VERSION,
    Events,
    Goodbye,
    Hello,
    ManagerEnded,
    ManagerMessage,
    OutOfBand,
    Rejected,
    Response,
    SegmentsAdded,
    SegmentsRetired,
    Status,
    ViewOpened,
    Welcome,
)
from stepwell.transport.connection import Connection
from stepwell.transport.frame_socket import FrameSocket, OnOutOfBand


class Unreachable(Exception):
    """No connection can be made. `is_final` says that another attempt would fail in the same way.

    It is internal: the channel turns it into a pause, or raises its `error` to the caller.
    """

    def __init__(self, error: StepwellError | OSError, *, is_final: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_final = is_final


class SessionConnection(Protocol):
    """A connection on which the session was welcomed; blocking or asynchronous."""

    generation: int  # of the session, when it was welcomed on this connection
    seen_before: int  # the highest revision that the session had seen before it said Hello on this connection
    is_used: bool  # carried a call before, and may have died while it was idle


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
    time dial and say Hello, so that many threads do not all dial a manager that is away. `_admit_lock` orders welcomes,
    also those of asynchronous connections.
    """

    def __init__(
        self, address: str, projects: tuple[str, ...] | None, mappings: Mappings, environment: Environment
    ) -> None:
        self.address = address
        self._environment = environment
        self._projects = projects
        self._mappings = mappings
        self._on_expiry: list[Callable[[], None]] = []
        self._begin()

    def _begin(self) -> None:
        """Begin a new session, without connections and with new locks."""
        self.session_id = self._environment.new_id()
        self.welcome: Welcome | None = None  # the last one
        self.ended_by: StepwellError | None = None  # the reason for which the last manager ended, if it told
        self._is_closed = False
        self._closed = threading.Event()  # set with `_is_closed`, for threads that pause between two attempts
        self._idle: list[PooledConnection] = []
        self._open: dict[PooledConnection, None] = {}  # idle or in use, in the order in which they were opened
        self._opening = 0  # connections that are being made
        self._waiting = 0  # threads that wait for a connection
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._connect_lock = threading.Lock()
        self._admit_lock = threading.Lock()
        self._seen = 0  # the highest revision in an answer; `_seen_lock` is held to raise it
        self._seen_lock = threading.Lock()
        self._lost: HistoryLost | None = None  # set once: then this session is over
        self._being_greeted: PooledConnection | None = None  # for `close`, which interrupts a Hello that hangs

    def in_forked_child(self) -> None:
        """Close the inherited connections and begin a new session; a closed pool stays closed.

        The parent's locks are replaced, because another of its threads may have held one during the fork.
        """
        was_closed = self._is_closed
        for connection in self._open:
            connection.close()
        if self._being_greeted is not None:
            self._being_greeted.close()
        self._begin()
        if was_closed:
            self._is_closed = True
            self._closed.set()

    def note_answer(self, answer: ManagerMessage) -> None:
        """Note the revision of an answer or of events, with which a later welcome is compared.

        Any thread may call it. The results of a response are in the order of their revisions.
        """
        if isinstance(answer, Response):
            if answer.results:
                self._note_revision(answer.results[-1].revision)
        elif isinstance(answer, Status | ViewOpened | Events):
            self._note_revision(answer.revision)

    def _note_revision(self, revision: int) -> None:
        if revision > self._seen:
            with self._seen_lock:
                self._seen = max(self._seen, revision)

    def on_expiry(self, callback: Callable[[], None]) -> None:
        """Register a callback for the moment at which the manager turns out to have forgotten the session."""
        self._on_expiry.append(callback)

    def acquire_live(self) -> PooledConnection:
        """Return a connection that the manager has not closed, as far as the socket shows."""
        connection = self.acquire()
        while connection.is_used and connection.is_stale():
            self.discard(connection)
            connection = self.acquire()
        return connection

    def acquire(self) -> PooledConnection:
        """Return a connection for one call, idle or new; wait while the maximum is in use.

        The caller releases or discards it. It raises `Unreachable` if the pool is closed or no connection can be made.
        """
        with self._lock:
            while True:
                self._require_open()
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
        """Close a connection that is broken or in an unknown state."""
        connection.close()
        with self._changed:
            self._open.pop(connection, None)
            self._changed.notify()

    def _require_open(self) -> None:
        """Raise `Unreachable` if the pool is closed, or its session is over."""
        if self._is_closed:
            raise client_closed_error()
        self._require_history()

    def _require_history(self) -> None:
        """Raise `Unreachable` if the manager has lost writes that this session has seen."""
        if self._lost is not None:
            raise Unreachable(HistoryLost(self._lost.message, **self._lost.details), is_final=True)

    def is_closed_within(self, seconds: float) -> bool:
        """Wait for at most `seconds`, and return True if the pool is closed by then."""
        return self._closed.wait(seconds)

    def close(self, *, holds_leases: bool) -> None:
        """Say goodbye, which ends the session and its leases, and close all idle connections.

        Calls that are running keep their connections, and close them when they end. A Hello that hangs is interrupted,
        because closing must not wait for a manager that does not answer. If no connection is left but the session holds
        leases, a new one is made just for the goodbye: otherwise the leases would last until the session's grace is
        over.
        """
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._closed.set()
            idle, self._idle = self._idle, []
            for connection in idle:
                del self._open[connection]
            self._changed.notify_all()
            is_cut_off = not idle and not self._open
        if (greeted := self._being_greeted) is not None:
            greeted.interrupt()
        if is_cut_off and holds_leases:
            idle += self._connect_for_goodbye()
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
        try:
            connection = PooledConnection(self._environment.dial(self.address, timeout_s), self.on_out_of_band)
        except RuntimeLost as error:
            raise Unreachable(error, is_final=False) from error
        except OSError as error:  # for example, this process may open no more descriptors
            raise Unreachable(error, is_final=True) from error
        self._being_greeted = connection
        try:
            if timeout_s is None:
                self._require_open()  # `close` may have run before it could see `_being_greeted`
            self.admit(connection, self._greet(connection))
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

    def _greet(self, connection: PooledConnection) -> ManagerMessage:
        """Send Hello and return the answer."""
        try:
            return connection.exchange(self.hello(connection))
        except StepwellError as error:
            raise self.greeting_error(error) from error

    def hello(self, connection: SessionConnection) -> Hello:
        """Return the first message of a new connection; it names the segments that are already mapped.

        The highest revision that was seen is noted now, because other connections may see higher ones while the welcome
        is on its way.
        """
        connection.seen_before = self._seen
        return Hello(VERSION, self.session_id, self._projects, self._mappings.numbers)

    def greeting_error(self, error: StepwellError) -> Unreachable:
        """Return what an error during the greeting means: whether another attempt may succeed.

        A manager that goes away during the greeting may come back. An answer that cannot be decoded is final.
        """
        if self._is_closed:
            return client_closed_error()
        if not isinstance(error, RuntimeLost | OutcomeUnknown):
            return Unreachable(error, is_final=True)
        lost = RuntimeLost(f"the manager at {self.address!r} went away while greeting")
        lost.__cause__ = error
        return Unreachable(lost, is_final=False)

    def admit(self, connection: SessionConnection, answer: ManagerMessage) -> None:
        """Enter a connection whose Hello was answered, or raise `Unreachable`. Any thread may call it."""
        with self._admit_lock:
            self._admit(connection, _welcomed(answer))

    def _admit(self, connection: SessionConnection, welcome: Welcome) -> None:
        """Check epoch and generation of a welcome, and adopt it.

        Another epoch is another manager without the state of the first: the client must connect anew. A revision
        before one that this session has seen means that writes are lost: the session is over for good, also when the
        manager has caught up. Another generation means that the session was forgotten, with its leases.
        """
        known = self.welcome
        self._require_history()
        if known is not None and welcome.epoch != known.epoch:
            gone = RuntimeLost("the manager was replaced by another one, and its state is gone: connect anew")
            raise Unreachable(gone, is_final=True)
        if known is not None and welcome.revision < connection.seen_before:
            self._lost = history_lost_error(connection.seen_before, welcome)
            self._require_history()
        if known is not None and welcome.generation != known.generation:
            for callback in self._on_expiry:
                callback()
        self._note_revision(welcome.revision)
        connection.generation = welcome.generation
        self.welcome, self.ended_by = welcome, None
        self._mappings.retain_only(welcome.segments)

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
            case ManagerEnded():
                self.ended_by = message.refusal.error()
                raise OutcomeUnknown(f"the manager ended before it answered: {self.ended_by.message}")
            case _:
                assert_never(message)


def _welcomed(answer: ManagerMessage) -> Welcome:
    """Return the welcome; raise `Unreachable` for any other answer. Only a busy manager is worth another attempt."""
    match answer:
        case Welcome():
            return answer
        case Rejected():
            refusal = answer.refusal.error()
            raise Unreachable(refusal, is_final=not isinstance(refusal, Busy))
        case _:
            kind = type(answer).__name__
            raise Unreachable(ProtocolError(f"the manager answered Hello with {kind}"), is_final=True)


def history_lost_error(seen: int, welcome: Welcome) -> HistoryLost:
    """Return the error of a session that has seen a higher revision than the manager has."""
    return HistoryLost(
        f"the manager has lost writes: it is at revision {welcome.revision}, and this client has seen revision {seen} "
        f"of the same epoch {welcome.epoch}. Its data directory was damaged or replaced by an older one: see "
        "`stepwell doctor`. This session is over: connect anew, and read the state",
        seen=seen,
        found=welcome.revision,
        epoch=welcome.epoch,
    )


def client_closed_error() -> Unreachable:
    """Return the error of a call on a client that its own program has closed."""
    return Unreachable(RuntimeLost("this client is closed: connect anew"), is_final=True)


def _say_goodbye(connection: PooledConnection) -> None:
    """Say goodbye and close the connection.

    Every connection does so: the first goodbye ends the session, and the others do no harm.
    """
    with contextlib.suppress(RuntimeLost):
        connection.send(Goodbye())
    connection.close()

"""A connection of its own on which the manager speaks unasked, and which is made again when it breaks."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from stepwell import limits
from stepwell.client.session.channel import Channel
from stepwell.errors import OutcomeUnknown, RuntimeLost
from stepwell.protocol.messages import ClientMessage, ManagerMessage
from stepwell.transport.blocking import Connection

Subscribe = Callable[[Connection], None]
"""Says on a new connection what it is for; raises what the manager has against it."""


class PushConnection:
    """One thread receives; any may send, close or wake it."""

    def __init__(self, channel: Channel, subscribe: Subscribe) -> None:
        self._channel = channel
        self._subscribe = subscribe
        self._connection: Connection | None = None
        self._lost_at_s: float | None = None  # when the connection broke that is to be made again
        self._send_lock = threading.Lock()
        self._wake_fd = os.eventfd(0)
        self.is_closed = False

    def receive(self, until_s: float | None) -> ManagerMessage | None:
        """The next message; None when there is none in time, or it is closed. `RuntimeLost` when nobody comes back."""
        while True:
            connection = self._connection or self.connect(until_s)
            if connection is None:
                return None
            timeout_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            try:
                return connection.receive_within(timeout_s, self._wake_fd)
            except OutcomeUnknown:
                self.disconnect()

    def connect(self, until_s: float | None) -> Connection | None:
        """Make the connection: for a while if the manager can come back, or else once. None if it is not in time."""
        self._lost_at_s = self._lost_at_s or time.monotonic()
        while not self.is_closed:
            try:
                connection = self._connect()
            except RuntimeLost as error:
                if not should_reconnect(self._channel, self._lost_at_s, error):
                    self._lost_at_s = None
                    raise
            else:
                self._lost_at_s = None
                return connection
            if until_s is not None and time.monotonic() >= until_s:
                return None
            closed = select.poll()  # unlike `select`, for any number of descriptors
            closed.register(self._wake_fd, select.POLLIN)
            closed.poll(limits.RECONNECT_PAUSE_SECONDS * 1000)
        return None

    def send(self, message: ClientMessage) -> None:
        """Say something, if there is a connection: whoever makes the next one says it anew."""
        with self._send_lock:
            connection = self._connection
            if connection is not None:
                connection.send(message)

    def stop(self) -> None:
        """From any thread: whoever receives gets no more."""
        self.is_closed = True
        os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Let go of everything; nobody receives any more."""
        self.disconnect()
        os.close(self._wake_fd)

    def in_forked_child(self) -> None:
        """Begin anew: the connection, the lock and what wakes us up are the parent's."""
        self._send_lock = threading.Lock()
        self.disconnect()
        os.close(self._wake_fd)
        self._wake_fd = os.eventfd(0)

    def disconnect(self) -> None:
        """Give up the connection; the next `receive` makes another one."""
        with self._send_lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> Connection:
        connection = self._channel.dial()
        try:
            self._subscribe(connection)
        except OutcomeUnknown as error:
            connection.close()
            raise RuntimeLost("the manager went away before it could be asked") from error
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection


def should_reconnect(channel: Channel, lost_at_s: float, error: RuntimeLost) -> bool:
    """Whether it is worth trying again. One that was replaced, or told us so in words, does not come back."""
    in_time = time.monotonic() < lost_at_s + limits.RECONNECT_SECONDS_MAX
    return in_time and channel.expects_restart() and error.__cause__ is not None

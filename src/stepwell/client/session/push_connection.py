"""`PushConnection`: a connection on which the manager sends messages unasked, and which is restored when it breaks.

Watches and task outcomes use one each, apart from the pool, because a pushed message must not be taken for the answer
to a request. After every connect the owner subscribes anew, from the position that it has reached. So a broken
connection loses nothing and repeats nothing.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import NoReturn

from stepwell import limits
from stepwell.client.session.channel import Channel
from stepwell.errors import OutcomeUnknown, RuntimeLost
from stepwell.protocol.messages import ClientMessage, ManagerMessage
from stepwell.transport.connection import Connection

Subscribe = Callable[[Connection], None]
"""Subscribes on a new connection; raises the manager's refusal."""


class PushConnection:
    """A subscription to pushed messages. One thread receives; any thread may send, stop or disconnect.

    The owner calls `close` when no thread receives any more. `stop` makes a waiting receiver return.
    """

    def __init__(self, channel: Channel, subscribe: Subscribe) -> None:
        self._channel = channel
        self._monotonic = channel.environment.monotonic
        self._subscribe = subscribe
        self._connection: Connection | None = None
        self._lost_at_s: float | None = None  # when the connection broke that is being restored
        self._send_lock = threading.Lock()
        self._wake_fd = os.eventfd(0)
        self.is_closed = False

    def receive(self, until_s: float | None) -> ManagerMessage | None:
        """Return the next message; None if there is none before `until_s` (a monotonic time), or after `stop`.

        A broken connection is restored first. It raises `RuntimeLost` if the manager does not come back.
        """
        while True:
            connection = self._connection or self.connect(until_s)
            if connection is None:
                return None
            timeout_s = None if until_s is None else max(0.0, until_s - self._monotonic())
            try:
                message = connection.receive_within(timeout_s, self._wake_fd)
            except OutcomeUnknown:
                self.disconnect()
            else:
                if message is not None:
                    self._channel.rules.answered(message)
                return message

    def connect(self, until_s: float | None) -> Connection | None:
        """Connect and subscribe, and return the connection; None if that took longer than `until_s`, or after `stop`.

        If the manager is expected to restart, attempts go on for a bounded time since the connection was lost.
        Otherwise there is one attempt, and its error is raised.
        """
        self._lost_at_s = self._lost_at_s or self._monotonic()
        while not self.is_closed:
            try:
                connection = self._connect()
            except RuntimeLost as error:
                if not self._channel.rules.should_resubscribe(self._lost_at_s, error, self._channel.observe()):
                    self._lost_at_s = None
                    raise
            else:
                self._lost_at_s = None
                return connection
            if until_s is not None and self._monotonic() >= until_s:
                return None
            closed = select.poll()  # `select.select` would refuse descriptors above 1023
            closed.register(self._wake_fd, select.POLLIN)
            closed.poll(limits.RECONNECT_PAUSE_SECONDS * 1000)
        return None

    def send(self, message: ClientMessage) -> None:
        """Send a message if there is a connection.

        Without one nothing is lost, because the next subscription repeats it.
        """
        with self._send_lock:
            connection = self._connection
            if connection is not None:
                connection.send(message)

    def stop(self) -> None:
        """Make the receiver return None, now and from then on. Any thread may call it."""
        self.is_closed = True
        os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Close the connection and the descriptor that wakes the receiver. No thread may be receiving."""
        self.disconnect()
        os.close(self._wake_fd)

    def in_forked_child(self) -> None:
        """Replace the connection, the lock and the wake descriptor, which belong to the parent.

        An eventfd is shared after a fork: a child that kept it could wake the parent's receiver, or take its wake-up.
        """
        self._send_lock = threading.Lock()
        self.disconnect()
        os.close(self._wake_fd)
        self._wake_fd = os.eventfd(0)

    def disconnect(self) -> None:
        """Close the connection; the next `receive` makes another one."""
        with self._send_lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> Connection:
        """Dial and subscribe once; `RuntimeLost` if the manager goes away meanwhile."""
        connection = self._channel.dial()
        try:
            self._subscribe(connection)
        except OutcomeUnknown as error:
            connection.close()
            give_up_subscription(self._channel, error)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection


def give_up_subscription(channel: Channel, error: OutcomeUnknown) -> NoReturn:
    """Raise `RuntimeLost` for a manager that went away while it was asked for a subscription, which has no effect."""
    lost = RuntimeLost("the manager went away before it could be asked")
    lost.__cause__ = error
    channel.give_up(lost)

"""Simulated Unix sockets: bytes that are under way for as long as the seed wants, and descriptors that go along.

A stream has two pipes. What is sent is first under way, then it arrives, in parts of any size. A pipe has a capacity; a
full one makes `send` fail as that of a non-blocking socket does. Descriptors of shared memory are real: they are
duplicated when they are sent, and closed if their bytes are lost.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, Self

READ, WRITE, HANG_UP = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP


class Watcher(Protocol):
    """Learns that a socket may have become ready."""

    def mark(self, fd: int) -> None: ...


class Pipe:
    """One direction of a stream. `reader` and `writer` are told when they may go on."""

    __slots__ = (
        "arrived",
        "capacity",
        "descriptors",
        "frozen_until_s",
        "is_closed",
        "is_eof",
        "position",
        "reader",
        "sent",
        "underway",
        "writer",
    )

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.underway = bytearray()
        self.arrived = bytearray()
        self.descriptors: deque[tuple[int, array[int]]] = deque()  # with the position of the byte that they come with
        self.sent = 0  # bytes since the beginning
        self.position = 0  # of the first byte in `arrived`
        self.is_closed = False  # by the writer: behind the bytes comes the end
        self.is_eof = False  # the end has arrived
        self.frozen_until_s = 0.0  # nothing arrives before
        self.reader: SimulatedSocket | None = None
        self.writer: SimulatedSocket | None = None

    @property
    def room(self) -> int:
        return self.capacity - len(self.underway) - len(self.arrived)

    @property
    def has_news(self) -> bool:
        """True if something is to arrive."""
        return bool(self.underway) or (self.is_closed and not self.is_eof)

    def discard(self) -> None:
        """Drop everything, because no process reads it any more."""
        self.underway.clear()
        self.arrived.clear()
        while self.descriptors:
            for descriptor in self.descriptors.popleft()[1]:
                os.close(descriptor)


class SimulatedSocket:
    """An end of a stream, with the methods of a non-blocking `socket.socket` that the manager and its clients use."""

    def __init__(self, fd: int, pid: int, incoming: Pipe, outgoing: Pipe, on_send: Callable[[Pipe], None]) -> None:
        self._fd = fd
        self.pid = pid  # of the process at the other end
        self.incoming, self.outgoing = incoming, outgoing
        incoming.reader = outgoing.writer = self
        self.watcher: Watcher | None = None
        self.on_call: Callable[[], None] | None = None  # before each call of the owner, who may die at it
        self._on_send = on_send

    def fileno(self) -> int:
        return self._fd

    def setblocking(self, flag: bool, /) -> None:  # noqa: FBT001
        assert not flag

    @property
    def is_readable(self) -> bool:
        return bool(self.incoming.arrived) or self.incoming.is_eof

    @property
    def is_writable(self) -> bool:
        return self.outgoing.room > 0 or self.incoming.is_eof

    def events(self, interest: int) -> int:
        """Return what a poller reports of this socket: of the interest what is true, and a hang-up in any case."""
        incoming, outgoing = self.incoming, self.outgoing
        is_eof = incoming.is_eof
        events = READ if is_eof or incoming.arrived else 0
        if interest & WRITE and self.is_writable:
            events |= WRITE
        events &= interest
        if is_eof and outgoing.reader is None:
            events |= HANG_UP
        return events

    def mark(self) -> None:
        if self.watcher is not None:
            self.watcher.mark(self._fd)

    def _begin_call(self) -> None:
        """Let the owner die at this call, if it is its last one. Refuse the call if the owner has closed the socket."""
        if self.on_call is not None:
            self.on_call()
        if self._fd < 0:
            raise OSError(errno.EBADF, "Bad file descriptor")

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        self._begin_call()
        pipe = self.incoming
        size = self._receive(buffer, len(buffer))
        while pipe.descriptors and pipe.descriptors[0][0] < pipe.position:  # no room was given for them: they are lost
            for descriptor in pipe.descriptors.popleft()[1]:
                os.close(descriptor)
        return size

    def recvmsg_into(
        self, buffers: Iterable[bytearray | memoryview], _ancillary_bytes: int, _flags: int = 0, /
    ) -> tuple[int, list[tuple[int, int, bytes]], int, object]:
        self._begin_call()
        (buffer,) = buffers
        pipe, ancillary = self.incoming, list[tuple[int, int, bytes]]()
        limit = len(buffer)
        if pipe.descriptors and pipe.arrived:
            if pipe.descriptors[0][0] == pipe.position:
                descriptors = pipe.descriptors.popleft()[1]
                ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors.tobytes()))
            if pipe.descriptors:
                limit = min(limit, pipe.descriptors[0][0] - pipe.position)
        return self._receive(buffer, limit), ancillary, 0, None

    def _receive(self, buffer: bytearray | memoryview, limit: int) -> int:
        """Take bytes that have arrived, and return their number: 0 at the end of the stream."""
        pipe = self.incoming
        arrived = pipe.arrived
        size = len(arrived)
        if not size and not pipe.is_eof:
            raise BlockingIOError(errno.EAGAIN, "nothing has arrived")
        was_full = len(pipe.underway) + size >= pipe.capacity
        if size <= limit:
            buffer[:size] = arrived
            arrived.clear()
        else:
            size = limit
            buffer[:size] = arrived[:size]
            del arrived[:size]
        pipe.position += size
        if was_full and pipe.writer is not None:
            pipe.writer.mark()
        return size

    def send(self, data: bytes | bytearray | memoryview, /) -> int:
        self._begin_call()
        pipe = self.outgoing
        if pipe.reader is None:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        size, room = len(data), pipe.capacity - len(pipe.underway) - len(pipe.arrived)
        if size > room:
            size = room
            data = data[:room]
        if size <= 0:
            raise BlockingIOError(errno.EAGAIN, "the other end does not read")
        pipe.underway += data
        pipe.sent += size
        self._on_send(pipe)
        return size

    def sendmsg(self, buffers: Iterable[memoryview], ancdata: Iterable[tuple[int, int, array[int]]], /) -> int:
        (data,), ((_, _, descriptors),) = buffers, ancdata
        begins_at = self.outgoing.sent
        size = self.send(data)
        self.outgoing.descriptors.append((begins_at, array("i", map(os.dup, descriptors))))
        return size

    def shutdown(self, _how: int, /) -> None:
        self.close()

    def close(self) -> None:
        if self._fd < 0:
            return
        self._fd = -1
        self.incoming.reader = None
        self.incoming.discard()
        self.outgoing.is_closed = True
        self.outgoing.writer = None
        self._on_send(self.outgoing)
        if self.incoming.writer is not None:
            self.incoming.writer.mark()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Network:
    """All streams of a machine. The machine's scheduler lets their bytes arrive (`deliver`)."""

    def __init__(self, new_fd: Callable[[], int]) -> None:
        self._new_fd = new_fd
        self.news: dict[Pipe, None] = {}  # pipes in which something is to arrive
        self.listener: SimulatedListener | None = None
        self._pipes: list[Pipe] = []

    def close(self) -> None:
        """Drop everything that was not read, with its descriptors."""
        for pipe in self._pipes:
            pipe.discard()

    def listen(self, watcher: Watcher) -> SimulatedListener:
        """Return the listening socket of a new manager."""
        self.listener = SimulatedListener(self._new_fd(), watcher)
        return self.listener

    def dial(self, pid: int, server_pid: int, capacity: int) -> SimulatedSocket:
        """Return the client's end of a new stream. Raise `ConnectionRefusedError` if no manager listens."""
        if self.listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        up, down = Pipe(capacity), Pipe(capacity)
        self._pipes += (up, down)
        client = SimulatedSocket(self._new_fd(), server_pid, down, up, self._note)
        server = SimulatedSocket(self._new_fd(), pid, up, down, self._note)
        self.listener.queue(server)
        return client

    def _note(self, pipe: Pipe) -> None:
        if pipe.underway or pipe.has_news:
            self.news[pipe] = None

    def deliver(self, pipe: Pipe, size: int) -> None:
        """Let bytes arrive, or the end if there are none left."""
        reader = pipe.reader
        if reader is None:
            pipe.discard()
            pipe.is_eof = True
        elif size >= len(pipe.underway):
            pipe.arrived += pipe.underway
            pipe.underway.clear()
        else:
            pipe.arrived += pipe.underway[:size]
            del pipe.underway[:size]
        is_over = not pipe.underway
        if is_over and pipe.is_closed:
            pipe.is_eof = True
        if reader is not None and reader.watcher is not None:
            reader.watcher.mark(reader._fd)
        if is_over:
            self.news.pop(pipe, None)


class SimulatedListener:
    """The listening socket of the manager."""

    def __init__(self, fd: int, watcher: Watcher) -> None:
        self._fd = fd
        self._watcher = watcher
        self._waiting: deque[SimulatedSocket] = deque()
        self.on_accept: Callable[[SimulatedSocket], None] = lambda _: None

    def fileno(self) -> int:
        return self._fd

    @property
    def is_readable(self) -> bool:
        return bool(self._waiting)

    def events(self, interest: int) -> int:
        return READ & interest if self._waiting else 0

    def queue(self, accepted: SimulatedSocket) -> None:
        self._waiting.append(accepted)
        self._watcher.mark(self._fd)

    def accept(self) -> tuple[SimulatedSocket, object]:
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, "no process connects")
        accepted = self._waiting.popleft()
        self.on_accept(accepted)
        return accepted, None

    def close(self) -> None:
        while self._waiting:
            self._waiting.popleft().close()

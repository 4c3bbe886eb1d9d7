"""A worker as the program sees it: its process, the socket to it, and the function that it has."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final

import msgspec
from msgspec import Struct

from stepwell import limits
from stepwell.errors import WorkerDied
from stepwell.pool.functions.frames import HEADER, FrameKind
from stepwell.pool.functions.worker_main import FunctionWorkerSettings
from stepwell.pool.spawning import search_path, spawn

_MODULE: Final = "stepwell.pool.functions.worker_main"
_KINDS: Final = frozenset(FrameKind)


class PendingCall(Struct, frozen=True):
    """A function with its arguments, and who waits for it."""

    name: str
    call: bytes
    future: Future[object]


class FunctionWorkerProcess:
    """One process. Whoever makes it is the thread that it dies with."""

    def __init__(self) -> None:
        self.task: PendingCall | None = None
        self.is_ready = False
        self.is_stopping = False
        self.is_killed = False
        self.until_s = time.monotonic() + limits.WORKER_START_SECONDS_MAX  # then it is killed
        self._given = 0
        self._outbox: deque[memoryview] = deque()
        self._inbox = _Inbox()
        with contextlib.ExitStack() as stack:
            self.socket, theirs = socket.socketpair()
            stack.enter_context(self.socket)
            with theirs:
                self._begun_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                stack.callback(os.close, self._begun_fd)
                self._process = spawn(*self._terms(theirs.fileno()))
            stack.callback(self._process.wait)
            stack.callback(self._process.kill)
            self.pidfd = os.pidfd_open(self._process.pid)
            self.socket.setblocking(False)  # noqa: FBT003
            stack.pop_all()

    def _terms(self, socket_fd: int) -> tuple[str, str, tuple[int, ...]]:
        settings = FunctionWorkerSettings(
            socket_fd=socket_fd, begun_fd=self._begun_fd, parent_pid=os.getpid(), path=search_path()
        )
        return _MODULE, msgspec.json.encode(settings).decode(), (socket_fd, self._begun_fd)

    @property
    def is_leaving(self) -> bool:
        return self.is_stopping or self.is_killed

    @property
    def is_idle(self) -> bool:
        return self.is_ready and self.task is None and not self.is_leaving

    @property
    def is_sending(self) -> bool:
        """Whether a part of its task has not gone out yet."""
        return bool(self._outbox)

    def give(self, task: PendingCall) -> None:
        self.task = task
        self._given += 1
        self._outbox.extend((memoryview(HEADER.pack(len(task.call), FrameKind.TASK)), memoryview(task.call)))
        self.send()

    def send(self) -> None:
        """As much as it takes now."""
        try:
            while self._outbox:
                sent = self.socket.send(self._outbox[0])
                if sent == len(self._outbox[0]):
                    self._outbox.popleft()
                else:
                    self._outbox[0] = self._outbox[0][sent:]
        except BlockingIOError:
            pass
        except OSError:  # it is dead, which we are told in another way
            self._outbox.clear()

    def receive(self, part_bytes: float) -> Iterator[tuple[FrameKind, bytearray]]:
        """What has arrived whole, within about so many bytes; raises EOFError behind the last."""
        while part_bytes > 0:
            try:
                part_bytes -= self._inbox.read(self.socket)
            except BlockingIOError:
                return
            except ConnectionError:
                raise EOFError from None
            if frame := self._inbox.pop_frame():
                yield frame

    def kill(self) -> None:
        self.is_killed = True
        self.until_s = math.inf
        self._process.kill()

    def stop(self) -> None:
        """Let it end; until then there is time for what it has to tidy up."""
        self.is_stopping = True
        self.until_s = time.monotonic() + limits.WORKER_END_SECONDS_MAX
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # seen even while a forked child holds a copy

    def reap(self) -> WorkerExit:
        """Once it is dead: how it died, and whether it had begun with its task."""
        code = self._process.wait()
        try:
            begun = os.eventfd_read(self._begun_fd)
        except BlockingIOError:
            begun = 0
        self.socket.close()
        os.close(self._begun_fd)
        os.close(self.pidfd)
        return WorkerExit(self._process.pid, code, begun, self._given)


class WorkerExit(Struct, frozen=True):
    pid: int
    code: int
    begun: int
    given: int

    @property
    def is_caused_by_call(self) -> bool:
        """A task that it had not begun with is not what it died of, and can be given to another one."""
        return 0 < self.begun == self.given

    @property
    def is_failed_start(self) -> bool:
        return self.begun == 0

    def error(self, task: str) -> WorkerDied:
        told = f"the worker that ran {task} {self.manner}; others go on, and {task} is not run again"
        return WorkerDied(told, pid=self.pid, exit_code=self.code, function=task)

    @property
    def manner(self) -> str:
        """How it ended, as a clause without its subject."""
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        perhaps = ", perhaps for want of memory" if self.code == -signal.SIGKILL else ""
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-self.code).name}{perhaps}"
        return f"was ended by signal {-self.code}"


class _Inbox:
    """One frame at a time, as it comes in."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._kind: FrameKind | None = None
        self._data = bytearray(HEADER.size)
        self._filled = 0

    def read(self, line: socket.socket) -> int:
        """The number of bytes that came; raises EOFError at the end."""
        with memoryview(self._data) as view:
            received = line.recv_into(view[self._filled : self._filled + limits.FUNCTION_PART_BYTES])
        if received == 0:
            raise EOFError
        self._filled += received
        return received

    def pop_frame(self) -> tuple[FrameKind, bytearray] | None:
        """The frame, if it is whole."""
        if self._filled < len(self._data):
            return None
        if self._kind is None:
            self._begin(*HEADER.unpack(self._data))
        if self._filled < len(self._data):
            return None
        assert self._kind is not None
        frame = (self._kind, self._data)
        self._start()
        return frame

    def _begin(self, count: int, kind: int) -> None:
        if kind not in _KINDS or count > limits.FUNCTION_FRAME_BYTES_MAX:
            raise EOFError  # somebody else has written to its socket: it is of no use any more
        self._kind, self._data, self._filled = FrameKind(kind), bytearray(count), 0

"""A function worker as the program sees it: its process, the socket to it, and the call that it runs.

The scheduler's thread owns every object of this module. Data goes over the socket of the process in frames, in both
directions and without ever blocking that thread: the outbox holds what the worker has not read yet, the inbox the
part of a frame that has arrived.

Beside the socket there is a counter in the kernel (an eventfd) of the calls that the worker has begun. The program
reads it when the worker is dead. A call that the worker had not begun did not kill it, so another worker may run it.
"""

from __future__ import annotations

import contextlib
import math
import os
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
from stepwell.process import ChildProcess, describe_exit, search_path

_MODULE: Final = "stepwell.pool.functions.worker_main"
_KINDS: Final = frozenset(FrameKind)


class PendingCall(Struct, frozen=True):
    """A function with its arguments, pickled, and the future for its result. `name` is for messages."""

    name: str
    pickled: bytes
    future: Future[object]


class WorkerExit(Struct, frozen=True):
    """The end of a worker process: its exit code, and how many calls it was sent and had begun."""

    pid: int
    code: int
    begun: int
    sent: int

    @property
    def is_caused_by_call(self) -> bool:
        """Return True if the worker died of its last call. A call that it had not begun may run elsewhere."""
        return 0 < self.begun == self.sent

    @property
    def is_failed_start(self) -> bool:
        """Return True if the worker ended before it began any call."""
        return self.begun == 0

    @property
    def description(self) -> str:
        """The manner of the end, as a clause without its subject."""
        return describe_exit(self.code)

    def error(self, call: str) -> WorkerDied:
        """Return the error for the future of the call that the worker ran."""
        message = f"the worker that ran {call} {self.description}; others go on, and {call} is not run again"
        return WorkerDied(message, pid=self.pid, exit_code=self.code, function=call)


class FunctionWorkerProcess:
    """One worker process. The kernel kills it when the thread that made this object ends.

    It starts, becomes ready, runs one call at a time, and is then stopped or killed. After `deadline_s`, a moment of
    `time.monotonic()`, the scheduler kills it: because it did not start in time, or did not stop in time. A call has
    no deadline.

    The scheduler watches `socket` and `sentinel`. When the sentinel is readable it has to call `reap`, once.
    """

    def __init__(self) -> None:
        self.call: PendingCall | None = None
        self.is_ready = False
        self.is_stopping = False
        self.is_killed = False
        self.deadline_s = time.monotonic() + limits.WORKER_START_SECONDS_MAX
        self._sent = 0
        self._outbox: deque[memoryview] = deque()
        self._inbox = _Inbox()
        self._begun_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._process = ChildProcess(_MODULE, self._settings, descriptors=[self._begun_fd])
        except BaseException:
            os.close(self._begun_fd)
            raise
        self.pid: Final = self._process.pid
        self.socket: Final = self._process.socket
        self.sentinel: Final = self._process.sentinel
        self.socket.setblocking(False)  # noqa: FBT003

    def _settings(self, socket_fd: int) -> str:
        """Return the settings for a process that has its end of the socket under this number."""
        settings = FunctionWorkerSettings(
            socket_fd=socket_fd, begun_fd=self._begun_fd, parent_pid=os.getpid(), path=search_path()
        )
        return msgspec.json.encode(settings).decode()

    @property
    def is_leaving(self) -> bool:
        """Return True once the worker gets no more calls."""
        return self.is_stopping or self.is_killed

    @property
    def is_idle(self) -> bool:
        """Return True if the worker can be given a call now."""
        return self.is_ready and self.call is None and not self.is_leaving

    @property
    def is_sending(self) -> bool:
        """Return True while a part of the call waits for the worker to read it."""
        return bool(self._outbox)

    def assign(self, call: PendingCall) -> None:
        """Give the worker a call to run."""
        self.call = call
        self._sent += 1
        self._outbox.extend((memoryview(HEADER.pack(len(call.pickled), FrameKind.CALL)), memoryview(call.pickled)))
        self.send()

    def send(self) -> None:
        """Send as much of the outbox as the socket accepts now."""
        try:
            while self._outbox:
                sent = self.socket.send(self._outbox[0])
                if sent == len(self._outbox[0]):
                    self._outbox.popleft()
                else:
                    self._outbox[0] = self._outbox[0][sent:]
        except BlockingIOError:
            pass
        except OSError:  # the worker is dead, and the sentinel says so
            self._outbox.clear()

    def receive(self, part_bytes: float) -> Iterator[tuple[FrameKind, bytearray]]:
        """Yield the frames that have arrived whole, after about that many bytes at the most.

        Raise EOFError if the worker has closed the socket, or if another process has written to it.
        """
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
        """End the process at once; `reap` has to follow when the sentinel is readable."""
        self.is_killed = True
        self.deadline_s = math.inf
        self._process.kill()

    def stop(self) -> None:
        """Let the process end by itself, with time for its exit handlers and for threads that a function left."""
        self.is_stopping = True
        self.deadline_s = time.monotonic() + limits.WORKER_END_SECONDS_MAX
        self._process.disconnect()

    def reap(self) -> WorkerExit:
        """Wait for the process to end, close everything, and return how it ended."""
        code = self._process.wait()
        assert code is not None
        self._process.close()
        begun = 0
        with contextlib.suppress(BlockingIOError):  # the counter is 0
            begun = os.eventfd_read(self._begun_fd)
        os.close(self._begun_fd)
        return WorkerExit(self.pid, code, begun, self._sent)


class _Inbox:
    """The frame that is arriving from one worker."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._kind: FrameKind | None = None  # None: the header is arriving
        self._data = bytearray(HEADER.size)
        self._filled = 0

    def read(self, connection: socket.socket) -> int:
        """Receive a part of the frame and return the number of its bytes; raise EOFError at the end of the stream."""
        with memoryview(self._data) as view:
            received = connection.recv_into(view[self._filled : self._filled + limits.FUNCTION_PART_BYTES])
        if received == 0:
            raise EOFError
        self._filled += received
        return received

    def pop_frame(self) -> tuple[FrameKind, bytearray] | None:
        """Return the frame and begin the next one, or None while the frame is not whole."""
        if self._filled < len(self._data):
            return None
        if self._kind is None:
            self._begin(*HEADER.unpack(self._data))
        if self._filled < len(self._data):
            return None
        assert self._kind is not None
        frame = (self._kind, self._data)
        self._clear()
        return frame

    def _begin(self, count: int, kind: int) -> None:
        """Begin the body behind a header; raise EOFError for a header that no worker sends."""
        if kind not in _KINDS or count > limits.FUNCTION_FRAME_BYTES_MAX:
            raise EOFError  # a function has written to the socket, so nothing that follows can be trusted
        self._kind, self._data, self._filled = FrameKind(kind), bytearray(count), 0

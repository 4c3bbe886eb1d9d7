"""A strategy worker as its supervisor sees it: its process, its lifeline, and what it writes to its standard error.

The lifeline is the socket of the process. The worker sends `WorkerReady` over it once, and ends when the supervisor
disconnects it. The standard error of the worker is a pipe, which the supervisor forwards to its own: the last of it is
evidence when the worker dies. The pipe is drained without blocking, and also while the worker is busy, because a
worker that writes into a full pipe would stop.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Final

import msgspec

from stepwell import limits, terminal
from stepwell.domain.tasks.model import StrategyProblem
from stepwell.pool.strategy.settings import PoolSettings, WorkerReady, WorkerSettings
from stepwell.process import ChildProcess, describe_exit

_MODULE: Final = "stepwell.pool.strategy.worker"


class StrategyWorkerProcess:
    """One worker process. The supervisor's thread owns it; the kernel kills the process when that thread ends.

    `descriptors` become readable when there is something for `read` to read, or when the process has ended. A
    descriptor that has nothing more to say is handed out once by `pop_finished`, so that its owner stops polling it.
    """

    def __init__(self, pool: PoolSettings) -> None:
        self.is_ready = False
        self.problems: tuple[StrategyProblem, ...] = ()
        self.last_output = ""
        self._report = b""
        self._started_at_s = time.monotonic()
        self._stderr, their_stderr = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(their_stderr, True)
        pickled = pool.pickled_strategies
        pickled_fd = None if pickled is None else _unnamed_file(pickled)

        def settings(lifeline_fd: int) -> str:
            found = WorkerSettings(
                address=pool.address,
                parent_pid=os.getpid(),
                lifeline_fd=lifeline_fd,
                strategies=pool.strategies,
                pickled_strategies_fd=pickled_fd,
                max_memory_bytes=pool.max_memory_bytes,
                nice=pool.nice,
                log_level=pool.log_level,
            )
            return msgspec.json.encode(found).decode()

        given = [] if pickled_fd is None else [pickled_fd]
        try:
            self._process = ChildProcess(_MODULE, settings, descriptors=given, stderr=their_stderr)
        except BaseException:
            os.close(self._stderr)
            raise
        finally:
            for descriptor in (their_stderr, *given):
                os.close(descriptor)
        self.pid: Final = self._process.pid
        self._lifeline = self._process.socket
        self._lifeline.setblocking(False)  # noqa: FBT003
        self._open = {self._process.sentinel, self._stderr, self._lifeline.fileno()}
        self._finished: set[int] = set()

    @property
    def age_s(self) -> float:
        """The time since the process was started."""
        return time.monotonic() - self._started_at_s

    @property
    def descriptors(self) -> frozenset[int]:
        """The descriptors to poll."""
        return frozenset(self._open)

    def read(self) -> None:
        """Read what has arrived: the report from the lifeline, and output, which is forwarded."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            received = self._lifeline.recv(limits.WORKER_READY_BYTES_MAX)
            self._receive_report(received)
            if not received:
                self._finish(self._lifeline.fileno())
        with contextlib.suppress(BlockingIOError):
            while True:
                written = os.read(self._stderr, 64 * limits.KIB)
                if not written:
                    self._finish(self._stderr)
                    break
                self._forward(written)

    def pop_finished(self) -> set[int]:
        """Return the descriptors that have reached their end since the last call."""
        finished, self._finished = self._finished, set()
        return finished

    def exit_code(self) -> int | None:
        """Return the exit code of the process, or None while it runs."""
        return self._process.exit_code()

    def evidence(self, code: int) -> str:
        """Return how the process ended and the last that it wrote; a fatal signal has left a traceback there."""
        self.read()
        return f"{describe_exit(code)}\n{self.last_output}"[: limits.EVIDENCE_CHARS_MAX]

    def stop(self) -> None:
        """Tell the worker to end as soon as it is idle."""
        self._process.disconnect()

    def end(self, until_s: float) -> None:
        """Wait until that moment for the process to end, kill it if it has not, and close everything."""
        self._process.end(until_s)
        self.read()
        self.close()

    def close(self) -> None:
        """Close the descriptors of a process that has ended."""
        self._process.close()
        os.close(self._stderr)
        self._open.clear()

    def _finish(self, descriptor: int) -> None:
        """Poll the descriptor no more: at its end it would stay readable, and the supervisor would never sleep."""
        if descriptor in self._open:
            self._open.discard(descriptor)
            self._finished.add(descriptor)

    def _receive_report(self, received: bytes) -> None:
        """Note that the worker is ready when its whole report is here. Bytes that are no report are ignored."""
        if not self.is_ready:
            self._report = (self._report + received)[: limits.WORKER_READY_BYTES_MAX]
            line, end, _ = self._report.partition(b"\n")
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                if end:
                    self.problems = WorkerReady.decode(line).problems
                    self.is_ready = True

    def _forward(self, written: bytes) -> None:
        """Write the worker's output to the program's standard error, and keep the end of it as evidence."""
        text = written.decode("utf-8", "replace")
        self.last_output = (self.last_output + text)[-(limits.EVIDENCE_CHARS_MAX // 2) :]
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a program may have no stderr
            terminal.write(sys.stderr, text)


def _unnamed_file(data: bytes) -> int:
    """Return the descriptor of a file in memory that holds the data. A pipe would block on data of this size."""
    descriptor = os.memfd_create("stepwell-strategies", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor

"""A worker process, as whoever started it sees it: its lifeline, what it says, and how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Protocol

import msgspec

from stepwell import limits
from stepwell.pool.spawning import spawn
from stepwell.pool.strategy.settings import READY, WorkerSettings
from stepwell.telemetry import LogLevel


class WorkerSpec(Protocol):
    """Which worker to have."""

    @property
    def address(self) -> str: ...
    @property
    def strategies(self) -> tuple[str, ...]: ...
    @property
    def pickled_strategies(self) -> bytes | None: ...
    @property
    def max_memory_bytes(self) -> int | None: ...
    @property
    def nice(self) -> int | None: ...
    @property
    def log_level(self) -> LogLevel: ...


class StrategyWorkerProcess:
    """Started by the thread that makes it, and ended by the kernel with that thread, if nobody did so before."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.is_ready = False
        self.last_output = ""  # of what it wrote to its stderr, which is passed on
        self._started_at_s = time.monotonic()
        self._lifeline, theirs = socket.socketpair()
        self._stderr, their_stderr = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(their_stderr, True)
        pickled_strategies_fd = None if spec.pickled_strategies is None else _file_of(spec.pickled_strategies)
        settings = WorkerSettings(
            address=spec.address,
            parent_pid=os.getpid(),
            lifeline_fd=theirs.fileno(),
            strategies=spec.strategies,
            pickled_strategies_fd=pickled_strategies_fd,
            max_memory_bytes=spec.max_memory_bytes,
            nice=spec.nice,
            log_level=spec.log_level,
        )
        descriptors = (theirs.fileno(), *(() if pickled_strategies_fd is None else (pickled_strategies_fd,)))
        try:
            encoded = msgspec.json.encode(settings).decode()
            self._process = spawn("stepwell.pool.strategy.worker", encoded, descriptors, stderr=their_stderr)
        except BaseException:
            self._lifeline.close()
            os.close(self._stderr)
            raise
        finally:
            theirs.close()
            os.close(their_stderr)
            if pickled_strategies_fd is not None:
                os.close(pickled_strategies_fd)
        self._lifeline.setblocking(False)  # noqa: FBT003
        self._pidfd = os.pidfd_open(self.pid)
        self._open = {self._pidfd, self._stderr, self._lifeline.fileno()}
        self._finished: set[int] = set()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._started_at_s

    @property
    def descriptors(self) -> frozenset[int]:
        """That become readable when there is something to listen to."""
        return frozenset(self._open)

    def listen(self) -> None:
        """Take what it says; pass on what it writes."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            said = self._lifeline.recv(64)
            self.is_ready |= said == READY
            if not said:
                self._finish(self._lifeline.fileno())
        with contextlib.suppress(BlockingIOError):
            while True:
                written = os.read(self._stderr, 64 * limits.KIB)
                if not written:
                    self._finish(self._stderr)
                    break
                self._forward(written)

    def pop_finished(self) -> set[int]:
        """Descriptors that nothing comes from any more."""
        finished, self._finished = self._finished, set()
        return finished

    def exit_code(self) -> int | None:
        """How it ended; None while it has not."""
        return self._process.poll()

    def evidence(self, code: int) -> str:
        """What is left of it: how it ended, and the last that it wrote, with the dump of a fatal signal in it."""
        self.listen()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{how}\n{self.last_output}"[: limits.EVIDENCE_CHARS_MAX]

    def stop(self) -> None:
        """Let it end, once it is idle."""
        with contextlib.suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_RDWR)

    def end(self, until_s: float) -> None:
        """See that it ends, by then or at once."""
        try:
            self._process.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.listen()
        self.close()

    def close(self) -> None:
        """Let go of it; it has ended."""
        self._lifeline.close()
        os.close(self._stderr)
        os.close(self._pidfd)
        self._open.clear()

    def _finish(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.discard(descriptor)
            self._finished.add(descriptor)

    def _forward(self, written: bytes) -> None:
        text = written.decode("utf-8", "replace")
        self.last_output = (self.last_output + text)[-(limits.EVIDENCE_CHARS_MAX // 2) :]
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a program may have no stderr
            sys.stderr.write(text)


def _file_of(data: bytes) -> int:
    """A file without a name that holds them."""
    descriptor = os.memfd_create("stepwell-given", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor

"""`LocalRuntime`: a manager inside the test's own process, which starts in a few milliseconds.

It is the real manager: loop, state, store and shared memory are those of a manager process, behind a real socket, so a
client cannot tell the difference. It runs in a thread of its own, because a blocking call waits in the kernel for its
answer. So threads, `asyncio` programs and other processes can be its clients.

The socket has no name in the file system: it is made in a private directory that is removed at once, and is reached
through a descriptor in `/proc`. A test that is killed therefore leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from msgspec.structs import asdict, replace

from stepwell import limits
from stepwell.client.client import Client, connect
from stepwell.client.session.tokens import counter
from stepwell.clock import StateClock
from stepwell.domain.checks import require_instance
from stepwell.domain.tiers.model import TierBudget
from stepwell.errors import InvalidArgument, NotOwner, RuntimeFault
from stepwell.manager.process import Settings, opened, resume
from stepwell.storage.store import Durability
from stepwell.telemetry import Logger, LogLevel
from stepwell.testing.clock import Clock, ManagerClock
from stepwell.testing.faults import Faults
from stepwell.testing.local_loop import LocalLoop, ManagerKilled
from stepwell.testing.mailbox import Mailbox
from stepwell.transport.address import listen, private_directory

if TYPE_CHECKING:  # most tests need no strategy, and importing strategies doubles the time of a start
    from stepwell.strategies.registry import Registry
    from stepwell.testing.worker import LocalWorker


class LocalRuntime:
    """A manager for one test, with its clients. Any thread may use it.

    - `clock`: the time of the manager; by default that of the machine.
    - `data_dir`: where the state is stored, so that it survives `kill()`. An acknowledged write is in the kernel, but
      need not be on disk.
    - `strategies`: offered besides the built-in and installed ones.
    - `workers`: 1, or 0 for none. The worker is a thread of this process that starts with the first task, and runs one
      task at a time.
    - `read_index`: clients read hot fragments without a request. A fault that is armed for reads needs False.
    - `faults`: the faults that a test can arm.

    The process that made it owns it: a forked child cannot close it, and it cannot be pickled.
    """

    def __init__(
        self,
        *,
        budget: TierBudget | None = None,
        clock: Clock | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        strategies: Iterable[object] = (),
        workers: int = 1,
        encoding: str | None = None,
        read_index: bool = True,
        log_level: LogLevel = LogLevel.WARNING,
    ) -> None:
        if workers not in {0, 1}:
            raise InvalidArgument(f"workers is 0 or 1, not {workers!r}: for more, use stepwell.Runtime.start()")
        require_instance(budget, (TierBudget, type(None)), "budget is a stepwell.TierBudget")
        require_instance(clock, (Clock, type(None)), "clock is a stepwell.testing.Clock")
        if encoding is not None:
            counter(encoding)  # raises now, in the caller's thread, if there is no such encoding
        self.faults = Faults()
        self.restarts = 0
        self._owner = os.getpid()
        self._clock = clock
        self._log = Logger(log_level, pid=self._owner)
        self._extra_strategies = [*strategies]
        self._registry: Registry | None = None
        if self._extra_strategies:
            self._loaded_registry()  # raises now, in the caller's thread, if one is no strategy
        self._has_worker = bool(workers)
        self._workers: list[LocalWorker] = []
        self._clients: list[Client] = []
        self._loop: LocalLoop | None = None
        self._problem: BaseException | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._mailbox = Mailbox()
        self._listener, self._socket_fd = _unnamed_listener()
        self._settings = Settings(
            address=f"/proc/{self._owner}/fd/{self._socket_fd}",
            budget=budget,
            encoding=encoding,
            log_level=log_level,
            data_dir=None if data_dir is None else str(Path(data_dir).absolute()),
            durability=Durability.PROCESS,
            read_index=read_index,
        )
        self._thread = threading.Thread(target=self._run, name="stepwell-local-manager", daemon=True)
        self._thread.start()
        self._await_start()
        if clock is not None:
            clock.follow(self._catch_up)

    def _await_start(self) -> None:
        """Wait until the manager serves; raise its error if it does not start."""
        with self._changed:
            self._changed.wait_for(lambda: self._loop is not None or self._problem is not None)
        if self._problem is not None:
            self._is_closed = True
            self._end_manager()

    @property
    def address(self) -> str:
        """The address of the manager for `stepwell.connect`, also in other processes of the same user."""
        return self._settings.address

    def client(self, projects: Iterable[str] | None = None, *, label: str = "") -> Client:
        """Return a new client. It is closed with this runtime, if not before."""
        client = connect(self.address, projects, label=label)
        client.belongs_to(self, self._is_durable)
        self._clients.append(client)
        return client

    def is_alive(self) -> bool:
        """Return True if there is a manager; it may have been killed."""
        return self._thread.is_alive()

    def kill(self) -> None:
        """Kill the manager as `kill -9` would: connections break, and unacknowledged requests are lost.

        With a data directory, another manager has taken its place when this returns; without one, there is none any
        more.
        """
        restarts = self.restarts
        self._mailbox.post(_raise_killed)
        with self._changed:
            self._changed.wait_for(lambda: self._loop is None or self.restarts > restarts)

    def close(self) -> None:
        """End the manager, its clients and its worker. Raise `AssertionError` if an armed fault did not happen."""
        if self._close():
            self.faults.check()

    def _close(self) -> bool:
        """Close everything, and return True the first time. A forked child does not close its parent's runtime."""
        if self._is_closed or self._owner != os.getpid():
            return False
        self._is_closed = True
        if self._clock is not None:
            self._clock.unfollow(self._catch_up)
        self.faults.release()
        with contextlib.ExitStack() as stack:
            stack.callback(self._end_manager)
            for worker in self._workers:
                stack.callback(worker.close)
            for client in self._clients:
                stack.callback(client.close)
        return True

    def _end_manager(self) -> None:
        """Stop the loop, wait for its thread, and raise the error with which it ended, if any."""
        self._mailbox.post(lambda: self._loop.stop("closed") if self._loop is not None else None)
        self._thread.join(limits.LOCAL_RUNTIME_END_SECONDS_MAX)
        os.close(self._socket_fd)
        if self._thread.is_alive():
            raise RuntimeFault("the manager did not end: its thread is still busy")
        if self._problem is not None:
            raise self._problem

    def _is_durable(self) -> bool:
        """Return True if clients may wait for another manager after this one died."""
        return self._settings.data_dir is not None and not self._is_closed

    def _catch_up(self) -> None:
        """Let the manager do all that is due, because the clock has advanced."""
        done = self._mailbox.post(lambda: self._loop.catch_up() if self._loop is not None else None)
        if not done.cancelled():
            done.result()

    def _run(self) -> None:
        """Run managers in this thread, one after the other, until the runtime is closed or one dies without a data
        directory.
        """
        settings = self._settings
        try:
            while True:
                try:
                    self._run_manager(settings)
                except ManagerKilled:
                    if settings.data_dir is None:
                        return
                    # The stored budget counts: a client may have changed it.
                    settings = replace(settings, budget=None, must_exist=True)
                    continue
                return
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            self._problem = error
        finally:
            self._mailbox.close()
            self._listener.close()
            with self._changed:
                self._loop = None
                self._changed.notify_all()

    def _run_manager(self, settings: Settings) -> None:
        """Run one manager until it is closed or killed."""
        clock = StateClock if self._clock is None else partial(ManagerClock, self._clock)
        with contextlib.ExitStack() as stack:
            requests = stack.enter_context(opened(settings, self._log, clock))
            loop = LocalLoop(self._listener, requests, self._mailbox, self.faults, self._log)
            stack.callback(loop.close)
            stack.callback(requests.owner.index.invalidate)  # so that the manager after a kill need not wait
            loop.faulty_replies.ensure_worker = self._ensure_worker
            # They have joined an earlier manager, even if they do not know yet that it died.
            for worker in self._workers:
                worker.is_ready = False
            resume(settings, loop, requests)
            with self._changed:
                self.restarts += self._loop is not None
                self._loop = loop
                self._changed.notify_all()
            loop.run()

    def _ensure_worker(self) -> bool:
        """Return True if there is a worker, or if there will be none; otherwise start one, unless one is starting.

        Only the manager's thread calls it. Several workers in a row that ended before they were ready are the last:
        then requests are answered as without workers.
        """
        if not self._has_worker or self._is_closed:
            return True
        last = self._workers[-1] if self._workers else None
        if last is not None and (last.is_ready or last.problem is not None):
            return True
        if last is None or last.is_over:
            recent = self._workers[-limits.WORKER_STARTS_FAILED_MAX :]
            if len(recent) == limits.WORKER_STARTS_FAILED_MAX and not any(each.was_ready for each in recent):
                return True
            self._start_worker()
        return False

    def _start_worker(self) -> None:
        """Start a worker. Its requests do not count for faults."""
        from stepwell.testing.worker import LocalWorker  # noqa: PLC0415 - see above

        worker = LocalWorker(self.address, self._loaded_registry, lambda: self._mailbox.post(self._on_worker_change))
        self.faults.ignored.update(worker.session_ids)
        self._workers.append(worker)

    def _on_worker_change(self) -> None:
        """Serve the requests that wait for a worker, because one has started or ended; if one has
        ended, start another.
        """
        loop = self._loop
        if loop is not None and (loop.has_waiting or loop.has_queued_tasks) and self._ensure_worker():
            loop.serve_waiting()

    def _loaded_registry(self) -> Registry:
        """Return the strategies of the worker: built in, installed, and given by the test."""
        if self._registry is None:
            from stepwell.strategies.registry import Registry  # noqa: PLC0415 - see above

            self._registry = Registry()
            self._registry.load_entry_points()
            for problem in self._registry.problems:
                self._log.warning("strategy.not_loaded", **asdict(problem))
            for each in self._extra_strategies:
                self._registry.add(each)
        return self._registry

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._close()

    def __reduce__(self) -> tuple[object, ...]:
        raise NotOwner("a LocalRuntime stays in its process: send runtime.address and use stepwell.connect")

    def __repr__(self) -> str:
        return f"<stepwell.testing.LocalRuntime at {self.address!r}>"


def _raise_killed() -> None:
    raise ManagerKilled


def _unnamed_listener() -> tuple[socket.socket, int]:
    """Return a listening socket, and a descriptor of its path, which does not exist any more."""
    directory = private_directory()
    path = directory / "s"
    try:
        listener = listen(str(path))
        try:
            return listener, os.open(path, os.O_PATH | os.O_CLOEXEC)
        finally:
            path.unlink()
    finally:
        directory.rmdir()

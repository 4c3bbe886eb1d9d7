"""`Runtime`: a manager that belongs to a program, for as long as the program or a `with` block lasts.

The manager is a process of its own (`stepwell.process`). It does not run the user's `__main__`, so the same lines
work in an unguarded script, from `python -`, in a notebook and under pytest. The manager ends when the runtime is
closed or dropped, and when the program dies, however that happens: its socket to the program ends then.

With a data directory, a thread starts the next manager when one dies, on the same directory and at the same address,
and clients go on. Without one the state is lost with the manager.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from stepwell import limits
from stepwell.client.client import Client, unconnected
from stepwell.client.session.tokens import counter
from stepwell.domain.checks import require_instance
from stepwell.domain.tiers.model import TierBudget
from stepwell.errors import InvalidArgument, NotOwner, StartFailed, StepwellError
from stepwell.manager.process import STORE_FAILED, Settings
from stepwell.pool import pickling
from stepwell.pool.functions.executor import FunctionExecutor
from stepwell.pool.strategy.background_pool import BackgroundPool
from stepwell.pool.strategy.settings import PoolSettings
from stepwell.process import ChildProcess, describe_exit
from stepwell.protocol.messages import Refusal
from stepwell.storage.store import Durability
from stepwell.telemetry import Logger, LogLevel
from stepwell.transport import restart_lock
from stepwell.transport.address import private_directory
from stepwell.transport.restart_lock import RestartLock

_MANAGER_MODULE: Final = "stepwell.manager.process"


class Runtime:
    """A running manager with its workers. `Runtime.start()` makes one.

    It belongs to the process that started it, and any thread of that process may use it. A forked child can use its
    `address` and `client`, but cannot close it. When the program closes or drops it, or ends, the manager and the
    workers end too.
    """

    def __init__(self, supervisor: _ManagerSupervisor, pool: BackgroundPool | None = None) -> None:
        self._supervisor = supervisor
        self._pool = pool
        self._executors: weakref.WeakSet[FunctionExecutor] = weakref.WeakSet()
        releases = [supervisor.release] if pool is None else [pool.release, supervisor.release]
        for release in releases:
            weakref.finalize(self, release).atexit = False  # the end of the program ends them anyway

    @classmethod
    def start(
        cls,
        *,
        workers: int | None = None,
        strategies: Iterable[object] = (),
        data_dir: str | os.PathLike[str] | None = None,
        durability: str | None = None,
        budget: TierBudget | None = None,
        address: str | None = None,
        encoding: str | None = None,
        log_level: LogLevel | str = LogLevel.WARNING,
        spin_s: float = limits.SPIN_SECONDS,
        read_index: bool = True,
    ) -> Self:
        """Start a manager and its workers, wait until they serve, and return the runtime.

        `workers` is the number of processes that run strategies, by default one for each core that this program may
        use; 0 is none. `strategies` are strategies of this program that the workers get besides the built-in and the
        installed ones: objects or classes with the methods of `stepwell.Strategy`, or functions
        `f(request, view, budget_tokens)`.

        With `data_dir` the manager stores its state there, and is restarted when it dies. An acknowledged write is
        then on disk, or, with `durability="process"`, in the operating system's cache: safe from everything but a
        crash of the machine. Without `data_dir` the state is in memory, and ends with the manager.

        The manager logs to this program's stderr. `budget` limits the tiers, by default as stored in `data_dir`.
        `address` is the path of the manager's socket, by default a new one in a private directory. `encoding` names
        the vocabulary in which clients count tokens, by default the one stored in `data_dir`, or `o200k_base`.
        `spin_s` is how long the manager polls for more requests before it sleeps. With `read_index`, clients read hot
        fragments from shared memory without a request, where the processor is an x86-64.

        Raise InvalidArgument for bad arguments, most of them before any process is started, StartFailed if a process
        does not start in time or ends while it starts, OSError if it cannot be started at all, and the error that the
        manager reports, such as StoreFailed.
        """
        level = _log_level(log_level)
        durability_level = _durability(durability, data_dir)
        if encoding is not None:
            counter(encoding)  # raises InvalidArgument if there is no such encoding
        require_instance(budget, (TierBudget, type(None)), "budget is a stepwell.TierBudget")
        count, pickled = _pool_arguments(workers, strategies)
        settings = Settings(
            address=str(Path(address).absolute()) if address else str(private_directory() / "manager.sock"),
            budget=budget,
            encoding=encoding,
            log_level=level,
            data_dir=None if data_dir is None else str(Path(data_dir).absolute()),
            durability=durability_level,
            spin_s=spin_s,
            read_index=read_index,
            private_directory=address is None,
            parent_pid=os.getpid(),
        )
        supervisor = _ManagerSupervisor(settings)
        try:
            pool = PoolSettings(address=settings.address, workers=count, pickled_strategies=pickled, log_level=level)
            return cls(supervisor, BackgroundPool(pool) if count else None)
        except BaseException:
            supervisor.close()
            raise

    @property
    def address(self) -> str:
        """The path of the manager's socket, for `stepwell.connect` in other processes of this machine."""
        return self._supervisor.settings.address

    @property
    def pid(self) -> int:
        """The number of the manager's process. A restart changes it."""
        return self._supervisor.process.pid

    @property
    def restarts(self) -> int:
        """The number of restarts of the manager since `start`."""
        return self._supervisor.restarts

    @property
    def workers(self) -> tuple[int, ...]:
        """The numbers of the processes that run strategies at this moment."""
        return () if self._pool is None else self._pool.status.pids

    def client(self, projects: Iterable[str] | None = None, *, label: str = "") -> Client:
        """Return a new client, as `stepwell.connect(runtime.address, projects, label=label)` does.

        It waits for a restart.

        Raise RuntimeLost if the manager is gone and is not restarted.
        """
        client = unconnected(self.address, projects, label=label)
        client.belongs_to(self, self._supervisor.is_restarting)
        client.open()
        return client

    def executor(self, max_workers: int | None = None) -> FunctionExecutor:
        """Return a new executor, which calls functions in processes of its own; by default one for each core.

        It is shut down with this runtime, which waits for the submitted calls.
        """
        executor = FunctionExecutor(max_workers)
        self._executors.add(executor)
        return executor

    def is_alive(self) -> bool:
        """Return True if the manager is running; False between its death and its restart. Raise NotOwner in a fork."""
        if self._supervisor.owner_pid != os.getpid():
            raise NotOwner("this Runtime belongs to the process that started it: use stepwell.connect(address)")
        return self._supervisor.process.exit_code() is None

    def close(self) -> None:
        """Shut down the executors, end the workers and the manager, and remove the socket. It may be called twice.

        The manager first answers the requests that have arrived. The executors come before it, because the calls that
        they run may need it.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._supervisor.close)
            if self._pool is not None:
                stack.callback(self._pool.close)
            for executor in [*self._executors]:
                stack.push(executor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):  # the user does not want to wait for calls
            for executor in [*self._executors]:
                executor.kill_workers()
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        raise NotOwner("a Runtime stays in the process that started it: send runtime.address and use stepwell.connect")

    def __repr__(self) -> str:
        return f"<stepwell.Runtime at {self.address!r}, process {self.pid}>"


class _ManagerSupervisor:
    """Owns the manager's process. With a data directory, its thread restarts a manager that dies.

    The thread refers to this object and not to the `Runtime`, so that a runtime that the program drops ends. There is
    no lock, because the finalizer of a `Runtime` may run in any thread at any time. Instead, `release` sets
    `_is_closing` and then disconnects the present manager, and a restart stores the new manager and then looks at
    `_is_closing`. So at least one of the two sees the other.

    The restart lock of the address is held until the thread ends. Clients of other processes know by it that they
    should wait, and the thread writes into it why it gives up.
    """

    def __init__(self, settings: Settings) -> None:
        self.owner_pid = os.getpid()
        self.settings = settings
        self.restarts = 0
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._died_at_s: deque[float] = deque(maxlen=limits.RESTARTS_MAX)
        self._log = Logger(settings.log_level, address=settings.address)
        self._lock: RestartLock | None = None
        self._cause: StepwellError | None = None  # why the last manager ended, or could not be started
        try:
            if settings.data_dir is not None:
                self._lock = RestartLock(settings.address)
            self.process = _start_manager(settings)
        except BaseException:
            self._release_address()
            raise
        try:
            _wait_until_served(self.process)
            if settings.data_dir is not None:
                # The next manager takes the budget from the directory, because clients may have changed it.
                self.settings = msgspec.structs.replace(settings, budget=None, must_exist=True)
                self._thread = threading.Thread(target=self._run, name="stepwell-manager-restarts", daemon=True)
                self._thread.start()
        except BaseException:
            self.close()
            raise

    def is_restarting(self) -> bool:
        """Return True if a manager that dies is started again."""
        if self.owner_pid != os.getpid():  # a forked child sees the thread of its parent only as it was at the fork
            return self._thread is not None
        return self._thread is not None and self._thread.is_alive() and not self._is_closing

    def release(self) -> None:
        """Tell the manager to end, without waiting for it. A forked child cannot end its parent's manager."""
        if self.owner_pid == os.getpid():
            self._is_closing = True
            self.process.disconnect()

    def close(self) -> None:
        """Tell the manager to end, and wait until it has. A manager that takes too long is killed."""
        if self.owner_pid != os.getpid():
            return
        self.release()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(limits.MANAGER_END_SECONDS_MAX)
            if self._thread.is_alive():
                self.process.kill()
                self._thread.join()
        _end_manager(self.process)
        self._release_address()

    def _release_address(self) -> None:
        """Release the restart lock, and remove what is left at the address."""
        if self._lock is not None:
            self._lock.release()
            restart_lock.remove(self.settings.address)
        _remove_directory(self.settings)

    def _run(self) -> None:
        """Restart the manager whenever it dies, until the runtime is closed or a restart is of no use.

        The restart lock is released at the end, so that no client waits in vain.
        """
        assert self._lock is not None
        while self._restart_once(self._lock):
            pass
        self._lock.release()

    def _restart_once(self, lock: RestartLock) -> bool:
        """Wait for the end of the manager, and restart it. Return False if the runtime is closed or gives up."""
        self.process.wait()
        self._cause = _last_report(self.process) or self._cause
        code = _end_manager(self.process)
        if self._is_closing:
            return False
        if reason := self._reason_to_give_up(code):
            cause = self._cause.message if self._cause else describe_exit(code)
            self._log.error("manager.given_up", reason=reason, cause=cause)
            lock.write_cause(self._cause or StartFailed(f"{reason}, and the last one {describe_exit(code)}"))
            return False
        self._died_at_s.append(time.monotonic())
        self._log.warning("manager.died", exit_code=code)
        self._pause()
        try:
            self._restart()
        except (StepwellError, OSError) as error:
            self._log.warning("manager.not_restarted", reason=str(error))
            self._cause = error if isinstance(error, StepwellError) else StartFailed(str(error))
        else:
            self._cause = None
        return True

    def _pause(self) -> None:
        """Wait before a restart. The pause doubles with each death, because the cause may be over in a few seconds."""
        until_s = time.monotonic() + limits.RESTART_PAUSE_SECONDS * (2 ** len(self._died_at_s) - 2)
        while time.monotonic() < until_s and not self._is_closing:  # an Event has a lock; see the class
            time.sleep(limits.RECONNECT_PAUSE_SECONDS)

    def _reason_to_give_up(self, code: int) -> str | None:
        """Return why another manager would not fare better; None if it may."""
        if code == STORE_FAILED:
            return "its data directory cannot be used"
        is_at_limit = len(self._died_at_s) == limits.RESTARTS_MAX
        if is_at_limit and time.monotonic() - self._died_at_s[0] < limits.RESTARTS_SECONDS:
            return "it dies again and again"
        return None

    def _restart(self) -> None:
        """Start the next manager and wait until it serves. If it does not, nothing of it is left."""
        process = self.process = _start_manager(self.settings)
        if self._is_closing:
            process.disconnect()
        try:
            _wait_until_served(process)
        except BaseException:
            _end_manager(process)
            raise
        self.restarts += 1


def _start_manager(settings: Settings) -> ChildProcess:
    """Start a manager's process. Its socket is its lifeline: the manager ends when the socket does."""

    def encode(lifeline_fd: int) -> str:
        return msgspec.json.encode(msgspec.structs.replace(settings, lifeline_fd=lifeline_fd)).decode()

    return ChildProcess(_MANAGER_MODULE, encode)


def _wait_until_served(process: ChildProcess) -> None:
    """Wait until the manager serves; raise the error that it reports, or StartFailed if it ends or is not in time."""
    process.socket.settimeout(limits.MANAGER_START_SECONDS_MAX)
    try:
        report = _next_report(process)
    except TimeoutError:
        late = f"the manager did not start within {limits.MANAGER_START_SECONDS_MAX:g} s"
        raise StartFailed(late) from None
    process.socket.settimeout(None)
    if not report:
        code = _end_manager(process)
        raise StartFailed(f"the manager ended while starting, with exit code {code}; see its output above")
    if report != b"{}":
        raise msgspec.json.decode(report, type=Refusal).error()


def _next_report(process: ChildProcess) -> bytes:
    """Return the next report of the manager, without its end of line; empty at the end of the lifeline."""
    waiting = process.socket.recv(limits.MANAGER_REPORT_BYTES_MAX, socket.MSG_PEEK)
    line, end, _ = waiting.partition(b"\n")
    process.socket.recv(len(line) + len(end))
    return line


def _last_report(process: ChildProcess) -> StepwellError | None:
    """Return the error with which a manager that has ended reported its end; None if it was killed or ended well."""
    try:
        process.socket.settimeout(0)
        report = _next_report(process)
    except OSError:  # closed already
        return None
    return msgspec.json.decode(report, type=Refusal).error() if report else None


def _end_manager(process: ChildProcess) -> int:
    """Tell the manager to end, kill it if it takes too long, and return its exit code."""
    process.disconnect()
    code = process.end(time.monotonic() + limits.MANAGER_END_SECONDS_MAX)
    process.close()
    return code


def _remove_directory(settings: Settings) -> None:
    """Remove the private directory of the socket, which a killed manager has left."""
    if settings.private_directory:
        shutil.rmtree(Path(settings.address).parent, ignore_errors=True)


def _pool_arguments(workers: int | None, strategies: Iterable[object]) -> tuple[int, bytes | None]:
    """Return the number of workers and their pickled strategies, checked before any process is started."""
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    if not 0 <= count <= limits.WORKERS_MAX:
        raise InvalidArgument(f"workers is 0 to {limits.WORKERS_MAX}, not {workers!r}")
    given = [*strategies]
    if given:
        from stepwell.strategies.registry import Registry  # noqa: PLC0415 - its import takes as long as all others

        registry = Registry()
        for each in given:
            registry.add(each)
    try:
        return count, pickling.dumps(given) if given else None
    except Exception as error:
        raise InvalidArgument(f"a strategy cannot be sent to a worker: {error}") from error


def _log_level(given: LogLevel | str) -> LogLevel:
    """Return the level of that name; raise InvalidArgument with all the names."""
    try:
        return LogLevel(given)
    except ValueError:
        raise InvalidArgument(f"log_level is one of {', '.join(LogLevel)}, not {given!r}") from None


def _durability(given: str | None, data_dir: str | os.PathLike[str] | None) -> Durability:
    """Return the durability of acknowledged writes. Raise InvalidArgument if there is no directory to write to."""
    if data_dir is None and given is not None:
        raise InvalidArgument(
            "durability is that of a data directory: name one with data_dir=, or leave durability out"
        )
    if given is None:
        return Durability.DISK
    allowed = (Durability.DISK, Durability.PROCESS)
    if given not in allowed:
        raise InvalidArgument(f"durability is one of {', '.join(allowed)}, not {given!r}")
    return Durability(given)

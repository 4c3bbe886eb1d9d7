"""`Runtime`: a manager of one's own, for as long as a program or a `with` block lasts.

The manager is started as a process of its own from this package's own module, so that the user's `__main__` is never
imported again: the same lines work in an unguarded script, from `python -`, in a notebook and under pytest. It ends
when it is released, and when the program that started it dies, however that happens.

With a data directory, a manager that dies is started again on it, at the same address: clients carry on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
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
from stepwell.client.client import Client, connect
from stepwell.client.tokens import counter
from stepwell.domain.checks import require_instance
from stepwell.domain.fragment import TierBudget
from stepwell.errors import InvalidArgument, NotOwner, RuntimeLost, StartFailed, StepwellError
from stepwell.manager.process import STORE_FAILED, Settings
from stepwell.pool import pickling
from stepwell.pool.functions.executor import FunctionExecutor
from stepwell.pool.strategy.background_pool import BackgroundPool
from stepwell.pool.strategy.supervisor import PoolSettings
from stepwell.protocol.messages import Refusal
from stepwell.storage.port import Durability
from stepwell.telemetry import Logger, LogLevel
from stepwell.transport.address import private_directory

_START_SECONDS_MAX: Final = 30.0
_END_SECONDS_MAX: Final = limits.DRAIN_SECONDS_MAX + 5.0

# `-P` keeps the working directory off the path, where a user's `queue.py` would shadow the standard library's.
# What the program has on its path comes behind what the interpreter has by itself.
_BOOT: Final = (
    "import json, sys; sys.path += [each for each in json.loads(sys.argv[2]) if each not in sys.path]; "
    "from stepwell.manager.process import main; sys.exit(main(sys.argv[1]))"
)


class Runtime:
    """A running manager, owned by this process. Make one with `Runtime.start()`; safe from any number of threads."""

    def __init__(self, keeper: _Keeper, crew: BackgroundPool | None = None) -> None:
        self._keeper = keeper
        self._crew = crew
        self._executors: weakref.WeakSet[FunctionExecutor] = weakref.WeakSet()
        releases = [keeper.release] if crew is None else [crew.release, keeper.release]
        for release in releases:
            weakref.finalize(self, release).atexit = False  # at the end of the program it goes by itself

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
    ) -> Self:
        """Start a manager and its workers, and wait until they serve.

        `workers` processes run strategies, by default one for each core that this program may use; 0 is none.
        `strategies` are some of this program's own that they get besides those that are built in or installed: objects
        or classes with the methods of `stepwell.Strategy`, or functions `f(request, view, budget_tokens)`.

        With `data_dir` its state is kept there, and it is started again when it dies. What it has acknowledged is then
        on disk, or, with `durability="process"`, in the hands of the operating system: safe from everything but the
        end of the machine. Without `data_dir` the state is in memory, and ends with the manager.

        It logs to this program's stderr. `budget` is what the tiers may hold, by default what is kept in `data_dir`.
        `address` is the path of its socket, by default a new one in a private directory. `encoding` names the
        vocabulary in which its clients count tokens, by default the one kept in `data_dir`, or `o200k_base`. `spin_s`
        is how long it looks for more requests before it sleeps.
        """
        level = _log_level(log_level)
        kept = _durability(durability, data_dir)
        if encoding is not None:
            counter(encoding)  # or say now that there is no such encoding
        require_instance(budget, (TierBudget, type(None)), "budget is a stepwell.TierBudget")
        count, given = _orders(workers, strategies)
        settings = Settings(
            address=str(Path(address).absolute()) if address else str(private_directory() / "manager.sock"),
            budget=budget,
            encoding=encoding,
            log_level=level,
            data_dir=None if data_dir is None else str(Path(data_dir).absolute()),
            durability=kept,
            spin_s=spin_s,
            private_directory=address is None,
            parent_pid=os.getpid(),
        )
        keeper = _Keeper(settings)
        try:
            pool = PoolSettings(address=settings.address, workers=count, pickled_strategies=given, log_level=level)
            return cls(keeper, BackgroundPool(pool) if count else None)
        except BaseException:
            keeper.close()
            raise

    @property
    def address(self) -> str:
        """Where the manager listens: give it to other processes on this machine."""
        return self._keeper.settings.address

    @property
    def pid(self) -> int:
        """The manager's process; another one after a restart."""
        return self._keeper.life.process.pid

    @property
    def restarts(self) -> int:
        """How often the manager has died and come back."""
        return self._keeper.restarts

    @property
    def workers(self) -> tuple[int, ...]:
        """The processes that run strategies, at this moment."""
        return () if self._crew is None else self._crew.status.pids

    def client(self, projects: Iterable[str] | None = None) -> Client:
        """A client, as `stepwell.connect(runtime.address, projects)` gives it; it waits for a restart."""
        projects = projects if projects is None or isinstance(projects, str) else [*projects]
        until_s = time.monotonic() + limits.RECONNECT_SECONDS_MAX
        while True:
            try:
                client = connect(self.address, projects)
            except RuntimeLost:
                if not self._keeper.is_keeping() or time.monotonic() >= until_s:
                    raise
                time.sleep(limits.RECONNECT_PAUSE_SECONDS)
            else:
                client.belongs_to(self, self._keeper.is_keeping)
                return client

    def executor(self, max_workers: int | None = None) -> FunctionExecutor:
        """A new executor, which calls functions in processes of their own; by default as many as there are cores.

        It is shut down with this Runtime: what was submitted to it is finished first.
        """
        executor = FunctionExecutor(max_workers)
        self._executors.add(executor)
        return executor

    def is_alive(self) -> bool:
        """Whether the manager is running; between its death and its restart it is not."""
        if self._keeper.owner != os.getpid():
            raise NotOwner("this Runtime belongs to the process that started it: use stepwell.connect(address)")
        return self._keeper.life.process.poll() is None

    def close(self) -> None:
        """Stop the manager, after it has answered what has arrived, and remove its socket. Twice is as good as once.

        Its executors are shut down before, because what they run may need it.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._keeper.close)
            if self._crew is not None:
                stack.callback(self._crew.close)
            for executor in [*self._executors]:
                stack.push(executor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):  # nobody wants to wait for what is still running
            for executor in [*self._executors]:
                executor.kill_workers()
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        raise NotOwner("a Runtime stays in the process that started it: send runtime.address and use stepwell.connect")

    def __repr__(self) -> str:
        return f"<stepwell.Runtime at {self.address!r}, process {self.pid}>"


class _Keeper:
    """Keeps a manager for as long as it is wanted: with a data directory, a thread starts the next one when one dies.

    The thread knows the keeper and not the `Runtime`, so that one that is dropped ends. No lock: whoever wants the end
    says so and then releases the manager that there is; whoever starts one enters it and then looks whether it is
    still wanted. One of the two sees the other.
    """

    def __init__(self, settings: Settings) -> None:
        self.owner = os.getpid()
        self.settings = settings
        self.restarts = 0
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._died_at_s: deque[float] = deque(maxlen=limits.RESTARTS_MAX)
        self._log = Logger(settings.log_level, address=settings.address)
        try:
            self.life = _Life(settings)
        except BaseException:
            _remove_directory(settings)
            raise
        try:
            self.life.await_start()
            if settings.data_dir is not None:
                # What was chosen since then is kept.
                self.settings = msgspec.structs.replace(settings, budget=None, must_exist=True)
                self._thread = threading.Thread(target=self._keep, name="stepwell-keeper", daemon=True)
                self._thread.start()
        except BaseException:
            self.close()
            raise

    def is_keeping(self) -> bool:
        """Whether a manager that dies is started again."""
        if self.owner != os.getpid():  # the parent of this process does, as far as can be seen from here
            return self._thread is not None
        return self._thread is not None and self._thread.is_alive() and not self._is_closing

    def release(self) -> None:
        """Let the manager end, without waiting for it."""
        if self.owner == os.getpid():  # a forked child has no say in its parent's runtime
            self._is_closing = True
            self.life.release()

    def close(self) -> None:
        """Let the manager end, and see that it does."""
        if self.owner != os.getpid():
            return
        self.release()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(_END_SECONDS_MAX)
            if self._thread.is_alive():
                self.life.process.kill()
                self._thread.join()
        self.life.end()
        _remove_directory(self.settings)

    def _keep(self) -> None:
        while True:
            code = self.life.process.wait()
            self.life.end()
            if self._is_closing or not self._is_worth_it(code):
                return
            self._pause()
            try:
                self._restart()
            except (StepwellError, OSError) as error:
                self._log.warning("manager.not_restarted", reason=str(error))

    def _pause(self) -> None:
        """The longer, the more often it died: what keeps a manager from starting may be over in a few seconds."""
        until_s = time.monotonic() + limits.RESTART_PAUSE_SECONDS * (2 ** len(self._died_at_s) - 2)
        while time.monotonic() < until_s and not self._is_closing:  # a lock would be one that a finalizer may need
            time.sleep(limits.RECONNECT_PAUSE_SECONDS)

    def _is_worth_it(self, code: int) -> bool:
        """Whether another manager would fare better."""
        now_s = time.monotonic()
        if code == STORE_FAILED:
            self._log.error("manager.given_up", reason="its data directory cannot be used", exit_code=code)
            return False
        often = len(self._died_at_s) == limits.RESTARTS_MAX
        if often and now_s - self._died_at_s[0] < limits.RESTARTS_SECONDS:
            self._log.error("manager.given_up", reason="it dies again and again", exit_code=code)
            return False
        self._died_at_s.append(now_s)
        self._log.warning("manager.died", exit_code=code)
        return True

    def _restart(self) -> None:
        life = self.life = _Life(self.settings)
        if self._is_closing:
            life.release()
        try:
            life.await_start()
        except BaseException:
            life.end()
            raise
        self.restarts += 1


class _Life:
    """One process of a manager, and its lifeline: a socket whose end is the end of the process."""

    def __init__(self, settings: Settings) -> None:
        self._guard = threading.RLock()  # the finalizer of a Runtime may run anywhere, here too
        self._lifeline, theirs = socket.socketpair()
        try:
            with theirs:
                self.process = _spawn(msgspec.structs.replace(settings, lifeline_fd=theirs.fileno()))
        except BaseException:
            self._lifeline.close()
            raise

    def await_start(self) -> None:
        """Wait until it serves, or raise why it does not."""
        self._lifeline.settimeout(_START_SECONDS_MAX)
        try:
            told = self._lifeline.recv(64 * limits.KIB)
        except TimeoutError:
            raise StartFailed(f"the manager did not start within {_START_SECONDS_MAX:g} s") from None
        self._lifeline.settimeout(None)
        if not told:
            code = self.end()
            raise StartFailed(f"the manager ended while starting, with exit code {code}; see its output above")
        if told != b"{}":
            raise msgspec.json.decode(told, type=Refusal).error()

    def release(self) -> None:
        """Let it end."""
        with self._guard, contextlib.suppress(OSError):  # it may be closed
            self._lifeline.shutdown(socket.SHUT_RDWR)  # seen even while a forked child holds a copy

    def end(self) -> int:
        """Let it end, and see that it does; its exit code."""
        self.release()
        with self._guard:
            self._lifeline.close()
        try:
            return self.process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def _spawn(settings: Settings) -> subprocess.Popen[bytes]:
    assert settings.lifeline_fd is not None
    path = json.dumps([str(Path(each).absolute()) for each in sys.path if each])
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, msgspec.json.encode(settings).decode(), path],
        stdin=subprocess.DEVNULL,
        pass_fds=(settings.lifeline_fd,),
        process_group=0,  # a terminal's Ctrl-C is for the program; when that ends, so does the manager
    )


def _remove_directory(settings: Settings) -> None:
    if settings.private_directory:
        shutil.rmtree(Path(settings.address).parent, ignore_errors=True)


def _orders(workers: int | None, strategies: Iterable[object]) -> tuple[int, bytes | None]:
    """How many workers, and what they are given: whatever cannot be sent is said before anything is started."""
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    if not 0 <= count <= limits.WORKERS_MAX:
        raise InvalidArgument(f"workers is 0 to {limits.WORKERS_MAX}, not {workers!r}")
    given = [*strategies]
    if given:
        from stepwell.strategies.registry import Registry  # noqa: PLC0415 - it takes as long as all else together

        registry = Registry()
        for each in given:
            registry.add(each)
    try:
        return count, pickling.dumps(given) if given else None
    except Exception as error:
        raise InvalidArgument(f"a strategy cannot be sent to a worker: {error}") from error


def _log_level(given: LogLevel | str) -> LogLevel:
    try:
        return LogLevel(given)
    except ValueError:
        raise InvalidArgument(f"log_level is one of {', '.join(LogLevel)}, not {given!r}") from None


def _durability(given: str | None, data_dir: str | os.PathLike[str] | None) -> Durability:
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

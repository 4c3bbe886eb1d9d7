"""The manager as a process: from settings to a listening socket, and an end that leaves nothing behind.

`serve` opens the store, recovers the state, listens, and runs the loop until one of three things happens: a signal, the
end of the lifeline (a socket whose other end the starting program holds), or the death of the parent process. The
lifeline alone is not enough, because a child that the program forked inherits the other end and keeps it open.

The process is prepared for a long life: the descriptor limit is raised, the garbage collector does not scan old
objects, and freed buffers go back to the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from stepwell import limits
from stepwell.clock import StateClock
from stepwell.domain.tiers.model import TierBudget
from stepwell.errors import StartFailed, StepwellError, StoreDamaged, StoreFailed
from stepwell.manager.farewell import cause_of, farewell, reject_waiting
from stepwell.manager.loop import Loop
from stepwell.manager.request_handler import RequestHandler
from stepwell.manager.state_owner import StateOwner
from stepwell.protocol.fragment_index import is_supported
from stepwell.protocol.messages import Refusal
from stepwell.storage.files.directory import DataDirectory
from stepwell.storage.files.store_files import StoreFiles
from stepwell.storage.null_store import NullStore
from stepwell.storage.sqlite import SqliteStore
from stepwell.storage.store import Durability, Store, StoredState
from stepwell.telemetry import Logger, LogLevel
from stepwell.transport import restart_lock
from stepwell.transport.address import listen, remove_dead_directories

STORE_FAILED: Final = 74
"""The exit code after a failure of the store (EX_IOERR). A supervisor does not restart the manager then."""

_M_TRIM_THRESHOLD: Final = -1  # malloc.h
_M_MMAP_THRESHOLD: Final = -3


class Settings(Struct, frozen=True, kw_only=True):
    """The parameters of a manager, which travel as JSON on the command line of a spawned process.

    Without a `data_dir` the state lives in memory only. `budget` and `encoding` are taken from the store if they are
    None; `budget_changes` overrides single fields of the budget. `must_exist` refuses to create a data directory,
    because a supervisor that restarts a manager must not replace a directory that has vanished by an empty one. With
    `private_directory` the directory of the socket belongs to this manager and is removed with it. `lifeline_fd` is the
    socket whose end of file means that the starting program is gone.
    """

    address: str
    budget: TierBudget | None
    budget_changes: dict[str, int] = field(default_factory=dict[str, int])
    log_level: LogLevel = LogLevel.WARNING
    log_json: bool = False
    encoding: str | None = None  # in which clients count tokens
    data_dir: str | None = None
    must_exist: bool = False
    durability: Durability = Durability.DISK
    spin_s: float = limits.SPIN_SECONDS
    read_index: bool = True  # clients read hot fragments without a request
    private_directory: bool = False
    lifeline_fd: int | None = None
    parent_pid: int | None = None

    def budget_after(self, stored: TierBudget) -> TierBudget:
        """Return the stored budget with the given overrides applied.

        Raise `InvalidArgument` if the result is no valid budget.
        """
        return TierBudget(**(msgspec.structs.asdict(self.budget or stored) | self.budget_changes))


def serve(settings: Settings, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT (unless that is ignored), or until the process that started the manager is gone.

    `on_ready` is called once clients can connect. Raise `StartFailed` if the manager cannot start, `StoreDamaged` if
    the data directory is damaged, and `StoreFailed` if it cannot be written any more. The socket is removed in any
    case. Peers are told the error that ends the manager, as far as that needs no waiting.
    """
    if not (hasattr(select, "epoll") and hasattr(os, "pidfd_open") and hasattr(os, "memfd_create")):
        raise StartFailed("a manager needs Linux (epoll, pidfds, sealed memfds); clients are on the same machine")
    log = logger(settings)
    settings.budget_after(TierBudget())  # an invalid budget is refused before anything is opened
    _raise_descriptor_limit()
    _tune_garbage_collector()
    _tune_allocator()
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_directory, settings)
        signals = stack.enter_context(_signals(settings))
        listener = stack.enter_context(listen(settings.address))
        stack.enter_context(farewell(lambda last: reject_waiting(listener, last)))
        if removed := remove_dead_directories():
            log.info("sockets.removed", directories=removed)
        stack.callback(_remove_socket, settings)
        requests = stack.enter_context(opened(settings, log))
        loop = Loop(listener, requests, log=log, signals=signals, spin_s=settings.spin_s)
        stack.callback(loop.close)
        stack.enter_context(farewell(loop.send_farewell))
        resume(settings, loop, requests)
        log.info("manager.started", address=settings.address)
        on_ready()
        loop.run()
    log.info("manager.stopped")


@contextlib.contextmanager
def opened(
    settings: Settings, log: Logger, clock: Callable[[int], StateClock] = StateClock
) -> Generator[RequestHandler]:
    """Yield the handler of requests to the recovered state. The store and its memory are closed at the end.

    `clock` makes the clock of the state from the latest stored time; tests pass one of their own.
    """
    with contextlib.ExitStack() as stack:
        store = open_store(settings)
        stack.callback(store.close)
        owner = StateOwner(settings.budget_after(TierBudget()), store, has_index=settings.read_index and is_supported())
        stack.callback(owner.close)
        yield RequestHandler(owner, clock(owner.stored.clock_ms if owner.stored else 0), log)


def resume(settings: Settings, loop: Loop, requests: RequestHandler) -> None:
    """Continue where an earlier manager ended, if there was one. Commit that before the state is served."""
    owner = requests.owner
    if owner.stored is not None:
        loop.housekeeping.resume(settings.budget_after(_budget_of(owner.stored)), owner.stored)
        loop.restore_sessions(owner.stored)
        owner.stored = None  # nothing needs it any more, and it is as large as the state
    owner.journal.commit()
    _wait_for_readers(owner.journal.store)


def _wait_for_readers(store: Store) -> None:
    """Wait until no client may read any more what the manager before has published in shared memory.

    Only a manager that died a moment ago is waited for. No write may be acknowledged before, because a client could
    then read what was there before that write.
    """
    left_ns = store.predecessor_valid_until_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    if left_ns > 0:
        time.sleep(min(left_ns, limits.INDEX_VALID_MS * 1_000_000) / 1e9)


def logger(settings: Settings) -> Logger:
    """Return the logger of this manager."""
    return Logger(settings.log_level, as_json=settings.log_json, pid=os.getpid())


def open_store(settings: Settings) -> Store:
    """Return the store that the settings ask for. It holds the lock of the data directory until it is closed."""
    if settings.data_dir is None:
        return NullStore(settings.encoding)
    directory = DataDirectory(settings.data_dir, settings.address, must_exist=settings.must_exist)
    try:
        return SqliteStore(StoreFiles(directory), settings.durability, settings.encoding)
    except BaseException:
        directory.close()
        raise


def _budget_of(stored: StoredState) -> TierBudget:
    """Return the stored budget, or the default one for a store without."""
    return next((row for row in stored.rows if isinstance(row, TierBudget)), TierBudget())


def main(encoded: str) -> int:
    """Serve for a `Runtime`, and report over the lifeline how the start went, and why the manager ended.

    A report is a line: an empty object when the manager serves, and the error that ends it. Return the exit code.
    """
    settings = msgspec.json.decode(encoded, type=Settings)
    assert settings.lifeline_fd is not None
    with contextlib.suppress(RuntimeError):  # a daemon has no standard error
        faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, which then closes the lifeline
    with socket.socket(fileno=settings.lifeline_fd) as lifeline:
        try:
            serve(settings, on_ready=lambda: _report(lifeline, b"{}"))
        except BaseException as error:
            _report(lifeline, msgspec.json.encode(Refusal.of(cause_of(error), 0)))
            if not isinstance(error, StepwellError):
                raise
            return STORE_FAILED if isinstance(error, StoreFailed | StoreDamaged) else 1
    return 0


def _report(lifeline: socket.socket, report: bytes) -> None:
    """Send a report to the starting program, which may be gone already."""
    with contextlib.suppress(OSError):
        lifeline.sendall(report + b"\n")


@contextlib.contextmanager
def _signals(settings: Settings) -> Generator[dict[int, str]]:
    """Yield the descriptors that tell the loop to stop, each with its reason.

    Signal handlers do nothing themselves: the interpreter writes a byte to the wakeup descriptor, which the loop polls.
    """
    parent = _parent_pidfd(settings.parent_pid)
    reader, writer = socket.socketpair()
    writer.setblocking(False)  # noqa: FBT003
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    stopping = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        stopping.append(signal.SIGINT)
    handlers = {each: signal.signal(each, _wake) for each in stopping}
    found = {reader.fileno(): "signal"}
    if settings.lifeline_fd is not None:
        found[settings.lifeline_fd] = "released"
    if parent is not None:
        found[parent] = "orphaned"
    try:
        yield found
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(previous)
        reader.close()
        writer.close()
        if parent is not None:
            os.close(parent)


def _wake(_signal: int, _frame: object) -> None:
    """Replace the default action of a signal.

    The interpreter then writes to the wakeup descriptor, which the loop polls.
    """


def _parent_pidfd(pid: int | None) -> int | None:
    """Return a descriptor that becomes readable when the parent process dies.

    The lifeline alone does not tell, because children that the parent has forked hold it too. Raise `StartFailed` if
    the parent is gone already. The parent's id is compared after the pidfd was opened, because the pid may have been
    reused in between.
    """
    if pid is None:
        return None
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        if os.getppid() == pid:
            return pidfd
        os.close(pidfd)
    raise StartFailed("the process that started this manager is gone already")


def _remove_socket(settings: Settings) -> None:
    """Remove the socket, so that a client finds no address without a manager."""
    with contextlib.suppress(OSError):
        Path(settings.address).unlink()


def _remove_directory(settings: Settings) -> None:
    """Remove the private directory of the socket, because the program that made it may be gone by now.

    The restart lock of a program that is gone, or has released the manager, is removed as well.
    """
    if _is_released(settings):
        restart_lock.remove(settings.address)
    if settings.private_directory:
        with contextlib.suppress(OSError):
            Path(settings.address).parent.rmdir()


def _is_released(settings: Settings) -> bool:
    """Return True if the starting program has ended the lifeline, on which it never sends anything, or has died."""
    if settings.lifeline_fd is None:
        return False
    lifeline = select.poll()  # `select.select` would refuse descriptors above 1023
    lifeline.register(settings.lifeline_fd, select.POLLIN)
    return settings.parent_pid not in {None, os.getppid()} or bool(lifeline.poll(0))


def _raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors, as far as the hard one and `limits.DESCRIPTORS_MAX` allow.

    The bounds of peers and client processes follow from it (see `acceptor`). The usual soft limit protects programs
    that use select(), which this one does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, limits.DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tune_allocator() -> None:
    """Make glibc return freed buffers of the size of a frame to the system. By default it adapts and retains them."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, limits.MALLOC_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, limits.MALLOC_KEPT_BYTES)


def _tune_garbage_collector() -> None:
    """Collect young objects only. A full collection would take time in proportion to the number of fragments.

    Rows and entries contain no cycles and are freed by reference counting. Young cycles, for example of exceptions, are
    still collected; objects that survive one collection are frozen and never scanned again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(limits.YOUNG_OBJECTS, 1_000_000, 1_000_000)
    gc.callbacks.append(_freeze_survivors)


def _freeze_survivors(phase: str, _info: object) -> None:
    """Move the objects that survived a collection out of the collector's sight."""
    if phase == "stop":
        gc.freeze()

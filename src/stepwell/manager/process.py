"""The manager as a process: settings in, a listening socket out, and an end that leaves nothing behind."""

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
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, field

from stepwell import limits
from stepwell.domain.tiers.model import TierBudget
from stepwell.errors import StartFailed, StepwellError, StoreDamaged, StoreFailed
from stepwell.manager.loop import Loop
from stepwell.manager.request_handler import RequestHandler
from stepwell.manager.state_owner import StateClock, StateOwner
from stepwell.protocol.messages import Refusal
from stepwell.storage.directory import DataDirectory
from stepwell.storage.null_store import NullStore
from stepwell.storage.sqlite import SqliteStore
from stepwell.storage.store import Durability, Store, StoredState
from stepwell.telemetry import Logger, LogLevel
from stepwell.transport.address import listen

STORE_FAILED: Final = 74  # EX_IOERR: starting again would not help

_M_TRIM_THRESHOLD: Final = -1  # malloc.h
_M_MMAP_THRESHOLD: Final = -3


class Settings(Struct, frozen=True, kw_only=True):
    """What a manager is started with."""

    address: str
    budget: TierBudget | None  # None: as it is kept, or by default
    budget_changes: dict[str, int] = field(default_factory=dict[str, int])  # fields that are to be otherwise in that
    log_level: LogLevel = LogLevel.WARNING
    log_json: bool = False
    encoding: str | None = None  # in which clients count tokens; None: as it is kept, or by default
    data_dir: str | None = None  # None: the state is in memory alone
    must_exist: bool = False  # the data directory: a new one must not take the place of one that is gone
    durability: Durability = Durability.DISK  # of what is in the data directory
    spin_s: float = limits.SPIN_SECONDS
    private_directory: bool = False  # the socket's directory is ours alone, and goes with it
    lifeline_fd: int | None = None  # its end is the end of whoever started us
    parent_pid: int | None = None

    def budget_after(self, kept: TierBudget) -> TierBudget:
        """The budget to serve with where there was this one: what nobody has given stays as it is."""
        return TierBudget(**(msgspec.structs.asdict(self.budget or kept) | self.budget_changes))


def serve(settings: Settings, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM, or until whoever started us is gone."""
    if not (hasattr(select, "epoll") and hasattr(os, "pidfd_open") and hasattr(os, "memfd_create")):
        raise StartFailed("a manager needs Linux (epoll, pidfds, sealed memfds); clients are on the same machine")
    log = logger(settings)
    settings.budget_after(TierBudget())  # refused, if it is, before anything is opened
    _raise_descriptor_limit()
    _tune_garbage_collector()
    _tune_allocator()
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_directory, settings)
        signals = stack.enter_context(_signals(settings))
        listener = stack.enter_context(listen(settings.address))
        stack.callback(_remove_socket, settings)
        requests = stack.enter_context(opened(settings, log))
        loop = Loop(listener, requests, log=log, signals=signals, spin_s=settings.spin_s)
        stack.callback(loop.close)
        resume(settings, loop, requests)
        log.info("manager.started", address=settings.address)
        on_ready()
        loop.run()
    log.info("manager.stopped")


@contextlib.contextmanager
def opened(
    settings: Settings, log: Logger, clock: Callable[[int], StateClock] = StateClock
) -> Generator[RequestHandler]:
    """The state as it is kept, and what turns requests to it into responses; a clock goes on from the given moment."""
    with contextlib.ExitStack() as stack:
        store = open_store(settings)
        stack.callback(store.close)
        owner = StateOwner(settings.budget_after(TierBudget()), store)
        stack.callback(owner.close)
        yield RequestHandler(owner, clock(owner.stored.clock_ms if owner.stored else 0), log)


def resume(settings: Settings, loop: Loop, requests: RequestHandler) -> None:
    """Go on where an earlier manager ended, if there was one; then it may be served."""
    owner = requests.owner
    if owner.stored is not None:
        loop.housekeeping.resume(settings.budget_after(_budget_of(owner.stored)), owner.stored)
        loop.restore_sessions(owner.stored)
    owner.journal.commit()


def logger(settings: Settings) -> Logger:
    """For what is to be said of this manager."""
    return Logger(settings.log_level, as_json=settings.log_json, pid=os.getpid())


def open_store(settings: Settings) -> Store:
    """Where the state is kept, if anywhere."""
    if settings.data_dir is None:
        return NullStore(settings.encoding)
    directory = DataDirectory(settings.data_dir, settings.address, must_exist=settings.must_exist)
    try:
        return SqliteStore(directory, settings.durability, settings.encoding)
    except BaseException:
        directory.close()
        raise


def _budget_of(kept: StoredState) -> TierBudget:
    return next((row for row in kept.rows if isinstance(row, TierBudget)), TierBudget())


def main(encoded: str) -> int:
    """Serve for a `Runtime`, and tell it over the lifeline how starting went."""
    settings = msgspec.json.decode(encoded, type=Settings)
    assert settings.lifeline_fd is not None
    with contextlib.suppress(RuntimeError):  # a daemon has no standard error
        faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C that reaches us all the same is for the program
    with socket.socket(fileno=settings.lifeline_fd) as lifeline:
        try:
            serve(settings, on_ready=lambda: _report_start(lifeline, b"{}"))
        except StepwellError as error:
            _report_start(lifeline, msgspec.json.encode(Refusal.of(error, 0)))
            if isinstance(error, StoreFailed | StoreDamaged):
                logger(settings).error("store.failed", reason=error.message)
                return STORE_FAILED
            return 1
    return 0


def _report_start(lifeline: socket.socket, how: bytes) -> None:
    """Say how starting went, if anybody still wants to know."""
    with contextlib.suppress(OSError):
        lifeline.sendall(how)


@contextlib.contextmanager
def _signals(settings: Settings) -> Generator[dict[int, str]]:
    """Descriptors that become readable when it is time to end."""
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
    """The byte that the interpreter writes to the wakeup descriptor is what the loop sees."""


def _parent_pidfd(pid: int | None) -> int | None:
    """The parent's death, seen even while a child that it forked still holds our lifeline."""
    if pid is None:
        return None
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        if os.getppid() == pid:
            return pidfd
        os.close(pidfd)
    raise StartFailed("whoever started this manager is gone already")


def _remove_socket(settings: Settings) -> None:
    with contextlib.suppress(OSError):
        Path(settings.address).unlink()


def _remove_directory(settings: Settings) -> None:
    """Whoever made it may be gone, even before we came up."""
    if settings.private_directory:
        with contextlib.suppress(OSError):
            Path(settings.address).parent.rmdir()


def _raise_descriptor_limit() -> None:
    """A peer costs two descriptors, and the usual soft limit is meant for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tune_allocator() -> None:
    """Buffers of a frame's size go back to the system when they are freed; glibc learns to keep them otherwise."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, limits.MALLOC_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, limits.MALLOC_KEPT_BYTES)


def _tune_garbage_collector() -> None:
    """Look at what is new once, and never at what has stayed: that would take as long as there are fragments.

    Rows and entries are freed by reference counting alone; young cycles, of exceptions say, are still collected.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(limits.YOUNG_OBJECTS, 1_000_000, 1_000_000)
    gc.callbacks.append(_freeze_survivors)


def _freeze_survivors(phase: str, _info: object) -> None:
    if phase == "stop":
        gc.freeze()

"""The first thing that a worker process does: bind itself to its parent, and limit what it may take of the machine.

The kernel announces the end of a parent to a child only if the child has asked for it. It announces the end of the
*thread* that started the child. So a worker has to be started from a thread that lives as long as the worker should.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import signal
from typing import Final

from msgspec import Struct

EXIT_ORPHANED: Final = 75
"""The exit code of a worker whose parent had ended before the worker could bind itself to it."""

_PR_SET_PDEATHSIG: Final = 1  # sys/prctl.h


class ProcessLimits(Struct, frozen=True, kw_only=True):
    """The limits of a worker process, and the parent with which it dies."""

    parent_pid: int
    max_memory_bytes: int | None = None  # of its data; shared memory that it maps does not count
    nice: int | None = None


def restrict_process(limits: ProcessLimits) -> None:
    """Bind this process to its parent, hold it to the limits, and leave Ctrl-C to the program.

    Raise OSError if the kernel refuses. If the parent has ended already, the process exits with EXIT_ORPHANED.
    """
    _bind_to_parent(limits.parent_pid)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the thread that started this process may have blocked signals
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.max_memory_bytes is not None:
        _limit_memory(limits.max_memory_bytes)
    if limits.nice is not None:
        os.nice(limits.nice)
    with contextlib.suppress(RuntimeError):  # a program without a stderr has no place for a traceback
        faulthandler.enable()


def _bind_to_parent(parent_pid: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not bind a worker to its parent")
    if os.getppid() != parent_pid:  # it ended before the kernel knew of our wish
        os._exit(EXIT_ORPHANED)


def _limit_memory(max_memory_bytes: int) -> None:
    """Make allocations beyond the limit a MemoryError.

    The limit is on data. A limit on the address space would forbid mapping the arena as well.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        max_memory_bytes = min(max_memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (max_memory_bytes, max_memory_bytes))

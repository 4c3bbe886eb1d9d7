"""What a worker does first, so that it cannot outlive whoever started it, nor take the machine along.

The kernel announces the end of a parent to its child only if the child has asked for it, and what it announces is
the end of the *thread* that started the child: whoever spawns a worker does so from a thread that lives as long.
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

EXIT_ORPHANED: Final = 75  # the exit code of a worker whose parent was gone before it could ask

_PR_SET_PDEATHSIG: Final = 1  # sys/prctl.h


class ProcessLimits(Struct, frozen=True, kw_only=True):
    """What a worker may take, and whose death is its own."""

    parent_pid: int
    max_memory_bytes: int | None = None  # of its data; shared memory that it maps does not count
    nice: int | None = None


def restrict_process(limits: ProcessLimits) -> None:
    """Bind this process to its parent and hold it to its limits."""
    _bind_to_parent(limits.parent_pid)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # what the spawning thread had blocked is not ours
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the program
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.max_memory_bytes is not None:
        _limit_memory(limits.max_memory_bytes)
    if limits.nice is not None:
        os.nice(limits.nice)
    with contextlib.suppress(RuntimeError):  # a program without a stderr has nowhere to write to
        faulthandler.enable()


def _bind_to_parent(parent_pid: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not bind a worker to its parent")
    if os.getppid() != parent_pid:  # it was gone before we could ask
        os._exit(EXIT_ORPHANED)


def _limit_memory(max_memory_bytes: int) -> None:
    """Past it an allocation is a `MemoryError`; an address-space limit would forbid mapping the arena as well."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        max_memory_bytes = min(max_memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (max_memory_bytes, max_memory_bytes))

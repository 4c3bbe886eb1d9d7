"""The kernel, as far as the manager's loop uses it: readiness of descriptors, and the processes of its clients.

`Kernel` asks the real one. The simulator of the tests has another implementation, in which one seed decides what is
ready, in which order, and which process has died. Sockets come from the listener; the store's files have a port of
their own (see `storage.store_files`). Time and randomness come from the modules `time` and `secrets`, which the
simulator replaces as a whole: a clock that is passed around can be forgotten by one caller, a replaced one cannot.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import socket
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

from stepwell import limits
from stepwell.boot import boot_id
from stepwell.transport.address import Credentials, credentials
from stepwell.transport.stream_socket import StreamSocket

OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""The errors that say that this process, or the machine, may open no more files."""

_SHARE: Final = 4
"""Peers and client processes may each use this part of all descriptors: one half is left for the rest."""


class DescriptorBounds(NamedTuple):
    """The numbers of peers and of client processes that the limit of descriptors allows."""

    peers_max: int
    processes_max: int


class Poller(Protocol):
    """The descriptors that the loop waits for. `select.epoll` says what each method does."""

    def register(self, fd: int, eventmask: int, /) -> None: ...
    def modify(self, fd: int, eventmask: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...
    def poll(self, timeout: float, /) -> list[tuple[int, int]]: ...
    def close(self) -> None: ...


class Kernel:
    """The real kernel. It has no state."""

    def __init__(self) -> None:
        _boot()  # later there may be no descriptor left to read it

    def poller(self) -> Poller:
        """Return a poller without descriptors. The caller closes it."""
        return select.epoll()

    def has_input(self, descriptors: Iterable[int]) -> bool:
        """Return True if one of these sockets has bytes that are unread, or its end."""
        unread = select.poll()  # a poller would have to be told of each, and closed
        for descriptor in descriptors:
            unread.register(descriptor, select.POLLIN)
        return bool(unread.poll(0))

    def credentials(self, accepted: StreamSocket) -> Credentials:
        """Return the process at the other end of an accepted socket."""
        return credentials(cast(socket.socket, accepted))

    def descriptor_bounds(self) -> DescriptorBounds:
        """Return the bounds for the present limit of descriptors of this process."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        share = limits.PEERS_MAX if soft == resource.RLIM_INFINITY else min(limits.PEERS_MAX, soft // _SHARE)
        return DescriptorBounds(share, share)

    def process_identity(self, pid: int) -> str:
        """Return a text that identifies a process: the boot of the machine and the start time.

        A pid alone does not identify a process, because the kernel gives it to another one later. The text is empty if
        the process is not visible. Raise `OSError` if this process, or the machine, has no descriptor left to look.
        """
        try:
            # The second field is the program's name in parentheses, which may contain spaces and parentheses itself.
            started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                raise
            return ""
        except IndexError:
            return ""
        return f"{_boot()}/{started}"

    def open_pidfd(self, pid: int) -> int | None:
        """Return a descriptor that becomes readable when the process dies, or None if the manager cannot see it.

        Raise `OSError` if this process, or the machine, has no descriptor left.
        """
        try:
            return os.pidfd_open(pid)
        except OSError as error:  # the process is gone, or in a namespace that the manager cannot see
            if error.errno in OUT_OF_DESCRIPTORS:
                raise
            return None

    def kill(self, pidfd: int) -> None:
        """Kill a process, unless it is dead already."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def close_pidfd(self, pidfd: int) -> None:
        """Close a descriptor of `open_pidfd`."""
        os.close(pidfd)


@cache
def _boot() -> str:
    """Return the id of the boot, which does not change while this process runs."""
    return boot_id()

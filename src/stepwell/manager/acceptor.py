"""The acceptor: new connections, the bounds on their number, and a manager without descriptors.

Every connection and every client process costs a descriptor. The kernel bounds the descriptors of the manager
(`ulimit -n`), and a manager without one can accept nothing, map no memory and open no file. Therefore the numbers of
peers and of client processes are bounded by shares of that limit, and the rest is reserved for the store, the segments
of shared memory and their passing.

The reserve may be used up all the same, by many segments for example. Then `accept` fails, and the peer would wait in
the kernel's queue without an answer, while the listener stays ready and the loop turns for nothing. So the acceptor
holds a spare descriptor. It gives the spare up to accept the connection, answers `Busy` with the reason, closes the
connection and opens the spare again.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from typing import Final, NamedTuple

from stepwell import limits
from stepwell.errors import Busy
from stepwell.manager.sessions import OUT_OF_DESCRIPTORS
from stepwell.protocol.codec import encode_frame
from stepwell.protocol.messages import Refusal, Rejected
from stepwell.telemetry import Logger
from stepwell.transport.address import Credentials, credentials

_SHARE: Final = 4
"""Peers and client processes may each use this part of all descriptors: one half is left for the rest."""


class DescriptorBounds(NamedTuple):
    """The numbers of peers and of client processes that the limit of descriptors allows."""

    peers_max: int
    processes_max: int


def descriptor_bounds() -> DescriptorBounds:
    """Return the bounds for the present limit of descriptors of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = limits.PEERS_MAX if soft == resource.RLIM_INFINITY else min(limits.PEERS_MAX, soft // _SHARE)
    return DescriptorBounds(share, share)


class Acceptor:
    """Accepts the connections of a listening socket, or refuses them with the reason.

    The loop owns it. The listener belongs to the loop's caller, the spare descriptor to the acceptor.
    """

    def __init__(self, listener: socket.socket, peers_max: int, log: Logger) -> None:
        self._listener = listener
        self.peers_max = peers_max
        self._log = log
        self._spare: int | None = None
        self.ensure_spare()

    def accept(self) -> tuple[socket.socket, Credentials] | None:
        """Return a new connection and the process at its other end, or None if there is none to be served.

        Connections of other users are closed. The permissions of the socket already keep them out; the kernel's
        credentials are checked as well, because the directory may have been made with other permissions. Raise
        `OSError` if nothing could be done: the caller does not ask again before the next housekeeping.
        """
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS and self._spare is not None:
                self._refuse(error)
                return None
            raise
        peer = credentials(accepted)
        if peer.uid != os.geteuid():
            self._log.warning("peer.refused", uid=peer.uid, pid=peer.pid)
            accepted.close()
            return None
        return accepted, peer

    def _refuse(self, shortage: OSError) -> None:
        """Accept one connection with the spare descriptor, answer `Busy` and close it. Raise `OSError` if it fails."""
        self.close()
        try:
            accepted, _ = self._listener.accept()
            with accepted, contextlib.suppress(OSError):  # the peer may have gone
                reason = f"the manager has no descriptor left ({shortage.strerror}): raise its `ulimit -n`, or try later"
                frame = bytearray()
                encode_frame(Rejected(Refusal.of(Busy(reason), 0)), frame)
                accepted.setblocking(False)  # noqa: FBT003
                accepted.send(frame)
        finally:
            self.ensure_spare()
        self._log.warning("peer.not_accepted", reason=shortage.strerror)

    def ensure_spare(self) -> None:
        """Open the spare descriptor, unless it is open. Without a free descriptor the next housekeeping tries again."""
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the spare descriptor."""
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare)

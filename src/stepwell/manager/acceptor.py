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

from stepwell.errors import Busy
from stepwell.manager.connection import READ, ClientConnection
from stepwell.manager.state_owner import StateOwner
from stepwell.manager.uploads import Uploads
from stepwell.protocol.codec import encode_frame
from stepwell.protocol.messages import Refusal, Rejected
from stepwell.telemetry import LimitedLogger
from stepwell.transport.kernel import OUT_OF_DESCRIPTORS, Kernel, Poller
from stepwell.transport.peer import Peer
from stepwell.transport.stream_socket import ListeningSocket, StreamSocket


class Acceptor:
    """Accepts the connections of a listening socket, or refuses them with the reason.

    The loop owns it. The listener and the epoll belong to the loop, the spare descriptor to the acceptor.
    """

    def __init__(
        self, listener: ListeningSocket, epoll: Poller, owner: StateOwner, kernel: Kernel, log: LimitedLogger
    ) -> None:
        self._listener = listener
        self._epoll = epoll
        self._owner = owner
        self._kernel = kernel
        self.peers_max = kernel.descriptor_bounds().peers_max
        self._log = log
        self._accepted = 0
        self._spare: int | None = None
        self.resume()

    def accept(self, now_s: float) -> ClientConnection | None:
        """Accept one connection and have the loop polled for it, or return None if there is none to be served.

        One connection is accepted per turn: the listener stays ready, and a burst of connections does not delay those
        that are being served. A failure suspends the listener until `resume`, because it would be ready again at once.
        """
        accepted: StreamSocket | None = None
        try:
            accepted = self._accept()
            if accepted is not None:
                self._epoll.register(accepted.fileno(), READ)
        except OSError as error:  # the peer has gone already, or the manager has no descriptor left
            self._log.warning("peer.not_accepted", reason=str(error))
            self._epoll.modify(self._listener.fileno(), 0)
            if accepted is not None:
                accepted.close()
            return None
        return None if accepted is None else self._connection(accepted, now_s)

    def _accept(self) -> StreamSocket | None:
        """Return an accepted socket, or None if it was refused for want of descriptors."""
        try:
            return self._listener.accept()[0]
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or self._spare is None:
                raise
            self._refuse(error)
            return None

    def _connection(self, accepted: StreamSocket, now_s: float) -> ClientConnection | None:
        """Return the connection of an accepted socket, or None if the peer is another user's process.

        The permissions of the socket already keep other users out; the kernel's credentials are checked as well,
        because the directory may have been made with other permissions.
        """
        peer = self._kernel.credentials(accepted)
        if peer.uid != os.geteuid():
            self._log.warning("peer.refused", uid=peer.uid, pid=peer.pid)
            accepted.close()
            return None
        self._accepted += 1
        return ClientConnection(self._accepted, Peer(accepted, now_s), peer, Uploads(self._owner), now_s)

    def _refuse(self, shortage: OSError) -> None:
        """Accept one connection with the spare descriptor, answer `Busy` and close it. Raise `OSError` if it fails."""
        self.close()
        try:
            accepted, _ = self._listener.accept()
            with accepted, contextlib.suppress(OSError):  # the peer may have gone
                reason = (
                    f"the manager has no descriptor left ({shortage.strerror}): raise its `ulimit -n`, or try later"
                )
                frame = bytearray()
                encode_frame(Rejected(Refusal.of(Busy(reason), 0)), frame)
                accepted.setblocking(False)  # noqa: FBT003
                accepted.send(frame)
        finally:
            self._open_spare()
        self._log.warning("peer.not_accepted", reason=shortage.strerror)

    def resume(self) -> None:
        """Accept again after a failure. The loop calls it at intervals."""
        self._open_spare()
        self._epoll.modify(self._listener.fileno(), READ)

    def _open_spare(self) -> None:
        """Open the spare descriptor, unless it is open. Without a free descriptor, `resume` tries it again."""
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the spare descriptor."""
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare)

"""`RawPeer`: a client that speaks the protocol by hand, correctly or not, as a test needs."""

import itertools
import os
import socket
import struct
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from stepwell.domain.commands import AnyCommand
from stepwell.domain.tiers.commands import StoreFragment
from stepwell.domain.tiers.model import Tier
from stepwell.protocol.codec import decode_from_manager, encode_frame
from stepwell.protocol.framing import Framer
from stepwell.protocol.messages import (
    VERSION,
    ClientMessage,
    Hello,
    IndexOpened,
    ManagerMessage,
    Request,
    Response,
    SegmentsAdded,
    SegmentsRetired,
    Welcome,
)
from stepwell.transport.peer import Peer
from tests.support.wait import PATIENCE_SECONDS

M = TypeVar("M", bound=ManagerMessage)

RECEIVE_BYTES = 1 << 16
DESCRIPTORS_MAX = 253
"""As many as the kernel passes at once."""


def frame(message: ClientMessage) -> bytes:
    """A message as it goes over the wire."""
    out = bytearray()
    encode_frame(message, out)
    return bytes(out)


def kernel_socket(peer: Peer) -> socket.socket:
    """The manager's socket of a peer, which is a real one."""
    assert isinstance(peer._socket, socket.socket)
    return peer._socket


def framed(value: object) -> bytes:
    """Any value as the payload of a frame."""
    payload = msgspec.msgpack.encode(value)
    return struct.pack("!i", len(payload)) + payload


LARGE_METADATA = {f"key-{number}": "x" * 1_000 for number in range(15)}
"""Of a row that takes much of a reply; a body takes nothing of it."""


def store(
    fragment_id: str,
    body: bytes | int = b"body",
    project: str = "p",
    tokens: int = 1,
    metadata: dict[str, str] | None = None,
) -> StoreFragment:
    """A command that stores. A number stands for an upload."""
    return StoreFragment(project, fragment_id, body, tokens, Tier.HOT, metadata=metadata or {})


request_ids = itertools.count(1_000)


class RawPeer:
    """A connected socket with a framer. Receiving waits, at the most as long as the timeout."""

    def __init__(self, address: str, timeout_s: float = PATIENCE_SECONDS) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._framer = Framer()
        self.descriptors: list[int] = []  # that came, in order; closed with the peer
        self.asides: list[
            IndexOpened | SegmentsAdded | SegmentsRetired
        ] = []  # what the manager said between its answers
        try:
            self.socket.connect(address)  # with a timeout it would not wait for room in the backlog, but fail
            self.socket.settimeout(timeout_s)
        except BaseException:
            self.socket.close()
            raise

    def send(self, *messages: ClientMessage) -> None:
        self.socket.sendall(b"".join(map(frame, messages)))

    def send_raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> ManagerMessage | None:
        """Return the next answer; None when the manager has ended the connection. Messages in between are stored."""
        while isinstance(message := self.receive_any(), IndexOpened | SegmentsAdded | SegmentsRetired):
            self.asides.append(message)
        return message

    def receive_any(self) -> ManagerMessage | None:
        """The next message, whatever it is; None when the manager has ended the connection."""
        while (payload := self._framer.next_frame()) is None:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.socket, RECEIVE_BYTES, DESCRIPTORS_MAX)
            except ConnectionError:
                return None
            self.descriptors += descriptors
            if not data:
                return None
            self._framer.feed(data)
        return decode_from_manager(payload)

    def expect(self, kind: type[M]) -> M:
        """The next message, which has to be of this kind."""
        message = self.receive()
        assert isinstance(message, kind), message
        return message

    def hello(self, session_id: str, projects: tuple[str, ...] | None = None) -> Self:
        """Say Hello and expect to be welcomed."""
        self.send(Hello(VERSION, session_id, projects))
        self.expect(Welcome)
        return self

    def ask(self, *commands: AnyCommand, request_id: int | None = None) -> Response:
        """Send one request and wait for its response. Under a number of its own, lest it count as sent again."""
        self.send(Request(next(request_ids) if request_id is None else request_id, commands))
        return self.expect(Response)

    def close(self) -> None:
        self.socket.close()
        while self.descriptors:
            os.close(self.descriptors.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

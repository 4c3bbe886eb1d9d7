"""A proxy between a client and its manager: it forwards message by message, and cuts connections where a test says."""

import contextlib
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stepwell.protocol.codec import decode_from_client, decode_from_manager
from stepwell.protocol.framing import Framer
from stepwell.protocol.messages import Goodbye, Hello, OfferUpload, Response, SegmentsReleased, UploadGranted, Welcome
from stepwell.transport.address import dial, listen, private_directory

RECEIVE_BYTES = 1 << 16
DESCRIPTORS_MAX = 253

Cut = Callable[["Forwarded"], bool]
"""Returns True to cut the connection instead of forwarding an item."""


class Forwarded:
    """An item that is about to be forwarded: a message, or half of an uploaded body."""

    def __init__(self, number: int, message: object, *, upwards: bool) -> None:
        self.number = number  # counts the items of all connections, without greetings and goodbyes
        self.message = message  # None: bytes of a body
        self.upwards = upwards


class Proxy:
    """One thread for all connections. A connection that is cut is closed towards both sides."""

    def __init__(self, address: str, upstream: str, cut: Cut) -> None:
        self.address = address
        self._upstream = upstream
        self._cut = cut
        self.opens_after = 0  # the number of connections that are closed at once, before any is forwarded
        self.hung_up = 0
        self.passages = 0
        self.cuts = 0
        self.failures: list[BaseException] = []
        self._listener = listen(address)
        self._pairs: dict[int, _Side] = {}
        self._wake, self._waker = socket.socketpair()

    def run(self) -> None:
        try:
            while True:
                wake, listener = self._wake.fileno(), self._listener.fileno()
                readable, _, _ = select.select([wake, listener, *self._pairs], [], [])
                if wake in readable:
                    return
                for fd in readable:
                    if fd == listener:
                        self._accept()
                    elif side := self._pairs.get(fd):
                        self._forward(side)
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            self.failures.append(error)
        finally:
            self.cut_all()
            self._listener.close()
            self._wake.close()

    def cut_all(self) -> None:
        for side in [*self._pairs.values()]:
            self._close(side)

    def stop(self) -> None:
        self._waker.close()

    def _accept(self) -> None:
        below, _ = self._listener.accept()
        if self.hung_up < self.opens_after:
            self.hung_up += 1  # before the client can notice, and ask for the number
            below.close()
            return
        below.setblocking(True)  # noqa: FBT003
        above = dial(self._upstream)
        lower, upper = _Side(below, upwards=True), _Side(above, upwards=False)
        lower.other, upper.other = upper, lower
        self._pairs |= {below.fileno(): lower, above.fileno(): upper}

    def _forward(self, side: "_Side") -> None:
        try:
            came = side.receive()
        except ConnectionError:
            came = None
        if came is None:
            self._close(side)
            return
        for data, message in came:
            if not isinstance(message, Hello | Welcome | Goodbye | SegmentsReleased):
                forwarded = Forwarded(self.passages, message, upwards=side.upwards)
                self.passages += 1
                if self._cut(forwarded):
                    self.cuts += 1
                    self._close(side)
                    return
            try:
                side.forward(data)
            except ConnectionError:
                self._close(side)
                return

    def _close(self, side: "_Side") -> None:
        assert side.other is not None
        for each in (side, side.other):
            self._pairs.pop(each.socket.fileno(), None)
            each.close()


class _Side:
    """One end of a connection through the proxy, and what has come from there."""

    def __init__(self, connected: socket.socket, *, upwards: bool) -> None:
        self.socket = connected
        self.upwards = upwards
        self.other: _Side | None = None
        self._framer = Framer()
        self._descriptors: list[int] = []
        self._offered = 0
        self._body = bytearray()
        self._body_bytes = 0  # of a body that was granted, and is still to come

    def receive(self) -> list[tuple[bytes, object]] | None:
        """Return whole messages, unchanged, and halves of bodies; None at the end of the stream."""
        data, descriptors, _, _ = socket.recv_fds(self.socket, RECEIVE_BYTES, DESCRIPTORS_MAX)
        self._descriptors += descriptors
        if not data:
            return None
        found: list[tuple[bytes, object]] = []
        if self._body_bytes:
            self._body += data
            if len(self._body) < self._body_bytes:
                return found
            body, data = bytes(self._body[: self._body_bytes]), bytes(self._body[self._body_bytes :])
            half = len(body) // 2
            found += [(body[:half], None), (body[half:], None)]
            self._body.clear()
            self._body_bytes = 0
        self._framer.feed(data)
        while (frame := self._framer.next_frame()) is not None:
            payload = bytes(frame)
            message = decode_from_client(payload) if self.upwards else decode_from_manager(payload)
            self._note(message)
            found.append((struct.pack("!i", len(payload)) + payload, message))
        return found

    def _note(self, message: object) -> None:
        if isinstance(message, OfferUpload):
            self._offered = message.size
        elif isinstance(message, UploadGranted) and message.accepted:
            assert self.other is not None
            self.other._body_bytes = self.other._offered

    def forward(self, data: bytes) -> None:
        assert self.other is not None
        descriptors, self._descriptors = self._descriptors, []
        sent = socket.send_fds(self.other.socket, [data], descriptors) if descriptors else 0
        self.other.socket.sendall(data[sent:])
        for descriptor in descriptors:
            os.close(descriptor)

    def close(self) -> None:
        self.socket.close()
        while self._descriptors:
            os.close(self._descriptors.pop())


@contextmanager
def proxied(upstream: str, cut: Cut) -> Iterator[Proxy]:
    """A proxy at an address of its own."""
    directory = private_directory()
    proxy = Proxy(str(directory / "s"), upstream, cut)
    thread = threading.Thread(target=proxy.run, name="proxy")
    thread.start()
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join(60)
        with contextlib.suppress(FileNotFoundError):
            Path(proxy.address).unlink()
        directory.rmdir()
    if proxy.failures:
        raise proxy.failures[0]


def never(_: Forwarded) -> bool:
    return False


class Once:
    """A cut that happens once, when the condition first holds."""

    def __init__(self, condition: Cut) -> None:
        self._condition = condition
        self.happened = False

    def __call__(self, forwarded: Forwarded) -> bool:
        if self.happened or not self._condition(forwarded):
            return False
        self.happened = True
        return True


def before_answer(forwarded: Forwarded) -> bool:
    """The request has taken effect, its answer is lost."""
    return isinstance(forwarded.message, Response)


def before_request(forwarded: Forwarded) -> bool:
    """The request is lost: the client cannot tell that from a lost answer."""
    return forwarded.upwards and not isinstance(forwarded.message, OfferUpload) and forwarded.message is not None

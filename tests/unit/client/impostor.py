"""Something that listens where a manager should be, and answers what a test tells it to."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from stepwell.protocol.codec import encode_frame
from stepwell.protocol.framing import Framer
from stepwell.protocol.messages import VERSION, ManagerMessage, Welcome
from stepwell.transport.address import listen, private_directory

WELCOME = Welcome(VERSION, "epoch", 0, 1, "o200k_base", (), generation=7, database=None)

Reply = ManagerMessage | bytes | None
"""A message, raw bytes, or None: hang up without a word."""


@contextmanager
def impostor(*conversations: Sequence[Reply]) -> Iterator[str]:
    """The address of a listener with whom each connection has the next of the conversations, a reply a frame."""
    directory = private_directory()
    address = directory / "manager.sock"
    listener = listen(str(address))
    listener.settimeout(60)

    def serve() -> None:
        with listener:  # then there is nobody any more
            for conversation in conversations:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(60)
                    _converse(connection, conversation)

    thread = threading.Thread(target=serve, name="impostor")
    thread.start()
    try:
        yield str(address)
    finally:
        thread.join(60)
        address.unlink()
        directory.rmdir()


def _converse(connection: socket.socket, conversation: Sequence[Reply]) -> None:
    framer = Framer()
    for reply in conversation:
        while framer.next_frame() is None:
            data = connection.recv(1 << 16)
            if not data:
                return
            framer.feed(data)
        if reply is None:
            return
        out = bytearray()
        if isinstance(reply, bytes):
            out += reply
        else:
            encode_frame(reply, out)
        with suppress(BrokenPipeError):  # a client that is closed does not wait for the reply
            connection.sendall(out)
    connection.recv(1 << 16)

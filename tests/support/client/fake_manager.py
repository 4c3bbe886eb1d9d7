"""A fake manager: a listener that sends prepared replies, one for each frame that it receives."""

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
"""A message, raw bytes, or None, which closes the connection without a reply."""


@contextmanager
def fake_manager(*conversations: Sequence[Reply]) -> Iterator[str]:
    """Yield the address of a fake manager.

    Each connection gets the replies of the next conversation, one for each frame.
    """
    directory = private_directory()
    address = directory / "manager.sock"
    listener = listen(str(address))
    listener.settimeout(60)

    def serve() -> None:
        with listener:  # after the last conversation, connecting is refused
            for conversation in conversations:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(60)
                    _converse(connection, conversation)

    thread = threading.Thread(target=serve, name="fake_manager")
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

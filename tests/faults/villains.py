"""Peers that end badly, in processes of their own."""

import threading

from multiprocess.connection import Connection

from stepwell.domain.commands.tiers import GetFragment
from stepwell.protocol.messages import Request
from tests.peers import RawPeer, frame, store


def stop_in_mid_frame(address: str, told: Connection) -> None:
    """Have sent half a request, and wait to be stopped or killed."""
    with RawPeer(address) as peer:
        peer.hello("villain")
        whole = frame(Request(1, (store("half", bytes(100_000)),)))
        peer.send_raw(whole[: len(whole) // 2])
        told.send("half")
        threading.Event().wait()


def flood_and_never_read(address: str, told: Connection) -> None:
    """Ask for much more than the outbox and the socket hold, and read nothing of it."""
    with RawPeer(address) as peer:
        peer.hello("villain")
        peer.ask(store("large", bytes(1 << 20)))
        asks = frame(Request(2, (GetFragment("p", "large"),)))
        told.send("flooding")
        while True:
            peer.send_raw(asks * 100)

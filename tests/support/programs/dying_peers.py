"""Peers that end badly, in processes of their own."""

import os
import threading

from multiprocess.connection import Connection

from stepwell.domain.tiers.commands import GetFragment
from stepwell.protocol.messages import OfferUpload, Request, UploadGranted
from tests.support.peers import LARGE_METADATA, RawPeer, frame, store

UPLOAD_BYTES = 8 << 20


def stop_in_mid_frame(address: str, told: Connection) -> None:
    """Have sent half a request, and wait to be stopped or killed."""
    with RawPeer(address) as peer:
        peer.hello(f"villain-{os.getpid()}")
        whole = frame(Request(1, (store("half", bytes(100_000)),)))
        peer.send_raw(whole[: len(whole) // 2])
        told.send("half")
        threading.Event().wait()


def stop_in_mid_upload(address: str, told: Connection) -> None:
    """Have sent half of a large body, and wait to be stopped or killed."""
    with RawPeer(address) as peer:
        peer.hello(f"villain-{os.getpid()}")
        peer.send(OfferUpload(0, UPLOAD_BYTES))
        assert peer.expect(UploadGranted).accepted
        peer.send_raw(bytes(UPLOAD_BYTES // 2))
        told.send("half")
        threading.Event().wait()


def flood_and_never_read(address: str, told: Connection) -> None:
    """Ask for much more than the outbox and the socket hold, and read nothing of it."""
    with RawPeer(address) as peer:
        peer.hello(f"villain-{os.getpid()}")
        peer.ask(store("large", metadata=LARGE_METADATA))
        asks = frame(Request(2, (GetFragment("p", "large"),) * 50))
        told.send("flooding")
        while True:
            peer.send_raw(asks * 100)

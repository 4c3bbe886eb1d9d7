"""Whatever a peer does, only that peer suffers: the others go on, and the manager's memory stays bounded."""

import os
import signal
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.domain.tiers.commands import GetFragment, GetMetrics
from stepwell.protocol.messages import (
    VERSION,
    CommandResult,
    Goodbye,
    Hello,
    OfferUpload,
    Refusal,
    Rejected,
    Request,
    Response,
    SegmentsReleased,
    UploadGranted,
    Welcome,
)
from tests.support.peers import RawPeer, frame, framed, store
from tests.support.processes import CONTEXT, descriptors, kill, resident_bytes, spawned
from tests.support.programs.dying_peers import UPLOAD_BYTES, flood_and_never_read, stop_in_mid_frame, stop_in_mid_upload
from tests.support.programs.steady_client import Bystander
from tests.support.seeds import seeded
from tests.support.wait import eventually

SEED = 7120
GROWTH_BYTES_MAX = 2 * limits.FRAME_BYTES_MAX + limits.OUTBOX_BYTES_MAX
"""What one bad peer may cost: a frame on its way in, a reply on its way out, and an outbox."""

RESTLESS_BYTES = 20 * limits.MIB


def held(runtime: sw.Runtime) -> int:
    """Descriptors of the manager beside those that its sessions have: one each, which tells of their process's death.

    A session has it for as long as its grace lasts, whatever became of its connections.
    """
    with runtime.client() as client:
        found = descriptors(runtime.pid)  # first: a session that ends meanwhile must not hide one that is left
        return found - client.status().sessions


def settles(runtime: sw.Runtime, base: int) -> Callable[[], bool]:
    """Whether the manager has let go of every descriptor that a bad peer cost it, but those of sessions."""

    def condition() -> bool:
        """The manager's descriptors are back at their number."""
        try:
            return held(runtime) <= base
        except sw.Busy:  # it has not seen yet that its peers are gone
            return False

    return condition


def rejection(peer: RawPeer) -> str:
    """Why the manager ended the connection; it has to have said so, and ended it."""
    refusal = peer.expect(Rejected).refusal
    assert refusal.kind == "ProtocolError"
    assert peer.receive() is None
    return refusal.message


REJECTED = {
    "a frame of 2 GiB": (struct.pack("!i", 2**31 - 1), "was announced"),
    "one byte more than a frame may have": (struct.pack("!i", limits.FRAME_BYTES_MAX + 1), "was announced"),
    "the long header of multiprocess": (struct.pack("!iQ", -1, 2**33), "was announced"),
    "a negative length": (struct.pack("!i", -5), "was announced"),
    "an empty frame": (struct.pack("!i", 0), "not our protocol"),
    "no message at all": (framed(7), "not a message"),
    "an unknown message": (framed(["Shutdown", 1, [["GetMetrics"]]]), "not a message"),
    "a manager's message": (framed(["Welcome", VERSION, "epoch", 0, 1]), "not a message"),
    "a manager's response": (framed(["Response", 1, []]), "not a message"),
    "a pickle": (struct.pack("!i", 4) + b"\x80\x04N.", "not"),
    "deeper than any stack": (struct.pack("!i", 60_000) + b"\x91" * 60_000, "not"),
    "text that is no text": (struct.pack("!i", 3) + b"\x91\xa1\xff", "not"),
}


@pytest.mark.parametrize("said_hello", [True, False], ids=["after hello", "before hello"])
@pytest.mark.parametrize("name", REJECTED)
def test_what_is_no_protocol_ends_the_connection(
    runtime: sw.Runtime, bystander: Bystander, name: str, *, said_hello: bool
) -> None:
    """The peer is told why and cut off at once, and nobody else notices."""
    data, reason = REJECTED[name]
    with RawPeer(runtime.address) as peer:
        if said_hello:
            peer.hello("villain")
        peer.send_raw(data)
        assert reason in rejection(peer)
        bystander.progresses()


def test_request_before_hello_is_not_served(runtime: sw.Runtime, bystander: Bystander) -> None:
    """A connection says who it is first; until then nothing that it asks takes effect."""
    with RawPeer(runtime.address) as peer:
        peer.send(Request(1, (store("sneaky"),)))
        assert "Hello" in rejection(peer)
    bystander.progresses()
    with runtime.client(projects=["p"]) as client, pytest.raises(sw.NotFound):
        client.tiers.get("sneaky")


def test_hello_twice_is_refused(runtime: sw.Runtime, bystander: Bystander) -> None:
    """A connection cannot change who it is."""
    with RawPeer(runtime.address) as peer:
        peer.hello("two-faced", ("p",))
        peer.send(Hello(VERSION, "two-faced"))
        assert "already" in rejection(peer)
    bystander.progresses()


@pytest.mark.parametrize("version", [0, VERSION + 1, -1, 2**62])
def test_wrong_version_says_what_to_do(runtime: sw.Runtime, bystander: Bystander, version: int) -> None:
    """Another version is named, beside ours, with what to do about it."""
    with RawPeer(runtime.address) as peer:
        peer.send(Hello(version, "villain"))
        message = rejection(peer)
        assert f"version {version}" in message
        assert "install the same stepwell" in message
    bystander.progresses()


def test_half_a_frame_then_silence(runtime: sw.Runtime, bystander: Bystander) -> None:
    """Peers in the middle of a frame, at every stage of it, hold up nobody."""
    whole = frame(Request(1, (store("a", bytes(50_000)),)))
    base = held(runtime)
    with ExitStack() as stack:
        for size in (0, 1, 3, 4, 5, 100, len(whole) - 1):
            peer = stack.enter_context(RawPeer(runtime.address)).hello(f"half-{size}")
            peer.send_raw(whole[:size])
            bystander.progresses()
    eventually(settles(runtime, base))


def test_random_bytes(runtime: sw.Runtime, bystander: Bystander) -> None:
    """Noise, with and without a frame around it, costs its sender the connection and the manager nothing."""
    generator = seeded(SEED)
    base, before = held(runtime), resident_bytes(runtime.pid)
    for number in range(300):
        noise = generator.randbytes(generator.randrange(1, 2_000))
        with RawPeer(runtime.address) as peer:
            if number % 2:
                peer.hello(f"noise-{number}")
            peer.send_raw(noise if number % 3 else struct.pack("!i", len(noise)) + noise)
    bystander.progresses()
    eventually(settles(runtime, base))
    assert resident_bytes(runtime.pid) - before < GROWTH_BYTES_MAX


def test_damaged_requests(runtime: sw.Runtime, bystander: Bystander) -> None:
    """A valid request with one byte changed is answered, refused or rejected; the manager outlives all of them."""
    generator = seeded(SEED)
    whole = bytearray(frame(Request(1, (store("a"), GetFragment("p", "a"), GetMetrics()))))
    for number in range(300):
        damaged = bytearray(whole)
        damaged[generator.randrange(4, len(damaged))] = generator.randrange(256)
        with RawPeer(runtime.address) as peer:
            peer.hello(f"damaged-{number}")
            peer.send_raw(bytes(damaged))
            assert isinstance(peer.receive(), Response | Rejected)
    bystander.progresses()
    assert runtime.is_alive()


def test_announced_bytes_are_not_allocated(runtime: sw.Runtime, bystander: Bystander) -> None:
    """Many peers that announce the largest frame and send a little of it cost what they sent, not what they said."""
    before = resident_bytes(runtime.pid)
    with ExitStack() as stack:
        for number in range(100):
            peer = stack.enter_context(RawPeer(runtime.address)).hello(f"boaster-{number}")
            peer.send_raw(struct.pack("!i", limits.FRAME_BYTES_MAX) + b"x")
        bystander.progresses()
        assert resident_bytes(runtime.pid) - before < GROWTH_BYTES_MAX


def test_tiny_requests_do_not_pile_up(runtime: sw.Runtime, bystander: Bystander) -> None:
    """A peer that sends faster than its turn comes waits in its own socket, not in the manager's memory."""
    before = resident_bytes(runtime.pid)
    ask = frame(Request(1, (GetMetrics(),)))
    with RawPeer(runtime.address) as peer:
        peer.hello("eager")
        peer.socket.setblocking(False)  # noqa: FBT003
        sent = received = 0
        burst = ask * 10_000
        while sent < RESTLESS_BYTES and received < RESTLESS_BYTES:
            with suppress(BlockingIOError):
                sent += peer.socket.send(burst[sent % len(ask) :])
            with suppress(BlockingIOError):
                received += len(peer.socket.recv(1 << 20))
        assert resident_bytes(runtime.pid) - before < GROWTH_BYTES_MAX
    bystander.progresses()


def test_peer_that_never_reads(runtime: sw.Runtime, bystander: Bystander) -> None:
    """It pipelines large reads for ever: its requests wait until it reads, in its own socket."""
    base, before = held(runtime), resident_bytes(runtime.pid)
    ours, theirs = CONTEXT.Pipe()
    with ours, theirs, spawned(flood_and_never_read, runtime.address, theirs) as villain:
        assert ours.recv() == "flooding"
        for _ in range(5):
            bystander.progresses()
        assert resident_bytes(runtime.pid) - before < GROWTH_BYTES_MAX
        assert villain.pid is not None
        kill(villain.pid)
    eventually(settles(runtime, base))


def test_stopped_peer(runtime: sw.Runtime, bystander: Bystander) -> None:
    """SIGSTOP in the middle of a frame, then SIGCONT: nobody waits for it meanwhile."""
    ours, theirs = CONTEXT.Pipe()
    with ours, theirs, spawned(stop_in_mid_frame, runtime.address, theirs) as villain:
        assert ours.recv() == "half"
        assert villain.pid is not None
        os.kill(villain.pid, signal.SIGSTOP)
        bystander.progresses()
        os.kill(villain.pid, signal.SIGCONT)
        bystander.progresses()
        kill(villain.pid)


def test_peer_killed_in_mid_request(runtime: sw.Runtime, bystander: Bystander) -> None:
    """Half a request has no effect, and its descriptors come back."""
    base = held(runtime)
    ours, theirs = CONTEXT.Pipe()
    with ours, theirs, spawned(stop_in_mid_frame, runtime.address, theirs) as villain:
        assert ours.recv() == "half"
        assert villain.pid is not None
        kill(villain.pid)
        eventually(settles(runtime, base))
    bystander.progresses()
    with runtime.client(projects=["p"]) as client, pytest.raises(sw.NotFound):
        client.tiers.get("half")


def live_bytes(runtime: sw.Runtime) -> int:
    """Bytes of shared memory that count."""
    with runtime.client() as client:
        return client.status().memory.live_bytes


def gives_back(runtime: sw.Runtime, base: int) -> Callable[[], bool]:
    """Whether the room of uploads that never came is there again."""

    def condition() -> bool:
        """The live bytes are back at about their number; the bystander's own go up and down."""
        return live_bytes(runtime) < base + limits.MIB

    return condition


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP])
def test_peer_ended_in_mid_upload(runtime: sw.Runtime, bystander: Bystander, ending: signal.Signals) -> None:
    """Stopped, it holds its own room and nobody up; killed, its room and its descriptors come back."""
    base, live = held(runtime), live_bytes(runtime)
    ours, theirs = CONTEXT.Pipe()
    with ours, theirs, spawned(stop_in_mid_upload, runtime.address, theirs) as villain:
        assert ours.recv() == "half"
        assert villain.pid is not None
        assert live_bytes(runtime) >= live + UPLOAD_BYTES - limits.MIB
        os.kill(villain.pid, ending)
        bystander.progresses()
        kill(villain.pid)
    eventually(gives_back(runtime, live))
    eventually(settles(runtime, base))


def test_offers_that_are_never_made_good(runtime: sw.Runtime, bystander: Bystander) -> None:
    """Many peers have room and send nothing: others go on, and the room comes back with their end."""
    live = live_bytes(runtime)
    with ExitStack() as stack:
        for number in range(50):
            peer = stack.enter_context(RawPeer(runtime.address)).hello(f"boaster-{number}")
            peer.send(OfferUpload(0, limits.MIB))
            assert peer.expect(UploadGranted).accepted
            peer.send_raw(b"x")
        bystander.progresses()
    eventually(gives_back(runtime, live))


def test_frames_in_the_place_of_a_body(runtime: sw.Runtime, bystander: Bystander) -> None:
    """Whatever comes after a grant is the body: what looks like a request is none, and is not obeyed."""
    request = frame(Request(1, (store("smuggled"),)))
    with RawPeer(runtime.address) as peer:
        peer.hello("villain")
        peer.send(OfferUpload(0, 10 * len(request)))
        assert peer.expect(UploadGranted).accepted
        peer.send_raw(request * 10)
        result = peer.ask(store("kept", 0), GetFragment("p", "smuggled")).results
        assert isinstance(result[0], CommandResult)
        assert isinstance(result[1], Refusal)
        assert result[1].kind == "NotFound"
    with runtime.client(projects=["p"]) as client:
        assert client.tiers.get("kept").body == request * 10
    bystander.progresses()


def test_memory_that_is_given_back_twice(runtime: sw.Runtime, bystander: Bystander) -> None:
    """Numbers that a peer never had, or has released before, change nothing for those who have them."""
    with RawPeer(runtime.address) as peer:
        peer.hello("villain")
        peer.send(*[SegmentsReleased((*range(100), -1, 2**40))] * 50)
        assert isinstance(peer.ask(GetMetrics()).results[0], CommandResult)
    bystander.progresses()


def test_connections_past_the_limit_are_told_busy(runtime: sw.Runtime, bystander: Bystander) -> None:
    """600 connections: those above the limit get Busy at once, those below it go on, and all descriptors come back."""
    base = held(runtime)
    with ExitStack() as stack:
        peers = [stack.enter_context(RawPeer(runtime.address)) for _ in range(600)]
        answers = []
        for number, peer in enumerate(peers):
            with suppress(BrokenPipeError):  # turned away already; why, is still to be read
                peer.send(Hello(VERSION, f"crowd-{number}"))
            answers.append(peer.receive())
        refused = [each for each in answers if isinstance(each, Rejected)]
        assert {each.refusal.kind for each in refused} == {"Busy"}
        assert len(answers) - len(refused) == limits.PEERS_MAX - 1  # the bystander is one
        with pytest.raises(sw.Busy, match="try again later"):
            runtime.client()
        bystander.progresses()
        assert isinstance(peers[0].ask(GetMetrics()).results[0], CommandResult)
    eventually(settles(runtime, base))
    runtime.client().close()


def test_storm_of_connections() -> None:
    """Peers that come and go at every stage of their greeting leave nothing behind but sessions in their grace.

    Whoever was welcomed may come back and say goodbye; then nothing is left of it either.
    """
    with sw.Runtime.start(workers=0, log_level="error") as runtime, Bystander(runtime.address) as bystander:
        bystander.progresses()
        base, before = held(runtime), resident_bytes(runtime.pid)
        for number in range(500):
            with RawPeer(runtime.address) as peer:
                stage = number % 4
                if stage > 0:
                    peer.send(Hello(VERSION, f"fleeting-{number}"))
                if stage > 1:
                    peer.send(Request(1, (store(f"s{number}"),)))
                if stage > 2:
                    peer.expect(Welcome)
                    peer.send(Goodbye())
        bystander.progresses()
        eventually(settles(runtime, base))
        assert resident_bytes(runtime.pid) - before < GROWTH_BYTES_MAX
        for number in [each for each in range(500) if each % 4 in {1, 2}]:
            with RawPeer(runtime.address) as peer:
                peer.hello(f"fleeting-{number}").send(Goodbye())
        with runtime.client() as client:
            eventually(lambda: client.status().sessions == 2)

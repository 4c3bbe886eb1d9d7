"""Uploads: bytes without frames, received where they belong and nowhere else."""

import mmap
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from stepwell import limits
from stepwell.errors import Busy
from stepwell.protocol.messages import AskStatus, Refusal, Rejected
from stepwell.transport.peer import Peer, Sink
from tests.support.peers import frame
from tests.support.seeds import seeded

BEFORE = frame(AskStatus(1))
BEHIND = frame(AskStatus(2))
SMALL = Rejected(Refusal.of(Busy("x" * 100), 0))


class Region:
    """A sink on shared memory, in parts, with memory behind it that nobody may touch."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.size = sum(sizes)
        self.memory = mmap.mmap(-1, self.size + mmap.PAGESIZE)
        self.at = 0

    @property
    def room(self) -> memoryview:
        end = 0
        for size in self.sizes:
            end += size
            if end > self.at:
                break
        with memoryview(self.memory) as whole:
            return whole[self.at : end]

    def advance(self, size: int) -> None:
        self.at += size

    def close(self) -> tuple[bytes, bytes]:
        """What is inside and what is behind. Closing fails if anybody still has a view."""
        inside, behind = self.memory[: self.size], self.memory[self.size :]
        self.memory.close()
        return inside, behind


class Manager:
    """The little of a loop that an upload needs: after the first frame it expects the sink."""

    def __init__(self, sink: Sink) -> None:
        ours, self.other = socket.socketpair()
        self.other.setblocking(False)  # noqa: FBT003
        self.peer = Peer(ours, now_s=0.0)
        self.sink = sink
        self.frames: list[bytes] = []
        self._receive_buffer = memoryview(bytearray(limits.RECEIVE_BYTES_PER_TURN))

    def turn(self, now_s: float = 1.0) -> None:
        self.peer.read(self._receive_buffer, now_s)
        while (payload := self.peer.next_frame()) is not None:
            self.frames.append(bytes(payload))
            if len(self.frames) == 1:
                self.peer.begin_upload(self.sink, now_s)


@contextmanager
def managed(sink: Sink) -> Iterator[Manager]:
    manager = Manager(sink)
    try:
        yield manager
    finally:
        manager.peer.close()
        manager.other.close()


@pytest.fixture
def region() -> Region:
    return Region(100)


@pytest.fixture
def manager(region: Region) -> Iterator[Manager]:
    """A manager whose region takes 100 bytes, all of which are granted."""
    with managed(region) as manager:
        yield manager


@pytest.mark.parametrize("seed", range(8))
def test_bytes_arrive_where_they_belong_however_they_are_split(seed: int) -> None:
    """A frame, several MiB of body and another frame, cut anywhere: two frames, the body, and nothing behind it."""
    chance = seeded(seed)
    body = chance.randbytes(chance.randrange(3 << 20, 5 << 20))
    cut = chance.randrange(1, len(body))
    region = Region(cut, len(body) - cut)
    stream = memoryview(BEFORE + body + BEHIND)
    with managed(region) as manager:
        sent = 0
        while sent < len(stream):
            piece = chance.choice([1, 7, 4_099, 65_521, 1_000_003])
            with suppress(BlockingIOError):
                sent += manager.other.send(stream[sent : sent + piece])
            manager.turn()
        while len(manager.frames) < 2:
            manager.turn()
        assert manager.frames == [BEFORE[4:], BEHIND[4:]]
        assert manager.peer.is_open
        assert manager.peer.sink is None
    assert region.close() == (body, bytes(mmap.PAGESIZE))


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_bytes_in_the_same_piece_as_the_frame_before(manager: Manager, region: Region, size: int) -> None:
    """What had already arrived when the sink came is moved to it, and the rest is received into it."""
    body = bytes(range(100))
    manager.other.send(BEFORE + body[:size])
    manager.turn()
    assert region.at == size
    assert (manager.peer.sink is not None) == (size < 100)
    manager.other.send(body[size:] + BEHIND)
    while len(manager.frames) < 2:
        manager.turn()
    assert region.close()[0] == body


def test_no_byte_goes_past_the_sink(manager: Manager, region: Region) -> None:
    """One read in the middle of an upload takes what belongs to it, and leaves the frame behind it in the kernel."""
    manager.other.send(BEFORE)
    manager.turn()
    manager.other.send(b"x" * 100 + BEHIND)
    manager.peer.read(memoryview(bytearray(1_000)), now_s=1.0)
    assert (region.at, manager.peer.sink, manager.peer._framer.pending) == (100, None, 0)
    assert manager.peer.next_frame() is None
    manager.turn()
    assert manager.frames[1:] == [BEHIND[4:]]
    assert region.close() == (b"x" * 100, bytes(mmap.PAGESIZE))


def test_everything_at_once(manager: Manager, region: Region) -> None:
    """The frame before, the body and the frame behind in one read: nothing is left over, and nothing is missed."""
    manager.other.send(BEFORE + b"x" * 100 + BEHIND)
    manager.turn()
    assert manager.frames == [BEFORE[4:], BEHIND[4:]]
    assert region.close() == (b"x" * 100, bytes(mmap.PAGESIZE))


def test_empty_upload_is_complete_at_once() -> None:
    """Nothing is waited for where nothing is to come."""
    region = Region(0)
    with managed(region) as manager:
        manager.other.send(BEFORE + BEHIND)
        manager.turn()
        assert manager.frames == [BEFORE[4:], BEHIND[4:]]
    region.close()


def test_one_turn_takes_a_bounded_amount(monkeypatch: pytest.MonkeyPatch, manager: Manager, region: Region) -> None:
    """However much has arrived of a body, others have their turn."""
    monkeypatch.setattr(limits, "RECEIVE_BYTES_PER_TURN", 30)
    manager.other.send(BEFORE)
    manager.turn()
    manager.other.send(b"x" * 100)
    took = []
    while manager.peer.sink is not None:
        manager.turn()
        took.append(region.at)
    assert took == [30, 60, 90, 100]
    region.close()


def test_one_upload_at_a_time(manager: Manager, region: Region) -> None:
    """A second sink before the first is complete is a mistake of ours; no frame is given out meanwhile."""
    manager.peer.begin_upload(region, now_s=1.0)
    with pytest.raises(AssertionError, match="one upload"):
        manager.peer.begin_upload(region, now_s=1.0)
    manager.other.send(BEHIND)
    manager.turn()
    assert (manager.peer.next_frame(), region.at) == (None, len(BEHIND))
    region.close()


def test_reading_nothing_in_an_upload_is_no_end(manager: Manager, region: Region) -> None:
    """An upload that pauses stays open, and has not moved."""
    manager.peer.begin_upload(region, now_s=1.0)
    manager.turn(now_s=2.0)
    assert manager.peer.is_open
    assert manager.peer.progressed_at_s == 0.0
    region.close()


def test_uploader_that_goes_away_leaves_its_sink(manager: Manager, region: Region) -> None:
    """The end of the stream closes the peer; whoever gave the sink finds it there, incomplete and not in use."""
    manager.peer.begin_upload(region, now_s=1.0)
    manager.other.send(b"x" * 99)
    manager.other.close()
    manager.turn()
    assert (manager.peer.is_open, region.at) == (True, 99)
    manager.turn()
    assert (manager.peer.is_open, region.at) == (False, 99)
    assert manager.peer.sink is region
    region.close()


def test_upload_stalls_without_a_byte(manager: Manager, region: Region) -> None:
    """From the grant, or from the last byte that came, it may pause as long as a peer may, and no longer."""
    start, pause = 1_000.0, limits.STALL_SECONDS_MAX
    manager.peer.begin_upload(region, now_s=start)
    assert not manager.peer.is_stalled(start + pause)
    assert manager.peer.is_stalled(start + pause + 1)
    manager.other.send(b"x")
    manager.turn(now_s=start + 10)
    assert not manager.peer.is_stalled(start + pause + 10)
    assert manager.peer.is_stalled(start + pause + 11)
    region.close()


def test_upload_has_to_end(manager: Manager, region: Region) -> None:
    """A byte now and then is progress, and yet an upload has an end; once it is complete nothing is owed."""
    manager.peer.begin_upload(region, now_s=0.0)
    for second in range(0, int(limits.UPLOAD_SECONDS_MAX) + 1, 10):
        manager.other.send(b"x")
        manager.turn(now_s=float(second))
        assert not manager.peer.is_stalled(float(second))
    late = limits.UPLOAD_SECONDS_MAX + 1
    assert manager.peer.is_stalled(late)
    manager.other.send(b"x" * (100 - region.at))
    manager.turn(now_s=late)
    assert not manager.peer.is_stalled(late + 1_000)
    region.close()


def test_upload_that_we_do_not_read_is_not_late(
    manager: Manager, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has to read its replies first cannot upload meanwhile: its time begins when it has read them."""
    monkeypatch.setattr(limits, "OUTBOX_BYTES_MAX", 50)
    late = limits.UPLOAD_SECONDS_MAX + 1
    manager.peer.begin_upload(region, now_s=0.0)
    manager.peer.send(SMALL)
    manager.peer.progressed_at_s = late
    assert (manager.peer.is_full, manager.peer.is_stalled(late)) == (True, False)
    manager.peer.flush(now_s=late)
    assert (manager.peer.is_full, manager.peer.is_stalled(late)) == (False, False)
    assert not manager.peer.is_stalled(late + limits.STALL_SECONDS_MAX)
    assert manager.peer.is_stalled(late + limits.STALL_SECONDS_MAX + 1)
    region.close()

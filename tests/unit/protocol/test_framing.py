"""Frames: whole ones come out, however the bytes came in; a length is checked before it is believed."""

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell import limits
from stepwell.errors import ProtocolError
from stepwell.protocol.framing import Framer


def framed(payload: bytes) -> bytes:
    return struct.pack("!i", len(payload)) + payload


def drained(framer: Framer) -> list[bytes]:
    frames: list[bytes] = []
    while (frame := framer.next_frame()) is not None:
        frames.append(bytes(frame))
    return frames


@given(st.lists(st.binary(max_size=300), max_size=8), st.data())
def test_frames_come_out_whole_however_they_are_split(payloads: list[bytes], data: st.DataObject) -> None:
    """Any split of the stream gives the same frames, in order, none early and none late.

    The buffer is empty if and only if nothing is left.
    """
    stream = b"".join(map(framed, payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    framer = Framer()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        framer.feed(stream[start:end])
        if data.draw(st.booleans()):
            found += drained(framer)
        assert bool(framer.buffer) == (framer.pending > 0)
    found += drained(framer)
    assert found == payloads
    assert (framer.pending, bool(framer.buffer)) == (0, False)


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_taking_gives_what_feeding_gives(payloads: list[bytes], data: st.DataObject) -> None:
    """A frame that arrives alone takes a shorter way; each pair of `feed` and `next_frame` gives the same payload."""
    stream = b"".join(map(framed, payloads))
    ends = [sum(map(len, map(framed, payloads[:count]))) for count in range(1, len(payloads))]
    cuts = sorted({*data.draw(st.lists(st.sampled_from([0, *ends]) | st.integers(0, len(stream)), max_size=12))})
    one, other = Framer(), Framer()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        arrived = stream[start:end]
        taken = one.take_frame(memoryview(bytearray(arrived)))
        other.feed(arrived)
        fed = other.next_frame()
        assert (taken is None) == (fed is None)
        assert bytes(taken or b"") == bytes(fed or b"")
        assert one.pending == other.pending
    assert drained(one) == drained(other)


@pytest.mark.parametrize("length", [-1, limits.GREETING_BYTES_MAX + 1])
def test_taking_refuses_a_length_outside_its_bounds(length: int) -> None:
    """The shorter way checks the length too, also of a frame that is there completely."""
    framer = Framer(limits.GREETING_BYTES_MAX)
    arrived = struct.pack("!i", length) + bytes(max(0, length))
    with pytest.raises(ProtocolError, match=str(length)):
        framer.take_frame(memoryview(arrived))


def test_every_single_split_point() -> None:
    """Byte by byte, a frame comes out with its last byte and not before."""
    stream = framed(b"") + framed(b"x") + framed(b"yz" * 50)
    for cut in range(len(stream) + 1):
        framer = Framer()
        framer.feed(stream[:cut])
        found = drained(framer)
        assert framer.pending == cut - sum(len(each) + 4 for each in found)
        framer.feed(stream[cut:])
        assert found + drained(framer) == [b"", b"x", b"yz" * 50]


@pytest.mark.parametrize("length", [-1, -(2**31), limits.FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_length_outside_its_bounds_is_refused(length: int) -> None:
    """2 GiB, a negative number: refused at the header, and again if asked again."""
    framer = Framer()
    framer.feed(struct.pack("!i", length))
    for _ in range(2):
        with pytest.raises(ProtocolError, match=str(length)):
            framer.next_frame()


def test_announced_bytes_are_not_allocated() -> None:
    """What a frame costs is what has arrived of it."""
    framer = Framer()
    framer.feed(struct.pack("!i", limits.FRAME_BYTES_MAX) + b"x")
    assert framer.next_frame() is None
    assert sys.getsizeof(framer.buffer) < 1_000


def test_largest_frame_passes_and_is_let_go() -> None:
    """The bound itself is allowed, and an idle framer does not keep the room that it took."""
    framer = Framer()
    framer.feed(framed(bytes(limits.FRAME_BYTES_MAX)))
    frame = framer.next_frame()
    assert frame is not None
    assert len(frame) == limits.FRAME_BYTES_MAX
    assert sys.getsizeof(framer.buffer) < 1_000


@given(st.binary(max_size=50), st.binary(max_size=50), st.integers(0, 60), st.booleans())
def test_bytes_of_no_frame_are_moved_out(body: bytes, behind: bytes, room: int, is_fed_later: bool) -> None:  # noqa: FBT001
    """As many as there are and as the target holds come out, in order; what is behind them is still a frame."""
    framer = Framer()
    framer.feed(framed(b"before") + body)
    before = framer.next_frame()
    assert before is not None
    assert bytes(before) == b"before"
    if is_fed_later:
        framer.feed(framed(behind))
    target = bytearray(b"-" * 60)
    with memoryview(target) as view:
        size = framer.read_into(view[: min(room, len(body))])
    assert size == min(room, len(body))
    assert target == body[:size].ljust(60, b"-")
    rest = bytearray(len(body) - size)
    with memoryview(rest) as view:
        assert framer.read_into(view) == len(rest)
    assert rest == body[size:]
    if not is_fed_later:
        with memoryview(bytearray(10)) as view:
            assert framer.read_into(view) == 0
        framer.feed(framed(behind))
    assert drained(framer) == [behind]
    assert framer.pending == 0

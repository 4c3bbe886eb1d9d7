"""Compression: what comes out is what went in, in pieces that the loop can afford."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell import limits
from stepwell.errors import RuntimeFault
from stepwell.limits import KIB, MIB
from stepwell.memory.compression import Compressor, unpack, unpack_slices
from tests.support.memory.bodies import compressible, noise

BODIES = {
    "empty": b"",
    "one byte": b"x",
    "text": compressible(3 * MIB),
    "noise": noise(1_000_001),
    "zeros": bytes(5 * MIB),
    "mixed": compressible(300 * KIB) + noise(300 * KIB) + bytes(300 * KIB),
}


def sliced(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("size", [1_000, limits.WORK_BYTES_PER_SLICE])
def test_slices_go_there_and_back(name: str, size: int) -> None:
    """Whatever is packed slice by slice is unpacked in any other slices, or at once."""
    body = BODIES[name]
    packed = b"".join(Compressor().pack_slices(sliced(body, size)))
    assert b"".join(unpack_slices(sliced(packed, size))) == body
    assert b"".join(unpack_slices(sliced(packed, 777))) == body
    assert unpack(memoryview(packed), len(body)) == body


@pytest.mark.parametrize("name", BODIES)
def test_whole_goes_there_and_back(name: str) -> None:
    """One context serves many bodies, and none of them knows of the others."""
    packer = Compressor()
    assert [packer.pack(BODIES[name]) for _ in range(3)] == [packer.pack(memoryview(BODIES[name]))] * 3
    packed = packer.pack(BODIES[name])
    assert unpack(packed, len(BODIES[name])) == BODIES[name]
    assert b"".join(unpack_slices([packed])) == BODIES[name]


@given(body=st.binary(max_size=5_000), size=st.integers(1, 600))
def test_any_body_in_any_slices(body: bytes, size: int) -> None:
    """There and back, for whatever there is."""
    packed = b"".join(Compressor().pack_slices(sliced(body, size)))
    assert b"".join(unpack_slices(sliced(packed, size))) == body == unpack(packed, len(body))


def test_pieces_are_bounded() -> None:
    """A few compressed bytes that stand for many megabytes come out in pieces of a slice at the most."""
    packed = Compressor().pack(bytes(20 * MIB))
    assert len(packed) < 4 * KIB
    pieces = [len(piece) for piece in unpack_slices([packed])]
    assert max(pieces) <= limits.WORK_BYTES_PER_SLICE
    assert sum(pieces) == 20 * MIB


def test_text_becomes_smaller() -> None:
    """Otherwise there would be no point in it."""
    body = compressible(100 * KIB)
    assert len(Compressor().pack(body)) * 10 < len(body)


PACKED = Compressor().pack(BODIES["mixed"])
SPOILT = {
    "cut short": PACKED[:-5],
    "half": PACKED[: len(PACKED) // 2],
    "another beginning": bytes(8) + PACKED[8:],
    "twice": PACKED * 2,
    "with more behind it": PACKED + b"rubbish",
    "nothing": b"",
    "something else": b"rubbish",
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_spoilt_is_no_body(name: str) -> None:
    """It is an error that says so, and not a body that ends elsewhere."""
    with pytest.raises(RuntimeFault, match="a compressed body"):
        unpack(SPOILT[name], len(BODIES["mixed"]))


def test_other_size_is_no_body() -> None:
    """A handle that says another size is wrong about something."""
    with pytest.raises(RuntimeFault, match="has 3 bytes and not 4"):
        unpack(Compressor().pack(b"abc"), 4)
    assert unpack(b"", 0) == b""

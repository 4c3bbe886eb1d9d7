"""The packed form of a body: one zstd frame.

Warm and cold bodies are packed, hot ones are raw. Large bodies are packed and unpacked in slices, so that the manager's
loop never works on one of them for longer than a slice takes. The client unpacks a body whole.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from stepwell import limits
from stepwell.errors import RuntimeFault
from stepwell.text import plural

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LEVEL: Final = 3
_FRAME: Final = zstd.ZstdCompressor.FLUSH_FRAME


class Compressor:
    """Packs bodies, one after the other, with one zstd context.

    A new context per body would cost more than a small body.
    """

    def __init__(self) -> None:
        self._compressor = zstd.ZstdCompressor(_LEVEL)

    def pack(self, body: bytes | memoryview) -> bytes:
        """Return a whole body as one frame."""
        return self._compressor.compress(body, _FRAME)

    def pack_slices(self, slices: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the frame of a body that comes in slices, piece by piece. The iterator has to be run to its end."""
        for each in slices:
            yield self._compressor.compress(each)
        yield self._compressor.flush()


def unpack_slices(slices: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the body that slices of packed bytes stand for, in bounded pieces.

    Raise `RuntimeFault` for damaged bytes.
    """
    decompressor = zstd.ZstdDecompressor()
    for each in slices:
        data = each
        while True:
            try:
                piece = decompressor.decompress(data, limits.WORK_BYTES_PER_SLICE)
            except (zstd.ZstdError, EOFError) as error:
                raise RuntimeFault(f"a compressed body cannot be read: {error}") from error
            yield piece
            data = b""
            if decompressor.eof or decompressor.needs_input:
                break


def unpack(packed: bytes | memoryview, size: int) -> bytes:
    """Return a whole body whose size is known. Raise `RuntimeFault` if the bytes are damaged or of another size."""
    try:
        body = zstd.decompress(packed) if size else b""
    except zstd.ZstdError as error:
        raise RuntimeFault(f"a compressed body cannot be read: {error}") from error
    if len(body) != size:
        raise RuntimeFault(f"a compressed body has {plural(len(body), 'byte')} and not {size}")
    return body

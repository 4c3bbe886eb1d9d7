"""Compression: the form of what is warm or cold."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from stepwell import limits
from stepwell.errors import RuntimeFault

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LEVEL: Final = 3
_FRAME: Final = zstd.ZstdCompressor.FLUSH_FRAME


class Compressor:
    """Compresses, one body after the other, with one context for all."""

    def __init__(self) -> None:
        self._compressor = zstd.ZstdCompressor(_LEVEL)

    def pack(self, body: bytes | memoryview) -> bytes:
        """A whole body."""
        return self._compressor.compress(body, _FRAME)

    def pack_slices(self, slices: Iterable[bytes]) -> Iterator[bytes]:
        """A body in slices, slice by slice. It has to be run to its end."""
        for each in slices:
            yield self._compressor.compress(each)
        yield self._compressor.flush()


def unpack_slices(slices: Iterable[bytes]) -> Iterator[bytes]:
    """The body that slices of compressed bytes stand for, in pieces that are bounded too."""
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
    """A whole body, whose size is known."""
    try:
        body = zstd.decompress(packed) if size else b""
    except zstd.ZstdError as error:
        raise RuntimeFault(f"a compressed body cannot be read: {error}") from error
    if len(body) != size:
        raise RuntimeFault(f"a compressed body has {len(body)} bytes and not {size}")
    return body

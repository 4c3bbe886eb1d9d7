"""The file of an index: named arrays, a checksum, and a version. It is written in one step and mapped to be read.

    array | array | … | header (msgpack) | trailer: length and checksum of the header, magic number

The header is behind the arrays, because their checksum is known only when they are written. There is no flush: the file
is a cache, and its checksum tells if a loss of power has damaged it.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepwell.errors import StoreDamaged

_MAGIC: Final = b"stepwell-index-1"
_TRAILER: Final = struct.Struct("<II16s")
_ALIGNMENT: Final = 64
_DTYPES: Final = frozenset({"|b1", "|i1", "|u1", "<u2", "<i4", "<u4", "<i8", "<u8", "<f8"})
"""The types of the arrays of indexes. No other type is read from a file."""


class _Place(Struct, frozen=True, array_like=True):
    """The place of an array in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


class _Header(Struct, frozen=True, array_like=True):
    """The arrays by name, the checksum of all bytes before the header, and the version of what is in the arrays."""

    version: str
    checksum: int
    arrays: dict[str, _Place]


def write(path: Path, version: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Replace a file by one with some arrays. Raise `OSError` and leave it as it was if that cannot be done."""
    draft = path.with_suffix(".draft")
    try:
        with open(draft, "wb", opener=_open_private) as file:
            checksum, offset = 0, 0
            places: dict[str, _Place] = {}
            for name, array in arrays.items():
                data = np.ascontiguousarray(array)
                places[name] = _Place(data.dtype.str, data.shape, offset)
                padded = data.reshape(-1).view(np.uint8).data, bytes(-data.nbytes % _ALIGNMENT)
                for part in padded:
                    file.write(part)
                    checksum = zlib.crc32(part, checksum)
                    offset += len(part)
            header = msgspec.msgpack.encode(_Header(version, checksum, places))
            file.write(header)
            file.write(_TRAILER.pack(len(header), zlib.crc32(header), _MAGIC))
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def read(path: Path, version: str) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of a file, mapped privately: writing to them changes no other process's and no file's.

    None if there is no file, or if it has another version. Raise `StoreDamaged` if it is not as it was written.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        if size < _TRAILER.size:
            raise StoreDamaged(f"{str(path)!r} is too short")
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
    begin, header = _header(path, mapped)
    if header.version != version:
        return None
    data = memoryview(mapped)[:begin]
    if zlib.crc32(data) != header.checksum:
        raise StoreDamaged(f"{str(path)!r} is damaged: its checksum differs")
    try:
        return {name: _array(data, place) for name, place in header.arrays.items()}
    except (ValueError, OverflowError) as error:
        raise StoreDamaged(f"{str(path)!r} has an array of another size: {error}") from error


def _header(path: Path, mapped: mmap.mmap) -> tuple[int, _Header]:
    """Return the place of the header and the header."""
    end = len(mapped) - _TRAILER.size
    length, checksum, magic = _TRAILER.unpack_from(mapped, end)
    data = bytes(mapped[max(0, end - length) : end])
    if magic != _MAGIC or length > end or zlib.crc32(data) != checksum:
        raise StoreDamaged(f"{str(path)!r} has no valid header")
    try:
        return end - length, msgspec.msgpack.decode(data, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"{str(path)!r} has no valid header: {error}") from error


def _array(data: memoryview, place: _Place) -> NDArray[Any]:
    if place.dtype not in _DTYPES:
        raise StoreDamaged(f"there is no array of type {place.dtype!r:.80}")
    if any(length < 0 for length in place.shape):
        raise StoreDamaged(f"there is no array of shape {place.shape!r:.80}")
    count = math.prod(place.shape)
    return np.frombuffer(data, np.dtype(place.dtype), count, place.offset).reshape(place.shape)


def _open_private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, without following a link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

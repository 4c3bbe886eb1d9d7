"""Reading and splitting files: the work that a client gives to workers, or does itself.

What comes back is where the parts begin and end, not the parts: whoever stores them reads the file again, and finds by
its digest whether it is still the same.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.source_outline import PART_KEY, fingerprint, part_ids
from stepwell.ingest.split import VERSION, Part, split

CHORE: Final = "split-files"
"""The name under which workers offer it."""

BINARY: Final = "it is binary"
NOT_UTF8: Final = "it is not UTF-8"


Count = Callable[[bytes], int]
"""The tokens of a body."""


class FileRequest(Struct, frozen=True, array_like=True):
    """A file to look at, and what it was when it was stored."""

    source: str
    digest: str = ""


class SplitJob(Struct, frozen=True, array_like=True):
    """Some files of a root, to be read and split."""

    root: bytes
    encoding: str
    files: tuple[FileRequest, ...]


class PartFound(Struct, frozen=True, array_like=True, gc=False):
    """A part as it is to be stored, without its body."""

    part_id: str
    start: int
    end: int
    kind: str
    tokens: int
    digest: bytes
    metadata: dict[str, str]


class FileSplit(Struct, frozen=True, array_like=True, tag=True):
    """A file, and what it comes to. `mtime_ns` is 0 if the file is too young to be recognised by it."""

    source: str
    size: int
    mtime_ns: int
    digest: str
    parts: tuple[PartFound, ...]
    fingerprint: str


class FileSame(Struct, frozen=True, array_like=True, tag=True):
    """A file whose bytes are what they were, though it was written since."""

    source: str
    size: int
    mtime_ns: int


class FileSkipped(Struct, frozen=True, array_like=True, tag=True):
    """A file that is not to be split, and why. One that could be read is known by its size and time from now on."""

    source: str
    reason: str
    size: int = 0
    mtime_ns: int = 0
    digest: str = ""  # if it could be read
    is_feared: bool = False  # workers died of it, or nearly: nobody else tries


Outcome = FileSplit | FileSame | FileSkipped

encoder = Encoder()
chore_decoder: Decoder[SplitJob] = Decoder(SplitJob)
outcomes_decoder: Decoder[tuple[Outcome, ...]] = Decoder(tuple[Outcome, ...])


class FileRead(Struct, frozen=True):
    """The bytes of a file, and how it was known when they were read."""

    data: bytes
    mtime_ns: int


Looked = tuple[Outcome, bytes]
"""What has become of a file, and its bytes if it was split."""


def look_at(root: bytes, asked: FileRequest, count: Count) -> Looked:
    """Read one file, and split it if it has changed."""
    try:
        read = read_file(root, asked.source)
    except OSError as error:
        return FileSkipped(asked.source, (error.strerror or str(error)).lower()), b""
    if read is None:
        return FileSkipped(asked.source, f"it has more than {limits.INGEST_FILE_BYTES_MAX:,} bytes"), b""
    outcome = _outcome(read, asked, count)
    return outcome, read.data if isinstance(outcome, FileSplit) else b""


def read_again(root: bytes, split: FileSplit, count: Count) -> Looked:
    """The bytes of a file that somebody else has split; if it has changed since, what it has become."""
    try:
        read = read_file(root, split.source)
    except OSError:
        read = None
    if read is not None and digest_of(read.data).hex() == split.digest:
        return split, read.data
    return look_at(root, FileRequest(split.source), count)


def _outcome(read: FileRead, asked: FileRequest, count: Count) -> Outcome:
    """What a file comes to whose bytes are there."""
    data, source = read.data, asked.source
    digest = digest_of(data).hex()
    if digest == asked.digest:
        return FileSame(source, len(data), read.mtime_ns)
    if reason := _unfit(data):
        return FileSkipped(source, reason, len(data), read.mtime_ns, digest)
    found = split(source, data)
    ids = part_ids(source, (part.label for part in found))
    parts = tuple(_part(each, data, part_id, count) for each, part_id in zip(found, ids, strict=True))
    mark = fingerprint((each.part_id, each.digest) for each in parts)
    return FileSplit(source, len(data), read.mtime_ns, digest, parts, mark)


def _part(part: Part, data: bytes, part_id: str, count: Count) -> PartFound:
    body = data[part.start : part.end]
    metadata = {**part.outline.metadata(), PART_KEY: VERSION}
    return PartFound(part_id, part.start, part.end, part.kind, count(body), digest_of(body), metadata)


def read_file(root: bytes, source: str) -> FileRead | None:
    """All of a regular file; None if it is huge. What has become a link, a pipe or a directory raises."""
    with open(root + b"/" + source.encode(), "rb", opener=_open) as file:
        before = os.fstat(file.fileno())
        if not stat.S_ISREG(before.st_mode):
            raise OSError(None, "it is no regular file")
        data = file.read(limits.INGEST_FILE_BYTES_MAX + 1)
        after = os.fstat(file.fileno())
    if len(data) > limits.INGEST_FILE_BYTES_MAX:
        return None
    is_settled = (
        before.st_mtime_ns == after.st_mtime_ns
        and after.st_size == len(data)
        and after.st_mtime_ns < time.time_ns() - limits.INGEST_SETTLED_NS
    )
    return FileRead(data, after.st_mtime_ns if is_settled else 0)


def _open(path: str, flags: int) -> int:
    """Neither through a link, nor waiting for whoever writes into a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _unfit(data: bytes) -> str:
    """Why it is no text."""
    if b"\0" in data[: limits.INGEST_SNIFFED_BYTES]:
        return BINARY
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return NOT_UTF8
    return BINARY if "\0" in text else ""

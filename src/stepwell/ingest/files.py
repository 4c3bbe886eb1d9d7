"""Reading and splitting of files: the job that a client gives to workers, or does itself.

The outcome has the positions of the parts, not their bytes, because it travels through the manager. The client that
stores the parts reads the file again, and the digest tells whether it is still the same.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.source_outline import PART_KEY, RedactedPlace, fingerprint, part_ids, places_within
from stepwell.ingest.redaction import Redaction, find_secrets, redact, redacted_places
from stepwell.ingest.secret_policy import SecretPolicy
from stepwell.ingest.split import VERSION, Part, split

SPLIT_JOB: Final = "split-files"
"""The name of the job under which workers offer it."""

BINARY: Final = "it is binary"
NOT_UTF8: Final = "it is not UTF-8"


Count = Callable[[bytes], int]
"""A function that returns the number of tokens of a body."""


class FileRequest(Struct, frozen=True, array_like=True):
    """A file to read, and the digest that it had when it was stored; empty for a new file."""

    source: str
    digest: str = ""


class SplitJob(Struct, frozen=True, array_like=True):
    """Files of one root that one worker reads and splits.

    `root` is a path in bytes, because a path need not be UTF-8. `policy` says which secrets are redacted.
    """

    root: bytes
    encoding: str
    files: tuple[FileRequest, ...]
    policy: SecretPolicy = SecretPolicy.REDACT


class PartFound(Struct, frozen=True, array_like=True, gc=False):
    """A part of a file as it is to be stored, without its body: that is `data[start:end]` of the redacted text."""

    part_id: str
    start: int
    end: int
    kind: str
    tokens: int
    digest: bytes
    metadata: dict[str, str]


class FileSplit(Struct, frozen=True, array_like=True, tag=True):
    """A file that was read and split. `mtime_ns` is 0 if the file is too young to be recognised by its time later.

    `digest` is that of the file. The parts are those of its text after the `redactions`.
    """

    source: str
    size: int
    mtime_ns: int
    digest: str
    parts: tuple[PartFound, ...]
    fingerprint: str
    redactions: tuple[Redaction, ...] = ()


class FileSame(Struct, frozen=True, array_like=True, tag=True):
    """A file whose bytes have the requested digest, although it was written since."""

    source: str
    size: int
    mtime_ns: int


class FileSkipped(Struct, frozen=True, array_like=True, tag=True):
    """A file that is not split, and why.

    A file that could be read has a digest, size and time, by which it is recognised and not read again. `is_unsafe`
    says that workers died, or nearly died, of the file: then the client does not read it, either.
    """

    source: str
    reason: str
    size: int = 0
    mtime_ns: int = 0
    digest: str = ""
    is_unsafe: bool = False


Outcome = FileSplit | FileSame | FileSkipped

encoder = Encoder()
job_decoder: Decoder[SplitJob] = Decoder(SplitJob)
outcomes_decoder: Decoder[tuple[Outcome, ...]] = Decoder(tuple[Outcome, ...])


class FileRead(Struct, frozen=True):
    """The bytes of a file, and its time as far as it can be trusted (see `read_file`)."""

    data: bytes
    mtime_ns: int


OutcomeWithBytes = tuple[Outcome, bytes]
"""The outcome of a file, and its redacted bytes if it was split."""


def split_file(
    root: bytes, request: FileRequest, count: Count, policy: SecretPolicy = SecretPolicy.REDACT
) -> OutcomeWithBytes:
    """Read one file, and split it if it has changed. An error of the file system becomes a `FileSkipped`."""
    try:
        read = read_file(root, request.source)
    except OSError as error:
        return FileSkipped(request.source, (error.strerror or str(error)).lower()), b""
    if read is None:
        return FileSkipped(request.source, f"it has more than {limits.INGEST_FILE_BYTES_MAX:,} bytes"), b""
    return _outcome(read, request, count, policy)


def reread_split(
    root: bytes, split: FileSplit, count: Count, policy: SecretPolicy = SecretPolicy.REDACT
) -> OutcomeWithBytes:
    """Return the redacted bytes of a file that a worker has split; if the file has changed since, split it again."""
    try:
        read = read_file(root, split.source)
    except OSError:
        read = None
    if read is not None and digest_of(read.data).hex() == split.digest:
        return split, redact(read.data, split.redactions)
    return split_file(root, FileRequest(split.source), count, policy)


def _outcome(read: FileRead, request: FileRequest, count: Count, policy: SecretPolicy) -> OutcomeWithBytes:
    """Return the outcome of a file from its bytes."""
    data, source = read.data, request.source
    digest = digest_of(data).hex()
    if digest == request.digest:
        return FileSame(source, len(data), read.mtime_ns), b""
    if reason := _not_text_reason(data):
        return FileSkipped(source, reason, len(data), read.mtime_ns, digest), b""
    redactions = find_secrets(data, policy)
    places = redacted_places(data, redactions)
    text = redact(data, redactions)
    found = split(source, text)
    ids = part_ids(source, (part.label for part in found))
    parts = tuple(_part(each, text, part_id, count, places) for each, part_id in zip(found, ids, strict=True))
    mark = fingerprint((each.part_id, each.digest) for each in parts)
    return FileSplit(source, len(data), read.mtime_ns, digest, parts, mark, redactions), text


def _part(part: Part, data: bytes, part_id: str, count: Count, places: Sequence[RedactedPlace]) -> PartFound:
    body = data[part.start : part.end]
    outline = replace(part.outline, redacted=places_within(places, part.outline.lines)) if places else part.outline
    metadata = outline.metadata()
    metadata[PART_KEY] = VERSION
    return PartFound(part_id, part.start, part.end, part.kind, count(body), digest_of(body), metadata)


def read_file(root: bytes, source: str) -> FileRead | None:
    """Return all of a regular file; None if it is too large.

    Raise `OSError` for a link, a pipe or a directory. The time is 0 if the file changed while it was read, or was
    written so recently that it may change again within one tick of its clock.
    """
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
    """Open a file without following a link, and without waiting for the writer of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _not_text_reason(data: bytes) -> str:
    """Return why some bytes are no text; empty if they are."""
    if b"\0" in data[: limits.INGEST_SNIFFED_BYTES]:
        return BINARY
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return NOT_UTF8
    return BINARY if "\0" in text else ""

"""The history of a project's files: the messages of its last commits, and the files that each has changed.

Ingesting a directory of a repository stores it as one row of kind `file`, which lists other rows and is no content. An
index reads it to find files by what was said when they were changed. A project without a repository has no such row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

HISTORY_ID: Final = "history:git"
"""The id of the row."""
HEAD_KEY: Final = "head"
"""The metadata key with the commit up to which the history was read."""


class Commit(Struct, frozen=True, array_like=True, gc=False):
    """A commit: its message, and the sources of the files that it has changed."""

    message: str
    sources: tuple[str, ...]


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(tuple[Commit, ...])


def encode_history(commits: Iterable[Commit]) -> bytes:
    """Return the body of the row for some commits, the latest first."""
    return _encoder.encode(tuple(commits))


def decode_history(body: memoryview | bytes) -> tuple[Commit, ...]:
    """Return the commits of a body, the latest first. A client may have stored anything: then there are none."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()

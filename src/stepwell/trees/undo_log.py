"""What a transaction writes down before it touches a tree: all that it will do, and so all that may have to be undone.

Paths are bytes here, because a name on disk need not be text.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec
from msgspec import Struct

from stepwell.errors import StoreDamaged
from stepwell.trees.entry import TreeEntry

VERSION: Final = 1
NAME: Final = "log"


class UndoItem(Struct, frozen=True, array_like=True):
    """A path at which a file or link goes, comes or is replaced. Directories are in the lists beside the items."""

    raw: bytes
    before: TreeEntry | None
    after: TreeEntry | None

    @property
    def path(self) -> str:
        return os.fsdecode(self.raw)


class UndoLog(Struct, frozen=True, array_like=True):
    """An item's number is its place: `new-N` is what is to come there, `old-N` a second name of what was there."""

    version: int
    items: tuple[UndoItem, ...]
    made: tuple[bytes, ...]  # directories, the highest first
    removed: tuple[tuple[bytes, int], ...]  # directories and their permissions, the lowest first
    loosened: tuple[tuple[bytes, int], ...]  # read-only directories to be written in, the highest first

    @property
    def touched(self) -> list[str]:
        """Every directory in which a name comes, goes or is replaced; also those that come and go themselves."""
        paths = [item.raw for item in self.items] + [*self.made] + [raw for raw, _ in self.removed]
        directories = {raw.rpartition(b"/")[0] for raw in paths} | {*self.made}
        return [os.fsdecode(raw) for raw in sorted(directories)]


def new_name(number: int) -> str:
    return f"new-{number}"


def old_name(number: int) -> str:
    return f"old-{number}"


_decoder: msgspec.msgpack.Decoder[UndoLog] = msgspec.msgpack.Decoder(UndoLog)


def encode(log: UndoLog) -> bytes:
    return msgspec.msgpack.encode(log)


def decode(data: bytes, where: str) -> UndoLog:
    """What was written; it was on disk before its directory had its name, so that there is no half of one."""
    try:
        log = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise StoreDamaged(
            f"{where!r} is not the log of a transaction ({error}): compare the tree with what you expect, move away "
            "the directory that it is in, and try again"
        ) from error
    if log.version != VERSION:
        raise StoreDamaged(f"{where!r} is a log of version {log.version}: finish with the stepwell that wrote it")
    return log

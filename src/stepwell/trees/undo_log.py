"""The undo log: everything that a transaction will do to a tree, written before it touches the tree.

Because the log lists all changes in advance, undoing needs no record of how far the transaction came: `undo` compares
each path with the log. Paths are bytes here, because a name on disk need not be text.
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
    """A path at which a file or link is created, removed or replaced. Directories are in the log's own lists.

    `before` and `after` are complete, with modes, as found and as wanted; None means that no file is there.
    """

    raw: bytes
    before: TreeEntry | None
    after: TreeEntry | None

    @property
    def path(self) -> str:
        """The path as text, with surrogates for bytes that are none."""
        return os.fsdecode(self.raw)


class UndoLog(Struct, frozen=True, array_like=True):
    """All changes of one transaction, as stored in the file `log` of its directory.

    The number of an item is its index: `new-N` beside the log is the content to come there, and `old-N` is a second
    name of the file that was there. The order of the directories is the order in which they can be processed.
    """

    version: int
    items: tuple[UndoItem, ...]
    made: tuple[bytes, ...]  # directories to create, the highest first
    removed: tuple[tuple[bytes, int], ...]  # directories to remove, with their permissions, the lowest first
    loosened: tuple[tuple[bytes, int], ...]  # read-only directories that must be writable meanwhile, the highest first

    @property
    def touched(self) -> list[str]:
        """Every directory in which a name is created, removed or replaced, and every directory that is created.

        These must be synced, because a name is durable only when its directory is on disk.
        """
        paths = [item.raw for item in self.items] + [*self.made] + [raw for raw, _ in self.removed]
        directories = {raw.rpartition(b"/")[0] for raw in paths} | {*self.made}
        return [os.fsdecode(raw) for raw in sorted(directories)]


def new_name(number: int) -> str:
    """The name of an item's new content in the transaction's directory."""
    return f"new-{number}"


def old_name(number: int) -> str:
    """The name of an item's old content in the transaction's directory."""
    return f"old-{number}"


_decoder: msgspec.msgpack.Decoder[UndoLog] = msgspec.msgpack.Decoder(UndoLog)


def encode(log: UndoLog) -> bytes:
    """Return the log as it is stored."""
    return msgspec.msgpack.encode(log)


def decode(data: bytes, where: str) -> UndoLog:
    """Return a stored log; `StoreDamaged`, naming the file `where`, if it cannot be decoded or has another version.

    A log is on disk before its directory is renamed to `NAME.open`, so a crash never leaves half of one.
    """
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

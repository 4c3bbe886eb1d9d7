"""The undo log: everything that a transaction will do to a tree, written before it touches the tree.

Because the log lists all changes in advance, undoing needs no record of how far the transaction came: `undo` compares
each path with the log. Paths are bytes here, because a name on disk need not be text.

`StagingDir` decodes a log only after its seal was checked. Decoding checks every value of it all the same, by the rules
of a change: a log that exists cannot lead out of its root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from stepwell import limits
from stepwell.domain.changesets.paths import check_mode
from stepwell.errors import InvalidArgument, StoreDamaged
from stepwell.text import plural
from stepwell.trees.entry import EMPTY, TreeEntry, check_target

VERSION: Final = 2
NAME: Final = "log"
_PERMISSIONS_MAX: Final = 0o7777
_OWN_FILE: Final = re.compile(r"log|(?:new|old)-[0-9]+")


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
    nonce: bytes = b""  # random, so that no two transactions have the same log, and so the same seal

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


def is_own_file(name: str) -> bool:
    """Return True if a transaction's directory may have a file of that name."""
    return _OWN_FILE.fullmatch(name) is not None


_decoder: msgspec.msgpack.Decoder[UndoLog] = msgspec.msgpack.Decoder(UndoLog)


def encode(log: UndoLog) -> bytes:
    """Return the log as it is stored; `InvalidArgument` if it is too large to be read again."""
    data = msgspec.msgpack.encode(log)
    if len(data) > limits.TREE_LOG_BYTES_MAX:
        raise InvalidArgument(
            f"the log of the change has {plural(len(data), 'byte')}, at most {limits.TREE_LOG_BYTES_MAX:,} are "
            "allowed: change fewer paths at once"
        )
    return data


def decode(data: bytes, where: str) -> UndoLog:
    """Return a stored log; `StoreDamaged`, naming the file `where`, if it is not valid or has another version.

    A log is on disk before its directory becomes an open one, so a crash never leaves half of one.
    """
    try:
        log = _decoder.decode(data)
        if log.version != VERSION:
            raise StoreDamaged(f"{where!r} is a log of version {log.version}: finish with the stepwell that wrote it")
        _check(log)
    except (msgspec.DecodeError, InvalidArgument) as error:
        raise damaged(where, str(error)) from error
    return log


def damaged(where: str, why: str) -> StoreDamaged:
    """Return the error for a log that cannot be used."""
    return StoreDamaged(
        f"{where!r} is not the log that the transaction wrote ({why}): compare the tree with what you expect, move "
        "away the directory that it is in, and try again"
    )


def _check(log: UndoLog) -> None:
    """Raise `InvalidArgument` unless every path stays in the root and occurs once, and every mode is one."""
    for item in log.items:
        check_target(item.path)
        for entry in (item.before, item.after):
            if entry is not None:
                _check_entry(entry)
    for raw in (*log.made, *(raw for raw, _ in log.removed), *(raw for raw, _ in log.loosened if raw)):
        check_target(os.fsdecode(raw))
    _require_unique([item.raw for item in log.items])
    _require_unique(log.made)
    for modes in (log.removed, log.loosened):
        _require_unique([raw for raw, _ in modes])
        for _, mode in modes:
            if not 0 <= mode <= _PERMISSIONS_MAX:
                raise InvalidArgument(f"{mode:#o} are no permissions of a directory")


def _check_entry(entry: TreeEntry) -> None:
    """Raise `InvalidArgument` unless an entry is a file or a link, with a mode and a digest."""
    check_mode(entry.mode, entry.digest, "entry")
    if entry.mode is None or entry.is_directory or len(entry.digest) != len(EMPTY):
        raise InvalidArgument("an entry is no file and no link")


def _require_unique(paths: Sequence[bytes]) -> None:
    if len({*paths}) != len(paths):
        raise InvalidArgument("a path occurs twice")

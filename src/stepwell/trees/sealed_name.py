"""Names of transaction directories, sealed with a key that lies outside every tree.

A tree may come from a repository or an archive of an attacker, and have a `.stepwell` of its own. Recovery would do
what an attacker's log says. So it accepts only transactions of this user's own processes, by the names of their
directories:

    NAME.SEAL.STAGE     for instance 01K4…-1.5be0….open

The seal is in hexadecimal and has three parts:

    log tag         16 bytes   keyed hash of the log's bytes
    by device       12 bytes   keyed hash of version, stage, name, log tag, and the root's inode and `st_dev`
    by file system  12 bytes   the same, with `statvfs.f_fsid` instead of `st_dev`

A seal is accepted if one of the two hashes matches the root as it is now. The device's number alone is not enough,
because it may change when the machine starts again (device mapper, btrfs, network file systems), and recovery is for
exactly that moment. The file system's id alone is not enough, because some file systems have none (0, never accepted)
and some derive it from the device's number. A copy of a tree has another inode, so its transactions are not accepted.

The seal is in the name, not in a file, so that each change of stage or name stays one atomic rename: there is no
moment at which a directory exists and its seal does not, or is half written. Because only a holder of the key can
calculate a seal, no planted directory can have the name that a transaction is about to use.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct

from stepwell import limits
from stepwell.errors import InvalidArgument

_VERSION: Final = 1
_LOG_TAG_BYTES: Final = 16
_HASH_BYTES: Final = 12
"""96 bits. An attacker can only guess, and each guess is a directory in a tree that a user applies a plan to."""
_SEAL_CHARS: Final = 2 * (_LOG_TAG_BYTES + 2 * _HASH_BYTES)


class Stage(StrEnum):
    """The state of a transaction, as in the suffix of its directory; `staging_dir` says what each means."""

    STAGING = "staging"
    OPEN = "open"
    DONE = "done"
    SPENT = "spent"
    LEFT = "left"


_NAME: Final = rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{limits.TREE_TRANSACTION_NAME_CHARS_MAX - 1}}}"
_SEALED: Final = re.compile(
    rf"(?P<name>{_NAME})\.(?P<seal>[0-9a-f]{{{_SEAL_CHARS}}})\.(?P<stage>{'|'.join(Stage)})", re.ASCII
)


def check_name(name: str) -> None:
    """Raise `InvalidArgument` unless the name can be part of a directory's name: no slash, no leading dot, not long."""
    if not re.fullmatch(_NAME, name):
        raise InvalidArgument(
            f"{name[: limits.PATH_CHARS_SHOWN]!r} names no transaction: use up to "
            f"{limits.TREE_TRANSACTION_NAME_CHARS_MAX} letters, digits, '_', '-' and '.'"
        )


class TransactionRef(Struct, frozen=True):
    """A transaction on disk: its name, its stage, the keyed hash of its log, and its directory's name.

    A `Sealer` makes them: to create a directory or rename one, or from the name of one whose seal it has checked. The
    directory's name is part of it because a seal from before a restart of the machine can differ from a new one.
    """

    name: str
    stage: Stage
    log_tag: bytes
    directory: str


class RootIdentity(Struct, frozen=True):
    """The numbers by which a root is recognised again."""

    inode: int
    device: int
    file_system: int

    @classmethod
    def of(cls, descriptor: int) -> RootIdentity:
        """Return the identity of an open directory."""
        status = os.fstat(descriptor)
        return cls(status.st_ino, status.st_dev, os.fstatvfs(descriptor).f_fsid)


class Sealer:
    """Calculates and checks the seals of one root. Immutable; any thread may use it."""

    def __init__(self, key: bytes, root: RootIdentity) -> None:
        self._key = key
        self._root = root

    def tag_log(self, log: bytes) -> bytes:
        """Return the keyed hash of a log's bytes."""
        return hashlib.blake2b(log, key=self._key, digest_size=_LOG_TAG_BYTES, person=b"stepwell log").digest()

    def seal(self, name: str, stage: Stage, log_tag: bytes) -> TransactionRef:
        """Return a transaction with the sealed name of its directory."""
        by_device, by_file_system = self._hashes(name, stage, log_tag)
        seal = log_tag + by_device + by_file_system
        return TransactionRef(name, stage, log_tag, f"{name}.{seal.hex()}.{stage}")

    def draft_name(self, name: str) -> str:
        """Return the name of a file while it is written, which nothing planted can have."""
        return f"{name}.{self._hash('draft', name).hex()}"

    def open(self, directory: str) -> TransactionRef | None:
        """Return the transaction that a directory's name stands for; None if the seal is not of this key and root."""
        parts = _SEALED.fullmatch(directory)
        if parts is None:
            return None
        seal = bytes.fromhex(parts["seal"])
        found = TransactionRef(parts["name"], Stage(parts["stage"]), seal[:_LOG_TAG_BYTES], directory)
        by_device, by_file_system = self._hashes(found.name, found.stage, found.log_tag)
        is_same_device = hmac.compare_digest(seal[_LOG_TAG_BYTES:-_HASH_BYTES], by_device)
        is_same_file_system = hmac.compare_digest(seal[-_HASH_BYTES:], by_file_system)
        return found if is_same_device or (is_same_file_system and self._root.file_system != 0) else None

    def _hashes(self, name: str, stage: Stage, log_tag: bytes) -> tuple[bytes, bytes]:
        return (
            self._hash("device", stage, name, log_tag, self._root.device),
            self._hash("file system", stage, name, log_tag, self._root.file_system),
        )

    def _hash(self, *fields: str | bytes | int) -> bytes:
        message = msgspec.msgpack.encode((_VERSION, self._root.inode, *fields))
        return hashlib.blake2b(message, key=self._key, digest_size=_HASH_BYTES, person=b"stepwell name").digest()

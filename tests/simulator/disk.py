"""A simulated disk: it holds what was flushed, and forgets or tears at a power failure what was not.

SQLite runs on it as it is, through a VFS of apsw. The alternatives were a real directory with the crash model of
`tests.support.syscall_trace`, which follows every system call of a process and takes a second for each run, and a model
of the store in place of SQLite, which would not have SQLite's own recovery. A commit takes 33 µs on this disk, and
26 µs on a real one in memory.

The model of a power failure: every write since the last flush of its file is kept, dropped, or kept in part (a number
of whole sectors from its beginning), each by itself. Names of files are journaled: of the changes since the last flush
of the directory a number of the first ones is kept. The death of a process alone loses nothing.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

import apsw

from stepwell.storage.sql import Rows

SECTOR_BYTES = 512
VFS_NAME = "stepwell-simulator"


class DiskFullError(OSError):
    """The disk has no room for a write."""


class SimulatedFile:
    """A file: its contents as a process reads them, and as the disk has them.

    `pending` are the writes since the last flush: an offset and bytes, or a new length and None.
    """

    __slots__ = ("content", "flushed", "pending")

    def __init__(self) -> None:
        self.content = bytearray()
        self.flushed = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []

    def write(self, offset: int, data: bytes) -> None:
        _write(self.content, offset, data)
        self.pending.append((offset, data))

    def truncate(self, size: int) -> None:
        _resize(self.content, size)
        self.pending.append((size, None))

    def flush(self) -> None:
        flushed = self.flushed
        for offset, data in self.pending:
            if data is not None and offset <= len(flushed):
                flushed[offset : offset + len(data)] = data
            else:
                _apply(flushed, offset, data)
        self.pending.clear()

    def lose_power(self, generator: random.Random) -> None:
        """Keep, drop or tear each write that was not flushed."""
        for offset, data in self.pending:
            fate = generator.random()
            if fate < 1 / 3:
                _apply(self.flushed, offset, data)
            elif fate < 2 / 3 and data is not None and len(data) > SECTOR_BYTES:
                sectors = generator.randrange(len(data) // SECTOR_BYTES)
                _apply(self.flushed, offset, data[: sectors * SECTOR_BYTES])
        self.pending.clear()
        self.content = bytearray(self.flushed)


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size > len(content):
        content.extend(bytes(size - len(content)))
    del content[size:]


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        _resize(content, offset)
    elif data:
        _write(content, offset, data)


_disk_numbers = itertools.count(1)
_disks: WeakValueDictionary[str, SimulatedDisk] = WeakValueDictionary()


def _located(path: str) -> tuple[SimulatedDisk, str]:
    """Return the disk of a path of SQLite's, and the name on that disk."""
    root, slash, name = path[1:].partition("/")
    return _disks[f"/{root}"], slash + name


class SimulatedDisk:
    """Files by name, with faults that the machine arms. `on_call` comes before each change, and may raise."""

    def __init__(self) -> None:
        self.names: dict[str, SimulatedFile] = {}
        self._flushed_names: dict[str, SimulatedFile] = {}
        self._pending_names: list[tuple[str, SimulatedFile | None]] = []
        self.on_call: Callable[[], None] = lambda: None
        self.validity = 0  # the content of the validity file, which never grows and is never flushed
        self.is_full = False
        self.fails_at: int | None = None  # changes until one fails; None: none does
        self.has_failed = False  # a fault has happened to the living process
        self.generation = 0  # files that were opened in an earlier one are those of a dead process
        self.is_detached = False  # between the death of a process and the start of the next
        self.root = f"/{next(_disk_numbers)}"  # so that SQLite's file system finds the disk of a path
        _disks[self.root] = self

    def find(self, name: str) -> SimulatedFile | None:
        return self.names.get(name)

    def create(self, name: str) -> SimulatedFile:
        found = self.names.get(name)
        if found is None:
            found = self._enter(name, SimulatedFile())
        return found

    def remove(self, name: str) -> None:
        if self.names.pop(name, None) is not None:
            self._pending_names.append((name, None))

    def rename(self, old: str, new: str) -> None:
        moved = self.names.pop(old)
        self._pending_names.append((old, None))
        self._enter(new, moved)

    def _enter(self, name: str, file: SimulatedFile) -> SimulatedFile:
        self.names[name] = file
        self._pending_names.append((name, file))
        return file

    def check(self, *, grows: bool) -> None:
        """Count a change, and raise the fault that is due at it."""
        self.on_call()
        if self.fails_at is not None:
            self.fails_at -= 1
            if self.fails_at < 0:
                self.fails_at = None
                self.has_failed = True
                raise OSError(5, "Input/output error")
        if grows and self.is_full:
            self.has_failed = True
            raise DiskFullError(28, "No space left on device")

    def flush_names(self) -> None:
        """Make creations, removals and new names durable."""
        for name, file in self._pending_names:
            self._enter_flushed(name, file)
        self._pending_names.clear()

    def _enter_flushed(self, name: str, file: SimulatedFile | None) -> None:
        if file is None:
            self._flushed_names.pop(name, None)
        else:
            self._flushed_names[name] = file

    def kill(self) -> None:
        """Note the death of the process: its open files change nothing any more."""
        self.generation += 1
        self.is_detached = True
        self.is_full, self.fails_at, self.has_failed = False, None, False

    def lose_power(self, generator: random.Random) -> None:
        """Keep what was flushed, and parts of the rest."""
        self.kill()
        for name, file in self._pending_names[: generator.randint(0, len(self._pending_names))]:
            self._enter_flushed(name, file)
        self._pending_names.clear()
        self.names = dict(self._flushed_names)
        for file in self.names.values():
            file.lose_power(generator)

    def copy(self) -> SimulatedDisk:
        """Return a disk with the same contents, for a reader that changes nothing."""
        copied = SimulatedDisk()
        for name, file in self.names.items():
            copied.create(name).content = bytearray(file.content)
        return copied


class _OpenFile:
    """A file of the disk, as SQLite has opened it. The names of the methods are those of apsw."""

    def __init__(self, disk: SimulatedDisk, name: str) -> None:
        self._disk = disk
        self._file = disk.create(name)
        self._name = name
        self._generation = disk.generation

    @property
    def _is_dead(self) -> bool:
        return self._generation != self._disk.generation

    def xRead(self, amount: int, offset: int) -> bytearray:  # noqa: N802
        return self._file.content[offset : offset + amount]

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        disk, file = self._disk, self._file
        if self._generation != disk.generation:
            return
        size = len(file.content)
        end = offset + len(data)
        if disk.fails_at is not None or disk.is_full:
            try:
                disk.check(grows=end > size)
            except DiskFullError as error:
                raise apsw.FullError(str(error)) from error
            except OSError as error:
                raise apsw.IOError(str(error)) from error
        else:
            disk.on_call()
        if offset <= size:
            file.content[offset:end] = data
            file.pending.append((offset, data))
        else:
            file.write(offset, data)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        if not self._is_dead:
            self._disk.check(grows=False)
            self._file.truncate(size)

    def xSync(self, _flags: int) -> None:  # noqa: N802
        if not self._is_dead:
            try:
                self._disk.check(grows=False)
            except OSError as error:
                raise apsw.IOError(str(error)) from error
            self._file.flush()
            if self._name.endswith(("-wal", "-journal")):  # the real VFS flushes the directory of a new log
                self._disk.flush_names()

    def xFileSize(self) -> int:  # noqa: N802
        return len(self._file.content)

    def xLock(self, _level: int) -> None:  # noqa: N802
        """Do nothing: one connection has the database for itself."""

    def xUnlock(self, _level: int) -> None:  # noqa: N802
        """Do nothing: one connection has the database for itself."""

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False

    def xFileControl(self, _operation: int, _pointer: int) -> bool:  # noqa: N802
        return False

    def xSectorSize(self) -> int:  # noqa: N802
        return SECTOR_BYTES

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        return 0

    def xClose(self) -> None:  # noqa: N802
        """Do nothing: the file stays on the disk."""


class _FileSystem(apsw.VFS):
    """The file system of SQLite in this process: it has all simulated disks, each under its root."""

    def __init__(self) -> None:
        super().__init__(VFS_NAME, "", maxpathname=100)

    def xOpen(self, name: str | apsw.URIFilename | None, _flags: list[int]) -> Any:  # noqa: ANN401, N802
        return _OpenFile(*_located(name.filename() if isinstance(name, apsw.URIFilename) else str(name)))

    def xAccess(self, pathname: str, _flags: int) -> bool:  # noqa: N802
        disk, name = _located(pathname)
        return name in disk.names

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001, N802
        disk, name = _located(filename)
        if not disk.is_detached:
            disk.remove(name)
            if syncdir:
                disk.flush_names()

    def xFullPathname(self, name: str) -> str:  # noqa: N802
        return name

    def xRandomness(self, numbytes: int) -> bytes:  # noqa: N802
        return bytes(numbytes)

    def xSleep(self, microseconds: int) -> int:  # noqa: N802
        return microseconds

    def xCurrentTimeInt64(self) -> int:  # noqa: N802
        return 210_866_760_000_000

    def xGetLastError(self) -> tuple[int, str]:  # noqa: N802
        return 0, ""


_file_system = _FileSystem()


class SimulatedDatabase:
    """A connection to a database on a simulated disk, with the interface and the errors of `sqlite3`."""

    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk  # which lives as long as its connections
        self._db = apsw.Connection(f"{disk.root}{path}", vfs=VFS_NAME)
        self.execute("PRAGMA locking_mode = EXCLUSIVE")  # the simulated file system has no shared memory

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        try:
            return _Rows(self._db, self._db.execute(sql, parameters))
        except apsw.Error as error:
            raise _translated(error) from error

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Rows:
        try:
            return _Rows(self._db, self._db.executemany(sql, parameters))
        except apsw.Error as error:
            raise _translated(error) from error

    def create_function(
        self, name: str, narg: int, func: Callable[..., Any] | None, /, *, deterministic: bool = False
    ) -> None:
        self._db.create_scalar_function(name, func, narg, deterministic=deterministic)

    def close(self) -> None:
        try:
            self._db.close()
        except apsw.Error as error:
            raise _translated(error) from error


class _Rows:
    """The rows of a statement."""

    __slots__ = ("_cursor", "_db")

    def __init__(self, db: apsw.Connection, cursor: apsw.Cursor) -> None:
        self._db, self._cursor = db, cursor

    @property
    def rowcount(self) -> int:
        return self._db.changes()

    def fetchone(self) -> Any:  # noqa: ANN401
        return self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cursor)


def _translated(error: apsw.Error) -> sqlite3.OperationalError:
    translated = sqlite3.OperationalError(str(error))
    translated.sqlite_errorcode = getattr(error, "extendedresult", 0) or getattr(error, "result", 0)
    return translated

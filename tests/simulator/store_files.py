"""The files of a store on a simulated disk."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache

from stepwell.errors import StoreDamaged
from stepwell.storage.database import configure_to_write, require_known_version
from stepwell.storage.files.mark import Mark, parse_mark
from stepwell.storage.files.store_files import StoreFiles
from stepwell.storage.schema import APPLICATION_ID, VERSION, migrate
from stepwell.storage.sql import Database
from stepwell.storage.table import add_checksum_function
from tests.simulator.disk import SimulatedDatabase, SimulatedDisk

DIRECTORY = "/data"
DATABASE = f"{DIRECTORY}/stepwell.sqlite"
_MARK = f"{DIRECTORY}/stepwell.mark"
_NEW_MARK = f"{_MARK}.new"


@cache
def _tables() -> tuple[str, ...]:
    """Return the statements that create all tables as the migrations leave them."""
    with closing(sqlite3.connect(":memory:")) as db:
        add_checksum_function(db)
        migrate(db)
        return tuple(sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY rowid"))


def create_tables(connection: Database) -> int:
    """Do for an empty database what `migrate` does, in an eighth of the time: no earlier version is made first."""
    for statement in _tables():
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    return 0


class SimulatedStoreFiles(StoreFiles):
    """What `StoreFiles` does, without a kernel."""

    def __init__(self, disk: SimulatedDisk, boot: str) -> None:
        disk.is_detached = False
        self._disk = disk
        self._generation = disk.generation
        self._boot = boot
        self._guard_disk: SimulatedDisk | None = None

    @property
    def path(self) -> str:
        return DIRECTORY

    @property
    def database(self) -> str:
        return DATABASE

    def boot_id(self) -> str:
        return self._boot

    def open_guard(self) -> Database | None:
        found = self._disk.find(DATABASE)
        if found is None or not found.content or self._disk.find(f"{DATABASE}-journal") is not None:
            return None
        guard = SimulatedDatabase(self._disk.copy(), DATABASE)
        require_known_version(guard)
        return guard

    def open_database(self) -> Database:
        db = SimulatedDatabase(self._disk, DATABASE)
        configure_to_write(db, DATABASE)
        return db

    def find_mark(self) -> Mark | StoreDamaged | None:
        found = self._disk.find(_MARK)
        if found is None:
            return None
        return parse_mark(bytes(found.content)) or StoreDamaged("the mark is damaged")

    def create_mark(self, first: Mark) -> None:
        self._disk.check(grows=True)
        file = self._disk.create(_NEW_MARK)
        file.truncate(0)
        file.write(0, first.encode())
        self._disk.check(grows=False)
        file.flush()
        self._disk.check(grows=False)
        self._disk.rename(_NEW_MARK, _MARK)
        self._disk.check(grows=False)
        self._disk.flush_names()

    def write_mark(self, mark: Mark) -> None:
        self._disk.check(grows=False)
        self._disk.create(_MARK).write(0, mark.encode())

    def sync_mark(self) -> None:
        self._disk.check(grows=False)
        self._disk.create(_MARK).flush()

    def read_validity(self) -> int:
        return self._disk.validity

    def write_validity(self, until_ns: int) -> None:
        self._disk.validity = until_ns

    def are_present(self) -> bool:
        return self._disk.find(DATABASE) is not None and self._disk.find(_MARK) is not None

    def close(self) -> None:
        if self._generation == self._disk.generation and (mark := self._disk.find(_MARK)) is not None:
            mark.flush()

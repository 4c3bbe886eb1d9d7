"""Damage to the files of a data directory, as a bad disk does it: single bits, a lost end, a lost file."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from stepwell.storage.files.directory import DATABASE

WAL = f"{DATABASE}-wal"
BODY_COLUMNS = {("bodies", "data"), ("body_parts", "data")}
SHORTEST = 3
"""Shorter values occur by chance in other places of a file."""


def flip_bit(path: Path, at: int, bit: int) -> None:
    """Invert one bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ (1 << bit)]))


def damage_log(directory: Path, seed: int) -> str:
    """Flip a bit of a log, truncate it or delete it; what was done, for the message of a failed test."""
    chance, log = random.Random(seed), directory / WAL
    size = log.stat().st_size
    if seed == 0:
        log.unlink()
        return "the log was deleted"
    if chance.random() < 0.3:
        left = chance.randrange(size)
        with log.open("r+b") as file:
            file.truncate(left)
        return f"the log was truncated from {size} to {left} bytes"
    at, bit = chance.randrange(size), chance.randrange(8)
    flip_bit(log, at, bit)
    return f"bit {bit} of byte {at} of the log was flipped"


def value_places(directory: Path) -> list[tuple[int, int]]:
    """The begin and length of each text, digest and large number of a row in the file of a database.

    The bytes of bodies are left out, because their digests are checked elsewhere.
    """
    content = (directory / DATABASE).read_bytes()
    found: set[tuple[int, int]] = set()
    with closing(sqlite3.connect(f"file:{directory / DATABASE}?mode=ro&immutable=1", uri=True)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            for column in columns:
                if (table, column) not in BODY_COLUMNS:
                    for (value,) in db.execute(f"SELECT {column} FROM {table}"):  # noqa: S608 - ours
                        found |= set(_places(content, _stored(value)))
    return sorted(found)


def _stored(value: object) -> bytes:
    """A value as SQLite writes it into a record."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int) and value >= 1 << 31:
        return value.to_bytes(6 if value < 1 << 47 else 8)
    return value if isinstance(value, bytes) else b""


def _places(content: bytes, value: bytes) -> list[tuple[int, int]]:
    found, at = [], -1
    while len(value) >= SHORTEST and (at := content.find(value, at + 1)) >= 0:
        found.append((at, len(value)))
    return found


def flip_in_values(directory: Path, places: list[tuple[int, int]], seed: int) -> str:
    """Flip one bit in one of the values."""
    chance = random.Random(seed)
    begin, length = chance.choice(places)
    at, bit = begin + chance.randrange(length), chance.randrange(8)
    flip_bit(directory / DATABASE, at, bit)
    return f"bit {bit} of byte {at}, in a value of {length} bytes at {begin}"


def attempts(count: int, attempt: Callable[[int], str | None]) -> list[str]:
    """The failures of many attempts, each with its own seed."""
    return [failure for seed in range(count) if (failure := attempt(seed)) is not None]

"""Tables whose rows carry a checksum, so that a value that the disk has changed is found when it is read.

SQLite has no checksums of its own outside of its log. Each row of the state therefore has a column `checksum`: the
CRC-32 of its other columns, encoded as msgpack. A CRC finds every flipped bit, every change within 32
consecutive bits, and of all other changes all but one in four billion. A longer hash would be stronger only against a
program that means to deceive, which could write the checksum too; and it takes twice as long as the 0.3 µs of a row.

A row that vanishes as a whole, and a page that is an older version of itself, have no wrong checksum. The number of the
last commit finds a lost end of the log (see `mark`), the number of rows and the references between them find a missing
row. Not found: an older version of a row in place of the present one, which a disk leaves that has lost one write in
the middle of others, and a missing session, reply or event.

The bytes of bodies have a digest, and are outside of the checksum: recovery must not read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final
from zlib import crc32

import msgspec

from stepwell.errors import StoreDamaged
from stepwell.storage.sql import Database

Value = str | int | float | bytes | None
Values = tuple[Value, ...]

_encode: Final = msgspec.msgpack.Encoder().encode
_FUNCTION: Final = "row_checksum"


def checksum(values: Sequence[Value]) -> int:
    """Return the checksum of the columns of a row."""
    return crc32(_encode(values))


def add_checksum_function(connection: Database) -> None:
    """Give a connection the SQL function `row_checksum`, with which rows are changed in place and migrated."""
    connection.create_function(_FUNCTION, -1, lambda *values: checksum(values), deterministic=True)


class CheckedTable:
    """The name, the columns and the statements of a table with checksums.

    The statements are built once from names in the source, never from data. They name the columns, because a column
    that a migration adds comes behind all others.
    """

    def __init__(self, name: str, columns: Sequence[str], key: Sequence[str], order: str = "") -> None:
        self.name = name
        self.columns = tuple(columns)
        self.key = tuple(key)
        names = ", ".join(self.columns)
        where = " AND ".join(f"{each} = ?" for each in self.key)
        self.put = self.put_first(len(self.columns))
        self.delete = f"DELETE FROM {name} WHERE {where}"  # noqa: S608
        self._names, self._order = names, order or ", ".join(self.key) or "1"
        self.select = self.select_with()
        self.seal = f"UPDATE {name} SET checksum = {_FUNCTION}({names})"  # noqa: S608

    @cache  # noqa: B019 - tables are constants
    def put_first(self, width: int) -> str:
        """Return the statement that writes the first columns of a row: all that an earlier version had."""
        names = ", ".join(self.columns[:width])
        marks = ", ".join("?" * (width + 1))
        return f"INSERT OR REPLACE INTO {self.name} ({names}, checksum) VALUES ({marks})"  # noqa: S608

    def select_with(self, *extras: str) -> str:
        """Return the query for all rows, with other expressions behind the checksum."""
        return f"SELECT {', '.join((self._names, 'checksum', *extras))} FROM {self.name} ORDER BY {self._order}"  # noqa: S608

    def sealed(self, values: Values) -> Values:
        """Return the values of a row with their checksum behind them, as `put` writes them."""
        return (*values, crc32(_encode(values)))

    def opened(self, found: Sequence[Value]) -> Sequence[Value]:
        """Return the values of a row as it was selected, without its checksum.

        Raise `StoreDamaged`, with the table and the key, if the checksum is another one. Values behind the checksum,
        which a query may add, are returned as they are.
        """
        width = len(self.columns)
        values = found[:width]
        try:
            is_right = crc32(_encode(values)) == found[width]
        except (UnicodeError, OverflowError, msgspec.MsgspecError):  # text that is no Unicode cannot be encoded
            is_right = False
        if not is_right:
            raise self.damage(found, "its checksum is wrong, so that a value is not the one that was written")
        return (*values, *found[width + 1 :]) if len(found) > width + 1 else values

    def damage(self, values: Sequence[Value], problem: object) -> StoreDamaged:
        """Return the error for a row, with the table and the key."""
        found = dict(zip(self.columns, values, strict=False))
        key = ", ".join(f"{column} {_shown(found[column])}" for column in self.key)
        return StoreDamaged(f"table {self.name}{', ' if key else ''}{key}: {problem}")


def _shown(value: Value) -> str:
    """Return a value of a key for an error message; damaged text is escaped."""
    return ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value)

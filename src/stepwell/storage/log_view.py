"""The tables with the redo log applied, for a connection that must not write.

Temporary views have the names of the tables and hide them. A view has the rows of its table that the log does not
touch, and the rows that the log has written. Triggers turn the statements of the log into changes of two temporary
tables for each view, so that the log is applied by the same code as everywhere else.

Nothing is made while the log is empty: the tables are then read as they are, also damaged ones.
"""

from __future__ import annotations

from typing import Final

from stepwell.storage import redo_log, rows
from stepwell.storage.sql import Database
from stepwell.storage.table import CheckedTable

_KEYS: Final[dict[CheckedTable, tuple[str, ...]]] = {
    **{table: table.key for table in redo_log.LOGGED},
    rows.FRAGMENTS: ("serial",),
    rows.STORE: ("epoch",),
    rows.REDO_LOG: ("number",),
}
"""The tables that get a view, and the columns by which a row replaces another one."""


def apply_log(db: Database) -> None:
    """Let the connection see the tables with the redo log applied.

    Raise `StoreDamaged` for a damaged or missing record: the records before it are applied.
    """
    if redo_log.is_empty(db):
        return
    for table, key in _KEYS.items():
        for statement in _view(table, key):
            db.execute(statement)
    redo_log.apply_all(db)


def _view(table: CheckedTable, key: tuple[str, ...]) -> tuple[str, ...]:
    """Return the statements that make the view of a table."""
    name, columns = table.name, ", ".join((*table.columns, "checksum"))
    keys, new_keys, old_keys = (", ".join(f"{row}{each}" for each in key) for row in ("", "new.", "old."))
    is_hidden = " AND ".join(f"hidden.{each} = there.{each}" for each in key)
    is_same = " AND ".join(f"{each} = old.{each}" for each in key)
    new_values = ", ".join(f"new.{each}" for each in (*table.columns, "checksum"))
    view = (
        f"SELECT {columns} FROM main.{name} AS there "  # noqa: S608 - names of the source
        f"WHERE NOT EXISTS (SELECT 1 FROM hidden_{name} AS hidden WHERE {is_hidden}) "
        f"UNION ALL SELECT {columns} FROM logged_{name}"
    )
    hide = f"INSERT OR IGNORE INTO hidden_{name} VALUES"
    put = f"INSERT OR REPLACE INTO logged_{name} VALUES ({new_values})"  # noqa: S608 - names of the source
    drop = f"DELETE FROM logged_{name} WHERE {is_same}"  # noqa: S608 - names of the source
    return (
        f"CREATE TEMP TABLE hidden_{name} ({keys}, PRIMARY KEY ({keys})) WITHOUT ROWID",
        f"CREATE TEMP TABLE logged_{name} ({columns}, PRIMARY KEY ({keys}))",
        f"CREATE TEMP VIEW {name} AS {view}",
        f"CREATE TEMP TRIGGER put_{name} INSTEAD OF INSERT ON {name} BEGIN {hide} ({new_keys}); {put}; END",
        f"CREATE TEMP TRIGGER delete_{name} INSTEAD OF DELETE ON {name} BEGIN {hide} ({old_keys}); {drop}; END",
    )

"""A command that asks SQLite's FTS5 about the files of a directory, as a script would that has nothing else.

    python fts5_command.py DATABASE DIRECTORY WORD...

It follows the files by size and time, as `stepwell assemble` does, reads those that have changed, and prints the best
files with their scores by `bm25()`. The first run reads all files. It imports nothing but what it needs.
"""

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing

RESULTS = 20

_SCHEMA = """
    PRAGMA synchronous = OFF;  -- a cache can be made again
    CREATE TABLE IF NOT EXISTS files (number INTEGER PRIMARY KEY, path TEXT UNIQUE, size INTEGER, mtime_ns INTEGER);
    CREATE VIRTUAL TABLE IF NOT EXISTS texts USING fts5(body);
"""


def main(arguments: list[str]) -> int:
    """Bring the database up to date, print the answer, and return the exit code: 1 if nothing was found."""
    database, directory, *words = arguments
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(_SCHEMA)
        with connection:
            _follow(connection, directory)
        found = connection.execute(
            "SELECT path, bm25(texts) AS score FROM texts JOIN files ON number = texts.rowid "
            "WHERE texts MATCH ? ORDER BY score LIMIT ?",
            (" OR ".join(f'"{word}"' for word in words), RESULTS),
        ).fetchall()
    for path, score in found:
        print(f"{-score:.3f} {path}")
    return 0 if found else 1


def _follow(connection: sqlite3.Connection, directory: str) -> None:
    """Read the files that have changed, and forget those that are gone."""
    rows = connection.execute("SELECT path, number, size, mtime_ns FROM files")
    known = {path: (number, size, mtime_ns) for path, number, size, mtime_ns in rows}
    for path, size, mtime_ns in _files(directory):
        number, *stamp = known.pop(path, (None,))
        if stamp == [size, mtime_ns]:
            continue
        if number is None:
            number = connection.execute("INSERT INTO files (path) VALUES (?)", (path,)).lastrowid
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - importing pathlib takes time
            text = file.read()
        connection.execute("INSERT OR REPLACE INTO texts (rowid, body) VALUES (?, ?)", (number, text))
        connection.execute("UPDATE files SET size = ?, mtime_ns = ? WHERE number = ?", (size, mtime_ns, number))
    for number, *_ in known.values():
        connection.execute("DELETE FROM texts WHERE rowid = ?", (number,))
        connection.execute("DELETE FROM files WHERE number = ?", (number,))


def _files(directory: str) -> Iterator[tuple[str, int, int]]:
    """Yield the path, the size and the time of each file, except hidden ones."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            else:
                found = entry.stat()
                yield entry.path, found.st_size, found.st_mtime_ns


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

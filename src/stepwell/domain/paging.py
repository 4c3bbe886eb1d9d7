"""Keyset pages: bounded in rows returned, rows examined and bytes, and resumable from a cursor.

A cursor is the key of the last row that was examined, not an offset. Rows that are inserted or deleted between two
pages therefore neither repeat nor hide other rows. A page can be empty and still have a cursor: it has then examined as
many rows as one command may, and none of them matched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from stepwell import limits
from stepwell.errors import InvalidArgument

T = TypeVar("T")


def build_page(
    rows: Iterable[T],
    limit: int,
    cursor_of: Callable[[T], str],
    *,
    accepts: Callable[[T], bool] = lambda _: True,
    size_of: Callable[[T], int] = lambda _: 0,
) -> tuple[tuple[T, ...], str | None]:
    """Return up to `limit` rows that `accepts` selects, and the cursor of the next page, or None at the end.

    `size_of` estimates the bytes of a row in a reply. A page always examines at least one row, so that following the
    cursors ends.
    """
    page: list[T] = []
    page_bytes = 0
    last: T | None = None
    for examined, row in enumerate(rows):
        # Checked before a row and not behind one: a page that ends with the last row has no cursor.
        if last is not None and (
            len(page) == limit or examined == limits.SCAN_ROWS_MAX or page_bytes >= limits.REPLY_BYTES_MAX
        ):
            return tuple(page), cursor_of(last)
        if accepts(row):
            page.append(row)
            page_bytes += size_of(row)
        last = row
    return tuple(page), None


def cursor_number(cursor: str | None) -> int:
    """Return the number in a cursor of a table whose keys are numbers; 0 without a cursor."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit()):
        raise InvalidArgument("cursor is malformed: give a cursor as the page before returned it")
    return int(cursor)

"""Keyset pages: bounded in rows given, rows examined and bytes, and resumable from a cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from stepwell import limits
from stepwell.errors import InvalidArgument

T = TypeVar("T")


def take(
    rows: Iterable[T],
    limit: int,
    cursor_of: Callable[[T], str],
    *,
    keep: Callable[[T], bool] = lambda _: True,
    weigh: Callable[[T], int] = lambda _: 0,
) -> tuple[tuple[T, ...], str | None]:
    """Up to `limit` of the rows that `keep` accepts, and where to go on: None at the end."""
    page: list[T] = []
    weight = 0
    last: T | None = None
    for examined, row in enumerate(rows):
        if last is not None and (
            len(page) == limit or examined == limits.SCAN_ROWS_MAX or weight >= limits.REPLY_BYTES_MAX
        ):
            return tuple(page), cursor_of(last)
        if keep(row):
            page.append(row)
            weight += weigh(row)
        last = row
    return tuple(page), None


def cursor_number(cursor: str | None) -> int:
    """The number in a cursor, 0 without one."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit()):
        raise InvalidArgument("cursor is malformed: give a cursor as the page before returned it")
    return int(cursor)

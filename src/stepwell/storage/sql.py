"""A connection to a database, as a protocol.

`sqlite3.Connection` implements it. So does the simulated database of the tests, whose file system forgets writes that
were not flushed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...  # noqa: ANN401 - the type of a row follows from its query
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Database(Protocol):
    """A connection to a database. `sqlite3.Connection` says what each method does. Errors are `sqlite3.Error`s."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Rows: ...
    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Rows: ...
    def create_function(
        self, name: str, narg: int, func: Callable[..., Any] | None, /, *, deterministic: bool = ...
    ) -> None: ...
    def close(self) -> None: ...

"""The root classes of the replies. They are a module of their own, below the replies of the subjects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar, cast

from msgspec import Struct

from stepwell.text import describe, plural, quoted

T = TypeVar("T")


class Reply(Struct, frozen=True, array_like=True, gc=False, tag=True):
    """The root of the replies. A reply is complete: a client never needs a second request to understand it."""

    @property
    def body_digests(self) -> tuple[bytes, ...]:
        """The digests of the bodies whose place the manager sends along with the reply."""
        return ()


class Page(Reply, Generic[T], frozen=True):
    """The root of the pages: rows, which are the first field of each page, and the cursor of the next page.

    Iterating yields the rows of this page, and `len` counts them; neither asks for the next page. So a page without
    rows is false, and it can still have a `cursor`. A `cursor` of None means that this is the last page.
    """

    def __iter__(self) -> Iterator[T]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        cursor = getattr(self, "cursor", None)
        return describe(self, plural(len(self), "row"), f"cursor {quoted(cursor)}" if cursor else "the last page")

    @property
    def _rows(self) -> tuple[T, ...]:
        return cast("tuple[T, ...]", getattr(self, self.__struct_fields__[0]))

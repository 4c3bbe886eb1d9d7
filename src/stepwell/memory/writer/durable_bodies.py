"""The interface of the body store to durable storage. `manager.journal.Journal` implements it.

Whatever is written becomes durable with the commit of the turn, or not at all. Clients read cold bodies from the
database by their number; the manager reads them through `read`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class DurableBodies(Protocol):
    """A place where bodies survive the manager. All writes belong to the present turn."""

    def put(self, digest: bytes, size: int, data: bytes, *, packed: bool) -> None:
        """Write a body, or replace its stored form."""
        ...

    def begin_upload(self) -> int:
        """Return a number under which the parts of a large body are written."""
        ...

    def add_part(self, number: int, part: int, data: bytes) -> None:
        """Write one part of an upload."""
        ...

    def finish_upload(self, number: int, digest: bytes, size: int, *, packed: bool) -> None:
        """Make the parts of an upload the content of a body."""
        ...

    def abandon_upload(self, number: int) -> None:
        """Delete the parts of an upload."""
        ...

    def drop(self, digest: bytes) -> None:
        """Delete a body that nothing refers to any more."""
        ...

    def note_packed(self, digest: bytes, size: int) -> None:
        """Record the packed size of a body."""
        ...

    def is_committed(self, digest: bytes) -> bool:
        """Return True if clients can read the body, and False while its write belongs to the present turn."""
        ...

    def body_number(self, digest: bytes) -> int:
        """Return the number of a committed body, which never changes."""
        ...

    def read(self, digest: bytes) -> tuple[bool, Iterator[bytes]]:
        """Return a flag for packed bytes, and the bytes of a body in slices."""
        ...

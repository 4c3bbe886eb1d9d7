"""A durable: where bodies survive the manager. What is kept there can be read by anybody who knows its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class DurableBodies(Protocol):
    """What the bodies' store asks of it. Whatever is written is written with the turn, or not at all."""

    def put(self, digest: bytes, size: int, data: bytes, *, packed: bool) -> None:
        """Write a body, or write it anew in another form."""
        ...

    def begin_upload(self) -> int:
        """A number for a body that comes in parts."""
        ...

    def add_part(self, number: int, part: int, data: bytes) -> None:
        """Write a part of it."""
        ...

    def finish_upload(self, number: int, digest: bytes, size: int, *, packed: bool) -> None:
        """The parts are all there: from now on they are the body's."""
        ...

    def abandon_upload(self, number: int) -> None:
        """The parts are not needed after all."""
        ...

    def drop(self, digest: bytes) -> None:
        """Nothing refers to a body any more."""
        ...

    def note_packed(self, digest: bytes, size: int) -> None:
        """What a body takes when it is compressed."""
        ...

    def is_committed(self, digest: bytes) -> bool:
        """Whether a body is there for everybody to read, and not only to be written with this turn."""
        ...

    def body_number(self, digest: bytes) -> int:
        """Where a settled body is: a number, which it keeps."""
        ...

    def read(self, digest: bytes) -> tuple[bool, Iterator[bytes]]:
        """A body, compressed or not, in slices."""
        ...

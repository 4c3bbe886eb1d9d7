"""Entries of a log as a caller gets them: immutable values with their bodies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from msgspec import Struct

from stepwell.client.session.lazy import lazy_property
from stepwell.domain.logs.model import LogEntryRow
from stepwell.domain.tiers.body_refs import Digest
from stepwell.errors import BodyGone
from stepwell.text import describe, plural, quoted


class StoredLogEntry(Struct, frozen=True, dict=True):
    """An entry that was read. Any number of threads may use it.

    It holds a view of its body, which stays readable after the entry is removed. A copy or a pickle has the bytes
    themselves.
    """

    row: LogEntryRow
    held: memoryview | bytes | None

    def __repr__(self) -> str:
        kind, revision = f"kind {quoted(self.kind)}", f"revision {self.revision}"
        return describe(self, f"at {self.position}", kind, plural(self.size, "byte"), revision)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.row, None if self.held is None else bytes(self.held))

    @property
    def position(self) -> int:
        """The position in the log. No other entry of the log ever has it."""
        return self.row.position

    @property
    def revision(self) -> int:
        """The revision of the append, which is also the head that the log had behind it."""
        return self.row.revision

    @property
    def kind(self) -> str:
        """The label of the content, "text" by default."""
        return self.row.kind

    @property
    def metadata(self) -> Mapping[str, str]:
        """The caller's own labels, read-only."""
        return MappingProxyType(self.row.metadata)

    @property
    def size(self) -> int:
        """The number of bytes of the body."""
        return self.row.size

    @property
    def digest(self) -> Digest:
        """The digest of the body."""
        return Digest(self.row.digest)

    @property
    def appended_at(self) -> datetime:
        """The time of the append, in UTC."""
        return datetime.fromtimestamp(self.row.at_ms / 1000, UTC)

    @lazy_property
    def body(self) -> memoryview:
        """The body, read-only.

        It raises `BodyGone` for a popped entry whose reply was lost, and came again more than a minute later.
        """
        if self.held is None:
            raise BodyGone(f"the body of the popped entry {self.position} was readable for a minute, which is over")
        return memoryview(self.held)

    @lazy_property
    def text(self) -> str:
        """The body as text. A body that is not UTF-8 raises `UnicodeDecodeError`."""
        return str(self.body, "utf-8")


class LogListing(Struct, frozen=True):
    """Entries of a log that were read together, in order, and the log at that moment.

    `head` is what an `expected_head` is compared with. No entry below `first_position` is there any more, and the next
    entry gets `next_position`. `more` says that there are further entries: behind these after `since`, before these
    after `last`. `serial` is the log's own number, 0 if it does not exist.
    """

    entries: tuple[StoredLogEntry, ...]
    head: int
    first_position: int
    next_position: int
    more: bool
    serial: int

    def __iter__(self) -> Iterator[StoredLogEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> StoredLogEntry:
        return self.entries[index]

    def __repr__(self) -> str:
        count = plural(len(self.entries), "entry", "entries")
        return describe(self, count, f"head {self.head}", "there are more" if self.more else "")

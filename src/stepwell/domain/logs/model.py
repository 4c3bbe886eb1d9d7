"""The values of logs: the entry that a caller appends, and the rows that the manager keeps.

An entry is dead as soon as the row of its log says so: its position is smaller than `first_position`, or the log is
gone. Its own row is deleted later. So removing a million entries is one small change.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from stepwell import limits
from stepwell.domain.bounded_types import FragmentId, Label, Metadata, ProjectName
from stepwell.domain.checks import check, check_metadata, checked, require_instance, utf8
from stepwell.domain.tiers.model import NO_METADATA, BodyRef, Tier
from stepwell.errors import InvalidArgument
from stepwell.text import brief_repr, describe, plural, quoted

Position = Annotated[int, Meta(ge=0, le=2**53, description="a position is a whole number, 0 for the beginning")]

POPPED: Final = 0
"""The log of the rows of popped entries. They have positions of their own, and go after a time."""


@checked
class LogNames(Struct, frozen=True):
    """The names of a log with their patterns, to check those of a type that only bounds their lengths."""

    project: ProjectName
    name: FragmentId


@checked
class LogEntry(Struct, frozen=True):
    """An entry as a caller gives it to `append`, with a kind and metadata. Raises `InvalidArgument` out of bounds.

    A `str` body is stored as UTF-8. The metadata are the caller's own, and come back as they are.
    """

    body: str | bytes | memoryview
    kind: Label = "text"
    metadata: Metadata = {}

    def __post_init__(self) -> None:
        require_instance(self.body, (str, bytes, memoryview), "a body is str, bytes or a memoryview")
        check(self)
        if self.metadata:
            check_metadata(self.metadata)
        size = len(self.data)
        if size > limits.BODY_BYTES_MAX:
            raise InvalidArgument(
                f"body has {size} bytes, at most {limits.BODY_BYTES_MAX} are allowed: split it into several entries"
            )

    def __repr__(self) -> str:
        size = plural(len(self.body), "character" if isinstance(self.body, str) else "byte")
        return describe(self, f"kind {quoted(self.kind)}", size)

    @property
    def data(self) -> bytes | memoryview:
        """The bytes of the body, without a copy if possible."""
        match self.body:
            case str() as text:
                return utf8(text, "body")
            case memoryview() as view:
                return view.cast("B") if view.c_contiguous else view.tobytes()
            case body:
                return body


class LogRow(Struct, frozen=True, array_like=True, gc=False):
    """A log as the manager keeps it. Its entries are rows of their own, which name it by its `serial`.

    `serial` is the log's own number: a log that is deleted and begun anew has another one. `head` is the revision of
    the last append, pop, clear or change of retention. Entries below `first_position` are dead. `last_position` is the
    position of the last entry that was not popped; it is smaller than `first_position` if there is none.
    """

    project: str
    name: str
    serial: int
    head: int
    first_position: int
    last_position: int
    next_position: int
    created_at_ms: int
    keep_entries: int | None = None
    keep_ms: int | None = None

    __repr__ = brief_repr

    @property
    def key(self) -> tuple[str, str]:
        """The key of the log in its table."""
        return self.project, self.name


class LogEntryRow(Struct, frozen=True, array_like=True, gc=False):
    """An entry as the manager keeps it. It never changes; `log` is the serial of its log."""

    log: int
    position: int
    digest: bytes
    size: int
    at_ms: int
    revision: int
    kind: str = "text"
    metadata: dict[str, str] = NO_METADATA

    __repr__ = brief_repr

    @property
    def key(self) -> tuple[int, int]:
        """The key of the entry in its table."""
        return self.log, self.position

    @property
    def held(self) -> tuple[BodyRef, ...]:
        """The bodies that the row refers to: its own."""
        return ((self.digest, self.size),)

    @property
    def tier(self) -> Tier:
        """The tier of its body: on disk, where it takes no room from fragments that are read often."""
        return Tier.COLD


class LogStatus(Struct, frozen=True, array_like=True):
    """A log at one moment: its head, the range of its positions, what it has, and what it retains.

    A log that does not exist has head 0 and no entries. `entries` and `bytes` count what a reader would get now; equal
    bodies count each time. The next entry gets `next_position`.
    """

    project: str
    name: str
    head: int = 0
    first_position: int = 1
    next_position: int = 1
    entries: int = 0
    bytes: int = 0
    keep_entries: int | None = None
    keep_ms: int | None = None
    created_at_ms: int | None = None
    serial: int = 0

    def __repr__(self) -> str:
        name = f"{quoted(self.name)} of {quoted(self.project)}"
        count = plural(self.entries, "entry", "entries")
        return describe(self, name, count, plural(self.bytes, "byte"), f"head {self.head}")

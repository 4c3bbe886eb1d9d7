"""What a manager asks of a store: to write down a turn, entirely or not at all, and to give everything back.

There are two. `memory` keeps nothing: the state ends with the manager, by choice. `sqlite` keeps everything, in tables
that anybody can read.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from stepwell.domain.events import AnyEvent
from stepwell.domain.replies import Row
from stepwell.domain.tiers.table import FragmentEntry, Key


class Durability(StrEnum):
    """What an acknowledged write survives."""

    DISK = "disk"  # a loss of power
    PROCESS = "process"  # the death of every process, not of the machine
    NONE = "none"  # nothing: the state is in memory


class SessionRow(Struct, frozen=True):
    """A session, as it is found again: a process is known by its number and the moment at which it was started."""

    session_id: str
    projects: tuple[str, ...] | None
    pid: int
    process: str  # "" where it cannot be seen
    answered: int = 0
    generation: int = 0  # another one each time that the session is begun anew


class BodyRow(Struct, frozen=True, gc=False):
    """A body as it is written: raw or compressed, in one piece or, if it is large, in the parts of an upload."""

    digest: bytes
    size: int
    packed: bool
    data: bytes | None
    upload: int | None = None


class CommitBatch:
    """All that one turn of the loop changed."""

    def __init__(self) -> None:
        self.revision = 0
        self.now_ms = 0
        self.next_serial = 0
        self.tick = 0
        self.rows: dict[type, dict[object, Row | None]] = {}  # by table and key; None: deleted
        self.fragments: dict[Key, FragmentEntry | None] = {}  # None: gone again
        self.removed: list[int] = []  # serials of fragments
        self.touched: list[FragmentEntry] = []  # only read
        self.bodies: dict[bytes, BodyRow | None] = {}  # None: nothing refers to it any more
        self.packed_bytes: dict[bytes, int] = {}  # what bodies take when compressed
        self.parts: list[tuple[int, int, bytes]] = []  # of uploads: number, which part, its bytes
        self.abandoned: list[int] = []  # uploads that no body will need
        self.events: list[AnyEvent] = []
        self.sessions: dict[str, SessionRow | None] = {}
        self.replies: list[tuple[str, int, bytes]] = []
        self.answered: dict[str, int] = {}  # by session: earlier replies can go


class StoredState(Struct):
    """All that a store has."""

    revision: int
    clock_ms: int
    next_serial: int
    tick: int
    rows: list[Row]
    fragments: list[FragmentEntry]
    bodies: list[tuple[BodyRow, int | None]]  # without their bytes; what they take when compressed, if that is known
    sessions: list[SessionRow]
    replies: list[tuple[str, int, bytes]]


class Store(Protocol):
    """Where a manager's state survives it."""

    epoch: str
    encoding: str  # in which its tokens are counted
    durability: Durability
    starts: int  # how many managers there have been, this one included

    @property
    def database(self) -> str | None:
        """Where clients read cold bodies; None where there is nothing to read."""
        ...

    def commit(self, turn: CommitBatch) -> None:
        """Write a turn. When this returns, it survives; or `StoreFailed`, and the manager has to stop."""
        ...

    def load(self) -> StoredState | None:
        """What there is; None if there is nothing yet."""
        ...

    def place(self, digest: bytes) -> int:
        """The number of a body that is there: whoever has it and the digest can read it."""
        ...

    def next_upload(self) -> int:
        """A number under which the parts of a large body are written."""
        ...

    @property
    def is_untidy(self) -> bool:
        """Whether there is something to be thrown away, a little with each turn."""
        ...

    def look(self) -> None:
        """Make sure that what is written is still where it will be looked for, or raise `StoreFailed`."""
        ...

    def begin(self) -> None:
        """What was loaded holds together: from now on this manager writes. Before that nothing is changed."""
        ...

    def read(self, digest: bytes) -> tuple[bool, Iterator[bytes]] | None:
        """A body, compressed or not, in slices; None if it is not there."""
        ...

    def events_after(self, revision: int, limit: int) -> list[AnyEvent]:
        """The events behind a revision, at least `limit` if there are as many, and always whole revisions."""
        ...

    def oldest_event(self) -> int:
        """The revision behind which no event is missing."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...

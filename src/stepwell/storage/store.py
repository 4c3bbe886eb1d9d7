"""The interface between a manager and its store: commit a turn entirely or not at all, and give everything back.

There are two implementations. `null_store.NullStore` stores nothing: the state ends with the manager, by choice.
`sqlite.SqliteStore` stores everything, in tables that other tools can read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from stepwell.domain.events import AnyEvent
from stepwell.domain.replies import Row
from stepwell.domain.tiers.table import Key
from stepwell.domain.tiers.tier_index import FragmentEntry
from stepwell.text import PlainEnum

UNCOUNTED: Final = -1
"""The number of rows of a state that were not counted."""


class Durability(PlainEnum):
    """The failures that an acknowledged write survives, as the user chooses them for a data directory."""

    DISK = "disk"  # survives a loss of power
    PROCESS = "process"  # survives the death of every process, not of the machine
    NONE = "none"  # survives nothing: the state is in memory


class SessionRow(Struct, frozen=True):
    """A stored session.

    `process` identifies the client's process beyond its pid (see `manager.sessions.process_identity`).
    """

    session_id: str
    projects: tuple[str, ...] | None
    pid: int
    process: str  # empty if the process could not be seen
    answered: int = 0
    generation: int = 0  # random, and new each time that the session is created
    label: str = ""  # the client's own name for itself


class ReplyPart(NamedTuple):
    """The results of some commands of a batch whose other commands are still to be executed.

    `ordinal` counts the parts of one request from 0. The parts in this order have the results of its first commands.
    """

    session_id: str
    request_id: int
    ordinal: int
    results: bytes  # see `protocol.codec.encode_results`


class BodyRow(Struct, frozen=True, gc=False):
    """A body as it is written: raw or packed, in one piece (`data`) or in the parts of an upload (`upload`)."""

    digest: bytes
    size: int
    packed: bool
    data: bytes | None
    upload: int | None = None


class CommitBatch:
    """Everything that one turn of the loop changed. The journal fills it, and the store writes it in one transaction.

    Rows are keyed, so that only the latest value of a row is written. `rows` has, by type and key, the new row or None
    for a deleted one. `fragments` are written with their access times; `touched` were only read, and only those are
    updated.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.now_ms = 0
        self.next_serial = 0
        self.tick = 0
        self.row_count = UNCOUNTED  # of the state, behind this batch
        self.rows: dict[type, dict[object, Row | None]] = {}
        self.fragments: dict[Key, FragmentEntry | None] = {}  # None: deleted in the same turn
        self.removed: list[int] = []  # serials of fragments
        self.touched: list[FragmentEntry] = []  # read since the last write of access times
        self.bodies: dict[bytes, BodyRow | None] = {}  # None: deleted, because nothing refers to it
        self.packed_bytes: dict[bytes, int] = {}  # newly known packed sizes
        self.parts: list[tuple[int, int, bytes]] = []  # of uploads: number, index of the part, bytes
        self.abandoned: list[int] = []  # uploads whose parts no body needs
        self.events: list[AnyEvent] = []
        self.sessions: dict[str, SessionRow | None] = {}
        self.replies: list[tuple[str, int, bytes]] = []
        self.reply_parts: list[ReplyPart] = []  # of batches that are not complete
        self.completed: list[tuple[str, int]] = []  # session and request: its parts can be deleted
        self.answered: dict[str, int] = {}  # by session: replies with smaller numbers can be deleted


class StoredState(Struct):
    """Everything that a store returned at the start of a manager.

    `bodies` have no bytes. Each comes with its packed size, if that is known.
    """

    revision: int
    clock_ms: int
    next_serial: int
    tick: int
    rows: list[Row]
    fragments: list[FragmentEntry]
    bodies: list[tuple[BodyRow, int | None]]
    sessions: list[SessionRow]
    replies: list[tuple[str, int, bytes]]
    reply_parts: list[ReplyPart] = []


class Store(Protocol):
    """The place where a manager's state survives it. The manager's thread is its only user.

    Order of calls: `load` once, `start_writing` once the loaded state has been checked, then any number of commits, and
    `close`. Before `start_writing` nothing on disk changes.
    """

    epoch: str
    encoding: str  # in which clients count tokens
    durability: Durability
    starts: int  # the number of managers so far, this one included

    @property
    def database(self) -> str | None:
        """The path of the database from which clients read cold bodies, or None if there is none."""
        ...

    def commit(self, batch: CommitBatch) -> None:
        """Write a batch in one transaction. After the return it survives.

        Raise `StoreFailed` if not: the manager has to stop.
        """
        ...

    def load(self) -> StoredState | None:
        """Return the stored state, or None if there is none yet."""
        ...

    def body_number(self, digest: bytes) -> int:
        """Return the number of a stored body. A client that has the number and the digest can read it."""
        ...

    def next_upload(self) -> int:
        """Return a new number for the parts of a large body."""
        ...

    @property
    def has_garbage(self) -> bool:
        """True if there are parts to delete, a few with each commit."""
        ...

    def follow(self) -> None:
        """Let the tables follow what was committed until now, a slice with each commit and with each `work`."""
        ...

    def work(self) -> bool:
        """Do a slice of the work that `follow` asked for. Return True if there is more. Raise `StoreFailed` if not."""
        ...

    def check_present(self) -> None:
        """Raise `StoreFailed` if the files of the store are not at their paths any more."""
        ...

    def sync_mark(self) -> None:
        """Flush the note of the latest commit, by which a loss of commits is noticed. Raise `StoreFailed` if not."""
        ...

    @property
    def predecessor_valid_until_ns(self) -> int:
        """The time up to which clients may read what the manager before has published; 0 if there was none."""
        ...

    def note_validity(self, until_ns: int) -> None:
        """Write down up to when clients may read what this manager publishes, for the manager after it.

        Raise `OSError` if that is not possible: then they may not.
        """
        ...

    def start_writing(self) -> None:
        """Begin to write, after the loaded state was found to be consistent."""
        ...

    def read(self, digest: bytes) -> tuple[bool, Iterator[bytes]] | None:
        """Return a flag for packed bytes and the bytes of a body in slices, or None if it is not stored."""
        ...

    def events_after(self, revision: int, limit: int) -> list[AnyEvent]:
        """Return the events behind a revision: whole revisions, at least `limit` events if there are as many."""
        ...

    def oldest_event(self) -> int:
        """Return the revision behind which no event is missing."""
        ...

    def close(self) -> None:
        """Close the store and release its lock."""
        ...

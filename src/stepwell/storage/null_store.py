"""The null store: stores nothing, so that a manager's state ends with the manager.

It is a store and not a missing one, so that the manager has a single code path. Its `durability` of NONE tells the
journal to skip what only a store needs.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepwell.domain.events import AnyEvent
from stepwell.domain.tiers.model import ENCODING
from stepwell.identifiers import new_id
from stepwell.storage.store import CommitBatch, Durability, StoredState


class NullStore:
    """A `Store` that stores nothing. It still has an epoch, because clients compare revisions within one."""

    def __init__(self, encoding: str | None = None, epoch: str | None = None) -> None:
        self.epoch = epoch or new_id()
        self.encoding = encoding or ENCODING
        self.durability = Durability.NONE
        self.starts = 1

    @property
    def database(self) -> None:
        return None

    def commit(self, batch: CommitBatch) -> None:
        """Accept a batch. Nothing has to survive."""

    def load(self) -> StoredState | None:
        return None

    def follow(self) -> None:
        """Do nothing: there are no tables."""

    def work(self) -> bool:
        return False

    def check_present(self) -> None:
        """Do nothing: there is no file that could vanish."""

    def sync_mark(self) -> None:
        """Do nothing: there is no commit that could be lost."""

    @property
    def predecessor_valid_until_ns(self) -> int:
        return 0

    def note_validity(self, until_ns: int) -> None:
        """Do nothing: no other manager continues this state."""

    def start_writing(self) -> None:
        """Do nothing: there is nothing to write."""

    @property
    def has_garbage(self) -> bool:
        return False

    def body_number(self, digest: bytes) -> int:  # noqa: ARG002
        return 0

    def next_upload(self) -> int:
        return 0

    def read(self, digest: bytes) -> tuple[bool, Iterator[bytes]] | None:  # noqa: ARG002
        return None

    def events_after(self, revision: int, limit: int) -> list[AnyEvent]:  # noqa: ARG002
        return []

    def oldest_event(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

"""A store that keeps nothing: a manager's state ends with it."""

from __future__ import annotations

from collections.abc import Iterator

from ulid import ULID

from stepwell.domain.events import AnyEvent
from stepwell.protocol.messages import ENCODING
from stepwell.storage.store import CommitBatch, Durability, StoredState


class NullStore:
    """No turn is written anywhere."""

    def __init__(self, encoding: str | None = None, epoch: str | None = None) -> None:
        self.epoch = epoch or str(ULID())
        self.encoding = encoding or ENCODING
        self.durability = Durability.NONE
        self.starts = 1

    @property
    def database(self) -> None:
        return None

    def commit(self, turn: CommitBatch) -> None:
        """Nothing has to survive."""

    def load(self) -> StoredState | None:
        return None

    def look(self) -> None:
        """There is no place to look at."""

    def begin(self) -> None:
        """There is nothing to begin."""

    @property
    def is_untidy(self) -> bool:
        return False

    def place(self, digest: bytes) -> int:  # noqa: ARG002
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
        """There is nothing to let go of."""

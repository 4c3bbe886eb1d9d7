"""Changesets in a dict, and a list of the active ones; the last of the list is the one that was started last, by any
caller.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from ulid import ULID

from stepwell.domain.changesets.model import Change, Content, EntryRow, derive_operation
from stepwell.domain.tiers.body_refs import Digest, digest_of
from stepwell.errors import NoActiveChangeset, NotFound
from tests.doubles.unsynchronised.seam import Seam, no_seam


class PlanExecutionContext:
    """One list for all callers that execute the plan: the package's docstring says why."""

    def __init__(self, plan_id: str, *, seam: Seam = no_seam) -> None:
        self.plan_id = plan_id
        self._seam = seam
        self._changesets: dict[str, list[EntryRow]] = {}
        self._active_changeset_ids: list[str] = []

    def start_changeset(self) -> str:
        """Start a changeset.

        A change that is recorded between the start and the append goes to the changeset before.
        """
        changeset_id = str(ULID())
        self._changesets[changeset_id] = []
        self._seam("start_changeset: started, not appended")
        self._active_changeset_ids.append(changeset_id)
        return changeset_id

    def record_change(self, change: Change) -> EntryRow:
        """Record into the last changeset that any caller started; `IndexError` if it was closed after the check."""
        if not self._active_changeset_ids:
            raise NoActiveChangeset("there is no active changeset: call start_changeset() first")
        self._seam("record_change: checked, not read")
        changeset_id = self._active_changeset_ids[-1]
        entries = self._changesets[changeset_id]
        entry = self._entry(changeset_id, len(entries) + 1, change)
        self._seam("record_change: numbered, not recorded")
        entries.append(entry)
        return entry

    def close_changeset(self, changeset_id: str) -> None:
        if changeset_id not in self._active_changeset_ids:
            raise NotFound(f"there is no active changeset {changeset_id!r}", changeset_id=changeset_id)
        self._seam("close_changeset: checked, not removed")
        self._active_changeset_ids.remove(changeset_id)

    def entries(self, changeset_id: str) -> Iterator[EntryRow]:
        if changeset_id not in self._changesets:
            raise NotFound(f"there is no changeset {changeset_id!r}", changeset_id=changeset_id)
        return iter([*self._changesets[changeset_id]])

    def _entry(self, changeset_id: str, seq: int, change: Change) -> EntryRow:
        before, after = _side(change.before, change.before_mode), _side(change.after, change.after_mode)
        return EntryRow(
            plan_id=self.plan_id,
            changeset_id=changeset_id,
            seq=seq,
            operation=derive_operation(before, after, change.path, change.source_path),
            path=change.path,
            source_path=change.source_path,
            before=before,
            after=after,
            tool=change.tool,
            recorded_at_ms=time.time_ns() // 1_000_000,
        )


def _side(given: bytes | Digest | None, mode: int | None) -> Content | None:
    if isinstance(given, Digest):
        return Content(given.value, None, held=False, mode=mode)
    return None if given is None else Content(digest_of(given), len(given), held=True, mode=mode)

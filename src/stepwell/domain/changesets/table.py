"""The table of the entries of changesets."""

from __future__ import annotations

from stepwell.domain.changesets.model import EntryRow


class EntryTable:
    """The entries of each changeset in order, and the number of entries of each plan.

    Owned by the `State`. Entries are appended, and deleted from the end only, so that a list for each changeset is
    enough.
    """

    def __init__(self) -> None:
        self.by_changeset: dict[str, list[EntryRow]] = {}
        self.by_plan: dict[str, int] = {}

    def swap(self, before: EntryRow | None, after: EntryRow | None) -> None:
        """Append `after`, or delete `before`, which must be the last of its changeset. Entries are never replaced."""
        if after is not None:
            self.by_changeset.setdefault(after.changeset_id, []).append(after)
            self.by_plan[after.plan_id] = self.by_plan.get(after.plan_id, 0) + 1
        elif before is not None:
            self.by_changeset[before.changeset_id].pop()
            self.by_plan[before.plan_id] -= 1
            if not self.by_changeset[before.changeset_id]:
                del self.by_changeset[before.changeset_id]
            if not self.by_plan[before.plan_id]:
                del self.by_plan[before.plan_id]

    def unswap(self, before: EntryRow | None, after: EntryRow | None) -> None:
        """Undo `swap(before, after)`."""
        self.swap(after, before)

    def of(self, changeset_id: str) -> list[EntryRow]:
        """Return the entries of a changeset in order. The caller must not change the list."""
        return self.by_changeset.get(changeset_id, [])

"""The index of a project's fragments by their bodies, with which a store finds out that its body is there already.

A project gets its index with the first store that asks for it, in slices, so that no step of the loop is long. From
then on the index follows each change. Projects that never ask pay nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from stepwell.domain.tiers.model import FragmentRow


class EqualBodies:
    """The ids of a project's fragments by the digest of their body.

    The fragments up to the serial `filled_to` are in it, and all of them once `is_complete`. Most bodies are of one
    fragment: its id is the value then. Otherwise it is a dict of ids, in which one is found as fast among a million.
    """

    __slots__ = ("_ids", "filled_to", "is_complete")

    def __init__(self) -> None:
        self._ids: dict[bytes, str | dict[str, None]] = {}
        self.filled_to = 0
        self.is_complete = False

    def of(self, digest: bytes) -> Collection[str]:
        """Return the ids of the fragments with a body, the one that was entered first at the beginning."""
        found = self._ids.get(digest, ())
        return (found,) if isinstance(found, str) else found

    def ids(self) -> dict[bytes, set[str]]:
        """Return a copy of what is in the index, for a check."""
        return {digest: {*self.of(digest)} for digest in self._ids}

    def fill(self, rows: Iterable[FragmentRow]) -> None:
        """Enter the next rows in their order of creation."""
        for row in rows:
            self._add(row)
            self.filled_to = row.serial

    def note(self, before: FragmentRow | None, after: FragmentRow | None) -> None:
        """Follow a change, or with both exchanged its undoing. A row that is not entered yet comes with `fill`."""
        row = after or before
        if row is None or not (self.is_complete or row.serial <= self.filled_to):
            return
        if before is not None:
            self._remove(before)
        if after is not None:
            self._add(after)

    def _add(self, row: FragmentRow) -> None:
        digest, fragment_id = row.digest, row.fragment_id
        found = self._ids.setdefault(digest, fragment_id)
        if isinstance(found, dict):
            found[fragment_id] = None
        elif found != fragment_id:
            self._ids[digest] = {found: None, fragment_id: None}

    def _remove(self, row: FragmentRow) -> None:
        digest, fragment_id = row.digest, row.fragment_id
        found = self._ids.get(digest)
        if isinstance(found, dict):
            found.pop(fragment_id, None)
            if len(found) == 1:
                self._ids[digest] = next(iter(found))
        elif found == fragment_id:
            del self._ids[digest]

"""The changes of one round of a refresh, while they are collected: rows that are stored and deleted, and files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from stepwell.directory_index.model import NO_SPAN, DirectoryState, IndexedFile, Span
from stepwell.directory_index.view import StateChange
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commit_history import HEAD_KEY, HISTORY_ID
from stepwell.domain.tiers.model import FragmentRow, Tier
from stepwell.domain.tiers.source_outline import FILE_KIND, file_id
from stepwell.ingest.changes import is_stored, listing
from stepwell.ingest.files import Count, FileSame, FileSkipped, FileSplit, Outcome


class NewPart(Struct, frozen=True):
    """A row to be stored, and its body. Without `tokens` they are counted."""

    fragment_id: str
    source: str
    kind: str
    body: memoryview
    metadata: dict[str, str]
    span: Span = NO_SPAN
    tokens: int = 0


class Round:
    """The changes of one round, while they are collected. `bytes` are those of the texts that it holds."""

    def __init__(self, state: DirectoryState, project: str, count: Count) -> None:
        self._before: Final = state
        self._project: Final = project
        self._count: Final = count
        self._revision: Final = max(state.revision + 1, time.time_ns() // 1_000_000)
        """A moment in milliseconds, so that it is not given twice, also if this refresh is never saved."""
        self._files: Final = dict(state.files)
        self._rows: Final = {row.fragment_id: row for row in state.rows}
        self._spans: Final = dict(zip(self._rows, _spans(state), strict=True))
        self._by_source: dict[str, list[str]] | None = None
        self._commits = state.commits
        self._next_serial = state.rows[-1].serial + 1 if state.rows else 1
        self._stored: Final[dict[str, memoryview]] = {}
        self._removed: Final[set[str]] = set()
        self.bytes = 0
        self.is_changed = False

    def add(self, outcome: Outcome, data: bytes) -> None:
        """Note the outcome of a file."""
        match outcome:
            case FileSplit():
                self._add_split(outcome, data)
            case FileSame(source=source, size=size, mtime_ns=mtime_ns):
                self._set_file(replace(self._files[source], size=size, mtime_ns=mtime_ns))
            case FileSkipped(source=source, reason=reason, size=size, mtime_ns=mtime_ns, digest=digest):
                self.remove(source)
                if digest or outcome.is_unsafe:
                    self._set_file(IndexedFile(source, size, mtime_ns, digest, reason))
                    self.store(_of_file(source, reason))

    def _add_split(self, split: FileSplit, data: bytes) -> None:
        """Store the parts of a file that are new or changed, and remove those that it has no more."""
        known = {part_id: self._rows[part_id] for part_id in self._ids_of(split.source)}
        self._set_file(IndexedFile(split.source, split.size, split.mtime_ns, split.digest, redactions=split.redactions))
        text = memoryview(data)
        for part in split.parts:
            span = part.start, part.end
            if is_stored(part, known.pop(part.part_id, None)):
                self._spans[part.part_id] = span
                continue
            body = text[part.start : part.end]
            self.store(NewPart(part.part_id, split.source, part.kind, body, part.metadata, span, part.tokens))
        for part_id in known:
            self.delete(part_id)
        self.store(_of_file(split.source, listing(part.metadata for part in split.parts)))
        self.bytes += len(data)

    def store(self, part: NewPart) -> None:
        """Store one row in the place of one with the same id, if there is one."""
        known = self._rows.get(part.fragment_id)
        serial = known.serial if known else self._next_serial
        self._next_serial = max(self._next_serial, serial + 1)
        self._rows[part.fragment_id] = FragmentRow(
            project=self._project,
            fragment_id=part.fragment_id,
            source=part.source,
            kind=part.kind,
            detail_depth=0,
            tokens=part.tokens or self._count(bytes(part.body)),
            size=len(part.body),
            digest=digest_of(part.body),
            tier=Tier.WARM,
            placed_at_ms=self._revision,
            created_at_ms=known.created_at_ms if known else self._revision,
            revision=self._revision,
            serial=serial,
            metadata=part.metadata,
        )
        self._spans[part.fragment_id] = part.span
        self._stored[part.fragment_id] = part.body
        self._removed.discard(part.fragment_id)
        self.is_changed = True

    def delete(self, fragment_id: str) -> None:
        """Delete one row, if it is there."""
        if self._rows.pop(fragment_id, None) is not None:
            del self._spans[fragment_id]
            self._stored.pop(fragment_id, None)
            self._removed.add(fragment_id)
            self.is_changed = True

    def set_commits(self, head: str, body: bytes) -> None:
        """Store the row with the commits up to `head`; delete it if there is none."""
        self.delete(HISTORY_ID)
        self._commits = body if head else b""
        if head:
            self.store(NewPart(HISTORY_ID, "", FILE_KIND, memoryview(body), {HEAD_KEY: head}))

    def remove(self, source: str) -> None:
        """Delete a file with all of its rows."""
        for fragment_id in self._ids_of(source):
            self.delete(fragment_id)
        if self._files.pop(source, None) is not None:
            self.is_changed = True

    def _set_file(self, file: IndexedFile) -> None:
        if self._files.get(file.source) != file:
            self._files[file.source] = file
            self.is_changed = True

    def _ids_of(self, source: str) -> list[str]:
        """Return the ids of a file's rows."""
        if source not in self._before.files:
            return []
        if self._by_source is None:
            self._by_source = {}
            for row in self._rows.values():
                self._by_source.setdefault(row.source, []).append(row.fragment_id)
        return [each for each in self._by_source.get(source, ()) if each in self._rows]

    def end(self) -> tuple[DirectoryState, StateChange]:
        """Return the state after the round, and its difference to the one before."""
        rows = sorted(self._rows.values(), key=lambda row: row.serial)
        spans = np.array([self._spans[row.fragment_id] for row in rows], dtype=np.int32).reshape(-1, 2)
        state = DirectoryState(self._before.epoch, self._revision, rows, spans, self._files, self._commits)
        # Without new rows, only sizes and times are others: the indexes follow to the new revision all the same.
        return state, StateChange(self._before.revision, [*self._stored], frozenset(self._removed), self._stored)


def _of_file(source: str, listed: str) -> NewPart:
    """Return the row that stands for a file."""
    return NewPart(file_id(source), source, FILE_KIND, memoryview(listed.encode()), {})


def _spans(state: DirectoryState) -> Iterator[Span]:
    """Return the spans of all rows, in their order."""
    return zip(state.spans[:, 0].tolist(), state.spans[:, 1].tolist(), strict=True)

"""The report of an ingest: how files changed, what was left out, and totals; and the counts that it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct, field

from stepwell import limits
from stepwell.ingest.files import FileSame, FileSkipped, FileSplit, Outcome
from stepwell.ingest.inventory import KnownFile


class IngestReport(Struct, frozen=True, kw_only=True):
    """The outcome of one ingest: how files changed since the last one, and totals over all files.

    `added`, `changed`, `deleted` and `unchanged` count files; a renamed file is one deleted and one added. `skipped`
    has the reason by source, for the first `limits.INGEST_SKIPPED_MAX`, and `skipped_count` the number of all.
    `fragments` counts those of all files, without the row that stands for each file, and `tokens` is their sum.
    `stored` counts the fragments that this call wrote.

    `secrets` has the secret files that were left out, with what they are, for the first `limits.INGEST_SKIPPED_MAX`,
    and `secrets_count` the number of all. `redacted` counts the secrets that are redacted in all files.
    """

    project: str
    root: str
    added: int
    changed: int
    deleted: int
    unchanged: int
    skipped: dict[str, str]
    skipped_count: int
    fragments: int
    tokens: int
    stored: int
    secrets: dict[str, str]
    secrets_count: int
    redacted: int
    seconds: float

    @property
    def is_changed(self) -> bool:
        """True if any file differs from the last ingest."""
        return bool(self.added or self.changed or self.deleted)


class IngestCounts(Struct):
    """The counts of an `IngestReport` while the pass runs; the field names are the same."""

    added: int = 0
    changed: int = 0
    deleted: int = 0
    unchanged: int = 0
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    skipped_count: int = 0
    fragments: int = 0
    tokens: int = 0
    stored: int = 0
    secrets: dict[str, str] = field(default_factory=dict[str, str])
    secrets_count: int = 0
    redacted: int = 0

    def leave_out(self, secrets: dict[str, str]) -> None:
        """Count the secret files that are left out, and note as many as there is room for."""
        self.secrets_count = len(secrets)
        self.secrets = dict(islice(secrets.items(), limits.INGEST_SKIPPED_MAX))

    def skip(self, source: str, reason: str) -> None:
        """Count a file that is not stored, and note the reason if there is room."""
        self.skipped_count += 1
        if len(self.skipped) < limits.INGEST_SKIPPED_MAX:
            self.skipped[source] = reason

    def count_unchanged(self, source: str, known: KnownFile) -> None:
        """Count a file that is as it was; one that was skipped then is skipped again for the same reason."""
        if reason := known.outline.skipped:
            self.skip(source, reason)
            return
        self.unchanged += 1
        self.redacted += known.outline.redacted
        self._add_fragments(row.tokens for row in known.parts.values())

    def count(self, source: str, outcome: Outcome | None, known: KnownFile) -> None:
        """Count a file by its outcome and by what was stored of it before."""
        was_known = known.row is not None and not known.outline.skipped
        match outcome:
            case FileSplit(parts=parts, redactions=redactions):
                self.redacted += len(redactions)
                self.changed += was_known
                self.added += not was_known
                self._add_fragments(part.tokens for part in parts)
            case FileSame():
                self.count_unchanged(source, known)
            case FileSkipped(reason=reason):
                self.skip(source, reason)
                self.deleted += was_known
            case None:
                self.deleted += was_known

    def _add_fragments(self, tokens: Iterator[int]) -> None:
        for each in tokens:
            self.fragments += 1
            self.tokens += each

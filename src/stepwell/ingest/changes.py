"""The rows to store and to delete, so that a project has what a file has become.

The row that stands for the file is written last, with the revision that it had when the client looked at it. If another
client stores the same file at the same time, that write is refused and the loser starts again. If the ingest is
interrupted, the missing or outdated row shows that the file is incomplete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from stepwell.domain.tiers.model import Fragment, FragmentRow, Tier
from stepwell.domain.tiers.source_outline import FILE_KIND, FileOutline, Outline, file_id, fingerprint
from stepwell.ingest.files import FileSame, FileSkipped, FileSplit, PartFound
from stepwell.ingest.inventory import KnownFile
from stepwell.ingest.secret_policy import SecretPolicy


class FragmentPlace(Struct, frozen=True):
    """The destination of a file's rows. `tier` is for new rows; a row that exists stays in its tier."""

    project: str
    root: str
    tier: Tier
    policy: SecretPolicy


class FileChange(Struct, frozen=True):
    """The rows of one file that are stored and deleted.

    `file` is the row that stands for the file; None deletes it. `expected_revision` is the revision that this row must
    have for the change to be applied; 0 means that there is no such row.
    """

    source: str
    deleted: tuple[str, ...]
    stored: tuple[tuple[Fragment, Tier], ...]
    file: tuple[Fragment, Tier] | None
    expected_revision: int

    @property
    def commands(self) -> int:
        """The number of commands that the change takes."""
        return len(self.deleted) + len(self.stored) + 1

    @property
    def weight(self) -> int:
        """The approximate number of bytes of its bodies."""
        return sum(len(fragment.body) for fragment, _ in self.stored)

    def unfinished_file(self) -> tuple[Fragment, Tier] | None:
        """Return the row that stands for the file while its parts are being stored, or None if the file goes.

        It has no digest, so that an inventory takes it for a file that has to be read again.
        """
        if self.file is None:
            return None
        fragment, tier = self.file
        metadata = replace(FileOutline.of(fragment.metadata), digest="", parts="").metadata()
        return replace(fragment, metadata=metadata), tier

    def in_parts(self, commands: int, revision: int) -> Iterator[FileChange]:
        """Yield the change in parts of so many commands; the row that stands for the file comes last.

        `revision` is that of the unfinished row, which the caller has stored before.
        """
        for start in range(0, len(self.deleted), commands):
            yield FileChange(self.source, self.deleted[start : start + commands], (), None, 0)
        for start in range(0, len(self.stored), commands):
            yield FileChange(self.source, (), self.stored[start : start + commands], None, 0)
        yield FileChange(self.source, (), (), self.file, revision)


def of_split(split: FileSplit, data: bytes, known: KnownFile, place: FragmentPlace) -> FileChange:
    """Return the change for a file that is new or has other bytes. Unchanged parts are left alone."""
    stored = [
        (_fragment(part, split.source, data, place.project), row.tier if row else place.tier)
        for part in split.parts
        if not is_stored(part, row := known.parts.get(part.part_id))
    ]
    wanted = {part.part_id for part in split.parts}
    deleted = tuple(part_id for part_id in known.parts if part_id not in wanted)
    outline = FileOutline(
        size=split.size,
        mtime_ns=split.mtime_ns,
        digest=split.digest,
        parts=split.fingerprint,
        root=place.root,
        version=place.policy.rules_version,
        redacted=len(split.redactions),
    )
    file = _file(split.source, outline, listing(part.metadata for part in split.parts), known, place)
    return FileChange(split.source, deleted, tuple(stored), file, _revision(known))


def of_same(same: FileSame, known: KnownFile, place: FragmentPlace) -> FileChange | None:
    """Return the change for a file that was touched or moved with its root, but has the same bytes.

    None means that nothing has to be stored, because the file is still too young to be recognised by its time.
    """
    outline = replace(known.outline, size=same.size, mtime_ns=same.mtime_ns, root=place.root)
    if outline == known.outline:
        return None
    rows = sorted(known.parts.values(), key=lambda row: Outline.of(row.metadata).order or 0)
    body = outline.skipped or listing(row.metadata for row in rows)
    return FileChange(same.source, (), (), _file(same.source, outline, body, known, place), _revision(known))


def of_skipped(skipped: FileSkipped, known: KnownFile, place: FragmentPlace) -> FileChange:
    """Return the change for a file that cannot be split.

    It is remembered, so that it is not read again before it changes.
    """
    outline = FileOutline(
        size=skipped.size,
        mtime_ns=skipped.mtime_ns,
        digest=skipped.digest,
        parts=fingerprint(()),
        root=place.root,
        skipped=skipped.reason,
        version=place.policy.rules_version,
    )
    file = _file(skipped.source, outline, skipped.reason, known, place)
    return FileChange(skipped.source, tuple(known.parts), (), file, _revision(known))


def of_gone(source: str, known: KnownFile) -> FileChange:
    """Return the change for a file that does not exist any more, or cannot be read any more."""
    return FileChange(source, tuple(known.parts), (), None, _revision(known))


def _fragment(part: PartFound, source: str, data: bytes, project: str) -> Fragment:
    return Fragment(
        fragment_id=part.part_id,
        body=data[part.start : part.end],
        project=project,
        source=source,
        tokens=part.tokens,
        kind=part.kind,
        metadata=part.metadata,
    )


def is_stored(part: PartFound, row: FragmentRow | None) -> bool:
    """Return True if a row is exactly what a part would be stored as."""
    return row is not None and (part.digest, part.kind, part.tokens, part.metadata) == (
        row.digest,
        row.kind,
        row.tokens,
        row.metadata,
    )


def _file(
    source: str, outline: FileOutline, body: str, known: KnownFile, place: FragmentPlace
) -> tuple[Fragment, Tier]:
    """Return the row that stands for a file: its body lists the parts, and its metadata say how the file was
    recognised.
    """
    fragment = Fragment(
        fragment_id=file_id(source),
        body=body,
        project=place.project,
        source=source,
        kind=FILE_KIND,
        metadata=outline.metadata(),
    )
    return fragment, known.row.tier if known.row else place.tier


def listing(parts: Iterable[Mapping[str, str]]) -> str:
    """Return the parts of a file, one to a line: the lines, and the name or the speaker."""
    listed = (f"{each.get('lines', '')} {each.get('name') or each.get('speaker', '')}".rstrip() for each in parts)
    return "\n".join(listed)


def _revision(known: KnownFile) -> int:
    return known.row.revision if known.row else 0

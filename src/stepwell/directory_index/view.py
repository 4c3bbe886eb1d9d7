"""The view that strategies have of a directory: the rows of one state, and bodies that are read from the files.

A body that is needed is read from its file, redacted as when the file was indexed, and compared with the digest in its
row. If the file has changed meanwhile, there is no such body any more: `BodyGone`, as in a view of a manager's state.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.directory_index.model import DirectoryState, IndexedFile
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commit_history import HISTORY_ID
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import FILE_KIND, Outline
from stepwell.errors import BodyGone
from stepwell.ingest.changes import listing
from stepwell.ingest.files import read_file
from stepwell.ingest.redaction import redact


class DirectoryPart:
    """A fragment of a directory: its row, and its body on demand. The view owns it."""

    __slots__ = ("_place", "_view", "row")

    def __init__(self, view: DirectoryView, row: FragmentRow, place: int) -> None:
        self._view = view
        self._place = place
        self.row = row

    @property
    def body(self) -> memoryview:
        """The bytes of the part. Raises `BodyGone` if its file has changed since it was indexed."""
        return self._view.body(self._place)

    @property
    def text(self) -> str:
        """The body as text."""
        return str(self.body, "utf-8")


class DirectoryChanges(Struct, frozen=True):
    """The fragments that a view has and the one before it had not, or had otherwise; and the ids that are gone."""

    stored: Sequence[DirectoryPart]
    removed: frozenset[str]


class StateChange(Struct, frozen=True):
    """The change from one revision to the next, by ids; and the bodies of the rows that are new."""

    since: int
    stored: Sequence[str]
    removed: frozenset[str]
    bodies: Mapping[str, memoryview]


class FileTexts:
    """The redacted texts of the files that were read last, by source. One command owns it."""

    def __init__(self, root: bytes) -> None:
        self._root: Final = root
        self._texts: Final[OrderedDict[str, bytes]] = OrderedDict()

    def get(self, file: IndexedFile) -> bytes:
        """Return the redacted text of a file; `BodyGone` if it cannot be read any more."""
        text = self._texts.get(file.source)
        if text is None:
            try:
                read = read_file(self._root, file.source)
            except OSError as error:
                raise BodyGone(f"{file.source!r} cannot be read any more: {error}") from error
            if read is None:
                raise BodyGone(f"{file.source!r} is too large by now")
            text = self._texts[file.source] = redact(read.data, file.redactions)
            if len(self._texts) > limits.DIRECTORY_TEXTS_MAX:
                self._texts.popitem(last=False)
        return text

    def clear(self) -> None:
        """Forget all texts: the files may have been indexed anew since they were read."""
        self._texts.clear()


class DirectoryView:
    """A `StrategyView` of one state of a directory. It is immutable; one thread uses it."""

    def __init__(self, project: str, state: DirectoryState, texts: FileTexts, delta: StateChange | None = None) -> None:
        self._project: Final = project
        self._state: Final = state
        self._texts: Final = texts
        self._delta: Final = delta

    @property
    def epoch(self) -> str:
        """The name of the history of the index."""
        return self._state.epoch

    @property
    def revision(self) -> int:
        """The revision of the state."""
        return self._state.revision

    @property
    def projects(self) -> tuple[str, ...]:
        """The only project: the directory's."""
        return (self._project,)

    def __len__(self) -> int:
        return len(self._state.rows)

    def __iter__(self) -> Iterator[DirectoryPart]:
        return (DirectoryPart(self, row, place) for place, row in enumerate(self._state.rows))

    def rows(self, project: str) -> Sequence[FragmentRow]:
        """Return all rows, in order of creation."""
        return self._state.rows if project == self._project else ()

    def get(self, fragment_id: str, *, project: str | None = None) -> DirectoryPart | None:
        """Return one fragment, or None if there is none of that id."""
        place = self._places.get(fragment_id) if project in {None, self._project} else None
        return None if place is None else DirectoryPart(self, self._state.rows[place], place)

    def changes(self, project: str, since: int) -> DirectoryChanges | None:
        """Return the changes since the revision before this one; None for any other revision."""
        delta = self._delta
        if delta is None or since != delta.since or project != self._project:
            return None
        places = [self._places[fragment_id] for fragment_id in delta.stored]
        found = [DirectoryPart(self, self._state.rows[place], place) for place in places]
        return DirectoryChanges(found, delta.removed)

    def body(self, place: int) -> memoryview:
        """Return the body of the row at a place."""
        row = self._state.rows[place]
        if self._delta is not None and (body := self._delta.bodies.get(row.fragment_id)) is not None:
            return body
        if row.fragment_id == HISTORY_ID:
            return memoryview(self._state.commits)
        if row.kind == FILE_KIND:
            return memoryview(self._listing(row))
        start, end = self._state.spans[place].tolist()
        body = memoryview(self._texts.get(self._state.files[row.source]))[start:end]
        if digest_of(body) != row.digest:
            raise BodyGone(f"{row.source!r} has changed since it was indexed")
        return body

    def _listing(self, row: FragmentRow) -> bytes:
        """Return the body of the row that stands for a file: its parts, one to a line."""
        file = self._state.files[row.source]
        parts = sorted(self._parts.get(row.source, ()), key=lambda each: Outline.of(each.metadata).order or 0)
        return (file.skipped or listing(each.metadata for each in parts)).encode()

    @cached_property
    def _parts(self) -> dict[str, list[FragmentRow]]:
        """The rows of the parts of each file, by source."""
        found: dict[str, list[FragmentRow]] = {}
        for row in self._state.rows:
            if row.kind != FILE_KIND:
                found.setdefault(row.source, []).append(row)
        return found

    @cached_property
    def _places(self) -> dict[str, int]:
        """The place of each row, by id."""
        return {row.fragment_id: place for place, row in enumerate(self._state.rows)}

"""Views that are divided among several workers.

A view is divided by the serial numbers of its fragments: worker `part` of `parts` sees each fragment whose serial
leaves the remainder `part`. A fragment keeps its serial for life, so an update never moves it to another share. Serials
are dense, so shares have about the same size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from stepwell.domain.tiers.model import FragmentRow
from stepwell.errors import InvalidArgument
from stepwell.strategies.protocol import Changes, SeenFragment, StrategyView

Portion = tuple[int, int]
"""The number of a share, counted from 0, and the number of shares."""


class ViewShare(Struct, frozen=True):
    """One of several disjoint shares of a view; together they are the view.

    A strategy whose scores depend on other fragments (BM25 does) takes its statistics from `whole`. Then the number of
    shares does not show in the result.
    """

    whole: StrategyView
    part: int
    parts: int

    def __post_init__(self) -> None:
        if not 0 <= self.part < self.parts:
            raise InvalidArgument(f"there is no part {self.part} of {self.parts}: parts are counted from 0")

    @property
    def epoch(self) -> str:
        return self.whole.epoch

    @property
    def revision(self) -> int:
        return self.whole.revision

    @property
    def projects(self) -> tuple[str, ...]:
        return self.whole.projects

    def __len__(self) -> int:
        return sum(len(self.rows(project)) for project in self.projects)

    def __iter__(self) -> Iterator[SeenFragment]:
        return (fragment for fragment in self.whole if self.has(fragment.row))

    def has(self, row: FragmentRow) -> bool:
        """Return True if a fragment of the whole view is in this share."""
        return row.serial % self.parts == self.part

    def rows(self, project: str) -> Sequence[FragmentRow]:
        """Return the rows of a project's fragments that are in this share, in order of creation."""
        return [row for row in self.whole.rows(project) if self.has(row)]

    def get(self, fragment_id: str, *, project: str | None = None) -> SeenFragment | None:
        """Return one fragment, or None if it does not exist or is in another share."""
        fragment = self.whole.get(fragment_id, project=project)
        return fragment if fragment is not None and self.has(fragment.row) else None

    def changes(self, project: str, since: int) -> Changes | None:
        """Return the changes of this share since a revision, or None if the whole view cannot tell them.

        A fragment that was deleted and created again has another serial, and may have moved to another share. Such a
        fragment is reported as removed from this one, also if it was in another one before: removing an unknown
        fragment does nothing.
        """
        changes = self.whole.changes(project, since)
        if changes is None:
            return None
        stored = [fragment for fragment in changes.stored if self.has(fragment.row)]
        elsewhere = {fragment.row.fragment_id for fragment in changes.stored if not self.has(fragment.row)}
        return _Changes(stored, changes.removed | elsewhere)


class _Changes(Struct, frozen=True):
    """The changes of a share: see `protocol.Changes`."""

    stored: Sequence[SeenFragment]
    removed: frozenset[str]


def unwrap_shares(view: StrategyView) -> tuple[StrategyView, tuple[Portion, ...]]:
    """Return the whole view that a view is a share of, and which share it is.

    A share may have been divided again. The result names the innermost share first; a view that is no share has no
    portions.
    """
    portions: list[Portion] = []
    while isinstance(view, ViewShare):
        portions.append((view.part, view.parts))
        view = view.whole
    return view, tuple(portions)

"""The share of a view that one of several workers looks at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from stepwell.domain.tiers.model import FragmentRow
from stepwell.errors import InvalidArgument
from stepwell.strategies.protocol import Changes, SeenFragment, StrategyView

Portion = tuple[int, int]
"""Which part, of how many."""


class ViewShare(Struct, frozen=True):
    """Every so-many-th fragment of a view, in order of creation.

    A strategy whose scores depend on the others takes its statistics from the whole, so that the number of parts does
    not show in the result.
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
        """Whether a fragment of the whole is in this share."""
        return row.serial % self.parts == self.part

    def rows(self, project: str) -> Sequence[FragmentRow]:
        """What is known of those fragments of a project that are in this share."""
        return [row for row in self.whole.rows(project) if self.has(row)]

    def get(self, fragment_id: str, *, project: str | None = None) -> SeenFragment | None:
        """One fragment, if it is in this share."""
        fragment = self.whole.get(fragment_id, project=project)
        return fragment if fragment is not None and self.has(fragment.row) else None

    def changes(self, project: str, since: int) -> Changes | None:
        """What happened to this share. What was deleted and made again may have gone from one share to another."""
        changes = self.whole.changes(project, since)
        if changes is None:
            return None
        stored = [fragment for fragment in changes.stored if self.has(fragment.row)]
        elsewhere = {fragment.row.fragment_id for fragment in changes.stored if not self.has(fragment.row)}
        return _Changes(stored, changes.removed | elsewhere)


class _Changes(Struct, frozen=True):
    stored: Sequence[SeenFragment]
    removed: frozenset[str]


def unwrap_shares(view: StrategyView) -> tuple[StrategyView, tuple[Portion, ...]]:
    """The whole that a view is a share of, and which share; a share may have been shared again."""
    portions: list[Portion] = []
    while isinstance(view, ViewShare):
        portions.append((view.part, view.parts))
        view = view.whole
    return view, tuple(portions)

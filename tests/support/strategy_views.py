"""A store in memory whose views implement `StrategyView`: real rows, real bodies, and every revision is kept."""

from collections.abc import Iterator, Sequence
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import replace

from stepwell.domain.tiers.model import BELOW, FragmentRow, Tier
from stepwell.errors import BodyGone
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, Strategy, StrategyView

Contents = dict[str, dict[str, "Seen"]]
"""The fragments by project and id."""


class Seen(Struct, frozen=True):
    """A fragment in a view. Its body is None if it was deleted since, and reading it then raises `BodyGone`."""

    row: FragmentRow

    content: bytes | None

    @property
    def body(self) -> memoryview:
        if self.content is None:
            raise BodyGone("deleted since")
        return memoryview(self.content)

    @property
    def text(self) -> str:
        return str(self.body, "utf-8")


class Changed(Struct, frozen=True):
    """The changes between two revisions: see `protocol.Changes`."""

    stored: Sequence[Seen]
    removed: frozenset[str]


class MemoryView(Struct, frozen=True):
    """One revision of a store. It can tell the changes since the revision `base`, and none before."""

    epoch: str
    revision: int
    projects: tuple[str, ...]
    history: tuple[Contents, ...]
    base: int = 0

    def _contents(self, project: str, revision: int | None = None) -> dict[str, Seen]:
        return self.history[self.revision if revision is None else revision].get(project, {})

    def __len__(self) -> int:
        return sum(len(self._contents(project)) for project in self.projects)

    def __iter__(self) -> Iterator[Seen]:
        for project in self.projects:
            yield from sorted(self._contents(project).values(), key=lambda seen: seen.row.serial)

    def rows(self, project: str) -> Sequence[FragmentRow]:
        found = (seen.row for seen in self._contents(project).values())
        return sorted(found, key=lambda row: row.serial)

    def get(self, fragment_id: str, *, project: str | None = None) -> Seen | None:
        return self._contents(self.projects[0] if project is None else project).get(fragment_id)

    def changes(self, project: str, since: int) -> Changed | None:
        assert 0 <= since <= self.revision, "asked for what is still to come"
        if since < self.base:
            return None
        before, now = self._contents(project, since), self._contents(project)
        stored = [seen for fragment_id, seen in now.items() if before.get(fragment_id) != seen]
        return Changed(stored, frozenset(before.keys() - now.keys()))


class Store:
    """A store that keeps every revision, so that a view of any of them can be opened."""

    def __init__(self, epoch: str = "epoch") -> None:
        self._epoch = epoch
        self._history: list[Contents] = [{}]
        self._serial = 0

    @property
    def revision(self) -> int:
        return len(self._history) - 1

    def store(
        self,
        fragment_id: str,
        body: str | bytes = "",
        *,
        project: str = "p",
        source: str = "",
        kind: str = "text",
        tokens: int = 1,
        at_ms: int | None = None,
        metadata: dict[str, str] | None = None,
    ) -> FragmentRow:
        """Store a fragment. The time is the number of the revision, unless another is given."""
        content = body.encode() if isinstance(body, str) else body
        current = self._history[-1].get(project, {}).get(fragment_id)
        moment_ms = self.revision + 1 if at_ms is None else at_ms
        if current is None:
            self._serial += 1
        row = FragmentRow(
            project=project,
            fragment_id=fragment_id,
            source=source,
            kind=kind,
            detail_depth=0,
            tokens=tokens,
            size=len(content),
            digest=sha256(content).digest(),
            tier=Tier.HOT,
            placed_at_ms=moment_ms,
            created_at_ms=current.row.created_at_ms if current else moment_ms,
            revision=self.revision + 1,
            serial=current.row.serial if current else self._serial,
            metadata=metadata or {},
        )
        self._commit(project, fragment_id, Seen(row, content))
        return row

    def demote(self, fragment_id: str, *, project: str = "p", at_ms: int | None = None) -> None:
        """Move a fragment from hot to warm, or from warm to cold: another row, the same body."""
        seen = self._history[-1][project][fragment_id]
        placed_at_ms = self.revision + 1 if at_ms is None else at_ms
        row = replace(seen.row, tier=BELOW.get(seen.row.tier, Tier.COLD), placed_at_ms=placed_at_ms)
        self._commit(project, fragment_id, replace(seen, row=row))

    def lose_body(self, fragment_id: str, *, project: str = "p") -> None:
        """Delete a body, as if the fragment had been deleted just after the view was opened."""
        seen = self._history[-1][project][fragment_id]
        self._commit(project, fragment_id, replace(seen, content=None))

    def delete(self, fragment_id: str, *, project: str = "p") -> None:
        self._commit(project, fragment_id, None)

    def _commit(self, project: str, fragment_id: str, seen: Seen | None) -> None:
        contents = dict(self._history[-1])
        fragments = dict(contents.get(project, {}))
        fragments.pop(fragment_id, None)
        if seen is not None:
            fragments[fragment_id] = seen
        contents[project] = fragments
        self._history.append(contents)

    def view(self, *projects: str, revision: int | None = None, base: int = 0) -> MemoryView:
        """Open a view of the project `p`, unless others are named."""
        at = self.revision if revision is None else revision
        return MemoryView(self._epoch, at, projects or ("p",), tuple(self._history), base)


def ask(query: str = "", *projects: str, kinds: Sequence[str] = (), as_of_ms: int | None = None) -> ContextRequest:
    """Return a request to the project `p`, unless others are named."""
    return ContextRequest(projects=projects or ("p",), query=query, kinds=tuple(kinds), as_of_ms=as_of_ms)


def found(
    strategy: Strategy, request: ContextRequest, view: StrategyView, budget_tokens: int = 1_000
) -> tuple[ScoredFragment, ...]:
    """Return the result of a strategy as a tuple."""
    return tuple(strategy.assemble(request, view, budget_tokens))


def ids(scored: Sequence[ScoredFragment]) -> list[str]:
    return [each.fragment_id for each in scored]

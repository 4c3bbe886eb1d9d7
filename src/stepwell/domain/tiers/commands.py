"""Commands on fragments and their tiers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from stepwell import limits
from stepwell.domain import replies
from stepwell.domain.bounded_types import (
    Body,
    Cursor,
    FragmentId,
    Glob,
    Label,
    Metadata,
    PageLimit,
    ProjectName,
    RawDigest,
    Revision,
    Source,
    Tokens,
    UncheckedId,
    UncheckedLabel,
    UncheckedProject,
    UploadNumber,
)
from stepwell.domain.command_roots import Internal, Read, Write
from stepwell.domain.tiers.model import Depth, Tier, TierBudget


class StoreFragment(Write[replies.FragmentPlaced], frozen=True):
    """Insert or replace. `expected_revision` 0 means "must not exist". Its names are still to be checked."""

    project: UncheckedProject
    fragment_id: UncheckedId
    body: Body | UploadNumber
    tokens: Tokens
    tier: Tier = Tier.HOT
    source: Source = ""
    kind: UncheckedLabel = "text"
    detail_depth: Depth = 0
    metadata: Metadata = field(default_factory=dict[str, str])
    expected_revision: Revision | None = None

    @property
    def inline(self) -> tuple[int, ...]:
        return (len(self.body),) if isinstance(self.body, bytes) else ()


class GetFragment(Read[replies.FragmentFound], frozen=True):
    """Read, which is an access: the fifth since its last move lifts a fragment one tier. Its names are unchecked."""

    project: UncheckedProject
    fragment_id: UncheckedId


class PromoteFragment(Write[replies.FragmentPlaced], frozen=True):
    """Lift one tier."""

    project: ProjectName
    fragment_id: FragmentId


class DemoteFragment(Write[replies.FragmentPlaced], frozen=True):
    """Lower one tier."""

    project: ProjectName
    fragment_id: FragmentId


class DeleteFragment(Write[replies.FragmentRemoved], frozen=True):
    """Remove, body included."""

    project: ProjectName
    fragment_id: FragmentId
    expected_revision: Revision | None = None


class EvictLru(Write[replies.FragmentsMoved], frozen=True):
    """Lower the least recently used of a tier; from cold, delete them."""

    tier: Tier = Tier.HOT
    count: Annotated[
        int,
        Meta(ge=1, le=limits.MOVES_PER_STEP_MAX, description="evict 1 to 4096 at a time; call again for more"),
    ] = 1


class SweepStale(Write[replies.FragmentsMoved], frozen=True):
    """Lower what was idle for longer than its tier allows; delete what outlived cold."""


class SweepIdle(Internal[replies.FragmentsMoved], frozen=True):
    """The same, by the manager itself, every now and then: a revision only if anything moved."""


class RelieveArena(Internal[replies.FragmentsMoved], frozen=True):
    """Make room for so many more bytes in the arena, by the manager itself: the least recently used go down."""

    bytes: int


class ListFragments(Read[replies.FragmentPage], frozen=True):
    """Fragments of a project by source glob, tier and kind. No access: it moves nothing."""

    project: ProjectName
    globs: Annotated[tuple[Glob, ...], Meta(max_length=16, description="give at most 16 globs")] = ()
    tier: Tier | None = None
    kind: Label | None = None
    limit: PageLimit = 100
    cursor: Cursor | None = None


class ListProjects(Read[replies.ProjectPage], frozen=True):
    """The projects in the session's scope that hold fragments."""

    limit: PageLimit = 100
    cursor: Cursor | None = None


class GetMetrics(Read[replies.TierMetrics], frozen=True):
    """What the tiers hold, of the session's projects."""


class LocateBodies(Read[replies.BodiesLocated], frozen=True):
    """Which of these bodies are still there. No access, and no scope: nobody knows a digest by accident."""

    digests: Annotated[
        tuple[RawDigest, ...],
        Meta(min_length=1, max_length=limits.PAGE_ROWS_MAX, description="give 1 to 1000 digests at a time"),
    ]


class SetBudget(Write[replies.BudgetSet], frozen=True):
    """Change the bounds; what no longer fits goes down in the same step."""

    budget: TierBudget


TierRead = GetFragment | ListFragments | ListProjects | GetMetrics | LocateBodies
TierWrite = StoreFragment | PromoteFragment | DemoteFragment | DeleteFragment | EvictLru | SweepStale | SetBudget

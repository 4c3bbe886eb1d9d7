"""The commands on fragments, tiers and budgets. `rules` decides them.

The names in `StoreFragment` and `GetFragment` are only bounded in length by their types. Matching the patterns takes
longer than decoding the rest, and most names are known already: the deciders check the others.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from stepwell import limits
from stepwell.domain import replies
from stepwell.domain.bounded_types import (
    Body,
    Cursor,
    ExpirySpan,
    ExpiryTime,
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
from stepwell.domain.tiers.model import Depth, Tier, TierBudget, Work


class StoreOptions(Struct, frozen=True, array_like=True, gc=False):
    """The options of a store that most stores do without.

    `keep`, `expires_at_ms` and `expires_after_ms` become fields of the row. With `unique` nothing is stored if another
    fragment of the project has an equal body: the reply names that fragment.
    """

    keep: bool = False
    expires_at_ms: ExpiryTime | None = None
    expires_after_ms: ExpirySpan | None = None
    unique: bool = False


class StoreFragment(Write[replies.FragmentPlaced], frozen=True):
    """Insert a fragment, or replace its body, source, kind, tokens, metadata and options.

    With `expected_revision` the store is refused with `Conflict` unless the fragment is at that revision; 0 means "must
    not exist". A fragment that is larger than its tier goes to a lower one, and the reply says so.
    """

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
    options: StoreOptions | None = None
    work: Work | None = None

    @property
    def inline(self) -> tuple[int, ...]:
        """The length of the body, if it is inside the command and was not uploaded."""
        return (len(self.body),) if isinstance(self.body, bytes) else ()


class GetFragment(Read[replies.FragmentFound], frozen=True):
    """Read a fragment. It counts as an access: the fifth since the last move promotes the fragment by one tier."""

    project: UncheckedProject
    fragment_id: UncheckedId


class PeekFragment(Read[replies.FragmentFound], frozen=True):
    """Read a fragment without an access: its recency, its access count and its tier stay as they are."""

    project: UncheckedProject
    fragment_id: UncheckedId


class CheckFragment(Read[replies.FragmentChecked], frozen=True):
    """Find out if a fragment exists, without an access and without its body."""

    project: UncheckedProject
    fragment_id: UncheckedId


class PromoteFragment(Write[replies.FragmentPlaced], frozen=True):
    """Promote a fragment by one tier."""

    project: ProjectName
    fragment_id: FragmentId


class DemoteFragment(Write[replies.FragmentPlaced], frozen=True):
    """Demote a fragment by one tier, with its whole body."""

    project: ProjectName
    fragment_id: FragmentId


class DeleteFragment(Write[replies.FragmentRemoved], frozen=True):
    """Delete a fragment. Its body goes too, unless another row refers to it.

    With `missing_ok` a fragment that does not exist is no error. An `expected_revision` is compared all the same.
    """

    project: ProjectName
    fragment_id: FragmentId
    expected_revision: Revision | None = None
    missing_ok: bool = False


class RequireFragment(Write[replies.FragmentChecked], frozen=True):
    """Refuse with `Conflict` unless a fragment is at a revision, 0 for "absent". It changes nothing.

    It is a write so that it may stand in a transaction, whose other writes then happen only if it holds.
    """

    project: ProjectName
    fragment_id: FragmentId
    revision: Revision


class EvictLru(Write[replies.FragmentsMoved], frozen=True):
    """Demote the least recently used fragments of a tier; delete them if the tier is cold."""

    tier: Tier = Tier.HOT
    count: Annotated[
        int,
        Meta(ge=1, le=limits.MOVES_PER_STEP_MAX, description="evict 1 to 4096 at a time; call again for more"),
    ] = 1


class SweepStale(Write[replies.FragmentsMoved], frozen=True):
    """Demote fragments that were idle for longer than their tier allows; delete those that outlived cold."""


class SweepIdle(Internal[replies.FragmentsMoved], frozen=True):
    """The same as `SweepStale`, sent by the manager from time to time: a revision only if a fragment moved."""


class ExpireFragments(Internal[replies.FragmentsMoved], frozen=True):
    """Delete the fragments that have expired, up to a bound. Sent by the manager as soon as there are any."""


class RelieveArena(Internal[replies.FragmentsMoved], frozen=True):
    """Free so many bytes of the arena by demoting the least recently used fragments. Sent by the manager."""

    bytes: int


class ListFragments(Read[replies.FragmentPage], frozen=True):
    """List the fragments of a project by source glob, tier and kind. It is no access and moves nothing."""

    project: ProjectName
    globs: Annotated[tuple[Glob, ...], Meta(max_length=limits.GLOBS_MAX, description="give at most 16 globs")] = ()
    tier: Tier | None = None
    kind: Label | None = None
    limit: PageLimit = 100
    cursor: Cursor | None = None


class ListProjects(Read[replies.ProjectPage], frozen=True):
    """List the projects in the session's scope that have fragments."""

    limit: PageLimit = 100
    cursor: Cursor | None = None


class GetMetrics(Read[replies.TierMetrics], frozen=True):
    """Return the usage of the tiers by the session's projects, and the budget."""


class LocateBodies(Read[replies.BodiesLocated], frozen=True):
    """Find out which of these bodies are still kept. It is no access.

    There is no check of scope: a session that knows a digest has seen the body, or its owner gave the digest away.
    """

    digests: Annotated[
        tuple[RawDigest, ...],
        Meta(min_length=1, max_length=limits.PAGE_ROWS_MAX, description="give 1 to 1000 digests at a time"),
    ]


class SetBudget(Write[replies.BudgetSet], frozen=True):
    """Change the bounds of the tiers. Fragments that no longer fit are demoted in the same step."""

    budget: TierBudget


TierRead = GetFragment | PeekFragment | CheckFragment | ListFragments | ListProjects | GetMetrics | LocateBodies
TierWrite = (
    StoreFragment
    | PromoteFragment
    | DemoteFragment
    | DeleteFragment
    | RequireFragment
    | EvictLru
    | SweepStale
    | SetBudget
)
